"""Charts of figures over the course of runs, for reports, and their still pictures."""

import dataclasses
from collections.abc import Mapping, Sequence

from cfn_jax import names
from cfn_jax.pictures import figures

AXES = {'step': 'step', 'visits': 'images visited', 'hours': 'hours of training'}
# Most colour-blind readers can distinguish them, on white and on black.
COLOURS = (
  *('#3b82c4', '#e07b39', '#2f9e78', '#c25b9a', '#8a7ad6', '#b8a13a'),
  *('#56a8c9', '#d0605e', '#7f9a45', '#a9735a', '#5f6fb0', '#d48fb0'),
)
GREY = '#7f8794'  # text and rules: legible on white and on black


@dataclasses.dataclass(frozen=True)
class Line:
  """A figure over a run.

  Attributes:
    label: its name in the legend.
    colour: the number of its colour in the chart, 0 or more.
    dashed: a figure of training, if one of validation has the same colour.
    x: places by each known one of `AXES`.
    y: the figure; nan is a gap.
    band: its interval, lower and upper ends; empty: none.
  """

  label: str
  colour: int
  dashed: bool
  x: Mapping[str, Sequence[float]]
  y: Sequence[float]
  band: tuple[Sequence[float], Sequence[float]] | tuple[()] = ()


@dataclasses.dataclass(frozen=True)
class Chart:
  """Figures of one kind, of one task."""

  title: str
  lines: Sequence[Line]

  def axes(self) -> list[str]:
    """Returns those of `AXES` that every line has."""
    return [axis for axis in AXES if all(axis in line.x for line in self.lines)]


def pick_colour(number: int) -> str:
  """Returns the colour of a number; colours repeat."""
  return COLOURS[number % len(COLOURS)]


def encode_chart(chart: Chart, axis: str) -> bytes:
  """Returns a chart over one of its axes as SVG, for a light and a dark page, without legend."""
  figure = figures.make(6.4, 3.1)
  figure.patch.set_alpha(0)
  plot = figure.subplots()
  plot.patch.set_alpha(0)
  for line in chart.lines:
    colour = pick_colour(line.colour)
    marker = 'o' if len(line.y) < 30 else ''
    plot.plot(
      line.x[axis],
      line.y,
      linewidth=1.4,
      marker=marker,
      markersize=3,
      color=colour,
      linestyle='--' if line.dashed else '-',
    )
    if line.band:
      plot.fill_between(line.x[axis], *line.band, color=colour, alpha=0.18, linewidth=0)
  plot.set_xlabel(names.drawable(AXES[axis]), color=GREY)
  plot.tick_params(colors=GREY, labelsize=8)
  plot.grid(alpha=0.25, color=GREY)
  for name, spine in plot.spines.items():
    spine.set_visible(name in ('left', 'bottom'))
    spine.set_color(GREY)
  return figures.encode(figure, '.svg')
