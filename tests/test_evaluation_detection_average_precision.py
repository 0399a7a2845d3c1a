"""Average precision of detections: the devkit's rules, and how sure the figures are."""

import fractions
import json
import math

import numpy as np
import pytest

from cfn_jax.data import voc_objects
from cfn_jax.evaluation import scores as score_lib
from cfn_jax.evaluation.detection import average_precision as ap
from cfn_jax.evaluation.detection import bootstrap

WORDS = {ap.RIGHT: 'tp', ap.WRONG: 'fp', ap.IGNORED: 'ignored'}
A, B, C = [0, 0, 9, 9], [100, 100, 109, 109], [200, 0, 209, 9]


def judge(found, truths, *, images=2):
  """Judges rows of image, score, box; of image, box, difficult."""
  return ap.judge(
    ap.Detections(
      np.array([row[0] for row in found], int),
      np.array([row[1] for row in found], float),
      np.array([row[2] for row in found], float).reshape(-1, 4),
    ),
    ap.Truths(
      np.array([row[0] for row in truths], int),
      np.array([row[1] for row in truths], float).reshape(-1, 4),
      np.array([row[2] for row in truths], bool),
    ),
    images=images,
  )


def verdicts(judged):
  return [WORDS[each] for each in judged.verdicts.tolist()]


def test_precision_and_recall_by_hand():
  judged = judge(
    [(0, 0.9, A), (0, 0.8, C), (1, 0.7, A), (1, 0.6, C), (1, 0.5, B)],
    [(0, A, 0), (0, B, 0), (1, A, 0)],
  )
  assert verdicts(judged) == ['tp', 'fp', 'tp', 'fp', 'fp']
  assert judged.matches.tolist() == [0, -1, 2, -1, -1]
  np.testing.assert_allclose(judged.recall, [1 / 3, 1 / 3, 2 / 3, 2 / 3, 2 / 3])
  np.testing.assert_allclose(judged.precision, [1, 1 / 2, 2 / 3, 1 / 2, 2 / 5])
  assert judged.eleven_points == pytest.approx((4 + 3 * 2 / 3) / 11)
  assert judged.area == pytest.approx(1 / 3 + 1 / 3 * 2 / 3)


def test_the_largest_overlap_decides_before_all_else():
  tall, short = [0, 0, 9, 11], [0, 0, 9, 7]
  assert verdicts(judge([(0, 0.9, tall)], [(0, tall, 1), (0, short, 0)])) == ['ignored']
  taken = judge([(0, 0.8, A), (0, 0.9, A)], [(0, A, 0), (0, tall, 0)])
  assert verdicts(taken) == ['fp', 'tp'] and taken.order.tolist() == [1, 0]
  twice = judge([(0, 0.9, A), (0, 0.8, A)], [(0, A, 1), (0, B, 0)])
  assert verdicts(twice) == ['ignored', 'ignored'] and np.isnan(twice.precision).all()
  assert judge([(0, 0.9, A)], [(0, A, 0), (0, A, 0)]).matches.tolist() == [0]


def test_half_is_enough_and_an_ulp_less_is_not():
  assert verdicts(judge([(0, 0.9, [0, 0, 9, 19])], [(0, A, 0)])) == ['tp']
  assert verdicts(judge([(0, 0.9, [0, 0, 9, 19.00001])], [(0, A, 0)])) == ['fp']
  assert verdicts(judge([(1, 0.9, A)], [(0, A, 0)])) == ['fp']


def test_ties_keep_the_order_of_the_file():
  truths = [(0, A, 0)]
  assert judge([(0, 0.5, A), (1, 0.5, A)], truths).area == 1
  assert judge([(1, 0.5, A), (0, 0.5, A)], truths).area == 0.5
  many = [(1, 0.5, A)] * 40 + [(0, 0.5, A)]  # more than a sort of small arrays handles stably
  assert judge(many, truths).area == pytest.approx(1 / 41)


@pytest.mark.parametrize('tenths', range(11))
def test_a_recall_of_whole_tenths_reaches_its_point(tenths):
  truths = [(0, [20 * n, 0, 20 * n + 9, 9], 0) for n in range(10)]
  found = [(0, 1.0, box) for _, box, _ in truths[:tenths]]
  expected = (tenths + 1) / 11 if tenths else 0
  assert judge(found, truths).eleven_points == pytest.approx(expected)


def test_without_a_positive_there_is_no_figure():
  judged = judge([(0, 0.9, A), (0, 0.8, C)], [(0, A, 1)])
  assert verdicts(judged) == ['ignored', 'fp'] and np.isnan(judged.recall).all()
  assert math.isnan(judged.eleven_points) and math.isnan(judged.area)
  nothing = judge([], [(0, A, 0)])
  assert nothing.eleven_points == nothing.area == 0


