"""Between Flax's layouts and the one that PyTorch and Caffe share.

Theirs: convolutions `[out, in / groups, kh, kw]`, fully connected layers `[out, in]`, the values
that fc6 takes in the order (channel, y, x). NumPy only.
"""

from collections.abc import Mapping

import numpy as np

from cfn_jax.transfer import weights as weights_lib

Arrays = dict[str, np.ndarray]  # 'conv1.weight', 'conv1.bias', ...
_GRIDS = (1, 4, 9, 16, 25)  # tiles that a fc7 may see


def to_foreign(weights: weights_lib.Weights) -> Arrays:
  """Gives the arrays in the foreign layout, float32, C-contiguous, in the order of the layers.

  Raises:
    WeightsError: fc6 is there without conv5, so its rows cannot be put in order.
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
  """Gives parameters in Flax's layout, and what was left out, with the reason.

  Args:
    arrays: 'conv1.weight', ...; a missing bias is zero; convolutional fully connected layers
      `[out, channels, kh, kw]` and Caffe's old shapes `[1, 1, out, in]` are read too.

  Raises:
    WeightsError: an array has a shape that its layer cannot have.
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
  """Gives side and channels of the map that fc6 takes."""
  if 'conv5' not in params:
    raise weights_lib.WeightsError(
      'fc6 is there without conv5: its values are ordered by the channels of conv5'
    )
  channels = params['conv5']['kernel'].shape[-1]
  side = round(float(np.sqrt(rows / channels)))
  if side * side * channels != rows:
    raise weights_lib.WeightsError(
      f'fc6 takes {rows} values: no square map of the {channels} channels of conv5'
    )
  return side, channels


def _drop_foreign_heads(params: weights_lib.Params) -> list[str]:
  """Removes fc7 and fc8 where fc7 sees a number of images that makes no grid of tiles."""
  if 'fc6' not in params or 'fc7' not in params:
    return []
  rows, features = params['fc7']['kernel'].shape[0], params['fc6']['kernel'].shape[1]
  if rows % features or rows // features in _GRIDS:
    return []
  reason = f'fc7 sees {rows // features} times fc6'
  return [f'{name} ({reason})' for name in ('fc7', 'fc8') if params.pop(name, None)]
