"""Permutation sets of a 3x3 grid from groups on nine points, built from their algebra.

Not in the paper. Two elements of a group agree at as many points as one of its elements fixes. So a
group in which no element but the identity fixes more than k points has minimum distance 9 - k:

- the 9 shifts of GF(9), x -> x + b: none fixes a point, minimum 9;
- AGL(1,9), x -> a x + b over GF(9): 72 permutations, at most one fixed point, minimum 8;
- PSL(2,8), x -> (a x + b) / (c x + d) on GF(8) and infinity: 504, at most two, minimum 7;
- PGammaL(2,8), those after x -> x, x^2 or x^4: 1512, at most three, minimum 6.

Each contains a subgroup of nine that takes every point to every point exactly once. Its cosets are
Latin squares, so whole cosets and a part of one more have the largest possible mean distance.
"""

import dataclasses
import functools

import numpy as np

from cfn_jax.jigsaw.permutation_sets.measures import PermutationError

POINTS = 9


@dataclasses.dataclass(frozen=True)
class Group:
  """The facts about a group before it is built."""

  name: str
  size: int
  min_distance: int


GROUPS = (
  Group('the 9 shifts', 9, 9),
  Group('AGL(1,9)', 72, 8),
  Group('PSL(2,8)', 504, 7),
  Group('PGammaL(2,8)', 1512, 6),
)


def make_field(prime: int, polynomial: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
  """Makes the tables of a finite field: sum and product, int `[q, q]`.

  An element is the number whose digits in base `prime` are its coefficients, lowest first.
  `polynomial` holds c with x^n = c[0] + c[1] x + ..., for an irreducible x^n - c.

  >>> add, multiply = make_field(2, (1, 1))  # GF(4), x^2 = 1 + x
  >>> int(add[2, 3]), int(multiply[2, 2]), int(multiply[2, 3])
  (1, 3, 1)
  """
  degree = len(polynomial)
  q = prime**degree
  digits = np.array([[v // prime**i % prime for i in range(degree)] for v in range(q)])
  weights = prime ** np.arange(degree)
  add = (digits[:, None] + digits[None, :]) % prime @ weights  # [q, q]
  multiply = np.zeros((q, q), np.int64)
  power = digits  # x^i times each element
  for i in range(degree):
    product = (digits[:, i, None, None] * power[None]) % prime @ weights  # [q, q]
    multiply = add[multiply, product]
    carry = power[:, -1:]  # times x: move up one place and reduce the carry
    moved = np.concatenate([np.zeros_like(carry), power[:, :-1]], axis=1)
    power = (moved + carry * np.array(polynomial)) % prime
  return add, multiply


def make_shifts() -> np.ndarray:
  """Makes x -> x + b over GF(9), uint8 `[9, 9]`."""
  add, _ = make_field(3, (2, 0))  # x^2 = -1
  return add.astype(np.uint8)


def make_affine() -> np.ndarray:
  """Makes AGL(1,9), x -> a x + b over GF(9), uint8 `[72, 9]`, coset by coset of the shifts."""
  add, multiply = make_field(3, (2, 0))
  return add[multiply[1:]].transpose(0, 2, 1).reshape(-1, POINTS).astype(np.uint8)


def make_projective(*, with_powers: bool) -> np.ndarray:
  """Makes PSL(2,8) uint8 `[504, 9]`, or PGammaL(2,8) `[1512, 9]`; point 8 is infinity.

  The elements come coset by coset of a cyclic subgroup of nine that is regular on the points.
  """
  add, multiply = make_field(2, (1, 1, 0))  # GF(8), x^3 = 1 + x
  infinity = 8
  inverse = np.append(0, np.argmax(multiply[1:] == 1, axis=1))
  # Over GF(8) every nonzero determinant is a square: the matrices up to scale are PSL(2,8) too.
  a, b, c, d = np.indices((8, 8, 8, 8)).reshape(4, -1)
  first = np.where(a > 0, a, np.where(b > 0, b, c))  # scaled so that the first nonzero entry is 1
  keep = (add[multiply[a, d], multiply[b, c]] != 0) & (first == 1)  # minus is plus
  a, b, c, d = (v[keep][:, None] for v in (a, b, c, d))
  x = np.arange(8)[None]
  top, bottom = add[multiply[a, x], b], add[multiply[c, x], d]  # [504, 8]
  finite = np.where(bottom == 0, infinity, multiply[top, inverse[bottom]])
  last = np.where(c == 0, infinity, multiply[a, inverse[c]])  # the image of infinity, a / c
  elements = np.concatenate([finite, last], axis=1)  # [504, 9]
  if with_powers:
    square = np.append(np.diag(multiply), infinity)
    elements = np.concatenate([elements, elements[:, square], elements[:, square[square]]])
  return _order_by_cosets(elements.astype(np.uint8))


def _order_by_cosets(elements: np.ndarray) -> np.ndarray:
  """Orders a group's elements by the cosets of a cyclic subgroup that is regular on the points."""
  points = np.arange(POINTS)
  for element in elements:
    powers = [points]
    while len(powers) < POINTS and (element[powers[-1]] != points).any():
      powers.append(element[powers[-1]])
    cycle = np.stack(powers)
    if len(cycle) == POINTS and (np.sort(cycle, axis=0) == points[:, None]).all():
      break
  seen: set[bytes] = set()
  ordered = []
  for element in elements:
    if element.tobytes() not in seen:
      coset = cycle[:, element].astype(np.uint8)  # each power after the element
      seen.update(row.tobytes() for row in coset)
      ordered.append(coset)
  return np.concatenate(ordered)


@functools.cache
def make_group(name: str) -> np.ndarray:
  """Makes a group of `GROUPS`, uint8 `[size, 9]`, in cosets of nine that are Latin squares."""
  if name == 'the 9 shifts':
    return make_shifts()
  if name == 'AGL(1,9)':
    return make_affine()
  return make_projective(with_powers=name == 'PGammaL(2,8)')


def make_code(num: int, tiles: int, *, min_distance: int, rng: np.random.Generator) -> np.ndarray:
  """Makes `num` permutations uint8 `[N, 9]` of the smallest group that is large enough.

  num = 0 means the whole of the largest group that keeps `min_distance`. The mean distance is the
  largest possible one for every N. The generator renames points and values, which changes no
  distance, and picks the cosets.
  """
  if tiles != POINTS:
    raise PermutationError(
      f'permutations.method=code with {tiles} tiles (puzzle.grid): the groups need a 3x3 grid'
    )
  allowed = [group for group in GROUPS if group.min_distance >= min_distance]
  largest = allowed[-1] if allowed else None
  if largest is None or num > largest.size:
    limit = f'{largest.name} has {largest.size}' if largest else 'there is no such group'
    at = f' at minimum distance {min_distance}' if min_distance else ''
    raise PermutationError(f'permutations.num={num}: too many for method code{at}: {limit}')
  group = largest if num == 0 else next(group for group in allowed if num <= group.size)
  cosets = make_group(group.name).reshape(-1, POINTS, POINTS)  # [cosets, 9, 9]
  rows = rng.permutation(cosets, axis=0).reshape(-1, POINTS)[: num or group.size]
  values, points = rng.permutation(POINTS), rng.permutation(POINTS)
  return rng.permutation(values[rows][:, points], axis=0).astype(np.uint8)
