"""Resizes a data set once and packs it into ArrayRecord shards, with all cores.

image files or a tar -> shards of small JPEGs and their index, which array_records.py reads. A run
can end at any moment, for any reason; the same command resumes at the next shard. Settings and
sources are not mixed: `settings.json` holds them from the start, and they are compared.
"""

import errno
import functools
import hashlib
import json
import math
import os
import pathlib
from typing import Any

import numpy as np

from cfn_jax import places, terminal
from cfn_jax.data import (
  array_records,
  folder,
  label_lists,
  listing,
  parts,
  prepare_shard,
  tar_source,
)
from cfn_jax.data.parts import PrepareError
from cfn_jax.data.record import SourceError

__all__ = ['PrepareError', 'open_source', 'prepare']

# The progress bar counts shards, and an interrupted run repeats those under way. A loader process
# keeps 256 shards open if it may open 1,024 files, the usual limit.
_IMAGES_PER_SHARD = 256
_MOST_SHARDS = 256


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

  The arguments are those of the command line, see cfn_jax/prepare.py. 0 shards mean one per 256
  images, at most 256. 0 workers mean one per core, 1 means only this process.

  Raises:
    SourceError: the source cannot be opened or read.
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
  with parts.guard(out, 'shards'):
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
    with parts.lock(folder_out):
      _claim(folder_out, opened, stamp, settings)
      return _run(opened, folder_out, settings, num_workers, verify)


def open_source(source: str, *, labels: str = '', synsets: str = '') -> folder.NamedSource:
  """Opens a folder or a tar, with a list of labels if there are no class folders.

  Raises:
    SourceError: with the fault, its place and the remedy.
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
  """Refuses a folder that holds files of anything but a run."""
  if out.exists() and not out.is_dir():
    raise PrepareError(f'--out={out} is a file; it has to be a folder')
  if not out.exists() or (out / array_records.SETTINGS).is_file():
    return
  own = ('.lock', f'{array_records.SETTINGS}.')  # left by a run that was killed before its claim
  strange = sorted(path.name for path in out.iterdir() if not path.name.startswith(own))
  if strange:
    raise PrepareError(
      f'--out={out} holds other files (such as {strange[0]}) and no {array_records.SETTINGS} of an '
      'earlier run; give a new or empty folder'
    )


def _claim(
  out: pathlib.Path, source: folder.NamedSource, stamp: str, settings: dict[str, Any]
) -> None:
  """Writes what this folder will hold, or compares it with an earlier run."""
  stated = {
    'format': array_records.FORMAT,
    'version': array_records.VERSION,
    **settings,
    'num_images': len(source),
    'source': source.fingerprint,
    'files': stamp,
  }
  parts.claim(out / array_records.SETTINGS, stated)


def _run(
  source: folder.NamedSource,
  out: pathlib.Path,
  settings: dict[str, Any],
  num_workers: int,
  verify: bool,
) -> dict[str, Any]:
  """Makes the missing shards, then the index."""
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
      parts.make_parts(make, missing, num_workers, lambda number: bar.update(len(missing[number])))
  finally:
    for leftover in out.glob('*.tmp'):  # left by killed processes
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


def _entry(out: pathlib.Path, number: int, *, verify: bool = False) -> dict[str, Any] | None:
  """Returns the index entry of a finished shard; None if the shard must be made."""
  path = out / f'{array_records.shard_stem(number)}.array_record'
  try:
    columns = path.with_suffix('.json').read_bytes()
    stated = json.loads(columns)
    entry = {key: stated[key] for key in ('number', 'records', 'bytes', 'sha256', 'skipped')}
    entry['columns_sha256'] = hashlib.sha256(columns).hexdigest()  # of its names and labels
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
