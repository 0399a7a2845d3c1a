"""Lists the image files of a folder, once, and remembers the list.

Used by folder.py. Nothing is opened but the folders themselves. The list is cached outside the data
(which may be read-only), by the folder's absolute path. It is used again while every folder in it
still has the same modification time, which adding, removing or renaming a file changes; that costs
one `stat` per folder, not per file. Where a file system does not keep these times (some bucket
mounts), ask for a refresh.
"""

import errno
import hashlib
import itertools
import json
import logging
import os
import pathlib
import tempfile
import time
from collections.abc import Iterable, Iterator

import numpy as np

from cfn_jax.data.record import SourceError

SUFFIXES = ('.jpg', '.jpeg', '.png', '.webp', '.gif', '.bmp', '.tif', '.tiff')
_VERSION = 1
# A folder that changed this shortly before it was listed may change again in the same clock tick.
_SETTLED_SECONDS = 2.0

_log = logging.getLogger(__name__)


class Names:
  """A long list of strings in two flat buffers, so that a million pickle in milliseconds.

  >>> names = Names.of(['b/1.jpg', 'a.jpg'])
  >>> len(names), names[1], list(names)
  (2, 'a.jpg', ['b/1.jpg', 'a.jpg'])
  """

  def __init__(self, blob: bytes) -> None:
    self.blob = blob  # each name followed by a zero byte, which no file name holds
    zeros = np.flatnonzero(np.frombuffer(blob, np.uint8) == 0)
    self._ends = np.concatenate([np.full(1, -1, np.int64), zeros])

  @classmethod
  def of(cls, names: Iterable[str]) -> 'Names':
    return cls(b''.join(os.fsencode(name) + b'\0' for name in names))

  def __len__(self) -> int:
    return len(self._ends) - 1

  def __getitem__(self, index: int) -> str:
    return os.fsdecode(self.blob[self._ends[index] + 1 : self._ends[index + 1]])

  def __iter__(self) -> Iterator[str]:
    return map(os.fsdecode, self.encoded())

  def encoded(self) -> list[bytes]:
    """All names as the file system spells them."""
    return self.blob.split(b'\0')[:-1]

  def where(self, chosen: np.ndarray) -> 'Names':
    """The names where `chosen`, bool [number of names], is set."""
    kept = itertools.compress(self.encoded(), chosen.tolist())
    return Names(b''.join(name + b'\0' for name in kept))

  def __repr__(self) -> str:
    return f'Names({len(self)})'


def list_images(root: pathlib.Path, *, cache_dir: str = '', refresh: bool = False) -> Names:
  """Lists the images under `root` as sorted relative paths, from the cache where that still holds.

  Raises:
    SourceError: `root` is missing, not a folder, unreadable, or holds no image.
  """
  root = pathlib.Path(os.path.abspath(root))  # noqa: PTH100  (resolve() would follow links)
  cache = _cache_path(root, cache_dir)
  names = None if refresh else _read_cache(cache, root)
  if names is None:
    started = time.time()
    names, folders = scan_images(root)
    if all(mtime < (started - _SETTLED_SECONDS) * 1e9 for mtime in folders.values()):
      _write_cache(cache, root, names, folders)
  return names


def scan_images(root: pathlib.Path) -> tuple[Names, dict[str, int]]:
  """Lists as `list_images` does, without the cache; also gives each folder's modification time."""
  _check_folder(root)
  found, folders, others = _walk(root)
  if not found:
    raise SourceError(_no_images(root, others))
  return Names.of(sorted(found)), folders


def _check_folder(root: pathlib.Path) -> None:
  if not os.path.exists(root):  # noqa: PTH110  (the method raises where a parent is unreadable)
    parent = next(p for p in root.absolute().parents if os.path.exists(p))  # noqa: PTH110
    raise SourceError(f'there is no folder {root} (what exists of that path: {parent})')
  if not root.is_dir():
    raise SourceError(f'{root} is a file, not a folder; data.root names a folder of images')


