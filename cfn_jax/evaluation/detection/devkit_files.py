"""Detections as files: those of the VOC devkit, one a class, and one JSON file.

A devkit file is `comp3_det_<split>_<class>.txt`; a line is the image, the score, and the box, whose
pixels count from 1 there. In the JSON file they count from 0, as everywhere here. Nine digits hold
every float32 score, so a file says the same order as the arrays. After average_precision.py.
"""

import json
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from cfn_jax import names, places
from cfn_jax.data import text_lists
from cfn_jax.data.record import SourceError
from cfn_jax.evaluation.detection import average_precision

_DIGITS = 9
_BOXES = 'x1, y1, x2, y2 in pixels from 0, ends included'


def name_file(split: str, class_name: str) -> str:
  """Returns the name of a class's file; what no file name should hold is written as %XX.

  >>> name_file('test', 'cat'), name_file('val', 'traffic light/red')
  ('comp3_det_test_cat.txt', 'comp3_det_val_traffic%20light%2Fred.txt')
  """
  return f'comp3_det_{names.file_part(split or "all")}_{names.file_part(class_name)}.txt'


def write_devkit(
  folder: pathlib.Path,
  detections: Sequence[average_precision.Detections],
  *,
  split: str,
  class_names: Sequence[str],
  stems: Sequence[str],
) -> list[pathlib.Path]:
  """Writes a file for each class into a folder, which is made.

  Args:
    detections: of each class.
    split: the name of the list; '' is written as 'all'.
    stems: the names, without a suffix, of the images.

  Returns:
    The files.
  """
  folder.mkdir(parents=True, exist_ok=True)
  paths = []
  for name, each in zip(class_names, detections, strict=True):
    numbers = np.concatenate([each.scores[:, None], each.boxes + np.float64(1)], axis=1)
    form = ' '.join([f'%.{_DIGITS}g'] * 5)
    lines = (
      f'{stems[image]} {form % tuple(row)}\n' for image, row in zip(each.images, numbers.tolist())
    )
    paths.append(folder / name_file(split, name))
    _write(paths[-1], lines)
  return paths


def read_devkit(
  folder: pathlib.Path, *, split: str, class_names: Sequence[str], stems: Sequence[str]
) -> list[average_precision.Detections]:
  """Reads what `write_devkit` wrote, or any program that keeps to the devkit's form.

  Returns:
    The detections of each class, in the order of its file; float32.

  Raises:
    SourceError: a file is missing, or a line says no detection of an image of the list.
  """
  places = {stem: place for place, stem in enumerate(stems)}
  return [_read_class(folder / name_file(split, name), places) for name in class_names]


def _read_class(path: pathlib.Path, places: dict[str, int]) -> average_precision.Detections:
  images, rows = [], []
  for number, line in enumerate(text_lists.read_lines(path), start=1):
    if not line:
      continue
    stem, *words = line.rsplit(maxsplit=5)
    try:
      rows.append([float(word) for word in words])
      complete = len(words) == 5
    except ValueError:
      complete = False
    if not complete or stem not in places:
      wrong = 'an image, a score and a box are expected' if stem in places else 'no such image'
      raise SourceError(f'{path}, line {number}: {line[:60]!r}: {wrong}')
    images.append(places[stem])
  table = np.array(rows).reshape(-1, 5)
  return average_precision.Detections(
    np.array(images, np.int64),
    table[:, 0].astype(np.float32),
    (table[:, 1:] - 1).astype(np.float32),
  )


def write_json(
  path: pathlib.Path,
  detections: Sequence[average_precision.Detections],
  *,
  split: str,
  class_names: Sequence[str],
  stems: Sequence[str],
) -> None:
  """Writes all detections into one JSON file: by image, the highest score first.

  Arguments as in `write_devkit`; an image without a detection stands there with an empty list.
  """
  _write(path, _json_lines(detections, split=split, class_names=class_names, stems=stems))


def _json_lines(
  detections: Sequence[average_precision.Detections],
  *,
  split: str,
  class_names: Sequence[str],
  stems: Sequence[str],
) -> Iterator[str]:
  images = np.concatenate([each.images for each in detections])
  classes = np.repeat(np.arange(len(detections)), [len(each.images) for each in detections])
  numbers = np.concatenate([np.column_stack([each.scores, each.boxes]) for each in detections])
  order = np.lexsort((-numbers[:, 0], images))
  bounds = np.searchsorted(images[order], np.arange(len(stems) + 1))
  head = {'split': split, 'boxes': _BOXES, 'classes': list(class_names)}
  named = [json.dumps(name) for name in class_names]
  form = f'%.{_DIGITS}g'
  entry = f'{{"class": %s, "score": {form}, "box": [{", ".join([form] * 4)}]}}'
  yield json.dumps(head)[:-1] + ', "images": {'
  for place, stem in enumerate(stems):
    own = order[bounds[place] : bounds[place + 1]]
    shown = [
      entry % (named[number], *row) for number, row in zip(classes[own], numbers[own].tolist())
    ]
    yield f'{"," if place else ""}\n{json.dumps(stem)}: [{", ".join(shown)}]'
  yield '\n}}\n'


def _write(path: pathlib.Path, lines: Iterator[str]) -> None:
  with (
    places.replacing(path) as temporary,
    temporary.open('w', encoding='utf-8', errors='surrogateescape') as file,
  ):
    file.writelines(lines)
