"""Pictures of a retrieval: precision over recall, and a sheet of queries with their nearest.

Right and wrong answers differ in the colour of the frame (blue and orange, which colour-blind
people can distinguish), in its line, and in the sign before the name of the class.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cfn_jax import names
from cfn_jax.pictures import class_scores, figures

if TYPE_CHECKING:
  from matplotlib.axes import Axes

# Of a sheet, in inches.
_SIDE = 1.0  # of the square of a picture
_LINE = 1.2  # a row, with its text
_GAP = 0.12  # between a query and its nearest
_BETWEEN = 0.4  # two columns of rows
_TITLE, _LEGEND = 0.4, 0.45
_ONE_COLUMN = 6  # rows below each other; more use two columns
_LONGEST = 14  # letters of the name of a class under a picture
RIGHT: dict[str, Any] = {'edgecolor': '#1f6fd6', 'linestyle': 'solid', 'linewidth': 2.4}
WRONG: dict[str, Any] = {'edgecolor': '#e8770c', 'linestyle': (0, (3, 1.5)), 'linewidth': 2.0}
_STYLES = ('-', '--', '-.', ':')
_MARKERS = 'osD^vPX'


class Shown(NamedTuple):
  """One picture of a sheet."""

  image: np.ndarray  # uint8 [h, w, 3]
  name: str  # of its class


class Row(NamedTuple):
  """A query and its answers, the nearest first."""

  query: Shown
  nearest: Sequence[Shown]


def draw_curves(
  path: pathlib.Path, curves: Mapping[str, Sequence[float]], chance: float, *, title: str
) -> None:
  """Draws precision at recalls from 0 to 1 for each label, and chance.

  Args:
    path: .png, .svg or .pdf.
  """
  figure = figures.make(6.5, 4.6)
  axes = figure.subplots()
  colours = (*class_scores.COLOURS[:1], *class_scores.COLOURS[2:], '#8e5ea2', '#c9811a')
  for number, (label, values) in enumerate(curves.items()):
    axes.plot(
      np.linspace(0, 1, len(values)),
      values,
      linestyle=_STYLES[number % len(_STYLES)],
      marker=_MARKERS[number % len(_MARKERS)],
      markersize=4,
      linewidth=1.5,
      color=colours[number % len(colours)],
      label=names.drawable(label),
    )
  text = f'chance, the share of the class: {chance:.1%}'
  axes.axhline(chance, color='grey', linewidth=1, linestyle=(0, (1, 1.5)))
  axes.lines[-1].set_label(names.drawable(text))
  axes.set_xlabel('recall of at least')
  axes.set_ylabel('precision at the first rank that has it')
  axes.set_title(names.drawable(title), fontsize=10)
  axes.set_xlim(-0.02, 1.02)
  axes.set_ylim(bottom=0)
  axes.xaxis.set_major_formatter('{x:.0%}')
  axes.yaxis.set_major_formatter('{x:.0%}')
  axes.grid(alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)
  axes.legend(fontsize=8, frameon=False)
  figures.save(figure, path)


def draw_sheet(path: pathlib.Path, rows: Sequence[Row], *, title: str) -> None:
  """Draws queries, each with its nearest answers on the right.

  Args:
    path: .png, .svg or .pdf.
    rows: at least one, with the same number of answers.
  """
  columns = 1 if len(rows) <= _ONE_COLUMN else 2
  high = -(-len(rows) // columns)
  wide = _SIDE * (1 + len(rows[0].nearest)) + _GAP + _BETWEEN  # of a column of rows
  width, height = columns * wide, _TITLE + high * _LINE + _LEGEND
  figure = figures.make(width, height)
  figure.set_layout_engine('none')
  axes = figure.add_axes((0, 0, 1, 1))  # all pictures in one, in inches
  axes.axis('off')
  for number, row in enumerate(rows):
    column, line = divmod(number, high)
    left, top = column * wide + _BETWEEN / 2, _TITLE + line * _LINE
    _draw_picture(axes, (left, top), row.query.image, row.query.name, {}, bold=True)
    for place, each in enumerate(row.nearest, start=1):
      right = each.name == row.query.name
      sign = '\N{CHECK MARK}' if right else '\N{MULTIPLICATION X}'
      corner = left + _GAP + place * _SIDE, top
      _draw_picture(axes, corner, each.image, f'{sign} {each.name}', RIGHT if right else WRONG)
  axes.set_aspect('auto')
  axes.set_xlim(0, width)
  axes.set_ylim(height, 0)
  axes.text(width / 2, _TITLE / 2, names.drawable(title), ha='center', va='center', fontsize=10)
  _add_legend(axes)
  figures.save(figure, path)


def _draw_picture(
  axes: 'Axes',
  corner: tuple[float, float],
  image: np.ndarray,
  text: str,
  frame: Mapping[str, Any],
  *,
  bold: bool = False,
) -> None:
  """Draws a picture in the middle of a square, framed, with a text below."""
  from matplotlib.patches import Rectangle

  inner = _SIDE * 0.88
  high, wide = (inner * side / max(image.shape[:2]) for side in image.shape[:2])
  left, top = corner[0] + (_SIDE - wide) / 2, corner[1] + (_SIDE - high) / 2
  axes.imshow(image, extent=(left, left + wide, top + high, top))
  if frame:
    axes.add_patch(Rectangle((left, top), wide, high, fill=False, **frame))
  shown = text if len(text) <= _LONGEST else f'{text[: _LONGEST - 1]}…'
  axes.text(
    corner[0] + _SIDE / 2,
    corner[1] + _SIDE,
    names.drawable(shown),
    ha='center',
    va='top',
    fontsize=7,
    fontweight='bold' if bold else 'normal',
  )


def _add_legend(axes: 'Axes') -> None:
  from matplotlib.patches import Patch

  axes.legend(
    [Patch(facecolor='white', **RIGHT), Patch(facecolor='white', **WRONG)],
    ['\N{CHECK MARK} of the class of the query', '\N{MULTIPLICATION X} of another class'],
    loc='lower center',
    ncols=2,
    fontsize=8,
    frameon=False,
    handlelength=2.5,
    handleheight=1.4,
  )
