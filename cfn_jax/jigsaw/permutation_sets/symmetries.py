"""The symmetries of a permutation set: the moves of tiles that map puzzles to puzzles.

Not in the paper. `puzzle[i] = tiles[s[i]]`, so permuting the places of a puzzle by k turns s into
`s[k]`. If `s[k]` is in the set for every s, k is a symmetry: the same network may be asked about
the permuted puzzle, and its answer read back (evaluation/puzzles/voting.py). Symmetries form a
group. A whole code of N permutations has N of them, but its own rows are none: a code is a coset of
a group. A set of the greedy methods has only the identity.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Symmetries:
  """The symmetries K of a set S uint8 `[N, T]`.

  Attributes:
    moves: uint8 `[M, T]`: `moves[m]` permutes places.
    rows: int32 `[N, M]`: the number of the permutation `S[j][moves[m]]`.
  """

  moves: np.ndarray
  rows: np.ndarray

  def __len__(self) -> int:
    return len(self.moves)


def find_symmetries(permutations: np.ndarray) -> Symmetries:
  """Finds all symmetries of a set uint8 `[N, T]` of different permutations.

  >>> find_symmetries(np.array([[1, 0, 2], [2, 1, 0], [0, 2, 1]])).moves.tolist()
  [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
  """
  known = _make_keys(permutations)
  order = np.argsort(known)

  def find(rows: np.ndarray) -> np.ndarray:  # [M, T] to [M]: a row's number, or -1
    keys = _make_keys(rows)
    at = order[np.minimum(np.searchsorted(known, keys, sorter=order), len(order) - 1)]
    return np.where(known[at] == keys, at, -1)

  # A symmetry takes the first permutation to one of the set: s[0][k] = s, k = argsort(s[0])[s].
  moves = np.argsort(permutations[0])[permutations]
  moves = moves[np.lexsort(moves.T[::-1])]  # the identity first
  for permutation in permutations:
    moves = moves[find(permutation[moves]) >= 0]
  rows = np.stack([find(permutation[moves]) for permutation in permutations])
  return Symmetries(moves.astype(np.uint8), rows.astype(np.int32))


def _make_keys(rows: np.ndarray) -> np.ndarray:
  """Returns each row `[M, T]` as one value of T bytes, which sorts and compares at once."""
  plain = np.ascontiguousarray(rows, np.uint8)
  return plain.view(f'V{plain.shape[1]}').ravel()
