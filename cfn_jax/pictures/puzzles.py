"""Sheets of puzzles: as the network sees them, and as it puts them back together."""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cfn_jax import names
from cfn_jax.jigsaw import puzzle
from cfn_jax.pictures import figures


class Shown(NamedTuple):
  """One puzzle for a sheet."""

  tiles: np.ndarray  # uint8 [T, h, w, 3], shuffled
  label: int  # the row of the set that shuffled it
  crop: np.ndarray  # uint8 [crop, crop, 3]
  name: str  # of the record


def draw_puzzles(path: pathlib.Path, shown: Sequence[Shown], permutations: np.ndarray) -> None:
  """Draws each image's crop, grid over it, beside the shuffled tiles; the label is printed."""
  rows, per_row = -(-len(shown) // 2), 2
  figure = figures.make(4.6 * per_row, 2.45 * rows)
  axes = figure.subplots(rows, 2 * per_row, squeeze=False).ravel()
  for axis in axes:
    axis.axis('off')
  for i, one in enumerate(shown):
    left, right = axes[2 * i], axes[2 * i + 1]
    left.imshow(one.crop)
    left.set_title(names.drawable(_shorten(one.name)), fontsize=7)
    right.imshow(lay_out(one.tiles))
    permutation = ' '.join(str(int(tile)) for tile in permutations[one.label])
    right.set_title(names.drawable(f'label {one.label}:  {permutation}'), fontsize=7)
  figures.save(figure, path)


def draw_answers(
  path: pathlib.Path,
  shown: Sequence[Shown],
  permutations: np.ndarray,
  probabilities: np.ndarray,
  *,
  title: str,
) -> None:
  """Draws validation puzzles, and each put back together by the network's most likely answer.

  Args:
    probabilities: `[len(shown), N]`.
  """
  per_row = 4
  rows = -(-len(shown) // per_row)
  figure = figures.make(3.3 * per_row, 1.95 * rows)
  axes = figure.subplots(rows, 2 * per_row, squeeze=False).ravel()
  for axis in axes:
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_visible(False)
  right_answers = 0
  for i, one in enumerate(shown):
    answer = int(np.argmax(probabilities[i]))
    right = answer == one.label
    right_answers += right
    puzzled, solved = axes[2 * i], axes[2 * i + 1]
    puzzled.imshow(lay_out(one.tiles))
    puzzled.set_title(names.drawable(f'label {one.label}'), fontsize=7)
    solved.imshow(lay_out(puzzle.unshuffle(one.tiles, permutations[answer])))
    placed = int((permutations[answer] == permutations[one.label]).sum())
    verdict = 'right' if right else f'{placed} of {len(permutations[0])} tiles'
    colour = '#1a7f37' if right else '#b42318'
    said = f'answer {answer} ({probabilities[i, answer]:.0%}): {verdict}'
    solved.set_title(names.drawable(said), fontsize=7, color=colour)
    for axis in (puzzled, solved):
      axis.set_visible(True)
      for spine in axis.spines.values():
        spine.set(color=colour, linewidth=1.5)
  right_of_all = f'{title}: {right_answers} of {len(shown)} right'
  figure.suptitle(names.drawable(right_of_all), fontsize=9)
  figures.save(figure, path)


def draw_curves(path: pathlib.Path, rows: Sequence[dict[str, Any]], *, chance_loss: float) -> None:
  """Draws loss and accuracy over the steps, training and validation, with chance."""
  figure = figures.make(9, 3.4)
  for axis, what, chance in zip(
    figure.subplots(1, 2), ('loss', 'accuracy'), (chance_loss, float(np.exp(-chance_loss)))
  ):
    for split, style in (('train', '-'), ('val', 'o-')):
      points = [(row['step'], row[f'{split}_{what}']) for row in rows if f'{split}_{what}' in row]
      if points:
        axis.plot(*zip(*points), style, label=names.drawable(split), linewidth=1.2, markersize=3)
    axis.axhline(chance, color='grey', linestyle='--', linewidth=1, label='chance')
    axis.set_xlabel('step')
    axis.set_ylabel(names.drawable(what))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
  figures.save(figure, path)


def lay_out(tiles: np.ndarray) -> np.ndarray:
  """Lays tiles `[T, h, w, 3]` out with small gaps, in the order they come in."""
  grid = round(len(tiles) ** 0.5)
  return puzzle.assemble(tiles, grid=grid, gap_px=max(2, tiles.shape[1] // 16))


def _shorten(name: str, longest: int = 34) -> str:
  return name if len(name) <= longest else '...' + name[3 - longest :]
