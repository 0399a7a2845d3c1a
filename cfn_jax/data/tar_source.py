"""The images in a tar file, read in place: ImageNet's tar of class tars, or any other.

Used by prepare.py. The headers are scanned once for offsets; then an image is one read. A tar in
the tar counts as a folder of its name, so `n01440764.tar` makes the class `n01440764`. Names leave
out the folders that all images share.
"""

import hashlib
import io
import os
import pathlib
import posixpath
import tarfile
from collections.abc import Container, Iterator
from typing import BinaryIO

import numpy as np

from cfn_jax.data import file_kinds, folder, listing
from cfn_jax.data.record import Record, SourceError, check_index

Place = tuple[int, int, float]  # offset in the outermost file, size, modification time
_NOWHERE = (0, 0, 0.0)


class TarSource(folder.NamedSource):
  """Images at known offsets of one file."""

  def __init__(
    self,
    path: pathlib.Path,
    places: dict[str, Place],
    left_out: list[dict[str, str]],
    others: listing.Others,
  ) -> None:
    shared = _shared_folder(list(places))
    ordered = sorted((name[len(shared) :], *place) for name, place in places.items())
    self.path = str(path)
    self.others = others
    self.left_out = left_out
    self.names = listing.Names.of(name for name, *_ in ordered)
    self.class_names = folder.class_folders(self.names)
    self._labels = folder.number_classes(self.names, self.class_names)
    self._places = np.array([place[1:3] for place in ordered], np.int64)  # [N, 2]: offset, size
    times = np.array([place[3] for place in ordered], np.float64)
    self._stamp = hashlib.sha256(self._places.tobytes() + times.tobytes()).hexdigest()[:32]
    told = self.names.blob + self._places[:, 1].tobytes()  # with sizes: images may change
    self.fingerprint = hashlib.sha256(told).hexdigest()[:32]
    self.description = f'tar {path}: {len(ordered):,} images{others}'

  def __repr__(self) -> str:
    return f'TarSource({self.fingerprint})'

  def __getitem__(self, index: int) -> Record:
    offset, size = self._places[check_index(index, len(self.names))].tolist()
    name = self.names[index]
    try:
      with open(self.path, 'rb') as file:  # noqa: PTH123
        file.seek(offset)
        data = file.read(size)
    except OSError as error:
      raise SourceError(
        f'{self.path} cannot be read now, at {name}: {error.strerror or error}'
      ) from None
    if len(data) < size:  # it was complete when it was opened
      raise SourceError(f'{self.path} has become shorter: {len(data)} bytes of {name} are left')
    return Record(data, name, int(self._labels[index]))

  def stamp(self) -> str:
    """Returns a digest of the offset, size and modification time of each image, from its header."""
    return self._stamp


def open_tar(path: pathlib.Path) -> TarSource:
  """Scans the headers of a tar file and of the tar files in it.

  Raises:
    SourceError: it is no tar file, is compressed or truncated, or has no images.
  """
  found: dict[str, tuple[str, Place]] = {}  # name: the tar that holds it, its place in the file
  left_out: dict[str, str] = {}
  doubles: list[tuple[str, str]] = []
  others: list[str] = []
  try:
    with path.open('rb') as file:
      for name, where, place, reason in _members(file, path.stat().st_size, str(path)):
        held, before = found.get(name, (where, place))
        if name.endswith('/'):
          gone = [n for n, (tar, _) in found.items() if f'{tar}/'.startswith(f'{where}/')]
          doubles += [(n, reason) for n in gone if found.pop(n)]
        elif reason:
          if held == where:
            found.pop(name, None)
          left_out[name] = reason
        elif not listing.is_image(name):
          others.append(name)
        elif held != where:
          doubles.append((name, f'the one in {where}: {held} has another one of this name'))
        else:
          # The later of two files with one name in one tar counts, as in unpacking.
          if before != place:
            doubles.append((name, f'a later one of this name in {where} replaces it'))
          left_out.pop(name, None)
          found[name] = where, place
  except OSError as error:
    raise SourceError(f'cannot read {path}: {error.strerror or error}') from None
  if not found:
    told = next((f'; {name}: {reason}' for name, reason in left_out.items()), '')
    held = f', but {len(others):,} other files, such as {others[0]}' if others else ''
    raise SourceError(f'no images in {path} ({" ".join(listing.SUFFIXES)}){held}{told}')
  lines = [{'name': n, 'reason': r} for n, r in (*left_out.items(), *doubles)]
  places = {name: place for name, (_, place) in found.items()}
  return TarSource(path, places, lines, listing.Others(len(others), min(others, default='')))


