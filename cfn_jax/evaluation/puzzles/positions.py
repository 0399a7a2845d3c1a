"""A linear probe of a tile's position in the image, on its fc6 feature alone.

Paper, section 3.3, the second equation: a network could solve puzzles by learning the absolute
position of each tile, p(S | tiles) = product of p(cell | tile). The score of such a product shows
how much position the features hold; solve.py compares it with the network.
"""

import contextlib
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from cfn_jax.data import feed, pipeline
from cfn_jax.evaluation import identity
from cfn_jax.evaluation.frozen import feature_cache, features, linear_task, probing
from cfn_jax.jigsaw import transform
from cfn_jax.training import task as tasks
from cfn_jax.transfer import weights as weights_lib

LAYER = 'fc6'


def extract(
  config: ml_collections.ConfigDict,
  weights: weights_lib.Weights,
  readers: Mapping[str, pipeline.Reader],
  visits: transform.MakePuzzle,
  folder: pathlib.Path,
) -> probing.Extracted:
  """Extracts fc6 of single tiles in reading order: a row per tile, labelled with its cell.

  Args:
    readers: `training`, in its endless order, and `validation`.
    visits: a transform that leaves the tiles in reading order.
  """

  def measure(params: Any, batch: tasks.Batch) -> dict[str, jax.Array]:
    found = features.see_tiles(weights, params, batch['tiles'])
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
    }
    images = feed.Feed(
      reader, visits, feed.make_loading(config), config.eval_batch_size, limit=count
    )
    batches = functools.partial(_make_batches, images, which, count)
    what = f'{folder.parent.name}: extracting fc6 of the tiles of {count:,} {which} images'
    found.append(
      probing.fill_cache(
        config, measure, weights.params, batches, folder / which, content, images=count, what=what
      )
    )
  return probing.Extracted(*found)


def _make_batches(images: feed.Feed, which: str, count: int, first: int) -> tasks.Batches:
  if which == 'training':
    made = images.train(first // images.batch_size, -(-count // images.batch_size))
  else:
    made = images.evaluate(first)
  with contextlib.closing(made):
    for batch in made:
      yield {'mask': np.ones(len(batch['tiles']), np.float32), **batch}


def make_task(
  config: ml_collections.ConfigDict, extracted: probing.Extracted, cells: int, label: str
) -> tasks.Task:
  """Builds the task of the probe: from a tile's feature to its cell, one of `cells`."""
  return linear_task.make_task(
    config,
    extracted,
    names=tuple(f'cell {cell}' for cell in range(cells)),
    multilabel=False,
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
