"""Caffe files, both ways, against OpenCV's Caffe reader and files of others."""

import re

import cv2
import numpy as np
import pytest
import transfer_cases as cases
import wire_cases as wire

from cfn_jax.models import figures, inputs, layers
from cfn_jax.transfer import (
  caffe,
  caffe_layers,
  caffe_writer,
  export,
  files,
  geometry,
  layouts,
  networks,
  surgery,
)
from cfn_jax.transfer import weights as weights_lib

_blob, _layer, _old_layer = wire.encode_blob, wire.encode_layer, wire.encode_old_layer
_IN_OPENCV = {f'conv{k}': f'relu{k}' for k in range(1, 6)} | {'fc6': 'relu6', 'fc7': 'relu7'}


def _save(weights, folder):
  folder.mkdir(exist_ok=True)
  model, prototxt = folder / 'model.caffemodel', folder / 'deploy.prototxt'
  caffe_writer.save_caffe(weights, model, prototxt, name='test', comment='a "test"')
  return model, prototxt


def _opencv(prototxt, model, prepared, stages):
  """Runs prepared input `[B, H, W, 3]` through OpenCV's reading of Caffe files."""
  network = cv2.dnn.readNetFromCaffe(str(prototxt), str(model))
  network.setInput(np.ascontiguousarray(prepared.transpose(0, 3, 1, 2)))
  return {name: network.forward(_IN_OPENCV.get(name, name)).copy() for name in stages}


def _edit(prototxt, old, new, count=-1):
  text = prototxt.read_text()
  assert old in text
  prototxt.write_text(text.replace(old, new, count))
  return prototxt


@pytest.mark.parametrize(
  ('order', 'groups'), [('caffenet', (1, 2, 1, 2, 2)), ('alexnet', (1, 1, 1, 1, 1))]
)
def test_opencv_gives_every_layer_of_an_exported_alexnet(tmp_path, order, groups):
  weights = cases.draw(order=order, groups=groups)
  model, prototxt = _save(weights, tmp_path)
  prepared = weights.input.prepare(cases.images(1, 227))
  wanted = cases.ours(weights, prepared)
  found = _opencv(prototxt, model, prepared, wanted)
  assert set(wanted) == {*cases.STAGES, 'fc6', 'fc7', 'fc8'}
  for stage in wanted:
    assert cases.difference(found[stage], wanted[stage]) < cases.TOLERANCE, stage


def test_opencv_gives_the_logits_of_an_exported_cfn(tmp_path):
  weights = cases.draw(kind='cfn', stride=2, side=3)
  model, prototxt = _save(weights.replace(origin={'config': {'puzzle': {'tile_px': 64}}}), tmp_path)
  tiles = weights.input.prepare(cases.images(9, 64))
  wanted = cases.ours(weights, tiles[None])
  found = _opencv(prototxt, model, tiles, ('pool2', 'pool5', 'fc8'))
  assert wanted['pool2'].shape[-1] == 6  # rounded up; rounding down gives 2 at pool5
  for stage, array in found.items():
    assert cases.difference(array, wanted[stage]) < cases.TOLERANCE, stage


def _broken(what, weights, folder):
  """Exports weights with one thing broken; gives files and the prepared image for OpenCV."""
  record = weights.input
  if what == 'groups':
    kernel = weights.params['conv2']['kernel'].copy()
    half = kernel.shape[-1] // 2
    swapped = np.concatenate([kernel[..., half:], kernel[..., :half]], axis=-1)
    weights = weights.replace(
      params={**weights.params, 'conv2': {**weights.params['conv2'], 'kernel': swapped}}
    )
  if what == 'flatten':
    fc6 = weights.params['fc6']
    rows = fc6['kernel'].reshape(64, 6, 6, -1).transpose(1, 2, 0, 3).reshape(fc6['kernel'].shape)
    fc6 = {**fc6, 'kernel': np.ascontiguousarray(rows)}
    weights = weights.replace(params={**weights.params, 'fc6': fc6})
  if what == 'bgr':
    record = inputs.InputRecord('rgb', record.mean, record.scale)
  model, prototxt = _save(weights, folder)
  if what == 'lrn':
    _edit(prototxt, 'alpha: 0.0001', 'alpha: 0.0005')  # not divided by the window
  if what == 'ceil':
    _edit(prototxt, 'pool: MAX', 'pool: MAX ceil_mode: false')
  _edit(prototxt, 'dim: 227', 'dim: 224')
  return model, prototxt, record.prepare(cases.images(1, 224))


