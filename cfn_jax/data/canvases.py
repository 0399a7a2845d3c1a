"""Images of any size in batches of few sizes: the size of each, and the canvas that it lies on.

Detection and segmentation see whole images. Each is resized by Fast R-CNN's rule and lies at the
top left of a canvas of zeros. A program is compiled for each canvas, so a few canvases serve a
whole data set. Source of the rule: fast-rcnn, `lib/utils/blob.py`. NumPy; loader processes use it.
"""

import dataclasses
import functools

import cv2
import numpy as np

from cfn_jax.data import record, streams

CANDIDATES = 12  # number of heights, and of widths, to choose canvases from
WORTH_IT = 0.03  # share of the area that one more canvas must save
DRAWN = 4096  # training batches that the choice of canvases is based on


def find_scale(height: int, width: int, short_px: int, longest_px: int) -> float:
  """Returns the factor that scales an image to a short side, or to the longest long side (px).

  >>> find_scale(375, 500, 600, 1000), find_scale(281, 500, 600, 1000)
  (1.6, 2.0)
  """
  scale = short_px / min(height, width)
  return (
    longest_px / max(height, width) if round(scale * max(height, width)) > longest_px else scale
  )


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes of a data set's images at each of some scales.

  Attributes:
    native: int32 `[n, 2]`: heights and widths of the images, px.
    scales: float64 `[n, L]`: factors.
    sides: int32 `[n, L, 2]`: heights and widths at each scale, px.
  """

  native: np.ndarray
  scales: np.ndarray
  sides: np.ndarray

  @classmethod
  def of(cls, native: np.ndarray, short_px: tuple[int, ...], longest_px: int) -> 'Sizes':
    """Returns the sizes at each scale; `native` `[n, 2]`: heights and widths, px."""
    scales = np.array(
      [
        [find_scale(height, width, short, longest_px) for short in short_px]
        for height, width in native.tolist()
      ]
    )
    sides = np.maximum(1, np.rint(native[:, None] * scales[:, :, None])).astype(np.int32)
    return cls(native, scales, sides)

  @classmethod
  def as_they_are(cls, native: np.ndarray) -> 'Sizes':
    """Returns the sizes of images `[n, 2]` that are not resized."""
    return cls(native, np.ones((len(native), 1)), native[:, None])


def choose(sides: np.ndarray, most: int, largest: np.ndarray) -> np.ndarray:
  """Chooses canvases that make the area of batches small; the smallest first.

  Args:
    sides: `[n, 2]`: the height and width that each of some batches needs.
    most: largest number of canvases.
    largest: `[2]`: the most that any batch may need; one canvas holds it.

  Returns:
    int32 `[k, 2]`, heights and widths.
  """
  steps = np.linspace(0, 1, CANDIDATES)
  heights, widths = (
    np.unique(np.quantile(sides[:, axis], steps, method='higher')) for axis in (0, 1)
  )
  tried = np.stack(np.meshgrid(heights, widths), -1).reshape(-1, 2)
  unique, counts = np.unique(sides, axis=0, return_counts=True)
  area = np.where(
    np.all(unique[None] <= tried[:, None], axis=-1), np.prod(tried, axis=1)[:, None], np.inf
  )  # of each candidate, for each size that it holds
  chosen, held = [largest], np.full(len(unique), float(np.prod(largest)))
  while len(chosen) < most:
    totals = np.minimum(area, held) @ counts
    best = int(np.argmin(totals))
    if totals[best] > (1 - WORTH_IT) * (held @ counts):
      break
    chosen.append(tried[best])
    held = np.minimum(area[best], held)
  return np.array(sorted(chosen, key=np.prod), np.int32)


def find(canvases: np.ndarray, sides: np.ndarray) -> tuple[int, int]:
  """Returns height and width of the smallest canvas that holds images of these sides `[..., 2]`."""
  needed = sides.reshape(-1, 2).max(0)
  height, width = canvases[np.argmax(np.all(canvases >= needed, axis=1))].tolist()
  return height, width


def count_pixels(canvases: np.ndarray) -> int:
  """Returns the pixels of the largest of the canvases `[n, 2]`."""
  return int(np.prod(canvases, axis=1).max())


def tell(canvases: np.ndarray) -> str:
  """Describes canvases `[n, 2]`: their number, and their heights and widths in px."""
  sides = ', '.join(f'{height} x {width}' for height, width in canvases.tolist())
  return f'{len(canvases)} ({sides})'


def place(image: np.ndarray, sides: np.ndarray, canvas: tuple[int, int]) -> np.ndarray:
  """Resizes an image uint8 `[H, W, 3]` to sides `[2]`, bilinearly, on a black canvas."""
  height, width = sides.tolist()
  # Deviation: images are resized as bytes: fast-rcnn resizes floats, half a grey level apart.
  made = np.zeros((*canvas, 3), np.uint8)
  made[:height, :width] = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
  return made


class Doubled:
  """A source with each image twice: first all as they are, then all to be mirrored."""

  class_names: tuple[str, ...] = ()
  foreign_classes: tuple[str, ...] = ()

  def __init__(self, source: record.Source) -> None:
    self.source = source
    self.root = source.root
    self.fingerprint = source.fingerprint
    self.description = f'{source.description}, and their mirrored copies'

  def __len__(self) -> int:
    return 2 * len(self.source)

  def __getitem__(self, index: int) -> record.Record:
    return self.source[record.check_index(index, len(self)) % len(self.source)]

  def labels(self) -> None:
    return None

  def multi_labels(self, origin: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns the labels `[n, K]` of the source, and its class names."""
    return self.source.multi_labels(origin)

  def identify(self) -> str:
    return self.source.identify()


