"""The identity of a run: all fields of its config but those that change no figure.

A result is used again only if its identity is the same. Every field is part of it unless it is
shown to change no figure, so a new field is too. Images and weights count by their content, not by
their names. runs.py uses it for results, and the tasks of the evaluations for what a resumed run
may not change.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import ml_collections
import numpy as np

from cfn_jax import fields
from cfn_jax.transfer import weights as weights_lib

# Devices, hosts, processes, logging and checkpoints: they change no figure.
SPREAD = frozenset(
  {
    'checkpoint_every_steps',
    'compilation_cache_dir',
    'data.cache_dir',
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
# Names of tested weights and images: their content is part of the identity, see the tasks.
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
# Fields that only the final score depends on.
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
  """Returns the fields that can change training up to any step.

  A longer run continues a shorter one, unless its schedule depends on the number of steps.
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
  """Returns the parts of weights that can change a figure: arrays, network, input record."""
  return weights.describe() | {'arrays': hash_arrays(weights.params)}