@pytest.mark.parametrize(
  ('what', 'stage'),
  [
    ('', 'fc8'),
    ('groups', 'conv2'),
    ('flatten', 'fc6'),
    ('bgr', 'conv1'),
    ('lrn', 'norm1'),
    ('ceil', 'pool1'),
  ],
)
def test_the_comparison_sees_each_thing_that_can_break(tmp_path, what, stage):
  """224 px: the poolings round here, as they do not at 227."""
  weights = cases.draw()
  wanted = cases.ours(weights, weights.input.prepare(cases.images(1, 224)))
  model, prototxt, prepared = _broken(what, weights, tmp_path)
  if what == 'ceil':  # fc6 would not fit any more
    text = prototxt.read_text()
    prototxt.write_text(text[: text.index('layer {\n  name: "fc6"')])
  found = _opencv(prototxt, model, prepared, (stage,))[stage]
  assert (cases.difference(found, wanted[stage]) < cases.TOLERANCE) == (what == '')
  assert what == '' or cases.difference(found, wanted[stage]) > 1e-3


def test_a_photograph_gives_the_same_through_both_input_records(tmp_path, shared_data):
  """RGB of unit variance here, BGR of 0..255 in Caffe: equal activations."""
  photograph = cv2.imread(str(shared_data('quirks/tiny_75x56.JPEG')))
  rgb = cv2.resize(photograph, (227, 227))[None, ..., ::-1]
  weights = cases.draw(record=inputs.RECORDS['unit'])
  folded = surgery.fold_input(weights, 'caffe')
  model, prototxt = _save(folded, tmp_path)
  bgr = cv2.dnn.blobFromImage(cv2.resize(photograph, (227, 227)), mean=(104, 117, 123))
  found = _opencv(prototxt, model, bgr.transpose(0, 2, 3, 1), cases.STAGES)
  wanted = cases.ours(weights, weights.input.prepare(rgb))
  for stage in cases.STAGES:
    assert cases.difference(found[stage], wanted[stage]) < cases.TOLERANCE, stage


def test_the_reference_file_gives_the_reference_activations(shared_root):
  golden = np.load(shared_root('golden/caffe_trunk_activations.npz'))
  weights = files.load_weights(shared_root('golden/caffenet_trunk.caffemodel'))
  assert (weights.kind, weights.order, weights.stride) == ('trunk', 'caffenet', 4)
  assert weights.groups == (1, 2, 1, 2, 2)
  prepared = np.random.RandomState(100).uniform(0, 255, [2, 3, 227, 227]).astype('f4')
  prepared -= np.array([104, 117, 123], 'f4')[:, None, None]
  stages = cases.ours(weights, prepared.transpose(0, 2, 3, 1))
  for stage in cases.STAGES:
    key = f'caffenet_s4_227/{stage.replace("conv", "relu")}/every97'
    if key in golden.files:
      assert cases.difference(stages[stage].reshape(-1)[::97], golden[key]) < 1e-5, stage
  assert 'caffenet_s4_227/pool5/every97' in golden.files


def test_a_file_read_and_written_again_has_the_same_arrays(tmp_path, shared_root):
  source = shared_root('golden/caffenet_trunk.caffemodel')
  weights = files.load_weights(source)
  export.save_folder(weights, tmp_path / 'one', 'caffe')
  again = files.load_weights(tmp_path / 'one')
  cases.assert_same_arrays(weights, again)
  export.save_folder(again, tmp_path / 'two', 'caffe')
  for name in ('model.caffemodel', 'deploy.prototxt'):
    assert (tmp_path / 'one' / name).read_bytes() == (tmp_path / 'two' / name).read_bytes()


def _settings(text):
  """Returns the settings of each layer of a prototxt: {name: {setting: value}}."""
  found = {}
  for layer in text.split('layer {')[1:]:
    name = re.search(r'name: "(\w+)"', layer)[1]
    found[name] = dict(re.findall(r'(\w+): ([-\w.]+)', layer.split('_param {')[-1]))
  return found


