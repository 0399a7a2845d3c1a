"""The detector: its loss, what a perfect network would score, and several scales at once."""

import detection_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cfn_jax.data import boxes
from cfn_jax.evaluation import trunks
from cfn_jax.evaluation.detection import (
  average_precision,
  detector,
  judge,
  opened,
  passes,
  roles,
  transform,
)


@pytest.fixture(scope='module')
def voc(tmp_path_factory):
  return detection_cases.make_voc(tmp_path_factory.mktemp('voc') / 'VOC2007')


MOVES = roles.Moves(
  np.arange(12, dtype=np.float32)[::-1].reshape(3, 4) / 10,
  1 + np.arange(12, dtype=np.float32).reshape(3, 4) / 10,
)


class Given(detector.Detector):
  """A detector whose batches say what the network returns."""

  def see(self, params, batch, key=None):
    return batch['scores'], batch['moves']


def make_given(moves=MOVES):
  return Given(
    network=None,
    view_px=0,
    input_record=None,
    class_names=detection_cases.CLASSES,
    initial=None,
    moves=moves,
  )


# ---- the loss


def test_the_loss_is_the_softmax_and_the_smooth_l1_over_the_drawn_regions():
  rng = np.random.default_rng(0)
  scores = rng.normal(size=(2, 5, 3)).astype(np.float32)
  moves = rng.normal(size=(2, 5, 3, 4)).astype(np.float32) * 2
  batch = {
    'label': np.array([[1, 2, 0, 0, 0], [2, 0, 0, 0, 0]], np.int32),
    'move': rng.normal(size=(2, 5, 4)).astype(np.float32),
    'drawn': np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], np.float32),
  }
  classes = places = right = 0.0
  for image, region in np.argwhere(batch['drawn'] == 1):
    own, label = scores[image, region].astype(float), batch['label'][image, region]
    classes -= np.log(np.exp(own[label]) / np.exp(own).sum())
    right += own.argmax() == label
    if label:
      for x in moves[image, region, label].astype(float) - batch['move'][image, region]:
        places += 0.5 * x**2 if abs(x) < 1 else abs(x) - 0.5
  loss, sums = jax.jit(make_given().loss)({}, batch | {'scores': scores, 'moves': moves}, None)
  assert float(loss) == pytest.approx((classes + places) / 6, rel=1e-5)
  assert float(sums['class_loss']) == pytest.approx(classes, rel=1e-5)
  assert float(sums['box_loss']) == pytest.approx(places, rel=1e-5)
  assert (float(sums['count']), float(sums['correct'])) == (6, right)
  figures = passes.report_training({**sums, 'learning_rate': 0.1})
  assert figures['train_loss'] == pytest.approx(float(loss), rel=1e-5)


def test_the_distance_of_a_move_is_the_smooth_l1():
  x = np.array([-2, -1, -0.5, 0, 0.25, 1, 3], np.float32)
  moves = np.full((7, 1, 3, 4), 99, np.float32)  # those of other classes do not count
  moves[:, 0, 1] = 0
  moves[:, 0, 1, 2] = x
  batch = {'label': np.ones((7, 1, 1), np.int32), 'drawn': np.ones((7, 1, 1), np.float32)}
  batch |= {
    'move': np.zeros((7, 1, 1, 4)),
    'scores': np.zeros((7, 1, 1, 3)),
    'moves': moves[:, None],
  }
  sums = jax.jit(jax.vmap(lambda batch: make_given().loss({}, batch, None)[1]))(batch)
  np.testing.assert_allclose(sums['box_loss'], [1.5, 0.5, 0.125, 0, 0.03125, 0.5, 2.5])


def test_a_batch_without_a_drawn_region_has_a_loss_and_a_gradient_of_zero():
  batch = {
    'label': np.zeros((1, 2), np.int32),
    'move': np.zeros((1, 2, 4)),
    'drawn': np.zeros((1, 2)),
  }

  def loss(x):
    return make_given().loss({}, batch | {'scores': x[..., 0], 'moves': x}, None)[0]

  value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.ones((1, 2, 3, 4)))
  assert value == 0 and not gradient.any()


# ---- what a perfect network would score


