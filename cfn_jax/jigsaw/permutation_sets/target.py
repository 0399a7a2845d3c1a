"""Permutation sets with a given mean distance, between those of `min` and `max`.

Paper: Table 4 has means 8.00, 6.35 and 3.99 at N = 1000; the first row follows from Algorithm 1,
the other two do not. Here the search steers: it knows the sum of the distances at every step, so
the next permutation is the one that brings the sum nearest to its goal.
"""

import functools
import math

import numpy as np

from cfn_jax.jigsaw.permutation_sets import assignment, greedy
from cfn_jax.jigsaw.permutation_sets.measures import (
  PermutationError,
  get_mean_distance,
  get_min_distance,
  make_rng,
)

TOLERANCE = 0.01
"""How far the mean distance may be from the wanted one."""
RUNS = 12
"""Runs of `spread`, at most, while a forced step has left two permutations too similar."""
RUNS_NUM = 100
"""The largest set that is run again: larger ones always have such steps."""


def make_extreme(
  num: int, tiles: int, *, method: str, ties: str, min_distance: int, rng: np.random.Generator
) -> np.ndarray:
  """Makes up to `num` permutations uint8 `[n, T]` by Algorithm 1, method 'max' or 'min'.

  It returns fewer only if `min_distance`, which is for 'max', leaves no more.
  """
  first = rng.permutation(tiles).astype(np.uint8)
  if tiles > greedy.MAX_TILES:
    if method == 'min':
      return assignment.extend_nearest(first, num, ties=ties, rng=rng)
    return assignment.extend_farthest(
      first[None], num, ties=ties, min_distance=min_distance, rng=rng
    )

  def pick(candidates: greedy.Candidates, n: int, distance_sum: int) -> int:
    if method == 'min':
      return candidates.pick_nearest(tiles * n, ties, 1, rng)
    return candidates.pick_farthest(ties, max(min_distance, 1), rng)

  best = greedy.extend(first[None], num, pick=pick)
  if method == 'max' and ties == 'spread' and not min_distance and 2 < num <= RUNS_NUM:
    # Sometimes the draws leave a single best permutation that is close to another. Another run of
    # the same rule from the same first permutation seldom ends like that.
    closest = get_min_distance(best)
    for _ in range(RUNS - 1):
      if closest >= min(tiles // 2, tiles - 1):
        break
      made = greedy.extend(first[None], num, pick=pick)
      if get_min_distance(made) > closest:
        best, closest = made, get_min_distance(made)
  return best


def make_target(num: int, tiles: int, *, mean: float, ties: str, seed: int) -> np.ndarray:
  """Makes `num` permutations uint8 `[N, T]` whose mean distance is within 0.01 of `mean`."""
  near, far = _make_ends(num, tiles, ties, seed)
  low, high = get_mean_distance(near), get_mean_distance(far)
  if not low - 0.0005 <= mean <= high + 0.0005:  # printed ends are accepted
    raise PermutationError(
      f'permutations.mean={mean:g}: out of range: {num} permutations of {tiles} tiles reach '
      f'{low:.3f} to {high:.3f}'
    )
  best = near if _get_gap(near, mean) < _get_gap(far, mean) else far
  # It is best to keep the mean from the first permutations on. Near the lowest mean that is
  # impossible, since sets of every size would have to be as tight: there a tight core comes first.
  for size in [1, *(num - num // 2**i for i in range(1, num.bit_length()))]:
    made = _steer(near[:size], num, mean=mean, ties=ties, rng=make_rng(seed))
    if len(made) == num and _get_gap(made, mean) < _get_gap(best, mean):
      best = made
    if _get_gap(best, mean) <= TOLERANCE / 2:
      break
  if _get_gap(best, mean) > TOLERANCE:
    raise PermutationError(
      f'permutations.mean={mean:g}: {num} permutations cannot have it within {TOLERANCE}; '
      f'the nearest is {get_mean_distance(best):.3f}'
    )
  return best


def find_mean_range(num: int, tiles: int, *, ties: str, seed: int) -> tuple[float, float]:
  """Returns the lowest and the highest mean distance that `make_target` accepts."""
  near, far = _make_ends(num, tiles, ties, seed)
  return get_mean_distance(near), get_mean_distance(far)


def _steer(
  core: np.ndarray, num: int, *, mean: float, ties: str, rng: np.random.Generator
) -> np.ndarray:
  """Extends `core` `[k, T]` to `num` permutations with that mean distance, if possible."""
  tiles = core.shape[1]
  total = mean * math.comb(num, 2)

  def want(n: int, distance_sum: int) -> int:
    if len(core) == 1:
      distance = mean * math.comb(n + 1, 2) - distance_sum
    else:
      distance = (total - distance_sum) / (num - n)
    return int(np.clip(round(tiles * n - distance), 0, tiles * n))

  if tiles > greedy.MAX_TILES:
    return assignment.extend_steered(core, num, wanted=want, rng=rng)

  def pick(candidates: greedy.Candidates, n: int, distance_sum: int) -> int:
    return candidates.pick_nearest(want(n, distance_sum), ties, 1, rng)

  return greedy.extend(core, num, pick=pick)


@functools.lru_cache(maxsize=4)
def _make_ends(num: int, tiles: int, ties: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns the sets of 'min' and 'max'."""
  near, far = (
    make_extreme(num, tiles, method=method, ties=ties, min_distance=0, rng=make_rng(seed))
    for method in ('min', 'max')
  )
  return near, far


def _get_gap(permutations: np.ndarray, mean: float) -> float:
  return abs(get_mean_distance(permutations) - mean)