def test_both_files_state_the_settings_of_each_layer(tmp_path):
  """OpenCV derives groups from the shapes; Caffe itself believes what the files say."""
  weights = cases.draw(groups=(1, 2, 1, 4, 2), stride=2, order='alexnet', side=3)
  model, prototxt = _save(weights.replace(padding=5), tmp_path)
  text = _settings(prototxt.read_text())
  wanted = {
    'conv1': {'num_output': 24, 'pad': 5, 'kernel_size': 11, 'group': 1, 'stride': 2},
    'conv2': {'num_output': 64, 'pad': 2, 'kernel_size': 5, 'group': 2, 'stride': 1},
    'conv3': {'num_output': 96, 'pad': 1, 'kernel_size': 3, 'group': 1, 'stride': 1},
    'conv4': {'num_output': 96, 'pad': 1, 'kernel_size': 3, 'group': 4, 'stride': 1},
    'conv5': {'num_output': 64, 'pad': 1, 'kernel_size': 3, 'group': 2, 'stride': 1},
  }
  layers = {layer.name: layer for layer in caffe_layers.read_layers(model)}
  for name, settings in wanted.items():
    assert layers[name].settings == settings, name
    assert {n: int(value) for n, value in text[name].items()} == settings, name
  assert text['norm1'] == {'local_size': '5', 'alpha': '0.0001', 'beta': '0.75'}
  assert layers['norm1'].settings == pytest.approx({'local_size': 5, 'alpha': 1e-4, 'beta': 0.75})
  assert layers['pool5'].settings == {'pool': 0, 'kernel_size': 3, 'stride': 2}
  assert list(layers) == list(text)


def test_an_export_of_the_reference_file_has_its_settings(tmp_path, shared_root):
  export.save_folder(
    files.load_weights(shared_root('golden/caffenet_trunk.caffemodel')), tmp_path / 'out', 'caffe'
  )
  ours = _settings((tmp_path / 'out' / 'deploy.prototxt').read_text())
  theirs = _settings(shared_root('golden/caffenet_trunk_deploy.prototxt').read_text())
  assert list(ours) == list(theirs)
  for name in ours:
    if name != 'data' and not name.startswith('relu'):
      assert ours[name] == theirs[name], name


# ---- files of others, built here


def test_the_form_before_2015_is_read_as_opencv_reads_it(tmp_path):
  weights = cases.draw(order='alexnet')
  arrays = layouts.to_foreign(weights)
  pieces = [wire.encode_bytes(1, 'old')]
  blob = 'data'
  for index, name in enumerate(weights_lib.LAYERS):
    is_convolution = name.startswith('conv')
    settings = wire.encode_number(1, arrays[f'{name}.bias'].size)
    if is_convolution:
      for field, value in (
        (3, figures.PADDINGS[index]),
        (4, figures.KERNELS_PX[index]),
        (5, weights.groups[index]),
        (6, 1 if index else 4),
      ):
        settings += wire.encode_number(field, value)
    blobs = [_blob(arrays[f'{name}.{kind}'], old=True) for kind in ('weight', 'bias')]
    number, field = (4, 10) if is_convolution else (14, 17)
    pieces.append(_old_layer(name, number, blob, name, blobs, wire.encode_bytes(field, settings)))
    blob = name
    if name in ('conv1', 'conv2'):
      lrn = wire.encode_number(1, 5) + wire.encode_number(2, 1e-4) + wire.encode_number(3, 0.75)
      pool = wire.encode_number(2, 3) + wire.encode_number(3, 2)
      end = name[-1]
      pieces.append(
        _old_layer(f'norm{end}', 15, name, f'norm{end}', (), wire.encode_bytes(18, lrn))
      )
      pieces.append(
        _old_layer(f'pool{end}', 17, f'norm{end}', f'pool{end}', (), wire.encode_bytes(19, pool))
      )
      blob = f'pool{end}'
  path = tmp_path / 'old.caffemodel'
  path.write_bytes(b''.join(pieces))
  found = files.load_weights(path)
  assert (found.order, found.stride, found.kind) == ('alexnet', 4, 'alexnet')
  cases.assert_same_arrays(found, weights)
  _, prototxt = _save(weights, tmp_path)
  prepared = weights.input.prepare(cases.images(1, 227))
  theirs = _opencv(prototxt, path, prepared, ('fc8',))['fc8']
  assert cases.difference(cases.ours(found, prepared)['fc8'], theirs) < cases.TOLERANCE


