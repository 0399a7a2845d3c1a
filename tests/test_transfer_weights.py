"""Weights and input records: what they say, what they refuse, and surgery on them."""

import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest
import transfer_cases as cases

from cfn_jax.models import figures, inputs, layers
from cfn_jax.transfer import geometry, networks, surgery
from cfn_jax.transfer import weights as weights_lib

RECORDS = inputs.RECORDS


def test_weights_are_read_written_and_fed_without_jax():
  names = ('weights', 'surgery', 'layouts', 'caffe', 'caffe_writer', 'pytorch', 'cards')
  modules = ', '.join(f'cfn_jax.transfer.{name}' for name in names)
  program = f'import sys, {modules}; assert "jax" not in sys.modules'
  repository = pathlib.Path(__file__).resolve().parent.parent
  subprocess.run([sys.executable, '-c', program], check=True, cwd=repository)


def test_a_flat_tile_becomes_zeros_and_others_must_be_uint8():
  record = inputs.InputRecord('bgr', (0.0, 0.0, 0.0), (50.0,) * 3, 'tile')
  assert not record.prepare(np.full((2, 8, 8, 3), 77, np.uint8)).any()
  with pytest.raises(inputs.InputError, match='float32'):
    record.prepare(np.zeros((2, 8, 8, 3), np.float32))


def test_caffe_images_are_bgr_minus_the_mean():
  image = np.zeros((1, 1, 1, 3), np.uint8)
  image[..., :] = (10, 20, 30)
  assert RECORDS['caffe'].prepare(image).ravel().tolist() == [30 - 104, 20 - 117, 10 - 123]


