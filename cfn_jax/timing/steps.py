"""The training step of a config, with a batch of noise instead of its data.

For pretext tasks and classifiers of labelled images. `benchmark step` times it, `benchmark compile`
compiles it.
"""

import argparse

import ml_collections
import numpy as np

from cfn_jax import arguments as command_lines
from cfn_jax import command
from cfn_jax.data import pipeline, record
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import frozen_layers, labelled, recognition, trunks, voc_classification
from cfn_jax.inpainting import task as inpainting_task
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import task as jigsaw_task
from cfn_jax.jigsaw import transform
from cfn_jax.models import figures
from cfn_jax.timing import dense_steps
from cfn_jax.training import task as tasks

LIMITS = {
  'batch': (0, 2**20),
  'accumulate_steps': (0, 2**20),
  'permutations_per_pass': (0, 10**6),
}
CLASSES = {'frozen_layers': 1000, 'recognition': 1000, 'voc_classification': 20}  # the paper's data
DENSE = ('voc_detection', 'voc_segmentation')
TRAINED = (*command.PUZZLES, 'context_encoder', *CLASSES, *DENSE)  # tasks that train a network


class Noise(record.Source):
  """A source of one image, for tasks that make no batch."""

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
  add('--batch', type=int, default=0, help="images per step (default: the config's)")
  add('--dtype', default='', help="float32 or bfloat16 (default: the config's)")
  add('--remat', action='store_true', help='compute the trunk again in the backward pass')
  add('--accumulate-steps', type=int, default=0, help="parts of a batch (default: the config's)")
  add('--permutations-per-pass', type=int, default=0, help="puzzles per image (default: config's)")


def read_config(
  arguments: argparse.Namespace, tasks: tuple[str, ...] = TRAINED
) -> ml_collections.ConfigDict:
  """Reads the config that the options choose.

  Raises:
    CfnError: an option is impossible, or the config has another task.
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
  """Builds the task of a config and a batch `[1, ...]`, without its data and weights.

  Raises:
    CfnError: with the fault in the config.
  """
  noise = pipeline.Reader(Noise(), seed=config.seed)
  if config.task in command.PUZZLES:
    pretext = make_pretext(config)
    return jigsaw_task.make_task(config, pretext), make_batch(pretext, 1)
  if config.task == 'context_encoder':
    made = inpainting_task.make_inpainting(config, lambda: (noise, noise))
    row = made.holes(made.training.train(0))
    return inpainting_task.make_task(config, made), {name: row[name][None] for name in row}
  if config.task in DENSE:
    dense = make_dense(config)
    return dense.run.task, dense.train_row
  return make_classifier(config)


def make_dense(config: ml_collections.ConfigDict, *, regions: int = 2000) -> dense_steps.Dense:
  """Builds a detection, with `regions` per test image, or a segmentation."""
  if config.task == 'voc_detection':
    return dense_steps.make_detection(config, Noise(), regions=regions)
  return dense_steps.make_segmentation(config, Noise())


def make_classifier(
  config: ml_collections.ConfigDict,
) -> tuple[tasks.Task, dict[str, np.ndarray]]:
  """Builds the task of a classifier on labelled images, and a batch `[1, ...]`; its trunk is drawn.

  If the config has several runs, it is the first: in the frozen-layer table, the least locked one.
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
  """Makes a batch of noise with labels: `tiles` uint8 `[size, T, h, w, 3]`, `label` int32."""
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
  """Counts the operations of a step per image: two per multiply-add, forward and backward.

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
