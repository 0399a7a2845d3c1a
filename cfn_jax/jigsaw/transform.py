"""Turns a visit to an image into tiles, in loader processes. No JAX: it is unpickled there."""

import dataclasses

import ml_collections
import numpy as np

from cfn_jax.data import images, pipeline, streams
from cfn_jax.jigsaw import puzzle

MEASURED = 256  # visits to measure tiles of, for the input record


def make_geometry(config: ml_collections.ConfigDict) -> puzzle.Geometry:
  """Reads the sizes of the puzzle.

  Raises:
    ValueError: the sizes do not fit together.
  """
  return puzzle.Geometry(
    resize_px=config.puzzle.resize_px,
    crop_px=config.puzzle.crop_px,
    crop_mode=config.puzzle.crop_mode,
    cell_px=config.puzzle.cell_px,
    tile_px=config.puzzle.tile_px,
    grid=config.puzzle.grid,
    grey_fraction=config.puzzle.grey_fraction,
    channel_shift_px=config.puzzle.channel_shift_px,
    cell_gap_px=config.puzzle.cell_gap_px,
    project_fraction=config.puzzle.project_fraction,
    drop_channels=config.puzzle.drop_channels,
    turned=config.task == 'rotation',
  )


@dataclasses.dataclass(frozen=True)
class MakePuzzle:
  """The transform that loader processes run: a visit to an image becomes tiles and labels.

  Attributes:
    rows: uint8 `[N, S]`, the tiles of each question.
    puzzles: k, questions per example; with more than one, tiles stay in reading order.
    fixed_per_image: number of rows for each image, always the same ones; 0: all.
    seed: the seed of those rows.
    occluders: largest number of tiles of an example that another one replaces.
  """

  geometry: puzzle.Geometry
  rows: np.ndarray
  puzzles: int
  fixed_per_image: int
  seed: int
  occluders: int = 0

  def __call__(self, visit: pipeline.Visit) -> pipeline.Batch:
    """Returns `tiles` uint8 `[S, h, w, 3]` and `label` int32 `[]`, or `[T, h, w, 3]` and `[k]`.

    With occluders also `occluders` int8 `[T]`, see `draw_occluders`.
    """
    return self._arrays(self.sample(visit), visit)

  def group(self, visit: pipeline.Visit, count: int) -> list[pipeline.Batch]:
    """Returns `count` examples of one visit, all with different rows."""
    return [self._arrays(self.sample(visit, row), visit) for row in self._draw_group(visit, count)]

  def first_of_group(self, visit: pipeline.Visit, count: int) -> puzzle.Puzzle:
    """Returns the first of the puzzles of `group`, with its crop; `count` 1: the only one."""
    return (
      self.sample(visit, self._draw_group(visit, count)[0]) if count > 1 else self.sample(visit)
    )

  def _draw_group(self, visit: pipeline.Visit, count: int) -> np.ndarray:
    labels = puzzle.sample_labels(
      len(self.rows),
      visit.rng,
      puzzles=count * self.puzzles,
      allowed=self._allowed(visit),
    )
    return labels.reshape(count, self.puzzles)

  def sample(self, visit: pipeline.Visit, labels: np.ndarray | None = None) -> puzzle.Puzzle:
    """Draws the crop and the puzzle of a visit, and `labels` `[k]` unless they are given."""
    return puzzle.sample_puzzle(
      visit.image,
      self.geometry,
      self.rows,
      visit.rng,
      puzzles=self.puzzles,
      allowed=self._allowed(visit),
      labels=labels,
    )

  def _allowed(self, visit: pipeline.Visit) -> np.ndarray | None:
    """Returns the rows of the set for an image; None: all."""
    if not self.fixed_per_image:
      return None
    rng = streams.make_rng(self.seed, visit.record, streams.IMAGE)
    return puzzle.sample_labels(len(self.rows), rng, puzzles=self.fixed_per_image)

  def _arrays(self, made: puzzle.Puzzle, visit: pipeline.Visit) -> pipeline.Batch:
    label = made.labels[0] if self.puzzles == 1 else made.labels
    arrays = {'tiles': made.tiles, 'label': label}
    if self.occluders:
      arrays['occluders'] = draw_occluders(self.geometry.tiles, self.occluders, visit.rng)
    return arrays


def draw_occluders(tiles: int, most: int, rng: np.random.Generator) -> np.ndarray:
  """Draws the tiles of another example that replace tiles of an example: int8 `[T]`.

  Each value is the number of the other example's tile, or -1 if the tile stays. It never comes from
  the same cell, which would teach where a tile was. The number of replaced tiles is uniform on 0 to
  `most`, and the replacements are different tiles.
  """
  found = np.full(tiles, -1, np.int8)
  places = rng.choice(tiles, rng.integers(most + 1), replace=False)
  others = places
  while np.any(others == places):
    others = rng.choice(tiles, len(places), replace=False)
  found[places] = others
  return found


def measure_tiles(
  reader: pipeline.Reader, visits: MakePuzzle, kind: str
) -> tuple[tuple[float, float, float], float] | None:
  """Measures the normalisation of tiles: the mean (R, G, B) and the std, 0..255.

  Each is averaged over the tiles of the first training visits. With `kind` 'tile' a tile has one
  mean and one std over its channels, else one per channel. Returns None if no image can be read.
  """
  axes = (1, 2, 3) if kind == 'tile' else (1, 2)
  means, stds = [], []
  for position in range(min(MEASURED, len(reader.source))):
    try:
      tiles = visits.sample(reader.train(position)).tiles  # [T, h, w, 3]
    except images.BadImage:
      continue
    means.append(tiles.mean(axes, keepdims=True).mean(0))
    stds.append(tiles.std(axes).mean())
  if not means:
    return None
  red, green, blue = np.broadcast_to(np.mean(means, axis=0), (1, 1, 3)).ravel().tolist()
  return (red, green, blue), float(np.mean(stds))
