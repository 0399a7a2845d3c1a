"""The picture of a study: a panel per figure, a point per row, the paper's point beside it."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from cfn_jax import names
from cfn_jax.pictures import charts, figures


@dataclasses.dataclass(frozen=True)
class Point:
  """A figure of a row: its mean, None for a hole, and its text.

  Attributes:
    beyond: the mean is a lower bound.
  """

  mean: float | None
  spread: float
  paper: float | None
  beyond: bool = False


@dataclasses.dataclass(frozen=True)
class Panel:
  """A figure of all rows, by their names."""

  title: str
  points: Mapping[str, Point]


def draw_study(path: pathlib.Path, title: str, panels: Sequence[Panel]) -> None:
  """Draws the rows of a study down, its figures across; a hole has no point."""
  rows = [*panels[0].points]
  figure = figures.make(2.0 + 2.6 * len(panels), 1.4 + 0.3 * len(rows))
  plots = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
  for plot, panel in zip(plots, panels):
    for at, point in enumerate(panel.points.values()):
      if point.mean is not None:
        marker = '>' if point.beyond else 'o'
        plot.errorbar(
          point.mean, at, xerr=point.spread, fmt=marker, color=charts.COLOURS[0], capsize=3
        )
      if point.paper is not None:
        plot.plot(point.paper, at, 'D', markerfacecolor='none', color=charts.COLOURS[1])
    plot.set_title(names.drawable(panel.title), fontsize=9)
    plot.grid(alpha=0.25, color=charts.GREY)
    plot.tick_params(labelsize=8)
    plot.spines[['top', 'right']].set_visible(False)
  plots[0].set(yticks=range(len(rows)))
  plots[0].set_yticklabels([names.drawable(name) for name in rows])
  plots[0].invert_yaxis()
  figure.suptitle(names.drawable(title), fontsize=10)
  figure.supxlabel('dots: here, with the spread over seeds; hollow: the paper', fontsize=8)
  figures.save(figure, path)
