"""The images in a tar file, read in place: ImageNet's tar of class tars, or any other.

Used by prepare.py. The headers are scanned once for offsets, then an image is one read. A tar in
the tar counts as a folder of its name, so `n01440764.tar` makes the class `n01440764`. Folders that
all images share are left out of the names.
"""

import hashlib
import io
import os
import pathlib
import posixpath
import tarfile
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from cfn_jax.data import folder, images, listing
from cfn_jax.data.record import Record, SourceError, check_index


class TarSource:
  """Images at known offsets of one file."""

  def __init__(self, path: pathlib.Path, places: dict[str, tuple[int, int]]) -> None:
    shared = _shared_folder(list(places))
    ordered = sorted((name[len(shared) :], *place) for name, place in places.items())
    self.path = str(path)
    self.names = listing.Names.of(name for name, _, _ in ordered)
    self.class_names = folder.class_folders(self.names)
    index = {name: i for i, name in enumerate(self.class_names)}
    self.labels = np.array(
      [index.get(name.partition('/')[0], -1) for name, _, _ in ordered], np.int32
    )
    self._places = np.array([place for _, *place in ordered], np.int64)  # [N, 2]: offset, size
    self.fingerprint = hashlib.sha256(self.names.blob).hexdigest()[:32]
    self.description = f'tar {path}: {len(ordered):,} images'

  def __repr__(self) -> str:
    return f'TarSource({self.fingerprint})'

  def __len__(self) -> int:
    return len(self.names)

  def __getitem__(self, index: int) -> Record:
    offset, size = self._places[check_index(index, len(self.names))].tolist()
    name = self.names[index]
    with open(self.path, 'rb') as file:  # noqa: PTH123
      file.seek(offset)
      data = file.read(size)
    if len(data) < size:
      raise images.BadImage(name, f'the tar file ends after {len(data)} of its {size} bytes')
    return Record(data, name, int(self.labels[index]))


def open_tar(path: pathlib.Path) -> TarSource:
  """Scans the headers of a tar file and of the tar files in it.

  Raises:
    SourceError: not a tar file, compressed, cut short, or without images.
  """
  places = {}
  try:
    with path.open('rb') as file:
      for name, offset, size in _members(file, path.stat().st_size, str(path)):
        parts = name.split('/')
        hidden = any(part.startswith('.') or part == '__MACOSX' for part in parts)
        if not hidden and name.lower().endswith(listing.SUFFIXES):
          places[name] = (offset, size)  # of two with one name the later counts, as when unpacking
  except OSError as error:
    raise SourceError(f'cannot read {path}: {error.strerror}') from None
  if not places:
    raise SourceError(f'no images in {path} ({" ".join(listing.SUFFIXES)})')
  return TarSource(path, places)


def _members(file: 'BinaryIO | _Part', length: int, where: str) -> Iterator[tuple[str, int, int]]:
  """Yields name, offset in the outermost file, and size of each regular file, inner tars opened."""
  try:
    with tarfile.open(fileobj=file, mode='r:') as tar:
      end = 0
      seen: dict[str, tuple[int, int]] = {}
      while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # or a million headers stay in memory
        name = posixpath.normpath(member.name).lstrip('/')
        offset, size = member.offset_data, member.size
        if member.islnk():
          offset, size = seen.get(posixpath.normpath(member.linkname).lstrip('/'), (0, 0))
        elif not member.isreg():
          end = max(end, member.offset_data)
          continue
        else:
          end = offset + -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
          seen[name] = (offset, size)
        if end > length:
          raise SourceError(f'{where} is cut short: {name} should end at byte {end} of {length}')
        if name.endswith('.tar'):
          inner = _Part(file, offset, size)
          for inside, start, count in _members(inner, size, f'{where}/{name}'):
            yield f'{name.removesuffix(".tar")}/{inside}', offset + start, count
        else:
          yield name, offset, size
  except tarfile.TarError as error:
    file.seek(0)
    packed = file.read(6).startswith((b'\x1f\x8b', b'BZh', b'\xfd7zXZ\x00', b'\x28\xb5\x2f\xfd'))
    reason = 'it is compressed; decompress it first (gunzip, unxz, ...)' if packed else error
    raise SourceError(f'{where} is not a readable tar file: {reason}') from None
  file.seek(end)
  if len(file.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
    raise SourceError(f'{where} is cut short: its end mark is missing')


class _Part(io.RawIOBase):
  """A window on a file, for tarfile to read an inner tar through."""

  def __init__(self, file: 'BinaryIO | _Part', start: int, length: int) -> None:
    self._file, self._start, self._length, self._position = file, start, length, 0

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
    base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
    self._position = max(0, base + offset)
    return self._position

  def tell(self) -> int:
    return self._position

  def read(self, size: int = -1) -> bytes:
    left = max(0, self._length - self._position)
    self._file.seek(self._start + self._position)
    data = self._file.read(left if size < 0 else min(size, left))
    self._position += len(data)
    return data


def _shared_folder(names: list[str]) -> str:
  """The folder that all names share, with its slash.

  >>> _shared_folder(['train/a/1.jpg', 'train/b/2.jpg'])
  'train/'
  """
  shared = posixpath.commonpath([posixpath.dirname(name) for name in names])
  return f'{shared}/' if shared else ''