def _no_images(root: pathlib.Path, others: list[str]) -> str:
  if not others:
    return f'the folder {root} is empty; it should hold images ({" ".join(SUFFIXES)})'
  return (
    f'no images in {root}: none of its {len(others):,} files (such as {others[0]}) ends in '
    f'{" ".join(SUFFIXES)}'
  )


def _walk(root: pathlib.Path) -> tuple[list[str], dict[str, int], list[str]]:
  """Finds images, the folders with their modification times in ns, and other files.

  Each real folder is listed once, whatever links lead to it, so loops end and no image comes twice.
  Links to folders are followed after everything that is really there.
  """
  found: list[str] = []
  others: list[str] = []
  folders: dict[str, int] = {}
  seen: set[tuple[int, int]] = set()
  pending: list[str] = ['']
  links: list[str] = []
  while pending or links:
    if pending:
      folder = pending.pop()
    else:
      links.sort()
      folder = links.pop(0)
    try:
      status = (root / folder).stat()
      if (status.st_dev, status.st_ino) in seen:
        continue
      seen.add((status.st_dev, status.st_ino))
      folders[folder] = status.st_mtime_ns
      with os.scandir(root / folder) as entries:
        for entry in entries:
          name = f'{folder}/{entry.name}' if folder else entry.name
          if entry.name.startswith('.') or entry.name == '__MACOSX':
            continue
          if _is_folder(entry):
            (links if entry.is_symlink() else pending).append(name)
          elif not entry.name.lower().endswith(SUFFIXES):
            others.append(name)
          elif entry.is_symlink() or entry.is_file():  # a dead link is a bad image, not no image
            found.append(name)
    except OSError as error:
      raise SourceError(f'cannot list {root / folder}: {error.strerror}') from None
  return found, folders, others


def _is_folder(entry: os.DirEntry[str]) -> bool:
  """Whether an entry is a folder or leads to one; a link that leads nowhere is none."""
  try:
    return entry.is_dir()
  except OSError as error:
    nowhere = error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG)
    if nowhere or (error.errno == errno.EACCES and entry.name.lower().endswith(SUFFIXES)):
      return False
    raise


def _cache_path(root: pathlib.Path, cache_dir: str) -> pathlib.Path:
  base = pathlib.Path(cache_dir).expanduser() if cache_dir else default_cache_dir()
  return base / f'{hashlib.sha256(os.fsencode(root)).hexdigest()[:24]}.listing'


def default_cache_dir() -> pathlib.Path:
  """The user's cache folder: `$XDG_CACHE_HOME/cfn_jax/listings`, or under `~/.cache`."""
  base = os.environ.get('XDG_CACHE_HOME', '')
  return (pathlib.Path(base) if base else pathlib.Path.home() / '.cache') / 'cfn_jax' / 'listings'


def _read_cache(cache: pathlib.Path, root: pathlib.Path) -> Names | None:
  """The cached names, or None where there are none or a folder has changed."""
  try:
    head, _, body = cache.read_bytes().partition(b'\n')
    stated = json.loads(head)
    if stated['version'] != _VERSION or stated['bytes'] != len(body):
      return None
    if stated['root'] != str(root) or stated['suffixes'] != list(SUFFIXES):
      return None
    for folder, mtime in stated['folders'].items():
      if (root / folder).stat().st_mtime_ns != mtime:
        return None
  except (OSError, ValueError, KeyError, TypeError):
    return None
  return Names(body)


def _write_cache(
  cache: pathlib.Path, root: pathlib.Path, names: Names, folders: dict[str, int]
) -> None:
  """Writes the cache in one step; a cache folder that cannot be written is no error."""
  head = {
    'version': _VERSION,
    'root': str(root),
    'suffixes': SUFFIXES,
    'bytes': len(names.blob),
    'folders': folders,
  }
  try:
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=cache.parent, delete=False) as file:
      file.write(json.dumps(head).encode() + b'\n' + names.blob)
    pathlib.Path(file.name).replace(cache)
  except OSError as error:
    _log.info('the listing of %s is not cached: %s', root, error)
