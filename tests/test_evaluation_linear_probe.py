"""Linear probes and SVMs: scikit-learn's classifiers, the same figures whatever the batch."""

import json
import threading

import jax
import labelled_cases
import numpy as np
import probe_cases
import pytest
import sklearn.linear_model
import sklearn.metrics
import sklearn.model_selection
import sklearn.svm

from cfn_jax import places
from cfn_jax.data import sources
from cfn_jax.evaluation import linear_probe
from cfn_jax.evaluation.frozen import feature_cache, linear_task, probing, svm
from cfn_jax.training import devices, loop, scoring
from cfn_jax.transfer import checkpoints


def save_features(folder, features, labels, *, part_images=16, channels=None):
  """Writes a cache of given features, one row an image."""
  first = next(iter(features.values()))
  cache = feature_cache.open_cache(
    folder,
    'given',
    {'channels': channels or {}, 'sum': float(first.sum())},
    images=len(first),
    part_images=part_images,
  )
  for part in range(cache.parts()):
    rows = slice(part * part_images, (part + 1) * part_images)
    arrays = {name: array[rows] for name, array in features.items()}
    feature_cache.write_part(cache, part, {**arrays, feature_cache.LABEL: labels[rows]})
  return feature_cache.Features(cache)


def make_extracted(tmp_path, *, rows=96, test=37, width=6, classes=3, multilabel=False):
  """Two layers of noise in which the classes are only just apart."""
  rng = np.random.default_rng(0)
  centres = rng.normal(size=(classes, width))
  found = []
  for name, count in (('train', rows), ('test', test)):
    labels = rng.integers(0, classes, count)
    x = (centres[labels] + rng.normal(size=(count, width))).astype(np.float32)
    y = np.float32(3) + 5 * rng.normal(size=(count, width + 1)).astype(np.float32)
    if multilabel:
      labels = (rng.random((count, classes)) < 0.4).astype(np.uint8)
      labels[np.arange(count), rng.integers(0, classes, count)] = 1
      x += (2 * labels @ centres).astype(np.float32)
      labels[::7, 0] = 255
    else:
      labels = labels.astype(np.int32)
    found.append(save_features(tmp_path / name, {'fc6': x, 'fc7': y}, labels))
  return probing.Extracted(*found)


def make_task(config, extracted, *, multilabel=False):
  names = tuple('abc')
  return linear_task.make_task(config, extracted, names=names, multilabel=multilabel, summary=[])


def make_config(**fields):
  return probe_cases.make_config(
    'linear_probe', probe_cases.labelled_cases.REPOSITORY, **{'num_steps': 5, **fields}
  )


def test_parts_of_another_host_are_waited_for(tmp_path, capsys):
  """On NFS a file shows later than it was written."""
  cache = save_features(
    tmp_path, {'fc6': np.ones((32, 2), np.float32)}, np.zeros(32, np.int32)
  ).cache
  feature_cache.await_parts(cache)
  assert capsys.readouterr().err == ''
  last = cache.part_path(1)
  hidden = last.rename(last.with_suffix('.hidden'))
  threading.Timer(0.7, hidden.rename, (last,)).start()
  feature_cache.await_parts(cache)
  assert feature_cache.count_parts(cache) == 2
  assert 'waiting up to 90 s for features of another host' in capsys.readouterr().err


def test_the_loop_arrives_at_scikit_learns_logistic_regression(tmp_path):
  extracted = make_extracted(tmp_path)
  decay = 0.01
  config = make_config(
    **{
      'probe.standardize': 'dimension',
      'batch_size': 96,
      'num_steps': 600,
      'learning_rate': 0.3,
      'weight_decay': decay,
      'eval_every_steps': 600,
      'checkpoint_every_steps': 600,
      'log_every_steps': 600,
      'num_devices': 1,
    }
  )
  loop.fit(make_task(config, extracted), config, tmp_path)
  params = checkpoints.read_params(tmp_path)
  for layer in ('fc6', 'fc7'):
    x = extracted.training.rows(layer, range(96)).astype(np.float64)
    x = (x - x.mean(0)) / np.sqrt(x.var(0) + linear_task.SMALLEST_VARIANCE)
    # Ours: mean cross-entropy + decay / 2 * |w|^2.
    theirs = sklearn.linear_model.LogisticRegression(C=1 / (decay * 96), tol=1e-8, max_iter=1000)
    theirs.fit(x, extracted.training.labels)
    np.testing.assert_allclose(params[layer]['kernel'], theirs.coef_.T, atol=2e-3)


