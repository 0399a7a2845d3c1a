"""Long work in parts, by several processes: each part is kept, and a later run resumes.

A run can end at any moment, for any reason; the same command resumes. A file states from the start
what a folder will hold, and a run with other settings or images is refused. Used by prepare.py and
prepare_proposals.py.
"""

import contextlib
import fcntl
import json
import multiprocessing
import os
import pathlib
import queue
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import process
from typing import Any, TextIO

from cfn_jax import places
from cfn_jax.data import parent as parents
from cfn_jax.errors import CfnError

Make = Callable[[int, range], int]  # makes a part of some records; returns its number
_worker: dict[str, Make] = {}  # the function that makes parts in this process, if it is a worker


class PrepareError(CfnError):
  """A run that cannot start or continue, with the fault and the remedy."""


@contextlib.contextmanager
def guard(out: str, parts: str) -> Iterator[None]:
  """Adds to an error of disk or memory that finished parts are kept; `parts`: their name."""
  try:
    yield
  except (MemoryError, process.BrokenProcessPool):
    raise PrepareError(
      f'there is not enough memory, or a worker process was killed; finished {parts} are valid, '
      'and the same command with fewer workers resumes'
    ) from None
  except OSError as error:
    raise PrepareError(
      f'cannot write {out}: {error.strerror or error}; finished {parts} are valid; when that is '
      'mended, the same command resumes'
    ) from None


def lock(out: pathlib.Path) -> TextIO:
  """Locks the folder against a second run while the file is open, or the process runs."""
  file = (out / '.lock').open('w')
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise PrepareError(f'another run is writing to {out}') from None
  except OSError:
    pass  # a file system without locks
  return file


def claim(path: pathlib.Path, stated: dict[str, Any]) -> None:
  """Writes what a folder will hold, or compares it with the file of an earlier run.

  Args:
    stated: settings by name; `source` and `files` are digests of the images' names and files.
  """
  if not path.is_file():
    places.write_json(path, stated)
    return
  try:
    earlier = json.loads(path.read_bytes())
    hidden = {
      'source': 'images of other names, labels or sizes',
      'files': 'files of other sizes or modification times',
    }
    told = {key: hidden.get(key, f'{key} = {earlier.get(key)}') for key in stated}
    differing = [told[key] for key in stated if earlier.get(key) != stated[key]]
  except (ValueError, AttributeError):
    raise PrepareError(f'{path} is damaged; delete {path.parent} and start again') from None
  if differing:
    raise PrepareError(
      f'{path.parent} was begun with {", ".join(differing)}. Give the same source and settings, or '
      'another --out'
    )


def make_parts(
  make: Make, missing: dict[int, range], num_workers: int, finished: Callable[[int], Any]
) -> None:
  """Makes parts in several processes, or in this one if one is enough.

  The processes are spawned, so no locks, threads or JAX runtime of this one are copied.
  """
  cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
  workers = min(num_workers or cores or 1, len(missing))
  if workers < 2:
    for job in missing.items():
      finished(make(*job))
    return
  others = set(multiprocessing.active_children())
  begin: Any = (multiprocessing.get_context('spawn'), _begin_worker, (os.getpid(), make))
  # Not `futures.wait`: it takes the locks of all futures, and Ctrl-C would leave some locked.
  done: queue.SimpleQueue[futures.Future[int]] = queue.SimpleQueue()
  with futures.ProcessPoolExecutor(workers, *begin) as pool:
    try:
      with parents.deaf_children():
        for job in missing.items():
          pool.submit(_make_in_worker, *job).add_done_callback(done.put)
      for _ in missing:
        finished(done.get().result())
    except BaseException:
      for worker in set(multiprocessing.active_children()) - others:
        worker.kill()  # or the exit would wait for its part
      raise


def _begin_worker(parent: int, make: Make) -> None:
  """Sets the function that makes parts; ends this process when its parent ends."""
  _worker['make'] = make
  parents.end_with(parent)


def _make_in_worker(number: int, places: range) -> int:
  return _worker['make'](number, places)