def _convolution(layer, arrays, index, bottom, *, stride=1, pad=0, group=1):
  settings = [(1, arrays[f'{layer}.bias'].size), (4, figures.KERNELS_PX[index])]
  settings += [(3, pad), (5, group), (6, stride)]
  encoded = b''.join(wire.encode_number(*each) for each in settings)
  blobs = [_blob(arrays[f'{layer}.{kind}']) for kind in ('weight', 'bias')]
  return _layer(layer, 'Convolution', bottom, layer, blobs, wire.encode_bytes(106, encoded))


@pytest.mark.parametrize('eps', [1e-5, 1e-2])
def test_batch_norm_and_scale_are_folded(tmp_path, eps):
  """Conv, BatchNorm, Scale, ReLU in OpenCV equal our folded convolution and ReLU."""
  weights = cases.draw(groups=(1, 1, 1, 1, 1), kind='trunk')
  arrays = layouts.to_foreign(weights)
  rng = np.random.default_rng(5)
  channels = arrays['conv1.bias'].size
  mean, variance = rng.normal(0, 50, channels), rng.uniform(0.01, 400, channels)
  norm = [_blob(mean * 3), _blob(variance * 3), _blob([3.0])]  # the third divides both others
  gain, shift = rng.uniform(0.5, 2, channels), rng.normal(0, 1, channels)
  path = tmp_path / 'norm.caffemodel'
  path.write_bytes(
    wire.encode_bytes(1, 'norm')
    + _convolution('conv1', arrays, 0, 'data', stride=4)
    + _layer(
      'bn1', 'BatchNorm', 'conv1', 'conv1', norm, wire.encode_bytes(139, wire.encode_number(3, eps))
    )
    + _layer('scale1', 'Scale', 'conv1', 'conv1', [_blob(gain), _blob(shift)])
    + _layer('relu1', 'ReLU', 'conv1', 'conv1')
    + _layer('extra', 'InnerProduct', 'conv1', 'extra', [_blob(np.ones((2, 2)))])
  )
  prototxt = tmp_path / 'norm.prototxt'
  text = (
    'name: "norm" layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 '
    'dim: 3 dim: 99 dim: 99 } } } layer { name: "conv1" type: "Convolution" bottom: "data" '
    f'top: "conv1" convolution_param {{ num_output: {channels} kernel_size: 11 stride: 4 }} }} '
    'layer { name: "bn1" type: "BatchNorm" bottom: "conv1" top: "conv1" batch_norm_param { '
    f'eps: {eps} }} }} layer {{ name: "scale1" type: "Scale" bottom: "conv1" top: "conv1" '
    'scale_param { bias_term: true } } '
    'layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }'
  )
  prototxt.write_text(text)
  found = caffe.read_caffemodel(path)
  assert found.left_over == ['extra (InnerProduct)']
  loaded = files.load_weights(path)
  prepared = weights.input.prepare(cases.images(1, 99))
  theirs = _opencv(prototxt, path, prepared, ('relu1',))['relu1']
  network = networks.make_network(loaded)
  ours = np.maximum(
    np.asarray(
      network.trunk.apply(
        {'params': loaded.params}, prepared, method=lambda m, x: layers.add_bias(*m.conv1(x))
      )
    ),
    0,
  ).transpose(0, 3, 1, 2)
  assert cases.difference(ours, theirs) < cases.TOLERANCE


def _dense(name, arrays, bottom):
  blobs = [_blob(arrays[f'{name}.{kind}']) for kind in ('weight', 'bias')]
  settings = wire.encode_bytes(117, wire.encode_number(1, arrays[f'{name}.bias'].size))
  return _layer(name, 'InnerProduct', bottom, name, blobs, settings)