@pytest.mark.parametrize(
  ('found', 'truths', 'told'),
  [
    ([(0, math.nan, A)], [], 'scores are not finite'),
    ([(0, 0.5, [0, 0, math.inf, 9])], [], 'boxes are not finite'),
    ([(2, 0.5, A)], [], 'a detection in image 2'),
    ([], [(-1, A, 0)], 'a truth in image -1'),
  ],
)
def test_what_cannot_be_judged_is_refused(found, truths, told):
  with pytest.raises(ValueError, match=told):
    judge(found, truths)


def read_case(case):
  names = sorted({each['image'] for each in case['ground_truth'] + case['detections']})
  found = [
    (names.index(each['image']), each['score'], np.array(each['box']) - 1)
    for each in case['detections']
  ]
  truths = [
    (names.index(each['image']), np.array(each['box']) - 1, each['difficult'])
    for each in case['ground_truth']
  ]
  return judge(found, truths, images=len(names)), found, truths


def fractions_of(texts):
  return [math.nan if text is None else float(fractions.Fraction(text)) for text in texts]


def test_known_cases_agree(shared_root):
  golden = json.loads(shared_root('golden/voc_detection_cases.json').read_text())
  for case in [*golden['cases'], golden['random'], golden['random_plain']]:
    judged, _, _ = read_case(case)
    assert verdicts(judged) == case['verdicts']
    assert judged.positives.sum() == case['positives']
    if 'recall' in case:
      np.testing.assert_allclose(judged.recall, fractions_of(case['recall']), rtol=1e-15)
      np.testing.assert_allclose(judged.precision, fractions_of(case['precision']), rtol=1e-15)
    figures = judged.eleven_points, judged.area
    if case['positives']:
      assert figures == pytest.approx((case['ap_11_point'], case['ap_area']), abs=1e-15)
    else:
      assert all(map(math.isnan, figures))
  assert len(golden['cases']) == 15


def test_a_public_package_agrees(shared_root):
  package = pytest.importorskip('mean_average_precision')
  case = json.loads(shared_root('golden/voc_detection_cases.json').read_text())['random_plain']
  judged, found, truths = read_case(case)
  metric = package.MetricBuilder.build_evaluation_metric('map_2d', num_classes=1)
  for image in range(len(judged.positives)):
    theirs = [[*box, 0, 0, 0] for own, box, _ in truths if own == image]
    ours = [[*box, 0, score] for own, score, box in found if own == image]
    metric.add(np.array(ours).reshape(-1, 6), np.array(theirs, float).reshape(-1, 7))
  recalls = np.arange(11) / 10 - 1e-6  # their recalls are float32
  for figure, options in (
    (judged.area, {}),
    (judged.eleven_points, {'recall_thresholds': recalls}),
  ):
    value = metric.value(iou_thresholds=0.5, **options)['mAP']
    assert figure == pytest.approx(float(value), abs=1e-6)


def make_test(images=60, classes=3, seed=0):
  """Draws objects, and detections near some of them with many ties; the last class has none."""
  rng = np.random.default_rng(seed)
  objects, rows = [], [[] for _ in range(classes + 1)]
  for image in range(images):
    count = rng.integers(0, 4)
    corners = rng.integers(0, 60, (count, 2))
    ends = np.concatenate([corners, corners + rng.integers(10, 40, (count, 2))], axis=1)
    numbers = rng.integers(0, classes, count)
    objects.append(
      voc_objects.Objects(
        ends.astype(np.float32), numbers.astype(np.int32), rng.random(count) < 0.2, (100, 100)
      )
    )
    for box, number in zip(ends, numbers):
      for _ in range(rng.integers(0, 3)):
        rows[number].append((image, rng.integers(3, 12) / 10, box + rng.integers(-4, 5, 4)))
    for number in range(classes):
      rows[number].append((image, rng.integers(1, 9) / 10, rng.integers(0, 50, 4).cumsum()))
  found = [
    ap.Detections(*(np.array([row[part] for row in each]) for part in range(3)))
    for each in rows[:-1]
  ]
  none = ap.Detections(np.zeros(1, int), np.ones(1), np.zeros((1, 4)))
  return [*found, none], objects, [f'class {number}' for number in range(classes)] + ['none']


