"""The training step of a config, with a batch of noise in the place of its data.

Of pretext tasks and classifiers of labelled images: `benchmark step` times it, `benchmark compile`
compiles it.
"""

import argparse

import ml_collections
import numpy as np

from cfn_jax import arguments as command_lines
from cfn_jax import command
from cfn_jax.data import canvases, pipeline, proposals, record, voc_objects
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import (
  frozen_layers,
  labelled,
  recognition,
  runs,
  trunks,
  voc_classification,
  voc_detection,
)
from cfn_jax.evaluation.detection import opened, roles
from cfn_jax.inpainting import task as inpainting_task
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import task as jigsaw_task
from cfn_jax.jigsaw import transform
from cfn_jax.models import figures
from cfn_jax.training import task as tasks

LIMITS = {
  'batch': (0, 2**20),
  'accumulate_steps': (0, 2**20),
  'permutations_per_pass': (0, 10**6),
}
CLASSES = {'frozen_layers': 1000, 'recognition': 1000, 'voc_classification': 20}  # the paper's data
TRAINED = (*command.PUZZLES, 'context_encoder', 'voc_detection', *CLASSES)  # they train a network
PHOTOGRAPH_PX = (375, 500)  # height and width of most images of VOC


class Noise(record.Source):
  """A source of one image, for tasks that are never asked for a batch."""

  class_names: tuple[str, ...] = ()
  fingerprint = 'noise'
  description = 'noise'

  def __len__(self) -> int:
    return 1

  def __getitem__(self, index: int) -> record.Record:
    return record.Record(np.zeros((1, 1, 3), np.uint8), 'noise', -1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options that choose a step."""
  add = parser.add_argument
  add('--config', default='cfn', help='NAME or FILE.py, with :VARIANT (default: the paper)')
  add('--batch', type=int, default=0, help="images a step (default: the config's)")
  add('--dtype', default='', help="float32 or bfloat16 (default: the config's)")
  add('--remat', action='store_true', help='compute the trunk again in the backward pass')
  add('--accumulate-steps', type=int, default=0, help="parts of a batch (default: the config's)")
  add('--permutations-per-pass', type=int, default=0, help="puzzles an image (default: config's)")


def read_config(
  arguments: argparse.Namespace, tasks: tuple[str, ...] = TRAINED
) -> ml_collections.ConfigDict:
  """Reads the config that the options choose.

  Raises:
    CfnError: options that no step can have; a config of another task.
  """
  command_lines.check_numbers(arguments, LIMITS)
  config = command.load_config(arguments.config, tasks=tasks)
  k = arguments.permutations_per_pass
  if k and config.task not in command.PUZZLES:
    raise CfnError(f'--permutations-per-pass={k}: {arguments.config} asks no questions of tiles')
  with config.unlocked():
    config.batch_size = arguments.batch or config.batch_size
    config.compute_dtype = arguments.dtype or config.compute_dtype
    config.remat = arguments.remat or config.remat
    config.accumulate_steps = arguments.accumulate_steps or config.accumulate_steps
    if k:
      config.model.permutations_per_pass = k
  return config


def make(config: ml_collections.ConfigDict) -> tuple[tasks.Task, dict[str, np.ndarray]]:
  """Builds the task of a config and a batch of one row, without its data and weights.

  Raises:
    CfnError: what is wrong in the config.
  """
  noise = pipeline.Reader(Noise(), seed=config.seed)
  if config.task in command.PUZZLES:
    pretext = make_pretext(config)
    return jigsaw_task.make_task(config, pretext), make_batch(pretext, 1)
  if config.task == 'context_encoder':
    made = inpainting_task.make_inpainting(config, lambda: (noise, noise))
    row = made.holes(made.training.train(0))
    return inpainting_task.make_task(config, made), {name: row[name][None] for name in row}
  if config.task == 'voc_detection':
    run, example = make_detection(config)
    return run.task, example
  return make_classifier(config)


def make_detection(config: ml_collections.ConfigDict) -> tuple[runs.Run, dict[str, np.ndarray]]:
  """Builds the run of a detection of 20 classes, and a row of its training on the largest canvas.

  Its trunk is drawn.
  """
  model, count = config.model, 20
  reader = pipeline.Reader(Noise(), seed=config.seed)
  objects = voc_objects.Objects(
    np.zeros((1, 4), np.float32), np.zeros(1, np.int32), np.zeros(1, bool), PHOTOGRAPH_PX
  )
  images = voc_objects.Split(Noise(), (objects,), (), [])  # type: ignore[arg-type]
  windows = proposals.open_proposals(
    proposals.GRID, field='', listed=['noise'], names=['noise'], sizes=[PHOTOGRAPH_PX]
  )
  split = opened.Split(reader, images, windows)
  moves = roles.Moves(*np.stack([np.zeros((count + 1, 4)), np.ones((count + 1, 4))], dtype='f4'))
  data = opened.Opened(split, split, tuple(f'class {i}' for i in range(count)))
  trunk = trunks.draw_trunk(model.init, seed=0, width=model.width, order=model.order)
  run = voc_detection.make_run(config, data, moves, trunk, trunks.BASELINE)
  sides = split.sizes(config.images.scales_px, config.images.longest_px).sides[0].max(0)
  regions = config.regions.per_image
  return run, {
    'image': np.zeros((1, 1, *sides, 3), np.uint8),
    'extent': sides.reshape(1, 1, 2),
    'regions': _spread_regions(regions, sides, 1),
    'label': np.arange(regions, dtype=np.int32)[None] % (count + 1),
    'move': np.zeros((1, regions, 4), np.float32),
    'drawn': np.ones((1, regions), np.float32),
  }


def make_test_image(config: ml_collections.ConfigDict, regions: int) -> dict[str, np.ndarray]:
  """Makes a row of a detection's test, at all its scales."""
  native = np.array([PHOTOGRAPH_PX], np.int32)
  sizes = canvases.Sizes.of(native, tuple(config.test.scales_px), config.images.longest_px)
  sides = sizes.sides[0]
  return {
    'image': np.zeros((1, len(sides), *sides.max(0), 3), np.uint8),
    'extent': sides[None],
    'regions': _spread_regions(regions, sides[0], len(sides)),
    'box': _spread_regions(regions, native[0], 1)[..., 1:],
    'drawn': np.ones((1, regions), np.float32),
    'sides': native,
    'record': np.zeros(1, np.int32),
    'mask': np.ones(1, np.float32),
  }


def _spread_regions(count: int, sides: np.ndarray, levels: int) -> np.ndarray:
  """Returns regions of random sizes and places, float32 `[1, count, 5]`."""
  ends = np.random.default_rng(0).uniform(0, 1, (count, 2, 2)) * (sides[::-1] - 1)
  level = np.arange(count)[:, None] % levels
  boxes = np.sort(ends, axis=1).reshape(count, 4)
  return np.concatenate([level, boxes], axis=1)[None].astype(np.float32)


def make_classifier(
  config: ml_collections.ConfigDict,
) -> tuple[tasks.Task, dict[str, np.ndarray]]:
  """Builds the task of a classifier on labelled images; its trunk is drawn.

  Of several runs it is the first: that of the frozen-layer table which locks least.
  """
  classes = CLASSES[config.task]
  multilabel = config.task == 'voc_classification'
  split = labelled.Split(
    pipeline.Reader(Noise(), seed=config.seed), np.zeros((int(multilabel), classes), np.uint8)
  )
  data = labelled.Labelled(split, split, tuple(f'class {i}' for i in range(classes)))
  if config.task == 'recognition':
    run = recognition.make_run(config, data)
  else:
    model = config.model
    trunk = trunks.draw_trunk(model.init, seed=0, width=model.width, order=model.order)
    if multilabel:
      run = voc_classification.make_run(config, data, trunk, trunks.BASELINE)
    else:
      run = frozen_layers.make_run(config, data, trunk, min(config.layers), name='')
  side = config.views.view_px
  label = np.zeros((1, classes), np.uint8) if multilabel else np.zeros(1, np.int32)
  return run.task, {'image': np.zeros((1, side, side, 3), np.uint8), 'label': label}


def make_pretext(config: ml_collections.ConfigDict) -> pretexts.Pretext:
  """Builds the pretext task of a config without its data."""
  noise = pipeline.Reader(Noise(), seed=config.seed)
  return pretexts.make_pretext(config, lambda: (noise, noise))


def make_batch(pretext: pretexts.Pretext, size: int) -> dict[str, np.ndarray]:
  """Makes a batch of noise with labels."""
  rng = np.random.default_rng(0)
  geometry, k = pretext.transform.geometry, pretext.transform.puzzles
  shown = geometry.tiles if k > 1 else pretext.questions.shown
  shape = (size, shown, geometry.tile_px, geometry.tile_px, 3)
  labels = rng.integers(len(pretext.questions), size=(size, k), dtype=np.int32)
  tiles = rng.integers(256, size=shape, dtype=np.uint8)
  batch: dict[str, np.ndarray] = {'tiles': tiles}
  batch['label'] = labels[:, 0] if k == 1 else labels
  if most := pretext.transform.occluders:
    drawn = [transform.draw_occluders(geometry.tiles, most, rng) for _ in range(size)]
    batch['occluders'] = np.stack(drawn)
  return batch


def count_flops(pretext: pretexts.Pretext) -> float:
  """Counts the operations of a step per image: two for each multiply-add, forward and backward.

  The backward pass costs twice the forward one, except in conv1, which needs no gradient of its
  input.
  """
  shapes = pretext.shapes()
  geometry, model, k = pretext.transform.geometry, pretext.model, pretext.transform.puzzles
  sides = figures.map_sides(geometry.tile_px, model.trunk.stride)
  passes = 1
  if hasattr(model, 'features'):
    passes = geometry.tiles if k > 1 else pretext.questions.shown
  total = 0.0
  for name, layer in shapes.items():
    weights = float(np.prod(layer['kernel'].shape))
    if name in sides:
      forward = 2 * weights * sides[name] ** 2 * passes
      total += forward * (2 if name == 'conv1' else 3)
    else:
      total += 3 * 2 * weights * (passes if name == 'fc6' else k)
  return total
