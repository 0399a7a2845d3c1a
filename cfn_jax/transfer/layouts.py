"""Converts between Flax's layouts and those that PyTorch and Caffe share.

Theirs are `[out, in / groups, kh, kw]` for convolutions and `[out, in]` for fully connected layers,
with the inputs of fc6 in the order (channel, y, x). NumPy only.
"""

import dataclasses
import textwrap
from collections.abc import Iterable, Mapping

import numpy as np

from cfn_jax.models import inputs
from cfn_jax.transfer import weights as weights_lib

Arrays = dict[str, np.ndarray]  # 'conv1.weight', 'conv1.bias', ...
# The input of a CFN in two programs that have their own names of layers. A channel's fixed figures,
# which replace a tile's own, are those of photographs.
PEERS = {
  "the authors' siamese network": inputs.InputRecord(
    'bgr', (104.0, 117.0, 123.0), (inputs.PIXEL_STD,) * 3, 'mean', inputs.PIXEL_STD
  ),
  'its port to PyTorch': inputs.InputRecord(
    'rgb', (123.0, 117.0, 104.0), (1.0, 1.0, 1.0), 'channel', inputs.PIXEL_STD
  ),
}
AUTHORS, PORT = PEERS
_GRIDS = (1, 4, 9, 16, 25)  # numbers of tiles that an fc7 may see
_PLACES = 8  # classes of a network that compares two tiles


@dataclasses.dataclass(frozen=True)
class Found:
  """The contents of a foreign file.

  Attributes:
    order: '' if the file has neither pooling nor normalisation layers.
    stride: that of conv1; 0 if the file does not state it.
    left_over: layers or keys with arrays that were not read, with the reason.
    peer: the program whose names the layers have, one of `PEERS`; '' for plain ones and other
      networks.
    notes: assumptions about the arrays.
  """

  params: weights_lib.Params
  order: str = ''
  stride: int = 0
  padding: int = 0
  left_over: list[str] = dataclasses.field(default_factory=list)
  peer: str = ''
  notes: list[str] = dataclasses.field(default_factory=list)


def check_whole(layers: Iterable[str], left_over: Iterable[str]) -> None:
  """Raises WeightsError if a convolution is missing below fc6 or a later convolution.

  Args:
    layers: the layers that were found.
    left_over: the unread names: the error lists them, those with 'conv' first.
  """
  trunk = [name for name in (*weights_lib.CONVOLUTIONS, 'fc6') if name in layers]
  if not trunk:
    return
  below = weights_lib.LAYERS[: weights_lib.LAYERS.index(trunk[-1])]
  missing = [name for name in below if name not in trunk]
  if missing:
    names = sorted(left_over, key=lambda name: ('conv' not in name.lower(), name))
    unread = textwrap.shorten(', '.join(names), 300, placeholder=' ...')
    raise weights_lib.WeightsError(
      f'{", ".join(missing)} missing, below {trunk[-1]}'
      + (f'; not read: {unread}' if unread else ': the network is not whole')
    )


def note_biases(arrays: Iterable[str]) -> list[str]:
  """Returns notes about layers with a weight but no bias, from keys 'conv1.weight', ..."""
  held = set(arrays)
  bare = [n for n in weights_lib.LAYERS if f'{n}.weight' in held and f'{n}.bias' not in held]
  return [f'no bias in the file: zeros assumed for {", ".join(bare)}'] if bare else []


def to_foreign(weights: weights_lib.Weights) -> Arrays:
  """Returns the arrays in the foreign layout, float32, C-contiguous, in the order of the layers.

  Raises:
    WeightsError: fc6 exists without conv5, so its rows cannot be reordered.
  """
  arrays: Arrays = {}
  for name in weights.layers():
    kernel = weights.params[name]['kernel']
    if name in weights_lib.CONVOLUTIONS:
      kernel = kernel.transpose(3, 2, 0, 1)
    elif name == 'fc6':
      side, channels = _pool5(kernel.shape[0], weights.params)
      maps = kernel.reshape(side, side, channels, -1)
      kernel = maps.transpose(3, 2, 0, 1).reshape(kernel.shape[1], -1)
    else:
      kernel = kernel.T
    arrays[f'{name}.weight'] = np.ascontiguousarray(kernel)
    arrays[f'{name}.bias'] = np.ascontiguousarray(weights.params[name]['bias'])
  return arrays


