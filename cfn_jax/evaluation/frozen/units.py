"""Finds the tiles of many images that activate each unit of conv1 .. conv5 most.

Paper, the figure of top activations. Images -> random tiles -> the trunk (here, on the device) ->
each unit's mean response, and the place of its strongest one -> pictures/units.py. Memory holds
only sums and the best so far, for any number of images.
"""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cfn_jax import names, terminal
from cfn_jax.data import feed, pipeline, resampling
from cfn_jax.errors import CfnError
from cfn_jax.evaluation.frozen import responses
from cfn_jax.models import figures
from cfn_jax.pictures import units as pictures
from cfn_jax.transfer import geometry, networks, surgery
from cfn_jax.transfer import weights as weights_lib


@dataclasses.dataclass(frozen=True)
class CutTiles:
  """Cuts random tiles from an image; a transform of the data pipeline.

  The image is as large as in pretraining, with a short side of `resize_px`, and a tile may lie
  anywhere in it. Draws come from (seed, record).
  """

  count: int
  tile_px: int
  resize_px: int

  def __call__(self, visit: pipeline.Visit) -> pipeline.Batch:
    """Returns `tiles` uint8 `[n, t, t, 3]`, and `box` float32 `[n, 4]`; `record` is the image.

    A box is (left, top, right, bottom) in px of the image.
    """
    height, width = visit.image.shape[:2]
    side = self.tile_px * min(height, width) / self.resize_px
    corners = visit.rng.random((self.count, 2)) * (width - side, height - side)
    boxes = np.concatenate([corners, corners + side], axis=1)
    tiles = [resampling.resample(visit.image, tuple(box), self.tile_px) for box in boxes.tolist()]
    record = np.array(visit.record, np.int32)
    return {'tiles': np.stack(tiles), 'box': boxes.astype(np.float32), 'record': record}


def make_cut(
  weights: weights_lib.Weights, count: int, *, tile_px: int = 0, resize_px: int = 0
) -> CutTiles:
  """Returns the transform that cuts tiles; 0: the sizes of pretraining.

  Raises:
    CfnError: the tiles are larger than the images, or too small for the trunk.
  """
  tile, resize = geometry.choose_tile(weights)
  tile, resize = tile_px or tile, resize_px or max(resize, tile_px)
  if tile > resize:
    raise CfnError(f'--tile-px={tile}: images have a short side of {resize} px; see --short-side')
  figures.check_input_size(tile, weights.stride, padding=weights.padding)
  return CutTiles(count, tile, resize)


def measure_responses(
  weights: weights_lib.Weights, fed: feed.Feed
) -> dict[str, responses.Responses]:
  """Returns the responses of conv1 .. conv5 to the tiles of all images, by layer.

  A unit's response to a tile is the mean of its map after the ReLU, the tile prepared as in
  pretraining.

  Args:
    fed: with `CutTiles`; replaced images do not count.

  Raises:
    WeightsError: the trunk is incomplete.
  """
  trunk = surgery.to_cfn_trunk(weights, stride=weights.stride)
  network = networks.make_network(trunk)

  @jax.jit
  def respond(params: Any, tiles: jax.Array) -> dict[str, tuple[jax.Array, jax.Array]]:
    flat = tiles.reshape(-1, *tiles.shape[2:])  # [B * n, t, t, 3]
    stages: Any = network.apply({'params': params}, trunk.input.prepare(flat), method='stages')
    found = {}
    for name in figures.CONVOLUTIONS:
      maps = stages[name].reshape(*tiles.shape[:2], -1, stages[name].shape[-1])  # [B, n, h * w, F]
      found[name] = maps.mean(2), jnp.argmax(maps, axis=2)
    return found

  measured = {
    name: responses.Responses(trunk.params[name]['kernel'].shape[-1])
    for name in figures.CONVOLUTIONS
  }
  params = jax.device_put(trunk.params)
  bar = terminal.make_bar(total=len(fed.reader.source), desc='images', unit='image')
  with contextlib.closing(fed.evaluate()) as batches, bar:
    for batch in batches:
      found = jax.device_get(respond(params, batch['tiles']))
      for row in np.flatnonzero(batch['mask']):
        for name, (means, places) in found.items():
          measured[name].add(int(batch['record'][row]), means[row], places[row])
        bar.update()
  return measured


@dataclasses.dataclass(frozen=True)
class Found:
  """The best tiles of a network's units, by layer."""

  layers: dict[str, list[pictures.Unit]]
  cut: CutTiles
  images: int
  seed: int
  picked: bool

  def describe(self) -> str:
    """Returns a line with the numbers of tiles and images."""
    cut, tiles = self.cut, self.images * self.cut.count
    return (
      f'the best {responses.TOP} of {tiles:,} tiles of {cut.tile_px} px, {cut.count} of each of '
      f'{self.images:,} images'
    )

  def to_json(self) -> dict[str, Any]:
    """Returns everything but the pixels, as plain values."""
    return {
      'response': 'mean of the map of a unit after the ReLU',
      'picked': responses.RULE if self.picked else 'by name',
      'images': self.images,
      'tiles_per_image': self.cut.count,
      'tile_px': self.cut.tile_px,
      'short_side_px': self.cut.resize_px,
      'seed': self.seed,
      'layers': {
        name: [
          one._asdict()
          | {
            'tiles': [
              {'image': names.printable(tile.image), 'box_px': tile.box}
              | {'response': tile.response, 'field_px': tile.field}
              for tile in one.tiles
            ]
          }
          for one in shown
        ]
        for name, shown in self.layers.items()
      },
    }


