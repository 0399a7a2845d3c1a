"""The permutation set: the shuffles that a puzzle may show, one class each.

Paper: section 4.2, Algorithm 1 and Table 4. The set decides how hard and how ambiguous the task is.
`puzzle[i] = tiles[permutation[i]]`, zero-based, tiles in reading order, and the label is the row's
number. NumPy and SciPy only: loader processes import it.
"""

import math

import numpy as np

from cfn_jax.jigsaw.permutation_sets import greedy, groups, pruning, target
from cfn_jax.jigsaw.permutation_sets.files import Loaded, load_permutations, save_permutations
from cfn_jax.jigsaw.permutation_sets.measures import (
  PermutationError,
  Summary,
  fingerprint,
  get_largest_num,
  make_rng,
  summarize,
)

__all__ = [
  'METHODS',
  'TIES',
  'Loaded',
  'PermutationError',
  'Summary',
  'find_mean_range',
  'fingerprint',
  'load_permutations',
  'make_permutations',
  'prune_permutations',
  'save_permutations',
  'summarize',
]

METHODS = ('max', 'min', 'mid', 'target', 'code')
TIES = ('spread', 'random', 'first')
PRUNED_NUM = 100
"""The size of the set that a minimum distance is enforced on, as in the paper's Table 4."""


def make_permutations(
  num: int,
  *,
  method: str = 'max',
  seed: int = 0,
  grid: int = 3,
  ties: str = 'spread',
  mean: float = 0.0,
  min_distance: int = 0,
  columns: int = 0,
) -> np.ndarray:
  """Makes a permutation set uint8 `[N, T]`, zero-based; equal arguments make equal bytes.

  Args:
    num: N. 0: as many as possible, if a minimum distance or method 'code' limits it.
    method: 'max', 'min' and 'mid' are Algorithm 1 (largest, smallest, any distance to the chosen
      ones); 'target' steers to the mean distance `mean`; 'code' takes a group of permutations.
    seed: draws the first permutation, and others if the method leaves a choice.
    grid: tiles along a side, 2 to 5.
    ties: the choice of Algorithm 1 among equally good permutations: 'spread': the one whose
      smallest distance to the chosen ones is largest, then at random; 'random'; 'first' in order of
      values.
    mean: the wanted mean distance of method 'target', in tiles; 0 for the other methods.
    min_distance: the smallest distance allowed between two permutations, in tiles; 0: any.
    columns: tiles along a row if the grid is not square; 0: `grid`.

  Raises:
    PermutationError: one line with the impossible request, and the possible ones.
  """
  columns = columns or grid
  tiles = grid * columns
  _check_choices(method, ties, grid, columns)
  _check_distances(method, tiles, mean, min_distance)
  _check_num(num, method, tiles, min_distance)
  rng = make_rng(seed)
  if method == 'code':
    return groups.make_code(num, tiles, min_distance=min_distance, rng=rng)
  if method == 'mid':
    return _draw(num, tiles, rng=rng)
  if method == 'target':
    return target.make_target(num, tiles, mean=mean, ties=ties, seed=seed)
  if min_distance and num <= PRUNED_NUM:
    whole_num = min(PRUNED_NUM, math.factorial(tiles))
    whole = target.make_extreme(whole_num, tiles, method=method, ties=ties, min_distance=0, rng=rng)
    return prune_permutations(whole, num=num, min_distance=min_distance, seed=seed)
  made = target.make_extreme(
    num, tiles, method=method, ties=ties, min_distance=min_distance, rng=rng
  )
  if len(made) < num:
    raise PermutationError(_say_too_many(num, len(made), tiles, min_distance))
  return made


