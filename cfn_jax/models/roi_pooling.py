"""Forms of Fast R-CNN's pooling of regions: each becomes a grid of maxima, without interpolation.

Source: `roi_pooling_layer.cpp` of caffe-fast-rcnn. A region's ends are rounded to cells of the map,
half away from zero. Bin i of n covers its cells floor(i * size / n) to ceil((i + 1) * size / n) -
1, cut at the map's ends. A bin without a cell is 0. layers.py has the function to call.

The maximum over any run of cells is that of two runs whose lengths are powers of 2. These are
computed once per map, so a bin reads a few values whatever its size.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
_TOGETHER = 512  # number of regions that are pooled at once


class _Runs(NamedTuple):
  """The n bins of each region along one axis, int32 `[R, n]`."""

  first: Array  # the cell at which a bin begins
  stop: Array  # the cell after its last one; at most `first` for an empty bin
  level: Array  # the binary logarithm of its length, rounded down

  def ends(self) -> tuple[Array, Array]:
    """Returns the beginnings of the two runs of length 2 ** level that cover a bin."""
    return self.first, jnp.maximum(0, self.stop - (1 << self.level))


def _find_bins(rois: Array, sides: tuple[int, ...], scale: float, size: int) -> tuple[_Runs, _Runs]:
  """Returns the rows and columns of a map of `sides` that the bins cover."""
  ends = rois[:, 1:] * scale
  cells = jnp.trunc(ends + jnp.copysign(0.5, ends)).astype(jnp.int32)[..., None]  # x1, y1, x2, y2
  bins = jnp.arange(size)

  def cover(first: Array, last: Array, side: int) -> _Runs:
    length = jnp.maximum(last - first + 1, 1)
    start = jnp.clip(first + bins * length // size, 0, side)
    stop = jnp.clip(first - -(bins + 1) * length // size, 0, side)  # rounded up
    return _Runs(start, stop, 31 - lax.clz(jnp.maximum(stop - start, 1)))

  columns = cover(cells[:, 0], cells[:, 2], sides[1])
  return cover(cells[:, 1], cells[:, 3], sides[0]), columns


def _is_empty(rows: _Runs, columns: _Runs) -> Array:
  """Returns the bins without a cell, bool `[R, n, n, 1]`."""
  empty = (rows.stop <= rows.first)[:, :, None] | (columns.stop <= columns.first)[:, None]
  return empty[..., None]


def _shift(maps: Array, axis: int, steps: int, fill: float) -> Array:
  """Moves maps towards the start of an axis."""
  rest = lax.slice_in_dim(maps, steps, maps.shape[axis], axis=axis)
  gone = lax.slice_in_dim(maps, 0, steps, axis=axis)
  return jnp.concatenate([rest, jnp.full_like(gone, fill)], axis)


def _maxima(maps: Array, axis: int) -> Array:
  """Returns the maxima of the runs of 1, 2, 4, .. cells that begin at each: `[levels, ...]`."""
  levels, length = [maps], 1
  while 2 * length <= maps.shape[axis]:
    levels.append(jnp.maximum(levels[-1], _shift(levels[-1], axis, length, -jnp.inf)))
    length *= 2
  return jnp.stack(levels)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def pool(maps: Array, rois: Array, scale: float, size: int) -> Array:
  """Pools `[L, h, w, C]` without the places that a gradient needs; see `layers.roi_max_pool`.

  It needs about 36 times the memory of a map of 38 x 63.
  """
  height, width, channels = maps.shape[1:]
  rows, columns = _find_bins(rois, (height, width), scale, size)
  runs = _maxima(_maxima(maps, 1), 3)  # [by columns, by rows, L, h, w, C]
  by_rows, flat = runs.shape[1], runs.reshape(-1, channels)

  def one(region: tuple[Array, _Runs, _Runs, Array]) -> Array:
    image, rows, columns, empty = region
    level = columns.level * by_rows + rows.level[:, None]  # [n, n]
    place = (level * len(maps) + image) * height
    found = [
      flat[(place + row[:, None]) * width + column]  # [n, n, C]
      for row in rows.ends()
      for column in columns.ends()
    ]
    return jnp.where(empty, 0, functools.reduce(jnp.maximum, found))

  # A loop, since XLA would recompute the place of each value if the next layer sees them flat.
  regions = (rois[:, 0].astype(jnp.int32), rows, columns, _is_empty(rows, columns))
  return lax.map(one, regions, batch_size=_TOGETHER)


def _find(
  maps: Array, rois: Array, scale: float, size: int
) -> tuple[Array, tuple[Array, Array, tuple[int, ...]]]:
  """Returns the maxima, the place of each in its map, and whatever else `_spread` needs.

  It keeps the first row of each maximum down the rows. Of equal values along such a row, the first
  in reading order counts.
  """
  height, width = maps.shape[1:3]
  rows, columns = _find_bins(rois, (height, width), scale, size)
  values, firsts = _first_maxima(maps)
  image = rois[:, 0].astype(jnp.int32)[:, None]

  def one(each: tuple[Array, Array, Array, Array, Array, Array]) -> tuple[Array, Array]:
    image, level, high, low, start, stop = each
    upper, lower = values[level, image, high], values[level, image, low]  # [n, w, C]
    row = jnp.where(upper >= lower, firsts[level, image, high], firsts[level, image, low])
    # The barrier avoids recomputing them for each column of bins.
    tall, row = lax.optimization_barrier((jnp.maximum(upper, lower), row))
    across = jnp.arange(width)
    covered = ((across >= start[:, None]) & (across < stop[:, None]))[None, :, :, None]
    best = jnp.max(jnp.where(covered, tall[:, None], -jnp.inf), axis=2)  # [n, n, C]
    place = (row.astype(jnp.int32) * width + across[:, None])[:, None]
    chosen = covered & (tall[:, None] == best[:, :, None])
    return best, jnp.min(jnp.where(chosen, place, height * width), axis=2)

  best, place = lax.map(one, (image, rows.level, *rows.ends(), columns.first, columns.stop))
  empty = _is_empty(rows, columns)
  # A place past the end drops the gradient.
  place = jnp.where(empty, height * width, place)
  return jnp.where(empty, 0, best), (place, image, maps.shape)


def _first_maxima(maps: Array) -> tuple[Array, Array]:
  """Returns `_maxima` down the rows, and the first row of each."""
  height = maps.shape[1]
  number = jnp.arange(height, dtype=jnp.uint8 if height <= 256 else jnp.int32)
  values, rows = [maps], [jnp.broadcast_to(number[:, None, None], maps.shape)]
  length = 1
  while 2 * length <= height:
    value, row = (
      _shift(each[-1], 1, length, fill) for each, fill in ((values, -jnp.inf), (rows, 0))
    )
    rows.append(jnp.where(values[-1] >= value, rows[-1], row))
    values.append(jnp.maximum(values[-1], value))
    length *= 2
  return jnp.stack(values), jnp.stack(rows)


def _spread(
  scale: float, size: int, saved: tuple[Array, Array, tuple[int, ...]], gradient: Array
) -> tuple[Array, None]:
  """Adds each gradient to the value that was the maximum."""
  place, image, (count, height, width, channels) = saved
  flat = jnp.zeros((count, height * width, channels), gradient.dtype)
  where = image[:, :, None, None], place, jnp.arange(channels)
  return flat.at[where].add(gradient, mode='drop').reshape(count, height, width, channels), None


pool.defvjp(_find, _spread)