def open_testing(voc, tmp_path, proposals=None, **fields):
  where = 'grid'
  if proposals is not None:
    where = str(detection_cases.save_proposals(tmp_path / 'p.npz', proposals))
  config = detection_cases.make_config(voc, **{'proposals.test': where, **fields})
  return config, opened.open_data(config)


def judge_rows(config, data, least):
  """Runs `detect` over the test as a network would that knows its objects; returns the judge too.

  Each region that overlaps an object by `least` or more has a score of 1 and the exact move.
  """
  made = make_given()
  fed, detect = passes.make_pass(config, data.testing, limit=0), make_detect(config, made)
  found = [
    np.asarray(detect(batch | know_objects(data, batch, least)))[batch['mask'] > 0]
    for batch in fed.evaluate()
  ]
  judged = judge.Judge(
    data.testing.images,
    data.testing.reader,
    data.class_names,
    split='val',
    threshold=config.test.suppress_overlap,
    mean_per_image=config.test.mean_per_image,
  )
  return judged, {'found': np.concatenate(found), 'record': np.arange(6)}


def make_detect(config, made):
  return jax.jit(lambda batch: made.detect({}, batch, config.test.per_class))


def know_objects(data, batch, least):
  scores = np.zeros((*batch['box'].shape[:2], 3), np.float32)
  moves = np.zeros((*scores.shape, 4), np.float32)
  scores[..., 0] = 100
  for row in np.flatnonzero(batch['mask']):
    objects = data.testing.images.objects[batch['record'][row]]
    if not len(objects.boxes):
      continue
    shares = boxes.overlaps(batch['box'][row], objects.boxes)
    for place in np.flatnonzero(shares.max(1) >= least):
      best = shares[place].argmax()
      label = objects.classes[best] + 1
      scores[row, place, label] = 200
      move = boxes.encode(batch['box'][row, place][None], objects.boxes[best][None])[0]
      moves[row, place, label] = (move - MOVES.means[label]) / MOVES.stds[label]
  return {'scores': scores, 'moves': moves}


def test_exact_boxes_as_proposals_score_1(voc, tmp_path):
  own = [
    np.array([box for _, box, _ in shown] or [(0, 0, 9, 9)], np.float32)
    for shown in detection_cases.OBJECTS
  ]
  config, data = open_testing(voc, tmp_path, own, eval_batch_size=4)
  judged, rows = judge_rows(config, data, 1)
  assert judged.watch(rows) == {'val_map': 1.0, 'val_map_11_point': 1.0, 'val_count': 6}


def test_exact_moves_of_a_grids_windows_score_the_recall_of_the_grid(voc, tmp_path):
  least, matched = 0.6, {'cat': [0, 0], 'dog': [0, 0]}
  config, data = open_testing(voc, tmp_path, **{'test.per_class': 40})
  for shown, found in zip(detection_cases.OBJECTS, data.testing.proposals):
    ends = np.array([box for _, box, _ in shown]).reshape(-1, 4)
    shares = boxes.overlaps(ends, found)
    best = shares.argmax(0) if len(ends) else None
    for number, (name, _, difficult) in enumerate(shown):
      if not difficult:
        matched[name][0] += bool(((best == number) & (shares[number] >= least)).any())
        matched[name][1] += 1
  recall = {name: hit / count for name, (hit, count) in matched.items()}
  assert 0 < np.mean(list(recall.values())) < 1
  judged, rows = judge_rows(config, data, least)
  objects = data.testing.images.objects
  found = average_precision.judge_classes(judged.find(rows['found']), objects, data.class_names)
  assert found.area == pytest.approx(recall)
  assert judged.watch(rows)['val_map'] == pytest.approx(np.mean(list(recall.values())))


