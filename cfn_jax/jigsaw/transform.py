"""What loader processes make of a visit to an image: a puzzle. No JAX: it is unpickled there."""

import dataclasses

import numpy as np

from cfn_jax.data import pipeline
from cfn_jax.jigsaw import puzzle


@dataclasses.dataclass(frozen=True)
class MakePuzzle:
  """The transform that loader processes run: a visit to an image becomes tiles and labels."""

  geometry: puzzle.Geometry
  permutations: np.ndarray
  puzzles: int
  fixed_per_image: int
  seed: int

  def __call__(self, visit: pipeline.Visit) -> pipeline.Batch:
    """Gives `tiles` uint8 `[T, h, w, 3]` and `label` int32 `[]`, or `[k]` for k puzzles."""
    made = self.sample(visit)
    return {'tiles': made.tiles, 'label': made.labels[0] if self.puzzles == 1 else made.labels}

  def sample(self, visit: pipeline.Visit) -> puzzle.Puzzle:
    """Draws the puzzle of a visit, its crop included."""
    allowed = None
    if self.fixed_per_image:
      rng = pipeline.make_rng(self.seed, visit.record, pipeline.IMAGE)
      count = len(self.permutations)
      allowed = puzzle.sample_labels(count, rng, puzzles=self.fixed_per_image)
    return puzzle.sample_puzzle(
      visit.image,
      self.geometry,
      self.permutations,
      visit.rng,
      puzzles=self.puzzles,
      allowed=allowed,
    )
