"""Writes detections to files: one per class for the VOC devkit, and one JSON file.

A devkit file is `comp3_det_<split>_<class>.txt`. A line has the image, the score, and the box,
whose pixels count from 1 there. In the JSON file they count from 0, as everywhere here. Nine digits
hold every float32 score, so a file has the same order as the arrays. It follows
average_precision.py.
"""

import json
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from cfn_jax import names, places
from cfn_jax.evaluation.detection import average_precision

_DIGITS = 9
_BOXES = 'x1, y1, x2, y2 in pixels from 0, ends included'


def name_file(split: str, class_name: str) -> str:
  """Returns the name of a class's file; characters that do not belong there become %XX.

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
  """Writes a file for each class to a folder, which it makes.

  Args:
    detections: those of each class.
    split: the name of the list; '' becomes 'all'.
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


def write_json(
  path: pathlib.Path,
  detections: Sequence[average_precision.Detections],
  *,
  split: str,
  class_names: Sequence[str],
  stems: Sequence[str],
) -> None:
  """Writes all detections to one JSON file, by image, the highest score first.

  Arguments as in `write_devkit`. An image without a detection has an empty list.
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
