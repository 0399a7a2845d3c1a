"""Resizes a data set once and packs it into ArrayRecord shards, with all cores.

image files or a tar -> shards of small JPEGs and their index (array_records.py reads them). A run
can end at any moment, in any way; the same command resumes where it was, shard by shard. Settings
and sources are not mixed: `settings.json` holds them from the start, and they are compared.
"""

import errno
import fcntl
import functools
import hashlib
import json
import math
import multiprocessing
import os
import pathlib
import queue
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import process
from typing import Any, TextIO

import numpy as np

from cfn_jax import places, terminal
from cfn_jax.data import array_records, folder, label_lists, listing, prepare_shard, tar_source
from cfn_jax.data import parent as parents
from cfn_jax.data.record import SourceError
from cfn_jax.errors import CfnError

# A progress bar counts shards, and an interrupted run makes those under way again. A loader process
# keeps 256 of them open where it may open 1,024 files, as is usual.
_IMAGES_PER_SHARD = 256
_MOST_SHARDS = 256
_AGAIN = 'finished shards are valid; when that is mended, the same command resumes'

Make = Callable[[int, range], int]  # makes a shard, by its number and records; returns the number
_worker: dict[str, Make] = {}  # what makes shards in this process, where it is a worker


class PrepareError(CfnError):
  """A run that cannot start or continue: what is wrong, and what would be right."""


def prepare(
  *,
  source: str,
  out: str,
  short_side_px: int = 256,
  quality: int = 95,
  num_shards: int = 0,
  num_workers: int = 0,
  upsample: bool = False,
  verify: bool = False,
  labels: str = '',
  synsets: str = '',
) -> dict[str, Any]:
  """Prepares a folder or tar of images and returns the content of `index.json`.

  Arguments are those of the command line (cfn_jax/prepare.py says what each means). 0 shards are
  one per 256 images, 256 at most; 0 workers are one per core, 1 is none beside this process.

  Raises:
    SourceError: the source cannot be opened, or not be read on.
    PrepareError: settings are out of range or differ from an earlier run's, or disk or memory is
      full.
  """
  if min(short_side_px, num_shards, num_workers) < 0 or not 1 <= quality <= 100:
    raise PrepareError(
      f'short side {short_side_px}, quality {quality}, shards {num_shards}, workers {num_workers}: '
      'quality is 1..100, the others are not negative'
    )
  if upsample and not short_side_px:
    raise PrepareError('--upsample has no effect with --short-side=0, which leaves sizes alone')
  folder_out = places.local(out)
  try:
    _check_out(folder_out)
    opened = open_source(source, labels=labels, synsets=synsets)
    wanted = num_shards or min(_MOST_SHARDS, math.ceil(len(opened) / _IMAGES_PER_SHARD))
    settings = {
      'short_side_px': short_side_px,
      'quality': quality,
      'upsample': upsample,
      'num_shards': min(wanted, len(opened)),
    }
    stamp = opened.stamp()
    folder_out.mkdir(parents=True, exist_ok=True)
    with _lock(folder_out):
      _claim(folder_out, opened, stamp, settings)
      return _run(opened, folder_out, settings, num_workers, verify)
  except (MemoryError, process.BrokenProcessPool):
    raise PrepareError(
      'there is not enough memory, or a worker process was killed; finished shards are valid, and '
      'the same command with fewer workers resumes'
    ) from None
  except OSError as error:
    raise PrepareError(f'cannot write {out}: {error.strerror or error}; {_AGAIN}') from None


def open_source(source: str, *, labels: str = '', synsets: str = '') -> folder.NamedSource:
  """Opens a folder or a tar; a list of labels where folders name no classes.

  Raises:
    SourceError: what is wrong, where, and what would be right.
  """
  if synsets and not labels:
    raise SourceError(f'--synsets={synsets}: it says what the numbers in --labels mean; give both')
  path = places.local(source)
  opened: folder.NamedSource
  if os.path.isfile(path):  # noqa: PTH113  (never raises)
    opened = tar_source.open_tar(path)
  else:
    found = listing.list_images(path)
    opened = folder.labelled(path, found, folder.class_folders(found.names))
  if not labels:
    folder.warn_of_splits(path, opened.class_names)
    return opened
  if opened.class_names:
    raise SourceError(
      f'--labels={labels}: the images of {source} have classes already, their folders, such as '
      f'{opened.class_names[0]}; give the folder of the images itself, or no --labels'
    )
  order = places.local(synsets) if synsets else None
  opened.relabel(*label_lists.read_labels(list(opened.names), places.local(labels), order))
  return opened


