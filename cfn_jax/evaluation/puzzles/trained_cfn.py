"""A trained CFN with its own config and permutation set, from a checkpoint.

The images are those of its training, or others. Between transfer/ and solve.py.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import ml_collections
import numpy as np

from cfn_jax import fields
from cfn_jax.data import pipeline, sources
from cfn_jax.errors import CfnError
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import transform
from cfn_jax.jigsaw.permutation_sets import permutations as permutation_sets
from cfn_jax.models import alexnet, figures
from cfn_jax.transfer import files
from cfn_jax.transfer import weights as weights_lib

ENUMERATED = 8  # tiles; larger sets have too many permutations to list


@dataclasses.dataclass(frozen=True)
class TrainedCfn:
  """A CFN and its puzzles, opened and checked.

  Attributes:
    own: the config of its training, with the images of the evaluation.
    permutations: its set, uint8 `[N, T]`.
    outside: permutations that are not in it; may be empty.
    readers: `training` and `validation`.
    started: weights by run: `pretrained`, `random`.
  """

  own: ml_collections.ConfigDict
  permutations: np.ndarray
  outside: np.ndarray
  readers: Mapping[str, pipeline.Reader]
  started: Mapping[str, weights_lib.Weights]

  @property
  def tiles(self) -> int:
    """Returns T."""
    return int(self.permutations.shape[1])

  def make_transform(self, shown: np.ndarray, puzzles: int) -> transform.MakePuzzle:
    """Returns the transform that cuts puzzles of permutations `[n, T]`, tiles in reading order."""
    return transform.MakePuzzle(
      geometry=transform.make_geometry(self.own),
      rows=shown,
      puzzles=min(puzzles, len(shown)),
      fixed_per_image=0,
      seed=self.own.seed,
    )


def open_trained(config: ml_collections.ConfigDict) -> TrainedCfn:
  """Opens a checkpoint with its own config and permutation set, and its own or other images."""
  path = config.weights
  if not path:
    raise CfnError('weights is empty: a workdir, a step or a folder of weights of a CFN')
  weights = files.load_weights(path, step=config.weights_step, collection=config.weights_collection)
  if (task := weights.origin.get('task', 'jigsaw')) != 'jigsaw':
    raise weights_lib.WeightsError(
      f'{path}: a network of {task}: solve.py is about jigsaw puzzles (its run has its own figures)'
    )
  if weights.kind != 'cfn' or set(weights.layers()) != set(weights_lib.LAYERS):
    raise weights_lib.WeightsError(
      f'{path}: these weights ({weights.kind}: {", ".join(weights.layers())}) solve no puzzles: '
      'all layers of a CFN are needed'
    )
  permutations = find_permutations(weights, path)
  own = complete_config(weights.origin.get('config'), config, path)
  fields.check_numbers(own, pretexts.LIMITS)
  splits = dict(zip(('training', 'validation'), sources.open_config(own.data)))
  for which, source in splits.items():
    if not len(source):
      raise CfnError(f'{source.description}: there are no {which} images')
  readers = {
    which: pipeline.Reader(
      source,
      seed=own.seed,
      min_side_px=own.puzzle['crop_px' if own.puzzle.crop_mode == 'whole' else 'resize_px'],
      on_bad_image=own.data.on_bad_image,
    )
    for which, source in splits.items()
  }
  started = {'pretrained': weights}
  if config.baseline:
    initial = figures.Initial(own.model.init, weights.order)
    drawn = alexnet.draw_parameters(weights.params, initial, seed=config.seed)
    started['random'] = weights.replace(params=drawn)
  outside = draw_outside(permutations, config.solve.outside_permutations, seed=config.seed)
  return TrainedCfn(own, permutations, outside, readers, started)


def find_permutations(weights: weights_lib.Weights, path: str) -> np.ndarray:
  """Returns the permutation set of a network, uint8 `[N, T]`.

  Raises:
    WeightsError: it is missing, or is not the one of the network's training.
  """
  rows = weights.origin.get('permutations')
  if not rows:
    raise weights_lib.WeightsError(
      f'{path}: the permutation set is not there; a workdir keeps it in permutations.npy'
    )
  found = np.array(rows, np.int64).reshape(len(rows), -1)
  tiles, count = weights.tiles(), weights.params['fc8']['kernel'].shape[1]
  model = weights.origin.get('config', {}).get('model', {})
  spare = model.get('fc8_features') == count and len(found) < count  # outputs without a permutation
  fits = found.shape[1] == tiles and (len(found) == count or spare)
  if not fits or not np.all(np.sort(found, axis=1) == np.arange(tiles)):
    raise weights_lib.WeightsError(
      f'{path}: the permutation set is {len(found)} x {found.shape[1]}, the network is for '
      f'{count} permutations of {tiles} tiles'
    )
  permutations = found.astype(np.uint8)
  wanted = weights.origin.get('fingerprint', {}).get('permutation set', '')
  if wanted and permutation_sets.fingerprint(permutations) != wanted:
    raise weights_lib.WeightsError(
      f'{path}: permutations.npy is not the set that the network was trained with'
    )
  return permutations


def complete_config(
  saved: Any, config: ml_collections.ConfigDict, path: str
) -> ml_collections.ConfigDict:
  """Returns the config of a network's training, with the images of `config.data`, if any."""
  if not isinstance(saved, Mapping) or not {'puzzle', 'model', 'data'} <= set(saved):
    raise weights_lib.WeightsError(f'{path}: the config of its training is not there')
  d = config.data
  for field in sources.find_idle(d.source, {} if d.source else d.to_dict()):
    raise weights_lib.WeightsError(
      f"data.{field} = {d[field]!r}: with data.source = '' the images are those of the "
      "checkpoint's training; name their kind too, as in --config.data.source=folder"
    )
  # Fields that its training did not read had no effect there.
  data = sources.clear_idle(d.source or saved['data']['source'], saved['data'])
  if d.source:
    data |= d.to_dict()
  return ml_collections.ConfigDict({**saved, 'data': data})


def draw_outside(permutations: np.ndarray, count: int, *, seed: int) -> np.ndarray:
  """Draws distinct permutations that are not in a set: uint8 `[n, T]`, n at most `count`."""
  tiles = permutations.shape[1]
  known = {tuple(row) for row in permutations.tolist()}
  rng = np.random.Generator(np.random.Philox(key=[seed, tiles]))
  if tiles <= ENUMERATED:
    every = [row for row in itertools.permutations(range(tiles)) if row not in known]
    chosen = rng.permutation(len(every))[:count]
    return np.array([every[index] for index in chosen], np.uint8).reshape(-1, tiles)
  found: list[list[int]] = []
  while len(found) < min(count, math.factorial(tiles) - len(permutations)):
    row = rng.permutation(tiles).tolist()
    if tuple(row) not in known:
      known.add(tuple(row))
      found.append(row)
  return np.array(found, np.uint8)
