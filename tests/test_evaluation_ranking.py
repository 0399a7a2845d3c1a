"""Rankings and their figures: scikit-learn's, worked by hand, the same whatever the blocks."""

import math

import numpy as np
import pytest
import sklearn.metrics

from cfn_jax.evaluation.frozen import feature_cache, ranking, similarity
from cfn_jax.training import devices


@pytest.fixture
def drawn():
  """Similarities without ties, and labels of which the last is in no gallery."""
  rng = np.random.default_rng(0)
  similar = rng.permutation(40 * 90).reshape(40, 90).astype(np.float32) / 3600
  labels, gallery = rng.integers(0, 4, 40), rng.integers(0, 3, 90)
  return similar, labels, gallery


def test_each_query_has_scikit_learns_average_precision_and_curve(drawn):
  similar, labels, gallery = drawn
  found = ranking.score_similar(similar, labels, gallery)
  for row, label in enumerate(labels):
    relevant = gallery == label
    if not relevant.any():
      assert np.isnan(found['average_precision'][row])
      assert np.isnan(found['precision_at_recall'][row]).all()
      continue
    expected = sklearn.metrics.average_precision_score(relevant, similar[row])
    assert found['average_precision'][row] == pytest.approx(expected, abs=1e-12)
    precision, recall, _ = sklearn.metrics.precision_recall_curve(relevant, similar[row])
    curve = [
      precision[np.flatnonzero(recall[:-1] >= step / 10 - 1e-9)[-1]] for step in range(1, 11)
    ]
    np.testing.assert_allclose(found['precision_at_recall'][row, 1:], curve, atol=1e-12)
    nearest = np.argsort(-similar[row])
    np.testing.assert_array_equal(found['nearest'][row], nearest[:4])
    assert found['precision_at_1'][row] == relevant[nearest[0]]
    assert found['precision_at_4'][row] == np.mean(relevant[nearest[:4]])
    assert found['precision_at_recall'][row, 0] == relevant[nearest[0]]


def test_a_ranking_worked_by_hand():
  found = ranking.score(np.array([[False, True, False, True, True, False]]))
  assert found['average_precision'] == pytest.approx((1 / 2 + 2 / 4 + 3 / 5) / 3)
  assert (found['precision_at_1'], found['precision_at_4']) == (0, 0.5)
  # Recall is 1/3 at rank 2, 2/3 at rank 4 and 1 at rank 5.
  expected = [0, *[1 / 2] * 3, *[2 / 4] * 3, *[3 / 5] * 4]
  np.testing.assert_allclose(found['precision_at_recall'][0], expected)


def test_a_recall_that_is_reached_exactly_counts_as_reached():
  """0.1 times 3 times 10 is more than 3 in floating point."""
  relevant = np.zeros((1, 40), bool)
  relevant[0, [*range(3), *range(20, 27)]] = True
  found = ranking.score(relevant)['precision_at_recall'][0]
  assert found[3] == 1 and found[4] == pytest.approx(4 / 21)


def test_of_equal_similarities_the_lower_row_comes_first():
  similar = np.array([[0.5, 1.0, 0.5, 0.5, 1.0]])
  assert ranking.rank(similar).tolist() == [[1, 4, 0, 2, 3]]


def test_means_over_queries_and_over_classes_worked_by_hand():
  found = {
    'precision_at_1': np.array([1.0, 0.0, 1.0, 0.0]),
    'precision_at_4': np.array([0.5, 0.25, 0.75, 0.0]),
    'average_precision': np.array([0.9, 0.3, 0.5, math.nan]),
    'precision_at_recall': np.array([[1.0] * 11, [0.0] * 11, [0.5] * 11, [math.nan] * 11]),
  }
  labels, gallery = np.array([0, 0, 1, 3]), np.array([0, 1, 1, 1, 2])
  figures = ranking.summarize(found, labels, gallery, np.arange(4), ('a', 'b', 'c', 'd'))
  assert figures['map'] == pytest.approx(1.7 / 3) and figures['precision_at_1'] == 2 / 3
  assert figures['precision_at_4'] == pytest.approx(0.5)
  assert figures['map_macro'] == pytest.approx((0.6 + 0.5) / 2)
  assert figures['chance'] == pytest.approx((0.2 + 0.2 + 0.6) / 3)
  assert figures['chance_macro'] == pytest.approx(0.4)
  np.testing.assert_allclose(figures['precision_at_recall'], [0.5] * 11)
  assert figures['per_class'] == {'a': pytest.approx(0.6), 'b': 0.5, 'c': None, 'd': None}
  assert figures['queries_without_answer'] == 1
  assert figures['classes_without_figure'] == ['c', 'd']


def test_the_interval_is_that_of_images():
  values = np.random.default_rng(0).random(50)
  low, high = ranking.find_interval(values, np.arange(50))
  half = 1.96 * values.std(ddof=1) / math.sqrt(50)
  assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half))
  twice = ranking.find_interval(np.repeat(values, 2), np.repeat(np.arange(50), 2))
  assert twice == pytest.approx((low, high))  # saying each twice adds nothing
  assert all(map(math.isnan, ranking.find_interval(values, np.zeros(50))))


@pytest.mark.parametrize(('block_rows', 'count'), [(1, 1), (7, 1), (64, 8), (5, 4)])
def test_similarities_are_all_cosines_whatever_the_blocks_and_devices(tmp_path, block_rows, count):
  rng, sides = np.random.default_rng(0), []
  for name, rows in (('queries', 13), ('gallery', 31)):
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    x[2] = 0  # has no direction
    cache = feature_cache.open_cache(tmp_path, name, {}, images=rows, part_images=rows)
    labels = np.zeros((rows, 2), np.int32)
    feature_cache.write_part(cache, 0, {'pool5': x, feature_cache.LABEL: labels})
    sides.append(feature_cache.Features(cache))
  queries, gallery = sides
  mesh, found = devices.make_mesh(count), np.full((13, 31), np.nan)
  for rows, blocks in similarity.compare(
    queries, gallery, 'pool5', block_rows=block_rows, mesh=mesh
  ):
    for first, block in blocks:
      similar = similarity.fetch(block, mesh)[: len(rows)]
      kept = np.isfinite(similar[0])
      found[rows, first : first + kept.sum()] = similar[:, kept]
  expected = sklearn.metrics.pairwise.cosine_similarity(
    *(each.rows('pool5', range(len(each))) for each in sides)
  )
  np.testing.assert_allclose(found, expected, atol=1e-6)
