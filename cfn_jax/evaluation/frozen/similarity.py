"""Cosine similarities of all rows of two caches of features, block by block, on all devices.

It is exact, in float32. feature_cache.py -> (here) -> knn.py, retrieval.py.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cfn_jax import terminal
from cfn_jax.evaluation.frozen import feature_cache
from cfn_jax.training import devices, stopping

Blocks = Iterator[tuple[int, jax.Array]]


def compare(
  testing: feature_cache.Features,
  training: feature_cache.Features,
  layer: str,
  *,
  block_rows: int,
  mesh: Mesh,
) -> Iterator[tuple[range, Blocks]]:
  """Yields the rows of each block of the test, and their similarities to all training rows.

  Rows of length 0 are similar to none.

  Args:
    block_rows: number of rows of either side on the devices at once.

  Yields:
    Numbers of test rows, and blocks to consume before the next ones: the first training row of
      each, and similarities float32 `[block, block]` on the devices, split by test rows. Rows that
      fill up a block come last: test rows hold any values, training rows -inf.

  Raises:
    Stopped: after a signal.
  """
  block_rows = -(-block_rows // mesh.size) * mesh.size

  @jax.jit
  def multiply(test: jax.Array, train: jax.Array, count: jax.Array) -> jax.Array:
    similar = jnp.dot(test, train.T, precision=jax.lax.Precision.HIGHEST)  # [block, block]
    return jnp.where(jnp.arange(len(train)) < count, similar, -jnp.inf)

  def go_through(placed: jax.Array, stop: stopping.Stopping) -> Blocks:
    for first in range(0, len(training), block_rows):
      if stop():
        raise stop.make_error('not all similarities are computed; the features are kept')
      train, count = _read_block(training, layer, first, block_rows)
      yield first, multiply(placed, place(train, mesh, split=False), np.int32(count))

  starts = range(0, len(testing), block_rows)
  bar = terminal.make_bar(starts, desc=f'{layer}: similarities', unit='block', delay=3)
  with stopping.Stopping() as stop:
    for start in bar:
      test, count = _read_block(testing, layer, start, block_rows)
      yield range(start, start + count), go_through(place(test, mesh, split=True), stop)


def _read_block(
  found: feature_cache.Features, layer: str, start: int, block_rows: int
) -> tuple[np.ndarray, int]:
  """Returns rows of length 1, filled up to a block with zeros, and their number."""
  count = min(block_rows, len(found) - start)
  block = np.zeros((block_rows, found.width(layer)), np.float32)
  rows = found.rows(layer, range(start, start + count))
  lengths = np.linalg.norm(rows, axis=1, keepdims=True)
  block[:count] = rows / np.where(lengths > 0, lengths, 1)
  return block, count


def place(array: np.ndarray, mesh: Mesh, *, split: bool) -> jax.Array:
  """Puts an array `[n, ...]` that every host holds on the devices, whole or split by its rows."""
  sharding = devices.split(mesh) if split else devices.whole(mesh)
  return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def fetch(arrays: Any, mesh: Mesh) -> Any:
  """Returns arrays that are split over the devices as whole ones, on every host."""
  return jax.device_get(_replicate(mesh)(arrays))


@functools.cache
def _replicate(mesh: Mesh) -> Any:
  return jax.jit(lambda arrays: arrays, out_shardings=devices.whole(mesh))
