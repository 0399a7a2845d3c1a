"""Sees before a run that its folder keeps what is saved there: a little is saved and read back."""

import os
import pathlib
import shutil

import jax
import numpy as np

from cfn_jax.training import checkpoint, step_folders

STEP = 10**9  # no step has a longer name


def check(workdir: pathlib.Path) -> None:
  """Saves a small array as runs save theirs, reads it back, and removes it; all hosts together.

  Raises:
    CheckpointError: it is not there, or something else is.
  """
  several = jax.process_count() > 1
  probe = workdir / ('.probe' if several else f'.probe_{os.getpid()}')
  try:
    with checkpoint.Checkpoints(probe, keep_latest=1, keep_best=0, best='') as saver:
      saver.save(STEP, {'probe': np.arange(4, dtype=np.float32)}, {'fingerprint': {}}, {})
  except (checkpoint.CheckpointError, OSError) as error:
    raise checkpoint.CheckpointError(
      f'--workdir={workdir} keeps no checkpoint: it needs a disk that can be written, and a path '
      'without pairs of [ ], \\, **, bytes that are no UTF-8, a part that ends in gs:, or more '
      f'than 3,900 bytes ({step_folders.shorten(error)})'
    ) from error
  finally:
    shutil.rmtree(probe, ignore_errors=True)
