"""Masks of hidden pixels: a region of random form, or a square in the middle. NumPy.

Pathak et al., "Context Encoders", section 3.3. A mask is a pure function of its figures and the
generator of its visit, hence of (seed, position).
"""

import dataclasses

import cv2
import numpy as np

from cfn_jax.errors import CfnError

KINDS = ('random_region', 'centre')
RULES = 1  # changes when the same figures and draws make other masks


@dataclasses.dataclass(frozen=True)
class Mask:
  """Draws masks, bool `[view_px, view_px]`, True where a pixel is hidden.

  Attributes:
    kind: `random_region`: the lowest values of smooth noise; `centre`: a square in the middle.
    view_px: side of the view.
    side_px: `centre`: side of the square.
    blob_px: `random_region`: pixels between two independent values of the noise.
    smallest, largest: `random_region`: the hidden share is drawn uniformly between them.
  """

  kind: str
  view_px: int
  side_px: int
  blob_px: float
  smallest: float
  largest: float

  def __post_init__(self) -> None:
    """Raises CfnError for figures with which a mask could hide everything or nothing."""
    if self.kind not in KINDS:
      raise CfnError(f"mask.kind = '{self.kind}' is unknown: one of {', '.join(KINDS)}")
    if self.kind == 'centre':
      if not 1 <= self.side_px < self.view_px:
        raise CfnError(
          f'mask.side_px = {self.side_px}: from 1 to {self.view_px - 1}, so that something of the '
          f'view of {self.view_px} px is hidden, and not all of it'
        )
      return
    if not 1 <= self.blob_px <= self.view_px:
      raise CfnError(f'mask.blob_px = {self.blob_px}: from 1 to views.view_px = {self.view_px}')
    least, most = (round(share * self.view_px**2) for share in (self.smallest, self.largest))
    if not self.smallest <= self.largest or not 1 <= least <= most < self.view_px**2:
      raise CfnError(
        f'mask.smallest = {self.smallest}, mask.largest = {self.largest}: shares of the view, more '
        f'than 0 and less than 1, the first not above the second; of {self.view_px**2} pixels they '
        f'hide {least} to {most}'
      )

  def draw(self, rng: np.random.Generator) -> np.ndarray:
    """Draws a mask: bool `[px, px]`, True where pixels are hidden."""
    if self.kind == 'centre':
      hidden = np.zeros((self.view_px, self.view_px), bool)
      start = (self.view_px - self.side_px) // 2
      hidden[start : start + self.side_px, start : start + self.side_px] = True
      return hidden
    noise = self._draw_noise(rng)
    count = round(rng.uniform(self.smallest, self.largest) * noise.size)
    return noise <= np.partition(noise, count - 1, axis=None)[count - 1]

  def _draw_noise(self, rng: np.random.Generator) -> np.ndarray:
    """Draws noise on a coarse grid at a random place, and enlarges it bicubically."""
    cells = int(np.ceil(self.view_px / self.blob_px)) + 3
    coarse = rng.random((cells, cells))
    left, top = 1 + rng.random(2)  # cells, with one more at each side for the interpolation
    scale = 1 / self.blob_px
    return cv2.warpAffine(
      coarse,
      np.array([[scale, 0, left], [0, scale, top]]),
      (self.view_px, self.view_px),
      flags=cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP,
      borderMode=cv2.BORDER_REPLICATE,
    )
