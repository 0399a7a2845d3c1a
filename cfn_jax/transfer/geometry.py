"""Sizes of maps and images, from strides and paddings alone. No JAX.

Caffe's rules: convolutions round down, poolings up (`pooling_layer.cpp`).
"""

from typing import Any

from cfn_jax.transfer import weights as weights_lib


def pool5_side(size_px: int, *, stride: int, padding: int = 0) -> int:
  """Gives the side of pool5 for a square image; 0 where nothing is left.

  >>> pool5_side(227, stride=4), pool5_side(64, stride=2)
  (6, 3)
  """
  side = (size_px + 2 * padding - weights_lib.KERNELS_PX[0]) // stride + 1
  for _ in range(3):  # three poolings of 3 px, stride 2, sizes rounded up
    side = -(-(side - 3) // 2) + 1 if side > 0 else 0
  return max(0, side)


def choose_input_px(weights: weights_lib.Weights) -> int:
  """Gives the side of the image for which a network was made.

  That is what the record of training says if it fits fc6, else 227, else the smallest that fits.
  Without fc6 any size from about 30 px on works; 227 is AlexNet's.
  """
  wanted = weights.pool5_side()
  tile_px: Any = weights.origin
  for name in ('config', 'puzzle', 'tile_px'):  # a file's own words: anything may be there
    tile_px = tile_px.get(name) if isinstance(tile_px, dict) else 0
  asked = [tile_px] if isinstance(tile_px, int) and weights.kind == 'cfn' else []
  for size_px in (*asked, 227, *range(weights_lib.KERNELS_PX[0], 2000)):
    side = pool5_side(size_px, stride=weights.stride, padding=weights.padding)
    if side and side == (wanted or side):
      return int(size_px)
  raise weights_lib.WeightsError(f'no image gives a pool5 of {wanted} x {wanted} for fc6')
