"""Finds the images of a folder that have masks, in the layouts of VOC and of SBD.

Used by voc_masks.py, which describes the layouts. Only lists and listings are read.
"""

import pathlib
from collections.abc import Iterable
from typing import NamedTuple

from cfn_jax import places
from cfn_jax.data import listing, mask_files, splits, text_lists, voc_labels
from cfn_jax.data.record import SourceError

VOC_CLASSES = ('background', *voc_labels.CLASSES)
CLASSES_FILE = 'classes.txt'

Files = dict[str, tuple[str, str]]  # by stem: an image and its mask, as paths under the root


class Place(NamedTuple):
  """A folder of one of the layouts."""

  root: pathlib.Path
  images: str
  masks: str
  lists: pathlib.Path
  is_sbd: bool

  def index_masks(self, folder: str) -> dict[str, list[str]]:
    """Lists the files of a folder of masks by stem, under the root."""
    return _index(self.root, folder)

  def index_images(self) -> dict[str, list[str]]:
    """Lists the images by stem; see `listing.prefer_jpegs`."""
    return {
      stem: listing.prefer_jpegs(images)
      for stem, names in _index(self.root, self.images).items()
      if (images := list(filter(listing.is_image, names)))
    }

  def has_lists(self) -> bool:
    return self.is_sbd or self.lists.is_dir()


def stem_of(name: str) -> str:
  """Returns the common name of an image and its mask.

  >>> stem_of('JPEGImages/2007_000032.jpg'), stem_of('JPEGImages/street/x.1.png')
  ('2007_000032', 'street/x.1')
  """
  return name.partition('/')[2].rpartition('.')[0]


def find_place(text: str, field: str) -> Place:
  """Returns the layout of a folder.

  Raises:
    SourceError: it has none, or is missing.
  """
  root = places.local(text, field)
  for each in (root, root / 'dataset'):
    if (each / 'img').is_dir() and (each / 'cls').is_dir():
      return Place(each, 'img', 'cls', each, is_sbd=True)
  missing = [each for each in ('JPEGImages', 'SegmentationClass') if not (root / each).is_dir()]
  if not missing:
    lists = root / 'ImageSets' / 'Segmentation'
    return Place(root, 'JPEGImages', 'SegmentationClass', lists, is_sbd=False)
  if not root.is_dir():
    raise SourceError(f'{field} = {text}: there is no such folder')
  inside = sorted(
    path.parent
    for depth in ('*', '*/*')
    for path in root.glob(f'{depth}/SegmentationClass')
    if (path.parent / 'JPEGImages').is_dir()
  )
  raise SourceError(
    f'{field} = {text}: this folder has no {" and no ".join(missing)}, as a VOC folder with masks '
    'has' + (f'; did you mean {inside[0]}?' if inside else '')
  )


def list_files(place: Place, split: str, *, field: str, more_masks: str = '') -> Files:
  """Reads a list; '' for a folder without lists: each image that has a mask, sorted.

  Args:
    more_masks: a folder of masks for images without one in the layout's; '': none.

  Raises:
    SourceError: the list, an image or a mask is missing, or the list is empty.
  """
  own = place.index_masks(place.masks)
  masks = _choose_masks(own)
  if place.has_lists() or split:
    path = _find_list(place, split, field=field)
    wanted = [line for line in text_lists.read_lines(path) if line]
  else:
    path, wanted = place.root / place.masks, sorted(masks)
  if not wanted:
    kinds = ' or '.join(mask_files.SUFFIXES)
    raise SourceError(f'the list {path} is empty' if split else f'no {kinds} file in {path}')
  text_lists.refuse_twice(wanted, path)
  masks = {**_choose_masks(_index_more(place, more_masks)), **masks}
  images = place.index_images()
  _refuse_missing(wanted, images, f'{place.root / place.images}', path)
  lacking = [stem for stem in wanted if stem not in masks]
  if lacking:
    others = own.get(lacking[0], ())
    hint = f' (there is {others[0]}; {mask_files.READ})' if others else ''
    _refuse_missing(wanted, masks, f'{place.root / place.masks}{hint}', path, what='masks')
  return _pair(place, wanted, images, masks)


def list_unmasked(place: Place, more_masks: str) -> list[str]:
  """Returns the images without a mask, if a folder has no lists."""
  if place.has_lists():
    return []
  masked = {*_choose_masks(place.index_masks(place.masks)), *_index_more(place, more_masks)}
  return [names[0] for stem, names in place.index_images().items() if stem not in masked]


