"""Caffe's messages, from bytes that are put together by hand: every encoding, and every damage."""

import resource

import numpy as np
import pytest
import transfer_cases as cases
import wire_cases as wire

from cfn_jax.transfer import caffe, caffe_layers, caffe_writer, files
from cfn_jax.transfer import weights as weights_lib

ARRAY = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype('f4')
CONVOLUTION = (106, 10)  # today's field of the settings, and that before 2015
ENCODINGS = {
  'packed': {},
  'chunks': {'chunks': 3},
  'unpacked': {'packed': False},
  'doubles': {'kind': 'f8'},
  'chunks of doubles': {'kind': 'f8', 'chunks': 7},
  'unpacked doubles': {'kind': 'f8', 'packed': False},
}


def _write(folder, data):
  path = folder / 'net.caffemodel'
  path.write_bytes(wire.encode_bytes(1, 'net') + data)
  return path


def _one(blob=b'', settings=b''):
  """Encodes a network of one convolution with one array."""
  return wire.encode_layer('conv1', 'Convolution', 'data', 'conv1', [blob], settings)


def _error(folder, data):
  """Returns the error of reading a file: one line that names the file."""
  path = _write(folder, data)
  with pytest.raises(weights_lib.WeightsError) as error:
    caffe.read_caffemodel(path)
  text = str(error.value)
  assert text.startswith(f'{path}: ') and '\n' not in text and len(text) < 500 + len(str(path))
  return text


@pytest.mark.parametrize('old_shape', [False, True])
@pytest.mark.parametrize('encoding', ENCODINGS)
def test_every_encoding_of_an_array_is_the_same_array(tmp_path, encoding, old_shape):
  blob = wire.encode_blob(ARRAY, old=old_shape, **ENCODINGS[encoding])
  old = wire.encode_old_layer('conv1', 4, 'data', 'conv1', [blob, blob])
  for data in (_one(blob), old):
    layer = caffe_layers.read_layers(_write(tmp_path, data))[0]
    assert (layer.name, layer.type, layer.bottoms, layer.tops) == (
      *('conv1', 'Convolution', ['data'], ['conv1']),
    )
    for array in layer.arrays():
      assert array.dtype == np.float32 and array.shape == ARRAY.shape
      assert array.tobytes() == ARRAY.tobytes()


def test_numbers_may_come_in_pieces_of_both_kinds_and_before_their_shape(tmp_path):
  first, second = np.split(ARRAY.reshape(-1), [17])
  blob = wire.encode_array(first, packed=False) + wire.encode_array(second, chunks=2)
  [array] = caffe_layers.read_layers(_write(tmp_path, _one(blob + wire.encode_dims(ARRAY.shape))))[
    0
  ].arrays()
  assert np.array_equal(array, ARRAY)


def test_doubles_go_before_floats_as_in_caffe(tmp_path):
  blob = wire.encode_blob(ARRAY, kind='f8') + wire.encode_array(np.zeros(7))
  [layer] = caffe_layers.read_layers(_write(tmp_path, _one(blob)))
  assert np.array_equal(layer.arrays()[0], ARRAY)


def test_biasless_arrays_are_read(tmp_path):
  kernel = np.random.default_rng(0).standard_normal((8, 3, 11, 11)).astype('f4')
  found = caffe.read_caffemodel(_write(tmp_path, _one(wire.encode_blob(kernel))))
  assert np.array_equal(found.params['conv1']['kernel'], kernel.transpose(2, 3, 1, 0))
  assert not found.params['conv1']['bias'].any()
  assert found.notes == ['no bias in the file: zeros assumed for conv1']


def test_fields_outside_the_schema_are_passed_over(tmp_path):
  unknown = wire.encode_number(900, 7) + wire.encode_number(901, 1.5)
  unknown += wire.encode_bytes(902, b'\xff\xfe') + wire.encode_key(903, 3) + wire.encode_key(903, 4)
  blob = wire.encode_blob(ARRAY) + wire.encode_bytes(6, ARRAY.tobytes()) + unknown  # its gradient
  settings = wire.encode_bytes(106, wire.encode_number(6, 4) + unknown) + unknown
  [layer] = caffe_layers.read_layers(_write(tmp_path, _one(blob, settings) + unknown))
  assert layer.settings == {'stride': 4}
  assert np.array_equal(layer.arrays()[0], ARRAY)


