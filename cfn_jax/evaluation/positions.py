"""A linear probe of where in the image a tile was, on its fc6 feature alone.

Paper, section 3.3, the second equation: a network could solve puzzles by learning the absolute
position of each tile, p(S | tiles) = product of p(cell | tile). What such a product solves shows
how much position the features hold; solve.py compares it with the network.
"""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from cfn_jax.data import feed, pipeline
from cfn_jax.evaluation import (
  feature_cache,
  features,
  identity,
  linear_task,
  probing,
  runs,
)
from cfn_jax.jigsaw import transform
from cfn_jax.training import devices
from cfn_jax.training import task as tasks
from cfn_jax.transfer import networks
from cfn_jax.transfer import weights as weights_lib

LAYER = 'fc6'


def see_tiles(weights: weights_lib.Weights, params: Any, tiles: jax.Array) -> jax.Array:
  """Returns fc6 `[B, T, D]` of tiles uint8 `[B, T, h, w, 3]`, under parameters of the CFN."""
  network = networks.make_network(weights, dropout=0.0)
  prepared = weights.input.prepare(tiles)
  found: Any = network.apply({'params': params}, prepared, method='features')
  return jnp.asarray(found)


def extract(
  config: ml_collections.ConfigDict,
  weights: weights_lib.Weights,
  readers: Mapping[str, pipeline.Reader],
  visits: transform.MakePuzzle,
  folder: pathlib.Path,
) -> probing.Extracted:
  """Extracts fc6 of single tiles in reading order: a row for each, labelled with its cell.

  Args:
    readers: `training`, visited in its endless order, and `validation`.
    visits: leaves the tiles in reading order.
  """
  mesh = devices.make_mesh(config.num_devices)
  devices.check_batch(config.eval_batch_size, mesh.size, field='eval_batch_size')
  made = config.features

  def measure(params: Any, batch: tasks.Batch) -> dict[str, jax.Array]:
    found = see_tiles(weights, params, batch['tiles'])
    cells = jnp.arange(found.shape[1], dtype=jnp.int32)
    return {LAYER: found, feature_cache.LABEL: jnp.broadcast_to(cells, found.shape[:2])}

  found = []
  for which, reader in readers.items():
    length = len(reader.source)
    limit = config.solve.train_visits if which == 'training' else config.data.val_max_images
    count = limit or length
    count = count if which == 'training' else min(count, length)
    content = {
      'weights': identity.describe_weights(weights),
      'images fingerprint': reader.source.identify(),
      'seed': reader.seed,
      'puzzles': repr(visits.geometry),
      'on_bad_image': reader.on_bad_image,
      'dtype': made.dtype,
      'matmul_precision': config.matmul_precision,
    }
    cache = feature_cache.open_cache(
      folder, which, content, images=count, part_images=made.part_images
    )
    if feature_cache.count_parts(cache) < cache.parts():
      runs.say(f'{folder.parent.name}: extracting fc6 of the tiles of {count:,} {which} images')
    images = feed.Feed(
      reader, visits, feed.make_loading(config), config.eval_batch_size, limit=count
    )
    batches = functools.partial(_make_batches, images, which, count)
    found.append(
      features.extract(measure, weights.params, batches, cache, mesh=mesh, dtype=made.dtype)
    )
  return probing.Extracted(*found)


def _make_batches(images: feed.Feed, which: str, count: int, first: int) -> tasks.Batches:
  if which == 'training':
    made = images.train(first // images.batch_size, -(-count // images.batch_size))
  else:
    made = images.evaluate(first)
  try:
    for batch in made:
      tiles = batch['tiles']
      yield {'tiles': tiles, 'mask': batch.get('mask', np.ones(len(tiles), np.float32))}
  finally:
    made.close()


def make_task(
  config: ml_collections.ConfigDict, extracted: probing.Extracted, cells: int, label: str
) -> tasks.Task:
  """Builds the task of the probe: a tile's feature to the cell it was in, one of `cells`."""
  names = tuple(f'cell {cell}' for cell in range(cells))
  return linear_task.make_task(
    config,
    extracted,
    classes=cells,
    several=False,
    report=functools.partial(linear_task.report, names=names, several=False),
    summary=[
      ('run', f'{label}: a linear probe of the position of single tiles on their fc6'),
      ('training', f'{len(extracted.training):,} tiles'),
      ('validation', f'{len(extracted.testing):,} tiles'),
    ],
    name='position_probe',
  )


def predict(probe: Mapping[str, Any], found: jax.Array) -> jax.Array:
  """Returns log p(cell | tile) `[B, T, T]` of fc6 features `[B, T, D]`."""
  return jax.nn.log_softmax(linear_task.compute_logits(probe[LAYER], found), axis=-1)
