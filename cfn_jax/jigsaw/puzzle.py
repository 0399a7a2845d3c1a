"""From a photograph to a question about its tiles: crop, colours, tiles with gaps, channel shifts.

Paper, section 4 (the puzzle) and section 4.2 (measures against shortcuts). NumPy, with OpenCV for
resampling and grey; a pure function of image, rows and generator. Loader processes run it, so it
imports no JAX. Law: `puzzle[i] = tiles[row[i]]`, zero-based, tiles in reading order; a jigsaw's row
is a permutation.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from cfn_jax.data import resampling
from cfn_jax.errors import CfnError
from cfn_jax.jigsaw import colours

CROP_MODES = ('centre', 'random', 'whole')
ROTATIONS = 4
RULES = 2  # changes when the same image, geometry and draws make other tiles


@dataclasses.dataclass(frozen=True)
class Geometry:
  """The sizes of a puzzle in pixels, and the draws of each visit.

  Attributes:
    resize_px: the image's short side is resized to this; crops lie in its central square.
    crop_px: side of the crop.
    crop_mode: `centre`; `random`: anywhere in the central square; `whole`: the whole image is
      resized to `crop_px` x `crop_px`, whatever its aspect.
    cell_px: side of a cell; `grid` x `grid` cells lie in the middle of the crop.
    tile_px: side of a tile, drawn somewhere inside its cell. `cell_px = tile_px`: no gaps.
    grid: cells per side.
    cell_gap_px: space between two cells.
    grey_fraction: share of the visits at which the whole puzzle is grey, 0..1.
    project_fraction: share of the other visits at which colour loses its green-magenta axis.
    drop_channels: each tile keeps one random channel; the others become its mean, dithered.
    channel_shift_px: each channel of each tile shifts by up to this on each axis, within its cell;
      without gaps within the crop. Grey images do not shift. 0: off.
    turned: the tiles are the only cell's, in its four rotations.
  """

  resize_px: int
  crop_px: int
  crop_mode: str
  cell_px: int
  tile_px: int
  grid: int
  grey_fraction: float
  channel_shift_px: int
  cell_gap_px: int = 0
  project_fraction: float = 0.0
  drop_channels: bool = False
  turned: bool = False

  def __post_init__(self) -> None:
    checks = (
      (
        self.grid >= 2 or self.turned,
        f'puzzle.grid = {self.grid}: a puzzle needs at least 2 x 2 cells',
      ),
      (
        not self.turned or (self.grid, self.cell_px, self.cell_gap_px) == (1, self.tile_px, 0),
        f'puzzle.grid = {self.grid}, puzzle.cell_px = {self.cell_px}, puzzle.cell_gap_px = '
        f'{self.cell_gap_px}, puzzle.tile_px = {self.tile_px}: rotations are of one tile without a '
        'gap: grid 1, cell_px = tile_px, cell_gap_px 0',
      ),
      (self.cell_gap_px >= 0, f'puzzle.cell_gap_px = {self.cell_gap_px}: 0 or more'),
      (self.tile_px >= 1, f'puzzle.tile_px = {self.tile_px}: at least 1'),
      (
        self.tile_px <= self.cell_px,
        f'puzzle.tile_px = {self.tile_px} is larger than its cell: at most '
        f'puzzle.cell_px = {self.cell_px}',
      ),
      (
        self.extent_px <= self.crop_px,
        f'{self.grid} cells of puzzle.cell_px = {self.cell_px} need a crop of '
        f'{self.extent_px} px: puzzle.crop_px = {self.crop_px} is smaller',
      ),
      (
        self.crop_mode in CROP_MODES,
        f"puzzle.crop_mode = '{self.crop_mode}' is unknown: one of {', '.join(CROP_MODES)}",
      ),
      (
        self.crop_mode == 'whole' or self.crop_px <= self.resize_px,
        f'puzzle.crop_px = {self.crop_px} is larger than the resized image: at most '
        f'puzzle.resize_px = {self.resize_px}',
      ),
      (0 <= self.grey_fraction <= 1, f'puzzle.grey_fraction = {self.grey_fraction}: from 0 to 1'),
      (
        0 <= self.project_fraction <= 1,
        f'puzzle.project_fraction = {self.project_fraction}: from 0 to 1',
      ),
      (self.channel_shift_px >= 0, f'puzzle.channel_shift_px = {self.channel_shift_px}: 0 or more'),
    )
    for holds, message in checks:
      if not holds:
        raise CfnError(message)

  @property
  def tiles(self) -> int:
    """Returns the number of tiles T."""
    return ROTATIONS if self.turned else self.grid**2

  @property
  def pitch_px(self) -> int:
    """Returns the distance between the corners of two neighbouring cells."""
    return self.cell_px + self.cell_gap_px

  @property
  def extent_px(self) -> int:
    """Returns the side of the square that all cells fill, with the gaps between them."""
    return self.grid * self.pitch_px - self.cell_gap_px

  @property
  def largest_shift_px(self) -> int:
    """Returns the largest channel shift; the room in the cell, or the crop, limits it."""
    spare = self.cell_px - self.tile_px or self.crop_px - self.tile_px
    return min(self.channel_shift_px, spare)


class Puzzle(NamedTuple):
  """A puzzle and its crop."""

  tiles: np.ndarray  # uint8 [S, h, w, 3]: tiles of the one row; or all T, in reading order
  labels: np.ndarray  # int32 [k]: the numbers of the rows
  crop: np.ndarray  # uint8 [crop_px, crop_px, 3]: after greying


def sample_puzzle(
  image: np.ndarray,
  geometry: Geometry,
  rows: np.ndarray,
  rng: np.random.Generator,
  *,
  puzzles: int = 1,
  allowed: np.ndarray | None = None,
  labels: np.ndarray | None = None,
) -> Puzzle:
  """Draws one visit to an image.

  Args:
    image: uint8 `[H, W, 3]` RGB.
    rows: `[N, S]`: the tiles of each question, zero-based; a jigsaw's permutations.
    puzzles: number of rows to draw, without replacement. With 1 the tiles are those of the row.
      With more, all tiles stay in reading order, and the network selects their features by the
      rows.
    allowed: the rows to draw from; all of them by default.
    labels: int32 `[k]`: the rows to show, instead of drawing them.
    rng: decides, in this order: grey, crop, rows, projection, tile offsets, channel shifts, kept
      channels.

  Raises:
    CfnError: the image is not uint8 `[H, W, 3]`.
  """
  if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
    raise ValueError(f'an image is uint8 [H, W, 3], not {image.dtype} {list(image.shape)}')
  # Deviation: grey is drawn at each visit: the paper's 30 % of the images can mean fixed ones.
  greyed = bool(rng.random() < geometry.grey_fraction)
  crop = sample_crop(image, geometry, rng)
  if labels is None:
    labels = sample_labels(len(rows), rng, puzzles=puzzles, allowed=allowed)
  if greyed:
    crop = colours.make_grey(crop)
  elif geometry.project_fraction and rng.random() < geometry.project_fraction:
    crop = colours.project_colour(crop)
  shift = 0 if greyed or colours.is_grey(crop) else geometry.channel_shift_px
  row = rows[labels[0]] if len(labels) == 1 else None
  tiles = sample_tiles(crop, geometry, rng, channel_shift_px=shift, row=row)
  return Puzzle(tiles, labels, crop)


def sample_crop(image: np.ndarray, geometry: Geometry, rng: np.random.Generator) -> np.ndarray:
  """Cuts the crop from the resized image; only the crop is resampled.

  Smaller images are enlarged. Resampling is antialiased; an image with a short side of `resize_px`
  is not resampled. Returns uint8 `[crop_px, crop_px, 3]`.
  """
  height, width = image.shape[:2]
  crop = geometry.crop_px
  if geometry.crop_mode == 'whole':
    return resampling.resample(image, (0, 0, width, height), crop)
  spare = geometry.resize_px - crop
  top, left = spare // 2, spare // 2
  if geometry.crop_mode == 'random':
    top, left = (int(offset) for offset in rng.integers(0, spare + 1, size=2))
  scale = min(height, width) / geometry.resize_px  # source pixels per resized pixel
  if scale == 1:
    top, left = top + (height - geometry.resize_px) // 2, left + (width - geometry.resize_px) // 2
    return image[top : top + crop, left : left + crop]
  y = (height - min(height, width)) / 2 + top * scale
  x = (width - min(height, width)) / 2 + left * scale
  right, bottom = min(x + crop * scale, width), min(y + crop * scale, height)
  return resampling.resample(image, (x, y, right, bottom), crop)


def sample_labels(
  count: int, rng: np.random.Generator, *, puzzles: int = 1, allowed: np.ndarray | None = None
) -> np.ndarray:
  """Draws `puzzles` different rows of a set of `count` (or of those allowed), int32 `[puzzles]`."""
  if puzzles == 1:
    index = np.array([rng.integers(count if allowed is None else len(allowed))])
    return (index if allowed is None else allowed[index]).astype(np.int32)
  return rng.choice(count if allowed is None else allowed, puzzles, replace=False).astype(np.int32)


def sample_tiles(
  crop: np.ndarray,
  geometry: Geometry,
  rng: np.random.Generator,
  *,
  channel_shift_px: int,
  row: np.ndarray | None = None,
) -> np.ndarray:
  """Cuts one tile from each cell of a row, by default from all: uint8 `[S, h, w, 3]`.

  A tile's offset is uniform on 0 .. cell - tile. Each channel's shift is uniform on those of -shift
  .. shift that keep its window inside the cell, so every channel shows real pixels of its own cell
  and all shifts occur. Without gaps (`cell_px = tile_px`) the window stays inside the crop instead.
  Tile i is that of cell `row[i]`, by default in reading order.
  """
  grid, cell, tile = geometry.grid, geometry.cell_px, geometry.tile_px
  spare = cell - tile
  sides = np.array(crop.shape[:2])
  places = np.stack(np.divmod(np.arange(grid**2), grid), axis=-1)  # [cells, (row, column)]
  corner = (sides - geometry.extent_px) // 2
  cells = corner + places[:, None] * geometry.pitch_px  # [cells, 1, (y, x)]: their corners
  corners = cells + rng.integers(0, spare + 1, size=cells.shape)
  if channel_shift_px:
    # Deviation: channel shifts at a cell's edge: only those that stay inside the cell are drawn,
    # so that gaps hold in every channel and no channel shows another cell or an invented border.
    first, last = (cells, cells + spare) if spare else (0, sides - tile)
    low = -np.minimum(corners - first, channel_shift_px)
    choices = np.minimum(last - corners, channel_shift_px) - low + 1
    corners = corners + low + (rng.random((grid**2, 3, 2)) * choices).astype(np.int64)
  if row is not None and not geometry.turned:
    corners = corners[row]
  tiles = np.empty((len(corners), tile, tile, 3), np.uint8)
  for cut, channels in zip(tiles, corners.tolist()):
    if len(channels) == 1:
      y, x = channels[0]
      cut[...] = crop[y : y + tile, x : x + tile]
    else:
      for c, (y, x) in enumerate(channels):
        cut[:, :, c] = crop[y : y + tile, x : x + tile, c]
  if geometry.drop_channels:
    colours.drop_channels(tiles, rng)
  if geometry.turned:
    tiles = np.stack([np.rot90(tiles[0], turns) for turns in range(ROTATIONS)])
    return tiles if row is None else tiles[row]
  return tiles


def assemble(tiles: np.ndarray, *, columns: int, gap_px: int = 0, fill: int = 255) -> np.ndarray:
  """Lays out tiles `[T, h, w, C]` in reading order, `gap_px` apart: `[H, W, C]`."""
  count, height, width, channels = tiles.shape
  rows = -(-count // columns)
  sides = (rows * (height + gap_px) - gap_px, columns * (width + gap_px) - gap_px, channels)
  canvas = np.full(sides, fill, tiles.dtype)
  for t, tile in enumerate(tiles):
    y, x = t // columns * (height + gap_px), t % columns * (width + gap_px)
    canvas[y : y + height, x : x + width] = tile
  return canvas


def unshuffle(puzzle: np.ndarray, permutation: np.ndarray) -> np.ndarray:
  """Puts the tiles `[T, ...]` back: the inverse of `puzzle[i] = tiles[permutation[i]]`.

  >>> tiles = np.array([10, 11, 12, 13])
  >>> permutation = np.array([2, 0, 3, 1])
  >>> unshuffle(tiles[permutation], permutation).tolist()
  [10, 11, 12, 13]
  """
  tiles = np.empty_like(puzzle)
  tiles[permutation] = puzzle
  return tiles
