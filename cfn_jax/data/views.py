"""Square views of images, made in loader processes for tasks on whole images.

There are three ways of cutting them: Caffe's crops of a resized image, the random scales and places
of the VOC classification framework (Kraehenbuehl's `transformation_layer.cpp`), and the whole image
resized (the paper's recognition). NumPy; no JAX. A view is uint8 RGB until it is on the device.
"""

import dataclasses

import numpy as np

from cfn_jax.data import images, pipeline, resampling
from cfn_jax.errors import CfnError

CROPS = ('random', 'centre', 'scaled', 'whole')
RESIZES = ('squash', 'short_side')
LIMITS = {'views.resize_px': (11, 4096), 'views.view_px': (11, 4096)}
LARGEST_SCALE = 2.0  # 'scaled': source pixels per pixel of a view
SMALLEST_SCALE = 0.5


@dataclasses.dataclass(frozen=True)
class MakeViews:
  """The transform: a visit becomes `image` uint8 and `label`.

  Attributes:
    crop: `random` or `centre` of the image resized to `resize_px`; `scaled`: a square of 0.5 to 2
      times `view_px` source pixels at a random place, resized; `whole`: the whole image, resized.
    view_px: side of a view, the network's input.
    resize_px: unused by `scaled` and `whole`.
    resize: `squash`: to a square of that side, as Caffe's ImageNet is stored; `short_side`: aspect
      kept.
    mirror: half of the views are mirrored.
    draws: views of an image; 0: one, without an axis for it.
    labels: uint8 `[n, K]` by record, for images of several classes; empty: the visit's own.
  """

  crop: str
  view_px: int
  resize_px: int
  resize: str
  mirror: bool
  draws: int = 0
  labels: np.ndarray = dataclasses.field(default_factory=lambda: np.empty((0, 0), np.uint8))

  def __post_init__(self) -> None:
    if self.crop not in CROPS:
      raise CfnError(f"crop = '{self.crop}' is unknown: one of {', '.join(CROPS)}")
    if self.resize not in RESIZES:
      raise CfnError(f"views.resize = '{self.resize}' is unknown: one of {', '.join(RESIZES)}")
    if self.crop in ('random', 'centre') and self.resize_px < self.view_px:
      raise CfnError(f'views.resize_px = {self.resize_px}: at least views.view_px = {self.view_px}')

  def __call__(self, visit: pipeline.Visit) -> pipeline.Batch:
    """Returns `image` `[px, px, 3]` or `[draws, px, px, 3]`; `label` int32 `[]` or uint8 `[K]`."""
    resized = self._resize(visit.image)
    views = [self._view(resized, visit.rng) for _ in range(max(1, self.draws))]
    label = self.labels[visit.record] if len(self.labels) else np.array(visit.label, np.int32)
    return {'image': np.stack(views) if self.draws else views[0], 'label': label}

  def _resize(self, image: np.ndarray) -> np.ndarray:
    if self.crop in ('scaled', 'whole'):
      return image
    if self.resize == 'squash':
      height, width = image.shape[:2]
      return resampling.resample(image, (0, 0, width, height), self.resize_px)
    return images.resize_short_side(image, self.resize_px, upsample=True)

  # Deviation: views are resampled with antialiasing: Caffe and the VOC framework sample bilinearly.
  def _view(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    height, width = image.shape[:2]
    side = self.view_px
    if self.crop == 'whole':
      view = resampling.resample(image, (0, 0, width, height), side)
    elif self.crop == 'scaled':
      view = resampling.resample(image, sample_box(height, width, side, rng), side)
    else:
      top, left = (height - side) // 2, (width - side) // 2
      if self.crop == 'random':
        top, left = int(rng.integers(height - side + 1)), int(rng.integers(width - side + 1))
      view = image[top : top + side, left : left + side]
    mirrored = self.mirror and rng.integers(2) == 1
    return np.ascontiguousarray(view[:, ::-1] if mirrored else view)


def sample_box(
  height: int, width: int, view_px: int, rng: np.random.Generator
) -> tuple[float, float, float, float]:
  """Draws a square in an image: left, top, right, bottom in source pixels.

  Its side is `view_px` times u, uniform from min(0.5, M) to M = min(2, height / view_px, width /
  view_px). Its place is uniform over those inside the image.
  """
  largest = min(LARGEST_SCALE, height / view_px, width / view_px)
  scale = rng.uniform(min(SMALLEST_SCALE, largest), largest)
  side = min(scale * view_px, height, width)
  left, top = rng.uniform(0, width - side), rng.uniform(0, height - side)
  return left, top, min(left + side, width), min(top + side, height)
