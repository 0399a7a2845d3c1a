"""The objects of VOC images, of any classes; all are read and checked before training.

voc.py opens the images, voc_annotations.py reads an annotation. Used by the detection and by
voc_crops.py.
"""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Sequence

import ml_collections
import numpy as np

from cfn_jax import places
from cfn_jax.data import boxes, splits, voc, voc_annotations
from cfn_jax.data.record import SourceError

ON_BAD_BOX = ('fail', 'clip')
MIN_SIDE_PX = 2


@dataclasses.dataclass(frozen=True)
class Objects:
  """The objects of one image, in the order of its file.

  Attributes:
    boxes: float32 `[n, 4]`.
    classes: int32 `[n]`, indices into the class names.
    difficult: bool `[n]`.
    size_px: height and width of the upright image.
  """

  boxes: np.ndarray
  classes: np.ndarray
  difficult: np.ndarray
  size_px: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Split:
  """The images of a split and their objects.

  Attributes:
    objects: those of each record of `source`, in order.
    listed: the whole list that the split names, as stems; the records may be a part of it.
    notes: a sentence about each omission or change.
  """

  source: voc.VocSource
  objects: tuple[Objects, ...]
  listed: tuple[str, ...]
  notes: list[str]

  @functools.cached_property
  def fingerprint(self) -> str:
    """Returns a digest of the images and of their objects."""
    digest = hashlib.sha256(self.source.identify().encode())
    for each in self.objects:
      digest.update(f'{len(each.classes)} {each.size_px}'.encode())
      for array in (each.boxes, each.classes, each.difficult):
        digest.update(array.tobytes())
    return digest.hexdigest()[:32]


def open_config(
  config: ml_collections.ConfigDict, *, count_difficult: bool = False
) -> tuple[Split, Split, tuple[str, ...]]:
  """Opens the section `data` of a config; see `open_objects`."""
  d = config.data
  return open_objects(
    root=d.root,
    split=d.split,
    val_root=d.val_root,
    val_split=d.val_split,
    val_fraction=d.val_fraction,
    on_bad_box=d.on_bad_box,
    allow_empty_classes=d.allow_empty_classes,
    count_difficult=count_difficult,
  )


def open_objects(
  *,
  root: str,
  split: str,
  val_root: str,
  val_split: str,
  val_fraction: float,
  on_bad_box: str,
  allow_empty_classes: bool,
  count_difficult: bool = False,
) -> tuple[Split, Split, tuple[str, ...]]:
  """Opens the training and the test images of a VOC folder, or of two, with their objects.

  Args:
    root, split, val_root, val_split, val_fraction: see `sources.open_sources`, kind 'voc'.
    on_bad_box: for a box that is reversed, not finite, under 2 px wide or high, or partly outside
      its image: 'fail', or 'clip', which cuts it to the image or drops it, with a note.
    allow_empty_classes: the test may show no object of a class, or difficult ones alone.
    count_difficult: difficult objects of the test count like others.

  Returns:
    The training split, the test split, the sorted names of the classes.

  Raises:
    SourceError: with the fault, its place and the remedy.
  """
  if on_bad_box not in ON_BAD_BOX:
    raise SourceError(
      f"data.on_bad_box = '{on_bad_box}': it must be one of {', '.join(ON_BAD_BOX)}"
    )
  if not root:
    raise SourceError('data.root is empty: it names a VOC folder such as VOCdevkit/VOC2007')
  opened = voc.open_voc(
    places.local(root),
    split=split,
    val_root=val_root,
    val_split=val_split,
    val_fraction=val_fraction,
  )
  splits.check_held_out(*opened)
  read = [_read_source(source) for source in opened]
  if on_bad_box == 'fail':
    _refuse_bad_boxes([each for part in read for each in part])
  notes: list[list[str]] = [
    [f'{left["name"]} is left out: {left["reason"]}' for left in source.left_out]
    for source in opened
  ]
  mended = [[_mend(each, said) for each in part] for part, said in zip(read, notes)]
  shown = [tuple(sorted({name for each in part for name in each.names})) for part in read]
  kept = [tuple(sorted({name for each in part for name in each.names})) for part in mended]
  _check_classes(opened, shown, kept, allow_empty=allow_empty_classes)
  if not count_difficult:
    _check_counted(mended[1], kept[1], allow_empty=allow_empty_classes)
  numbers = {name: number for number, name in enumerate(shown[0])}
  training, testing = (
    Split(
      source,
      tuple(_number(each, numbers) for each in part),
      tuple(voc.stem_of(name) for name in source.listed),
      said,
    )
    for source, part, said in zip(opened, mended, notes)
  )
  return training, testing, shown[0]


