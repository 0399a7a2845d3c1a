"""Algorithm 1 of the paper for grids with too many permutations to try all.

Paper: section 4.2, Algorithm 1. The sum of the distances from a permutation to the chosen ones is
N T minus its counts, position by value. So the permutation with the largest sum is the cheapest
assignment of values to positions, and noise too small to change the optimum breaks ties at random.
The smallest sum has no such form, since the chosen ones themselves would win. It is searched among
all permutations one swap away from a chosen one.
"""

import itertools
from collections.abc import Callable

import numpy as np

from cfn_jax.jigsaw.permutation_sets.measures import get_distance_sum

TRIES = 8  # tied optima that `spread` compares at each step
FAILURES = 200  # consecutive draws without a new permutation before the search gives up
TAKEN = -(2**30)  # a sum that no later step raises above a free candidate's


class Chosen:
  """The permutations chosen so far, with their counts."""

  def __init__(self, num: int, core: np.ndarray):
    tiles = core.shape[1]
    self.tiles = tiles
    self.num = 0
    self.rows = np.zeros((num, tiles), np.uint8)
    self.counts = np.zeros((tiles, tiles), np.int64)  # position by value
    self._has = np.zeros((tiles, tiles, num), np.uint8)  # 1 where a row has a value at a position
    self._positions = np.arange(tiles)
    for row in core:
      self.add(row)

  def add(self, permutation: np.ndarray) -> None:
    """Adds a permutation `[T]` to the set."""
    self.rows[self.num] = permutation
    self.counts[self._positions, permutation] += 1
    self._has[self._positions, permutation, self.num] = 1
    self.num += 1

  def get_shared(self, permutation: np.ndarray) -> int:
    """Returns the positions that a permutation `[T]` shares with all chosen ones together."""
    return int(self.counts[self._positions, permutation].sum())

  def get_closest(self, permutation: np.ndarray) -> int:
    """Returns the positions that a permutation `[T]` shares with the most similar chosen one."""
    return int(self._has[self._positions, permutation, : self.num].sum(0, dtype=np.uint8).max())


def extend_farthest(
  core: np.ndarray, num: int, *, ties: str, min_distance: int, rng: np.random.Generator
) -> np.ndarray:
  """Extends `core` `[k, T]` to at most `num` permutations, each as far as possible from others."""
  import scipy.optimize  # its import takes longer than making most sets

  tiles = core.shape[1]
  chosen = Chosen(num, core)
  limit = tiles - max(min_distance, 1)
  tries = TRIES if ties == 'spread' else 1
  while chosen.num < num:
    best, best_key = None, (0, 0)
    failures = 0
    # Noise below 1 in total cannot change which integer sum is smallest. If every optimum is taken
    # or too close, more noise leads to the next best.
    while failures < FAILURES:
      noise = rng.random((tiles, tiles)) * (2.0 ** (failures // TRIES) / tiles)
      _, values = scipy.optimize.linear_sum_assignment(chosen.counts + noise)
      closest = chosen.get_closest(values)
      failures += 1
      if closest <= limit:
        key = (chosen.get_shared(values), closest)
        if best is None or key < best_key:
          best, best_key = values, key
      if best is not None and failures >= tries:
        break
    if best is None:
      break
    chosen.add(best)
  return chosen.rows[: chosen.num]


def extend_nearest(
  first: np.ndarray, num: int, *, ties: str, rng: np.random.Generator
) -> np.ndarray:
  """Extends one permutation `[T]` to `num`, each as near as a swap finds to those before it."""
  tiles = len(first)
  swaps = np.array(list(itertools.combinations(range(tiles), 2)))
  capacity = num * len(swaps)
  near = np.zeros((tiles, capacity), np.uint8)  # the permutations one swap away, as columns
  shared = np.full(capacity, TAKEN, np.int32)  # positions shared with all chosen ones together
  places: dict[bytes, int] = {}
  chosen = Chosen(num, first[None])
  places[first.tobytes()] = capacity  # a chosen one is no candidate
  size = 0
  while chosen.num < num:
    last = chosen.rows[chosen.num - 1]
    # The shared positions of the new one are added to each candidate's sum.
    for position in range(tiles):
      shared[:size] += near[position, :size] == last[position]
    place = places[last.tobytes()]
    if place < capacity:
      shared[place] = TAKEN
    swapped = np.repeat(last[None], len(swaps), axis=0)  # [swaps, T]
    swapped[np.arange(len(swaps)), swaps[:, 0]] = last[swaps[:, 1]]
    swapped[np.arange(len(swaps)), swaps[:, 1]] = last[swaps[:, 0]]
    for row in swapped:
      if places.setdefault(row.tobytes(), size) == size:
        near[:, size] = row
        shared[size] = chosen.get_shared(row)
        size += 1
    tied = np.flatnonzero(shared[:size] == shared[:size].max())
    if ties == 'spread' and len(tied) > 1:
      tied = rng.choice(tied, min(TRIES, len(tied)), replace=False)
      closest = np.array([chosen.get_closest(near[:, place]) for place in tied])
      tied = tied[closest == closest.min()]
    chosen.add(near[:, tied[rng.integers(len(tied))]])
  return chosen.rows


def extend_steered(
  core: np.ndarray, num: int, *, wanted: Callable[[int, int], int], rng: np.random.Generator
) -> np.ndarray:
  """Extends `core` `[k, T]` to `num` permutations whose sums of shared positions follow `wanted`.

  `wanted(n, distance_sum)` returns the number of positions that the next one should share with the
  `n` chosen ones together. Swaps lead from a chosen or drawn permutation towards it.
  """
  tiles = core.shape[1]
  chosen = Chosen(num, core)
  distance_sum = get_distance_sum(core)
  while chosen.num < num:
    goal = wanted(chosen.num, distance_sum)
    best, best_gap = None, 0
    for attempt in range(FAILURES):
      start = rng.permutation(tiles)
      member = chosen.rows[rng.integers(chosen.num)]
      if abs(chosen.get_shared(member) - goal) < abs(chosen.get_shared(start) - goal):
        # Leave the chosen one itself, which may not be taken again.
        start = member.astype(np.int64)
        p, q = rng.choice(tiles, 2, replace=False)
        start[[p, q]] = start[[q, p]]
      values = _walk(chosen.counts, start, goal)
      if chosen.get_closest(values) < tiles:
        gap = abs(chosen.get_shared(values) - goal)
        if best is None or gap < best_gap:
          best, best_gap = values, gap
        if best_gap == 0 or attempt >= TRIES:
          break
    if best is None:
      break
    distance_sum += tiles * chosen.num - chosen.get_shared(best)
    chosen.add(best)
  return chosen.rows[: chosen.num]


def _walk(counts: np.ndarray, permutation: np.ndarray, goal: int) -> np.ndarray:
  """Swaps pairs of values while the sum of the counts gets nearer to `goal`."""
  permutation = permutation.copy()
  while True:
    passed = counts[:, permutation]  # [p, q]: the count at p of the value at q
    now = np.diag(passed)
    sums = now.sum() + passed + passed.T - now[:, None] - now[None, :]
    np.fill_diagonal(sums, now.sum())
    gaps = np.abs(sums - goal)
    p, q = np.unravel_index(np.argmin(gaps), gaps.shape)
    if gaps[p, q] >= abs(now.sum() - goal):
      return permutation
    permutation[[p, q]] = permutation[[q, p]]
