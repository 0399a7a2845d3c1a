"""Measures of a permutation set: Hamming distances over distinct pairs, bounds, a fingerprint.

Paper: section 4.2 and Table 4 (mean and minimum Hamming distance). Every other permutation module
builds on this one; it imports nothing of ours. A permutation set is uint8 `[N, T]`, zero-based, and
tile `i` of a puzzle is tile `permutation[i]` of the image.
"""

import dataclasses
import hashlib
import math

import numpy as np

from cfn_jax.errors import CfnError


class PermutationError(CfnError):
  """A permutation set that cannot be made, read or written; the message is one line."""


@dataclasses.dataclass(frozen=True)
class Summary:
  """Figures of a permutation set. Distances are in tiles, over the N(N-1)/2 distinct pairs."""

  num: int
  tiles: int
  mean_hamming: float
  min_hamming: int
  largest_mean: float  # the mean distance that no set of this size can exceed


def make_rng(seed: int) -> np.random.Generator:
  """Makes the generator of every random choice of a permutation set."""
  if not 0 <= seed < 2**64:
    raise PermutationError(f'permutations.seed={seed}: must be from 0 to 2**64 - 1')
  return np.random.Generator(np.random.Philox(key=np.array([seed, 0], np.uint64)))


def count_values(permutations: np.ndarray) -> np.ndarray:
  """Counts the occurrences of each value at each position: int64 `[T, T]`, position by value.

  >>> count_values(np.array([[0, 1], [1, 0], [1, 0]])).tolist()
  [[1, 2], [2, 1]]
  """
  tiles = permutations.shape[1]
  return np.stack([np.bincount(column, minlength=tiles) for column in permutations.T])


def get_largest_mean(num: int, tiles: int) -> float:
  """Returns the upper bound of the mean distance of `num` permutations of `tiles` tiles.

  Two permutations agree at a position if they have the same value there. So the fewest pairs agree
  if the values are spread as evenly as integers allow: with N = q T + r, r values occur q + 1 times
  and the others q times.

  >>> get_largest_mean(9, 9), get_largest_mean(10, 9)
  (9.0, 8.8)
  """
  q, r = divmod(num, tiles)
  agreeing = r * math.comb(q + 1, 2) + (tiles - r) * math.comb(q, 2)
  return tiles * (math.comb(num, 2) - agreeing) / math.comb(num, 2)


def get_largest_num(tiles: int, min_distance: int) -> int:
  """Returns the most permutations that all differ at d = `min_distance` positions: T!/(d-1)!.

  Two of them never share the values of the first T-d+1 positions (Singleton's bound).

  >>> get_largest_num(9, 9), get_largest_num(9, 8), get_largest_num(9, 7)
  (9, 72, 504)
  """
  return math.factorial(tiles) // math.factorial(max(min_distance - 1, 0))


def get_distance_sum(permutations: np.ndarray) -> int:
  """Returns the sum of the Hamming distances of all pairs of rows `[N, T]`, from counts alone."""
  num, tiles = permutations.shape
  counts = count_values(permutations)
  return tiles * math.comb(num, 2) - int((counts * (counts - 1) // 2).sum())


def get_mean_distance(permutations: np.ndarray) -> float:
  """Returns the mean Hamming distance over distinct pairs of a set `[N, T]`."""
  return get_distance_sum(permutations) / math.comb(len(permutations), 2)


def make_one_hot(permutations: np.ndarray) -> np.ndarray:
  """Makes float32 `[N, T * T]` rows whose dot product is the number of agreeing positions."""
  num, tiles = permutations.shape
  return np.eye(tiles, dtype=np.float32)[permutations].reshape(num, -1)  # [N, T * T]


def get_distances(permutations: np.ndarray, others: np.ndarray) -> np.ndarray:
  """Returns the Hamming distances int16 `[N, M]` between the rows of two sets."""
  agreeing = make_one_hot(permutations) @ make_one_hot(others).T
  return (permutations.shape[1] - agreeing).astype(np.int16)


def get_min_distance(permutations: np.ndarray, block: int = 1024) -> int:
  """Returns the smallest distance between two rows of `[N, T]`; blocks keep memory small."""
  num, tiles = permutations.shape
  if len(np.unique(permutations, axis=0)) < num:
    return 0
  one_hot = make_one_hot(permutations)
  most = 0.0
  for start in range(0, num, block):
    agreeing = one_hot[start : start + block] @ one_hot[start:].T  # [block, N - start]
    np.fill_diagonal(agreeing, 0)
    most = max(most, float(agreeing.max()))
    if most == tiles - 2:  # distinct permutations differ at two positions or more
      break
  return tiles - int(most)


def count_distances(permutations: np.ndarray, block: int = 1024) -> np.ndarray:
  """Counts the distinct pairs at each distance 0..T: int64 `[T + 1]`.

  >>> count_distances(np.array([[0, 1, 2], [1, 0, 2], [2, 0, 1]])).tolist()
  [0, 0, 2, 1]
  """
  num, tiles = permutations.shape
  one_hot = make_one_hot(permutations)
  counts = np.zeros(tiles + 1, np.int64)
  for start in range(0, num, block):
    agreeing = one_hot[start : start + block] @ one_hot[start:].T  # [block, N - start]
    later = np.triu(np.ones(agreeing.shape, bool), 1)  # each pair once, no row with itself
    counts += np.bincount(agreeing[later].astype(np.int64), minlength=tiles + 1)[::-1]
  return counts


def summarize(permutations: np.ndarray) -> Summary:
  """Returns the figures of a set `[N, T]` of two or more permutations."""
  num, tiles = permutations.shape
  if num < 2:
    raise PermutationError(f'{num} permutation has no distances: must be at least 2')
  return Summary(
    num=num,
    tiles=tiles,
    mean_hamming=get_mean_distance(permutations),
    min_hamming=get_min_distance(permutations),
    largest_mean=get_largest_mean(num, tiles),
  )


def fingerprint(permutations: np.ndarray) -> str:
  """Returns the SHA-256 of the shape and values of a set `[N, T]`, whatever its file."""
  canonical = np.ascontiguousarray(permutations, np.uint8)
  digest = hashlib.sha256(f'permutations {canonical.shape}'.encode())
  digest.update(canonical.tobytes())
  return digest.hexdigest()
