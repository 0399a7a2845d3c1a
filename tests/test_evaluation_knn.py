"""Nearest neighbours: scikit-learn's, exact whatever the blocks and devices."""

import json

import labelled_cases
import numpy as np
import probe_cases
import pytest
import sklearn.metrics
import sklearn.neighbors

from cfn_jax.evaluation import answers, knn
from cfn_jax.evaluation.frozen import feature_cache
from cfn_jax.training import devices


def save_features(folder, x, labels):
  cache = feature_cache.open_cache(
    folder, 'given', {'sum': float(x.sum())}, images=len(x), part_images=11
  )
  for part in range(cache.parts()):
    rows = slice(part * 11, (part + 1) * 11)
    feature_cache.write_part(cache, part, {'pool5': x[rows], feature_cache.LABEL: labels[rows]})
  return feature_cache.Features(cache)


@pytest.fixture(scope='module')
def caches(tmp_path_factory):
  root = tmp_path_factory.mktemp('caches')
  rng = np.random.default_rng(0)
  made = []
  for name, count in (('train', 70), ('test', 23)):
    x = rng.normal(size=(count, 9)).astype(np.float32)
    made.append(save_features(root / name, x, rng.integers(0, 4, count).astype(np.int32)))
  return made


def find(caches, *, k=5, block_rows=16, count=1):
  training, testing = caches
  mesh = devices.make_mesh(count)
  return knn.find_neighbours(testing, training, 'pool5', k=k, block_rows=block_rows, mesh=mesh)


def test_the_neighbours_are_scikit_learns(caches):
  training, testing = caches
  theirs = sklearn.neighbors.NearestNeighbors(n_neighbors=5, metric='cosine')
  theirs.fit(training.rows('pool5', range(70)))
  distances, rows = theirs.kneighbors(testing.rows('pool5', range(23)))
  ours, similarities = find(caches)
  np.testing.assert_array_equal(ours, rows)
  np.testing.assert_allclose(similarities, 1 - distances, atol=1e-6)


@pytest.mark.parametrize(('block_rows', 'count'), [(1, 1), (7, 1), (70, 8), (4096, 4), (3, 8)])
def test_blocks_and_devices_change_nothing(caches, block_rows, count):
  rows, similarities = find(caches)
  again = find(caches, block_rows=block_rows, count=count)
  np.testing.assert_array_equal(rows, again[0])
  np.testing.assert_allclose(similarities, again[1], atol=1e-6)


def test_of_equally_near_rows_the_lower_comes_first(tmp_path):
  x = np.tile(np.float32([[1, 0]]), (30, 1))
  x[4] = [0, 1]
  training = save_features(tmp_path / 'a', x, np.zeros(30, np.int32))
  testing = save_features(tmp_path / 'b', x[:1] * 3, np.zeros(1, np.int32))
  rows, similarities = find((training, testing), k=6, block_rows=4)
  assert rows.tolist() == [[0, 1, 2, 3, 5, 6]]
  np.testing.assert_allclose(similarities, 1)


def test_rows_that_fill_up_a_block_are_nobodys_neighbours(tmp_path):
  """Nearer than any real row they would be here: their similarity is 0, all others' below."""
  rng = np.random.default_rng(0)
  x = rng.random((30, 4), np.float32)
  training = save_features(tmp_path / 'a', x, np.zeros(30, np.int32))
  testing = save_features(tmp_path / 'b', -x[:3], np.zeros(3, np.int32))
  rows, similarities = find((training, testing), k=30, block_rows=7)
  assert np.all(similarities < 0) and np.all(np.sort(rows, axis=1) == np.arange(30))


def test_votes_are_scikit_learns_with_the_same_weights(caches):
  training, testing = caches
  temperature = 0.1
  theirs = sklearn.neighbors.KNeighborsClassifier(
    n_neighbors=5, metric='cosine', weights=lambda d: np.exp((1 - d) / temperature)
  )
  theirs.fit(training.rows('pool5', range(70)), training.labels)
  expected = theirs.predict_proba(testing.rows('pool5', range(23)))
  rows, similarities = find(caches)
  found = knn.vote(similarities, training.labels[rows], 4, temperature=temperature)
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_votes_worked_by_hand():
  similarities = np.log(np.array([[4.0, 2.0, 1.0]]))
  one = knn.vote(similarities, np.array([[2, 0, 2]]), 3, temperature=1.0)
  np.testing.assert_allclose(one, [[2 / 7, 0, 5 / 7]])
  labels = np.array([[[1, 0, 255], [1, 1, 0], [0, 0, 1]]], np.uint8)  # ignored gives no vote
  np.testing.assert_allclose(
    knn.vote(similarities, labels, 3, temperature=1.0), [[6 / 7, 2 / 7, 1 / 7]]
  )
  assert np.all(np.isfinite(knn.vote(similarities * 1000, labels, 3, temperature=1e-3)))


def test_knn_of_folders_knows_colours_and_remembers_them(tmp_path, monkeypatch):
  folders = labelled_cases.make_class_folders(tmp_path / 'images')
  config = probe_cases.make_config('knn', folders, layers=('conv1',), **{'knn.k': 3})
  found = knn.open_task(config)(tmp_path / 'run')
  layer = found['random']['layers']['conv1']
  assert found['random']['val_count'] == 15 and layer['accuracy'] > 0.8
  assert set(layer['per_class']) == set(labelled_cases.CLASSES)
  assert json.loads((tmp_path / 'run' / 'results.json').read_text())['runs'] == found
  monkeypatch.setattr(knn, 'find_neighbours', None)
  assert knn.open_task(config)(tmp_path / 'run') == found


def test_knn_of_voc_is_scored_by_average_precision(tmp_path):
  rng = np.random.default_rng(0)
  labels = (rng.random((40, 3)) < 0.5).astype(np.uint8)
  found = rng.random((40, 3))
  score = answers.judge_scores(found, labels, ('a', 'b', 'c'))
  expected = [sklearn.metrics.average_precision_score(labels[:, k], found[:, k]) for k in range(3)]
  assert score['map'] == pytest.approx(np.mean(expected), abs=1e-6)
  voc = labelled_cases.make_voc(tmp_path / 'VOC2008')
  fields = {'layers': ('conv1',), 'knn.k': 3}
  config = probe_cases.make_config('knn', voc, voc=True, **fields)
  opened = knn.open_task(config)
  figures = opened(tmp_path / 'run')
  assert 0 < figures['random']['layers']['conv1']['map'] <= 1
  assert [path.name for path in (tmp_path / 'run').glob('*.png')] == ['average_precision_conv1.png']


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'knn.k': 0}, 'at least 1'),
    ({'knn.k': 25}, 'there are 24 training images'),
    ({'knn.temperature': 0.0}, 'knn.temperature = 0'),
    ({'layers': ('pool5', 'fc6')}, 'there is no fc6'),
    ({'multilabel': True}, "come from data.source = 'voc' or 'tfds'"),
  ],
)
def test_bad_settings_are_refused(tmp_path, fields, message):
  folders = labelled_cases.make_class_folders(tmp_path / 'images', test=1)
  config = probe_cases.make_config('knn', folders, layers=('pool5',))
  config.update_from_flattened_dict(fields)
  with pytest.raises(ValueError, match=message):
    knn.open_task(config)
