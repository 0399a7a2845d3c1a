"""Turns a visit to an image into the image and its mask on a canvas, in loader processes.

Source: fcn.berkeleyvision.org, `voc_layers.py`: images at their own size, as they are.
"""

import dataclasses

import numpy as np

from cfn_jax.data import canvases, pipeline, voc_masks


@dataclasses.dataclass(frozen=True)
class ShowImages:
  """Makes one image without a mask."""

  frames: canvases.TestFrames

  def __call__(self, visit: pipeline.Visit) -> pipeline.Batch:
    """Returns the image.

    `image` uint8 `[H, W, 3]`; `extent` int32 `[2]`, its height and width; `record` int32 `[]`.
    """
    return show_image(visit.image, self.frames.canvas(visit.place), visit.record)


def show_image(image: np.ndarray, canvas: tuple[int, int], record: int) -> pipeline.Batch:
  """Puts an image uint8 `[H, W, 3]` at the top left of a black canvas (height and width, px)."""
  height, width = image.shape[:2]
  shown = np.zeros((*canvas, 3), np.uint8)
  shown[:height, :width] = image
  extent = np.array([height, width], np.int32)
  return {'image': shown, 'extent': extent, 'record': np.array(record, np.int32)}


@dataclasses.dataclass(frozen=True)
class ShowMasks:
  """Makes one image of a step or of a test.

  Attributes:
    masks: those of each image of the list; records after its end are its images, mirrored.
  """

  frames: canvases.TrainingFrames | canvases.TestFrames
  masks: voc_masks.Split

  @property
  def nbytes(self) -> int:
    """Returns the bytes of the largest image and its mask."""
    return 4 * canvases.count_pixels(self.frames.canvases)

  def __call__(self, visit: pipeline.Visit) -> pipeline.Batch:
    """Returns the image, see `ShowImages`, and `label` uint8 `[H, W]`: the class of each pixel.

    It is 255 for unknown pixels and beyond the image.
    """
    mirrored, index = divmod(visit.record, len(self.masks))
    image, mask = visit.image, self.masks.mask(index)
    if mirrored:
      image, mask = image[:, ::-1], mask[:, ::-1]
    canvas = self.frames.canvas(visit.place)
    label = np.full(canvas, voc_masks.VOID, np.uint8)
    label[: mask.shape[0], : mask.shape[1]] = mask
    return show_image(image, canvas, index) | {'label': label}
