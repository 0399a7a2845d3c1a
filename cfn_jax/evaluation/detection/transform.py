"""Turns a visit to an image into its canvas and its regions, in loader processes.

Source: fast-rcnn, `lib/roi_data_layer/minibatch.py` (training) and `lib/fast_rcnn/test.py`. Boxes
are in pixels of the image until they are scaled with it.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from cfn_jax.data import boxes as box_lib
from cfn_jax.data import canvases, pipeline, proposals, voc_objects
from cfn_jax.evaluation.detection import roles

PYRAMID_PX = 224  # a region is seen at the scale at which it is about as large as this square


@dataclasses.dataclass(frozen=True)
class TrainRegions:
  """Makes one image of a training step.

  Attributes:
    objects, proposals: those of each image of the list.
    moves: see `roles.measure_moves`.
    difficult: objects that are marked so train like others.
  """

  frames: canvases.TrainingFrames
  objects: Sequence[voc_objects.Objects]
  proposals: proposals.Proposals
  rule: roles.Roles
  moves: roles.Moves
  difficult: bool

  @property
  def nbytes(self) -> int:
    """Returns the bytes of the largest image; the rest is small."""
    return 3 * canvases.count_pixels(self.frames.canvases)

  def __call__(self, visit: pipeline.Visit) -> pipeline.Batch:
    """Returns the image, and R of its regions with their labels.

    `image` uint8 `[1, H, W, 3]`; `extent` int32 `[1, 2]`; `regions` float32 `[R, 5]`; `label` int32
    `[R]`, 0 for the background; `move` float32 `[R, 4]`, normalised; `drawn` float32 `[R]`, 0 for
    rows that fill it up.
    """
    mirrored, index = divmod(visit.record, len(self.objects))
    level = self.frames.level(visit.place)
    sides, scale = self.frames.sizes.sides[index, level], self.frames.sizes.scales[index, level]
    width = int(self.frames.sizes.native[index, 1])
    shown, classes = choose_objects(self.objects[index], difficult=self.difficult)
    found = roles.find_candidates(shown, self.proposals[index])
    front, back = self.rule.draw(found.overlap, visit.rng)
    chosen = np.concatenate([front, back])

    made = {
      'regions': np.zeros((self.rule.per_image, 5), np.float32),
      'label': np.zeros(self.rule.per_image, np.int32),
      'move': np.zeros((self.rule.per_image, 4), np.float32),
      'drawn': np.zeros(self.rule.per_image, np.float32),
    }
    regions, image = found.boxes[chosen], visit.image
    if mirrored:
      regions, image = box_lib.mirror(regions, width), image[:, ::-1]
      shown = box_lib.mirror(shown, width)
    made['regions'][: len(chosen), 1:] = regions * scale
    made['drawn'][: len(chosen)] = 1
    if len(front):
      nearest = found.nearest[front]
      labels = classes[nearest] + 1
      moves = box_lib.encode(regions[: len(front)], shown[nearest])
      made['label'][: len(front)] = labels
      made['move'][: len(front)] = (moves - self.moves.means[labels]) / self.moves.stds[labels]
    canvas = self.frames.canvas(visit.place)
    made['image'] = canvases.place(np.ascontiguousarray(image), sides, canvas)[None]
    made['extent'] = sides[None]
    return made


def choose_objects(
  objects: voc_objects.Objects, *, difficult: bool
) -> tuple[np.ndarray, np.ndarray]:
  """Returns boxes float32 `[n, 4]` and classes int32 `[n]` of the objects that train."""
  trains = np.full(len(objects.classes), True) if difficult else ~objects.difficult
  return objects.boxes[trains], objects.classes[trains]


@dataclasses.dataclass(frozen=True)
class TestRegions:
  """Makes one image of the test: at each scale, with all its proposals, without its objects.

  Attributes:
    proposals: those of each image of the list.
    count: R, regions per image; those after its own are empty.
  """

  __test__ = False  # not a test class of pytest

  frames: canvases.TestFrames
  proposals: proposals.Proposals
  count: int

  @property
  def nbytes(self) -> int:
    """Returns the bytes of the largest image at all scales; the rest is small."""
    levels = self.frames.sizes.sides.shape[1]
    return 3 * levels * canvases.count_pixels(self.frames.canvases)

  def __call__(self, visit: pipeline.Visit) -> pipeline.Batch:
    """Returns the image and its regions.

    `image` uint8 `[L, H, W, 3]`; `extent` int32 `[L, 2]`; `regions` float32 `[R, 5]`, each at its
    scale; `box` float32 `[R, 4]`, in the image itself; `drawn` float32 `[R]`, 0 for what only fills
    up; `sides` int32 `[2]` of the image; `record` int32 `[]`.
    """
    sizes, place = self.frames.sizes, visit.place
    canvas = self.frames.canvas(place)
    boxes = self.proposals[visit.record]
    level = choose_levels(boxes, sizes.scales[place])
    made = {
      'image': np.stack([canvases.place(visit.image, each, canvas) for each in sizes.sides[place]]),
      'extent': sizes.sides[place],
      'regions': np.zeros((self.count, 5), np.float32),
      'box': np.zeros((self.count, 4), np.float32),
      'drawn': (np.arange(self.count) < len(boxes)).astype(np.float32),
      'sides': sizes.native[place],
      'record': np.array(visit.record, np.int32),
    }
    made['regions'][: len(boxes), 0] = level
    made['regions'][: len(boxes), 1:] = boxes * sizes.scales[place, level][:, None]
    made['box'][: len(boxes)] = boxes
    return made


def choose_levels(boxes: np.ndarray, scales: np.ndarray) -> np.ndarray:
  """Returns the scale, of `[L]`, at which each box's area is nearest to 224 x 224: int64 `[R]`."""
  areas = box_lib.areas(boxes.astype(np.float64))[:, None] * scales**2  # [R, L]
  return np.argmin(np.abs(areas - PYRAMID_PX**2), axis=1)
