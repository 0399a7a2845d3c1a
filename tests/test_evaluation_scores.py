"""Figures of merit: scikit-learn's values, hand-worked cases, what is refused."""

import math
import types

import numpy as np
import pytest
import sklearn.metrics

from cfn_jax.data import record
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import answers, labelled, runs, scores

IGNORED = scores.IGNORED


@pytest.mark.parametrize('seed', range(20))
def test_the_area_is_scikit_learns_with_and_without_ties(seed):
  rng = np.random.default_rng(seed)
  labels = (rng.random(200) < rng.uniform(0.02, 0.9)).astype(np.uint8)
  labels[0] = 1
  values = rng.normal(size=200)
  if seed % 2:
    values = np.round(values, 1)  # many ties
  ours = scores.average_precision(values, labels, tie_margin=0)
  assert ours == pytest.approx(sklearn.metrics.average_precision_score(labels, values), abs=1e-12)
  lowered = values - 1e-5 * labels
  expected = sklearn.metrics.average_precision_score(labels, lowered)
  assert scores.average_precision(values, labels) == pytest.approx(expected, abs=1e-12)


def test_ignored_examples_do_not_exist():
  rng = np.random.default_rng(0)
  values, labels = rng.normal(size=300), rng.integers(0, 2, 300)
  hidden = rng.random(300) < 0.3
  masked = np.where(hidden, IGNORED, labels).astype(np.uint8)
  for measure in (scores.average_precision, scores.eleven_point_precision):
    assert measure(values, masked) == measure(values[~hidden], labels[~hidden])


def test_ties_count_against_the_positives():
  # The positive is third of three, not first: precision 1/3.
  values, labels = np.zeros(3), np.array([1, 0, 0])
  assert scores.average_precision(values, labels) == pytest.approx(1 / 3)
  # One margin apart is a tie still, two are none.
  assert scores.average_precision(np.array([0.9e-5, 0.0]), np.array([1, 0])) == 0.5
  assert scores.average_precision(np.array([2e-5, 0.0]), np.array([1, 0])) == 1


@pytest.mark.parametrize('measure', [scores.average_precision, scores.eleven_point_precision])
def test_all_positives_give_one_and_none_give_nan(measure):
  values = np.array([0.1, -3.0, 2.0])
  assert measure(values, np.ones(3, int)) == 1
  assert math.isnan(measure(values, np.zeros(3, int)))
  assert math.isnan(measure(values, np.full(3, IGNORED)))
  assert math.isnan(measure(np.empty(0), np.empty(0, int)))


def test_the_eleven_points_are_the_best_precision_at_that_recall_or_more():
  # Ranks: + - - + + -; recalls 1/3, 2/3, 1 with precisions 1, 1/2, 3/5.
  values, labels = np.arange(6, 0, -1.0), np.array([1, 0, 0, 1, 1, 0])
  # Recall 0 .. 0.3: 1 (four points); from 0.4 on the best that follows is 3/5 (seven points).
  expected = (4 * 1 + 7 * 0.6) / 11
  assert scores.eleven_point_precision(values, labels) == pytest.approx(expected)


def test_a_recall_of_exactly_a_tenth_is_reached():
  # Ten positives, the first three on top: recall 0.3 is reached at precision 1, whatever 3 / 10 is
  # in binary.
  labels = np.array([1] * 3 + [0] * 1000 + [1] * 7)
  values = np.arange(len(labels), 0, -1.0)
  tail = [(3 + k) / (1003 + k) for k in range(1, 8)]
  best = max(tail)
  assert scores.eleven_point_precision(values, labels) == pytest.approx((4 + 7 * best) / 11)


def test_the_figure_does_not_depend_on_the_order_of_examples():
  rng = np.random.default_rng(1)
  values, labels = np.round(rng.normal(size=100), 1), rng.integers(0, 2, 100)
  order = rng.permutation(100)
  for measure in (scores.average_precision, scores.eleven_point_precision):
    assert measure(values, labels) == measure(values[order], labels[order])


