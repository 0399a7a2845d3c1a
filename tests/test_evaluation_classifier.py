"""The classification task: its loss, what is locked, and figures that no batch size changes."""

import dataclasses

import jax
import jax.numpy as jnp
import labelled_cases
import numpy as np
import pytest
import sklearn.metrics

from cfn_jax import places
from cfn_jax.evaluation import frozen_layers, labelled, voc_classification
from cfn_jax.evaluation.finetuning import classifier, magic_init, passes
from cfn_jax.models import alexnet, figures, inputs, trunk
from cfn_jax.training import devices, loop, scoring
from cfn_jax.transfer import checkpoints
from cfn_jax.transfer import weights as weights_lib

RECORDS = {
  'unit': inputs.RECORDS['unit'],
  'caffe': inputs.RECORDS['caffe'],
  'tile': inputs.InputRecord('bgr', (1, 2, 3), (50.0, 50.0, 50.0), 'tile', 58.0),
  'channel': inputs.InputRecord('rgb', (1, 2, 3), (1.0, 2.0, 3.0), 'channel', 58.0),
  'mean': inputs.InputRecord('rgb', (1, 2, 3), (58.0, 58.0, 58.0), 'mean', 58.0),
}


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  return labelled_cases.make_class_folders(tmp_path_factory.mktemp('folders'))


@pytest.fixture(scope='module')
def voc(tmp_path_factory):
  return labelled_cases.make_voc(tmp_path_factory.mktemp('voc') / 'VOC2008')


@pytest.mark.parametrize('name', RECORDS)
def test_the_device_prepares_images_as_the_record_says(name):
  images = np.random.default_rng(0).integers(0, 256, (2, 3, 20, 20, 3), np.uint8)
  images[0, 0] = 77  # a flat tile
  ours = np.asarray(RECORDS[name].prepare(jnp.asarray(images)))
  np.testing.assert_allclose(ours, RECORDS[name].prepare(images), rtol=2e-5, atol=2e-4)


def make_several(logits):
  """A classifier of several classes whose logits are given."""

  class Given(classifier.Classifier):
    def logits(self, params, images, key=None):
      return jnp.asarray(logits)

  initial = figures.Initial('he', 'caffenet')
  return Given(
    network=alexnet.AlexNet(3),
    view_px=67,
    input_record=RECORDS['unit'],
    class_names=('a', 'b', 'c'),
    multilabel=True,
    initial=initial,
  )


def test_the_sigmoid_loss_is_scikit_learns_summed_over_classes_without_the_ignored():
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(5, 3)).astype(np.float32)
  labels = rng.integers(0, 2, (5, 3)).astype(np.uint8)
  labels[1, 2] = labels[4, 0] = 255
  loss = make_several(logits).loss
  batch = {'image': np.zeros((5, 1, 1, 3), np.uint8), 'label': labels}
  value, sums = loss({}, batch, jax.random.key(0))
  counted = labels != 255
  probabilities = 1 / (1 + np.exp(-logits[counted].astype(np.float64)))
  expected = sklearn.metrics.log_loss(labels[counted], probabilities, normalize=False) / 5
  assert float(value) == pytest.approx(expected, rel=1e-6)
  assert float(sums['count']) == 5


def run_frozen(folders, tmp_path, k=2, **fields):
  config = labelled_cases.make_config('frozen_layers', folders, layers=(k,), **fields)
  plan = frozen_layers.make_plan(config)
  loop.fit(plan.runs[0].task, config, tmp_path)
  before = plan.runs[0].task.init(config.seed)
  return before, checkpoints.read_checkpoint(tmp_path), plan, config


@pytest.mark.slow
def test_locked_layers_stay_bit_for_bit_and_all_others_move(folders, tmp_path):
  before, found, _, _ = run_frozen(folders, tmp_path, weight_decay=0.1)
  for layer, arrays in before.items():
    same = [np.array_equal(arrays[name], found.params[layer][name]) for name in arrays]
    assert all(same) if layer in ('conv1', 'conv2') else not any(same), layer
  assert found.input == inputs.RECORDS['unit'] and found.stride == 4


def score(evaluation, params, count):
  mesh = devices.make_mesh(count)
  return scoring.make_score(evaluation, mesh)(devices.replicate(params, mesh), lambda: False)