def test_imagenet_images_are_torchvisions():
  image = cases.images(1, 4)
  wanted = (image / 255.0 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
  np.testing.assert_allclose(RECORDS['imagenet'].prepare(image), wanted, rtol=1e-5, atol=1e-6)


def test_photographs_by_the_fixed_record_have_the_mean_and_variance_of_training():
  rng = np.random.default_rng(0)
  pixels = rng.normal((123, 117, 104), 58, [200, 30, 30, 3]).clip(0, 255).astype(np.uint8)
  record = inputs.InputRecord('rgb', (123.0, 117.0, 104.0), (50.0,) * 3, 'tile', 58.0)
  own, fixed = record.prepare(pixels), record.fixed().prepare(pixels)
  assert record.fixed().normalization == ''
  assert abs(own.std() - 50) < 0.1 and abs(fixed.std() - 50) < 3 and abs(fixed.mean()) < 2


def test_a_record_survives_json():
  record = inputs.InputRecord('bgr', (1.0, 2.5, 3.0), (0.1, 0.2, 0.3), 'channel', 58.0)
  assert inputs.from_json(record.to_json()) == record
  with pytest.raises(inputs.InputError, match='scale'):
    inputs.from_json({**record.to_json(), 'scale': [1, 0, 1]})


def _conv1(weights, image):
  """Runs the first convolution, all that the input is folded into."""
  network = networks.make_network(weights)
  run = jax.jit(
    lambda params, x: network.trunk.apply(
      {'params': params}, x, method=lambda m, x: layers.add_bias(*m.conv1(x))
    )
  )
  return np.asarray(run(weights.params, weights.input.prepare(image)))


@pytest.mark.parametrize('source', ['unit', 'caffe', 'imagenet'])
@pytest.mark.parametrize('to', ['unit', 'caffe', 'imagenet'])
def test_folding_the_input_changes_no_activation(source, to):
  weights = cases.draw(record=RECORDS[source], kind='trunk')
  folded = surgery.fold_input(weights, to)
  assert folded.input == RECORDS[to]
  image = cases.images(1, 67)
  before, after = _conv1(weights, image), _conv1(folded, image)
  assert cases.difference(after, before) < cases.TOLERANCE
  if source != to:
    kernels = weights.params['conv1']['kernel'], folded.params['conv1']['kernel']
    assert not np.array_equal(*kernels)


def test_folding_per_tile_normalisation_folds_the_figures_that_stand_in():
  record = inputs.InputRecord('rgb', (120.0, 110.0, 100.0), (50.0,) * 3, 'tile', 58.0)
  weights = cases.draw(record=record, kind='trunk')
  folded = surgery.fold_input(weights, 'caffe')
  image = cases.images(1, 67)
  wanted = _conv1(weights.replace(input=record.fixed()), image)
  assert cases.difference(_conv1(folded, image), wanted) < cases.TOLERANCE


def test_a_mean_does_not_fold_through_padding():
  weights = cases.draw(kind='trunk').replace(padding=5)
  with pytest.raises(weights_lib.WeightsError, match='padded by 5 px'):
    surgery.fold_input(weights, 'imagenet')
  flipped = inputs.InputRecord('rgb', (123.0, 117.0, 104.0), (0.5, 0.5, 0.5))
  folded = surgery.fold_input(weights, flipped)  # the same mean: exact
  image = cases.images(1, 67)
  assert cases.difference(_conv1(folded, image), _conv1(weights, image)) < cases.TOLERANCE


def test_alexnet_gets_the_convolutions_and_stride_4():
  cfn = cases.draw(kind='cfn', stride=2, side=3)
  made = surgery.to_alexnet(cfn, num_classes=7, features=16)
  assert (made.kind, made.stride, made.layers()) == ('alexnet', 4, weights_lib.LAYERS)
  for name in weights_lib.CONVOLUTIONS:
    assert made.params[name] is cfn.params[name]
  assert made.params['fc6']['kernel'].shape == (6 * 6 * 64, 16)
  assert made.params['fc8']['kernel'].shape == (16, 7)
  trunk = surgery.to_cfn_trunk(made)
  assert (trunk.kind, trunk.stride, trunk.layers()) == ('trunk', 2, weights_lib.CONVOLUTIONS)


@pytest.mark.parametrize(
  ('fc_init', 'mean', 'std', 'bias'),
  [
    ('bias', 0, 0.001, 0.1),
    ('paper', 0.1, 0.001, 0),
    ('caffe', 0, 0.005, 0.1),
    ('he', 0, (2 / 800) ** 0.5, 0),
  ],
)
def test_fresh_layers_have_the_figures_of_their_name(fc_init, mean, std, bias):
  layer = surgery.draw_layer('fc6', (800, 400), fc_init=fc_init, seed=3)
  kernel = layer['kernel'].astype(np.float64)
  assert abs(kernel.mean() - mean) < 5 * std / np.sqrt(kernel.size)
  assert abs(kernel.std() / std - 1) < 0.01
  assert np.all(layer['bias'] == np.float32(bias))
  again = surgery.draw_layer('fc6', (800, 400), fc_init=fc_init, seed=3)
  assert np.array_equal(layer['kernel'], again['kernel'])
  other = surgery.draw_layer('fc6', (800, 400), fc_init=fc_init, seed=4)
  assert not np.array_equal(layer['kernel'], other['kernel'])


def test_caffes_classifier_starts_as_alexnets_fillers_say():
  drawn = surgery.draw_layer('fc8', (800, 400), fc_init='caffe', seed=3)
  initial = figures.Initial('caffe', 'alexnet')
  assert np.all(drawn['bias'] == 0) and initial.bias('fc8') == 0
  assert drawn['kernel'].std() == pytest.approx(initial.std('fc8', (800, 400)), rel=0.01)
  assert np.all(
    surgery.draw_layer('fc7', (8, 4), fc_init='caffe', seed=3)['bias'] == np.float32(0.1)
  )


def test_merging_reports_what_was_loaded_what_is_new_and_what_is_left():
  network, given = cases.draw(seed=1).params, cases.draw(seed=2).params
  merged, report = surgery.merge(network, {**given, 'fc9': given['fc8']})
  assert report == (
    'conv1..conv5 loaded (10/10 arrays), fc6, fc7, fc8 new; fc6, fc7, fc8, fc9 left over'
  )
  assert merged['conv3'] is given['conv3'] and merged['fc6'] is network['fc6']


def test_merging_lists_everything_that_does_not_fit():
  network, given = dict(cases.draw().params), dict(cases.draw(width=0.5).params)
  del given['conv2']
  given['conv4'] = {'kernel': network['conv4']['kernel'], 'scale': network['conv4']['bias']}
  given['conv5'] = {n: a.astype(np.float64) for n, a in network['conv5'].items()}
  with pytest.raises(weights_lib.WeightsError) as error:
    surgery.merge(network, given)
  for words in (
    'conv1/kernel is [11, 11, 3, 48], the network has [11, 11, 3, 24]',
    'conv2 is missing in the given weights',
    'conv4/scale is missing in the network',
    'conv4/bias is missing in the given weights',
    'conv5/kernel is float64',
  ):
    assert words in str(error.value)


def test_groups_follow_the_shapes():
  assert cases.draw(groups=(1, 1, 1, 1, 1)).groups == (1, 1, 1, 1, 1)
  assert cases.draw(groups=(1, 4, 1, 2, 1)).groups == (1, 4, 1, 2, 1)


def _with(name, **arrays):
  params = {layer: dict(named) for layer, named in cases.draw().params.items()}
  params[name] |= arrays
  return params


@pytest.mark.parametrize(
  ('params', 'words'),
  [
    (_with('conv1', kernel=np.zeros((11, 11, 27, 24), 'f4')), '9 tiles stacked'),
    (_with('conv2', kernel=np.zeros((5, 5, 7, 64), 'f4')), 'conv2 takes 7 channels of 24'),
    (_with('conv3', kernel=np.zeros((5, 5, 64, 96), 'f4')), '5 x 5 taps, AlexNet 3 x 3'),
    (_with('conv4', bias=np.zeros(7, 'f4')), r'conv4 has a bias \[7\] for 96 outputs'),
    (_with('fc6', kernel=np.zeros((100, 24), 'f4')), 'no square map of the 64 channels'),
    (_with('fc8', kernel=np.zeros((64, 10), 'f4')), 'fc8 takes 64 values, fc7 gives 32'),
    (_with('conv5', bias=np.full(64, np.nan, 'f4')), 'conv5/bias holds values that are not fin'),
    (_with('conv5', bias=np.zeros(64)), 'conv5/bias is float64'),
    ({'features.0': {}}, 'features.0'),
    ({}, 'none at all'),
  ],
)
def test_weights_that_fit_no_network_are_refused(params, words):
  with pytest.raises(weights_lib.WeightsError, match=words):
    weights_lib.make_weights(
      params, order='caffenet', stride=4, input_record=RECORDS['unit'], origin={}
    )


@pytest.mark.parametrize('width', [0.1, 0.25, 0.3, 0.5, 1.0, 1.37])
def test_the_width_is_found_from_the_channels(width):
  found = networks.find_width(cases.draw(width=width, kind='trunk'))
  wanted = [figures.scaled(count, width) for count in (96, 256, 384)]
  assert [figures.scaled(count, found) for count in (96, 256, 384)] == wanted


def geometry_by_hand(size_px, stride):
  side = (size_px - 11) // stride + 1
  for _ in range(3):  # three poolings of 3 px, stride 2, sizes rounded up
    side = -(-(side - 3) // 2) + 1 if side > 0 else 0
  return max(0, side)


def test_pool5_has_the_side_that_the_network_gives():
  for stride in (2, 4):
    for size_px in range(31, 300):
      wanted = figures.map_sides(size_px, stride)['pool5']
      assert geometry_by_hand(size_px, stride) == wanted, (size_px, stride)


def test_the_input_size_is_the_one_that_fc6_was_made_for():
  assert geometry.choose_input_px(cases.draw()) == 227
  cfn = cases.draw(kind='cfn', stride=2, side=3)
  told = cfn.replace(origin={'config': {'puzzle': {'tile_px': 64}}})
  assert geometry.choose_input_px(told) == 64
  found = geometry.choose_input_px(cfn)
  assert figures.map_sides(found, stride=2)['pool5'] == 3