def list_more(place: Place, split: str, more_masks: str) -> Files:
  """Lists the images of `ImageSets/Main/<split>.txt` with a mask in another folder.

  If the folder has no lists at all, these are all images with a mask there.
  """
  if not more_masks:
    return {}
  masks = _choose_masks(_index_more(place, more_masks))
  path = place.root / 'ImageSets' / 'Main' / f'{split}.txt'
  if path.is_file():
    wanted = [stem for stem in text_lists.read_lines(path) if stem in masks]
  else:
    wanted = [] if place.has_lists() else sorted(masks)
  images = place.index_images()
  _refuse_missing(wanted, images, f'{place.root / place.images}', path.parent)
  return _pair(place, wanted, images, masks)


def read_classes(place: Place) -> tuple[str, ...]:
  """Reads the names of a folder's classes, one per line; without such a file they are VOC's.

  Raises:
    SourceError: a name is missing or occurs twice, or there are too few or too many.
  """
  path = place.root / CLASSES_FILE
  if place.is_sbd or not path.exists():
    return VOC_CLASSES
  lines = text_lists.read_lines(path)
  while lines and not lines[-1]:
    del lines[-1]
  if '' in lines:
    raise SourceError(f'{path}, line {lines.index("") + 1}: it is empty; each line names a class')
  twice = next((name for place, name in enumerate(lines) if name in lines[:place]), '')
  if twice:
    raise SourceError(f'{path} names {twice} twice')
  if not 2 <= len(lines) <= mask_files.VOID:
    raise SourceError(
      f'{path} names {len(lines):,} classes: it names 2 to {mask_files.VOID}, the background first'
    )
  return tuple(lines)


def _find_list(place: Place, split: str, *, field: str) -> pathlib.Path:
  """Returns the path of a list; raises with those that exist."""
  if not place.has_lists():
    raise SourceError(
      f"{field} = '{split}': {place.root} has no ImageSets/Segmentation; {field} = '' takes each "
      'image that has a mask'
    )
  path = place.lists / f'{split}.txt'
  if not split or not path.is_file():
    known = sorted(each.stem for each in place.lists.glob('[!.]*.txt') if each.is_file())
    raise SourceError(
      f"{field} = '{split}': there is no list {path}; there are {', '.join(known) or 'none'}"
    )
  return path


def _index_more(place: Place, folder: str) -> dict[str, list[str]]:
  if not folder:
    return {}
  parts = pathlib.PurePath(folder).parts
  if folder.startswith('/') or '..' in parts or not (place.root / folder).is_dir():
    raise SourceError(f"data.more_masks = '{folder}': there is no such folder in {place.root}")
  return place.index_masks(folder)


def _index(root: pathlib.Path, folder: str) -> dict[str, list[str]]:
  """Lists all files below a folder by name, as paths under the root."""
  found: dict[str, list[str]] = {}
  for path in sorted((root / folder).rglob('*')):
    name = path.relative_to(root).as_posix()
    if not listing.is_passed_over(name) and not path.is_dir():
      found.setdefault(stem_of(name.removeprefix(folder)), []).append(name)
  return found


def _choose_masks(found: dict[str, list[str]]) -> dict[str, list[str]]:
  """Returns the files that may be masks."""
  return {
    stem: masks
    for stem, names in found.items()
    if (masks := [name for name in names if name.lower().endswith(mask_files.SUFFIXES)])
  }


def _refuse_missing(
  wanted: Iterable[str],
  found: dict[str, list[str]],
  where: str,
  listed: pathlib.Path,
  what: str = 'images',
) -> None:
  wanted = list(wanted)
  missing = [stem for stem in wanted if stem not in found]
  if missing:
    raise SourceError(
      f'{len(missing):,} of the {len(wanted):,} images of {listed} have no file in {where}, such '
      f'as {", ".join(missing[: splits.NAMED])}',
      f'add those {what}, or take these names off the list',
    )


def _pair(
  place: Place,
  wanted: Iterable[str],
  images: dict[str, list[str]],
  masks: dict[str, list[str]],
) -> Files:
  """Returns the files of images; each must have one image and one mask."""
  for stem in wanted:
    for names in (images[stem], masks[stem]):
      if len(names) > 1:
        raise SourceError(
          f'{place.root} has several files called {stem}: {", ".join(names)}; leave one of them'
        )
  return {stem: (images[stem][0], masks[stem][0]) for stem in wanted}
