"""Measures what saving costs a run, on a disk or in a bucket: with the state of a config.

    python -m cfn_jax.benchmark saving --workdir=DIR [--config=cfn] [--saves=5]

Prints the state's bytes, the median seconds for which a save holds up the loop, those until the
step is whole and safe, and those of reading one on a host that holds nothing of it. All that is
written lies in a new folder of the workdir, and is deleted.
"""

import argparse
import contextlib
import shutil
import time
import uuid
from collections.abc import Iterator
from typing import Any

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
import jax
import numpy as np

from cfn_jax import arguments as command_lines
from cfn_jax import command, places
from cfn_jax.buckets import addresses, objects
from cfn_jax.timing import steps
from cfn_jax.training import checkpoint, devices, mirror, settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options of this part."""
  add = parser.add_argument
  add('--workdir', action='source', required=True, help='folder on a disk, or gs://BUCKET/PATH')
  add('--config', default='cfn', help='NAME or FILE.py, with :VARIANT (default: the paper)')
  add('--saves', type=int, default=5, help='saves that are timed, after a first one (default 5)')


def run(arguments: argparse.Namespace) -> dict[str, Any]:
  """Times the saves; returns the figures of the JSON line.

  Raises:
    CfnError: nothing can be saved there.
  """
  command_lines.check_numbers(arguments, {'saves': (1, 1000)})
  config = command.load_config(arguments.config, tasks=steps.TRAINED)
  devices.check_platform()
  with _folder(arguments.workdir) as where:
    task, _ = steps.make(config)
    state, _ = settings.start(task, config, devices.make_mesh(config.num_devices))
    meta = {'fingerprint': {}, 'config': config.to_dict()}
    held_up, whole = [], []
    with mirror.opened(mirror.resolve(where, '--workdir')) as workdir, _open(workdir) as saver:
      for step in range(1 + arguments.saves):
        began = time.perf_counter()
        saver.save(step, state, meta, {'score': step})
        held_up.append(time.perf_counter() - began)
        saver.wait()
        whole.append(time.perf_counter() - began)
    with mirror.opened(mirror.resolve(where, '--workdir')) as workdir, _open(workdir) as saver:
      began = time.perf_counter()
      saver.restore(arguments.saves, state)
      read = time.perf_counter() - began
  return {
    'workdir': arguments.workdir,
    'state_bytes': sum(leaf.nbytes for leaf in jax.tree.leaves(state)),
    'held_up_seconds': float(np.median(held_up[1:])),  # the first is read back at once
    'held_up_seconds_longest': max(held_up[1:]),
    'whole_seconds': float(np.median(whole[1:])),
    'read_seconds': read,
  }


def _open(workdir: Any) -> checkpoint.Checkpoints:
  return checkpoint.Checkpoints(workdir, keep_latest=2, keep_best=1, best='score')


@contextlib.contextmanager
def _folder(workdir: str) -> Iterator[str]:
  """Yields the name of a new folder in a workdir; deletes what is written there."""
  name = f'saving_{uuid.uuid4().hex}'
  if not places.is_address(workdir):
    folder = places.resolve(workdir, '--workdir') / name
    places.make_folder(folder, '--workdir')
    try:
      yield str(folder)
    finally:
      shutil.rmtree(folder, ignore_errors=True)
    return
  address = addresses.parse(workdir, '--workdir') / name
  try:
    yield str(address)
  finally:
    store = objects.Objects(address, patience=0.0)
    for found in store.find(f'{address.path}/'):
      store.delete(found.name)
