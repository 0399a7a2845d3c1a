"""Judges the rows of a pass over test images: figures, predicted masks, a sheet.

It follows the network (segmenter.py). confusion.py has the figures.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from cfn_jax.data import pipeline, voc_masks
from cfn_jax.evaluation import scores
from cfn_jax.evaluation.segmentation import confusion, mask_pngs
from cfn_jax.pictures import figures
from cfn_jax.pictures import segmentations as pictures
from cfn_jax.training import metrics

FOLDER, SHEET = 'predictions', 'segmentations.png'


@dataclasses.dataclass(frozen=True)
class Judge:
  """Judges the rows of a pass, of `pixels` `[N, K, K]` and `record` `[N]`.

  Attributes:
    split: the name of the test's list, for the devkit's folder.
  """

  masks: voc_masks.Split
  reader: pipeline.Reader
  split: str

  def watch(self, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns the figures that are logged in training, of rows `pixels` `[N, K, K]`."""
    return self._means(rows['pixels'].sum(axis=0, dtype=np.int64)) | {
      'val_count': len(rows['record'])
    }

  def report(self, folder: pathlib.Path, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns all figures; writes masks and a sheet of them to a run's folder.

    Args:
      rows: with `answer`, uint8 `[N, H, W]`, each image at the top left.
    """
    metrics.check_seen(len(rows['pixels']), 'test')
    total = rows['pixels'].sum(axis=0, dtype=np.int64)
    if not jax.process_index():
      self._write(folder / FOLDER / mask_pngs.name_folder(self.split), rows)
      with figures.spared(folder / SHEET):
        self._draw(folder / SHEET, rows)
    left_out = self.masks.unseen
    found = confusion.measure(total, left_out=left_out)
    drawn = confusion.draw_means(rows['pixels'], left_out=left_out)
    background = np.zeros_like(total)
    background[:, 0] = total.sum(axis=1)
    names = self.masks.class_names
    return {
      **self.watch(rows),
      **scores.keep_draws('val_mean_iou', drawn),
      'per_class': {
        'iou': dict(zip(names, found.iou.tolist())),
        'accuracy': dict(zip(names, found.accuracy.tolist())),
        'pixels': dict(zip(names, total.sum(axis=1).tolist())),
      },
      'all_background': self._means(background),
      'classes_without_figure': [
        name for name, iou in zip(names, found.iou) if not np.isfinite(iou)
      ],
      'pixels': total.tolist(),
    }

  def _means(self, pixels: np.ndarray) -> dict[str, float]:
    found = confusion.measure(pixels, left_out=self.masks.unseen)
    names = ('mean_iou', 'mean_accuracy', 'pixel_accuracy', 'frequency_weighted_iou')
    return {f'val_{name}': getattr(found, name) for name in names}

  def _answer(self, rows: Mapping[str, np.ndarray], row: int) -> tuple[int, np.ndarray]:
    """Returns the record of a row, and its answer at the image's own size."""
    record = int(rows['record'][row])
    height, width = self.masks.sizes[record]
    return record, rows['answer'][row, :height, :width]

  def _write(self, folder: pathlib.Path, rows: Mapping[str, np.ndarray]) -> None:
    stems = self.masks.stems()
    shown = {stems[record] for record in rows['record']}
    for path in folder.rglob('*.png'):  # left by a pass over other images
      if path.relative_to(folder).with_suffix('').as_posix() not in shown:
        path.unlink()
    for row in range(len(rows['record'])):
      record, answer = self._answer(rows, row)
      mask_pngs.write_mask(folder, stems[record], answer)

  def _draw(self, path: pathlib.Path, rows: Mapping[str, np.ndarray]) -> None:
    """Draws images that are evenly spaced over the pass, the same for every run."""
    chosen = np.unique(np.linspace(0, len(rows['record']) - 1, pictures.MOST).astype(int))
    shown = []
    for row in chosen.tolist():
      record, answer = self._answer(rows, row)
      found, image = self.reader.decode(record)
      truth = self.masks.mask(record)
      counted = confusion.count(truth, answer, len(self.masks.class_names))
      iou = confusion.measure(counted, left_out=self.masks.unseen).mean_iou
      shown.append(pictures.Shown(image, found.name, truth, answer, iou))
    title = f'{len(shown)} of {len(rows["record"]):,} test images'
    pictures.draw_sheet(path, shown, self.masks.class_names, title=title)
