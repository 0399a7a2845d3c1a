"""Splits images with masks into a training set and a test set that share none.

The lists come from mask_lists.py; used by voc_masks.py.
"""

import filecmp
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from cfn_jax.data import folder, listing, mask_lists
from cfn_jax.data.record import SourceError

LEAVE_TEST, LEAVE_TRAINING = SHARED_IMAGES = ('leave_test', 'leave_training')


class Chosen(NamedTuple):
  """Images of a split, and notes about them."""

  place: mask_lists.Place
  split: str
  files: mask_lists.Files
  listed: tuple[str, ...]
  notes: list[str]
  told: str = ''

  def without(self, left: Sequence[str], other: str) -> 'Chosen':
    """Leaves out images that the other split lists too, with a note."""
    files = dict(self.files)
    why = f'the list of the {other} holds it too'
    notes = [f'{files.pop(stem)[0]} is left out: {why}' for stem in left]
    told = f'; {len(left):,} left out that the list of the {other} holds too' if left else ''
    return self._replace(files=files, notes=[*self.notes, *notes], told=self.told + told)


class Fields(NamedTuple):
  """The fields of a config about the images.

  Attributes:
    root: a folder of either layout.
    split: a list of the training folder; '' if it has none: each image that has a mask.
    val_root: a second folder, for the test; '': root.
    val_split: as split, for the test.
    val_fraction: share held out by a hash of the names, if no other folder or list is named.
    sbd_root: a folder of SBD, whose list `split` is the training set instead; '': root's is.
    shared_images: the set that an image in both lists leaves: 'leave_test' or 'leave_training'.
    more_masks: a folder in root with masks of images that have none in `SegmentationClass`. Those
      of `ImageSets/Main/<split>.txt` that neither split lists train too. '': off.
  """

  root: str
  split: str
  val_root: str
  val_split: str
  val_fraction: float
  sbd_root: str
  shared_images: str
  more_masks: str


def choose_splits(fields: Fields) -> tuple[Chosen, Chosen]:
  """Chooses the images of the training and of the test; see `voc_masks.open_masks`."""
  _check_fields(fields)
  root, split, val_root, val_split, val_fraction, sbd_root, shared_images, more_masks = fields
  where = 'data.sbd_root' if sbd_root else 'data.root'
  place = mask_lists.find_place(sbd_root or root, where)
  if sbd_root and not place.is_sbd:
    raise SourceError(f'{where} = {sbd_root}: it has no folders dataset/img and dataset/cls')
  training = _choose(place, split, 'data.split', more_masks)
  if val_root or val_split or (sbd_root and root):
    where = 'data.val_root' if val_root else 'data.root' if root else where
    place = mask_lists.find_place(val_root or root or sbd_root, where)
    testing = _choose(place, val_split, 'data.val_split')
  else:
    training, testing = _hold_out(training, val_fraction)
  extra = mask_lists.list_more(training.place, split, more_masks)
  training, testing = _part(training, testing, extra, shared_images)
  used = any(mask.startswith(f'{more_masks}/') for _, mask in training.files.values())
  if more_masks and not used:
    raise SourceError(
      f"data.more_masks = '{more_masks}' adds no image: those of the list '{split}' in "
      f'{training.place.root}/ImageSets/Main that have a mask there would train, unless a list of '
      "segmentation names them; set data.more_masks=''"
    )
  return training, testing


def _check_fields(fields: Fields) -> None:
  root, _, val_root, _, _, sbd_root, shared_images, more_masks = fields
  if shared_images not in SHARED_IMAGES:
    raise SourceError(
      f"data.shared_images = '{shared_images}': it must be one of {', '.join(SHARED_IMAGES)}"
    )
  if not root and not sbd_root:
    raise SourceError('data.root is empty: it names a VOC folder such as VOCdevkit/VOC2012')
  if root and val_root and sbd_root:
    raise SourceError(
      f'data.root = {root} has no effect: data.sbd_root is the training, data.val_root the test; '
      "set data.root=''"
    )
  if more_masks and sbd_root:
    raise SourceError(
      f"data.more_masks = '{more_masks}' is a folder in data.root, whose images do not train where "
      'data.sbd_root is set: set one of them'
    )


def _choose(place: mask_lists.Place, split: str, field: str, more_masks: str = '') -> Chosen:
  files = mask_lists.list_files(place, split, field=field, more_masks=more_masks)
  chosen = Chosen(place, split, files, tuple(files), [])
  unmasked = mask_lists.list_unmasked(place, more_masks)
  if not unmasked:
    return chosen
  return chosen._replace(
    notes=[f'{name} is left out: it has no mask' for name in unmasked],
    told=f'; {len(unmasked):,} without a mask (such as {unmasked[0]})',
  )


def _hold_out(whole: Chosen, val_fraction: float) -> tuple[Chosen, Chosen]:
  """Splits a list by a hash of the names."""
  names = listing.Names.of([image for image, _ in whole.files.values()])
  held_out = folder.hash_split(
    names, val_fraction, where=whole.split or whole.place.root, instead='data.val_split'
  )
  parts = (
    {stem: each for (stem, each), held in zip(whole.files.items(), held_out) if held == wanted}
    for wanted in (False, True)
  )
  training, testing = (whole._replace(files=files) for files in parts)
  return training, testing._replace(notes=[], told='; held out')


def _part(
  training: Chosen, testing: Chosen, extra: mask_lists.Files, shared_images: str
) -> tuple[Chosen, Chosen]:
  """Adds images of no list to the training set, and removes images of both lists from one."""
  known = set(training.listed)
  extra = {stem: each for stem, each in extra.items() if stem not in known}
  extended = training._replace(files={**training.files, **extra})
  shared = _find_shared(extended, testing)
  for stem in shared & extra.keys():
    del extended.files[stem]
  left = [stem for stem in testing.files if stem in shared and stem not in extra]
  if shared_images == LEAVE_TEST:
    testing = testing.without(left, 'training')
  else:
    extended = extended.without(left, 'test')
  for each in (extended, testing):
    if left and not each.files:
      raise SourceError(
        f"data.shared_images = '{shared_images}': all {len(left):,} images of '{each.split}' in "
        f'{each.place.root} are in the other list too, and none would be left; name another list'
      )
  return extended, testing


def _find_shared(training: Chosen, testing: Chosen) -> set[str]:
  """Returns the stems of images that both splits hold.

  SBD's images are VOC's by name. For other folders the names prove nothing: the files must be
  equal.
  """
  both = training.files.keys() & testing.files.keys()
  if training.place.is_sbd or testing.place.is_sbd or training.place.root == testing.place.root:
    return both
  return {
    stem
    for stem in both
    if _agree(*(each.place.root / each.files[stem][0] for each in (training, testing)))
  }


def _agree(first: pathlib.Path, second: pathlib.Path) -> bool:
  """Returns whether two files are equal, byte by byte; an unreadable one is refused later."""
  try:
    return filecmp.cmp(first, second, shallow=False)
  except OSError:
    return False
