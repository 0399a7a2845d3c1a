"""The image lists of a PASCAL VOC folder, as a source of images.

`ImageSets/Main/<split>.txt` names the images of `JPEGImages`, one per line. For a folder without
lists, '' means all images with an annotation. An image shows several objects, so a record has no
label. `multi_labels` returns its classes (voc_labels.py), `voc_objects` their places.
"""

import os
import pathlib
import re
from typing import NamedTuple

import numpy as np

from cfn_jax import places
from cfn_jax.data import folder, listing, text_lists, voc_labels
from cfn_jax.data.record import SourceError

_LABELLED = re.compile(r'\s+(-1|0|1)$')


class Listed(NamedTuple):
  """The images of a list, as paths under the root, in the list's order."""

  names: list[str]
  unmarked: list[str]  # images without an annotation, if all with one are listed


class VocSource(folder.FileSource):
  """Images of one list, all or a part of them.

  Attributes:
    listed: the names of the whole list; `names` are all or a part of them.
  """

  def __init__(
    self, root: pathlib.Path, names: list[str], split: str, whole: Listed, part: str = ''
  ) -> None:
    unmarked = whole.unmarked
    told = f'; {len(unmarked):,} without an annotation (such as {unmarked[0]})' if unmarked else ''
    super().__init__(
      root,
      listing.Names.of(names),
      labels=np.full(len(names), -1, np.int32),
      description=f'VOC {root} ({split or "annotated"}{part}): {len(names):,} images{told}',
    )
    self.left_out += [{'name': name, 'reason': 'it has no annotation'} for name in unmarked]
    self.listed = listing.Names.of(whole.names)
    self._split = split

  def stems(self) -> list[str]:
    """Returns the images' names without a suffix, in the order of the records."""
    return [stem_of(name) for name in self.names]

  def multi_labels(self, origin: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Reads the labels uint8 `[n, K]` of the images, and the class names."""
    return voc_labels.read_labels(pathlib.Path(self.root), self._split, self.stems(), origin=origin)


def open_voc(
  root: pathlib.Path, *, split: str, val_root: str, val_split: str, val_fraction: float
) -> tuple[VocSource, VocSource]:
  """Opens two lists, or one that is split by a hash of the file names.

  Raises:
    SourceError: `root` is no VOC folder, or a list or a listed image is missing.
  """
  val_folder = places.local(val_root) if val_root else root
  if val_root and not val_split and _has_lists(val_folder):
    raise SourceError(
      f"data.val_split is empty: data.val_root = '{val_root}' needs the name of a list there"
    )
  whole = list_split(root, split, field='data.split')
  if val_root or val_split:
    val_whole = list_split(val_folder, val_split, field='data.val_split')
    return (
      VocSource(root, whole.names, split, whole),
      VocSource(val_folder, val_whole.names, val_split, val_whole),
    )
  held_out = folder.hash_split(
    listing.Names.of(whole.names), val_fraction, where=split or root, instead='data.val_split'
  )
  train = [n for n, held in zip(whole.names, held_out) if not held]
  val = [n for n, held in zip(whole.names, held_out) if held]
  return VocSource(root, train, split, whole), VocSource(
    root, val, split, whole._replace(unmarked=[]), ', held out'
  )


def stem_of(name: str) -> str:
  """Returns the common name of an image and its annotation.

  >>> stem_of('JPEGImages/2008_000002.jpg')
  '2008_000002'
  """
  return pathlib.PurePath(name).stem


def list_split(root: pathlib.Path, split: str, *, field: str) -> Listed:
  """Reads one list; '' for a folder without lists: each image with an annotation, sorted."""
  if not split and not _has_lists(root) and (root / 'Annotations').is_dir():
    path = root / 'Annotations'
    wanted = _list_annotations(path)
  else:
    path = _find_list(root, split, field=field)
    wanted = [line for line in text_lists.read_lines(path) if line]
  if not wanted:
    raise SourceError(f'the list {path} is empty' if path.is_file() else f'no .xml file in {path}')
  files = _list_files(root / 'JPEGImages')
  # A line of <class>_<split>.txt ends in the label.
  stems = [line if line in files else _LABELLED.sub('', line) for line in wanted]
  missing = [stem for stem in stems if stem not in files]
  if missing:
    raise SourceError(
      f'{len(missing):,} of the {len(wanted):,} images in {path} are not in JPEGImages, '
      f'such as {", ".join(missing[:10])}'
    )
  text_lists.refuse_twice(stems, path)
  for stem in stems:
    if len(files[stem]) > 1:
      raise SourceError(
        f'{root / "JPEGImages"} has several images called {stem}: {", ".join(files[stem])}; leave '
        'one of them there'
      )
  unmarked = sorted(files.keys() - set(stems)) if path.is_dir() else []
  return Listed(
    [f'JPEGImages/{files[stem][0]}' for stem in stems],
    [f'JPEGImages/{files[stem][0]}' for stem in unmarked],
  )


def _has_lists(root: pathlib.Path) -> bool:
  return (root / 'ImageSets' / 'Main').is_dir()


def _find_list(root: pathlib.Path, split: str, *, field: str) -> pathlib.Path:
  """Returns the path of a list; raises with those that exist."""
  lists = root / 'ImageSets' / 'Main'
  if not lists.is_dir():
    inside = sorted(p.parent.parent.name for p in root.glob('*/ImageSets/Main'))
    hint = f'; did you mean {root / inside[0]}?' if inside else ''
    if (root / 'Annotations').is_dir():
      hint = f"; {field} = '' takes each image that has an annotation"
    raise SourceError(f'{root} is no VOC folder: it has no ImageSets/Main{hint}')
  path = lists / f'{split}.txt'
  if not split or not path.is_file():
    found = sorted(p.stem for p in lists.glob('[!.]*.txt') if p.is_file())
    known = ', '.join(stem for stem in found if '_' not in stem)
    raise SourceError(f'{field} = {split!r}: there is no list {path}; there are {known or "none"}')
  return path


def _list_annotations(path: pathlib.Path) -> list[str]:
  """Returns the sorted names, without `.xml`, of a folder's annotations."""
  return sorted(file.stem for file in path.glob('*.xml') if not listing.is_passed_over(file.name))


def _list_files(folder_path: pathlib.Path) -> dict[str, list[str]]:
  """Lists a folder's images by name without suffix; see `listing.prefer_jpegs`."""
  found: dict[str, list[str]] = {}
  try:
    with os.scandir(folder_path) as entries:
      names = sorted(entry.name for entry in entries)
  except OSError as error:
    raise SourceError(f'cannot list {folder_path}: {error.strerror}') from None
  for name in names:
    if listing.is_image(name) and not listing.is_passed_over(name):
      found.setdefault(pathlib.PurePath(name).stem, []).append(name)
  return {stem: listing.prefer_jpegs(each) for stem, each in found.items()}
