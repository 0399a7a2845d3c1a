"""What decides the figures of a run: all fields of its config but those that are named here.

A result is used again only where all of that is the same. A field is part of it unless it is shown
to change no figure, so a new field is too. Images and weights stand in it by their content, not by
their names. Used by runs.py, for results, and by the tasks of the evaluations, as what a run that
is resumed may not change.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import ml_collections
import numpy as np

from cfn_jax import fields
from cfn_jax.transfer import weights as weights_lib

# How work is spread over devices, hosts and processes, watched and kept: it changes no figure.
SPREAD = frozenset(
  {
    'checkpoint_every_steps',
    'compilation_cache_dir',
    'data.num_threads',
    'data.num_workers',
    'data.read_ahead_batches',
    'distributed',
    'eval_batch_size',
    'eval_every_steps',
    'features.part_images',
    'keep_best',
    'keep_latest',
    'knn.block_rows',
    'log_every_steps',
    'nonfinite_limit',
    'num_devices',
    'plateau_warning_steps',
    'profile_start_step',
    'profile_steps',
    'remat',
    'report',
    'retrieval.block_rows',
    'start_over',
    'svm.num_threads',
    'test.watched_images',
  }
)
# Names of what is tested: its content is part of the identity of each run, see the tasks.
NAMED = frozenset(
  {
    'baseline',
    'data.allow_empty_classes',
    'data.labels',
    'data.more_masks',
    'data.on_bad_box',
    'data.root',
    'data.sbd_root',
    'data.shared_images',
    'data.source',
    'data.split',
    'data.val_fraction',
    'data.val_max_images',
    'data.val_root',
    'data.val_split',
    'layers',
    'permutations.file',
    'proposals',
    'weights',
    'weights_collection',
    'weights_step',
  }
)
# What only the score at the end depends on.
SCORING = frozenset({'num_steps', 'solve.vote', 'test'})


def describe(
  config: ml_collections.ConfigDict, *, without: frozenset[str] = frozenset()
) -> dict[str, Any]:
  """Returns the fields that can change a figure, 'section.field' to a plain value.

  Args:
    without: fields, or whole sections, to leave out as well.
  """
  left = SPREAD | NAMED | without
  return {
    name: value
    for name, value in fields.flatten(config).items()
    if name not in left and name.partition('.')[0] not in left
  }


def describe_training(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the fields that can change what training does up to any step.

  A longer run continues a shorter one, unless its schedule is laid over the number of steps.
  """
  whole = config.schedule == 'cosine'
  return describe(config, without=SCORING - {'num_steps'} if whole else SCORING)


def hash_arrays(params: Mapping[str, Mapping[str, np.ndarray]]) -> str:
  """Returns the SHA-256 of parameters `[...]`: of their names, types, shapes and values."""
  digest = hashlib.sha256()
  for layer in sorted(params):
    for name in sorted(params[layer]):
      array = np.ascontiguousarray(params[layer][name])
      digest.update(f'{layer}/{name} {array.dtype} {array.shape}'.encode())
      digest.update(array.tobytes())
  return digest.hexdigest()


def describe_weights(weights: weights_lib.Weights) -> dict[str, Any]:
  """Returns all of some weights that can change a figure: arrays, network, how it is fed."""
  return weights.describe() | {'arrays': hash_arrays(weights.params)}
