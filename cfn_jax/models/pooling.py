"""Forms of Caffe's max pooling: sizes round up, windows are clipped to the map.

Maps `[B, H, W, C]` to `[B, oh, ow, C]`. `padding` is on all four sides and adds no value. The
gradient of a window goes to its first maximum in reading order. layers.py chooses.
"""

import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cfn_jax.models import figures

Array = jax.Array


def reference(x: Array, window: int, stride: int, padding: int) -> Array:
  """Pools `[B, H, W, C]` with `lax.reduce_window`."""
  window_shape, strides = (1, window, window, 1), (1, stride, stride, 1)
  pads = _pad(x.shape, window, stride, padding)
  return lax.reduce_window(x, np.array(-np.inf, x.dtype), lax.max, window_shape, strides, pads)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def by_place(x: Array, window: int, stride: int, padding: int) -> Array:
  """Pools `[B, H, W, C]` over strided slices; keeps each maximum's place in its window, a byte."""
  return _find(x, window, stride, padding)[0]


def _find(
  x: Array, window: int, stride: int, padding: int
) -> tuple[Array, tuple[Array, tuple[int, ...]]]:
  """Returns the maxima, their places uint8, and the shape of `x`."""
  padded = jnp.pad(x, _pad(x.shape, window, stride, padding), constant_values=-jnp.inf)
  height, width = ((side - window) // stride + 1 for side in padded.shape[1:3])

  taps = itertools.product(range(window), repeat=2)
  best, place = _find_first(
    [padded[:, row::stride, column::stride][:, :height, :width] for row, column in taps]
  )
  return best, (place, x.shape)


def _spread(
  window: int,
  stride: int,
  padding: int,
  saved: tuple[Array, tuple[int, ...]],
  gradient: Array,
) -> tuple[Array]:
  """Sends each gradient to the place of its maximum."""
  place, shape = saved
  reached = []
  for number, taps in enumerate(itertools.product(range(window), repeat=2)):
    pads = [(0, 0, 0)]
    for size, out, tap in zip(shape[1:3], gradient.shape[1:3], taps):
      low = tap - padding
      pads.append((low, size - low - (out - 1) * stride - 1, stride - 1))
    chosen = jnp.where(place == number, gradient, 0)
    reached.append(lax.pad(chosen, jnp.zeros((), gradient.dtype), [*pads, (0, 0, 0)]))
  return (functools.reduce(jnp.add, reached),)


by_place.defvjp(_find, _spread)


def _find_first(values: Sequence[Array]) -> tuple[Array, Array]:
  """Returns the largest of some arrays, value by value, and the first that has it, uint8."""
  best, place = values[0], jnp.zeros(values[0].shape, jnp.uint8)
  for number, value in enumerate(values[1:], 1):
    place = jnp.where(value > best, jnp.uint8(number), place)
    best = jnp.maximum(best, value)
  return best, place


def _pad(shape: tuple[int, ...], window: int, stride: int, padding: int) -> list[tuple[int, int]]:
  """Returns the padding of each axis, larger at the end so that sizes round up."""
  pads = []
  for size in shape[1:3]:
    out = figures.pooled_size(size, window=window, stride=stride, padding=padding)
    pads.append((padding, max(0, (out - 1) * stride + window - size - padding)))
  return [(0, 0), *pads, (0, 0)]


def by_axes(x: Array, window: int, stride: int, padding: int) -> Array:
  """Pools `[B, H, W, C]` along rows, then along columns, each like `by_place`."""
  return _pool_axis(_pool_axis(x, 2, window, stride, padding), 1, window, stride, padding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _pool_axis(x: Array, axis: int, window: int, stride: int, padding: int) -> Array:
  return _find_along(x, axis, window, stride, padding)[0]


def _find_along(
  x: Array, axis: int, window: int, stride: int, padding: int
) -> tuple[Array, tuple[Array, int]]:
  """Returns the maxima, their places uint8, and the size of the axis."""
  pads = [
    pad if i == axis else (0, 0) for i, pad in enumerate(_pad(x.shape, window, stride, padding))
  ]
  padded = jnp.pad(x, pads, constant_values=-jnp.inf)
  last = (padded.shape[axis] - window) // stride * stride + 1
  taps = [lax.slice_in_dim(padded, tap, tap + last, stride, axis) for tap in range(window)]
  best, place = _find_first(taps)
  return best, (place, x.shape[axis])


def _spread_along(
  axis: int, window: int, stride: int, padding: int, saved: tuple[Array, int], gradient: Array
) -> tuple[Array]:
  """Sends each gradient to the place of its maximum.

  Value q * stride + r is reached by tap r of window q, tap r + stride of window q - 1, and so on:
  dense planes, one for each r, which are then interleaved.
  """
  place, size = saved
  most = (window - 1) // stride

  def pad(x: Array, low: int, high: int) -> Array:
    return jnp.pad(x, [(low, high) if i == axis else (0, 0) for i in range(x.ndim)])

  planes = []
  for r in range(stride):
    taps = enumerate(range(r, window, stride))
    reached = [pad(jnp.where(place == tap, gradient, 0), q, most - q) for q, tap in taps]
    planes.append(functools.reduce(jnp.add, reached or [jnp.zeros_like(pad(gradient, 0, most))]))
  shape = [*gradient.shape]
  shape[axis] = -1
  whole = jnp.stack(planes, axis + 1).reshape(shape)
  whole = pad(whole, 0, max(0, padding + size - whole.shape[axis]))
  return (lax.slice_in_dim(whole, padding, padding + size, axis=axis),)


_pool_axis.defvjp(_find_along, _spread_along)
