"""Lists the image files of a folder, without opening anything but the folders themselves.

Used by folder.py and prepare.py.
"""

import errno
import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

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


def is_image(name: str) -> bool:
  """Returns whether a file's name is that of an image.

  >>> is_image('d/1.JPEG'), is_image('1.jfif'), is_image('1.jpg.txt')
  (True, True, False)
  """
  return name.lower().endswith(SUFFIXES)


def prefer_jpegs(names: list[str]) -> list[str]:
  """Returns the JPEGs among files of one name, or all if there is none: others may be masks."""
  return [name for name in names if name.lower().endswith(JPEG_SUFFIXES)] or names


def is_passed_over(name: str) -> bool:
  """Returns whether a part of a path is hidden (resource forks too) or a system folder.

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
    """Returns all names as the file system spells them."""
    return self.blob.split(b'\0')[:-1]

  def where(self, chosen: np.ndarray) -> 'Names':
    """Returns the names that `chosen`, bool `[n]`, selects."""
    kept = itertools.compress(self.encoded(), chosen.tolist())
    return Names(b''.join(name + b'\0' for name in kept))

  def __repr__(self) -> str:
    return f'Names({len(self)})'


class Others(NamedTuple):
  """Files that were skipped because their names are not those of images."""

  number: int = 0
  example: str = ''

  def __str__(self) -> str:
    """Returns the end of a description; '' if there are none."""
    files = 'file' if self.number == 1 else 'files'
    told = f'; {self.number:,} other {files} passed over (such as {self.example})'
    return told if self.number else ''


NO_OTHERS = Others()


class Listing(NamedTuple):
  """The contents of a folder: the images' sorted relative paths.

  Archives, which may contain images, are listed; they do not count as other files.
  """

  names: Names
  others: Others = NO_OTHERS
  archives: tuple[str, ...] = ()


def list_images(root: pathlib.Path) -> Listing:
  """Lists the images under `root`.

  Raises:
    SourceError: `root` is missing, not a folder, unreadable, or holds no image.
  """
  root = pathlib.Path(os.path.abspath(root))  # noqa: PTH100  (resolve() would follow links)
  _check_folder(root)
  found, others = _walk(root)
  if not found:
    raise SourceError(_no_images(root, others))
  archives = sorted(name for name in others if file_kinds.is_archive(name))
  others = [name for name in others if not file_kinds.is_archive(name)]
  passed_over = Others(len(others), min(others, default=''))
  return Listing(Names.of(sorted(found)), passed_over, tuple(archives))


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


def _walk(root: pathlib.Path) -> tuple[list[str], list[str]]:
  """Finds images and other files.

  Each real folder is listed once, whatever links lead to it, so loops end and no image occurs
  twice. Links to folders are followed last.
  """
  found: list[str] = []
  others: list[str] = []
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
      with os.scandir(root / folder) as entries:
        for entry in entries:
          name = f'{folder}/{entry.name}' if folder else entry.name
          if is_passed_over(entry.name):
            continue
          if _is_folder(entry):
            (links if entry.is_symlink() else pending).append(name)
          elif not is_image(entry.name):
            others.append(name)
          elif entry.is_symlink() or entry.is_file():  # a broken link may be a bad image
            found.append(name)
    except OSError as error:
      raise SourceError(f'cannot list {root / folder}: {error.strerror}') from None
  return found, others


def _is_folder(entry: os.DirEntry[str]) -> bool:
  """Returns whether an entry is a folder or links to one; a broken link is not."""
  try:
    return entry.is_dir()
  except OSError as error:
    nowhere = error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG)
    if nowhere or (error.errno == errno.EACCES and is_image(entry.name)):
      return False
    raise