@dataclasses.dataclass(frozen=True)
class TrainingFrames:
  """The image, scale and canvas of each place of the endless stream.

  All of it follows from (seed, place) and the sizes, so every host and process knows the canvas of
  a whole batch.

  Attributes:
    copies: number of times that the source has each image, see `Doubled`.
  """

  sizes: Sizes
  seed: int
  batch_size: int
  most: int
  copies: int = 2

  @functools.cached_property
  def canvases(self) -> np.ndarray:
    """Returns the canvases of all batches, int32 `[k, 2]`: heights and widths, px."""
    count, levels, _ = self.sizes.sides.shape
    rng = streams.make_rng(0, 0, streams.SCALE)
    drawn = self.sizes.sides[
      rng.integers(count, size=(DRAWN, self.batch_size)),
      rng.integers(levels, size=(DRAWN, self.batch_size)),
    ]
    return choose(drawn.max(1), self.most, self.sizes.sides.reshape(-1, 2).max(0))

  def level(self, place: int) -> int:
    """Returns the number of the scale at which a place shows its image."""
    levels = self.sizes.sides.shape[1]
    if levels == 1:
      return 0
    return int(streams.make_rng(self.seed, place, streams.SCALE).integers(levels))

  def canvas(self, place: int) -> tuple[int, int]:
    """Returns height and width of the canvas of the batch that holds a place."""
    count = len(self.sizes.sides)
    first = place // self.batch_size * self.batch_size
    shown = [
      self.sizes.sides[
        streams.record_index(self.copies * count, seed=self.seed, position=each) % count,
        self.level(each),
      ]
      for each in range(first, first + self.batch_size)
    ]
    return find(self.canvases, np.array(shown))


@dataclasses.dataclass(frozen=True)
class TestFrames:
  """The canvas of each place of a pass over test images, for all scales of its image.

  Attributes:
    sizes: sizes of the records of the pass, in its order.
  """

  __test__ = False  # not a test class of pytest

  sizes: Sizes
  batch_size: int
  most: int

  @functools.cached_property
  def canvases(self) -> np.ndarray:
    """Returns the canvases of all batches, int32 `[k, 2]`: heights and widths, px."""
    needed = self.sizes.sides.max(1)  # [n, 2]
    starts = np.arange(0, len(needed), self.batch_size)
    return choose(np.maximum.reduceat(needed, starts), self.most, needed.max(0))

  def canvas(self, place: int) -> tuple[int, int]:
    """Returns height and width of the canvas of the batch that holds a place."""
    first = place // self.batch_size * self.batch_size
    return find(self.canvases, self.sizes.sides[first : first + self.batch_size])
