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
from typing import NamedTuple

import numpy as np

from cfn_jax import places
from cfn_jax.data import file_kinds
from cfn_jax.data.record import SourceError

JPEG_SUFFIXES = ('.jpg', '.jpeg', '.jpe', '.jfif')
SUFFIXES = (*JPEG_SUFFIXES, '.png', '.webp', '.gif', '.bmp', '.tif', '.tiff')
# Folders of file managers, network disks and file systems: thumbnails, deleted files, fragments.
_PASSED_OVER = frozenset(
  (
    '__macosx',
    '@eadir',
    '@recycle',
    '#recycle',
    '$recycle.bin',
    'system volume information',
    'lost+found',
  )
)
_VERSION = 3
# A folder that changed this shortly before it was listed may change again in the same clock tick.
_SETTLED_SECONDS = 2.0

_log = logging.getLogger(__name__)


def is_image(name: str) -> bool:
  """Whether a file's name is that of an image.

  >>> is_image('d/1.JPEG'), is_image('1.jfif'), is_image('1.jpg.txt')
  (True, True, False)
  """
  return name.lower().endswith(SUFFIXES)


def is_passed_over(name: str) -> bool:
  """Whether a part of a path is hidden (resource forks too) or a folder of the system.

  >>> is_passed_over('d/._1.jpg'), is_passed_over('@eaDir/1.jpg/t.jpg'), is_passed_over('d/1.jpg')
  (True, True, False)
  """
  return any(part.startswith('.') or part.lower() in _PASSED_OVER for part in name.split('/'))


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


class Others(NamedTuple):
  """Files that were passed over because their names are not those of images."""

  number: int = 0
  example: str = ''

  def __str__(self) -> str:
    """Says so, as the end of a description; '' where there are none."""
    files = 'file' if self.number == 1 else 'files'
    told = f'; {self.number:,} other {files} passed over (such as {self.example})'
    return told if self.number else ''


NO_OTHERS = Others()


class Listing(NamedTuple):
  """What a folder holds: sorted relative paths, the modification time of each folder in ns.

  Archives, which may hold images, are named; they do not count as other files.
  """

  names: Names
  folders: dict[str, int]
  others: Others
  archives: list[str]


def list_images(root: pathlib.Path, *, cache_dir: str = '', refresh: bool = False) -> Listing:
  """Lists the images under `root`, from the cache where that still holds.

  Raises:
    SourceError: `root` is missing, not a folder, unreadable, or holds no image.
  """
  root = pathlib.Path(os.path.abspath(root))  # noqa: PTH100  (resolve() would follow links)
  cache = _cache_path(root, cache_dir)
  found = None if refresh or cache is None else _read_cache(cache, root)
  if found is None:
    started = time.time()
    found = scan_images(root)
    settled = (started - _SETTLED_SECONDS) * 1e9
    if cache is not None and all(mtime < settled for mtime in found.folders.values()):
      _write_cache(cache, root, found)
  return found


def scan_images(root: pathlib.Path) -> Listing:
  """Lists as `list_images` does, without the cache."""
  _check_folder(root)
  found, folders, others = _walk(root)
  if not found:
    raise SourceError(_no_images(root, others))
  archives = sorted(name for name in others if file_kinds.is_archive(name))
  others = [name for name in others if not file_kinds.is_archive(name)]
  passed_over = Others(len(others), min(others, default=''))
  return Listing(Names.of(sorted(found)), folders, passed_over, archives)


def _check_folder(root: pathlib.Path) -> None:
  if not os.path.exists(root):  # noqa: PTH110  (the method raises where a parent is unreadable)
    parent = next(p for p in root.absolute().parents if os.path.exists(p))  # noqa: PTH110
    raise SourceError(f'there is no folder {root} (what exists of that path: {parent})')
  if not root.is_dir():
    raise SourceError(f'{root} is a file, not a folder; data.root names a folder of images')


def _no_images(root: pathlib.Path, others: list[str]) -> str:
  if not others:
    return f'the folder {root} is empty; it should hold images ({" ".join(SUFFIXES)})'
  if any(name.endswith('.array_record') for name in others):
    return (
      f'{root} holds records, not image files: open what cfn_jax.prepare wrote with '
      "data.source = 'records', the data folder of TFDS with 'tfds'"
    )
  hint = ''
  if any(name.lower().endswith('.tar') for name in others):
    hint = '; python -m cfn_jax.prepare --source=TAR reads a tar file, tars inside it too'
  return (
    f'no images in {root}: none of its {len(others):,} files (such as {min(others)}) ends in '
    f'{" ".join(SUFFIXES)}{hint}'
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
          if is_passed_over(entry.name):
            continue
          if _is_folder(entry):
            (links if entry.is_symlink() else pending).append(name)
          elif not is_image(entry.name):
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
    if nowhere or (error.errno == errno.EACCES and is_image(entry.name)):
      return False
    raise


def _cache_path(root: pathlib.Path, cache_dir: str) -> pathlib.Path | None:
  """The file of a folder's listing; None where there is no cache folder."""
  base = places.local(cache_dir) if cache_dir else default_cache_dir()
  return base and base / f'{hashlib.sha256(os.fsencode(root)).hexdigest()[:24]}.listing'


def default_cache_dir() -> pathlib.Path | None:
  """The user's cache folder: `$XDG_CACHE_HOME/cfn_jax/listings`, or under `~/.cache`.

  None for a user without a home folder, as in some containers.
  """
  base = os.environ.get('XDG_CACHE_HOME', '') or os.path.expanduser('~/.cache')  # noqa: PTH111
  return pathlib.Path(base, 'cfn_jax', 'listings') if os.path.isabs(base) else None  # noqa: PTH117


def _read_cache(cache: pathlib.Path, root: pathlib.Path) -> Listing | None:
  """The cached listing, or None where there is none or a folder has changed."""
  try:
    head, _, body = cache.read_bytes().partition(b'\n')
    stated = json.loads(head)
    if stated['version'] != _VERSION or stated['bytes'] != len(body):
      return None
    if stated['root'] != str(root) or stated['rules'] != _rules():
      return None
    for folder, mtime in stated['folders'].items():
      if (root / folder).stat().st_mtime_ns != mtime:
        return None
    others = Others(int(stated['others']), str(stated['example']))
    archives = [str(name) for name in stated['archives']]
    return Listing(Names(body), stated['folders'], others, archives)
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    return None


def _rules() -> list[str]:
  """What decides which files are listed: a cache that was made by other rules does not hold."""
  return [*SUFFIXES, *file_kinds.PACKED, *sorted(_PASSED_OVER)]


def _write_cache(cache: pathlib.Path, root: pathlib.Path, found: Listing) -> None:
  """Writes the cache in one step; a cache folder that cannot be written is no error."""
  head = {
    'version': _VERSION,
    'root': str(root),
    'rules': _rules(),
    'bytes': len(found.names.blob),
    'folders': found.folders,
    'others': found.others.number,
    'example': found.others.example,
    'archives': found.archives,
  }
  try:
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=cache.parent, delete=False) as file:
      file.write(json.dumps(head).encode() + b'\n' + found.names.blob)
    pathlib.Path(file.name).replace(cache)
  except OSError as error:
    _log.info('the listing of %s is not cached: %s', root, error)
