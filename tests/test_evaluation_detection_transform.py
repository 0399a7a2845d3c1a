"""Batches of a detection: what each image and each region of them is, at any place and scale."""

import pickle

import detection_cases
import numpy as np
import pytest

from cfn_jax.data import boxes, streams
from cfn_jax.evaluation.detection import detector, opened, passes, transform


@pytest.fixture(scope='module')
def voc(tmp_path_factory):
  return detection_cases.make_voc(tmp_path_factory.mktemp('voc') / 'VOC2007')


# ---- training


def make_feed(voc, **fields):
  config = detection_cases.make_config(voc, **{'batch_size': 3, **fields})
  data = opened.open_data(config)
  moves = opened.measure_moves(config, data)
  given = detector.Detector(
    network=None, view_px=0, input_record=None, class_names=(), initial=None, moves=moves
  )
  return passes.make_training(config, given, data), data


def take(feed, start, stop):
  return list(feed.train(start, stop))


def assert_same(one, other):
  assert one.keys() == other.keys()
  for name in one:
    np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_a_batch_follows_from_its_step_alone(voc):
  fields = {'images.scales_px': (48, 64), 'images.canvases': 3}
  feed, _ = make_feed(voc, **fields)
  whole = take(feed, 0, 4)
  assert_same(take(feed, 3, 4)[0], whole[3])
  assert any(not np.array_equal(whole[0]['regions'], each['regions']) for each in whole[1:])
  again = take(make_feed(voc, **fields)[0], 0, 1)[0]
  assert_same(again, whole[0])
  other = take(make_feed(voc, seed=1, **fields)[0], 0, 1)[0]
  assert other['image'].shape != again['image'].shape or np.any(other['image'] != again['image'])


def test_the_transform_does_the_same_in_another_process(voc):
  feed, _ = make_feed(voc, **{'images.scales_px': (48, 64)})
  made = pickle.loads(pickle.dumps(feed.transform))
  visit = feed.reader.train(5)
  fresh = feed.reader.train(5)
  assert_same(feed.transform(visit), made(fresh))


@pytest.mark.slow
def test_loader_processes_make_the_same_batches(voc):
  whole = take(make_feed(voc)[0], 0, 3)
  for one, other in zip(whole, take(make_feed(voc, **{'data.num_workers': 2})[0], 0, 3)):
    assert_same(one, other)


