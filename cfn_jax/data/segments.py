"""Proposals from segments: boxes of the regions of one image as they merge.

This is a selective search (Uijlings et al., "Selective Search for Object Recognition", 2013). It
makes an over-segmentation (Felzenszwalb and Huttenlocher) in two colour spaces at four scales. In
each, the two most similar neighbours merge until one region is left, and every region on the way is
a box. It needs scikit-image, the extra `proposals`. Used by prepare_proposals.py. The result is a
pure function of the image.
"""

import heapq
from types import ModuleType
from typing import NamedTuple

import cv2
import numpy as np

from cfn_jax.errors import CfnError

SCALES = (50, 100, 150, 300)  # scales of the segmentation; also the pixels of its smallest segment
_SIGMA = 0.8
_LONG_SIDE_PX = 500  # larger images are searched at this size
_LEAST_SIDE = 1 / 20  # smallest side of a box, in short sides of the image
_COLOUR_BINS = 25
_EDGE_BINS = 10
_DIRECTIONS = 8


class Regions(NamedTuple):
  """Features of regions, one per row; merged regions follow those of the segmentation."""

  sizes: np.ndarray  # float64 [n], pixels
  boxes: np.ndarray  # int64 [n, 4]
  colours: np.ndarray  # float64 [n, 3 * bins], histograms that sum to one
  edges: np.ndarray  # float64 [n, 3 * directions * bins], histograms that sum to one


def find_boxes(image: np.ndarray) -> np.ndarray:
  """Returns boxes where objects may be, large before small ones.

  Args:
    image: uint8 `[H, W, 3]`.

  Returns:
    float32 `[m, 4]`: distinct x1, y1, x2, y2 in pixels from 0, ends included. The first is the
      whole image.

  Raises:
    CfnError: scikit-image is not installed.
  """
  segmentation = import_segmentation()
  height, width = image.shape[:2]
  shrink = min(1.0, _LONG_SIDE_PX / max(height, width))
  if shrink < 1:
    sides = max(1, round(width * shrink)), max(1, round(height * shrink))
    image = cv2.resize(image, sides, interpolation=cv2.INTER_AREA)
  found = []
  for space in (cv2.COLOR_RGB2HSV_FULL, cv2.COLOR_RGB2LAB):
    pixels = cv2.cvtColor(image, space)
    edges = _measure_edges(pixels)
    for scale in SCALES:
      labels = segmentation.felzenszwalb(pixels, scale=scale, sigma=_SIGMA, min_size=scale)
      found.append(_grow(_describe(pixels, edges, labels), _find_neighbours(labels)))
  ranks = np.concatenate([np.arange(len(boxes)) for boxes in found])
  boxes = np.concatenate(found)[np.argsort(ranks, kind='stable')]
  scale_back = np.array([width / image.shape[1], height / image.shape[0]] * 2)
  ends = np.array([0, 0, 1, 1])  # a pixel's far end is one further
  boxes = np.rint((boxes + ends) * scale_back - ends)
  boxes = np.concatenate([[[0, 0, width - 1, height - 1]], boxes])
  least = _LEAST_SIDE * min(height, width)
  large = (boxes[:, 2:] - boxes[:, :2] + 1 >= least).all(axis=1)
  _, first = np.unique(boxes[large], axis=0, return_index=True)
  return boxes[large][np.sort(first)].astype(np.float32)


def import_segmentation() -> ModuleType:
  """Imports the functions of scikit-image; raises CfnError if it is absent."""
  try:
    from skimage import segmentation
  except ImportError as error:
    raise CfnError(
      f'proposals from segments need scikit-image ({error}): pip install -e ".[proposals]"'
    ) from None
  module: ModuleType = segmentation
  return module


def _measure_edges(pixels: np.ndarray) -> np.ndarray:
  """Returns the bin of each pixel's slope: uint8 `[directions, H, W, 3]` of 0 .. bins - 1.

  They are slopes of the smoothed channels; opposite directions count separately, as in the paper.
  """
  smooth = cv2.GaussianBlur(pixels.astype(np.float32), (0, 0), 1)
  across = cv2.Scharr(smooth, cv2.CV_32F, 1, 0, scale=1 / 32)
  down = cv2.Scharr(smooth, cv2.CV_32F, 0, 1, scale=1 / 32)
  angles = np.arange(_DIRECTIONS) * (2 * np.pi / _DIRECTIONS)
  slopes = np.stack([np.cos(a) * across + np.sin(a) * down for a in angles])
  largest = slopes.max(axis=(0, 1, 2)) + 1e-6  # of each channel
  bins = np.maximum(slopes, 0) * (_EDGE_BINS / largest)
  return np.minimum(bins, _EDGE_BINS - 1).astype(np.uint8)


