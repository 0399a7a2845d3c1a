"""Makes shards in several processes: the part of prepare.py that starts and ends them.

Processes are spawned, so nothing of the parent (locks, threads, a JAX runtime) is copied. They
leave when the parent does, in whatever way it ends.
"""

import contextlib
import multiprocessing
import os
import pathlib
import signal
import threading
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import process
from typing import Any

from cfn_jax.data import parent as parents
from cfn_jax.data import prepare_shard
from cfn_jax.data.prepare_shard import Settings
from cfn_jax.data.record import Source
from cfn_jax.errors import CfnError


class PrepareError(CfnError):
  """A run that cannot start or continue: what is wrong, and what would be right."""


# What the processes share with the one that started them; set in each by `_begin_worker`.
_worker: dict[str, Any] = {}


def _begin_worker(
  source: Source, out: pathlib.Path, settings: Settings, shared: Any, parent: int
) -> None:
  """Takes over what the processes share, and ends this one when its parent is gone.

  `parent` is passed and not asked for here: it may have been killed while this process started.
  """
  _worker.update(source=source, out=out, settings=settings, shared=shared)
  parents.end_with(parent)


def _make_in_worker(number: int, places: range) -> dict[str, Any]:
  counter, stop = _worker['shared']

  def after_each() -> bool:
    with counter.get_lock():
      counter.value += 1
    return stop.is_set()

  return prepare_shard.make_shard(
    _worker['source'],
    number,
    places,
    out=_worker['out'],
    settings=_worker['settings'],
    after_each=after_each,
  )


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
  """Holds Ctrl-C back here until the end, and for good in processes that are started within.

  They leave it to the parent, which tells them to stop. Ignoring it once they run would be too
  late: while they still import, it would end each with a traceback.
  """
  before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _interrupts_noted() -> Iterator[threading.Event]:
  """Notes Ctrl-C, instead of raising wherever the main thread is.

  `futures.wait` takes the locks of all futures: raised while it does, the exception would leave
  some of them locked, and the pool would wait for them for ever.
  """
  noted = threading.Event()
  here = threading.current_thread() is threading.main_thread()
  if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
    yield noted  # only the main thread has handlers; a job in the background ignores the signal
    return
  before = signal.signal(signal.SIGINT, lambda *_: noted.set())
  try:
    yield noted
  finally:
    signal.signal(signal.SIGINT, before)


def make_shards(
  source: Source,
  missing: dict[int, range],
  out: pathlib.Path,
  settings: Settings,
  workers: int,
  bar: Any,
) -> Iterator[dict[str, Any]]:
  """Makes shards in processes and yields their entries as they are finished.

  Raises:
    PrepareError: a process was killed.
    DiskFullError: there is no room.
    KeyboardInterrupt: after Ctrl-C, once the processes have stopped.
  """
  context = multiprocessing.get_context('spawn')
  counter, stop = context.Value('q', 0), context.Event()
  begin = _begin_worker, (source, out, settings, (counter, stop), os.getpid())
  with _interrupts_noted() as noted, futures.ProcessPoolExecutor(workers, context, *begin) as pool:
    with _interrupts_held_back():
      pending = {pool.submit(_make_in_worker, n, places) for n, places in missing.items()}
    shown = 0
    try:
      while pending:
        if noted.is_set():
          raise KeyboardInterrupt
        ready, pending = futures.wait(pending, 0.2, futures.FIRST_COMPLETED)
        count = counter.value
        bar.update(count - shown)
        shown = count
        for future in ready:
          yield future.result()
    except process.BrokenProcessPool:
      raise PrepareError(
        'a worker process was killed (out of memory?); finished shards are valid. Run the same '
        'command again, with fewer workers'
      ) from None
    finally:
      stop.set()
      pool.shutdown(wait=True, cancel_futures=True)


def make_here(
  source: Source, missing: dict[int, range], out: pathlib.Path, settings: Settings, bar: Any
) -> Iterator[dict[str, Any]]:
  def after_each() -> bool:
    bar.update()
    return False

  for number, places in missing.items():
    yield prepare_shard.make_shard(
      source, number, places, out=out, settings=settings, after_each=after_each
    )


def num_cores() -> int:
  """The cores that this process may use, which a job scheduler may have limited."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