@pytest.mark.slow
@pytest.mark.parametrize('protocol', ['frozen_layers', 'voc07_classification'])
def test_no_batch_size_and_no_number_of_devices_changes_a_figure(protocol, folders, voc):
  root = voc if protocol.startswith('voc') else folders
  make_plan = (voc_classification if root is voc else frozen_layers).make_plan
  figures = []
  for size, count in ((8, 1), (3, 1), (8, 8), (16, 8)):
    config = labelled_cases.make_config(protocol, root, eval_batch_size=size, baseline=False)
    if protocol == 'frozen_layers':
      config.layers = (1,)
    run = make_plan(config).runs[0]
    params = run.task.init(0)
    params['fc8']['kernel'] = 30 * params['fc8']['kernel']  # figures away from ties
    figures.append(score(run.passes[''], params, count))
  assert figures[0]['val_count'] == (9 if root is voc else 15)
  for other in figures[1:]:
    assert other.keys() == figures[0].keys()
    for name, value in figures[0].items():
      if isinstance(value, float):
        assert other[name] == pytest.approx(value, abs=1e-5), name
    for kind, values in figures[0]['per_class'].items():
      assert other['per_class'][kind] == pytest.approx(values, abs=1e-5)


def test_averages_are_sums_of_logits_or_means_of_probabilities():
  class Echo(classifier.Classifier):
    def logits(self, params, images, key=None):
      return images.reshape(len(images), -1).astype(jnp.float32) / 100

  initial = figures.Initial('he', 'caffenet')
  made = Echo(
    network=alexnet.AlexNet(3),
    view_px=1,
    input_record=RECORDS['unit'],
    class_names=('a', 'b', 'c'),
    multilabel=False,
    initial=initial,
  )
  images = np.random.default_rng(0).integers(0, 256, (4, 5, 1, 1, 3), np.uint8)
  logits = images.reshape(4, 5, 3) / 100
  summed = made.average({}, jnp.asarray(images), 'logits')
  np.testing.assert_allclose(summed, logits.sum(1), rtol=1e-5)
  odds = np.exp(logits)
  expected = (odds / odds.sum(-1, keepdims=True)).mean(1)
  np.testing.assert_allclose(made.average({}, jnp.asarray(images), 'softmax'), expected, rtol=1e-5)


@pytest.mark.parametrize('multilabel', [False, True])
def test_logits_that_are_no_numbers_count_as_wrong_or_are_refused(multilabel):
  names = ('a', 'b', 'c')
  report = passes.make_report(make_several(np.zeros((1, 3))))
  if multilabel:
    rows = {'scores': np.full((2, 3), np.nan), 'label': np.eye(3, dtype=np.uint8)[:2]}
    with pytest.raises(ValueError, match='not finite'):
      report(rows)
    return

  class Broken(classifier.Classifier):
    def average(self, params, images, average):
      return jnp.full((len(images), 3), jnp.nan)

  initial = figures.Initial('he', 'caffenet')
  made = Broken(
    network=alexnet.AlexNet(3),
    view_px=8,
    input_record=RECORDS['unit'],
    class_names=names,
    multilabel=False,
    initial=initial,
  )
  views = classifier.views.MakeViews('whole', 8, 0, 'squash', False, draws=1)
  images = passes.feed.Feed(None, views, None, 2)
  evaluation = passes.make_evaluation(
    made, images, average='softmax', report=passes.make_report(made)
  )
  rows = evaluation.measure({}, {'image': np.zeros((2, 1)), 'label': np.array([0, 2])})
  assert evaluation.report(jax.tree.map(np.asarray, rows))['val_accuracy'] == 0


@pytest.fixture(scope='module')
def plain(voc):
  """A VOC classifier with its trunk loaded, and views to look at."""
  config = labelled_cases.make_config('voc07_classification', voc, baseline=False)
  data = labelled.open_labelled(config, multilabel=True)
  trunk = voc_classification.trunks.draw_trunk('he', seed=0, width=0.1, order='caffenet')
  made = voc_classification.make_classifier(config, data, trunk, drawn=False)
  images = np.random.default_rng(0).integers(0, 256, (32, 67, 67, 3), np.uint8)
  return made, images


