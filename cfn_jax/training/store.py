"""Checks, before a run, that its folder keeps saved data.

The checkpoint store silently loses data under some paths: it interprets them as patterns, or writes
elsewhere. Those are refused. In any other folder a little is saved and read back.
"""

import fnmatch
import os
import pathlib
import shutil

import jax
import numpy as np
from jax.experimental import multihost_utils

from cfn_jax.buckets import addresses
from cfn_jax.training import checkpoint, store_errors

STEP = 10**9  # the longest name of a step


def check_path(workdir: pathlib.Path) -> None:
  """Refuses an absolute path that the store cannot keep, before a folder is made.

  Raises:
    CheckpointError: with the part that is refused.
  """
  for part in workdir.parts:
    faults = {
      'a backslash': '\\' in part,
      '**': '**' in part,
      'a pair of [ ]': not fnmatch.fnmatchcase(part, part),
      'bytes that are no UTF-8': not _is_text(part),
      'gs: at the end of a name': part.endswith('gs:'),
    }
    for fault, found in faults.items():
      if found:
        raise checkpoint.CheckpointError(
          f'--workdir={addresses.show(workdir)}: the checkpoint store loses what is saved under a '
          f"path with {fault} ('{part}'); take another --workdir"
        )


def check(workdir: pathlib.Path) -> None:
  """Saves a small array like a run's, reads it back, and removes it; all hosts together.

  Raises:
    CheckpointError: it is missing or different.
  """
  several = jax.process_count() > 1
  probe = workdir / ('.probe' if several else f'.probe_{os.getpid()}')
  try:
    with checkpoint.Checkpoints(probe, keep_latest=1, keep_best=0, best='') as saver:
      saver.save(
        STEP, {'probe': np.arange(4, dtype=np.float32)}, {'fingerprint': {}, 'config': {}}, {}
      )
    if several:  # the first host reads it back, and removes it when all are done
      multihost_utils.sync_global_devices('the store is checked')
  except (checkpoint.CheckpointError, OSError) as error:
    raise checkpoint.CheckpointError(
      f'--workdir={workdir} keeps no checkpoint ({store_errors.shorten(error)}): it needs a disk '
      'with room that can be written, and a path shorter than 3,900 bytes'
    ) from error
  finally:
    if jax.process_index() == 0:
      shutil.rmtree(probe, ignore_errors=True)


def _is_text(part: str) -> bool:
  try:
    return bool(part.encode())
  except UnicodeEncodeError:
    return False