def test_a_network_without_groups_with_padding_norms_and_a_head_over_two_images(tmp_path):
  """What the published context-prediction network has (its training code: BatchNorm after conv3 ..
  conv5 and fc6, conv1 padded by 5, a head over two patches, nine layers)."""
  rng = np.random.default_rng(3)
  weights = cases.draw(groups=(1, 1, 1, 1, 1), side=3).replace(padding=5)
  arrays = layouts.to_foreign(weights)
  arrays['fc7.weight'] = rng.standard_normal((32, 48)).astype('f4')  # fc6 gives 24
  pieces, blob = [], 'data'
  wanted = {name: array.copy() for name, array in arrays.items()}

  def norm(name, bottom):
    channels = arrays[f'{name}.bias'].size
    mean, variance = rng.normal(0, 1, channels), rng.uniform(0.5, 2, channels)
    root = np.sqrt(variance.astype('f4').astype('f8') + 1e-5)
    wanted[f'{name}.weight'] = (wanted[f'{name}.weight'].T / root).T
    wanted[f'{name}.bias'] = (wanted[f'{name}.bias'] - mean.astype('f4')) / root
    blobs = [_blob(mean), _blob(variance), _blob([1.0])]
    return _layer(f'bn{name[-1]}', 'BatchNorm', bottom, bottom, blobs)

  for index, name in enumerate(weights_lib.CONVOLUTIONS):
    pad, stride = (figures.PADDINGS[index], 1) if index else (5, 4)
    pieces.append(_convolution(name, arrays, index, blob, stride=stride, pad=pad))
    pieces += [norm(name, name)] if index >= 2 else []
    pieces.append(_layer(f'relu{index + 1}', 'ReLU', name, name))
    blob = name
    if index < 2:
      pool = wire.encode_bytes(121, wire.encode_number(2, 3) + wire.encode_number(3, 2))
      pieces.append(_layer(f'pool{index + 1}', 'Pooling', name, f'pool{index + 1}', (), pool))
      blob = f'norm{index + 1}'
      pieces.append(_layer(blob, 'LRN', f'pool{index + 1}', blob, (), _lrn()))
  pieces += [_dense('fc6', arrays, 'pool5'), norm('fc6', 'fc6'), _layer('r', 'ReLU', 'fc6', 'fc6')]
  pieces += [_dense('fc7', arrays, 'pair'), norm('fc7', 'fc7'), _dense('fc8', arrays, 'fc7')]
  pieces.append(_layer('fc9', 'InnerProduct', 'fc8', 'fc9', [_blob(np.ones((8, 10)))]))
  path = tmp_path / 'pairs.caffemodel'
  path.write_bytes(b''.join(pieces))
  found = files.load_weights(path)
  assert found.layers() == (*weights_lib.CONVOLUTIONS, 'fc6')
  assert (found.groups, found.padding, found.stride) == ((1,) * 5, 5, 4)
  notes = ' '.join(found.origin['notes'])
  assert 'fc7 (fc7 sees 2 times fc6)' in notes and 'fc9 (InnerProduct)' in notes
  ours = layouts.to_foreign(found)
  for name, array in ours.items():
    assert cases.difference(array, wanted[name]) < 1e-6, name
  model, prototxt = _save(found, tmp_path)
  prepared = found.input.prepare(cases.images(1, 99))
  _edit(prototxt, f'dim: {geometry.choose_input_px(found)}', 'dim: 99')
  stages = cases.ours(found, prepared)
  theirs = _opencv(prototxt, model, prepared, cases.STAGES)
  for stage in cases.STAGES:
    assert cases.difference(theirs[stage], stages[stage]) < cases.TOLERANCE, stage


