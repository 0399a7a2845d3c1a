"""The classes that VOC images show: labels of several classes, for the images of a list.

Source: the VOC devkit. `ImageSets/Main/<class>_<split>.txt` has -1 (absent), 1 (present) or 0 (only
difficult objects) for each image. The annotations say the same object by object. 0 is neither
trained on nor scored. Used by the VOC classification; voc.py opens the images.
"""

import collections
import pathlib
import xml.etree.ElementTree

import numpy as np

from cfn_jax.data import listing, text_lists
from cfn_jax.data.record import SourceError

CLASSES = (
  'aeroplane',
  'bicycle',
  'bird',
  'boat',
  'bottle',
  'bus',
  'car',
  'cat',
  'chair',
  'cow',
  'diningtable',
  'dog',
  'horse',
  'motorbike',
  'person',
  'pottedplant',
  'sheep',
  'sofa',
  'train',
  'tvmonitor',
)
IGNORED = 255
ORIGINS = ('lists', 'annotations')
_VALUES = {'-1': 0, '1': 1, '0': IGNORED}


def read_labels(
  root: pathlib.Path, split: str, stems: list[str], *, origin: str = 'lists'
) -> tuple[np.ndarray, tuple[str, ...]]:
  """Reads the labels of some images of a split.

  Args:
    root: a folder such as `VOCdevkit/VOC2007`.
    split: the name of the list.
    stems: the images' names without a suffix.
    origin: 'lists' (`<class>_<split>.txt`) or 'annotations'.

  Returns:
    uint8 `[n, K]`, 0, 1 or `IGNORED`; the class names.

  Raises:
    SourceError: files are missing or malformed, or an image has no label.
  """
  if origin not in ORIGINS:
    raise SourceError(f"data.labels = '{origin}' is unknown: one of {', '.join(ORIGINS)}")
  if origin == 'annotations':
    rows = [_read_annotation(root / 'Annotations' / f'{stem}.xml') for stem in stems]
    return np.array(rows, np.uint8).reshape(len(stems), len(CLASSES)), CLASSES
  folder = root / 'ImageSets' / 'Main'
  suffix = f'_{split}.txt'
  names = tuple(
    sorted(
      path.name.removesuffix(suffix)
      for path in folder.glob(f'*{suffix}')
      if not listing.is_passed_over(path.name)
    )
  )
  if not names:
    raise SourceError(
      f'{folder} has no list <class>{suffix}, which says what each image shows; with '
      "data.labels = 'annotations' the XML files are read instead"
    )
  columns = []
  for name in names:
    path = folder / f'{name}{suffix}'
    values = _read_list(path)
    absent = [stem for stem in stems if stem not in values]
    if absent:
      raise SourceError(
        f'{path} says nothing of {len(absent):,} of the {len(stems):,} images of {split}, such as '
        f'{absent[0]}'
      )
    columns.append([values[stem] for stem in stems])
  return np.array(columns, np.uint8).T.copy(), names


def _read_list(path: pathlib.Path) -> dict[str, int]:
  values = {}
  for number, line in enumerate(text_lists.read_lines(path), start=1):
    words = line.rsplit(maxsplit=1)
    if not words:
      continue
    if len(words) != 2 or words[1] not in _VALUES:
      raise SourceError(
        f'{path}, line {number}: {line[:60]!r}: an image and -1, 0 or 1 are expected'
      )
    values[words[0]] = _VALUES[words[1]]
  return values


def _read_annotation(path: pathlib.Path) -> list[int]:
  """Returns an image's labels from its objects; one without a `difficult` tag is not difficult."""
  try:
    objects = xml.etree.ElementTree.parse(path).getroot().findall('object')
  except (OSError, xml.etree.ElementTree.ParseError) as error:
    raise SourceError(f'{path} cannot be read: {error}') from None
  easy: collections.Counter[str] = collections.Counter()
  hard: collections.Counter[str] = collections.Counter()
  for each in objects:
    name = (each.findtext('name') or '').strip()
    if name not in CLASSES:
      raise SourceError(f'{path}: an object of the class {name!r}, which VOC does not have')
    difficult = (each.findtext('difficult') or '0').strip() == '1'
    (hard if difficult else easy)[name] += 1
  return [1 if easy[name] else IGNORED if hard[name] else 0 for name in CLASSES]
