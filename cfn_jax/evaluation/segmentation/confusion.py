"""Scores a segmentation: pixels counted by true and predicted class, and their figures.

Source: FCN's score.py and the VOC devkit: one histogram over all pixels of a test, without void
ones; background is a class. The interval of a mean comes from a bootstrap over the images of the
test, as for detection: each draw takes the same number of images, with replacement, and training is
not repeated.
"""

import dataclasses
import math
from collections.abc import Collection

import numpy as np

from cfn_jax.evaluation import scores

VOID = 255


@dataclasses.dataclass(frozen=True)
class Scores:
  """Figures of a test, between 0 and 1; nan for a division by 0.

  Attributes:
    pixels: the number of counted pixels.
    pixel_accuracy: the share of right ones.
    mean_accuracy: mean over the classes in the truth.
    mean_iou: mean over the classes in the truth or in the predictions.
    frequency_weighted_iou: mean over pixels, each with the IoU of its true class.
    iou: float64 `[K]`, by class: right pixels of its own and predicted ones.
    accuracy: float64 `[K]`, by class: right pixels of its own ones.
  """

  pixels: int
  pixel_accuracy: float
  mean_accuracy: float
  mean_iou: float
  frequency_weighted_iou: float
  iou: np.ndarray
  accuracy: np.ndarray


def count(truth: np.ndarray, answer: np.ndarray, classes: int) -> np.ndarray:
  """Counts the pixels of a picture by class, int64 `[K, K]`: truth by rows, predictions by columns.

  Args:
    truth: integers `[H, W]`; `VOID` does not count.
    answer: integers `[H, W]`.

  Raises:
    ValueError: the shapes differ, or a number is no class.

  >>> count(np.array([[0, 1, 255]]), np.array([[0, 0, 1]]), 2).tolist()
  [[1, 0], [1, 0]]
  """
  if truth.shape != answer.shape:
    raise ValueError(f'truth has the shape {truth.shape}, the answer {answer.shape}')
  counted = truth != VOID
  rows, columns = truth[counted].astype(np.int64), answer[counted].astype(np.int64)
  for name, numbers in (('truth', rows), ('answer', columns)):
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < classes:
      raise ValueError(
        f'the {name} holds numbers from {numbers.min()} to {numbers.max()} for {classes} classes'
      )
  found = np.bincount(rows * classes + columns, minlength=classes**2)
  return found.reshape(classes, classes)


def measure(histogram: np.ndarray, *, left_out: Collection[int] = ()) -> Scores:
  """Returns the figures of a histogram `[K, K]`, summed over the images of a test.

  Args:
    left_out: classes that the truth does not show. Their IoU counts in no mean; pixels predicted so
      are only errors of their true class.

  Raises:
    ValueError: the truth shows a class that is left out.
  """
  right, own, answered = _reduce(histogram[None])[0]
  if own[list(left_out)].any():
    raise ValueError(f'the truth shows a class that is left out, of {sorted(left_out)}')
  iou, accuracy = _divide_iou(right, own, answered, left_out), _divide(right, own)
  pixels = own.sum()
  return Scores(
    int(pixels),
    float(_divide(right.sum(), pixels)),
    float(_mean(accuracy)),
    float(_mean(iou)),
    float(_divide((own * np.nan_to_num(iou)).sum(), pixels)),
    iou,
    accuracy,
  )


def draw_means(
  histograms: np.ndarray, *, left_out: Collection[int] = (), draws: int = 1000, seed: int = 0
) -> np.ndarray:
  """Returns the mean IoU of each draw of images, float64 `[draws]`.

  The mean of a draw leaves out classes that neither its truth nor its predictions show. The draws
  are `scores.draw_times`.

  Args:
    histograms: integers `[N, K, K]`, by image.
  """
  images, _, classes = histograms.shape
  times = scores.draw_times(images, draws=draws, seed=seed)
  sums = times.astype(np.float64) @ _reduce(histograms).reshape(images, -1)
  right, own, answered = sums.reshape(draws, 3, classes).swapaxes(0, 1)
  return _mean(_divide_iou(right, own, answered, left_out))


def _reduce(histograms: np.ndarray) -> np.ndarray:
  """Returns the right, the own and the predicted pixels of each class, float64 `[N, 3, K]`.

  Doubles count exactly up to nine million billions.
  """
  right = np.diagonal(histograms, axis1=1, axis2=2)
  parts = (right, histograms.sum(axis=2), histograms.sum(axis=1))
  return np.stack(parts, axis=1).astype(np.float64)


def _divide_iou(
  right: np.ndarray, own: np.ndarray, answered: np.ndarray, left_out: Collection[int]
) -> np.ndarray:
  """Returns the IoU of each class `[..., K]`; nan without a pixel, or if it is left out."""
  iou = _divide(right, own + answered - right)
  iou[..., list(left_out)] = math.nan
  return iou


def _divide(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
  """Divides; nan for a division by 0."""
  with np.errstate(invalid='ignore', divide='ignore'):
    return np.where(whole > 0, np.divide(part, whole), math.nan)


def _mean(figures: np.ndarray) -> np.ndarray:
  """Returns the mean of the last axis without nans; nan if all are."""
  return _divide(np.nansum(figures, axis=-1), np.sum(~np.isnan(figures), axis=-1))
