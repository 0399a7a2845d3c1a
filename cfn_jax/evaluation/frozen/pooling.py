"""Pools feature maps to about 9,000 values, for linear classifiers.

Sources: Goyal et al.'s benchmark (average; their kernels and strides for AlexNet), Kolesnikov et
al. (max, no more than 9,000), Gidaris et al. (adaptive max), Zhang et al. (bilinear). Between the
trunk and features.py.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from cfn_jax.errors import CfnError

KINDS = ('average', 'max', 'adaptive', 'bilinear', 'none')
# Goyal et al.: kernel and stride, by layer and side of its map, for strides 2 and 4 at 227 px.
_AVERAGES = {
  'conv1': {109: (28, 9), 55: (19, 4)},
  'conv2': {54: (24, 6), 27: (12, 3)},
  'conv3': {27: (14, 3), 13: (9, 1)},
  'conv4': {27: (14, 3), 13: (9, 1)},
  'conv5': {27: (16, 2), 13: (8, 1)},
}


def check_kind(kind: str) -> None:
  """Raises CfnError for an unknown kind of pooling."""
  if kind not in KINDS:
    raise CfnError(f"features.pooling = '{kind}' is unknown: one of {', '.join(KINDS)}")


def pooled_side(side: int, channels: int, *, kind: str, dimensions: int) -> int:
  """Returns the pooled side of a square map: the largest with at most `dimensions` values.

  A map with no more values keeps its side; with 'none' every map does.

  >>> [pooled_side(50, channels, kind='average', dimensions=9600) for channels in (96, 256, 384)]
  [10, 6, 5]
  """
  if kind == 'none':
    return side
  return min(side, max(1, math.isqrt(dimensions // channels)))


def find_windows(layer: str, side: int, pooled: int, *, kind: str) -> list[tuple[int, int]]:
  """Returns the rows (or columns) of each pooled one: (first, one past the last).

  'adaptive' is PyTorch's adaptive pooling. Otherwise windows and strides are equal. They reach from
  the first row to the last unless there are published figures for the layer and side.
  """
  if kind == 'adaptive':
    return [(i * side // pooled, -(-(i + 1) * side // pooled)) for i in range(pooled)]
  stride = side // pooled
  kernel = side - (pooled - 1) * stride
  if kind == 'average' and side in _AVERAGES.get(layer, {}):
    known_kernel, known_stride = _AVERAGES[layer][side]
    if (side - known_kernel) // known_stride + 1 == pooled:
      kernel, stride = known_kernel, known_stride
  return [(i * stride, i * stride + kernel) for i in range(pooled)]


def pool(maps: jax.Array, layer: str, *, kind: str, dimensions: int) -> jax.Array:
  """Pools square maps float32 `[B, side, side, C]` to `[B, pooled, pooled, C]`; see `KINDS`."""
  side, channels = maps.shape[1], maps.shape[3]
  pooled = pooled_side(side, channels, kind=kind, dimensions=dimensions)
  if pooled == side:
    return maps
  if kind == 'bilinear':
    return _mix(maps, _bilinear(side, pooled))
  windows = find_windows(layer, side, pooled, kind=kind)
  if kind == 'average':
    matrix = np.zeros((pooled, side), np.float32)
    for row, (start, stop) in zip(matrix, windows):
      row[start:stop] = 1 / (stop - start)
    return _mix(maps, matrix)
  for axis in (1, 2):
    slices = [jax.lax.slice_in_dim(maps, start, stop, axis=axis) for start, stop in windows]
    maps = jnp.stack([jnp.max(each, axis=axis) for each in slices], axis=axis)
  return maps


def _mix(maps: jax.Array, matrix: np.ndarray) -> jax.Array:
  """Multiplies rows and columns of maps by a matrix `[pooled, side]`."""
  exact = jax.lax.Precision.HIGHEST
  maps = jnp.einsum('ph,bhwc->bpwc', matrix, maps, precision=exact)
  return jnp.einsum('qw,bpwc->bpqc', matrix, maps, precision=exact)


def _bilinear(side: int, pooled: int) -> np.ndarray:
  """Returns the weights `[pooled, side]` of bilinear resizing that keeps the corners in place."""
  at = np.arange(pooled) * ((side - 1) / (pooled - 1) if pooled > 1 else 0)
  return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(side))).astype(np.float32)
