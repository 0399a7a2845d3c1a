"""A bar chart of a figure of each class, such as average precision, with a bar per run."""

import math
import pathlib
from collections.abc import Mapping

from cfn_jax import names
from cfn_jax.pictures import figures

COLOURS = ('#3b6ea5', '#b0b7bf', '#c0392b', '#6b8e23')


Rows = Mapping[str, Mapping[str, float | None]]  # by label: each class's figure, 0 to 1


def draw_charts(folder: pathlib.Path, charts: Mapping[str, Rows]) -> None:
  """Draws a chart for each file name; a failed picture ends no run."""
  for name, rows in charts.items():
    with figures.spared(folder / name):
      draw_class_scores(folder / name, rows)


def draw_class_scores(path: pathlib.Path, rows: Rows) -> None:
  """Draws the classes in the order of the first row, the best on top; '-' without a figure.

  Args:
    path: .png, .svg or .pdf.
    rows: by label: each class's figure, 0 to 1. They have the same classes.
  """
  first = next(iter(rows.values()))
  classes = sorted(first, key=lambda name: _known(first[name]))
  figure = figures.make(8, 1.2 + 0.17 * len(classes) * (1 + len(rows)))
  axes = figure.subplots()
  height = 0.84 / len(rows)
  for number, (label, values) in enumerate(rows.items()):
    found = [_known(values[name]) for name in classes]
    places = [at + 0.42 - (number + 0.5) * height for at in range(len(classes))]
    mean = [value for value in found if value >= 0]
    text = f'{label}: mean {sum(mean) / max(1, len(mean)):.1%}'
    widths = [max(0.0, value) for value in found]
    bars = axes.barh(places, widths, height, color=COLOURS[number % len(COLOURS)])
    bars.set_label(names.drawable(text))
    shown = ['-' if value < 0 else f'{value:.1%}' for value in found]
    axes.bar_label(bars, [names.drawable(each) for each in shown], padding=2, fontsize=7)
  axes.set(yticks=range(len(classes)), xlim=(0, 1.08))
  axes.set_yticklabels([names.drawable(name) for name in classes])
  axes.margins(y=0.01)
  axes.spines[['top', 'right']].set_visible(False)
  axes.xaxis.set_major_formatter('{x:.0%}')
  figure.legend(loc='outside upper left', frameon=False, ncols=1, fontsize=9)
  figures.save(figure, path)


def _known(value: float | None) -> float:
  """Sorts a class without a figure below all others."""
  return -1.0 if value is None or math.isnan(value) else value
