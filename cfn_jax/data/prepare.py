"""Resizes a data set once and packs it into ArrayRecord shards, with all cores.

image files or a tar -> shards of small JPEGs and their index (array_records.py reads them). A run
can end at any moment, in any way; the same command resumes where it was, shard by shard. Settings
and sources are not mixed: `settings.json` holds them from the start, and they are compared.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np

from cfn_jax import places, terminal
from cfn_jax.data import array_records, prepare_pool, prepare_shard, prepare_source
from cfn_jax.data.folder import NamedSource
from cfn_jax.data.prepare_pool import PrepareError
from cfn_jax.data.prepare_shard import Settings, write_json
from cfn_jax.data.record import Source

# Shards are what an interrupted run does again, and files that loader processes open.
_IMAGES_PER_SHARD = 2048
_MOST_SHARDS = 512


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

  Args:
    source: a folder of images, or a tar file.
    out: the folder to write, new or from an earlier run with these settings.
    short_side_px: larger images are resized to this; 0 leaves all as they are.
    quality: of the JPEGs, 1..100.
    num_shards: 0 for one per 2,048 images, 512 at most.
    num_workers: processes; 0 for one per core, 1 for none beside this one.
    upsample: resizes smaller images too.
    verify: reads all finished shards again, and remakes those whose SHA-256 differs.
    labels: a file that says the images' classes (label_lists.py); '': their folders say it.
    synsets: the order of the classes that the numbers in `labels` count; '': none.

  Raises:
    SourceError: the source cannot be opened, or not be read on.
    PrepareError: settings are out of range or differ from an earlier run's, or disk or memory is
      full.
  """
  if short_side_px < 0 or num_shards < 0 or num_workers < 0 or not 1 <= quality <= 100:
    raise PrepareError(
      f'short side {short_side_px}, quality {quality}, shards {num_shards}, workers {num_workers}: '
      'quality is 1..100, the others are not negative'
    )
  if upsample and not short_side_px:
    raise PrepareError('--upsample has no effect with --short-side=0, which leaves sizes alone')
  folder_out = places.local(out)
  _check_out(folder_out)
  opened = prepare_source.open_source(source, labels=labels, synsets=synsets)
  stamp = opened.stamp()
  wanted = num_shards or min(_MOST_SHARDS, math.ceil(len(opened) / _IMAGES_PER_SHARD))
  settings = Settings(short_side_px, quality, upsample, min(wanted, len(opened)))
  try:
    folder_out.mkdir(parents=True, exist_ok=True)
    with _only_run(folder_out):
      _claim(folder_out, opened, stamp, settings)
      return _run(opened, folder_out, settings, num_workers, verify)
  except prepare_shard.DiskFullError as error:
    raise PrepareError(_disk_full(folder_out, len(opened), settings, error)) from None
  except MemoryError:
    raise PrepareError(
      'there is not enough memory; finished shards are valid. Run the same command again, '
      'with fewer workers'
    ) from None
  except OSError as error:
    raise PrepareError(f'cannot write {folder_out}: {error.strerror or error}') from None


def _check_out(out: pathlib.Path) -> None:
  try:
    is_file = out.exists() and not out.is_dir()
  except OSError as error:  # a name that is too long, a folder that is closed
    raise PrepareError(f'--out={out} cannot be looked at: {error.strerror}') from None
  if is_file:
    raise PrepareError(f'--out={out} is a file; it has to be a folder')
  if not out.is_dir() or (out / array_records.SETTINGS).is_file():
    return
  own = {'.lock', *(p.name for p in _leftovers(out))}
  strange = sorted(p.name for p in out.iterdir() if p.name not in own)
  if strange:
    raise PrepareError(
      f'--out={out} holds other files (such as {strange[0]}) and no {array_records.SETTINGS} of an '
      'earlier run; give a new or empty folder'
    )


def _leftovers(out: pathlib.Path) -> list[pathlib.Path]:
  """Files that a killed run had not finished."""
  patterns = ('shard-*.tmp', f'{array_records.SETTINGS}.*.tmp', f'{array_records.INDEX}.*.tmp')
  return [path for pattern in patterns for path in out.glob(pattern)]


def _claim(out: pathlib.Path, source: Source, stamp: str, settings: Settings) -> None:
  """Writes what this folder is going to hold, or compares it with what it says."""
  stated = {
    'format': array_records.FORMAT,
    'version': array_records.VERSION,
    **dataclasses.asdict(settings),
    'num_images': len(source),
    'source': source.fingerprint,
    'files': stamp,
  }
  path = out / array_records.SETTINGS
  if not path.is_file():
    write_json(path, stated)
    return
  try:
    earlier = json.loads(path.read_bytes())
    differing = [key for key in stated if earlier.get(key) != stated[key]]
  except (ValueError, AttributeError, TypeError):
    raise PrepareError(f'{path} is damaged; delete {out} and start again') from None
  if set(differing) <= {'source', 'files'} and 'source' in differing:
    raise PrepareError(f'the images or their labels are not those that {out} was begun with')
  if differing == ['files']:
    raise PrepareError(
      f'the source has files of the names that {out} was begun with, but of other sizes or '
      'modification times. Give the same source, or another --out'
    )
  if differing:
    hidden = ('source', 'files')
    now = ', '.join(f'{key} = {stated[key]}' for key in differing if key not in hidden)
    then = ', '.join(f'{key} = {earlier.get(key)}' for key in differing if key not in hidden)
    raise PrepareError(
      f'{out} was begun with {then}; this run has {now}. Give the same settings, or another --out'
    )


