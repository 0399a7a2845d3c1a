"""Any folder of images, flat or nested, with or without class folders, and lists of its files.

A record's bytes are the file's. If every image lies in a subfolder, the first-level folders are the
classes, numbered in sorted order. Validation images come from a second folder, or from a split by a
hash of the relative path: adding a file moves no other file between the splits.
"""

import abc
import errno
import functools
import hashlib
import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from cfn_jax import places, terminal
from cfn_jax.data import images, listing
from cfn_jax.data.record import Record, Source, SourceError, check_index

_SPLITS = r'(img_)?(train(ing)?|val(id(ation)?)?|test(ing)?|dev)([-_ ]?(set|images|data))?'

# Errors that depend on the file. Others (too many open files, a disk that does not answer) may be
# temporary, and then the same record would show another image.
_FILE_FAULTS = frozenset(
  (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG)
)


class NamedSource(Source):
  """Images with names and labels that are known before any is read, as prepare.py needs them."""

  names: listing.Names
  others: listing.Others
  fingerprint: str
  left_out: list[dict[str, str]]  # names and reasons of files that may be images but are not read
  _labels: np.ndarray  # int32 [number of images]

  def __len__(self) -> int:
    return len(self.names)

  def labels(self) -> np.ndarray:
    """Returns the class of each image `[n]`; -1 without one."""
    return self._labels

  def relabel(self, labels: np.ndarray, class_names: tuple[str, ...]) -> None:
    """Sets the labels `[n]` of the images, and the names of their classes."""
    self._labels, self.class_names = labels, class_names
    self.fingerprint = digest_labels(self.fingerprint.encode(), labels, class_names)

  @abc.abstractmethod
  def stamp(self) -> str:
    """Returns a digest of sizes and modification times, which change when an image does."""


class FileSource(NamedSource):
  """Named files under one folder."""

  def __init__(
    self,
    root: pathlib.Path,
    names: listing.Names,
    *,
    labels: np.ndarray,
    class_names: tuple[str, ...] = (),
    description: str,
    others: listing.Others = listing.NO_OTHERS,
    archives: Sequence[str] = (),
  ) -> None:
    reason = 'it is an archive, which is not read in a folder; unpack it'
    self.left_out = [{'name': name, 'reason': reason} for name in archives]
    self.others = others
    self.root = str(root.absolute())
    self.names = names
    self._labels = labels
    self.class_names = class_names
    packed = 'archive is' if len(archives) == 1 else 'archives are'
    told = f'; {len(archives):,} {packed} not read (such as {archives[0]})' if archives else ''
    self.description = f'{description}{others}{told}'
    self.fingerprint = digest_labels(names.blob, labels, class_names)

  def identify(self) -> str:
    return self._identity

  @functools.cached_property
  def _identity(self) -> str:  # cached: it looks at each file
    return f'{self.fingerprint} {self.stamp()}'

  def __repr__(self) -> str:
    return f'FileSource({self.fingerprint})'

  def __getitem__(self, index: int) -> Record:
    index = check_index(index, len(self.names))
    name = self.names[index]
    try:
      with open(os.path.join(self.root, name), 'rb') as file:  # noqa: PTH118, PTH123  (faster)
        data = file.read()
    except OSError as error:
      if error.errno in _FILE_FAULTS:
        raise images.BadImage(name, f'cannot be read: {error.strerror}') from None
      raise _unreadable(self.root, name, error) from None
    return Record(data, name, int(self._labels[index]))

  def stamp(self) -> str:
    """Returns a digest of the size and modification time of each file; -1 for a missing one."""
    digest = hashlib.sha256()
    for name in self.names:
      try:
        status = os.stat(os.path.join(self.root, name))  # noqa: PTH116, PTH118  (faster)
        size, mtime = status.st_size, status.st_mtime_ns
      except OSError as error:
        if error.errno not in _FILE_FAULTS:
          raise _unreadable(self.root, name, error) from None
        size, mtime = -1, -1
      digest.update(f'{size} {mtime}\n'.encode())
    return digest.hexdigest()[:32]


def _unreadable(root: str, name: str, error: OSError) -> SourceError:
  return SourceError(f'{root}/{name} cannot be read now: {error.strerror or error}')


