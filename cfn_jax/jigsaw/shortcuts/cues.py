"""Five cues that could solve a puzzle without its objects, and how each solves it.

Paper, section 4.2: edges that continue from tile to tile, tiles with the statistics of their
neighbours, chromatic aberration. Two more: typical positions in photographs, and the blocks of
JPEG. A cue makes a table of each puzzle: for two places, how badly they fit as neighbours; or for a
place and a cell, how well the tile fits. The score of a row of the permutation set is the sum of
its entries. Pure functions of prepared tiles, float `[T, 3, h, w]`, T in the order of the puzzle.
NumPy only.
"""

from collections.abc import Callable, Mapping

import numpy as np

BLOCK_PX = 8  # of JPEG
TIE = 1e-9  # scores that differ by less are equal up to rounding
MOST_SCORES = 2**24  # held at once


def arrange(tiles: np.ndarray) -> np.ndarray:
  """Returns prepared tiles `[T, h, w, 3]` as float64 `[T, 3, h, w]`, whose sums are faster."""
  return np.ascontiguousarray(tiles.transpose(0, 3, 1, 2), np.float64)


def compare_edges(tiles: np.ndarray) -> np.ndarray:
  """Returns the mean absolute difference of the borders that would touch, float `[2, T, T]`.

  At `[0, i, j]` i lies left of j, at `[1, i, j]` above it.
  """
  right, left, bottom, top = tiles[..., -1], tiles[..., 0], tiles[..., -1, :], tiles[..., 0, :]
  pairs = ((right, left), (bottom, top))  # [T, 3, h] each, or [T, 3, w]
  return np.stack([np.abs(a[:, None] - b[None]).mean((2, 3)) for a, b in pairs])


def compare_statistics(tiles: np.ndarray) -> np.ndarray:
  """Returns |difference of means| + |of standard deviations|, a mean over channels: `[2, T, T]`.

  Both directions are alike.
  """
  figures = np.concatenate([tiles.mean((2, 3)), tiles.std((2, 3))], axis=1)  # [T, 6]
  apart = np.abs(figures[:, None] - figures[None]).sum(-1) / 3
  return np.stack([apart, apart])


def describe_position(tiles: np.ndarray) -> np.ndarray:
  """Returns figures that may reveal the place of a tile in a photograph, float `[T, 10]`.

  They are means and standard deviations of the channels, energies of the gradient across and down,
  and slopes of the brightness across and down.
  """
  light = tiles.mean(1)  # [T, h, w]
  found = [tiles.mean((2, 3)), tiles.std((2, 3))]
  for axis in (2, 1):
    found.append(np.square(np.diff(light, axis=axis)).mean((1, 2))[:, None])
    line = light.mean(3 - axis)  # [T, w], [T, h]
    x = np.linspace(-0.5, 0.5, line.shape[1])
    found.append((line @ x / (x @ x))[:, None])
  return np.concatenate(found, axis=1)


def describe_lag(tiles: np.ndarray) -> np.ndarray:
  """Returns the least-squares shifts of red and blue to green: px `[T, 4]`, across and down.

  The slopes of green are fitted to the difference to green in the fine detail of standardised
  channels, which is right for small shifts. Coarse structure is left out: its hue would distinguish
  sky from ground. 0 if green has no detail.
  """
  std = tiles.std((2, 3), keepdims=True)
  x = tiles / np.where(std > 0, std, 1)
  inner, around = x[..., 1:-1, 1:-1], (x[..., 2:, 1:-1], x[..., :-2, 1:-1])
  detail = inner - (sum(around) + x[..., 1:-1, 2:] + x[..., 1:-1, :-2]) / 4  # [T, 3, h - 2, w - 2]
  green = detail[:, 1]
  across = (green[:, 1:-1, 2:] - green[:, 1:-1, :-2]) / 2
  down = (green[:, 2:, 1:-1] - green[:, :-2, 1:-1]) / 2
  slopes = np.stack([across, down], axis=1).reshape(len(tiles), 2, -1)  # [T, 2, pixels]
  apart = (detail[:, (0, 2), 1:-1, 1:-1] - detail[:, 1:2, 1:-1, 1:-1]).reshape(len(tiles), 2, -1)
  ridge = 1e-9 * slopes.shape[-1] * np.eye(2)
  products = slopes @ apart.transpose(0, 2, 1)  # [T, 2, (R, B)]
  shifts = np.linalg.solve(slopes @ slopes.transpose(0, 2, 1) + ridge, products)
  return shifts.transpose(0, 2, 1).reshape(len(tiles), 4)