@pytest.mark.parametrize(
  ('blob', 'words'),
  [
    (wire.encode_dims((2, 3)) + wire.encode_array(np.ones(5)), 'shape [2, 3] holds 5 values'),
    (wire.encode_dims((2, 3)) + wire.encode_array(np.ones(5), kind='f8'), 'holds 5 values'),
    (wire.encode_dims((2, 3)), 'shape [2, 3] holds 0 values (half-precision or left out)'),
    (wire.encode_dims((2, 0)), 'shape [2, 0] holds 0 values'),
    (wire.encode_dims((-2, -3)) + wire.encode_array(np.ones(6)), 'shape [-2, -3] holds 6 values'),
    (wire.encode_dims((2**62, 4, 6)) + wire.encode_array(np.ones(6)), 'holds 6 values'),
    (wire.encode_dims((2**32 + 2, 3)) + wire.encode_array(np.ones(6)), '[4294967298, 3] holds 6'),
    (wire.encode_dims((1,) * 33) + wire.encode_array(np.ones(1)), '33 axes; Caffe ends at 32'),
    (wire.encode_dims((2**40, 2**40, 3, 3)) + wire.encode_array(np.ones(1)), 'holds 1 values'),
    (wire.encode_number(1, -6) + wire.encode_array(np.ones(6)), 'shape [-6, 1, 1, 1] holds 6'),
    (wire.encode_number(2, 2**32 + 6) + wire.encode_array(np.ones(6)), 'holds 6 values'),
    (wire.encode_number(3, 0) + wire.encode_array(np.ones(1)), 'shape [1, 1, 0, 1] holds 1'),
    (wire.encode_array(np.ones(2)), 'shape [1, 1, 1, 1] holds 2 values'),
    (b'', 'shape [1, 1, 1, 1] holds 0 values'),
  ],
)
def test_a_shape_that_its_numbers_do_not_fill_is_refused(tmp_path, blob, words):
  assert words in _error(tmp_path, _one(blob))


@pytest.mark.parametrize(
  ('data', 'words'),
  [
    (wire.encode_number(100, 5), 'NetParameter.layer has wire type 0'),
    (wire.encode_bytes(100, wire.encode_number(1, 5)), 'LayerParameter.name has wire type 0'),
    (wire.encode_bytes(100, wire.encode_number(7, 1.5)), 'LayerParameter.blobs has wire type 5'),
    (wire.encode_bytes(2, wire.encode_bytes(5, 'x')), 'V1LayerParameter.type has wire type 2'),
    (wire.encode_bytes(2, wire.encode_number(1, 5)), 'V1LayerParameter.layer has wire type 0'),
    (_one(wire.encode_number(5, 3)), 'BlobProto.data has wire type 0'),
    (_one(wire.encode_key(5, 1) + bytes(8)), 'BlobProto.data has wire type 1'),
    (_one(wire.encode_number(8, 3.0)), 'BlobProto.double_data has wire type 5'),
    (_one(wire.encode_bytes(1, 'x')), 'BlobProto.num has wire type 2'),
    (_one(wire.encode_bytes(7, wire.encode_number(1, 2.0))), 'BlobShape.dim has wire type 5'),
    (_one(b'', wire.encode_number(106, 3)), 'convolution_param has wire type 0'),
    (_one(b'', wire.encode_bytes(106, wire.encode_number(6, 4.0))), 'stride has wire type 5'),
    (_one(b'', wire.encode_bytes(118, wire.encode_number(2, 1))), 'alpha has wire type 0'),
    (_one(wire.encode_bytes(5, bytes(7))), 'cut or damaged'),  # no whole number of floats
    (_one(wire.encode_bytes(8, bytes(12))), 'cut or damaged'),
    (_one(wire.encode_bytes(7, wire.encode_bytes(1, b'\xff' * 11))), 'cut or damaged'),
    (wire.encode_bytes(100, wire.encode_bytes(1, b'conv\xff')), 'cut or damaged'),
    (wire.encode_bytes(100, wire.encode_bytes(3, b'\xc3(')), 'cut or damaged'),
    (wire.encode_bytes(2, wire.encode_bytes(4, b'\xed\xa0\x80')), 'cut or damaged'),
    (wire.encode_key(100, 6), 'cut or damaged'),
    (wire.encode_key(0, 0) + b'\0', 'cut or damaged'),
    (wire.encode_key(900, 3) * 100_000, 'cut or damaged'),  # nested, and never closed
    (wire.encode_key(900, 3) * 5000 + wire.encode_key(900, 4) * 5000, 'cut or damaged'),
    (b'', 'there is no layer in it'),
    (wire.encode_header(100, 0) * 3, 'there is no layer in it'),
    (wire.encode_header(100, 0) * 4097, 'more than 4096 layers'),
    (_one() + wire.encode_header(2, 0) * 4096, 'more than 4096 layers'),
    (wire.encode_layer('a', 'b', 'c', 'd', [b''] * 65), "layer 'a' has more than 64 arrays"),
    (wire.encode_layer('a', 'b', 'c', 'd' * 5000), 'a name of more than 4096 characters'),
    (wire.encode_layer('a', 'b' * 5000, 'c', 'd'), 'a name of more than 4096 characters'),
    (wire.encode_old_layer('a' * 5000, 4, 'c', 'd'), 'a name of more than 4096 characters'),
  ],
)
def test_damage_is_an_error_in_one_line(tmp_path, data, words):
  assert words in _error(tmp_path, data)