def prune_permutations(
  permutations: np.ndarray, *, num: int = 0, min_distance: int = 0, seed: int = 0
) -> np.ndarray:
  """Removes similar rows of a set `[N, T]`, then cuts it to `num` rows; 0 keeps all."""
  tiles = permutations.shape[1]
  _check_distances('max', tiles, 0.0, min_distance)
  if num < 0 or num == 1:
    raise PermutationError(f'permutations.num={num}: must be at least 2')
  rng = make_rng(seed)
  left = pruning.keep_distant(permutations, min_distance, rng=rng)
  if len(left) < max(num, 2):
    raise PermutationError(_say_too_many(num, len(left), tiles, min_distance, len(permutations)))
  if not num:
    return permutations[left]
  return pruning.cut(permutations, left, num, min_distance, rng=rng)


def find_mean_range(
  num: int, *, grid: int = 3, columns: int = 0, ties: str = 'spread', seed: int = 0
) -> tuple[float, float]:
  """Returns the lowest and highest mean distance of method 'target' with `num` rows."""
  tiles = grid * (columns or grid)
  return target.find_mean_range(num, tiles, ties=ties, seed=seed)


def _draw(num: int, tiles: int, *, rng: np.random.Generator) -> np.ndarray:
  """Draws `num` different permutations uint8 `[N, T]`, every set equally likely."""
  rows = np.empty((0, tiles), np.uint8)
  while len(rows) < num:
    more = np.tile(np.arange(tiles, dtype=np.uint8), (2 * (num - len(rows)) + 8, 1))
    rows = np.concatenate([rows, rng.permuted(more, axis=1)])
    _, first = np.unique(rows, axis=0, return_index=True)
    rows = rows[np.sort(first)]
  return rows[:num]


def _check_choices(method: str, ties: str, grid: int, columns: int) -> None:
  if method not in METHODS:
    raise PermutationError(f'permutations.method={method!r}: must be one of {", ".join(METHODS)}')
  if ties not in TIES:
    raise PermutationError(f'permutations.ties={ties!r}: must be one of {", ".join(TIES)}')
  if not (2 <= grid <= 5 and 2 <= columns <= 5):
    raise PermutationError(f'puzzle.grid={grid}x{columns}: must be 2 to 5 tiles along a side')
  if ties == 'first' and method in ('max', 'min', 'target') and grid * columns > greedy.MAX_TILES:
    raise PermutationError(
      f'permutations.ties=first with {grid * columns} tiles (puzzle.grid): at most '
      f'{greedy.MAX_TILES} tiles can be enumerated; use spread or random'
    )


def _check_distances(method: str, tiles: int, mean: float, min_distance: int) -> None:
  if method == 'target' and not 0 < mean <= tiles:
    raise PermutationError(
      f'permutations.mean={mean:g}: method target needs a mean distance above 0, at most {tiles}'
    )
  if method != 'target' and mean:
    raise PermutationError(f'permutations.mean={mean:g}: goes with method target, not {method}')
  if not 0 <= min_distance <= tiles:
    raise PermutationError(
      f'permutations.min_distance={min_distance}: must be 0 (any) to {tiles}, the number of tiles'
    )
  if min_distance and method not in ('max', 'code'):
    raise PermutationError(
      f'permutations.min_distance={min_distance}: goes with method max or code, not {method}'
    )


def _check_num(num: int, method: str, tiles: int, min_distance: int) -> None:
  open_ended = method == 'code' or min_distance > 0
  if num < 2 and not (num == 0 and open_ended):
    raise PermutationError(f'permutations.num={num}: must be at least 2')
  largest = get_largest_num(tiles, min_distance)
  if num > largest:
    at = f' with minimum distance {min_distance}' if min_distance > 1 else ''
    raise PermutationError(
      f'permutations.num={num}: {tiles} tiles have at most {largest} permutations{at}'
    )


def _say_too_many(num: int, left: int, tiles: int, min_distance: int, whole: int = 0) -> str:
  found = f'of {whole} permutations' if whole else 'the greedy search finds'
  better = [g for g in groups.GROUPS if g.min_distance >= min_distance and g.size >= num]
  hint = f'; method code has {better[-1].size}' if tiles == groups.POINTS and better else ''
  kept = f'{found} {left} are left' if whole else f'{found} {left}'
  return f'permutations.num={num}: {kept} at minimum distance {min_distance}{hint}'
