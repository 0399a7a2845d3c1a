"""The image lists of a PASCAL VOC folder, as a source of images.

`ImageSets/Main/<split>.txt` names the images of `JPEGImages`, one a line. An image holds several
objects, so a record has no label; `multi_labels` says which classes it shows (voc_labels.py).
"""

import os
import pathlib
import re

import numpy as np

from cfn_jax import places
from cfn_jax.data import folder, listing, text_lists, voc_labels
from cfn_jax.data.record import SourceError

_LABELLED = re.compile(r'\s+(-1|0|1)$')


class VocSource(folder.FileSource):
  """Images of one list, all or a part of them."""

  def __init__(self, root: pathlib.Path, names: list[str], split: str, part: str = '') -> None:
    super().__init__(
      root,
      listing.Names.of(names),
      labels=np.full(len(names), -1, np.int32),
      description=f'VOC {root} ({split}{part}): {len(names):,} images',
    )
    self._split = split

  def multi_labels(self, origin: str) -> tuple[np.ndarray, tuple[str, ...]]:
    stems = [pathlib.PurePath(name).stem for name in self.names]
    return voc_labels.read_labels(pathlib.Path(self.root), self._split, stems, origin=origin)


def open_voc(
  root: pathlib.Path, *, split: str, val_root: str, val_split: str, val_fraction: float
) -> tuple[VocSource, VocSource]:
  """Opens two lists, or one that is split by a hash of the file names.

  Raises:
    SourceError: `root` is no VOC folder, a list is missing, or it names images that are not there.
  """
  if val_root and not val_split:
    raise SourceError(
      f"data.val_split is empty: data.val_root = '{val_root}' needs the name of a list there"
    )
  names = list_split(root, split, field='data.split')
  if val_split:
    val_folder = places.local(val_root) if val_root else root
    val_names = list_split(val_folder, val_split, field='data.val_split')
    return VocSource(root, names, split), VocSource(val_folder, val_names, val_split)
  held_out = folder.hash_split(
    listing.Names.of(names), val_fraction, where=split, instead='data.val_split'
  )
  train = [n for n, held in zip(names, held_out) if not held]
  val = [n for n, held in zip(names, held_out) if held]
  return VocSource(root, train, split), VocSource(root, val, split, ', held out')


def list_split(root: pathlib.Path, split: str, *, field: str) -> list[str]:
  """Reads one list as paths under `root`, in the list's order."""
  lists = root / 'ImageSets' / 'Main'
  if not lists.is_dir():
    inside = sorted(p.parent.parent.name for p in root.glob('*/ImageSets/Main'))
    hint = f'; did you mean {root / inside[0]}?' if inside else ''
    raise SourceError(f'{root} is no VOC folder: it has no ImageSets/Main{hint}')
  path = lists / f'{split}.txt'
  if not split or not path.is_file():
    found = sorted(p.stem for p in lists.glob('[!.]*.txt') if p.is_file())
    known = ', '.join(stem for stem in found if '_' not in stem)
    raise SourceError(f'{field} = {split!r}: there is no list {path}; there are {known or "none"}')
  wanted = [line for line in text_lists.read_lines(path) if line]
  if not wanted:
    raise SourceError(f'the list {path} is empty')
  files = _list_files(root / 'JPEGImages')
  # A line of <class>_<split>.txt ends in the label.
  stems = [line if line in files else _LABELLED.sub('', line) for line in wanted]
  missing = [stem for stem in stems if stem not in files]
  if missing:
    raise SourceError(
      f'{len(missing):,} of the {len(wanted):,} images in {path} are not in JPEGImages, '
      f'such as {", ".join(missing[:10])}'
    )
  for stem in stems:
    if len(files[stem]) > 1:
      raise SourceError(
        f'{root / "JPEGImages"} has several images called {stem}: {", ".join(files[stem])}; leave '
        'one of them there'
      )
  return [f'JPEGImages/{files[stem][0]}' for stem in stems]


def _list_files(folder_path: pathlib.Path) -> dict[str, list[str]]:
  """Lists a folder's images by name without suffix: JPEGs before others, such as masks of them."""
  found: dict[str, list[str]] = {}
  try:
    with os.scandir(folder_path) as entries:
      names = sorted(entry.name for entry in entries)
  except OSError as error:
    raise SourceError(f'cannot list {folder_path}: {error.strerror}') from None
  for name in names:
    if listing.is_image(name) and not listing.is_passed_over(name):
      found.setdefault(pathlib.PurePath(name).stem, []).append(name)
  return {
    stem: [name for name in each if name.lower().endswith(listing.JPEG_SUFFIXES)] or each
    for stem, each in found.items()
  }
