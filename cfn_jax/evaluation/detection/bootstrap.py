"""The interval of a mean average precision: a bootstrap over the images of the test.

A detection is judged within its image, so verdicts stay, and only their weights change. The
interval covers test images alone: training is not repeated. It follows average_precision.py.
"""

import math

import numpy as np

from cfn_jax.evaluation import scores as score_lib
from cfn_jax.evaluation.detection import average_precision

_PLACES_AT_ONCE = 1024  # right detections of a class; it bounds the memory


def draw_means(scores: average_precision.Scores, *, draws: int = 1000, seed: int = 0) -> np.ndarray:
  """Returns the mean average precision (11 points) of each draw, float64 `[draws]`.

  The mean of a draw leaves out classes without a positive. The draws are `scores.draw_times`.
  """
  times = score_lib.draw_times(len(scores.judged[0].positives), draws=draws, seed=seed)
  figures = np.stack([_draw_class(each, times) for each in scores.judged], axis=1)
  known = np.sum(~np.isnan(figures), axis=1)
  return np.where(known > 0, np.nansum(figures, axis=1) / np.maximum(known, 1), math.nan)


def _draw_class(judged: average_precision.Judged, times: np.ndarray) -> np.ndarray:
  """Returns the figure of one class in each draw, `[draws]`; nan without a positive.

  The best precision beyond a recall is at a right detection, so the curve has only those places.
  Wrong ones are counted before each.

  Args:
    times: int `[draws, images]`: the number of times that each image counts.
  """
  verdicts, images = judged.verdicts[judged.order], judged.images[judged.order]
  right = np.cumsum(times[:, images[verdicts == average_precision.RIGHT]], axis=1)
  wrong = _count_wrong(verdicts, images, times)
  with np.errstate(invalid='ignore'):
    precision = np.nan_to_num(right / (right + wrong))
  return average_precision.eleven_points(right, precision, times @ judged.positives)


def _count_wrong(verdicts: np.ndarray, images: np.ndarray, times: np.ndarray) -> np.ndarray:
  """Counts the wrong detections before each right one, float32 `[draws, right ones]`.

  float32 multiplies fast and counts exactly up to 16 million.
  """
  count, places = times.shape[1], np.sum(verdicts == average_precision.RIGHT)
  chosen = verdicts == average_precision.WRONG
  place = np.cumsum(verdicts == average_precision.RIGHT)[chosen]  # the right ones before each
  of = images[chosen]
  weights, before = times.astype(np.float32), np.zeros(count)
  parts = [np.empty((len(times), 0), np.float32)]
  for start in range(0, places, _PLACES_AT_ONCE):
    size = min(_PLACES_AT_ONCE, places - start)
    inside = (place >= start) & (place < start + size)
    flat = of[inside] * size + place[inside] - start
    grid = np.bincount(flat, minlength=count * size).reshape(count, size)
    met = before[:, None] + np.cumsum(grid, axis=1)  # [images, size], of each image
    before = met[:, -1]
    parts.append(weights @ met.astype(np.float32))
  return np.concatenate(parts, axis=1)