def find_units(
  weights: weights_lib.Weights, fed: feed.Feed, chosen: Mapping[str, Sequence[int]]
) -> Found:
  """Measures the responses to the tiles of all images, and finds the best tiles of units.

  Args:
    fed: see `measure_responses`.
    chosen: units of each layer; empty: six of each layer, picked by `RULE`.

  Raises:
    CfnError: too few images; see `measure_responses`.
  """
  reader, cut = fed.reader, fed.transform
  assert isinstance(cut, CutTiles)
  count = len(reader.source)
  _check_count(reader, count)
  measured = measure_responses(weights, fed)
  count -= len(fed.bad)
  _check_count(reader, count)
  picked = chosen or {name: found.pick(responses.PICKED) for name, found in measured.items()}
  shown = show_units(weights, reader, cut, measured, picked)
  return Found(shown, cut, count, reader.seed, not chosen)


def _check_count(reader: pipeline.Reader, count: int) -> None:
  if count < responses.TOP:
    raise CfnError(
      f'{reader.source.root}: {count} images; a unit is shown by its best tiles of '
      f'{responses.TOP} different ones'
    )


def show_units(
  weights: weights_lib.Weights,
  reader: pipeline.Reader,
  cut: CutTiles,
  measured: Mapping[str, responses.Responses],
  chosen: Mapping[str, Sequence[int]],
) -> dict[str, list[pictures.Unit]]:
  """Cuts the best tiles of the chosen units again, with the field of the strongest place."""
  fields = figures.receptive_fields(weights.stride, padding=weights.padding)
  sides = figures.map_sides(cut.tile_px, weights.stride, padding=weights.padding)
  wanted = {
    int(record)
    for name, units in chosen.items()
    for record in measured[name].best.record[list(units)].ravel()
  }
  made, called = {}, {}
  for record in sorted(wanted):
    visit = reader.evaluate(record)
    made[record], called[record] = cut(visit), visit.name
  shown: dict[str, list[pictures.Unit]] = {}
  for name, units in chosen.items():
    found, shown[name] = measured[name], []
    scores, means, stds = found.scores(), found.mean(), found.std()
    for unit in units:
      tiles = []
      for value, record, tile, place in zip(*(each[unit] for each in found.best)):
        one = made[int(record)]
        tiles.append(
          pictures.Tile(
            called[int(record)],
            tuple(one['box'][tile].tolist()),
            float(value),
            one['tiles'][tile],
            frame(fields[name], int(place), sides[name], cut.tile_px),
          )
        )
      score, mean, std = (float(each[unit]) for each in (scores, means, stds))
      shown[name].append(pictures.Unit(unit, score if std else None, mean, std, tiles))
  return shown


def frame(field: figures.Field, place: int, side: int, tile_px: int) -> tuple[int, ...] | None:
  """Returns the part of a tile that a place of a map sees, in px; None if it is the whole tile.

  >>> frame(figures.Field(-8, 31, 4), place=13, side=10, tile_px=48)
  (4, 0, 35, 27)
  """
  if field.size_px >= tile_px:
    return None
  row, column = divmod(place, side)
  left, top = (field.start_px + index * field.pitch_px for index in (column, row))
  return (
    max(left, 0),
    max(top, 0),
    min(left + field.size_px, tile_px),
    min(top + field.size_px, tile_px),
  )


def read_choice(texts: Sequence[str], weights: weights_lib.Weights) -> dict[str, list[int]]:
  """Reads units from a command line, such as 'conv5:3,17'.

  Raises:
    CfnError: a layer or unit does not exist, or is named twice.
  """
  chosen: dict[str, list[int]] = {}
  for text in texts:
    name, _, listed = text.partition(':')
    if name not in figures.CONVOLUTIONS:
      listed = ', '.join(figures.CONVOLUTIONS)
      raise CfnError(f'--units={text}: LAYER:NUMBER,NUMBER with one of {listed}')
    if name in chosen:
      raise CfnError(f'--units={text}: {name} is named twice; list its units together')
    parts = [part.strip() for part in listed.split(',')]
    count = weights.params[name]['kernel'].shape[-1]
    wrong = [
      part for part in parts if not (part.isascii() and part.isdigit() and int(part) < count)
    ]
    if wrong:
      raise CfnError(f"--units={text}: '{wrong[0]}': {name} has units 0 to {count - 1}")
    units = [int(part) for part in parts]
    if len(set(units)) < len(units):
      raise CfnError(f'--units={text}: a unit is named twice')
    chosen[name] = units
  return chosen