def from_foreign(arrays: Mapping[str, np.ndarray]) -> tuple[weights_lib.Params, list[str]]:
  """Returns parameters in Flax's layout, and the unread names with the reason.

  Args:
    arrays: 'conv1.weight', ...; a missing bias is zero; convolutional fully connected layers
      `[out, channels, kh, kw]` and Caffe's old shapes `[1, 1, out, in]` are read too.

  Raises:
    WeightsError: an array has an impossible shape for its layer.
  """
  params: weights_lib.Params = {}
  for name in weights_lib.LAYERS:
    if f'{name}.weight' not in arrays:
      continue
    weight = np.asarray(arrays[f'{name}.weight'], np.float32)
    if name in weights_lib.CONVOLUTIONS:
      if weight.ndim != 4:
        raise weights_lib.WeightsError(f'{name}.weight is {list(weight.shape)}: four axes expected')
      kernel, outputs = weight.transpose(2, 3, 1, 0), weight.shape[0]
    else:
      weight = weight.reshape(_matrix_shape(name, weight.shape))
      kernel, outputs = weight.T, weight.shape[0]
      if name == 'fc6':
        side, channels = _pool5(weight.shape[1], params)
        maps = weight.reshape(outputs, channels, side, side)
        kernel = maps.transpose(2, 3, 1, 0).reshape(-1, outputs)
    bias = np.asarray(arrays.get(f'{name}.bias', np.zeros(outputs)), np.float32).reshape(-1)
    params[name] = {'kernel': np.ascontiguousarray(kernel), 'bias': bias}
  return params, _drop_foreign_heads(params)


def _matrix_shape(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
  if len(shape) == 4 and shape[:2] == (1, 1):
    shape = shape[2:]
  if len(shape) not in (2, 4) or 0 in shape:
    raise weights_lib.WeightsError(f'{name}.weight is {list(shape)}: [out, in] expected')
  return shape[0], int(np.prod(shape[1:]))


def _pool5(rows: int, params: weights_lib.Params) -> tuple[int, int]:
  """Returns side and channels of the input map of fc6."""
  if 'conv5' not in params:
    raise weights_lib.WeightsError(
      'fc6 is there without conv5: its values are ordered by the channels of conv5'
    )
  channels = params['conv5']['kernel'].shape[-1]
  side = weights_lib.map_side(rows, channels)
  if not side:
    raise weights_lib.WeightsError(
      f'fc6 takes {rows} values: no square map of the {channels} channels of conv5'
    )
  return side, channels


def _drop_foreign_heads(params: weights_lib.Params) -> list[str]:
  """Removes fc7 and fc8 that see no grid of tiles, and layers above a missing one."""
  heads = [name for name in weights_lib.FULLY_CONNECTED if name in params]
  gap = next((name for name in weights_lib.FULLY_CONNECTED if name not in params), '')
  reason = ''
  if 'fc6' in params and 'fc7' in params:
    rows, features = params['fc7']['kernel'].shape[0], params['fc6']['kernel'].shape[1]
    outputs = params['fc8']['kernel'].shape[1] if 'fc8' in params else 0
    seen = (*_GRIDS, 2) if outputs == _PLACES else _GRIDS
    if rows % features == 0 and rows // features not in seen:
      heads, reason = heads[1:], f'fc7 sees {rows // features} times fc6'
  elif gap and 'conv1' in params:
    heads, reason = [name for name in heads if name > gap], f'there is no {gap}'
  if not reason:
    return []
  return [f'{name} ({reason})' for name in heads if params.pop(name)]
