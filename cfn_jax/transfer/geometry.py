"""The images and tiles that a network was made for, from its weights and their origin."""

import math
from typing import Any

from cfn_jax.models import figures
from cfn_jax.transfer import weights as weights_lib


def choose_input_px(weights: weights_lib.Weights) -> int:
  """Returns the side of the image for which a network was made.

  It is the side in the record of training if it fits fc6, else 227, else the smallest that fits.
  Without fc6 any size from about 30 px works; 227 is AlexNet's.
  """
  wanted = weights.pool5_side()
  tile_px = _read_puzzle(weights, 'tile_px')
  asked = [tile_px] if tile_px and wanted else []
  for size_px in (*asked, 227, *range(figures.KERNELS_PX[0], 2000)):
    side = figures.map_sides(size_px, weights.stride, padding=weights.padding)['pool5']
    if side and side == (wanted or side):
      return int(size_px)
  raise weights_lib.WeightsError(f'no image gives a pool5 of {wanted} x {wanted} for fc6')


def choose_tile(weights: weights_lib.Weights) -> tuple[int, int]:
  """Returns the side of the tiles of training, and the short side of their images, px.

  Without a record of training it is the side that fc6 of a CFN was made for, else the paper's 64
  px, in images of four tiles.
  """
  made_for = choose_input_px(weights) if weights.kind == 'cfn' else 64
  tile_px = _read_puzzle(weights, 'tile_px') or made_for
  return tile_px, _read_puzzle(weights, 'resize_px') or 4 * tile_px


def choose_grid(weights: weights_lib.Weights) -> int:
  """Returns the number of tiles per side of an image for fc6 of a CFN.

  They are those that fc7 sees, if they form a square, else those in the record of training, else 3.
  """
  grid = math.isqrt(weights.tiles())
  if grid > 1 and grid**2 == weights.tiles():
    return grid
  return _read_puzzle(weights, 'grid') or 3


def _read_puzzle(weights: weights_lib.Weights, name: str) -> int:
  """Returns a number of the section `puzzle` of training's config; 0 without one."""
  found: Any = weights.origin
  for key in ('config', 'puzzle', name):  # from a file: anything may be there
    found = found.get(key) if isinstance(found, dict) else 0
  return found if isinstance(found, int) and 0 < found < 5000 else 0