def _check_out(out: pathlib.Path) -> None:
  """Refuses a folder that holds other files than those of a run."""
  if out.exists() and not out.is_dir():
    raise PrepareError(f'--out={out} is a file; it has to be a folder')
  if not out.exists() or (out / array_records.SETTINGS).is_file():
    return
  own = ('.lock', f'{array_records.SETTINGS}.')  # what a run leaves that is killed before it claims
  strange = sorted(path.name for path in out.iterdir() if not path.name.startswith(own))
  if strange:
    raise PrepareError(
      f'--out={out} holds other files (such as {strange[0]}) and no {array_records.SETTINGS} of an '
      'earlier run; give a new or empty folder'
    )


def _lock(out: pathlib.Path) -> TextIO:
  """Keeps a second run away from the folder as long as the file is open; it ends with a process."""
  file = (out / '.lock').open('w')
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise PrepareError(f'another run is writing to {out}') from None
  except OSError:
    pass  # a file system without locks
  return file


def _claim(
  out: pathlib.Path, source: folder.NamedSource, stamp: str, settings: dict[str, Any]
) -> None:
  """Writes what this folder is going to hold, or compares it with what it says."""
  stated = {
    'format': array_records.FORMAT,
    'version': array_records.VERSION,
    **settings,
    'num_images': len(source),
    'source': source.fingerprint,
    'files': stamp,
  }
  path = out / array_records.SETTINGS
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
    raise PrepareError(f'{path} is damaged; delete {out} and start again') from None
  if differing:
    raise PrepareError(
      f'{out} was begun with {", ".join(differing)}. Give the same source and settings, or another '
      '--out'
    )


def _run(
  source: folder.NamedSource,
  out: pathlib.Path,
  settings: dict[str, Any],
  num_workers: int,
  verify: bool,
) -> dict[str, Any]:
  """Makes the shards that are missing, then the index."""
  bounds = np.linspace(0, len(source), settings['num_shards'] + 1).astype(int).tolist()
  shards = dict(enumerate(map(range, bounds, bounds[1:])))
  checked = terminal.make_bar(shards, desc='verify', unit='shard', disable=not verify)
  missing = {n: shards[n] for n in checked if not _entry(out, n, verify=verify)}
  if missing:
    (out / array_records.INDEX).unlink(missing_ok=True)
  done = len(source) - sum(map(len, missing.values()))
  make = functools.partial(prepare_shard.make_shard, source, out, settings)
  try:
    with terminal.make_bar(total=len(source), initial=done, unit='image') as bar:
      _make_shards(make, missing, num_workers, lambda number: bar.update(len(missing[number])))
  finally:
    for leftover in out.glob('*.tmp'):  # of processes that were killed
      leftover.unlink(missing_ok=True)
  entries = [entry for n in shards if (entry := _entry(out, n))]
  skipped = [line for entry in entries for line in entry.pop('skipped')]
  if not any(entry['records'] for entry in entries):
    reason = f'{skipped[0]["name"]}: {skipped[0]["reason"]}'
    raise PrepareError(f'none of the {len(skipped)} files could be decoded, such as {reason}')
  skipped += source.left_out
  index = {
    'format': array_records.FORMAT,
    'version': array_records.VERSION,
    'settings': settings,
    'class_names': source.class_names,
    'num_records': sum(entry['records'] for entry in entries),
    'num_skipped': len(skipped),
    'checksum': hashlib.sha256(json.dumps([source.class_names, entries]).encode()).hexdigest(),
    'shards': entries,
    'skipped': skipped,
    'others': source.others._asdict(),
  }
  places.write_json(out / array_records.INDEX, index)
  return index


def _make_shards(
  make: Make, missing: dict[int, range], num_workers: int, finished: Callable[[int], Any]
) -> None:
  """Makes shards in several processes, or here where one is enough.

  The processes are spawned, so nothing of this one (locks, threads, a JAX runtime) is copied.
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
        worker.kill()  # or its shard would be waited for
      raise


def _begin_worker(parent: int, make: Make) -> None:
  """Takes over what makes shards, and ends this process when its parent is gone."""
  _worker['make'] = make
  parents.end_with(parent)


def _make_in_worker(number: int, places: range) -> int:
  return _worker['make'](number, places)


def _entry(out: pathlib.Path, number: int, *, verify: bool = False) -> dict[str, Any] | None:
  """What a finished shard's file says of it; None where the shard has to be made."""
  path = out / f'{array_records.shard_stem(number)}.array_record'
  try:
    stated = json.loads(path.with_suffix('.json').read_bytes())
    entry = {key: stated[key] for key in ('number', 'records', 'bytes', 'sha256', 'skipped')}
    if entry['records'] and path.stat().st_size != entry['bytes']:
      return None
    if verify and entry['records'] and prepare_shard.digest(path) != entry['sha256']:
      raise OSError(errno.EIO, 'its SHA-256 differs')
    return entry
  except (FileNotFoundError, ValueError, KeyError, TypeError):
    return None
  except OSError as error:
    terminal.say(f'warning: shard {number} ({path}) is damaged: {error.strerror}; it is made again')
    return None
