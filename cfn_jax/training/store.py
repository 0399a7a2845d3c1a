"""Sees before a run that its folder keeps what is saved there.

The checkpoint store loses what is saved under some paths without a word: it takes them as patterns,
or writes elsewhere. Those are refused; in any other folder a little is saved and read back.
"""

import fnmatch
import os
import pathlib
import shutil

import jax
import numpy as np
from jax.experimental import multihost_utils

from cfn_jax.training import checkpoint, store_errors

STEP = 10**9  # no step has a longer name


def check_path(workdir: pathlib.Path) -> None:
  """Refuses an absolute path that the store cannot keep, before a folder is made.

  Raises:
    CheckpointError: says which part of it.
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
          f'--workdir={workdir}: the checkpoint store loses what is saved under a path with {fault}'
          f" ('{part}'); take another --workdir"
        )


def check(workdir: pathlib.Path) -> None:
  """Saves a small array as runs save theirs, reads it back, and removes it; all hosts together.

  Raises:
    CheckpointError: it is not there, or something else is.
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
