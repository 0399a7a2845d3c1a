"""Reads the layers of a `.caffemodel`: names, connections, settings, and arrays on demand.

Only what AlexNet needs of Caffe's schema, in today's form (`layer`, field 100) and the one before
2015 (`layers`, field 2, types as numbers). Field numbers: Caffe's `caffe.proto`.
"""

import dataclasses
import math
from typing import BinaryIO

import numpy as np

from cfn_jax.transfer import wire

_V1_TYPES = {
  3: 'Concat',
  4: 'Convolution',
  5: 'Data',
  6: 'Dropout',
  8: 'Flatten',
  12: 'ImageData',
  14: 'InnerProduct',
  15: 'LRN',
  17: 'Pooling',
  18: 'ReLU',
  20: 'Softmax',
  21: 'SoftmaxWithLoss',
  22: 'Split',
}
# Field numbers of a layer: name, type, bottom, top, blobs, then the settings by layer type.
_FIELDS = {
  100: ((1, 2, 3, 4, 7), {106: 'Convolution', 118: 'LRN', 121: 'Pooling', 139: 'BatchNorm'}),
  2: ((4, 5, 2, 3, 6), {10: 'Convolution', 18: 'LRN', 19: 'Pooling'}),
}
_SETTINGS = {
  'Convolution': {
    1: 'num_output',
    3: 'pad',
    4: 'kernel_size',
    5: 'group',
    6: 'stride',
    9: 'pad',
    10: 'pad',
    11: 'kernel_size',
    12: 'kernel_size',
    13: 'stride',
    14: 'stride',
    18: 'dilation',
  },
  'LRN': {1: 'local_size', 2: 'alpha', 3: 'beta', 4: 'norm_region', 5: 'k'},
  'Pooling': {
    1: 'pool',
    2: 'kernel_size',
    3: 'stride',
    4: 'pad',
    5: 'kernel_size',
    6: 'kernel_size',
    7: 'stride',
    8: 'stride',
    9: 'pad',
    10: 'pad',
  },
  'BatchNorm': {3: 'eps'},
}
_MAX_LAYERS, _MAX_BLOBS = 4096, 64


@dataclasses.dataclass
class Layer:
  """One layer of the file.

  Attributes:
    settings: numbers by Caffe's names; `{}` where the file says nothing.
    configured: the file holds settings for this layer, so what they leave out has Caffe's default.
  """

  name: str = ''
  type: str = ''
  bottoms: list[str] = dataclasses.field(default_factory=list)
  tops: list[str] = dataclasses.field(default_factory=list)
  settings: dict[str, float] = dataclasses.field(default_factory=dict)
  configured: bool = False
  blobs: list[wire.Message] = dataclasses.field(default_factory=list)

  def arrays(self) -> list[np.ndarray]:
    """Reads the layer's arrays, float32."""
    return [_read_blob(blob, self.name) for blob in self.blobs]


def read_layers(file: BinaryIO) -> list[Layer]:
  """Reads all layers without their arrays; `file` must stay open while those are wanted.

  Raises:
    WireError: the file is no `.caffemodel`, is cut, or uses a form of 2013 (V0) that Caffe's own
      upgrade tool must convert first.
  """
  message = wire.open_message(file)
  layers = []
  for field in message.fields():
    if field.number in _FIELDS and field.wire == wire.BYTES:
      layers.append(_read_layer(message.child(field), field.number))
    if len(layers) > _MAX_LAYERS:
      raise wire.WireError(f'more than {_MAX_LAYERS} layers: this is no network file')
  if not any(layer.name or layer.type for layer in layers):
    raise wire.WireError('there is no layer in it: this is no .caffemodel')
  return layers


def _read_layer(message: wire.Message, form: int) -> Layer:
  (name, kind, bottom, top, blobs), settings = _FIELDS[form]
  layer = Layer()
  for field in message.fields():
    if form == 2 and field.number == 1:
      raise wire.WireError(
        "it is of Caffe's first form (V0): convert it with Caffe's upgrade_net_proto_binary"
      )
    if field.number == name:
      layer.name = message.text(field)
    elif field.number == kind:
      number = field.value
      layer.type = message.text(field) if form == 100 else _V1_TYPES.get(number, f'V1 {number}')
    elif field.number == bottom:
      layer.bottoms.append(message.text(field))
    elif field.number == top:
      layer.tops.append(message.text(field))
    elif field.number == blobs:
      layer.blobs.append(message.child(field))
      if len(layer.blobs) > _MAX_BLOBS:
        raise wire.WireError(f"layer '{layer.name}' has more than {_MAX_BLOBS} arrays")
    elif field.number in settings:
      layer.configured = True
      layer.settings |= _read_settings(message.child(field), settings[field.number])
  return layer


def _read_settings(message: wire.Message, kind: str) -> dict[str, float]:
  found: dict[str, float] = {}
  for field in message.fields():
    name = _SETTINGS[kind].get(field.number)
    if name is None:
      continue
    if field.wire == wire.FIXED32:
      found[name] = float(message.numbers(field, '<f4')[0])
    else:
      values = set(message.varints(field))
      if name in found:
        values.add(int(found[name]))
      if len(values) > 1:
        raise wire.WireError(f'{name} differs between the axes: {sorted(values)}')
      found[name] = values.pop() if values else 0
  return found


def _read_blob(message: wire.Message, layer: str) -> np.ndarray:
  shape, old_shape = [], {}
  parts: list[np.ndarray] = []
  for field in message.fields():
    if field.number == 7:
      shape_message = message.child(field)
      shape = [n for dims in shape_message.fields() for n in shape_message.varints(dims)]
    elif field.number in (1, 2, 3, 4) and field.wire == wire.VARINT:
      old_shape[field.number] = field.value
    elif field.number in (5, 8):
      parts.append(message.numbers(field, '<f4' if field.number == 5 else '<f8'))
  values = np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else np.empty(0, '<f4')
  shape = shape or [old_shape.get(axis, 1) for axis in (1, 2, 3, 4)]
  if math.prod(shape) != values.size or values.size == 0:
    raise wire.WireError(
      f"layer '{layer}': an array of shape {shape} holds {values.size} values"
      + ('' if values.size else ' (half-precision or left out)')
    )
  return values.astype(np.float32).reshape(shape)
