"""Sheets of puzzles and other questions: as the network sees them, and with its answers."""

import math
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cfn_jax import names
from cfn_jax.jigsaw import puzzle, questions
from cfn_jax.pictures import figures


class Shown(NamedTuple):
  """One puzzle for a sheet."""

  tiles: np.ndarray  # uint8 [S, h, w, 3], as the question shows them
  label: int  # the number of the question
  crop: np.ndarray  # uint8 [crop, crop, 3]
  name: str  # of the record


def draw_puzzles(
  path: pathlib.Path, shown: Sequence[Shown], asked: questions.Questions, *, note: str = ''
) -> None:
  """Draws each image's crop beside the tiles of its question, with the question above them."""
  rows, per_row = -(-len(shown) // 2), 2
  figure = figures.make(4.6 * per_row, 2.45 * rows)
  axes = figure.subplots(rows, 2 * per_row, squeeze=False).ravel()
  for axis in axes:
    axis.axis('off')
  for i, one in enumerate(shown):
    left, right = axes[2 * i], axes[2 * i + 1]
    left.imshow(one.crop)
    left.set_title(names.drawable(names.shorten(one.name, 34)), fontsize=7)
    right.imshow(lay_out(one.tiles))
    right.set_title(names.drawable(_describe(asked, one.label)), fontsize=7)
  if note:
    figure.suptitle(names.drawable(note), fontsize=8)
  figures.save(figure, path)


def draw_answers(
  path: pathlib.Path,
  shown: Sequence[Shown],
  asked: questions.Questions,
  probabilities: np.ndarray,
  *,
  title: str,
) -> None:
  """Draws questions, and each rearranged by the network's most likely answer.

  Args:
    probabilities: `[len(shown), K]`.
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
    right = answer == asked.answers[one.label]
    right_answers += right
    puzzled, solved = axes[2 * i], axes[2 * i + 1]
    puzzled.imshow(lay_out(one.tiles))
    truth = asked.name_answer(int(asked.answers[one.label])).replace('answer', 'label')
    puzzled.set_title(names.drawable(truth), fontsize=7)
    solved.imshow(put_right(one.tiles, answer, asked))
    verdict = 'right' if right else _say_wrong(answer, one.label, asked)
    colour = '#1a7f37' if right else '#b42318'
    said = f'{asked.name_answer(answer)} ({probabilities[i, answer]:.0%}): {verdict}'
    solved.set_title(names.drawable(said), fontsize=7, color=colour)
    for axis in (puzzled, solved):
      axis.set_visible(True)
      for spine in axis.spines.values():
        spine.set(color=colour, linewidth=1.5)
  right_of_all = f'{title}: {right_answers} of {len(shown)} right'
  figure.suptitle(names.drawable(right_of_all), fontsize=9)
  figures.save(figure, path)


def put_right(tiles: np.ndarray, answer: int, asked: questions.Questions) -> np.ndarray:
  """Arranges a question's tiles `[S, h, w, 3]` by an answer, right or wrong."""
  if asked.name == 'rotation':
    return np.rot90(tiles[0], -answer)
  if asked.name == 'jigsaw':
    return lay_out(puzzle.unshuffle(tiles, asked.rows[answer]))
  canvas = np.full((9, *tiles.shape[1:]), 225, np.uint8)
  down, right = questions.AROUND[answer]
  canvas[4], canvas[4 + 3 * down + right] = tiles
  return lay_out(canvas)


def _describe(asked: questions.Questions, label: int) -> str:
  if asked.name != 'jigsaw':
    return f'question {label}: {asked.name_answer(int(asked.answers[label]))}'
  return f'label {label}:  {" ".join(str(int(tile)) for tile in asked.rows[label])}'


def _say_wrong(answer: int, label: int, asked: questions.Questions) -> str:
  if asked.name != 'jigsaw':
    return 'wrong'
  return f'{int((asked.rows[answer] == asked.rows[label]).sum())} of {asked.shown} tiles'


def lay_out(tiles: np.ndarray) -> np.ndarray:
  """Lays out tiles `[S, h, w, 3]` with small gaps, in their order."""
  columns = math.ceil(len(tiles) ** 0.5)
  return puzzle.assemble(tiles, columns=columns, gap_px=max(2, tiles.shape[1] // 16))
