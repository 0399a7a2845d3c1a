"""The class of each pixel of VOC images, of any classes; all are checked before training.

Two layouts are read. VOC: `ImageSets/Segmentation/<split>.txt`, `JPEGImages`, `SegmentationClass`,
and `classes.txt` for other classes. SBD (`benchmark_RELEASE`, or its `dataset`): `<split>.txt`,
`img`, `cls`. mask_files.py decodes a mask. Used by the segmentation.
"""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Sequence

import numpy as np

from cfn_jax import terminal
from cfn_jax.data import folder, image_sizes, listing, mask_files, mask_lists, mask_splits, splits
from cfn_jax.data.images import BadImage
from cfn_jax.data.record import SourceError

VOID = mask_files.VOID
_NAMED = 3  # masks named in an error, with much text for each


@dataclasses.dataclass(frozen=True)
class Split:
  """The images of a split and their masks. It pickles, and decodes masks on demand.

  Attributes:
    source: the images.
    masks: the files of their masks, in the same order.
    sizes: int32 `[n, 2]`, height and width of each upright image, and of its mask.
    listed: the whole list that the split names, as stems; the records may be a part of it.
    class_names: the background first.
    notes: a sentence about each omission.
    unseen: numbers of the classes that no mask shows.
  """

  source: folder.FileSource
  masks: folder.FileSource
  sizes: np.ndarray
  listed: tuple[str, ...]
  class_names: tuple[str, ...]
  notes: list[str]
  unseen: tuple[int, ...] = ()

  def __len__(self) -> int:
    return len(self.source)

  def stems(self) -> list[str]:
    """Returns the images' names without folder and suffix, in the order of the records."""
    return [mask_lists.stem_of(name) for name in self.source.names]

  def mask(self, index: int) -> np.ndarray:
    """Returns the class of each pixel of an image, uint8 `[H, W]`: 0 the background, 255 void.

    Raises:
      SourceError: the file is damaged, has another size than the image, or holds other numbers.
    """
    name = f'{self.masks.root}/{self.masks.names[index]}'
    try:
      data = self.masks[index].data
    except BadImage as error:
      raise SourceError(f'{name}: {error.reason}') from None
    assert isinstance(data, bytes)
    mask = mask_files.decode_mask(data, name=name)
    height, width = self.sizes[index].tolist()
    if mask.shape != (height, width):
      turned = mask.shape == (width, height)
      raise SourceError(
        f'{name} has {mask.shape[1]} x {mask.shape[0]} px, but {self.source.names[index]} {width} '
        f'x {height} px' + (' once it is upright (EXIF orientation)' if turned else '')
      )
    classes = len(self.class_names)
    wrong = np.argwhere((mask >= classes) & (mask != VOID))
    if len(wrong):
      row, column = wrong[0]
      raise SourceError(
        f'{name}: {mask[row, column]} at x = {column}, y = {row} is no class: they are 0 to '
        f'{classes - 1}, and {VOID} is void'
      )
    return mask

  @functools.cached_property
  def fingerprint(self) -> str:
    """Returns a digest of the images, of the files of their masks, and of the classes."""
    told = '\0'.join((self.source.identify(), self.masks.identify(), *self.class_names))
    return hashlib.sha256(told.encode('utf8', 'surrogateescape')).hexdigest()[:32]