def _siamese(weights, *, changed=''):
  """Encodes a CFN as its authors do: nine columns `conv1_s1` .. `fc6_s9`, then fc7 and fc8."""
  arrays = layouts.to_foreign(weights)
  pieces = [wire.encode_bytes(1, 'CaffeNet')]
  for column in range(1, 10):
    end = f'_s{column}'
    ours = {
      f'{layer}{end}.{kind}': arrays[f'{layer}.{kind}'] + (f'{layer}{end}' == changed)
      for layer in (*weights_lib.CONVOLUTIONS, 'fc6')
      for kind in ('weight', 'bias')
    }
    blob = f'data_{column}'
    for index, name in enumerate(weights_lib.CONVOLUTIONS):
      pad, group = figures.PADDINGS[index], weights.groups[index]
      stride = 1 if index else weights.stride
      layer = name + end
      pieces.append(_convolution(layer, ours, index, blob, stride=stride, pad=pad, group=group))
      pieces.append(_layer(f'relu{index + 1}{end}', 'ReLU', layer, layer))
      blob = layer
      if index in (0, 1, 4):
        pool = wire.encode_number(2, 3) + wire.encode_number(3, 2)
        top = f'pool{index + 1}{end}'
        pieces.append(_layer(top, 'Pooling', blob, top, (), wire.encode_bytes(121, pool)))
        blob = top
      if index < 2:
        top = f'norm{index + 1}{end}'
        pieces.append(_layer(top, 'LRN', blob, top, (), _lrn()))
        blob = top
    pieces += [
      _dense(f'fc6{end}', ours, blob),
      _layer(f'relu6{end}', 'ReLU', 'fc6' + end, 'fc6' + end),
    ]
  pieces += [_dense('fc7', arrays, 'concat'), _dense('fc8', arrays, 'fc7')]
  return b''.join(pieces)


def test_the_siamese_network_of_the_authors_is_read_whole(tmp_path):
  weights = cases.draw(kind='cfn', side=3, stride=2, width=0.1)
  path = tmp_path / 'cfn.caffemodel'
  path.write_bytes(_siamese(weights))
  found = files.load_weights(path)
  cases.assert_same_arrays(found, weights)
  assert (found.kind, found.order, found.stride) == ('cfn', 'caffenet', 2)
  [note] = found.origin['notes']
  assert "by its names it is the authors' siamese network" in note and 'B, G, R' in note
  tiles = cases.images(3, 64)
  bgr = tiles[..., ::-1].astype(float)
  wanted = bgr - bgr.mean((1, 2), keepdims=True)  # their code: 0..255, the mean of each channel off
  np.testing.assert_allclose(found.input.prepare(tiles), wanted, atol=1e-4)
  told = files.load_weights(path, assumed=files.Assumed(input='caffe'))
  assert told.input == inputs.RECORDS['caffe'] and not told.origin.get('notes')
  for changed in ('conv4_s7', 'fc6_s2'):
    path.write_bytes(_siamese(weights, changed=changed))
    with pytest.raises(weights_lib.WeightsError, match=f'_s1 and {changed} differ: copies'):
      files.load_weights(path)


def _first_two(settings=b'', between=('Pooling', 'LRN'), activation='ReLU', stride=4, pad=2):
  """Encodes conv1 and conv2 of a network, with what lies between them."""
  arrays = layouts.to_foreign(cases.draw(kind='trunk'))
  pieces = [_convolution('conv1', arrays, 0, 'data', stride=stride)]
  pieces.append(_layer('act1', activation, 'conv1', 'conv1'))
  blob = 'conv1'
  for kind in between:
    given = settings if kind == 'LRN' else b''
    pieces.append(_layer(kind, kind, blob, kind, (), given))
    blob = kind
  return b''.join([*pieces, _convolution('conv2', arrays, 1, blob, pad=pad, group=2)])


def _lrn(**changes):
  values = {'local_size': (1, 5), 'alpha': (2, 1e-4), 'beta': (3, 0.75), 'k': (5, 1.0)}
  values = {name: (field, changes.get(name, value)) for name, (field, value) in values.items()}
  return wire.encode_bytes(118, b''.join(wire.encode_number(*each) for each in values.values()))


def test_any_subset_of_layers_is_read_and_its_order_found(tmp_path):
  path = tmp_path / 'two.caffemodel'
  path.write_bytes(_first_two(_lrn()))
  found = files.load_weights(path)
  assert found.layers() == ('conv1', 'conv2') and found.order == 'caffenet'
  assert found.kind == 'trunk' and found.groups[:2] == (1, 2)
  path.write_bytes(_first_two(_lrn(), between=('LRN', 'Pooling')))
  assert files.load_weights(path).order == 'alexnet'


