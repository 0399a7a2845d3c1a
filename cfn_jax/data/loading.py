"""Runs a function over the numbers of batches, in Grain's threads or in loader processes.

Results do not depend on how the function is run. Loader processes live as long as their parent
needs them. This module starts no JAX backend.
"""

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import pathlib
import shutil
import signal
import sys
from collections.abc import Callable, Generator
from typing import TypeVar

from absl import flags

from cfn_jax.data import parent as parents
from cfn_jax.errors import CfnError

Made = TypeVar('Made')

SHARED_MEMORY = pathlib.Path('/dev/shm')


class LoadingError(CfnError):
  """Batches cannot be loaded in the requested way; the message has the remedy."""


@dataclasses.dataclass(frozen=True)
class Loading:
  """How batches are loaded; it does not change their contents.

  Attributes:
    num_workers: number of loader processes; 0 loads in threads of this process.
    num_threads: number of reading threads in each process.
    read_ahead_batches: number of batches that each process holds ready.
    host: number of this host; `hosts` share each batch.
  """

  num_workers: int = 0
  num_threads: int = 1
  read_ahead_batches: int = 2
  host: int = 0
  hosts: int = 1

  def __post_init__(self) -> None:
    for name, least in (('num_workers', 0), ('num_threads', 1), ('read_ahead_batches', 1)):
      if getattr(self, name) < least:
        raise CfnError(f'data.{name} = {getattr(self, name)}: at least {least}')

  def rows(self, batch_size: int) -> range:
    """Returns this host's rows of each batch."""
    if batch_size % self.hosts:
      raise CfnError(f'a batch of {batch_size} cannot be shared by {self.hosts} hosts equally')
    share = batch_size // self.hosts
    return range(self.host * share, (self.host + 1) * share)


def run_over(
  numbers: range, make: Callable[[int], Made], loading: Loading, *, bytes_each: int
) -> Generator[Made, None, None]:
  """Yields `make(number)` for each number in order; `make` must pickle.

  Args:
    bytes_each: size of one result, for the check of the shared memory.

  Raises:
    LoadingError: processes cannot be started from here, or their batches do not fit.
  """
  import grain

  _mark_grain_flags()
  elements = grain.MapDataset.range(numbers.start, numbers.stop).map(make)
  read = grain.ReadOptions(
    num_threads=loading.num_threads, prefetch_buffer_size=loading.read_ahead_batches
  )
  dataset = elements.to_iter_dataset(read)
  workers = min(loading.num_workers, len(numbers))
  if workers:
    check_main_module()
    check_shared_memory(workers, loading.read_ahead_batches, bytes_each)
    options = grain.MultiprocessingOptions(
      num_workers=workers, per_worker_buffer_size=loading.read_ahead_batches
    )
    start = functools.partial(_start_worker, os.getpid())
    dataset = dataset.mp_prefetch(options, worker_init_fn=start)
  iterator = iter(dataset)
  try:
    with parents.deaf_children() if workers else contextlib.nullcontext():
      first = next(iterator, None)  # starts the processes
    if first is not None:
      yield first
      yield from iterator
  finally:
    iterator.close()


def check_main_module() -> None:
  """Raises LoadingError if the processes cannot import the program that starts them."""
  main = sys.modules['__main__']
  if getattr(multiprocessing.current_process(), '_inheriting', False):
    raise LoadingError(
      f'{getattr(main, "__file__", "the program")} starts loader processes while one of them '
      "imports it: put what it does under  if __name__ == '__main__':"
    )
  file = getattr(main, '__file__', None)
  if file is not None and not pathlib.Path(file).exists():
    raise LoadingError(
      f'loader processes cannot import a program that is no file ({file}): save it as a file, or '
      'set data.num_workers = 0'
    )


def check_shared_memory(workers: int, read_ahead: int, bytes_each: int) -> None:
  """Raises LoadingError if the batches on their way do not fit into the shared memory.

  Each process holds `read_ahead` batches ready and makes one more; one is being consumed.
  """
  if not SHARED_MEMORY.exists():
    return
  needed = (workers * (read_ahead + 2) + 1) * bytes_each
  free = shutil.disk_usage(SHARED_MEMORY).free
  if needed > free:
    raise LoadingError(
      f'{SHARED_MEMORY} has {free >> 20} MB free, and the batches of {workers} loader processes '
      f'need up to {needed >> 20} MB: take fewer data.num_workers (0 needs none), a smaller '
      'data.read_ahead_batches, or give it more room (docker run --shm-size)'
    )


def _start_worker(parent: int, *_: int) -> None:
  """Ties a loader process to its parent, which may have ended already.

  The process ignores the signals that a terminal or a scheduler sends to both, since the parent may
  still be saving. It ends within a second of the parent's end, whatever its cause.
  """
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  parents.end_with(parent)


def _mark_grain_flags() -> None:
  """Lets Grain read its flags if absl never parsed any: in pytest, notebooks and scripts."""
  if not flags.FLAGS.is_parsed():
    for name in flags.FLAGS:
      if name.startswith('grain_'):
        flags.FLAGS[name].present = 1