def _members(
  file: 'BinaryIO | _Part', length: int, where: str
) -> Iterator[tuple[str, str, Place, str]]:
  """Yields each regular file, those of inner tars too, and each that cannot be read.

  A file is its name, the tar that holds it, its place (offset in the outermost file, size,
  modification time), and '' or the reason why it is skipped. Hidden files and inner tars are left
  out. A name that ends in a slash means that the files of an inner tar are replaced.
  """
  try:
    with tarfile.open(fileobj=file, mode='r:') as tar:
      end = 0
      seen: dict[str, tuple[int, int]] = {}
      while (member := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]  # else a million headers stay in memory
        name, end = _plain_name(member.name), max(end, tar.offset)
        if end > length:
          raise SourceError(f'{where} is cut short: {name} should end at byte {end} of {length}')
        if member.isdir() or listing.is_passed_over(name.replace('../', '')):
          continue
        reason = _why_unread(member, name, seen)
        if reason:
          if _may_hold_images(name):
            yield name, where, _NOWHERE, reason
          continue
        stem, suffix = posixpath.splitext(name)
        is_tar, inside = suffix.lower() == '.tar', f'{where}/{name}'
        if is_tar and name in seen:
          yield f'{stem}/', inside, _NOWHERE, f'a later {inside} replaces the one that holds it'
        if not member.islnk():
          seen[name] = (member.offset_data, member.size)
        offset, size = seen[_plain_name(member.linkname) if member.islnk() else name]
        if is_tar:
          inner = _Part(file, offset, size)
          for each, tar_name, (start, count, mtime), why in _members(inner, size, inside):
            yield f'{stem}/{each}', tar_name, (offset + start, count, mtime), why
        else:
          yield name, where, (offset, size, float(member.mtime)), ''
  except tarfile.TarError as error:
    file.seek(0)
    head = file.read(file_kinds.HEAD)
    kind = file_kinds.recognise(head) or ('text' if file_kinds.is_text(head) else '')
    reason = f'it is {kind}' if kind else str(error)
    raise SourceError(
      f'{where} is not a readable tar file: {reason} (a folder or a plain tar is needed)'
    ) from None
  file.seek(end)
  if len(file.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
    raise SourceError(f'{where} is cut short: its end mark is missing')


def _plain_name(name: str) -> str:
  return posixpath.normpath(name).lstrip('/')


def _why_unread(member: tarfile.TarInfo, name: str, seen: Container[str]) -> str:
  """Returns why a member cannot be read in place; '' if it can."""
  if name == '..' or name.startswith('../'):
    return 'its name leads out of the tar file'
  if member.issym():
    return f'it is a symbolic link (to {member.linkname})'
  if member.islnk() and _plain_name(member.linkname) not in seen:
    return f'it is a link to {member.linkname}, which does not come before it'
  if member.issparse():
    return 'it is stored with holes (tar -S); pack it without -S'
  if not member.islnk() and not member.isreg():
    return 'it is no regular file'
  if name.lower().endswith(file_kinds.PACKED):
    return 'it is an archive other than a plain tar; unpack it, or make it a plain tar'
  return ''


def _may_hold_images(name: str) -> bool:
  """Returns whether a name is that of an image, of an archive, or of a possible folder."""
  return (
    listing.is_image(name) or file_kinds.is_archive(name) or '.' not in posixpath.basename(name)
  )


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
  """Returns the folder that all names share, with its slash.

  >>> _shared_folder(['train/a/1.jpg', 'train/b/2.jpg'])
  'train/'
  """
  shared = posixpath.commonpath([posixpath.dirname(name) for name in names])
  return f'{shared}/' if shared else ''