def _describe(pixels: np.ndarray, edges: np.ndarray, labels: np.ndarray) -> Regions:
  """Measures the segments, with free rows for the merged regions."""
  count = int(labels.max()) + 1
  flat = labels.ravel()

  def histogram(planes: list[np.ndarray], bins: int) -> np.ndarray:
    counts = [
      np.bincount(flat * bins + plane.ravel(), minlength=count * bins).reshape(count, bins)
      for plane in planes
    ]
    joined = np.concatenate(counts, axis=1).astype(np.float64)
    return joined / joined.sum(axis=1, keepdims=True)

  shades = (pixels.astype(np.int64) * _COLOUR_BINS) >> 8
  ys, xs = np.indices(labels.shape).reshape(2, -1)
  low, high = np.full((count, 2), np.iinfo(np.int64).max), np.zeros((count, 2), np.int64)
  for axis, values in enumerate((xs, ys)):
    np.minimum.at(low[:, axis], flat, values)
    np.maximum.at(high[:, axis], flat, values)
  made = Regions(
    np.bincount(flat, minlength=count).astype(np.float64),
    np.concatenate([low, high], axis=1),
    histogram([shades[..., c] for c in range(3)], _COLOUR_BINS),
    histogram([plane[..., c] for plane in edges for c in range(3)], _EDGE_BINS),
  )
  return Regions(*(np.concatenate([rows, np.zeros_like(rows[1:])]) for rows in made))


def _find_neighbours(labels: np.ndarray) -> list[set[int]]:
  """Returns the segments that touch each one, sideways or vertically."""
  count = int(labels.max()) + 1
  touching: list[set[int]] = [set() for _ in range(count)]
  for one, other in ((labels[:, 1:], labels[:, :-1]), (labels[1:], labels[:-1])):
    border = one != other
    for pair in np.unique(one[border] * count + other[border]).tolist():
      a, b = divmod(pair, count)
      touching[a].add(b)
      touching[b].add(a)
  return touching


def _compare(regions: Regions, one: int, others: list[int], whole: float) -> list[float]:
  """Returns how similar a region is to others, 0 to 4 each.

  It compares colours and edges, and adds how small both are and how well both fill their common
  box. `whole` is the size of the image.
  """
  sizes, boxes, colours, edges = regions
  both = sizes[one] + sizes[others]
  low = np.minimum(boxes[one, :2], boxes[others, :2])
  high = np.maximum(boxes[one, 2:], boxes[others, 2:])
  alike: np.ndarray = (
    np.minimum(colours[one], colours[others]).sum(axis=1)
    + np.minimum(edges[one], edges[others]).sum(axis=1)
    + (1 - both / whole)
    + (1 - (np.prod(high - low + 1, axis=1) - both) / whole)
  )
  found: list[float] = alike.tolist()
  return found


def _merge(regions: Regions, one: int, other: int, new: int) -> None:
  """Fills the row of the region that two others merge into."""
  sizes, boxes, colours, edges = regions
  pair = [one, other]
  sizes[new] = sizes[pair].sum()
  boxes[new, :2], boxes[new, 2:] = boxes[pair, :2].min(axis=0), boxes[pair, 2:].max(axis=0)
  for histograms in (colours, edges):
    histograms[new] = (sizes[pair, None] * histograms[pair]).sum(axis=0) / sizes[new]


def _grow(regions: Regions, touching: list[set[int]]) -> np.ndarray:
  """Merges the most similar neighbours until one region is left; returns the boxes, last first."""
  whole = float(regions.sizes.sum())
  queue: list[tuple[float, int, int]] = []  # the most similar first

  def compare(one: int, others: list[int]) -> None:
    for alike, other in zip(_compare(regions, one, others, whole), others):
      heapq.heappush(queue, (-alike, one, other))

  for one, near in enumerate(touching):
    compare(one, sorted(other for other in near if other < one))
  gone: set[int] = set()
  while queue:
    _, one, other = heapq.heappop(queue)
    if one in gone or other in gone:
      continue
    new = len(touching)
    _merge(regions, one, other, new)
    gone |= {one, other}
    near = (touching[one] | touching[other]) - gone
    for each in near:
      touching[each].add(new)
    touching.append(near)
    compare(new, sorted(near))
  return regions.boxes[: len(touching)][::-1]
