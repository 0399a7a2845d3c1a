"""Pictures of a retrieval: precision over recall, and a sheet of queries with what is nearest.

What is right and what is wrong differ in the colour of the frame (blue and orange, which
colour-blind people tell apart), in its line, and in the sign before the name of the class.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cfn_jax import names
from cfn_jax.pictures import class_scores, figures

if TYPE_CHECKING:
  from matplotlib.axes import Axes

_SIDE = 0.95  # of a picture on a sheet, in inches
_ROWS = 12  # of a column of a sheet, at most as many as there are columns
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
  """A query and what is nearest to it, the nearest first."""

  query: Shown
  nearest: Sequence[Shown]


def draw_curves(
  path: pathlib.Path, curves: Mapping[str, Sequence[float]], chance: float, *, title: str
) -> None:
  """Draws a precision at recalls from 0 to 1 for each label, and the chance.

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
  """Draws queries, each with what is nearest to it on its right.

  Args:
    path: .png, .svg or .pdf.
    rows: at least one; all have equally many nearest.
  """
  columns = 1 if len(rows) <= _ROWS // 2 else 2
  high = -(-len(rows) // columns)
  wide = 1 + len(rows[0].nearest)
  gap = 0.1  # between a query and its nearest, in pictures; five times that between columns
  widths = [*([1.0, gap] + [1.0] * (wide - 1) + [5 * gap]) * columns][:-1]
  figure = figures.make(_SIDE * sum(widths) * 1.08, (_SIDE + 0.22) * high + 0.75)
  grid: Any = figure.subplots(high, len(widths), squeeze=False, width_ratios=widths)
  for axes in grid.ravel():
    axes.axis('off')
  for number, row in enumerate(rows):
    column, line = divmod(number, high)
    cells = grid[line, column * (wide + 2) : column * (wide + 2) + wide + 1]
    _draw_picture(cells[0], row.query.image, row.query.name, {}, bold=True)
    for axes, each in zip(cells[2:], row.nearest):
      right = each.name == row.query.name
      sign = '\N{CHECK MARK}' if right else '\N{MULTIPLICATION X}'
      _draw_picture(axes, each.image, f'{sign} {each.name}', RIGHT if right else WRONG)
  from matplotlib.patches import Patch

  figure.legend(
    [Patch(facecolor='white', **RIGHT), Patch(facecolor='white', **WRONG)],
    ['\N{CHECK MARK} of the class of the query', '\N{MULTIPLICATION X} of another class'],
    loc='outside lower center',
    ncols=2,
    fontsize=8,
    frameon=False,
    handlelength=2.5,
    handleheight=1.4,
  )
  figure.suptitle(names.drawable(title), fontsize=10)
  figures.save(figure, path)


def _draw_picture(
  axes: 'Axes', image: np.ndarray, text: str, frame: Mapping[str, Any], *, bold: bool = False
) -> None:
  """Draws a picture in the middle of a square, framed, with a text below."""
  from matplotlib.patches import Rectangle

  height, width = image.shape[:2]
  side = max(height, width)
  axes.imshow(image)
  axes.set_xlim((width - side) / 2 - 0.5, (width + side) / 2 - 0.5)
  axes.set_ylim((height + side) / 2 - 0.5, (height - side) / 2 - 0.5)
  if frame:
    axes.add_patch(Rectangle((-0.5, -0.5), width, height, fill=False, clip_on=False, **frame))
  shown = text if len(text) <= _LONGEST else f'{text[: _LONGEST - 1]}…'
  axes.text(
    0.5,
    -0.04,
    names.drawable(shown),
    transform=axes.transAxes,
    ha='center',
    va='top',
    fontsize=7,
    fontweight='bold' if bold else 'normal',
  )
