"""Weights to Caffe: `deploy.prototxt` and `.caffemodel`, written without Caffe.

One list of layers makes both files, so that they cannot disagree. The arrays are written one by
one. A CFN is one trunk over all tiles (its batch), then a Reshape that puts them side by side.
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from cfn_jax.models import figures
from cfn_jax.transfer import geometry, layouts, wire
from cfn_jax.transfer import weights as weights_lib

Settings = Mapping[str, Any]
# Field numbers in `caffe.proto`: of each settings message within a layer, and of its fields.
_MESSAGES: dict[str, tuple[int, dict[str, int]]] = {
  'input_param': (143, {'shape': 1}),
  'convolution_param': (
    106,
    {'num_output': 1, 'pad': 3, 'kernel_size': 4, 'group': 5, 'stride': 6},
  ),
  'pooling_param': (121, {'pool': 1, 'kernel_size': 2, 'stride': 3}),
  'lrn_param': (118, {'local_size': 1, 'alpha': 2, 'beta': 3}),
  'inner_product_param': (117, {'num_output': 1}),
  'dropout_param': (108, {'dropout_ratio': 1}),
  'reshape_param': (133, {'shape': 1}),
}


@dataclasses.dataclass(frozen=True)
class _Layer:
  name: str
  type: str
  bottom: str
  top: str
  message: str = ''
  settings: Settings = dataclasses.field(default_factory=dict)


def save_caffe(
  weights: weights_lib.Weights,
  model: pathlib.Path,
  prototxt: pathlib.Path,
  *,
  name: str,
  comment: str,
) -> None:
  """Writes the network up to the last layer that there is.

  Args:
    name: the network's, in both files.
    comment: a line for whoever opens the prototxt.

  Raises:
    WeightsError: a layer is missing in between.
  """
  layers = list(_network(weights))
  prototxt.write_text(f'# {comment}\n' + _prototxt(name, layers), encoding='utf8')
  arrays = layouts.to_foreign(weights)
  with model.open('wb') as file:
    file.write(wire.encode_bytes(1, name))
    for layer in layers:
      blobs = (
        [arrays[f'{layer.name}.{kind}'] for kind in ('weight', 'bias')]
        if (layer.name in weights.params)
        else []
      )
      for piece in _layer_pieces(layer, blobs):
        file.write(piece)


def check_layers(weights: weights_lib.Weights) -> tuple[str, ...]:
  """Returns the layers of a network; raises WeightsError where one is missing in between."""
  present = weights.layers()
  wanted = weights_lib.LAYERS[: weights_lib.LAYERS.index(present[-1]) + 1]
  missing = [name for name in wanted if name not in present]
  if missing:
    raise weights_lib.WeightsError(
      f'{", ".join(missing)} missing: a network needs every layer from conv1 to {present[-1]}'
    )
  return present


def _network(weights: weights_lib.Weights) -> Iterator[_Layer]:
  present = check_layers(weights)
  size_px, tiles = geometry.choose_input_px(weights), weights.tiles()
  yield _Layer('data', 'Input', '', 'data', 'input_param', {'shape': [tiles, 3, size_px, size_px]})
  blob = 'data'
  for index, name in enumerate(weights_lib.CONVOLUTIONS):
    if name not in present:
      return
    number = name.removeprefix('conv')
    settings = {
      'num_output': weights.params[name]['kernel'].shape[-1],
      'pad': figures.PADDINGS[index] if index else weights.padding,
      'kernel_size': figures.KERNELS_PX[index],
      'group': weights.groups[index],
      'stride': 1 if index else weights.stride,
    }
    yield _Layer(name, 'Convolution', blob, name, 'convolution_param', settings)
    yield _Layer(f'relu{number}', 'ReLU', name, name)
    blob = name
    steps = {'1': ('pool', 'norm'), '2': ('pool', 'norm'), '5': ('pool',)}.get(number, ())
    for step in steps if weights.order == 'caffenet' else reversed(steps):
      yield _step(step, blob, f'{step}{number}')
      blob = f'{step}{number}'
  yield from _fully_connected(weights, blob)


def _step(step: str, bottom: str, name: str) -> _Layer:
  if step == 'pool':
    settings = {'pool': 'MAX', 'kernel_size': 3, 'stride': 2}
    return _Layer(name, 'Pooling', bottom, name, 'pooling_param', settings)
  settings = {'local_size': 5, 'alpha': 1e-4, 'beta': 0.75}
  return _Layer(name, 'LRN', bottom, name, 'lrn_param', settings)


def _fully_connected(weights: weights_lib.Weights, blob: str) -> Iterator[_Layer]:
  for name in weights_lib.FULLY_CONNECTED:
    if name not in weights.params:
      return
    rows, outputs = weights.params[name]['kernel'].shape
    if name == 'fc7' and weights.tiles() > 1:
      yield _Layer('tiles', 'Reshape', blob, 'tiles', 'reshape_param', {'shape': [-1, rows]})
      blob = 'tiles'
    settings = {'num_output': outputs}
    yield _Layer(name, 'InnerProduct', blob, name, 'inner_product_param', settings)
    blob, number = name, name.removeprefix('fc')
    if name != 'fc8':
      yield _Layer(f'relu{number}', 'ReLU', blob, blob)
      half = {'dropout_ratio': 0.5}
      yield _Layer(f'drop{number}', 'Dropout', blob, blob, 'dropout_param', half)


def _prototxt(name: str, layers: list[_Layer]) -> str:
  lines = [f'name: "{name}"']
  for layer in layers:
    lines += ['layer {', f'  name: "{layer.name}"', f'  type: "{layer.type}"']
    lines += [f'  bottom: "{layer.bottom}"'] if layer.bottom else []
    lines += [f'  top: "{layer.top}"']
    if layer.message:
      lines.append(f'  {layer.message} {{')
      for setting, value in layer.settings.items():
        if isinstance(value, list):
          lines.append('    shape { ' + ' '.join(f'dim: {size}' for size in value) + ' }')
        else:
          lines.append(f'    {setting}: {value}')
      lines.append('  }')
    lines.append('}')
  return '\n'.join(lines) + '\n'


def _layer_pieces(layer: _Layer, blobs: list[np.ndarray]) -> Iterator[bytes | memoryview]:
  """Returns the bytes of a layer, each array as one piece."""
  head = wire.encode_bytes(1, layer.name) + wire.encode_bytes(2, layer.type)
  head += wire.encode_bytes(3, layer.bottom) if layer.bottom else b''
  head += wire.encode_bytes(4, layer.top)
  tail = _encode_settings(layer)
  framed = []
  for blob in blobs:
    shape = wire.encode_bytes(
      7, wire.encode_bytes(1, b''.join(map(wire.encode_varint, blob.shape)))
    )
    start = shape + wire.encode_header(5, blob.nbytes)
    framed.append((wire.encode_header(7, len(start) + blob.nbytes) + start, blob))
  length = len(head) + sum(len(start) + blob.nbytes for start, blob in framed) + len(tail)
  yield wire.encode_header(100, length) + head
  for start, blob in framed:
    yield start
    yield blob.astype('<f4', copy=False).data.cast('B')
  yield tail


def _encode_settings(layer: _Layer) -> bytes:
  if not layer.message:
    return b''
  number, fields = _MESSAGES[layer.message]
  body = b''
  for setting, value in layer.settings.items():
    if isinstance(value, list):
      # Caffe's dimensions are signed: -1 is written as the unsigned number of the same 64 bits.
      sizes = b''.join(wire.encode_varint(size % 2**64) for size in value)
      body += wire.encode_bytes(fields[setting], wire.encode_bytes(1, sizes))
    else:
      body += wire.encode_number(fields[setting], 0 if value == 'MAX' else value)
  return wire.encode_bytes(number, body)