def test_the_mean_leaves_out_classes_without_a_figure_and_names_them():
  values = np.array([[2.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
  labels = np.array([[1, 0, 0], [0, 0, 1]])
  found = scores.score_classes(values, labels, ('cat', 'cow', 'dog'))
  assert found.per_class['cat'] == 1 and found.per_class['dog'] == 0.5
  assert math.isnan(found.per_class['cow'])
  assert found.without == ('cow',)
  assert found.mean == 0.75
  nothing = scores.score_classes(values, 0 * labels, ('cat', 'cow', 'dog'))
  assert math.isnan(nothing.mean) and nothing.without == ('cat', 'cow', 'dog')


@pytest.mark.parametrize('k', [1, 3, 5])
def test_ranks_below_k_are_scikit_learns_top_k(k):
  rng = np.random.default_rng(k)
  values, labels = rng.normal(size=(300, 9)), rng.integers(0, 9, 300)
  expected = sklearn.metrics.top_k_accuracy_score(labels, values, k=k)
  assert np.mean(scores.rank_labels(values, labels) < k) == pytest.approx(expected)


def test_equal_scores_are_no_right_answer():
  assert (scores.rank_labels(np.zeros((4, 3)), np.array([0, 1, 2, 0])) == 2).all()


def test_each_class_is_scored_on_its_own_examples():
  found = scores.score_ranks(np.array([0, 1, 0, 4]), np.array([0, 0, 1, 1]), ('cat', 'cow', 'dog'))
  assert found.per_class['cat'] == found.per_class['cow'] == 0.5
  assert found.without == ('dog',) and found.mean == 0.5


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda: scores.average_precision(np.zeros(2), np.zeros(3, int)), r'scores \[2\] and labels'),
    (lambda: scores.average_precision(np.zeros(2), np.array([0, 2])), 'label 2'),
    (lambda: scores.average_precision(np.zeros(2), np.array([0, -1])), 'label -1'),
    (lambda: scores.average_precision(np.array([np.nan, 0]), np.array([0, 1])), '1 of 2 scores'),
    (lambda: scores.average_precision(np.array([np.inf, 0]), np.array([0, 1])), '1 of 2 scores'),
    (lambda: scores.rank_labels(np.zeros((2, 3)), np.array([0, 3])), 'labels from 0 to 3 of 3'),
    (lambda: scores.rank_labels(np.full((1, 2), np.nan), np.array([0])), '2 of 2 scores'),
    (lambda: scores.score_classes(np.zeros((2, 2)), np.zeros((2, 2)), ('a',)), 'do not fit'),
  ],
)
def test_what_cannot_be_scored_is_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call()


def test_images_without_a_class_are_refused_where_labels_are_read_one_by_one():
  """TFDS gives -1 to test images whose labels are kept back."""

  class Source(list):
    description = 'TFDS x:test'

    def labels(self):
      return None

  def count(label):
    reader = types.SimpleNamespace(source=Source([record.Record(b'', 'a', label)]))
    return labelled.count_classes(labelled.Split(reader, np.empty((0, 0), np.uint8)), 2)

  assert count(0) is None
  with pytest.raises(CfnError, match='TFDS x:test: its images have no class'):
    count(-1)
  with pytest.raises(CfnError, match='1 of 3 test images have no class'):
    answers.judge_ranks(np.zeros(3), np.array([0, -1, 1]), ('a', 'b'))


def test_a_step_that_was_trained_past_and_not_kept_is_named(tmp_path):
  for part in ('state', 'meta'):
    (tmp_path / 'checkpoints' / '1000' / part).mkdir(parents=True)
  told = r'num_steps = 500: .* was trained to step 1000 and kept no step 500; take num_steps = 1000'
  with pytest.raises(CfnError, match=told):
    runs.read_trained(tmp_path, 500)


def test_a_figure_without_a_value_has_no_difference():
  none = {'map': None, 'map_draws': [None, None]}
  some = {'map': 0.5, 'map_draws': [0.4, 0.6]}
  assert scores.tell_difference({'a': some, 'b': none}, ('map',)) == ''
  assert 'points' in scores.tell_difference({'a': some, 'b': some}, ('map',))


def test_the_interval_of_a_mean_is_that_of_scikit_learns_figures_over_the_same_draws():
  rng = np.random.default_rng(0)
  labels = (rng.random((60, 3)) < 0.3).astype(np.uint8)
  labels[::9, 1] = scores.IGNORED
  found = np.round(rng.normal(size=(60, 3)) + (labels == 1), 1)  # with ties
  draws = np.random.Generator(np.random.Philox(key=[7, 60]))
  times = draws.multinomial(60, np.full(60, 1 / 60), size=100)
  means = []
  for weights in times:
    each = []
    for k in range(3):
      rows = np.repeat(np.arange(60), weights)
      rows = rows[labels[rows, k] != scores.IGNORED]
      truth = labels[rows, k] == 1
      if truth.any():
        shown = found[rows, k] - scores.TIE_MARGIN * truth
        each.append(sklearn.metrics.average_precision_score(truth, shown))
    means.append(np.mean(each))
  wanted = np.quantile(means, (0.025, 0.975))
  low, high = scores.find_interval(scores.draw_means(found, labels, draws=100, seed=7))
  np.testing.assert_allclose((low, high), wanted)


def test_the_interval_covers_the_figure_and_shrinks_with_more_images():
  rng = np.random.default_rng(1)
  widths = []
  for count in (100, 1600):
    labels = (rng.random((count, 4)) < 0.3).astype(np.uint8)
    found = rng.normal(size=(count, 4)) + labels
    low, high = scores.find_interval(scores.draw_means(found, labels))
    names = tuple('abcd')
    assert low < scores.score_classes(found, labels, names).mean < high
    widths.append(high - low)
  assert widths[0] / widths[1] == pytest.approx(4, rel=0.4)