def _check_classes(
  opened: Sequence[voc.VocSource],
  shown: Sequence[tuple[str, ...]],
  kept: Sequence[tuple[str, ...]],
  *,
  allow_empty: bool,
) -> None:
  """Refuses splits of different classes, and classes that lost all of their boxes.

  Args:
    shown, kept: the classes of training and test, in the files and with valid boxes.
  """
  for source, names in zip(opened, shown):
    if not names:
      raise SourceError(f'{source.description}: no annotation holds an object')
  splits.check_same_classes(*shown, allow_missing=allow_empty)
  for where, before, after in zip(('training', 'test'), shown, kept):
    lost = [name for name in before if name not in after]
    if lost and (where == 'training' or not allow_empty):
      raise SourceError(
        f'no box of {len(lost)} of the {len(before)} classes of the {where} can be used: '
        f'{", ".join(lost[: splits.NAMED])}'
      )


def _check_counted(
  testing: Sequence[voc_annotations.Annotation], names: Sequence[str], *, allow_empty: bool
) -> None:
  """Refuses a test in which all objects of a class are difficult: they do not count."""
  counted = {
    name for each in testing for name, difficult in zip(each.names, each.difficult) if not difficult
  }
  without = [name for name in names if name not in counted]
  if without and not (allow_empty and counted):
    hint = '; data.allow_empty_classes=True scores the others' if counted else ''
    raise SourceError(
      f'all test objects of {len(without)} of the {len(names)} classes are marked as difficult, '
      f'which do not count: {", ".join(without[: splits.NAMED])}{hint}'
    )


def _read_source(source: voc.VocSource) -> list[voc_annotations.Annotation]:
  root = pathlib.Path(source.root)
  files = [root / 'Annotations' / f'{stem}.xml' for stem in source.stems()]
  missing = [file.name for file in files if not file.is_file()]
  if missing:
    raise SourceError(
      f'{len(missing):,} of the {len(files):,} images have no file in {root / "Annotations"}, such '
      f'as {", ".join(missing[: splits.NAMED])}'
    )
  return [
    voc_annotations.read_annotation(file, root / name) for file, name in zip(files, source.names)
  ]


def _faults(each: voc_annotations.Annotation) -> list[str]:
  """Returns the fault of each box; '' for a valid one."""
  height, width = each.size_px
  return [_fault(box, height, width) for box in each.boxes]


def _fault(box: np.ndarray, height: int, width: int) -> str:
  if not np.isfinite(box).all():
    return 'not finite'
  if box[2] < box[0] or box[3] < box[1]:
    return 'reversed'
  if min(box[2] - box[0], box[3] - box[1]) + 1 < MIN_SIDE_PX:
    return f'under {MIN_SIDE_PX} px'
  outside = min(box[0], box[1]) < 0 or box[2] > width - 1 or box[3] > height - 1
  return 'outside' if outside else ''


def _tell(each: voc_annotations.Annotation, place: int) -> str:
  """Returns a box as in its file, counted from 1."""
  height, width = each.size_px
  ends = ', '.join(f'{end:g}' for end in each.boxes[place] + 1)
  return f'{each.file}: {each.names[place]} ({ends}) of {width} x {height} px'


def _refuse_bad_boxes(read: Sequence[voc_annotations.Annotation]) -> None:
  bad = [
    f'{_tell(each, place)}, {fault}'
    for each in read
    for place, fault in enumerate(_faults(each))
    if fault
  ]
  if bad:
    total = sum(len(each.names) for each in read)
    raise SourceError(
      f'{len(bad):,} of the {total:,} boxes are not in their images, or are no boxes:',
      '; '.join(bad[: splits.NAMED]) + ('; ...' if len(bad) > splits.NAMED else ''),
      "data.on_bad_box='clip' cuts boxes to their images, and drops those that are reversed, not "
      f'finite, or under {MIN_SIDE_PX} px wide or high then',
    )


def _mend(each: voc_annotations.Annotation, notes: list[str]) -> voc_annotations.Annotation:
  """Returns the valid boxes, cut to the image, and notes about the others."""
  kept, cut = [], each.boxes.copy()
  for place, fault in enumerate(_faults(each)):
    if fault == 'outside':
      cut[place] = boxes.clip(cut[place], *each.size_px)
      still = _fault(cut[place], *each.size_px)
      fault = still and f'outside, and cut to its image {still}'
      if not fault:
        notes.append(f'{_tell(each, place)} is cut to its image')
    if fault:
      notes.append(f'{_tell(each, place)} is dropped: {fault}')
    else:
      kept.append(place)
  return dataclasses.replace(
    each,
    names=[each.names[place] for place in kept],
    boxes=cut[kept],
    difficult=[each.difficult[place] for place in kept],
  )


def _number(each: voc_annotations.Annotation, numbers: dict[str, int]) -> Objects:
  return Objects(
    each.boxes,
    np.array([numbers[name] for name in each.names], np.int32),
    np.array(each.difficult, bool),
    each.size_px,
  )
