"""Figures of merit: average precision, its mean over classes, top-k accuracy.

NumPy in, floats out. The area under the precision-recall curve is scikit-learn's
`average_precision_score`, as in the VOC classification framework of Kraehenbuehl et al.; the
11-point figure is that of the VOC2007 devkit (`VOCevalcls.m`). The last stop of every evaluation.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

IGNORED = 255  # label of a class whose only objects in an image are difficult
TIE_MARGIN = 1e-5  # taken off the scores of positives, so that ties count against them


@dataclasses.dataclass(frozen=True)
class ClassScores:
  """A figure of each class, and their mean.

  Attributes:
    mean: over the classes that have a figure; nan where none has.
    per_class: by name; nan for a class without a positive.
    without: the names of those classes.
  """

  mean: float
  per_class: dict[str, float]
  without: tuple[str, ...]


def average_precision(
  scores: np.ndarray, labels: np.ndarray, *, tie_margin: float = TIE_MARGIN
) -> float:
  """Returns the area under the precision-recall curve, by steps: sum of (R_n - R_n-1) * P_n.

  Args:
    scores: float `[n]`, larger is more likely.
    labels: `[n]`, 1, 0 or `IGNORED`.
    tie_margin: taken off the scores of positives; 0: scikit-learn's own treatment of ties.

  Returns:
    0 to 1; nan without a positive.

  Raises:
    ValueError: shapes that differ, other labels, scores that are not finite.

  >>> average_precision(np.array([3.0, 2.0, 1.0]), np.array([1, 0, 1]))
  0.8333333333333333
  """
  precision, recall = _curve(scores, labels, tie_margin)
  return float(np.sum(np.diff(recall, prepend=0.0) * precision)) if len(recall) else math.nan


def eleven_point_precision(
  scores: np.ndarray, labels: np.ndarray, *, tie_margin: float = TIE_MARGIN
) -> float:
  """Returns the mean, over recalls 0, 0.1 .. 1, of the best precision at that recall or more.

  Arguments, errors and nan as in `average_precision`.

  >>> eleven_point_precision(np.array([3.0, 2.0, 1.0]), np.array([1, 0, 1])).__round__(4)
  0.8485
  """
  precision, recall = _curve(scores, labels, tie_margin)
  if not len(recall):
    return math.nan
  best = [np.max(precision[recall >= t / 10], initial=0.0) for t in range(11)]
  return float(np.mean(best))


def _curve(
  scores: np.ndarray, labels: np.ndarray, tie_margin: float
) -> tuple[np.ndarray, np.ndarray]:
  """Returns precision and recall at each distinct score, the highest first; empty: no positive."""
  scores, labels = np.asarray(scores, np.float64), np.asarray(labels)
  if scores.ndim != 1 or scores.shape != labels.shape:
    raise ValueError(f'scores {list(scores.shape)} and labels {list(labels.shape)}: one of each')
  others = np.setdiff1d(labels, (0, 1, IGNORED))
  if len(others):
    raise ValueError(f'label {others[0]}: 1, 0 or {IGNORED} (ignored)')
  counted = labels != IGNORED
  scores, positive = scores[counted], labels[counted] == 1
  if not np.all(np.isfinite(scores)):
    raise ValueError(f'{np.sum(~np.isfinite(scores))} of {len(scores)} scores are not finite')
  if not positive.any():
    return np.empty(0), np.empty(0)
  scores = scores - tie_margin * positive
  order = np.argsort(-scores, kind='stable')
  scores, positive = scores[order], positive[order]
  last = np.append(np.diff(scores) != 0, True)  # the last of equal scores stands for them all
  found = np.cumsum(positive)[last]
  shown = np.flatnonzero(last) + 1
  return found / shown, found / positive.sum()


def score_classes(
  scores: np.ndarray,
  labels: np.ndarray,
  class_names: Sequence[str],
  measure: Callable[[np.ndarray, np.ndarray], float] = average_precision,
) -> ClassScores:
  """Scores each class by itself, and averages over those that have a positive.

  Args:
    scores: float `[n, K]`.
    labels: `[n, K]`, 1, 0 or `IGNORED`.
    class_names: K of them.
    measure: of one class: scores and labels `[n]` to a figure, nan where there is none.

  Raises:
    ValueError: shapes that do not fit; what `measure` refuses.
  """
  if scores.ndim != 2 or scores.shape != labels.shape or scores.shape[1] != len(class_names):
    raise ValueError(
      f'scores {list(scores.shape)}, labels {list(labels.shape)} and {len(class_names)} class '
      'names do not fit'
    )
  per_class = {name: measure(scores[:, k], labels[:, k]) for k, name in enumerate(class_names)}
  return _average(per_class)


def bootstrap_mean(
  scores: np.ndarray, labels: np.ndarray, *, draws: int = 1000, seed: int = 0
) -> tuple[float, float]:
  """Returns the 95 % interval of mean average precision over draws of the images.

  Each draw takes as many images as there are, with replacement; a class without a positive in it is
  left out of its mean. The interval is that of test images alone: training is not repeated.

  Args:
    scores: float `[n, K]`.
    labels: `[n, K]`, 1, 0 or `IGNORED`.

  Raises:
    ValueError: what `average_precision` refuses.
  """
  count, classes = scores.shape
  rng = np.random.Generator(np.random.Philox(key=[seed, count]))
  means = []
  for start in range(0, draws, 100):
    size = min(100, draws - start)
    times = rng.multinomial(count, np.full(count, 1 / count), size=size)  # [draws, n]
    found = [_weighted_precision(scores[:, k], labels[:, k], times) for k in range(classes)]
    means.append(_mean_of_known(np.stack(found)))
  low, high = np.nanquantile(np.concatenate(means), (0.025, 0.975))
  return float(low), float(high)


def _weighted_precision(scores: np.ndarray, labels: np.ndarray, times: np.ndarray) -> np.ndarray:
  """Returns average precision `[draws]` where image i counts `times[:, i]` times."""
  counted = labels != IGNORED
  positive = labels[counted] == 1
  scores = np.asarray(scores, np.float64)[counted] - TIE_MARGIN * positive
  order = np.argsort(-scores, kind='stable')
  last = np.append(np.diff(scores[order]) != 0, True)
  weights = times[:, counted][:, order]
  shown = np.cumsum(weights, axis=1)[:, last]
  found = np.cumsum(weights * positive[order], axis=1)[:, last]
  total = found[:, -1:]
  steps = np.diff(found, axis=1, prepend=0) * found / np.maximum(shown, 1)
  return np.where(total[:, 0] > 0, steps.sum(1) / np.maximum(total[:, 0], 1), math.nan)


def _mean_of_known(values: np.ndarray) -> np.ndarray:
  """Averages `[K, draws]` over the classes that are not nan; nan where all are."""
  known = ~np.isnan(values)
  count = known.sum(0)
  return np.where(count > 0, np.where(known, values, 0).sum(0) / np.maximum(count, 1), math.nan)


def score_ranks(
  ranks: np.ndarray, labels: np.ndarray, class_names: Sequence[str], *, k: int = 1
) -> ClassScores:
  """Returns the share of each class's examples whose rank is below k, and the classes without any.

  Args:
    ranks: int `[n]`, see `rank_labels`.
    labels: int `[n]`, indices into `class_names`.
  """
  found = {}
  for index, name in enumerate(class_names):
    own = ranks[labels == index]
    found[name] = float(np.mean(own < k)) if len(own) else math.nan
  return _average(found)


def _average(per_class: dict[str, float]) -> ClassScores:
  known = [value for value in per_class.values() if not math.isnan(value)]
  without = tuple(name for name, value in per_class.items() if math.isnan(value))
  return ClassScores(float(np.mean(known)) if known else math.nan, per_class, without)


def rank_labels(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Returns the rank of each example's own class: 0 is the highest score; ties count against it.

  Args:
    scores: float `[n, K]`.
    labels: int `[n]`, 0 to K - 1.

  Returns:
    int64 `[n]`.

  Raises:
    ValueError: shapes that do not fit, a label outside, scores that are not finite.
  """
  scores, labels = np.asarray(scores), np.asarray(labels)
  if scores.ndim != 2 or labels.shape != scores.shape[:1]:
    raise ValueError(f'scores {list(scores.shape)}, labels {list(labels.shape)}: [n, K] and [n]')
  if len(labels) and not (0 <= labels.min() and labels.max() < scores.shape[1]):
    raise ValueError(f'labels from {labels.min()} to {labels.max()} of {scores.shape[1]} classes')
  if not np.all(np.isfinite(scores)):
    raise ValueError(f'{np.sum(~np.isfinite(scores))} of {scores.size} scores are not finite')
  own = np.take_along_axis(scores, labels[:, None], axis=1)
  return np.sum(scores >= own, axis=1) - 1
