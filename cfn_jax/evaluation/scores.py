"""Figures of merit: average precision, its mean over classes, top-k accuracy.

NumPy in, floats out. The area under the precision-recall curve is scikit-learn's
`average_precision_score`, as in the VOC classification framework of Kraehenbuehl et al.; the
11-point figure is that of the VOC2007 devkit (`VOCevalcls.m`). The last step of every evaluation.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

IGNORED = 255  # label of a class whose only objects in an image are difficult
TIE_MARGIN = 1e-5  # subtracted from the scores of positives, so that ties count against them


@dataclasses.dataclass(frozen=True)
class ClassScores:
  """A figure of each class, and their mean.

  Attributes:
    mean: over the classes that have a figure; nan if none has.
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
    tie_margin: subtracted from the scores of positives; 0: scikit-learn's own treatment of ties.

  Returns:
    0 to 1; nan without a positive.

  Raises:
    ValueError: shapes differ, labels are unknown, or scores are not finite.

  >>> average_precision(np.array([3.0, 2.0, 1.0]), np.array([1, 0, 1]))
  0.8333333333333333
  """
  return float(_area(*_curve(scores, labels, tie_margin))[0])


def eleven_point_precision(
  scores: np.ndarray, labels: np.ndarray, *, tie_margin: float = TIE_MARGIN
) -> float:
  """Returns the mean, over recalls 0, 0.1 .. 1, of the best precision at that recall or more.

  Scores and labels are `[n]`. Arguments, errors and nan as in `average_precision`.

  >>> eleven_point_precision(np.array([3.0, 2.0, 1.0]), np.array([1, 0, 1])).__round__(4)
  0.8485
  """
  precision, recall = _curve(scores, labels, tie_margin)
  if np.isnan(recall).any():
    return math.nan
  best = [np.max(precision[recall >= t / 10], initial=0.0) for t in range(11)]
  return float(np.mean(best))


def _curve(
  scores: np.ndarray,
  labels: np.ndarray,
  tie_margin: float = TIE_MARGIN,
  times: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns precision and recall `[draws, m]` at each distinct score, the highest first.

  Recall is nan in a draw without a positive.

  Args:
    times: `[draws, n]`: the number of times that each example counts; None: one draw, each once.
  """
  scores, labels = np.asarray(scores, np.float64), np.asarray(labels)
  if scores.ndim != 1 or scores.shape != labels.shape:
    raise ValueError(f'scores {list(scores.shape)} and labels {list(labels.shape)}: one of each')
  others = np.setdiff1d(labels, (0, 1, IGNORED))
  if len(others):
    raise ValueError(f'label {others[0]}: 1, 0 or {IGNORED} (ignored)')
  if times is None:
    times = np.ones((1, len(scores)), np.int64)
  counted = labels != IGNORED
  scores, positive = scores[counted], labels[counted] == 1
  if not np.all(np.isfinite(scores)):
    raise ValueError(f'{np.sum(~np.isfinite(scores))} of {len(scores)} scores are not finite')
  if not positive.any():
    return np.ones((len(times), 1)), np.full((len(times), 1), math.nan)
  scores = scores - tie_margin * positive
  order = np.argsort(-scores, kind='stable')
  last = np.append(np.diff(scores[order]) != 0, True)  # it represents all equal scores
  times = times[:, counted][:, order]
  shown = np.cumsum(times, axis=1)[:, last]
  found = np.cumsum(times * positive[order], axis=1)[:, last]
  total = found[:, -1:]
  return found / np.maximum(shown, 1), found / np.where(total > 0, total, math.nan)


def _area(precision: np.ndarray, recall: np.ndarray) -> np.ndarray:
  """Returns the areas `[draws]` under curves."""
  return np.sum(np.diff(recall, axis=1, prepend=0.0) * precision, axis=1)


def score_classes(
  scores: np.ndarray,
  labels: np.ndarray,
  class_names: Sequence[str],
  measure: Callable[[np.ndarray, np.ndarray], float] = average_precision,
) -> ClassScores:
  """Scores each class, and averages over those that have a positive.

  Args:
    scores: float `[n, K]`.
    labels: `[n, K]`, 1, 0 or `IGNORED`.
    class_names: K of them.
    measure: for one class: scores and labels `[n]` to a figure, nan without one.

  Raises:
    ValueError: shapes do not fit, or `measure` refuses a class.
  """
  if scores.ndim != 2 or scores.shape != labels.shape or scores.shape[1] != len(class_names):
    raise ValueError(
      f'scores {list(scores.shape)}, labels {list(labels.shape)} and {len(class_names)} class '
      'names do not fit'
    )
  per_class = {name: measure(scores[:, k], labels[:, k]) for k, name in enumerate(class_names)}
  return _average(per_class)


