"""Weighted k nearest neighbours on frozen features: no training at all.

Source: the rule of Wu et al.: cosine similarity s, the k nearest training images vote for their
classes with weight exp(s / temperature). Exact: all similarities are computed, block by block, on
all devices. Fed from a cache of features (features.py).
"""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cfn_jax.errors import CfnError
from cfn_jax.evaluation import identity, runs, scores
from cfn_jax.evaluation.frozen import feature_cache, probing
from cfn_jax.training import devices, stopping
from cfn_jax.training import task as tasks


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens data and weights.

  Raises:
    CfnError: what is wrong, where, and what would be right.
  """
  c = config.knn
  if c.k < 1 or c.block_rows < 1:
    raise CfnError(f'knn.k = {c.k}, knn.block_rows = {c.block_rows}: at least 1')
  if not c.temperature > 0:
    raise CfnError(f'knn.temperature = {c.temperature}: more than 0')
  probe = probing.open_probe(config, crop='centre', mirror=False, draws=1)
  if c.k > len(probe.data.training.reader.source):
    raise CfnError(
      f'knn.k = {c.k}: there are {len(probe.data.training.reader.source)} training images'
    )
  judge = functools.partial(_judge, config, probe)
  what = f'{c.k} nearest neighbours, temperature {c.temperature:g}'
  return functools.partial(probing.execute, probe, config, judge, what)


def _judge(
  config: ml_collections.ConfigDict,
  probe: probing.Probe,
  name: str,
  extracted: probing.Extracted,
  folder: pathlib.Path,
) -> dict[str, Any]:
  c = config.knn
  training, testing, names = extracted.training, extracted.testing, probe.data.class_names
  mesh = devices.make_mesh(config.num_devices)

  def compute() -> dict[str, Any]:
    rows = {feature_cache.LABEL: testing.labels}
    for layer in training.layers:
      nearest, similarities = find_neighbours(
        testing, training, layer, k=c.k, block_rows=c.block_rows, mesh=mesh
      )
      found = vote(similarities, training.labels[nearest], len(names), temperature=c.temperature)
      rows[layer] = found if config.multilabel else scores.rank_labels(found, testing.labels)
    return probing.detail(rows, names=names, multilabel=config.multilabel)

  return runs.remember(name, identity.describe(config) | extracted.identity(), folder, compute)


def find_neighbours(
  testing: feature_cache.Features,
  training: feature_cache.Features,
  layer: str,
  *,
  k: int,
  block_rows: int,
  mesh: Mesh,
) -> tuple[np.ndarray, np.ndarray]:
  """Finds the k training rows of the largest cosine similarity, for each test row.

  Of equal similarities the lower row comes first. Features without any length are like none.

  Args:
    block_rows: rows of either side that are on the devices at once.

  Returns:
    Row numbers int32 `[n, k]` and similarities float32 `[n, k]`, the nearest first.

  Raises:
    Stopped: after a signal.
  """
  block_rows = -(-block_rows // mesh.size) * mesh.size
  everywhere = NamedSharding(mesh, PartitionSpec())
  split = NamedSharding(mesh, PartitionSpec('data'))

  @jax.jit
  def search(
    test: jax.Array, train: jax.Array, first: jax.Array, count: jax.Array, best: Any
  ) -> Any:
    similar = jnp.dot(test, train.T, precision=jax.lax.Precision.HIGHEST)  # [block, block]
    numbers = jnp.arange(len(train), dtype=jnp.int32)
    similar = jnp.where(numbers < count, similar, -jnp.inf)
    # The earlier rows stand first, and the first of equals is taken.
    values = jnp.concatenate([best[0], similar], axis=1)
    rows = jnp.broadcast_to(numbers + first, similar.shape)
    rows = jnp.concatenate([best[1], rows], axis=1)
    values, places = jax.lax.top_k(values, k)
    return values, jnp.take_along_axis(rows, places, axis=1)

  finish = jax.jit(lambda best: best, out_shardings=everywhere)
  found_rows, found_values = [], []
  with stopping.Stopping() as stop:
    for start in range(0, len(testing), block_rows):
      test, shown = _read_block(testing, layer, start, block_rows)
      placed = _place(test, split)
      best: Any = (
        _place(np.full((block_rows, k), -np.inf, np.float32), split),
        _place(np.zeros((block_rows, k), np.int32), split),
      )
      for first in range(0, len(training), block_rows):
        if stop():
          raise stop.make_error('the neighbours are not all found; the features are kept')
        train, count = _read_block(training, layer, first, block_rows)
        best = search(placed, _place(train, everywhere), np.int32(first), np.int32(count), best)
      values, rows = jax.device_get(finish(best))
      found_values.append(np.asarray(values)[:shown])
      found_rows.append(np.asarray(rows)[:shown])
  return np.concatenate(found_rows), np.concatenate(found_values)


def _read_block(
  found: feature_cache.Features, layer: str, start: int, block_rows: int
) -> tuple[np.ndarray, int]:
  """Returns rows of length 1, filled up to a block with zeros, and how many they are."""
  count = min(block_rows, len(found) - start)
  block = np.zeros((block_rows, found.width(layer)), np.float32)
  rows = found.rows(layer, range(start, start + count))
  lengths = np.linalg.norm(rows, axis=1, keepdims=True)
  block[:count] = rows / np.where(lengths > 0, lengths, 1)
  return block, count


def _place(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
  """Puts an array that every host holds a whole of on the devices."""
  return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def vote(
  similarities: np.ndarray, labels: np.ndarray, classes: int, *, temperature: float
) -> np.ndarray:
  """Returns class scores float64 `[n, classes]`: the share of the neighbours' weights.

  Args:
    similarities: `[n, k]`.
    labels: of the neighbours: int `[n, k]`, or uint8 `[n, k, classes]` where only 1 counts.
  """
  values = similarities.astype(np.float64)
  # Relative to the nearest: exp of 1 / temperature would overflow for small ones.
  weights = np.exp((values - values.max(axis=1, keepdims=True)) / temperature)
  weights /= weights.sum(axis=1, keepdims=True)
  if labels.ndim == 3:
    return np.einsum('nk,nkc->nc', weights, (labels == 1).astype(np.float64))
  found = np.zeros((len(values), classes))
  np.add.at(found, (np.arange(len(values))[:, None], labels), weights)
  return found
