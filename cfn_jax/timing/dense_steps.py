"""Detection and segmentation without data: the run of a config, and rows of noise for it.

Images have 500 x 375 px, like most of VOC's. See steps.py for the other tasks.
"""

import dataclasses

import ml_collections
import numpy as np

from cfn_jax.data import canvases, pipeline, proposals, record, voc_masks, voc_objects
from cfn_jax.evaluation import runs, trunks, voc_detection, voc_segmentation
from cfn_jax.evaluation.detection import opened, roles
from cfn_jax.evaluation.segmentation import passes

PHOTOGRAPH_PX = (375, 500)  # height and width
Row = dict[str, np.ndarray]
CLASSES = tuple(f'class {i}' for i in range(20))


@dataclasses.dataclass(frozen=True)
class Dense:
  """A run with a drawn trunk, and rows of its training and test on the largest canvas.

  Attributes:
    unit: the counted things besides images: `train_units` and `test_units` per row.
  """

  run: runs.Run
  train_row: Row
  test_row: Row
  unit: str
  train_units: int
  test_units: int


def make_detection(
  config: ml_collections.ConfigDict, noise: record.Source, *, regions: int
) -> Dense:
  """Builds a detection of 20 classes; `regions`: their number per test image."""
  count = len(CLASSES)
  reader = pipeline.Reader(noise, seed=config.seed)
  objects = voc_objects.Objects(
    np.zeros((1, 4), np.float32), np.zeros(1, np.int32), np.zeros(1, bool), PHOTOGRAPH_PX
  )
  images = voc_objects.Split(noise, (objects,), (), [])  # type: ignore[arg-type]
  windows = proposals.open_proposals(
    proposals.GRID, field='', listed=['noise'], names=['noise'], sizes=[PHOTOGRAPH_PX]
  )
  split = opened.Split(reader, images, windows)
  moves = roles.Moves(*np.stack([np.zeros((count + 1, 4)), np.ones((count + 1, 4))], dtype='f4'))
  data = opened.Opened(split, split, CLASSES)
  run = voc_detection.make_run(config, data, moves, _draw_trunk(config), trunks.BASELINE)
  sides = split.sizes(config.images.scales_px, config.images.longest_px).sides[0].max(0)
  trained = config.regions.per_image
  row: Row = {
    'image': np.zeros((1, 1, *sides, 3), np.uint8),
    'extent': sides.reshape(1, 1, 2),
    'regions': _spread_regions(trained, sides, 1),
    'label': np.arange(trained, dtype=np.int32)[None] % (count + 1),
    'move': np.zeros((1, trained, 4), np.float32),
    'drawn': np.ones((1, trained), np.float32),
  }
  native = np.array([PHOTOGRAPH_PX], np.int32)
  sizes = canvases.Sizes.of(native, tuple(config.test.scales_px), config.images.longest_px)
  sides = sizes.sides[0]
  tested: Row = {
    'image': np.zeros((1, len(sides), *sides.max(0), 3), np.uint8),
    'extent': sides[None],
    'regions': _spread_regions(regions, sides[0], len(sides)),
    'box': _spread_regions(regions, native[0], 1)[..., 1:],
    'drawn': np.ones((1, regions), np.float32),
    'sides': native,
    'record': np.zeros(1, np.int32),
    'mask': np.ones(1, np.float32),
  }
  return Dense(run, row, tested, 'regions', trained, regions)


def make_segmentation(config: ml_collections.ConfigDict, noise: record.Source) -> Dense:
  """Builds a segmentation of 20 classes and the background."""
  names = ('background', *CLASSES)
  masks = voc_masks.Split(
    noise,  # type: ignore[arg-type]
    noise,  # type: ignore[arg-type]
    np.array([PHOTOGRAPH_PX], np.int32),
    ('noise',),
    names,
    [],
  )
  data = passes.Opened(masks, masks, names)
  run = voc_segmentation.make_run(config, data, _draw_trunk(config), trunks.BASELINE)
  row: Row = {
    'image': np.zeros((1, *PHOTOGRAPH_PX, 3), np.uint8),
    'extent': np.array([PHOTOGRAPH_PX], np.int32),
    'label': np.zeros((1, *PHOTOGRAPH_PX), np.uint8),
    'record': np.zeros(1, np.int32),
  }
  pixels = int(np.prod(PHOTOGRAPH_PX))
  return Dense(run, row, row | {'mask': np.ones(1, np.float32)}, 'pixels', pixels, pixels)


def _draw_trunk(config: ml_collections.ConfigDict) -> trunks.Trunk:
  model = config.model
  return trunks.draw_trunk(model.init, seed=0, width=model.width, order=model.order)


def _spread_regions(count: int, sides: np.ndarray, levels: int) -> np.ndarray:
  """Returns regions of random sizes and places, float32 `[1, count, 5]`."""
  ends = np.random.default_rng(0).uniform(0, 1, (count, 2, 2)) * (sides[::-1] - 1)
  level = np.arange(count)[:, None] % levels
  boxes = np.sort(ends, axis=1).reshape(count, 4)
  return np.concatenate([level, boxes], axis=1)[None].astype(np.float32)