def draw_means(
  scores: np.ndarray, labels: np.ndarray, *, draws: int = 1000, seed: int = 0
) -> np.ndarray:
  """Returns the mean average precision of each draw of images, float64 `[draws]`.

  The mean of a draw leaves out classes without a positive. The draws are `draw_times`.

  Args:
    scores: float `[n, K]`.
    labels: `[n, K]`, 1, 0 or `IGNORED`.

  Raises:
    ValueError: see `average_precision`.
  """
  count, classes = scores.shape
  means = []
  for times in np.array_split(draw_times(count, draws=draws, seed=seed), max(1, draws // 100)):
    areas = [_area(*_curve(scores[:, k], labels[:, k], times=times)) for k in range(classes)]
    means.append(np.ma.masked_invalid(areas).mean(axis=0).filled(math.nan))
  return np.concatenate(means)


def keep_draws(name: str, drawn: np.ndarray) -> dict[str, Any]:
  """Returns the 95 % interval of a figure's draws `[draws]` of test images, and the draws.

  The interval covers test images alone: training is not repeated.
  """
  low, high = find_interval(drawn)
  kept = [round(value, 6) for value in drawn.tolist()]
  return {f'{name}_low': low, f'{name}_high': high, f'{name}_draws': kept}


def compare(
  first: Mapping[str, Any], second: Mapping[str, Any], name: str
) -> tuple[float, float, float]:
  """Returns how much better the first of two runs is in a figure, on the same test images.

  Args:
    first, second: figures with the values of `keep_draws`.

  Returns:
    The difference, and its 95 % interval over the draws, which both runs share.
  """
  drawn = [np.array(figures[f'{name}_draws'], float) for figures in (first, second)]
  return first[name] - second[name], *find_interval(drawn[0] - drawn[1])


def tell_difference(figures: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str:
  """Returns a line about the difference of two runs, in points, in the first figure with draws.

  Args:
    figures: those of each run; '' unless they are two with draws of the test.
    names: names of the figure, which may have no value.
  """
  runs = list(figures)
  for name in names:
    drawn = [figures[run].get(f'{name}_draws') for run in runs]
    if len(runs) == 2 and all(drawn) and all(figures[run][name] is not None for run in runs):
      points = [100 * each for each in compare(figures[runs[0]], figures[runs[1]], name)]
      return (
        f'{runs[0]} less {runs[1]}: {points[0]:+.1f} points, 95 % interval {points[1]:+.1f} to '
        f'{points[2]:+.1f} over the same draws of test images'
      )
  return ''


def draw_times(images: int, *, draws: int, seed: int) -> np.ndarray:
  """Draws the number of times that each image counts in a bootstrap, int64 `[draws, images]`.

  Each draw takes as many images as the test has, with replacement. The draws depend only on the
  seed and the number of images, so those of two runs on the same test are paired.
  """
  rng = np.random.Generator(np.random.Philox(key=[seed, images]))
  return rng.multinomial(images, np.full(images, 1 / images), size=draws)


def find_interval(figures: np.ndarray) -> tuple[float, float]:
  """Returns the 95 % interval of the figures `[draws]`, without nan; nan if none is left."""
  known = figures[~np.isnan(figures)]
  low, high = np.quantile(known, (0.025, 0.975)) if len(known) else (math.nan, math.nan)
  return float(low), float(high)


def score_ranks(ranks: np.ndarray, labels: np.ndarray, class_names: Sequence[str]) -> ClassScores:
  """Returns the share of each class's examples with rank 0, and the classes without examples.

  Args:
    ranks: int `[n]`, see `rank_labels`.
    labels: int `[n]`, indices into `class_names`.
  """
  found = {}
  for index, name in enumerate(class_names):
    own = ranks[labels == index]
    found[name] = float(np.mean(own < 1)) if len(own) else math.nan
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
    ValueError: shapes do not fit, a label is outside, or scores are not finite.
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