@pytest.mark.parametrize('multilabel', [False, True])
def test_the_loss_is_scikit_learns(tmp_path, multilabel):
  extracted = make_extracted(tmp_path, multilabel=multilabel)
  config = make_config()
  params = linear_task.draw_parameters(extracted.training, config, 3, 0)
  batch = next(
    linear_task.make_batches(extracted.training, 0, 1, seed=0, rows=range(32), batch_size=32)
  )
  value, sums = linear_task.make_loss(('fc6', 'fc7'), multilabel=multilabel)(
    params, batch, jax.random.key(0)
  )
  expected = 0.0
  for layer in ('fc6', 'fc7'):
    p = params[layer]
    logits = ((batch[layer] - p['mean']) * p['scale']) @ p['kernel'] + p['bias']
    logits, labels = logits.astype(np.float64), batch['label']
    if multilabel:
      counted = labels != 255
      chances = 1 / (1 + np.exp(-logits[counted]))
      expected += sklearn.metrics.log_loss(labels[counted], chances, normalize=False) / 32
    else:
      chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
      expected += sklearn.metrics.log_loss(labels, chances, labels=[0, 1, 2])
  assert float(value) == pytest.approx(expected, rel=1e-5)
  assert float(sums['count']) == 32


def test_standardised_features_have_mean_0_and_variance_1(tmp_path):
  rng = np.random.default_rng(0)
  x = (3 + 7 * rng.normal(size=(50, 12))).astype(np.float32)  # 4 places, 3 channels
  found = save_features(tmp_path, {'conv2': x}, np.zeros(50, np.int32), channels={'conv2': 3})
  mean, scale = linear_task.standardize(found, 'conv2', 'dimension')
  np.testing.assert_allclose(((x - mean) * scale).mean(0), 0, atol=1e-5)
  np.testing.assert_allclose(((x - mean) * scale).std(0), 1, atol=1e-4)
  mean, scale = linear_task.standardize(found, 'conv2', 'channel')
  y = ((x - mean) * scale).reshape(-1, 3)
  np.testing.assert_allclose(y.mean(0), 0, atol=1e-5)
  np.testing.assert_allclose(y.std(0), 1, atol=1e-4)
  assert len(np.unique(mean)) == 3
  mean, scale = linear_task.standardize(found, 'conv2', '')
  assert not mean.any() and np.all(scale == 1)


def test_an_epoch_shows_each_row_once_and_hosts_share_the_batch(tmp_path):
  found = make_extracted(tmp_path).training
  batches = list(linear_task.make_batches(found, 0, 3, seed=0, rows=range(32), batch_size=32))
  shown = np.concatenate([batch['fc6'] for batch in batches])
  everything = found.rows('fc6', range(96))
  np.testing.assert_array_equal(np.unique(shown, axis=0), np.unique(everything, axis=0))
  half = next(linear_task.make_batches(found, 1, 2, seed=0, rows=range(16, 32), batch_size=32))
  np.testing.assert_array_equal(half['fc6'], batches[1]['fc6'][16:])


@pytest.mark.parametrize('multilabel', [False, True])
def test_batch_size_and_devices_change_no_figure(tmp_path, multilabel):
  extracted = make_extracted(tmp_path, multilabel=multilabel)
  params = linear_task.draw_parameters(extracted.training, make_config(), 3, 0)
  found = []
  for size, count in ((8, 8), (5, 1), (64, 4)):
    mesh = devices.make_mesh(count)
    evaluation = linear_task.make_evaluation(
      extracted.testing,
      tuple('abc'),
      multilabel=multilabel,
      config=make_config(eval_batch_size=size),
      report=probing.detail,
    )
    figures = scoring.make_score(evaluation, mesh)(devices.replicate(params, mesh), lambda: False)
    found.append(json.dumps(places.make_plain(figures)))
    assert figures['val_count'] == 37
  assert found[0] == found[1] == found[2]


