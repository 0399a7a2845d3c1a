"""Weighted k nearest neighbours on frozen features: no training at all.

Source: the rule of Wu et al. The k nearest training images by cosine similarity s vote for their
classes with weight exp(s / temperature). It is exact: all similarities are computed
(similarity.py). The features come from a cache (features.py).
"""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.sharding import Mesh

from cfn_jax.errors import CfnError
from cfn_jax.evaluation import identity, runs, scores
from cfn_jax.evaluation.frozen import feature_cache, probing, similarity
from cfn_jax.training import devices
from cfn_jax.training import task as tasks


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens data and weights.

  Raises:
    CfnError: with the fault, its place and the remedy.
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
  """Returns the k training rows of the largest cosine similarity for each test row.

  The lower row of equal similarities comes first. Arguments and errors as in `similarity.compare`.

  Returns:
    Row numbers int32 `[n, k]` and similarities float32 `[n, k]`, the nearest first.
  """

  @jax.jit
  def merge(similar: jax.Array, first: jax.Array, best: Any) -> Any:
    numbers = jnp.arange(similar.shape[1], dtype=jnp.int32)
    # The earlier rows come first, and the first of equals counts.
    values = jnp.concatenate([best[0], similar], axis=1)
    rows = jnp.broadcast_to(numbers + first, similar.shape)
    rows = jnp.concatenate([best[1], rows], axis=1)
    values, places = jax.lax.top_k(values, k)
    return values, jnp.take_along_axis(rows, places, axis=1)

  found_rows, found_values = [], []
  for shown, blocks in similarity.compare(
    testing, training, layer, block_rows=block_rows, mesh=mesh
  ):
    best: Any = None
    for first, similar in blocks:
      if best is None:
        none = np.full((len(similar), k), -np.inf, np.float32)
        start = none, np.zeros(none.shape, np.int32)
        best = tuple(similarity.place(each, mesh, split=True) for each in start)
      best = merge(similar, np.int32(first), best)
    values, rows = similarity.fetch(best, mesh)
    found_values.append(values[: len(shown)])
    found_rows.append(rows[: len(shown)])
  return np.concatenate(found_rows), np.concatenate(found_values)


def vote(
  similarities: np.ndarray, labels: np.ndarray, classes: int, *, temperature: float
) -> np.ndarray:
  """Returns class scores float64 `[n, classes]`: the share of the neighbours' weights.

  Args:
    similarities: `[n, k]`.
    labels: those of the neighbours: int `[n, k]`, or uint8 `[n, k, classes]`, where only 1 counts.
  """
  values = similarities.astype(np.float64)
  # Relative to the nearest: exp(1 / temperature) would overflow for small temperatures.
  weights = np.exp((values - values.max(axis=1, keepdims=True)) / temperature)
  weights /= weights.sum(axis=1, keepdims=True)
  if labels.ndim == 3:
    return np.einsum('nk,nkc->nc', weights, (labels == 1).astype(np.float64))
  found = np.zeros((len(values), classes))
  np.add.at(found, (np.arange(len(values))[:, None], labels), weights)
  return found