def open_folder(
  root: pathlib.Path, *, val_root: str = '', val_fraction: float = 0.0
) -> tuple[FileSource, FileSource]:
  """Opens the training and validation images of a folder, or of two.

  A validation folder with a class that training lacks has no labels.

  Raises:
    SourceError: a folder is missing, empty, unreadable or without images; or no image is left for
      training.
  """
  found = listing.list_images(root)
  classes = class_folders(found.names)
  warn_of_splits(root, classes)
  if not val_root:
    held_out = hash_split(found.names, val_fraction, where=root, instead='data.val_root')
    val = listing.Listing(found.names.where(held_out))
    found = found._replace(names=found.names.where(~held_out))
    return labelled(root, found, classes), labelled(root, val, classes)
  val_folder = places.local(val_root)
  val_found = listing.list_images(val_folder)
  val_classes = class_folders(val_found.names)
  shared = classes if val_classes and set(val_classes) <= set(classes) else ()
  warn_of_splits(val_folder, val_classes)
  val_source = labelled(val_folder, val_found, shared)
  val_source.foreign_classes = () if shared else val_classes
  return labelled(root, found, classes), val_source


def class_folders(names: listing.Names) -> tuple[str, ...]:
  """Returns the sorted first-level folders, or () if an image lies outside them.

  >>> class_folders(listing.Names.of(['dog/1.jpg', 'cat/2.jpg']))
  ('cat', 'dog')
  >>> class_folders(listing.Names.of(['dog/1.jpg', '2.jpg']))
  ()
  """
  folders = set()
  for name in names.encoded():
    folder, slash, _ = name.partition(b'/')
    if not slash:
      return ()
    folders.add(folder)
  return tuple(sorted(map(os.fsdecode, folders)))


def warn_of_splits(root: pathlib.Path, classes: tuple[str, ...]) -> None:
  """Warns if folders named like splits count as classes."""
  if classes and all(re.fullmatch(_SPLITS, name.lower()) for name in classes):
    terminal.say(
      f'warning: the folders of {root} are {", ".join(classes)}: they count as its classes, and '
      'images of all are trained on; if they are splits, name one as data.root and another as '
      'data.val_root'
    )


def hash_split(
  names: listing.Names, val_fraction: float, *, where: object, instead: str
) -> np.ndarray:
  """Returns for each name whether it is held out, bool `[n]`, by its own hash alone.

  Args:
    where, instead: for messages: the place of the images, and the field that names others.

  Raises:
    SourceError: the fraction is not in 0..1, or nothing is left for training.
  """
  if not 0 <= val_fraction < 1:
    raise SourceError(f'data.val_fraction = {val_fraction}: it must be at least 0 and below 1')
  # 2**64 would need a ninth byte, so fractions next to 1 take the largest bound.
  bound = min(int(val_fraction * 2.0**64), 2**64 - 1).to_bytes(8, 'big')
  hashes = (hashlib.blake2b(name, digest_size=8).digest() for name in names.encoded())
  held_out = np.fromiter((digest < bound for digest in hashes), bool, len(names))
  if held_out.all():
    raise SourceError(
      f'all {len(names):,} images of {where} fell into validation (data.val_fraction = '
      f'{val_fraction}); set {instead}, or data.val_fraction to 0'
    )
  return held_out


def digest_labels(told: bytes, labels: np.ndarray, class_names: Sequence[str]) -> str:
  """Returns a digest of what identifies images, of their labels `[n]`, and of the class names."""
  named = '\0'.join(class_names).encode('utf8', 'surrogateescape')
  return hashlib.sha256(told + labels.tobytes() + named).hexdigest()[:32]


def number_classes(names: listing.Names, classes: tuple[str, ...]) -> np.ndarray:
  """Returns the class of each name by its first-level folder, int32 `[n]`; -1 for others."""
  index = {os.fsencode(name): place for place, name in enumerate(classes)}
  found = (index.get(name.partition(b'/')[0], -1) for name in names.encoded())
  return np.fromiter(found, np.int32, len(names))


def labelled(root: pathlib.Path, found: listing.Listing, classes: tuple[str, ...]) -> FileSource:
  """Makes a source whose labels are the first-level folders, or -1 without `classes`."""
  of_classes = f' in {len(classes):,} folders' if classes else ''
  return FileSource(
    root,
    found.names,
    labels=number_classes(found.names, classes),
    class_names=classes,
    description=f'folder {root}: {len(found.names):,} images{of_classes}',
    others=found.others,
    archives=found.archives,
  )