def test_what_features_are_normalised_by_takes_no_step(tmp_path):
  extracted = make_extracted(tmp_path)
  config = make_config(num_devices=1, batch_size=32)
  task = make_task(config, extracted)
  loop.fit(task, config, tmp_path)
  params, first = checkpoints.read_params(tmp_path), task.init(config.seed)
  for layer in ('fc6', 'fc7'):
    for name in ('mean', 'scale'):
      np.testing.assert_array_equal(params[layer][name], first[layer][name])
    assert not np.array_equal(params[layer]['kernel'], first[layer]['kernel'])


# SVMs.


def test_an_svm_is_scikit_learns_with_the_published_weights(tmp_path):
  extracted = make_extracted(tmp_path, multilabel=True)
  x = svm.normalize(extracted.training.rows('fc6', range(96)))
  np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, atol=1e-4)
  positive = extracted.training.labels[:, 1] == 1
  ours = svm.make_svm(make_config().svm, 0.5).fit(x, np.where(positive, 1, -1))
  theirs = sklearn.svm.LinearSVC(C=0.5, tol=1e-6, max_iter=10**5)
  theirs.fit(x, positive, sample_weight=np.where(positive, 2.0, 1.0))
  np.testing.assert_allclose(ours.decision_function(x), theirs.decision_function(x), atol=2e-3)


def test_the_cost_is_that_of_the_best_folds():
  rng = np.random.default_rng(0)
  target = np.where(np.arange(60) % 3 == 0, 1, -1)
  x = (rng.normal(size=(60, 8)) + 0.4 * (target == 1)[:, None]).astype(np.float32)
  c = make_config(**{'svm.costs': (1e-4, 0.01, 0.1), 'svm.max_iterations': 10**5}).svm
  theirs = sklearn.model_selection.GridSearchCV(
    svm.make_svm(c, 1.0),
    {'C': list(c.costs)},
    scoring='average_precision',
    cv=sklearn.model_selection.StratifiedKFold(c.folds),
  ).fit(x, target)
  cost, means = svm.choose_cost(c, x, target)
  assert cost == theirs.best_params_['C'] and len(set(means)) == 3
  np.testing.assert_allclose(means, theirs.cv_results_['mean_test_score'], atol=1e-9)
  few = np.where(np.arange(60) == 3, 1, -1)
  assert svm.choose_cost(c, x, few) == (1e-4, [])


def test_svms_of_all_layers_go_on_where_they_were(tmp_path, monkeypatch):
  extracted = make_extracted(tmp_path, multilabel=True)
  config = make_config(multilabel=True, classifier='svm', **{'svm.costs': (0.1, 1.0)})
  found = svm.run(config, extracted, ('a', 'b', 'c'), tmp_path / 'run')
  test = extracted.testing
  for layer in ('fc6', 'fc7'):
    assert set(found['layers'][layer]['per_class']) == {'a', 'b', 'c'}
  assert found['layers']['fc6']['map'] > found['layers']['fc7']['map']  # fc7 is noise
  # Ignored labels are negatives in training, and not scored.
  cost = found['layers']['fc6']['costs']['a']
  x = svm.normalize(extracted.training.rows('fc6', range(96)))
  positive = extracted.training.labels[:, 0] == 1
  fitted = svm.make_svm(config.svm, cost).fit(x, np.where(positive, 1, -1)).decision_function
  counted = test.labels[:, 0] != 255
  expected = sklearn.metrics.average_precision_score(
    test.labels[counted, 0], fitted(svm.normalize(test.rows('fc6', range(37))))[counted]
  )
  assert found['layers']['fc6']['per_class']['a'] == pytest.approx(expected, abs=1e-6)
  monkeypatch.setattr(svm, 'make_svm', None)  # nothing is trained again
  assert svm.run(config, extracted, ('a', 'b', 'c'), tmp_path / 'run') == found
  nothing = {'average_precision': None, 'eleven_point': None, 'cost': 1.0}
  monkeypatch.setattr(svm.runs, 'remember', lambda *_: nothing)  # a test without positives
  none = svm.run(config, extracted, ('a', 'b', 'c'), tmp_path / 'run')
  assert none['layers']['fc6']['map'] is None


