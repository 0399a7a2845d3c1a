"""Compares the size of a study's checkpoints with the free disk space."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Sequence

import ml_collections

from cfn_jax import fields
from cfn_jax.buckets import addresses
from cfn_jax.models import alexnet, trunk
from cfn_jax.studies import declaration, executions

ARRAY_BYTES = 4  # of each parameter, and of each value of the solver's state


def count_bytes(config: ml_collections.ConfigDict, parameters: int) -> int:
  """Returns the bytes of the checkpoints that a run keeps; 0 for one that trains nothing."""
  if 'solver' not in config:
    return 0
  arrays = 2 + (config.solver == 'adamw') + (config.ema_decay > 0)
  return ARRAY_BYTES * parameters * arrays * (config.keep_latest + config.keep_best)


def count_tested(config: ml_collections.ConfigDict, trained: ml_collections.ConfigDict) -> int:
  """Returns the number of parameters of all runs of an evaluation together.

  Only those that train AlexNet on labels count; the others are small.
  """
  values = fields.flatten(config)
  if 'views.view_px' not in values or 'model.fc7_features' not in values:
    return 0
  m, px = config.model, config.views.view_px
  network = alexnet.AlexNet(
    num_classes=1000,
    trunk=trunk.Trunk(stride=m.stride, width=trained.model.width),
    fc6_features=m.fc6_features,
    fc7_features=m.fc7_features,
  )
  runs = len(values.get('layers', (0,))) * (1 + values.get('baseline', False))
  return runs * alexnet.count_parameters(alexnet.parameter_shapes(network, (1, px, px, 3)))


def count_needed(left: Sequence[executions.Execution], workdir: pathlib.Path) -> int:
  """Returns the bytes still to write; a save is complete before its predecessor is deleted."""
  sizes = [each.checkpoint_bytes for each in left]
  held = [min(s, _count_held(workdir / e.name)) for s, e in zip(sizes, left, strict=True)]
  return sum(sizes) - sum(held) + max(sizes, default=0)


def _count_held(folder: pathlib.Path) -> int:
  """Returns the bytes of the checkpoints of an execution that was begun before."""
  held = 0
  for parent, _, names in os.walk(folder):
    for name in names if 'checkpoints' in pathlib.Path(parent).parts else ():
      with contextlib.suppress(OSError):  # a run that is under way deletes some
        held += os.stat(os.path.join(parent, name)).st_size  # noqa: PTH116, PTH118
  return held


def check(left: Sequence[executions.Execution], workdir: pathlib.Path) -> str:
  """Returns a line with the bytes of checkpoints and the free bytes.

  In a bucket the largest run counts alone: its local folder goes when it has been sent.

  Raises:
    StudyError: the disk is too small.
  """
  there = addresses.find(workdir)
  if there:
    left = sorted(left, key=lambda each: each.checkpoint_bytes)[-1:]
  needed = count_needed(left, workdir)
  folder = next(path for path in (workdir, *workdir.parents) if path.is_dir())
  free = shutil.disk_usage(folder).free
  told = f'{needed / 1e9:,.2f} GB for checkpoints, {free / 1e9:,.2f} GB are free'
  if needed > free:
    other = 'set XDG_CACHE_HOME to another disk' if there else 'name another --workdir'
    raise declaration.StudyError(
      f'{there or workdir}: too little disk: {told}; free some, {other}, or take fewer runs '
      '(--part, --runs, --seeds)'
    )
  return told
