"""Draws conv1's filters as images, of one network or several.

Paper, figure of conv1: chromatic aberration teaches filters for colour edges.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cfn_jax import names
from cfn_jax.jigsaw import puzzle
from cfn_jax.models import inputs
from cfn_jax.models import trunk as trunks
from cfn_jax.pictures import figures

_COLUMNS = 8  # filters beside each other, in each group
_SIDE, _GAP, _LINE = 0.42, 0.3, 0.2  # of a filter, between groups, of a line of text; in inches
_HEAD = 2.4 * _LINE


class Filters(NamedTuple):
  """The filters of one network.

  Attributes:
    rgb: float32 `[h, w, 3, F]`: the contribution of a pixel's R, G and B to each output, per level
      of 0..255.
    groups: number of equal parts; a filter of the next layer sees one of them.
  """

  name: str
  rgb: np.ndarray
  groups: int

  def colour_shares(self) -> np.ndarray:
    """Returns the share of each filter's squared weights off the grey axis: `[F]`.

    0 is a filter of brightness alone, 1 a filter of colour alone.
    """
    total = np.square(self.rgb).sum((0, 1, 2))
    colour = np.square(self.rgb - self.rgb.mean(2, keepdims=True)).sum((0, 1, 2))
    return colour / np.where(total > 0, total, 1)

  def describe(self) -> str:
    """Returns a line with the number of filters and of colour filters."""
    shares = self.colour_shares()
    return (
      f'{len(shares)} filters, {np.count_nonzero(shares > 0.5)} of them mostly of colour; '
      f'colour has {shares.mean():.0%} of the squared weights'
    )


def draw_run(
  path: pathlib.Path,
  params: Mapping[str, Any],
  record: inputs.InputRecord,
  trunk: trunks.Trunk,
  step: int,
) -> None:
  """Draws those of a run at a step; of a network of stacked tiles, those of the first tile."""
  kernel = np.asarray(params['conv1']['kernel'])
  name = f'step {step}' + (', the first tile' if kernel.shape[2] > 3 else '')
  draw_filters(path, [Filters(name, record.see(kernel[:, :, :3]), trunk.groups[1])])


def draw_filters(path: pathlib.Path, shown: Sequence[Filters]) -> None:
  """Draws the filters of each network: a row of its groups, on one scale with grey at 0.

  Raises:
    OSError: the picture cannot be written.
  """
  sheets = [
    [puzzle.assemble(each, columns=_COLUMNS, gap_px=1, fill=1) for each in split(one)]
    for one in shown
  ]
  wide = max(sum(_inches(sheet)[0] + _GAP for sheet in row) for row in sheets) + _GAP
  high = sum(max(_inches(sheet)[1] for sheet in row) + _HEAD + _GAP for row in sheets)
  figure = figures.make(wide, high)
  figure.set_layout_engine('none')
  top = high
  for one, row in zip(shown, sheets):
    for line, text in enumerate((one.name, one.describe())):
      place = (top - (0.7 + line) * _LINE) / high
      figure.text(0.5, place, names.drawable(text), fontsize=9 - line, ha='center', va='center')
    top -= _HEAD
    left = (wide - sum(_inches(sheet)[0] + _GAP for sheet in row) + _GAP) / 2
    for sheet in row:
      across, tall = _inches(sheet)
      axes = figure.add_axes((left / wide, (top - tall) / high, across / wide, tall / high))
      axes.imshow(sheet, interpolation='nearest', aspect='auto')
      axes.axis('off')
      left += across + _GAP
    top -= max(_inches(sheet)[1] for sheet in row) + _GAP
  figures.save(figure, path)


def split(one: Filters) -> list[np.ndarray]:
  """Returns the filters of each group as images of one scale, float32 `[n, h, w, 3]` in 0..1.

  0.5 is a weight of 0; the largest weight of the whole network is 0 or 1.
  """
  largest = np.abs(one.rgb).max()
  images = 0.5 + one.rgb.transpose(3, 0, 1, 2) / (2 * largest if largest else 1)
  return np.split(images, one.groups)


def _inches(sheet: np.ndarray) -> tuple[float, float]:
  """Returns the width and height of a sheet in the picture."""
  width = _COLUMNS * _SIDE
  return width, width * sheet.shape[0] / sheet.shape[1]