def open_masks(
  fields: mask_splits.Fields, *, allow_empty_classes: bool
) -> tuple[Split, Split, tuple[str, ...]]:
  """Opens the training and the test images of a folder, or of two, with their masks.

  Args:
    allow_empty_classes: the test may show no pixel of a class.

  Returns:
    The training split, the test split, the names of the classes, the background first.

  Raises:
    SourceError: with the fault, its place and the remedy.
  """
  more_masks = fields.more_masks and pathlib.PurePath(fields.more_masks).as_posix()
  training, testing = mask_splits.choose_splits(fields._replace(more_masks=more_masks))
  names = mask_lists.read_classes(training.place)
  if (testing.place.root / mask_lists.CLASSES_FILE).exists():
    splits.check_same_classes(names, mask_lists.read_classes(testing.place))
  opened = [_open(each, names, more_masks) for each in (training, testing)]
  seen = _read_all(opened)
  _check_classes(opened, *seen, allow_empty=allow_empty_classes)
  unseen = [tuple(np.flatnonzero(~shown).tolist()) for shown in seen]
  left = [f'{names[number]} is left out: no mask of the test shows it' for number in unseen[1]]
  return (
    dataclasses.replace(opened[0], unseen=unseen[0]),
    dataclasses.replace(opened[1], unseen=unseen[1], notes=[*opened[1].notes, *left]),
    names,
  )


def _open(chosen: mask_splits.Chosen, class_names: tuple[str, ...], more_masks: str) -> Split:
  """Makes the sources of images and masks, and reads the size of each image."""
  root, files = chosen.place.root, list(chosen.files.values())
  added = sum(mask.startswith(f'{more_masks}/') for _, mask in files) if more_masks else 0
  told = f', {added:,} with masks of {more_masks}' if added else ''
  kind = 'SBD' if chosen.place.is_sbd else 'VOC'
  where = f'{kind} {root} ({chosen.split or "with masks"})'
  said = (f'{where}: {len(files):,} images{told}{chosen.told}', f'{where}: {len(files):,} masks')
  images, masks = (
    folder.FileSource(
      root,
      listing.Names.of([each[place] for each in files]),
      labels=np.full(len(files), -1, np.int32),
      description=said[place],
    )
    for place in (0, 1)
  )
  try:
    sizes = [image_sizes.read_size(root / image) for image, _ in files]
  except BadImage as error:
    raise SourceError(f'{error}; take it off the list or replace it') from None
  sides = np.array(sizes, np.int32).reshape(-1, 2)
  return Split(images, masks, sides, chosen.listed, class_names, chosen.notes)


def _read_all(opened: Sequence[Split]) -> list[np.ndarray]:
  """Reads all masks; returns for each split the classes that they show, bool `[K]`."""
  splits.check_held_out(*(each.source for each in opened))
  faults, total = [], sum(map(len, opened))
  seen = [np.zeros(256, bool) for _ in opened]
  with terminal.make_bar(total=total, desc='masks', unit='mask', leave=False, delay=3) as bar:
    for each, shown in zip(opened, seen):
      for index in range(len(each)):
        try:
          shown[each.mask(index)] = True
        except SourceError as error:
          faults.append(str(error))
        bar.update()
  if faults:
    more = f' (here {_NAMED} of them)' if len(faults) > _NAMED else ''
    raise SourceError(
      f'{len(faults):,} of the {total:,} masks cannot be used{more}:', *faults[:_NAMED]
    )
  return [shown[: len(each.class_names)] for each, shown in zip(opened, seen)]


def _check_classes(
  opened: Sequence[Split], training: np.ndarray, testing: np.ndarray, *, allow_empty: bool
) -> None:
  """Refuses classes that only the test shows, and those that the test does not show."""
  names = opened[0].class_names
  untrained, untested = (
    [names[number] for number in np.flatnonzero(chosen)]
    for chosen in (testing & ~training, ~testing)
  )
  if untrained:
    raise SourceError(
      f'{len(untrained)} of the {len(names)} classes are in masks of the test and in none of the '
      f'training: {", ".join(untrained[: splits.NAMED])}; move an image with it to the '
      'training, or hold out others (data.val_fraction)'
    )
  if untested and not (allow_empty and testing.any()):
    raise SourceError(
      f'{len(untested)} of the {len(names)} classes are in no mask of the test: '
      f'{", ".join(untested[: splits.NAMED])}',
      f'data.allow_empty_classes=True leaves them out; classes of your own are named in '
      f'{opened[0].source.root}/{mask_lists.CLASSES_FILE}, a line each; {VOID} in a mask is void',
    )
