"""Grey, projected and single-channel pictures, so that colour does not reveal a tile's place.

Paper, section 4.2, and the papers of its rivals. Pure functions of pixels; puzzle.py decides when.
No JAX: loader processes run it.
"""

import cv2
import numpy as np

# Removes green against magenta, (-1, 2, -1), from a colour (R, G, B).
_PROJECTION = (
  np.eye(3, dtype=np.float32) - np.outer((-1, 2, -1), (-1, 2, -1)).astype(np.float32) / 6
)


def make_grey(image: np.ndarray) -> np.ndarray:
  """Replaces the colours of uint8 `[H, W, 3]` by luma (Rec. 601) in all three channels."""
  return cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)


def project_colour(image: np.ndarray) -> np.ndarray:
  """Removes the green-magenta axis of an image uint8 `[H, W, 3]`; values are clipped to 0..255.

  It is Doersch et al.'s projection, I - aa' / aa' with a = (-1, 2, -1). Lateral chromatic
  aberration shifts green against red and blue.
  """
  return np.rint(image @ _PROJECTION).clip(0, 255).astype(np.uint8)


def is_grey(image: np.ndarray) -> bool:
  """Returns whether the three channels of `[H, W, 3]` are equal everywhere."""
  middle = image[image.shape[0] // 2]  # one row shows most colour photographs as such
  for part in (middle, image):
    if (part[..., 0] != part[..., 1]).any() or (part[..., 1] != part[..., 2]).any():
      return False
  return True


def drop_channels(tiles: np.ndarray, rng: np.random.Generator) -> None:
  """Keeps one random channel of each tile uint8 `[S, h, w, 3]`; the others get its mean, in place.

  The mean is dithered by less than a level, so that no tile has a flat channel. Doersch et al.
  subtract the mean and fill the other channels with noise of that size.
  """
  kept = rng.integers(3, size=len(tiles))
  noise = rng.random(tiles.shape, np.float32)
  for tile, channel, dither in zip(tiles, kept, noise):
    own = tile[:, :, channel].copy()
    tile[...] = own.mean() + dither
    tile[:, :, channel] = own
