"""The size of the images that a network was made for, from its weights and where they are from."""

from typing import Any

from cfn_jax.models import figures
from cfn_jax.transfer import weights as weights_lib


def choose_input_px(weights: weights_lib.Weights) -> int:
  """Returns the side of the image for which a network was made.

  That is what the record of training says if it fits fc6, else 227, else the smallest that fits.
  Without fc6 any size from about 30 px on works; 227 is AlexNet's.
  """
  wanted = weights.pool5_side()
  tile_px: Any = weights.origin
  for name in ('config', 'puzzle', 'tile_px'):  # a file's own words: anything may be there
    tile_px = tile_px.get(name) if isinstance(tile_px, dict) else 0
  asked = [tile_px] if isinstance(tile_px, int) and weights.kind == 'cfn' else []
  for size_px in (*asked, 227, *range(figures.KERNELS_PX[0], 2000)):
    side = figures.map_sides(size_px, weights.stride, padding=weights.padding)['pool5']
    if side and side == (wanted or side):
      return int(size_px)
  raise weights_lib.WeightsError(f'no image gives a pool5 of {wanted} x {wanted} for fc6')
