"""Scores rankings of a gallery: precision, recall and average precision of each query.

Items of the query's class are relevant. NumPy only. The last step of retrieval.py.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

NEAREST = 4  # number of neighbours that are shown and have their own precision
STEPS = 10  # of recall on a curve: 0, 0.1 .. 1
CHUNK = 64  # number of queries that are ranked at once


def rank(similar: np.ndarray) -> np.ndarray:
  """Returns the rows of the gallery `[q, n]`, the most similar first, then the lower row.

  >>> rank(np.array([[0.5, 0.9, 0.5]])).tolist()
  [[1, 0, 2]]
  """
  order: np.ndarray = np.argsort(-similar, axis=1, kind='stable')
  return order


def score(relevant: np.ndarray) -> dict[str, np.ndarray]:
  """Scores queries by the relevant items of their rankings, bool `[q, n]`, n >= `NEAREST`.

  Returns:
    float64 by name: `precision_at_1` and `precision_at_4` `[q]`; `average_precision` `[q]`, the
    mean of the precision at each relevant rank, scikit-learn's `average_precision_score`;
    `precision_at_recall` `[q, 11]`, at the first rank whose recall is at least 0, 0.1 .. 1. For a
    query without relevant items the last two are nan.

  >>> score(np.array([[True, False, True, False]]))['average_precision'].round(4)
  array([0.8333])
  """
  found = np.cumsum(relevant, axis=1)  # [q, n]
  total = found[:, -1]
  precision = found / np.arange(1, relevant.shape[1] + 1)
  known = np.where(total > 0, total, math.nan)
  # In whole numbers: 0.1 times a count is not always exact.
  needed = -(-np.outer(total, np.arange(STEPS + 1)) // STEPS)  # [q, 11]
  ranks = np.stack([np.argmax(found >= each[:, None], axis=1) for each in needed.T], axis=1)
  curve = np.take_along_axis(precision, ranks, axis=1)
  return {
    'precision_at_1': precision[:, 0],
    f'precision_at_{NEAREST}': precision[:, NEAREST - 1],
    'average_precision': np.sum(precision * relevant, axis=1) / known,
    'precision_at_recall': np.where(np.isnan(known)[:, None], math.nan, curve),
  }


def score_similar(
  similar: np.ndarray, labels: np.ndarray, gallery_labels: np.ndarray
) -> dict[str, np.ndarray]:
  """Scores queries by similarities `[q, n]`; also returns their `nearest` rows `[q, 4]`."""
  parts = []
  for start in range(0, len(similar), CHUNK):
    rows = slice(start, start + CHUNK)
    order = rank(similar[rows])
    found = score(gallery_labels[order] == labels[rows, None])
    parts.append({**found, 'nearest': order[:, :NEAREST]})
  return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def summarize(
  found: Mapping[str, np.ndarray],
  labels: np.ndarray,
  gallery_labels: np.ndarray,
  groups: np.ndarray,
  names: Sequence[str],
) -> dict[str, object]:
  """Averages the scores of queries: over queries, and over the means of classes.

  Queries without relevant items are left out and counted.

  Args:
    found: see `score`.
    labels, gallery_labels: int `[q]` and `[n]`, indices into `names`.
    groups: int `[q]`: the images of the queries, for intervals over images.
  """
  counts = np.bincount(gallery_labels, minlength=len(names))
  kept = counts[labels] > 0
  scores = {name: values[kept] for name, values in found.items()}
  labels, groups = labels[kept], groups[kept]
  share = counts / counts.sum()

  def average_classes(values: np.ndarray) -> dict[str, float | None]:
    of = {name: values[labels == k] for k, name in enumerate(names)}
    return {name: float(np.mean(each)) if len(each) else None for name, each in of.items()}

  per_class = average_classes(scores['average_precision'])
  asked = [name for name, value in per_class.items() if value is not None]
  figures: dict[str, object] = {}
  for name, title in (
    ('precision_at_1', 'precision_at_1'),
    (f'precision_at_{NEAREST}', f'precision_at_{NEAREST}'),
    ('average_precision', 'map'),
  ):
    figures[title] = float(np.mean(scores[name]))
    low, high = find_interval(scores[name], groups)
    figures |= {f'{title}_low': low, f'{title}_high': high}
  shares = average_classes(share[labels])
  return figures | {
    'map_macro': float(np.mean([per_class[name] for name in asked])),
    'chance': float(np.mean(share[labels])),
    'chance_macro': float(np.mean([shares[name] for name in asked])),
    'precision_at_recall': np.mean(scores['precision_at_recall'], axis=0).tolist(),
    'per_class': per_class,
    'queries_without_answer': int(np.sum(~kept)),
    'classes_without_figure': [name for name in names if name not in asked],
  }


def find_interval(values: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
  """Returns the 95 % interval of a mean of values `[n]` that are dependent within groups.

  It is that of the normal distribution, by the sums of each group's deviations; nan for one group.
  """
  mean, ends = float(np.mean(values)), np.unique(groups, return_inverse=True)[1]
  sums = np.bincount(ends, weights=values - mean)
  if len(sums) < 2:
    return math.nan, math.nan
  error = math.sqrt(np.sum(sums**2) * len(sums) / (len(sums) - 1)) / len(values)
  return max(0.0, mean - 1.96 * error), min(1.0, mean + 1.96 * error)