@pytest.mark.parametrize(
  ('data', 'words'),
  [
    (_first_two(_lrn(alpha=5e-4)), 'LRN has alpha 0.0005, this AlexNet 0.0001'),
    (_first_two(_lrn(k=2.0)), 'LRN has k 2, this AlexNet 1'),
    (_first_two(_lrn(local_size=3)), 'LRN has local_size 3, this AlexNet 5'),
    (_first_two(between=('Pooling',)), 'between conv1 and conv2 there is Pooling'),
    (_first_two(_lrn(), activation='PReLU'), 'act1 after conv1 is PReLU'),
    (_first_two(_lrn(), pad=0), 'conv2 has pad 0, this AlexNet 2'),
    (
      _first_two(_lrn())
      + _layer('bn', 'BatchNorm', 'LRN', 'LRN', [_blob(np.ones(24))] * 2 + [_blob([1.0])])
      + _convolution('conv3', layouts.to_foreign(cases.draw(kind='trunk')), 2, 'conv2', pad=1),
      "bn .BatchNorm. does not follow a convolution directly, but 'LRN'",
    ),
    (_layer('conv1_1', 'Convolution', 'data', 'x', [_blob(np.ones(3))]), 'arrays: conv1_1'),
    (
      _layer('conv1', 'Convolution', 'data', 'x', [_blob(np.ones((2, 3, 7, 7)))]),
      '7 x 7 taps, AlexNet 11 x 11',
    ),
    (wire.encode_bytes(2, wire.encode_bytes(1, b'\x0a\x01x')), 'upgrade_net_proto_binary'),
  ],
)
def test_what_alexnet_cannot_be_is_refused_with_the_reason(tmp_path, data, words):
  path = tmp_path / 'other.caffemodel'
  path.write_bytes(wire.encode_bytes(1, 'net') + data)
  with pytest.raises(weights_lib.WeightsError, match=words):
    files.load_weights(path)


@pytest.mark.parametrize('gone', ['conv1', 'conv3', 'conv5'])
def test_a_network_without_one_convolution_is_refused(tmp_path, gone):
  arrays = layouts.to_foreign(cases.draw(kind='cfn', side=3, width=0.1))
  pieces = [wire.encode_bytes(1, 'net')]
  for name in weights_lib.LAYERS:
    blobs = [_blob(arrays[f'{name}.{kind}']) for kind in ('weight', 'bias')]
    kind = 'Convolution' if name in weights_lib.CONVOLUTIONS else 'InnerProduct'
    pieces.append(_layer('other_conv' if name == gone else name, kind, '', '', blobs))
  path = tmp_path / 'whole.caffemodel'
  path.write_bytes(b''.join(pieces))
  with pytest.raises(
    weights_lib.WeightsError, match=f'{gone} missing, below fc6; not read: other_conv'
  ):
    files.load_weights(path)


def test_a_cut_or_damaged_file_is_an_error_in_one_line(tmp_path):
  model, _ = _save(cases.draw(width=0.1, side=6, features=4), tmp_path)
  whole = model.read_bytes()
  rng = np.random.default_rng(0)
  path = tmp_path / 'cut.caffemodel'
  for cut in (0, 1, 5, 40, 100, 5000, len(whole) // 2, len(whole) - 1):
    path.write_bytes(whole[:cut])
    with pytest.raises(weights_lib.WeightsError) as error:
      files.load_weights(path)
    assert '\n' not in str(error.value) and str(path) in str(error.value)
  for _ in range(60):  # flipped bytes in the structure: an error or other weights, never a crash
    damaged = bytearray(whole)
    damaged[int(rng.integers(0, 120))] = int(rng.integers(0, 256))
    path.write_bytes(damaged)
    try:
      files.load_weights(path)
    except weights_lib.WeightsError as error:
      assert '\n' not in str(error)


def test_a_hole_in_the_network_is_no_deploy_file(tmp_path):
  weights = cases.draw(kind='trunk')
  params = {name: weights.params[name] for name in ('conv1', 'conv3')}
  with pytest.raises(weights_lib.WeightsError, match='conv2 missing'):
    _save(weights.replace(params=params), tmp_path)
