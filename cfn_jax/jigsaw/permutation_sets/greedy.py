"""Algorithm 1 of the paper over every permutation of up to nine tiles, without a T! x T table.

Paper: section 4.2, Algorithm 1. For every permutation, a step of the greedy search needs the number
of positions that it shares with all chosen ones together. That number is a sum over positions. Cut
each permutation in two: the first half lists k values in some order, the second half the others.
The sum of a permutation is the sum of its halves, and there are few halves: for nine tiles 126
value sets, each with 24 orders of the first four positions and 120 of the last five, against
362,880 permutations. The best of a value set is its best first half with its best second half.
"""

import itertools
from collections.abc import Callable

import numpy as np

from cfn_jax.jigsaw.permutation_sets.measures import get_distance_sum

MAX_TILES = 9  # 10! permutations would take ten times the time and memory


class Candidates:
  """All permutations of `tiles` tiles, and the positions that each shares with the chosen ones.

  A candidate is an index into an array `[S, K, L]`: value set, order of the first half, order of
  the second half.
  """

  def __init__(self, tiles: int, num: int):
    self.tiles = tiles
    self.half = tiles // 2
    sets = list(itertools.combinations(range(tiles), self.half))
    self.firsts = np.array([list(itertools.permutations(s)) for s in sets], np.uint8)  # [S, K, k]
    rests = [[v for v in range(tiles) if v not in s] for s in sets]
    self.seconds = np.array([list(itertools.permutations(r)) for r in rests], np.uint8)
    codes = self.firsts @ (tiles ** np.arange(self.half)[::-1])
    self._first_rank = np.argsort(np.argsort(codes, axis=None)).reshape(codes.shape)
    # [position, value, S, K]: 1 where a half has that value at that position
    values = np.arange(tiles, dtype=np.uint8)[:, None, None]
    self._first_has = _get_hits(self.firsts, values)
    self._second_has = _get_hits(self.seconds, values)
    dtype = np.int16 if num * tiles < 2**14 else np.int32
    self.first_shared = np.zeros(self.firsts.shape[:2], dtype)  # [S, K], summed over the chosen
    self.second_shared = np.zeros(self.seconds.shape[:2], dtype)  # [S, L]
    shape = (*self.firsts.shape[:2], self.seconds.shape[1])
    self.closest = np.zeros(shape, np.int8)  # positions shared with the most similar chosen one
    self._shared = np.empty(shape, np.int8)
    self._gap = np.empty(shape, dtype)

  def add(self, permutation: np.ndarray) -> None:
    """Adds a permutation uint8 `[T]` to the chosen set."""
    k = self.half
    first = self._first_has[np.arange(k), permutation[:k]].sum(0, dtype=np.int8)  # [S, K]
    second = self._second_has[np.arange(self.tiles - k), permutation[k:]].sum(0, dtype=np.int8)
    self.first_shared += first
    self.second_shared += second
    np.add(first[:, :, None], second[:, None, :], out=self._shared)
    np.maximum(self.closest, self._shared, out=self.closest)

  def get_shared(self, index: int) -> int:
    """Returns the number of positions that a candidate shares with all chosen ones together."""
    s, i, j = np.unravel_index(index, self.closest.shape)
    return int(self.first_shared[s, i]) + int(self.second_shared[s, j])

  def get_permutation(self, index: int) -> np.ndarray:
    """Returns a candidate's permutation uint8 `[T]`."""
    s, i, j = np.unravel_index(index, self.closest.shape)
    return np.concatenate([self.firsts[s, i], self.seconds[s, j]])

  def pick_farthest(self, ties: str, min_distance: int, rng: np.random.Generator) -> int:
    """Picks a candidate with the largest sum of distances, by index; -1 when none is left.

    Only candidates at `min_distance` or more from each chosen one count.
    """
    least = self.first_shared.min(1) + self.second_shared.min(1)  # [S]
    sets = np.flatnonzero(least == least.min())
    # In each of these value sets, ties are the best firsts times the best seconds.
    first = self.first_shared[sets]
    second = self.second_shared[sets]
    first = first == first.min(1, keepdims=True)
    second = second == second.min(1, keepdims=True)
    pick = {'spread': self._pick_spread, 'random': self._pick_random, 'first': self._pick_first}
    index = pick[ties](sets, first, second, self.tiles - min_distance, rng)
    # If everything at the optimum is chosen already, or too close: the next best.
    return index if index >= 0 else self.pick_nearest(0, ties, min_distance, rng)

  def _pick_spread(
    self,
    sets: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    limit: int,
    rng: np.random.Generator,
  ) -> int:
    closest = self.closest if len(sets) == len(self.closest) else self.closest[sets]
    off = np.int8(32)  # more than any number of shared positions
    key = ((~first) * off)[:, :, None] + ((~second) * off)[:, None, :]
    key += closest
    best = key.min()
    if best > limit:
      return -1
    found = np.flatnonzero(key == best)
    place = int(found[rng.integers(len(found))])
    block = key[0].size
    return int(sets[place // block]) * block + place % block

  def _pick_random(
    self,
    sets: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    limit: int,
    rng: np.random.Generator,
  ) -> int:
    sizes = first.sum(1) * second.sum(1)  # ties in each value set
    ends = np.cumsum(sizes)
    for _ in range(50):  # nearly all are free, so the first draw nearly always counts
      draw = int(rng.integers(ends[-1]))
      place = int(np.searchsorted(ends, draw, side='right'))
      seconds = np.flatnonzero(second[place])
      i, j = divmod(draw - int(ends[place] - sizes[place]), len(seconds))
      index = self._get_index(sets[place], np.flatnonzero(first[place])[i], seconds[j])
      if self.closest.flat[index] <= limit:
        return index
    tied = first[:, :, None] & second[:, None, :] & (self.closest[sets] <= limit)
    found = np.flatnonzero(tied)
    if not len(found):
      return -1
    place, rest = divmod(int(found[rng.integers(len(found))]), tied[0].size)
    return int(sets[place]) * tied[0].size + rest

  def _pick_first(
    self,
    sets: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    limit: int,
    rng: np.random.Generator,
  ) -> int:
    places, orders = np.nonzero(first)
    for best in np.argsort(self._first_rank[sets[places], orders]):
      place, i = places[best], orders[best]
      free = second[place] & (self.closest[sets[place], i] <= limit)
      if free.any():
        return self._get_index(sets[place], i, int(np.argmax(free)))
    return -1

  def pick_nearest(
    self, shared: int, ties: str, min_distance: int, rng: np.random.Generator
  ) -> int:
    """Picks a candidate whose shared positions sum nearest to `shared`; -1 if none is left."""
    gap = self._gap
    np.add(self.first_shared[:, :, None], self.second_shared[:, None, :], out=gap)
    gap -= gap.dtype.type(shared)
    np.abs(gap, out=gap)
    never = np.iinfo(gap.dtype).max
    np.putmask(gap, self.closest > self.tiles - min_distance, never)
    best = gap.min()
    if best == never:
      return -1
    tied = np.flatnonzero(gap == best)
    if ties == 'first':
      s, i, j = np.unravel_index(tied, self.closest.shape)
      return int(tied[np.argmin(self._first_rank[s, i] * self.closest.shape[2] + j)])
    if ties == 'spread':
      closest = self.closest.flat[tied]
      tied = tied[closest == closest.min()]
    return int(tied[rng.integers(len(tied))])

  def _get_index(self, s: int, i: int, j: int) -> int:
    return int((s * self.closest.shape[1] + i) * self.closest.shape[2] + j)


def _get_hits(halves: np.ndarray, values: np.ndarray) -> np.ndarray:
  """Returns int8 `[position, value, S, orders]`: 1 where the half has the value at the position."""
  return np.stack([(halves[..., p] == values).view(np.int8) for p in range(halves.shape[-1])])


def extend(
  core: np.ndarray, num: int, *, pick: Callable[[Candidates, int, int], int]
) -> np.ndarray:
  """Extends the permutations `core` `[k, T]` one by one to `num`, or until `pick` finds no more.

  `pick(candidates, n, distance_sum)` returns the index of the next one, or -1, given the number of
  chosen ones and the sum of the distances between their pairs. Returns uint8 `[n, T]`.
  """
  tiles = core.shape[1]
  candidates = Candidates(tiles, num)
  rows = list(core.astype(np.uint8))
  for row in rows:
    candidates.add(row)
  distance_sum = get_distance_sum(core)
  while len(rows) < num:
    index = pick(candidates, len(rows), distance_sum)
    if index < 0:
      break
    distance_sum += tiles * len(rows) - candidates.get_shared(index)
    rows.append(candidates.get_permutation(index))
    candidates.add(rows[-1])
  return np.stack(rows)
