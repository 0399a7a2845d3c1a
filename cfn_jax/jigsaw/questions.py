"""The questions of a pretext task about the T tiles of an image: rows of tile numbers, answers.

A question shows the S tiles of its row, in the row's order. The network names its answer, one of K
classes. Questions -> a row for each visit (puzzle.py) -> features of the tiles (models/cfn.py) -> K
logits.
"""

import dataclasses
import hashlib
from typing import Any

import numpy as np

from cfn_jax.errors import CfnError
from cfn_jax.jigsaw import puzzle

PAIRS = ('star', 'all')
# The place of a tile around another, (rows down, columns right) by class, in reading order.
AROUND = ((-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1))
AROUND_NAMES = (
  *('above left', 'above', 'above right', 'left', 'right'),
  *('below left', 'below', 'below right'),
)


@dataclasses.dataclass(frozen=True)
class Questions:
  """All questions of a task.

  Attributes:
    name: the name of the task.
    rows: uint8 `[N, S]`, tile numbers in reading order: `question[i] = tiles[row[i]]`.
    answers: int32 `[N]`, the class of each row.
    classes: K.
  """

  name: str
  rows: np.ndarray
  answers: np.ndarray
  classes: int

  def __len__(self) -> int:
    return len(self.rows)

  @property
  def shown(self) -> int:
    """Returns the number S of tiles that a question shows."""
    return int(self.rows.shape[1])

  @property
  def plural(self) -> str:
    """Returns the usual word for the questions."""
    return 'puzzles' if self.name == 'jigsaw' else 'questions'

  def name_answer(self, answer: int) -> str:
    """Returns the meaning of an answer, in words."""
    if self.name == 'rotation':
      return f'{90 * answer}°'
    return f'answer {answer}' if self.name == 'jigsaw' else AROUND_NAMES[answer]

  @property
  def chance_accuracy(self) -> float:
    """Returns the accuracy of the best constant answer."""
    return float(self._shares().max())

  @property
  def chance_loss(self) -> float:
    """Returns the entropy of the answers, in nats: the loss of a guess by each class's share."""
    shares = self._shares()
    return float(-np.sum(shares * np.log(shares)))

  @property
  def fingerprint(self) -> str:
    """Returns a digest of the rows, their order and their answers."""
    told = f'{self.name} {self.rows.shape} {self.classes} '.encode()
    digest = hashlib.sha256(told + self.rows.tobytes() + self.answers.tobytes())
    return digest.hexdigest()[:32]

  def find(self, others: 'Questions') -> np.ndarray:
    """Returns which of these questions are among others, bool `[N]`."""
    known = set(map(tuple, others.rows.tolist()))
    return np.array([tuple(row) in known for row in self.rows.tolist()])

  def to_json(self) -> dict[str, Any]:
    """Returns the questions as plain values, for use of the network elsewhere."""
    return {
      'task': self.name,
      'rows': self.rows.tolist(),
      'answers': self.answers.tolist(),
      'classes': self.classes,
      'fingerprint': self.fingerprint,
    }

  def _shares(self) -> np.ndarray:
    counts = np.bincount(self.answers, minlength=self.classes)
    return counts[counts > 0] / len(self)


def ask_jigsaw(permutations: np.ndarray) -> Questions:
  """Asks which permutation uint8 `[N, T]` shuffled the tiles: Noroozi and Favaro."""
  count = len(permutations)
  return Questions('jigsaw', permutations, np.arange(count, dtype=np.int32), count)


def ask_relative_position(grid: int, pairs: str) -> Questions:
  """Asks in which of eight places around the first tile the second lies: Doersch et al.

  Rows are (reference, neighbour) by reference, then by class.

  Args:
    grid: tiles per side.
    pairs: 'star': the tile in the middle and each tile around it; 'all': every tile and each of its
      neighbours.

  Raises:
    CfnError: unknown pairs; a grid without neighbours, or, for the star, without a middle.
  """
  if pairs not in PAIRS:
    raise CfnError(f"pairs = '{pairs}' is unknown: one of {', '.join(PAIRS)}")
  if grid < 2:
    raise CfnError(f'puzzle.grid = {grid}: a tile has no neighbours; at least 2')
  if pairs == 'star' and grid % 2 == 0:
    raise CfnError(f"puzzle.grid = {grid}: it has no middle tile for pairs = 'star'; take 3 or 5")
  middle = (grid // 2, grid // 2)
  references = [middle] if pairs == 'star' else list(np.ndindex(grid, grid))
  rows, answers = [], []
  for y, x in references:
    for answer, (down, right) in enumerate(AROUND):
      if 0 <= y + down < grid and 0 <= x + right < grid:
        rows.append((y * grid + x, (y + down) * grid + x + right))
        answers.append(answer)
  return Questions(
    'relative_position', np.array(rows, np.uint8), np.array(answers, np.int32), len(AROUND)
  )


def ask_rotation() -> Questions:
  """Asks by how many quarter turns, counter-clockwise, the image is rotated: Gidaris et al.

  The tiles are one crop in its four rotations.
  """
  numbers = np.arange(puzzle.ROTATIONS)
  return Questions(
    'rotation', numbers[:, None].astype(np.uint8), numbers.astype(np.int32), puzzle.ROTATIONS
  )
