"""Draws the sixteen tiles that activate each unit most, layer by layer."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np

from cfn_jax import names
from cfn_jax.jigsaw import puzzle
from cfn_jax.pictures import figures

_COLUMNS, _UNITS = 4, 6  # tiles beside each other in a unit's square, units in a row
_SIDE, _GAP, _HEAD, _TITLE = 1.5, 0.12, 0.2, 0.4  # of a square, in inches
_TILE_PX = 64  # smaller tiles are enlarged by a whole factor
_FRAME = (255, 210, 0)


class Tile(NamedTuple):
  """One tile of a unit's square.

  Attributes:
    image: the name of its image.
    box: (left, top, right, bottom) in the image, px.
    response: the unit's response to it.
    tile: uint8 `[t, t, 3]`.
    field: (left, top, right, bottom) of the field of the strongest place, px of the tile; None:
      all.
  """

  image: str
  box: tuple[float, ...]
  response: float
  tile: np.ndarray
  field: tuple[int, ...] | None


class Unit(NamedTuple):
  """One unit: its score (None: it is dead), its responses, and its best tiles in order."""

  unit: int
  score: float | None
  mean: float
  std: float
  tiles: list[Tile]


def draw_units(path: pathlib.Path, layers: Mapping[str, Sequence[Unit]], *, title: str) -> None:
  """Draws the units of each layer in rows of six, with the name of each above it.

  Raises:
    OSError: the picture cannot be written.
  """
  rows = [
    (layer, units[first : first + _UNITS])
    for layer, units in layers.items()
    for first in range(0, len(units), _UNITS)
  ]
  wide = _UNITS * (_SIDE + _GAP) + _GAP
  high = _TITLE + len(rows) * (_SIDE + _HEAD + _GAP)
  figure = figures.make(wide, high)
  figure.set_layout_engine('none')
  centred: dict[str, Any] = {'ha': 'center', 'va': 'center'}
  figure.text(0.5, 1 - _TITLE / 2 / high, names.drawable(title), fontsize=9, **centred)
  for number, (layer, row) in enumerate(rows):
    top = high - _TITLE - number * (_SIDE + _HEAD + _GAP)
    for column, unit in enumerate(row):
      left = _GAP + column * (_SIDE + _GAP)
      middle = (left + _SIDE / 2) / wide, (top - _HEAD / 2) / high
      figure.text(*middle, f'{layer}: {unit.unit}', fontsize=7, **centred)
      bottom = top - _HEAD - _SIDE
      axes = figure.add_axes((left / wide, bottom / high, _SIDE / wide, _SIDE / high))
      axes.imshow(lay_out(unit), interpolation='antialiased')
      axes.axis('off')
  figures.save(figure, path)


def lay_out(unit: Unit) -> np.ndarray:
  """Returns a unit's tiles in rows of four, at least 64 px wide, framed: uint8 `[H, W, 3]`."""
  factor = math.ceil(_TILE_PX / len(unit.tiles[0].tile))
  drawn = []
  for tile in unit.tiles:
    large = tile.tile.repeat(factor, 0).repeat(factor, 1)
    if tile.field:
      left, top, right, bottom = (factor * edge for edge in tile.field)
      cv2.rectangle(large, (left, top), (right - 1, bottom - 1), _FRAME, max(1, factor // 2))
    drawn.append(large)
  return puzzle.assemble(np.stack(drawn), columns=_COLUMNS, gap_px=2)