def test_means_are_over_classes_with_positives():
  found, objects, class_names = make_test()
  scores = ap.judge_classes(found, objects, class_names)
  assert scores.without == ('none',) and math.isnan(scores.area['none'])
  known = class_names[:-1]
  assert scores.mean_area == pytest.approx(np.mean([scores.area[name] for name in known]))
  expected = np.mean([scores.eleven_points[name] for name in known])
  assert 0.2 < scores.mean_eleven_points == pytest.approx(expected)
  easy = sum(np.sum(~each.difficult) for each in objects)
  assert sum(scores.positives.values()) == easy
  with pytest.raises(ValueError, match='3 classes, 4 class names'):
    ap.judge_classes(found[:-1], objects, class_names)


def test_verdicts_of_an_image_do_not_depend_on_the_others():
  found, objects, class_names = make_test()
  scores = ap.judge_classes(found, objects, class_names)
  for image, own in enumerate(objects):
    rows = [
      (np.append(each.boxes[place], each.scores[place]), number, judged.verdicts[place])
      for number, (each, judged) in enumerate(zip(found, scores.judged))
      for place in np.flatnonzero(each.images == image)
    ]
    if not rows:
      continue
    boxes, numbers, expected = (np.array(part) for part in zip(*rows))
    verdicts, missed = ap.judge_image(boxes, numbers, own)
    assert verdicts.tolist() == expected.tolist()
    assert np.sum(~own.difficult) - np.sum(missed) == np.sum(verdicts == ap.RIGHT)
    assert not np.any(missed & own.difficult)


def test_detections_of_an_array_come_by_class_and_image():
  found = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
  kept = np.zeros((2, 3, 4), bool)
  kept[1, 2, 3] = kept[0, 2, 1] = kept[1, 0, 0] = True
  first, second, third = ap.gather_detections(found, kept)
  assert first.images.tolist() == [1] and first.scores.tolist() == [found[1, 0, 0, 4]]
  assert len(second.images) == 0 and second.boxes.shape == (0, 4)
  assert third.images.tolist() == [0, 1]
  np.testing.assert_array_equal(third.boxes, [found[0, 2, 1, :4], found[1, 2, 3, :4]])


def repeat_images(found, objects, times):
  """Makes the test that a draw stands for: copies of a detection follow each other."""
  starts = np.cumsum(times) - times
  drawn = []
  for each in found:
    copies = times[each.images]
    places = np.repeat(np.arange(len(copies)), copies)
    nth = np.arange(len(places)) - np.repeat(np.cumsum(copies) - copies, copies)
    drawn.append(
      ap.Detections(starts[each.images[places]] + nth, each.scores[places], each.boxes[places])
    )
  return drawn, [own for own, count in zip(objects, times) for _ in range(count)]


def test_a_draw_is_the_figure_of_its_images():
  found, objects, class_names = make_test(40)
  scores = ap.judge_classes(found, objects, class_names)
  means = bootstrap.draw_means(scores, draws=8, seed=3)
  rng = np.random.Generator(np.random.Philox(key=[3, 40]))
  for mean, times in zip(means, rng.multinomial(40, np.full(40, 1 / 40), size=8)):
    drawn = ap.judge_classes(*repeat_images(found, objects, times), class_names)
    assert mean == pytest.approx(drawn.mean_eleven_points, abs=1e-12)


def test_draws_do_not_depend_on_how_places_are_parted(monkeypatch):
  scores = ap.judge_classes(*make_test())
  expected = bootstrap.draw_means(scores, draws=20)
  monkeypatch.setattr(bootstrap, '_PLACES_AT_ONCE', 7)
  np.testing.assert_array_equal(bootstrap.draw_means(scores, draws=20), expected)


def keep(scores):
  figures = {'map': scores.mean_eleven_points}
  return figures | score_lib.keep_draws('map', bootstrap.draw_means(scores, draws=300))


def test_intervals_hold_the_figure_and_pairs_are_narrower():
  found, objects, class_names = make_test(200)
  scores = ap.judge_classes(found, objects, class_names)
  first = keep(scores)
  low, high = first['map_low'], first['map_high']
  assert low < scores.mean_eleven_points < high and high - low < 0.3
  assert score_lib.compare(first, first, 'map') == (0, 0, 0)
  worse = [each._replace(boxes=each.boxes + 20 * (each.images % 9 == 0)[:, None]) for each in found]
  second = ap.judge_classes(worse, objects, class_names)
  difference, from_, to = score_lib.compare(first, keep(second), 'map')
  assert difference == scores.mean_eleven_points - second.mean_eleven_points
  assert 0 < from_ < difference < to and to - from_ < high - low


def test_an_interval_leaves_out_draws_without_a_figure():
  low, high = score_lib.find_interval(np.array([math.nan, 0.2, math.nan, 0.2]))
  assert (low, high) == pytest.approx((0.2, 0.2))
  assert all(map(math.isnan, score_lib.find_interval(np.full(3, math.nan))))