def test_boxes_are_clipped_to_their_own_image_and_empty_places_are_none(voc, tmp_path):
  given = [np.tile(np.float32([5, 5, 30, 30]), (count, 1)) for count in (1, 5, 2, 3, 4, 5)]
  config, data = open_testing(voc, tmp_path, given, eval_batch_size=4, **{'test.per_class': 10**5})
  made = make_given()
  detect = make_detect(config, made)
  for batch in passes.make_pass(config, data.testing, limit=0).evaluate():
    scores = np.zeros((*batch['drawn'].shape, 3), np.float32)
    moves = np.zeros((*scores.shape, 4), np.float32)
    moves[..., :2], moves[..., 1, :2] = 99, -99  # past the lower right corner; the cat's past 0, 0
    found = np.asarray(detect(batch | {'scores': scores, 'moves': moves}))
    assert found.shape == (4, 2, 5, 5)
    for row in np.flatnonzero(batch['mask']):
      record = int(batch['record'][row])
      count, (height, width) = len(given[record]), detection_cases.SIZES[record]
      assert not found[row, 0, :count, :4].any()
      assert (found[row, 1, :count, :4] == np.array([width - 1, height - 1] * 2)).all()
      assert (found[row, :, :count, 4] == np.float32(1 / 3)).all()
      assert (found[row, :, count:, 4] == -np.inf).all()


# ---- the judge


def test_of_each_class_as_many_boxes_stay_as_images_times_the_mean():
  found = np.zeros((2, 2, 3, 5), np.float32)
  found[:, 0, :, 4] = [[0.9, 0.8, 0.7], [0.6, 0.5, -np.inf]]
  found[:, 1, :, 4] = [[0.1, 0.2, 0.3], [0.3, 0.4, 0.05]]
  made = judge.limit_mean(found, 1)  # the second of each class, and what is below, goes
  gone = -np.inf
  assert made[:, 0, :, 4].tolist() == [[np.float32(0.9), gone, gone], [gone] * 3]
  assert made[:, 1, :, 4].tolist() == [[gone] * 3, [gone, np.float32(0.4), gone]]
  for mean in (0, 3, 100):
    np.testing.assert_array_equal(judge.limit_mean(found, mean), found)
  np.testing.assert_array_equal(found[0, 0, :, 4], np.float32([0.9, 0.8, 0.7]))  # untouched
  found[0, 0, 2, 4] = found[1, 0, :, 4] = gone  # just as many are left
  np.testing.assert_array_equal(judge.limit_mean(found, 1)[:, 0], found[:, 0])


# ---- several scales


@pytest.mark.slow
def test_a_test_at_five_scales_sees_each_region_as_a_test_at_its_scale_does(voc, monkeypatch):
  monkeypatch.setattr(transform, 'PYRAMID_PX', 45)  # images here are a fifth of usual ones
  scales = (48, 56, 64, 80, 96)
  config = detection_cases.make_config(
    voc, eval_batch_size=6, **{'test.scales_px': scales, 'images.longest_px': 144}
  )
  data = opened.open_data(config)
  (trunk,) = trunks.open_compared(config).values()
  made = detector.make_detector(config, data.class_names, MOVES, trunk, drawn=False)
  params = made.init(0)
  params['cls_score']['kernel'] = 100 * params['cls_score']['kernel']
  see = jax.jit(made.see)
  (batch,) = passes.make_pass(config, data.testing, limit=0).evaluate()
  together = see(params, {name: batch[name] for name in ('image', 'extent', 'regions')})
  level = batch['regions'][..., 0].astype(int)
  drawn = batch['drawn'] > 0
  assert set(level[drawn]) == set(range(5))
  native = np.array(detection_cases.SIZES)
  alone = []
  for place, short in enumerate(scales):
    grown = np.minimum(short / native.min(1), 144 / native.max(1))[:, None, None]
    regions = np.concatenate([np.zeros((*level.shape, 1)), batch['box'] * grown], -1)
    one = {name: np.repeat(batch[name][:, place : place + 1], 5, 1) for name in ('image', 'extent')}
    one['regions'] = regions.astype(np.float32)
    alone.append(see(params, one))
  for kind in (0, 1):
    found = np.asarray(together[kind])
    each = np.stack([np.asarray(seen[kind]) for seen in alone])  # [L, B, R, ...]
    wanted = np.take_along_axis(each, level.reshape(1, *level.shape, *[1] * (each.ndim - 3)), 0)[0]
    np.testing.assert_allclose(found[drawn], wanted[drawn], atol=1e-4 * np.abs(wanted).max())
    assert np.abs(each[0][drawn] - wanted[drawn]).max() > 1e-2 * np.abs(wanted).max()