# Whole.


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  return labelled_cases.make_class_folders(tmp_path_factory.mktemp('folders'))


@pytest.mark.slow
def test_a_probe_of_folders_gives_its_figures_again_without_training(
  folders, tmp_path, capsys, monkeypatch
):
  config = probe_cases.make_config('linear_probe', folders, layers=('conv1', 'pool5'))
  found = linear_probe.open_task(config)(tmp_path)
  assert set(found) == {'random'} and found['random']['val_count'] == 15
  assert set(found['random']['layers']) == {'conv1', 'pool5'}
  assert 'conv1' in capsys.readouterr().out
  written = json.loads((tmp_path / 'results.json').read_text())
  assert written['runs'] == found
  assert [origin['init'] for origin in written['weights'].values()] == ['he']

  fit, trained = loop.fit, []
  monkeypatch.setattr(loop, 'fit', lambda *given: trained.append(fit(*given)))
  assert linear_probe.open_task(config)(tmp_path) == found and not trained
  config.data.val_max_images, config.features.part_images = 6, 7  # another score, the same training
  assert linear_probe.open_task(config)(tmp_path)['random']['val_count'] == 6
  assert trained == [{}]


@pytest.mark.slow
def test_a_probe_of_voc_scores_every_class(tmp_path):
  voc = labelled_cases.make_voc(tmp_path / 'VOC2008')
  config = probe_cases.make_config('linear_probe', voc, voc=True, layers=('conv5',))
  opened = linear_probe.open_task(config)
  found = opened(tmp_path / 'run')
  layer = found['random']['layers']['conv5']
  assert set(layer['per_class']) == {'cat', 'dog', 'person'} and 0 < layer['map'] <= 1
  assert [path.name for path in (tmp_path / 'run').glob('*.png')] == ['average_precision_conv5.png']


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'classifier': 'tree'}, "classifier = 'tree' is unknown"),
    ({'classifier': 'svm'}, 'is for images of several classes'),
    ({'probe.standardize': 'all'}, "probe.standardize = 'all' is unknown"),
    ({'features.pooling': 'sum'}, "features.pooling = 'sum' is unknown"),
    ({'features.dtype': 'int8'}, "features.dtype = 'int8' is unknown"),
    ({'features.part_images': 0}, 'features.part_images = 0'),
    ({'views.draws': 0}, 'views.draws = 0'),
    (
      {'views.draws': 2, 'views.crop': 'centre', 'views.mirror': False},
      'views.draws = 2: all views are alike',
    ),
    ({'layers': ('fc6',)}, 'there is no fc6 in these weights'),
    ({'weights': ''}, 'weights is empty'),
    ({'weights': 'nowhere'}, 'there is no such file or folder'),
  ],
)
def test_bad_settings_are_refused(folders, fields, message):
  config = probe_cases.make_config('linear_probe', folders, **fields)
  with pytest.raises(ValueError, match=message):
    linear_probe.open_task(config)


def test_splits_that_do_not_go_together_are_refused(tmp_path):
  root = labelled_cases.make_class_folders(tmp_path / 'a', train=2, test=1)
  (root / 'test' / 'red').rename(root / 'test' / 'rosy')
  config = probe_cases.make_config('linear_probe', root)
  with pytest.raises(sources.SourceError, match='classes'):
    linear_probe.open_task(config)
  for path in (root / 'test' / 'rosy').iterdir():
    path.unlink()
  with pytest.raises(sources.SourceError, match='no test image of 1 of the 3 classes: red'):
    linear_probe.open_task(config)