def test_every_region_of_a_batch_is_what_its_image_shows(voc):
  feed, data = make_feed(voc, **{'images.scales_px': (48, 64), 'batch_size': 1})
  objects, proposals = data.training.images.objects, data.training.proposals
  moves, kinds = feed.transform.moves, set()
  for place in range(24):  # two epochs of the doubled list
    visit = feed.reader.train(place)
    made = feed.transform(visit)
    mirrored, index = divmod(visit.record, 6)
    shown = objects[index]
    height, width = detection_cases.SIZES[index]
    short = (48, 64)[feed.transform.frames.level(place)]
    scale = short / min(height, width)
    sides = np.rint(np.array([height, width]) * scale)
    np.testing.assert_array_equal(made['extent'], sides[None])
    assert made['image'].shape == (1, *feed.transform.frames.canvas(place), 3)
    picture = made['image'][0, : int(sides[0]), : int(sides[1])]
    wanted = visit.image[:, ::-1] if mirrored else visit.image
    small = wanted.astype(float).mean((0, 1))
    np.testing.assert_allclose(picture.mean((0, 1)), small, atol=3)
    half = picture.shape[1] // 2
    tilt = picture[:, :half].mean() - picture[:, -half:].mean()
    own = wanted[:, : width // 2].mean() - wanted[:, -(width // 2) :].mean()
    assert tilt == pytest.approx(own, abs=4)

    own_boxes = boxes.mirror(shown.boxes, width) if mirrored else shown.boxes
    around = boxes.mirror(proposals[index], width) if mirrored else proposals[index]
    known = np.concatenate([own_boxes, around])
    count = int(made['drawn'].sum())
    assert made['drawn'].tolist() == [1] * count + [0] * (8 - count)
    regions = made['regions'][:count, 1:] / scale
    assert not made['regions'][:, 0].any() and not made['regions'][count:].any()
    assert not made['label'][count:].any() and not made['move'][count:].any()
    near = np.abs(regions[:, None] - known[None]).max(2)
    assert (near.min(1) < 1e-3).all()
    if not len(shown.boxes):
      assert count == 0
      kinds.add('empty')
      continue
    shares = boxes.overlaps(np.rint(regions), own_boxes)
    front = made['label'][:count] > 0
    assert front.tolist() == (shares.max(1) >= 0.5).tolist()
    assert front.sum() <= 2 and (shares.max(1) >= 0.1).all()
    for region, label, move in zip(regions, made['label'][:count], made['move']):
      if not label:
        assert not move.any()
        continue
      kinds.add('mirrored' if mirrored else 'plain')
      best = boxes.overlaps(np.rint(region)[None], own_boxes)[0].argmax()
      assert label == shown.classes[best] + 1
      landed = boxes.decode(region, move * moves.stds[label] + moves.means[label])
      np.testing.assert_allclose(landed, own_boxes[best], atol=1e-2)
  assert kinds == {'empty', 'mirrored', 'plain'}


def test_difficult_objects_train_or_do_not(voc):
  for difficult in (True, False):
    feed, data = make_feed(
      voc, **{'regions.difficult': difficult, 'regions.per_image': 64, 'regions.foreground': 1.0}
    )
    visits = [feed.reader.train(place) for place in range(12)]
    made = feed.transform(next(each for each in visits if each.record == 3))  # two dogs, one easy
    front = made['regions'][made['label'] > 0, 1:]
    marked = data.training.images.objects[3].boxes[1]  # at a scale of 1
    assert np.any(np.abs(front - marked).max(1) < 1e-3) == difficult


def test_all_images_train_once_as_they_are_and_once_mirrored(voc):
  feed, _ = make_feed(voc)
  records = [feed.reader.train(place).record for place in range(12)]
  assert sorted(records) == list(range(12))
  source = feed.reader.source
  assert len(source) == 12 and source[7].name == source[1].name
  assert feed.names(0) == [source[record].name for record in records[:3]]
  assert 'mirrored' in source.description and source.labels() is None
  for index in (12, -1):
    with pytest.raises(IndexError):
      source[index]


# ---- the test


def test_each_region_is_seen_where_its_area_is_nearest_to_that_of_alexnets_input():
  short = np.array([480, 576, 688, 864, 1200])
  regions = [
    ((0, 0, 499, 374), 0),
    ((100, 100, 299, 249), 0),
    ((10, 10, 59, 49), 4),
    ((50, 50, 69, 69), 4),
    ((0, 0, 199, 159), 0),
    ((0, 0, 149, 119), 1),
    ((0, 0, 119, 109), 2),
    ((0, 0, 99, 89), 3),
  ]
  found = transform.choose_levels(np.array([box for box, _ in regions], np.float32), short / 375)
  assert found.tolist() == [level for _, level in regions]


def make_pass(voc, limit=0, **fields):
  config = detection_cases.make_config(voc, **fields)
  data = opened.open_data(config)
  return passes.make_pass(config, data.testing, limit=limit), data.testing


def test_a_pass_shows_each_test_image_at_each_scale_with_all_its_proposals(voc):
  scales = (48, 64, 96)
  fed, testing = make_pass(voc, eval_batch_size=4, **{'test.scales_px': scales})
  rows = []
  for batch in fed.evaluate():
    for row in np.flatnonzero(batch['mask']):
      rows.append({name: array[row] for name, array in batch.items()})
  assert [int(row['record']) for row in rows] == list(range(6))
  for index, row in enumerate(rows):
    boxes_, native = testing.proposals[index], np.array(detection_cases.SIZES[index])
    count = len(boxes_)
    assert row['drawn'].tolist() == [1] * count + [0] * (len(row['drawn']) - count)
    np.testing.assert_array_equal(row['box'][:count], boxes_)
    np.testing.assert_array_equal(row['sides'], native)
    level = row['regions'][:count, 0].astype(int)
    grown = np.minimum(np.array(scales) / native.min(), 107 / native.max())
    np.testing.assert_allclose(row['regions'][:count, 1:], boxes_ * grown[level, None], rtol=1e-6)
    areas = boxes.areas(boxes_.astype(float))[:, None] * grown**2
    assert level.tolist() == np.abs(areas - 224**2).argmin(1).tolist()
    np.testing.assert_array_equal(row['extent'], np.rint(native * grown[:, None]))
    assert row['image'].shape[0] == 3
    for image, (height, width) in zip(row['image'], row['extent']):
      assert image[:height, :width].any((1, 2)).all()
      assert not image[height:].any() and not image[:, width:].any()


def test_a_pass_with_a_limit_keeps_regions_and_canvases_with_their_images(voc):
  whole = list(make_pass(voc, eval_batch_size=1)[0].evaluate())
  fed, testing = make_pass(voc, limit=3, eval_batch_size=2, **{'images.canvases': 6})
  rows = [
    {name: array[row] for name, array in batch.items()}
    for batch in fed.evaluate()
    for row in np.flatnonzero(batch['mask'])
  ]
  records = [int(row['record']) for row in rows]
  assert records == streams.choose_records(testing.reader.source, 3).tolist() != [0, 1, 2]
  for record, row in zip(records, rows):
    alone = {name: array[0] for name, array in whole[record].items()}
    for name in ('extent', 'regions', 'box', 'drawn', 'sides'):
      np.testing.assert_array_equal(row[name], alone[name], err_msg=name)
    height, width = row['extent'][0]
    assert (row['extent'] <= row['image'].shape[1:3]).all()
    np.testing.assert_array_equal(
      row['image'][0, :height, :width], alone['image'][0, :height, :width]
    )