@pytest.mark.parametrize('size', [3 * 2**30, 2**62, 2**64 - 1])
def test_declared_sizes_take_no_memory(tmp_path, size):
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  for data in (
    wire.encode_header(100, size) + bytes(50),
    wire.encode_bytes(100, wire.encode_header(7, size) + bytes(40)),
    _one(wire.encode_header(5, size) + bytes(40)),
  ):
    assert 'cut or damaged' in _error(tmp_path, data)
  blob = wire.encode_dims((size // 8,)) + wire.encode_array(np.ones(1))
  assert 'holds 1 values' in _error(tmp_path, _one(blob))
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_a_file_of_two_gib_is_refused_unread(tmp_path):
  path = _write(tmp_path, _one(wire.encode_blob(ARRAY)))
  with path.open('r+b') as file:
    file.truncate(2**31)
  with pytest.raises(weights_lib.WeightsError, match=r'2147483648 bytes: .* less than 2 GiB'):
    files.load_weights(path)


def test_weights_of_two_gib_are_no_caffemodel(tmp_path):
  weights = cases.draw(width=0.1, features=4)
  rows = weights.params['fc6']['kernel'].shape[0]
  wide = {'kernel': np.broadcast_to(np.float32(0), (rows, 2**29 // rows + 1)), 'bias': np.zeros(1)}
  weights = weights.replace(params={**weights.params, 'fc6': wide})
  with pytest.raises(weights_lib.WeightsError, match='less than 2 GiB; use another format'):
    caffe_writer.save_caffe(weights, tmp_path / 'm', tmp_path / 'd', name='x', comment='y')
  assert not list(tmp_path.iterdir())


def _settings(*fields, packed=()):
  numbers = [wire.encode_number(*each) for each in fields]
  lists = [wire.encode_bytes(n, b''.join(map(wire.encode_varint, values))) for n, values in packed]
  return b''.join([*numbers, *lists])


@pytest.mark.parametrize(
  ('kind', 'body', 'settings'),
  [
    ('conv', _settings((6, 2), (6, 2)), {'stride': 2}),
    ('conv', _settings(packed=[(4, (11, 11)), (3, (0,))]), {'kernel_size': 11, 'pad': 0}),
    ('conv', _settings((11, 5), (12, 5), (9, 2), (10, 2)), {'kernel_size': 5, 'pad': 2}),
    ('conv', _settings((1, 96), (5, 2), (18, 1)), {'num_output': 96, 'group': 2, 'dilation': 1}),
    ('conv', b'', {}),
    ('pool', _settings((1, 7), (5, 3), (6, 3)), {'pool': 7, 'kernel_size': 3}),
    ('conv', _settings((6, 2), (6, 3)), 'stride differs between the axes: [2, 3]'),
    ('conv', _settings(packed=[(3, range(9))]), 'pad differs between the axes: [0, 1, 2, 3]'),
    ('conv', _settings((11, 5), (12, 4)), 'kernel_size differs between the axes: [4, 5]'),
    ('conv', _settings((4, 5), (12, 4)), 'kernel_size differs between the axes: [4, 5]'),
    ('conv', _settings((13, 1), (14, 2)), 'stride differs between the axes: [1, 2]'),
    ('conv', _settings((18, 1), (18, 2)), 'dilation differs between the axes: [1, 2]'),
    ('pool', _settings((2, 3), (5, 2)), 'kernel_size differs between the axes: [2, 3]'),
    ('pool', _settings((9, 3), (10, 2)), 'pad differs between the axes: [2, 3]'),
    ('pool', _settings((7, 3), (8, 2)), 'stride differs between the axes: [2, 3]'),
  ],
)
def test_settings_are_one_number_for_both_axes(tmp_path, kind, body, settings):
  today, old = {'conv': CONVOLUTION, 'pool': (121, 19)}[kind]
  blob = [wire.encode_blob(ARRAY)]
  for data in (
    _one(*blob, wire.encode_bytes(today, body)),
    wire.encode_old_layer('x', 4, 'a', 'b', blob, wire.encode_bytes(old, body)),
  ):
    if isinstance(settings, str):
      assert settings in _error(tmp_path, data)
    else:
      [layer] = caffe_layers.read_layers(_write(tmp_path, data))
      assert layer.configured and layer.settings == settings


def test_types_before_2015_have_todays_names(tmp_path):
  numbers = {4: 'Convolution', 14: 'InnerProduct', 15: 'LRN', 17: 'Pooling', 18: 'ReLU'}
  numbers |= {0: 'None', 19: 'Sigmoid', 21: 'SoftmaxWithLoss', 23: 'TanH', 35: 'AbsVal'}
  numbers |= {22: 'Split', 36: 'Silence', 39: 'Deconvolution', 40: 'V1 40', -1: 'V1 -1'}
  data = b''.join(wire.encode_old_layer('x', number, 'a', 'b') for number in numbers)
  layers = caffe_layers.read_layers(_write(tmp_path, data))
  assert [layer.type for layer in layers] == list(numbers.values())
  blobs = [wire.encode_blob(np.ones((8, 3, 11, 11)))]
  data = wire.encode_old_layer('conv1', 4, 'data', 'c', blobs)
  data += wire.encode_old_layer('act', 19, 'c', 'c')
  assert 'act after conv1 is Sigmoid; AlexNet has ReLU' in _error(tmp_path, data)


def test_any_change_of_a_file_is_read_or_refused_in_one_line(tmp_path):
  blobs = [wire.encode_blob(ARRAY, chunks=2), wire.encode_blob(ARRAY, kind='f8', old=True)]
  settings = wire.encode_bytes(106, _settings((1, 2), (4, 11), (9, 2), (10, 2)))
  whole = wire.encode_layer('conv1', 'Convolution', 'data', 'conv1', blobs, settings)
  whole += wire.encode_old_layer('conv2', 4, 'conv1', 'conv2', blobs)
  rng = np.random.default_rng(1)
  refused = 0
  for _ in range(1500):
    damaged = bytearray(whole)
    for place in rng.integers(0, len(whole), rng.integers(1, 4)):
      damaged[place] = rng.integers(0, 256)
    path = _write(tmp_path, bytes(damaged[: rng.integers(1, 2 * len(whole))]))
    try:
      for layer in caffe_layers.read_layers(path):
        layer.arrays()
    except weights_lib.WeightsError:
      refused += 1
  assert 500 < refused < 1500