def describe_blocks(tiles: np.ndarray) -> np.ndarray:
  """Returns the steps between pixels at the phases of JPEG's blocks, float `[T, 16]`.

  They are mean absolute differences of neighbouring pixels at each of the eight phases of a tile's
  columns, then of its rows: their excess over one pixel before and after, as a multiple of the
  tile's mean, so that texture and its slope do not count.
  """
  light = tiles.mean(1)
  found = []
  for axis in (2, 1):
    steps = np.abs(np.diff(light, axis=axis)).mean(3 - axis)  # [T, w - 1], [T, h - 1]
    more = steps[:, 1:-1] - (steps[:, :-2] + steps[:, 2:]) / 2
    phase = np.arange(1, more.shape[1] + 1) % BLOCK_PX
    counts = np.maximum(np.bincount(phase, minlength=BLOCK_PX), 1)
    whole = steps.mean(1, keepdims=True)
    found.append(more @ np.eye(BLOCK_PX)[phase] / counts / np.where(whole > 0, whole, 1))
  return np.concatenate(found, axis=1)


# Tables of neighbours; features of a tile, from which a classifier makes a table of cells.
COMPARED: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
  'edges': compare_edges,
  'neighbour statistics': compare_statistics,
}
DESCRIBED: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
  'position': describe_position,
  'lag of colours': describe_lag,
  'JPEG blocks': describe_blocks,
}
CUES = (*COMPARED, *DESCRIBED)


def ask_neighbours(rows: np.ndarray, grid: int) -> np.ndarray:
  """Returns the entries of a table of neighbours that rows `[N, T]` sum: `[N, 2 * T * T]`.

  `rows[n][i]` is the cell of place i; a grid of 3 x 3 has twelve pairs of neighbours.
  """
  count, tiles = rows.shape
  places = np.argsort(rows, axis=1)  # [N, T]: where the tile of each cell stands
  cells = np.arange(tiles).reshape(grid, grid)
  asked = np.zeros((count, 2, tiles, tiles), np.float32)
  each = np.arange(count)[:, None]
  for direction, (first, second) in enumerate(
    ((cells[:, :-1], cells[:, 1:]), (cells[:-1], cells[1:]))
  ):
    asked[each, direction, places[:, first.ravel()], places[:, second.ravel()]] = 1
  return asked.reshape(count, -1)


def choose_rows(tables: np.ndarray, asked: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Returns the row that each puzzle's table `[P, F]` fits best, int `[P]`; ties are drawn.

  Args:
    asked: `[N, F]`: the entries that each row sums.
  """
  chosen = np.empty(len(tables), np.int64)
  step = max(1, MOST_SCORES // len(asked))
  for first in range(0, len(tables), step):
    scores = tables[first : first + step].astype(np.float64) @ asked.T  # [step, N]
    best = scores.max(axis=1, keepdims=True)
    tied = scores >= best - TIE * (1 + np.abs(best))
    chosen[first : first + step] = np.argmax(tied * (1 - rng.random(scores.shape)), axis=1)
  return chosen


def expect_tiles(rows: np.ndarray, mean_distance: float) -> float:
  """Returns the share of tiles that a row drawn from the set `[N, T]` gets right.

  It is (1 + (N - 1) (1 - d / T)) / N with the set's mean distance d.
  """
  count, tiles = rows.shape
  return (1 + (count - 1) * (1 - mean_distance / tiles)) / count


def judge(on: Mapping[str, float], off: Mapping[str, float], chance: float) -> str:
  """Returns the effect of measures on a cue: 'closed', 'narrowed' or 'open'.

  Args:
    on, off: the puzzle accuracy with and without measures, its interval from `low` to `high`.
  """
  if on['low'] <= chance:
    return 'closed'
  return 'narrowed' if on['high'] < off['low'] else 'open'