@pytest.mark.slow
def test_fresh_layers_get_outputs_of_mean_a_tenth_and_variance_one(plain):
  made, images = plain
  params = made.init(0)
  found = magic_init.rescale_fresh(made, params, images, seed=0)
  for name in ('fc6', 'fc7', 'fc8'):
    outputs = np.asarray(magic_init.see_layer(made, found, images, name)[1], np.float64)
    moved = outputs.std(0) > 1e-3
    assert moved.mean() > 0.5  # the others see only zeros
    np.testing.assert_allclose(outputs.mean(0)[moved], 0.1, atol=1e-3)
    np.testing.assert_allclose(outputs.std(0)[moved], 1, atol=1e-3)
  for name in weights_lib.CONVOLUTIONS:
    np.testing.assert_array_equal(found[name]['kernel'], params[name]['kernel'])


@pytest.mark.slow
def test_calibrated_layers_have_equal_gradients_for_their_weights(plain):
  made, images = plain
  params = magic_init.rescale_fresh(made, made.init(0), images[:8], seed=0)
  before, _ = magic_init.measure_ratios(made, params, images[:8], seed=0)
  found = magic_init.calibrate(made, params, images[:8], seed=0)
  after, deviation = magic_init.measure_ratios(made, found, images[:8], seed=0)
  assert np.ptp(np.log(before)) > 0.5
  assert np.ptp(np.log(after)) < 0.1
  assert 0.5 < deviation < 2


def test_an_unknown_magic_init_is_refused():
  with pytest.raises(ValueError, match="magic_init = 'lsuv'"):
    magic_init.check('lsuv')


def test_results_hold_no_nan():
  plain = places.make_plain({'a': float('nan'), 'b': [1.0, float('inf')], 'c': {'d': 'x'}})
  assert plain == {'a': None, 'b': [1.0, None], 'c': {'d': 'x'}}


@pytest.mark.slow
def test_calibration_scales_biases_by_the_measured_change_of_each_layers_input(plain):
  made, images = plain
  params = magic_init.rescale_fresh(made, made.init(0), images[:8], seed=0)
  for name in weights_lib.CONVOLUTIONS:  # whose biases start at 0
    params[name] = params[name] | {'bias': np.full_like(params[name]['bias'], 0.1)}
  found = magic_init.calibrate(made, params, images[:8], seed=0)
  for name in ('conv2', 'conv5', 'fc7'):
    before, after = (
      float(magic_init.see_layer(made, each, images[:8], name)[0]) for each in (params, found)
    )
    kernels = [each[name]['kernel'] for each in (params, found)]
    biases = [each[name]['bias'] for each in (params, found)]
    factor = np.linalg.norm(kernels[1]) / np.linalg.norm(kernels[0])
    own = np.linalg.norm(biases[1]) / np.linalg.norm(biases[0])
    assert own == pytest.approx(factor * after / before, rel=0.05)


def make_fed(record, init, fc_init='', loaded=()):
  network = alexnet.AlexNet(3, trunk.Trunk(width=0.1), 8, 8)
  initial = figures.Initial(init, 'caffenet')
  made = classifier.Classifier(
    network=network,
    view_px=67,
    input_record=record,
    class_names=('a', 'b', 'c'),
    multilabel=False,
    initial=initial,
    fc_init=fc_init,
  )
  given = alexnet.draw_parameters(made.shapes(), initial, seed=0)
  return dataclasses.replace(made, given=given, loaded=loaded)


def test_layers_are_not_drawn_for_inputs_of_another_scale():
  unit, tens = RECORDS['unit'], RECORDS['caffe']
  loaded = weights_lib.CONVOLUTIONS
  for record, init, fc_init, words in (
    (unit, 'caffe', '', "model.init = 'caffe' draws .* deviation of 1, which goes with 'he'"),
    (tens, 'he', '', "model.init = 'he' draws .* deviation of 58, which goes with 'caffe'"),
    (unit, 'he', 'bias', "model.fc_init = 'bias' draws fc6, fc7 for .* goes with 'he'"),
  ):
    with pytest.raises(ValueError, match=words):
      make_fed(record, init, fc_init, loaded if fc_init else ()).check()
  for record, init, fc_init in ((unit, 'he', ''), (tens, 'caffe', 'bias'), (tens, 'caffe', '')):
    make_fed(record, init, fc_init).check()
  make_fed(unit, 'caffe', 'he', loaded).check()  # no convolution is drawn
  make_fed(unit, 'caffe', '', (*loaded, 'fc6', 'fc7')).check()  # fc8 alone is drawn