def _run(
  source: NamedSource,
  out: pathlib.Path,
  settings: Settings,
  num_workers: int,
  verify: bool,
) -> dict[str, Any]:
  """Makes the shards that are missing, then the index."""
  bounds = np.linspace(0, len(source), settings.num_shards + 1).astype(int).tolist()
  shards = {n: range(bounds[n], bounds[n + 1]) for n in range(settings.num_shards)}
  entries = {n: entry for n in shards if (entry := _finished(out, n)) is not None}
  if verify:
    entries = _verified(out, entries)
  missing = {n: rows for n, rows in shards.items() if n not in entries}
  for leftover in _leftovers(out):
    leftover.unlink(missing_ok=True)
  if missing:
    (out / array_records.INDEX).unlink(missing_ok=True)
  done = len(source) - sum(map(len, missing.values()))
  with terminal.make_bar(total=len(source), initial=done, unit='image') as bar:
    workers = min(num_workers or prepare_pool.num_cores(), len(missing))
    if workers > 1:
      made = prepare_pool.make_shards(source, missing, out, settings, workers, bar)
    else:
      made = prepare_pool.make_here(source, missing, out, settings, bar)
    for entry in made:
      entries[entry['number']] = entry
  return _write_index(out, [entries[n] for n in sorted(entries)], source, settings)


def _finished(out: pathlib.Path, number: int) -> dict[str, Any] | None:
  """What a finished shard's entry says; None where it has to be made."""
  stem = out / array_records.shard_stem(number)
  try:
    entry = json.loads(stem.with_suffix('.json').read_bytes())
    if entry['records'] and stem.with_suffix('.array_record').stat().st_size != entry['bytes']:
      return None
    return {key: entry[key] for key in ('number', 'records', 'bytes', 'sha256', 'skipped')}
  except (OSError, ValueError, KeyError, TypeError):
    return None


def _verified(out: pathlib.Path, entries: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
  """The entries whose shards have the SHA-256 that they state; names the others."""
  sound = {}
  bar = terminal.make_bar(entries.items(), desc='verify', unit='shard')
  for number, entry in bar:
    path = out / f'{array_records.shard_stem(number)}.array_record'
    digest, reason = hashlib.sha256(), 'is damaged: its SHA-256 differs'
    if entry['records']:
      try:
        with path.open('rb') as file:
          digest = hashlib.file_digest(file, 'sha256')
      except OSError as error:
        reason = f'cannot be read ({error.strerror})'
    if digest.hexdigest() == entry['sha256']:
      sound[number] = entry
    else:
      terminal.say(f'warning: shard {number} ({path}) {reason}; it is made again')
  return sound


def _write_index(
  out: pathlib.Path,
  entries: list[dict[str, Any]],
  source: NamedSource,
  settings: Settings,
) -> dict[str, Any]:
  class_names = source.class_names
  skipped = [line for entry in entries for line in entry['skipped']]
  shards = [{k: e[k] for k in ('number', 'records', 'bytes', 'sha256')} for e in entries]
  if not any(shard['records'] for shard in shards):
    reason = f'{skipped[0]["name"]}: {skipped[0]["reason"]}'
    raise PrepareError(f'none of the {len(skipped)} files could be decoded, such as {reason}')
  skipped += source.left_out
  index = {
    'format': array_records.FORMAT,
    'version': array_records.VERSION,
    'settings': dataclasses.asdict(settings),
    'class_names': class_names,
    'num_records': sum(shard['records'] for shard in shards),
    'num_skipped': len(skipped),
    'checksum': hashlib.sha256(json.dumps([class_names, shards]).encode()).hexdigest(),
    'shards': shards,
    'skipped': skipped,
    'others': source.others._asdict(),
  }
  write_json(out / array_records.INDEX, index)
  return index


@contextlib.contextmanager
def _only_run(out: pathlib.Path) -> Iterator[None]:
  """Keeps a second run away from the folder; the lock ends with the process."""
  with (out / '.lock').open('w') as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise PrepareError(f'another run is writing to {out}') from None
    except OSError:
      pass  # a file system without locks
    yield


def _disk_full(
  out: pathlib.Path, num_images: int, settings: Settings, error: prepare_shard.DiskFullError
) -> str:
  """Says what is finished, and estimates what is missing from the images written so far."""
  entries = [e for n in range(settings.num_shards) if (e := _finished(out, n)) is not None]
  seen = sum(e['records'] + len(e['skipped']) for e in entries)
  images = seen + error.num_images
  size = sum(e['bytes'] for e in entries) + error.num_bytes
  free = shutil.disk_usage(out).free
  needed = 'an unknown amount' if not images else _bytes(size / images * (num_images - seen))
  return (
    f'the disk of {out} is full: {len(entries)} of {settings.num_shards} shards are finished and '
    f'valid; the rest needs about {needed}, {_bytes(free)} is free. Make room and run the same '
    'command again'
  )


def _bytes(count: float) -> str:
  """Writes a number of bytes for people.

  >>> _bytes(2_340_000_000), _bytes(900)
  ('2.3 GB', '0.9 kB')
  """
  for unit, size in (('GB', 1e9), ('MB', 1e6)):
    if count >= size:
      return f'{count / size:.1f} {unit}'
  return f'{count / 1e3:.1f} kB'
