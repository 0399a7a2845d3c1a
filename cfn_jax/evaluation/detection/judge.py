"""Judges the rows of a pass over test images: detections, figures, files, a sheet.

Source: the test of fast-rcnn and the VOC devkit. It follows the network (detector.py). The rules
are in suppression.py and average_precision.py.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from cfn_jax.data import pipeline, voc_objects
from cfn_jax.evaluation import scores
from cfn_jax.evaluation.detection import (
  average_precision,
  bootstrap,
  devkit_files,
  suppression,
)
from cfn_jax.pictures import detections as pictures
from cfn_jax.pictures import figures

FOLDER, SHEET = 'detections', 'detections.png'
SHOWN_SCORE = 0.5  # the sheet shows boxes with this score or more,
SHOWN_BOXES = 4  # and at least this number of an image's best ones


@dataclasses.dataclass(frozen=True)
class Judge:
  """Judges the rows of a pass, of `found` `[N, K, n, 5]` and `record` `[N]`.

  Attributes:
    split: the name of the test's list, for the devkit's files.
    threshold: overlap at which the box of the lower score is dropped.
    mean_per_image: see `limit_mean`.
  """

  images: voc_objects.Split
  reader: pipeline.Reader
  class_names: tuple[str, ...]
  split: str
  threshold: float
  mean_per_image: int

  def watch(self, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns the figures that are logged in training; rows as above, `found` `[N, K, n, 5]`."""
    return _means(self._judge(rows['record'], self.find(rows['found'])))

  def report(self, folder: pathlib.Path, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns all figures of rows `found` `[N, K, n, 5]`; writes detections and a sheet of them."""
    found = self.find(rows['found'])
    judged = self._judge(rows['record'], found)
    if not jax.process_index():
      self._write(folder / FOLDER, rows['record'], found)
      with figures.spared(folder / SHEET):
        self._draw(folder / SHEET, rows['record'], found)
    right = sum(int(np.sum(each.verdicts == average_precision.RIGHT)) for each in judged.judged)
    return {
      **_means(judged),
      **scores.keep_draws('val_map_11_point', bootstrap.draw_means(judged)),
      'val_detections': sum(len(each.scores) for each in found),
      'val_recall': right / max(1, sum(judged.positives.values())),
      'per_class': {
        'average_precision': judged.area,
        'average_precision_11_point': judged.eleven_points,
        'positives': judged.positives,
      },
      'classes_without_figure': list(judged.without),
    }

  def find(self, found: np.ndarray) -> list[average_precision.Detections]:
    """Returns the detections of each class in `[N, K, n, 5]`, by image in the order of the rows."""
    found = limit_mean(found, self.mean_per_image)
    kept = suppression.suppress_groups(found, self.threshold)
    return average_precision.gather_detections(found, kept)

  def _judge(
    self, records: np.ndarray, found: Sequence[average_precision.Detections]
  ) -> average_precision.Scores:
    objects = [self.images.objects[each] for each in records]
    return average_precision.judge_classes(found, objects, self.class_names)

  def _write(
    self, folder: pathlib.Path, records: np.ndarray, found: Sequence[average_precision.Detections]
  ) -> None:
    """Writes the devkit's files, and one of JSON."""
    stems = self.images.source.stems()
    named: dict[str, Any] = {
      'split': self.split,
      'class_names': self.class_names,
      'stems': [stems[each] for each in records],
    }
    devkit_files.write_devkit(folder, found, **named)
    devkit_files.write_json(folder / 'detections.json', found, **named)

  def _draw(
    self, path: pathlib.Path, records: np.ndarray, found: Sequence[average_precision.Detections]
  ) -> None:
    """Draws images that are evenly spaced over the pass, the same for every run."""
    chosen = np.unique(np.linspace(0, len(records) - 1, pictures.MOST).astype(int))
    shown = []
    for row in chosen.tolist():
      record, image = self.reader.decode(int(records[row]))
      boxes, classes = gather_image(found, row)
      clear = max(SHOWN_BOXES, int(np.sum(boxes[:, 4] >= SHOWN_SCORE)))
      boxes, classes = boxes[:clear], classes[:clear]
      objects = self.images.objects[records[row]]
      verdicts, missed = average_precision.judge_image(boxes, classes, objects)
      shown.append(pictures.Shown(image, record.name, objects, missed, boxes, classes, verdicts))
    pictures.draw_sheet(
      path,
      shown,
      self.class_names,
      title=f'boxes of score {SHOWN_SCORE} and more, at least the best {SHOWN_BOXES} of an image',
    )


def gather_image(
  found: Sequence[average_precision.Detections], row: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the boxes `[n, 5]` and classes `[n]` found in one image, by falling score."""
  own = [each.images == row for each in found]
  boxes = np.concatenate(
    [np.column_stack([each.boxes[at], each.scores[at]]) for each, at in zip(found, own)]
  )
  classes = np.repeat(np.arange(len(found)), [int(at.sum()) for at in own])
  order = np.argsort(-boxes[:, 4], kind='stable')
  return boxes[order], classes[order]


def limit_mean(found: np.ndarray, mean_per_image: int) -> np.ndarray:
  """Keeps the best boxes of each class over all images, and empties the other places.

  Source: fast-rcnn's test, whose threshold leaves 40 boxes per image of each class on average.

  Args:
    found: `[N, K, n, 5]`, boxes with their scores last.
    mean_per_image: if a class has more boxes than this times N, the box of that rank and all below
      it are removed; 0: none.
  """
  most = mean_per_image * len(found)
  scores = found[..., 4].swapaxes(0, 1).reshape(found.shape[1], -1)  # [K, N * n]
  if not most or most >= scores.shape[1]:
    return found
  least = -np.partition(-scores, most - 1, axis=1)[:, most - 1]
  least[np.sum(scores > -np.inf, axis=1) <= most] = -np.inf
  found = found.copy()
  found[..., 4][found[..., 4] <= least[:, None]] = -np.inf
  return found


def _means(judged: average_precision.Scores) -> dict[str, Any]:
  return {
    'val_map': judged.mean_area,
    'val_map_11_point': judged.mean_eleven_points,
    'val_count': len(judged.judged[0].positives),
  }
