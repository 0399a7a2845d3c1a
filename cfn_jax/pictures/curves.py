"""The course of a run: its figures over the steps."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from cfn_jax import names
from cfn_jax.pictures import figures


def draw_curves(
  path: pathlib.Path, rows: Sequence[dict[str, Any]], chances: Mapping[str, float]
) -> None:
  """Draws figures such as loss over the steps, training and validation, with the chance of each."""
  figure = figures.make(4.5 * len(chances), 3.4)
  axes = figure.subplots(1, len(chances), squeeze=False)[0]
  for axis, (what, chance) in zip(axes, chances.items()):
    for split, style in (('train', '-'), ('val', 'o-')):
      name = f'{split}_{what}'
      points = [(row['step'], float(row[name])) for row in rows if name in row]  # 'nan' is a text
      if points:
        axis.plot(*zip(*points), style, label=names.drawable(split), linewidth=1.2, markersize=3)
    axis.axhline(chance, color='grey', linestyle='--', linewidth=1, label='chance')
    axis.set_xlabel('step')
    axis.set_ylabel(names.drawable(what))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
  figures.save(figure, path)
