"""The roles of regions in training, and the moves of their boxes.

Source: fast-rcnn, `lib/roi_data_layer/minibatch.py` and `roidb.py`. A region whose overlap with an
object is large enough shows that object's class. One that overlaps a little shows the background.
NumPy; loader processes run it.
"""

import dataclasses
from collections.abc import Iterable

import numpy as np

from cfn_jax.data import boxes as box_lib
from cfn_jax.errors import CfnError


@dataclasses.dataclass(frozen=True)
class Roles:
  """The rule.

  Attributes:
    per_image: number of regions per image in a step.
    foreground: the share of them that shows objects, if there are enough.
    foreground_overlap: a region shows an object from this overlap on.
    background_low, background_high: it shows the background from the first to below the second.
  """

  per_image: int
  foreground: float
  foreground_overlap: float
  background_low: float
  background_high: float

  def __post_init__(self) -> None:
    low, high = self.background_low, self.background_high
    if not 0 <= low < high <= self.foreground_overlap <= 1:
      raise CfnError(
        f'regions.background_low = {low}, background_high = {high}, foreground_overlap = '
        f'{self.foreground_overlap}: 0 <= low < high <= foreground_overlap <= 1'
      )

  def draw(self, overlap: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws regions, by the largest overlap of each with an object, `[m]`.

    If a role has too few, the step has fewer regions.

    Returns:
      int64 indices of the regions with objects, and of those with background.
    """
    objects = np.flatnonzero(overlap >= self.foreground_overlap)
    low, high = self.background_low, self.background_high
    others = np.flatnonzero((overlap >= low) & (overlap < high))
    wanted = min(round(self.foreground * self.per_image), len(objects))
    chosen = rng.choice(objects, wanted, replace=False)
    return chosen, rng.choice(others, min(self.per_image - wanted, len(others)), replace=False)


@dataclasses.dataclass(frozen=True)
class Candidates:
  """The regions of an image that may train, its objects first, which overlap with themselves.

  Attributes:
    boxes: float32 `[m, 4]`.
    overlap: float64 `[m]`, the largest with an object; 0 without objects.
    nearest: int64 `[m]`, that object.
  """

  boxes: np.ndarray
  overlap: np.ndarray
  nearest: np.ndarray


def find_candidates(objects: np.ndarray, proposals: np.ndarray) -> Candidates:
  """Collects the candidates of boxes of objects `[n, 4]` and proposals `[m, 4]`.

  A region of less than 2 px is left out: its offset to an object would be about 1e14 times its
  width.
  """
  both = np.concatenate([objects, proposals]).astype(np.float32)
  both = both[np.all(both[:, 2:] - both[:, :2] >= 1, axis=1)]
  if not len(objects):
    return Candidates(both, np.zeros(len(both)), np.zeros(len(both), np.int64))
  shares = box_lib.overlaps(both, objects)
  return Candidates(both, shares.max(1), shares.argmax(1))


@dataclasses.dataclass(frozen=True)
class Moves:
  """Means and standard deviations `[K + 1, 4]` that normalise the moves of boxes."""

  means: np.ndarray
  stds: np.ndarray


def measure_moves(
  images: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]],
  num_classes: int,
  foreground_overlap: float,
) -> Moves:
  """Measures the moves of regions onto their objects, class by class.

  It covers all regions of training that show an object, including the objects' own boxes, each once
  as it is and once mirrored: the mean move along x is 0. A class without regions, or whose regions
  never move, is not scaled.

  Args:
    images: boxes `[n, 4]` and classes `[n]` of an image's objects, and its proposals `[m, 4]`.
  """
  count = np.zeros(num_classes + 1)
  total, squares = np.zeros((num_classes + 1, 4)), np.zeros((num_classes + 1, 4))
  for objects, classes, proposals in images:
    found = find_candidates(objects, proposals)
    shows = np.flatnonzero(found.overlap >= foreground_overlap)
    if not len(objects) or not len(shows):
      continue
    nearest = found.nearest[shows]
    moves = box_lib.encode(found.boxes[shows], objects[nearest])
    labels = classes[nearest] + 1
    np.add.at(count, labels, 1)
    np.add.at(total, labels, moves * [0, 1, 1, 1])
    np.add.at(squares, labels, moves**2)
  each = np.maximum(count, 1)[:, None]
  means = total / each
  stds = np.sqrt(np.maximum(0, squares / each - means**2))
  return Moves(means.astype(np.float32), np.where(stds > 1e-6, stds, 1).astype(np.float32))
