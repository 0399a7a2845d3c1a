"""Removes similar permutations from a set, and cuts a set to a size.

Paper: Table 4, the rows with 95 to 6 permutations, made from the 100 of Algorithm 1 "by removing
similar entries". Keeping as many as possible is a largest independent set in the graph whose edges
join permutations that are too close.
"""

import numpy as np

from cfn_jax.jigsaw.permutation_sets.measures import get_distances

STEPS = 4000
STARTS = 30


def keep_distant(
  permutations: np.ndarray, min_distance: int, *, rng: np.random.Generator
) -> np.ndarray:
  """Finds as many rows of `[N, T]` as it can that all differ at `min_distance` positions or more.

  Local search: add a row that conflicts with none, else exchange one for one, else force one in.
  A row that left stays out for some steps. Returns the numbers of the kept rows `[n]`, in order.
  """
  conflicts = get_distances(permutations, permutations) < min_distance  # [N, N]
  np.fill_diagonal(conflicts, False)
  num = len(permutations)
  kept = np.zeros(num, bool)
  against = np.zeros(num, np.int64)  # number of kept rows that each row conflicts with
  free_again = np.zeros(num, np.int64)  # the step from which a row may return
  best = kept.copy()
  degree = conflicts.sum(1)
  for step in range(STEPS):
    out = ~kept
    options = np.flatnonzero(out & (against == 0))
    if len(options):
      # The fewest conflicts first while the set fills up.
      options = options[degree[options] == degree[options].min()] if step < num else options
    else:
      options = np.flatnonzero(out & (against == 1) & (free_again <= step))
    if not len(options):
      options = np.flatnonzero(out)
    if not len(options):
      break
    row = options[rng.integers(len(options))]
    leaving = kept & conflicts[row]
    kept[row] = True
    kept &= ~leaving
    free_again[leaving] = step + 5 + rng.integers(10)
    against += conflicts[row]
    against -= conflicts[leaving].sum(0)
    if kept.sum() > best.sum():
      best = kept.copy()
  return np.flatnonzero(best)


def cut(
  permutations: np.ndarray,
  kept: np.ndarray,
  num: int,
  min_distance: int,
  *,
  rng: np.random.Generator,
) -> np.ndarray:
  """Cuts a pruned set to `num` rows with as large a mean distance as the search finds.

  It removes one row at a time, the one with the smallest sum of distances to the others. Then it
  exchanges rows for others of the set. It also tries other starts, grown row by row.

  Args:
    permutations: the set before pruning, uint8 `[N, T]`.
    kept: the numbers of the rows that pruning kept, `num` or more.
    num: the number of rows to keep.
    min_distance: the distance that pruning enforced.
    rng: draws the starts.
  """
  distances = get_distances(permutations, permutations).astype(np.int64)
  allowed = distances >= min_distance
  start = kept
  while len(start) > num:
    sums = distances[np.ix_(start, start)].sum(1)
    start = np.delete(start, np.argmin(sums))
  best = _exchange(distances, allowed, start)
  for _ in range(STARTS):
    start = _grow(distances, allowed, num, rng)
    if len(start) == num:
      other = _exchange(distances, allowed, start)
      if distances[np.ix_(other, other)].sum() > distances[np.ix_(best, best)].sum():
        best = other
  return permutations[np.sort(best)]


def _grow(
  distances: np.ndarray, allowed: np.ndarray, num: int, rng: np.random.Generator
) -> np.ndarray:
  """Grows up to `num` rows from a drawn one, each as far as possible from the others."""
  row = int(rng.integers(len(distances)))
  rows = [row]
  free = allowed[row].copy()
  free[row] = False
  sums = distances[row].copy()
  while len(rows) < num and free.any():
    row = int(np.argmax(np.where(free, sums + rng.random(len(sums)) / 2, -1)))
    rows.append(row)
    free &= allowed[row]
    free[row] = False
    sums += distances[row]
  return np.array(rows)


def _exchange(distances: np.ndarray, allowed: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Exchanges a row for one outside while that raises the sum of the distances."""
  rows = rows.copy()
  everything = np.arange(len(distances))
  while True:
    outside = np.setdiff1d(everything, rows)
    if not len(outside):
      return rows
    between = distances[np.ix_(outside, rows)]  # [outside, rows]
    clashes = ~allowed[np.ix_(outside, rows)]
    # Only the leaving row may be too close to the new one.
    fits = clashes.sum(1, keepdims=True) == clashes
    gains = between.sum(1, keepdims=True) - between - distances[np.ix_(rows, rows)].sum(1)
    gains = np.where(fits, gains, -1)
    comes, leaves = np.unravel_index(np.argmax(gains), gains.shape)
    if gains[comes, leaves] <= 0:
      return rows
    rows[leaves] = outside[comes]
