"""The pretext task: which permutation shuffled the tiles? Handed to the one training loop.

Paper, sections 3 and 4. Reads the config, opens the data, makes the permutation set, and closes
over them what `training/task.py` asks for.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from cfn_jax.data import bad_images, pipeline, sources
from cfn_jax.jigsaw import permutations as permutation_sets
from cfn_jax.jigsaw import transform
from cfn_jax.models import alexnet, cfn
from cfn_jax.training import metrics, optimizer
from cfn_jax.training import task as tasks

NORMALIZATIONS = ('tile', 'channel', 'mean', 'global')
DTYPES = ('float32', 'bfloat16')


@dataclasses.dataclass(frozen=True)
class Normalization:
  """How tiles uint8 `[..., h, w, 3]` become the network's input, on the device.

  Attributes:
    kind: `tile`: mean and std of each tile over pixels and channels; `channel`: of each channel of
      each tile; `mean`: each channel's mean, and one fixed std; `global`: fixed mean and std.
    scale: the normalised tile is multiplied by this.
    global_mean, global_std: of pixel values 0..255, RGB.
  """

  kind: str
  scale: float
  global_mean: tuple[float, float, float]
  global_std: float

  def __post_init__(self) -> None:
    if self.kind not in NORMALIZATIONS:
      raise ValueError(
        f"puzzle.normalization = '{self.kind}' is unknown: one of {', '.join(NORMALIZATIONS)}"
      )
    if len(self.global_mean) != 3:
      raise ValueError(f'puzzle.global_mean = {self.global_mean}: three numbers, R, G and B')
    if self.global_std <= 0:
      raise ValueError(f'puzzle.global_std = {self.global_std}: more than 0')
    if self.scale <= 0:
      raise ValueError(f'puzzle.tile_scale = {self.scale}: more than 0')

  def __call__(self, tiles: jax.Array | np.ndarray) -> jax.Array:
    """Normalises to float32; a flat tile becomes zeros."""
    x = jnp.asarray(tiles, jnp.float32)
    if self.kind == 'global':
      mean = jnp.asarray(self.global_mean, jnp.float32)
    else:
      mean = x.mean((-3, -2, -1) if self.kind == 'tile' else (-3, -2), keepdims=True)
    if self.kind in ('global', 'mean'):
      return (x - mean) * (self.scale / self.global_std)
    variance = jnp.square(x - mean).mean(
      (-3, -2, -1) if self.kind == 'tile' else (-3, -2), keepdims=True
    )
    # Values are whole numbers, so a variance below this is rounding: the tile is flat.
    flat = variance < 1e-4
    return jnp.where(flat, 0, (x - mean) * jax.lax.rsqrt(jnp.where(flat, 1, variance))) * self.scale


def make_normalization(config: ml_collections.ConfigDict) -> Normalization:
  """Reads how tiles are normalised; the scale must go with the initial weights.

  Raises:
    ValueError: Caffe's initial weights see almost nothing at scale 1 (the loss stays at ln N),
      He's at scale 50 start at a loss of a hundred.
  """
  # Deviation: scale of normalised tiles: the paper names none; Caffe's initial weights and LRN
  # expect values of tens, so its variants multiply by 50 as the authors' later code does.
  scale, init = config.puzzle.tile_scale, config.model.init
  if (init == 'caffe' and scale < 10) or (init == 'he' and scale > 10):
    wanted = 'near 50' if init == 'caffe' else 'near 1'
    raise ValueError(
      f"puzzle.tile_scale = {scale} does not go with model.init = '{init}': it needs one {wanted}"
    )
  return Normalization(
    kind=config.puzzle.normalization,
    scale=scale,
    global_mean=tuple(config.puzzle.global_mean),
    global_std=config.puzzle.global_std,
  )


def make_permutation_set(config: ml_collections.ConfigDict) -> np.ndarray:
  """Makes or reads the permutation set `[N, T]`.

  Raises:
    ValueError: it cannot be had; it is too small for what is drawn from it.
  """
  c = config.permutations
  if c.file:
    permutations = permutation_sets.load_permutations(c.file, grid=config.puzzle.grid).permutations
  else:
    permutations = permutation_sets.make_permutations(
      c.num,
      method=c.method,
      seed=c.seed,
      grid=config.puzzle.grid,
      ties=c.ties,
      mean=c.mean,
      min_distance=c.min_distance,
    )
  count, fixed = len(permutations), c.fixed_per_image
  k = config.model.permutations_per_pass
  if not 0 <= fixed <= count:
    raise ValueError(
      f'permutations.fixed_per_image = {fixed}: from 0 (all) to the {count} there are'
    )
  together = k * config.data.puzzles_per_image
  if k < 1 or config.data.puzzles_per_image < 1 or together > (fixed or count):
    raise ValueError(
      f'model.permutations_per_pass = {k} times data.puzzles_per_image = '
      f'{config.data.puzzles_per_image}: from 1 to the {fixed or count} permutations of an image'
    )
  return permutations


def make_model(config: ml_collections.ConfigDict, num_permutations: int) -> cfn.Cfn | cfn.Stacked:
  """Builds the network.

  Raises:
    ValueError: an unknown name; tiles too small for the trunk; k > 1 for the stacked network.
  """
  c = config.model
  if c.name not in cfn.NAMES:
    raise ValueError(f"model.name = '{c.name}' is unknown: one of {', '.join(cfn.NAMES)}")
  if config.compute_dtype not in DTYPES:
    raise ValueError(f"compute_dtype = '{config.compute_dtype}': one of {', '.join(DTYPES)}")
  if c.name == 'stacked' and c.permutations_per_pass > 1:
    raise ValueError(
      f'model.permutations_per_pass = {c.permutations_per_pass}: the stacked network sees all '
      'tiles at once, 1 is the only choice'
    )
  alexnet.Initial(c.init, c.order)
  alexnet.check_input_size(config.puzzle.tile_px, c.stride)
  network = cfn.Cfn if c.name == 'cfn' else cfn.Stacked
  return network(
    num_permutations=num_permutations,
    order=c.order,
    init_name=c.init,
    stride=c.stride,
    width=c.width,
    fc6_features=c.fc6_features,
    fc7_features=c.fc7_features,
    dropout=c.dropout,
    dtype=jnp.dtype(config.compute_dtype),
  )


def open_data(config: ml_collections.ConfigDict) -> tuple[sources.Source, sources.Source]:
  """Opens the training and the validation images.

  Raises:
    SourceError: what is wrong, where, and what would be right.
  """
  d = config.data
  return sources.open_sources(
    source=d.source,
    root=d.root,
    split=d.split,
    val_root=d.val_root,
    val_split=d.val_split,
    val_fraction=d.val_fraction,
    crops_per_photograph=d.crops_per_photograph,
    val_crops_per_photograph=d.val_crops_per_photograph,
    cache_dir=d.cache_dir,
    refresh=d.refresh,
  )


@dataclasses.dataclass(frozen=True)
class Pretext:
  """All that a config's pretext task is made of, opened and checked."""

  training: pipeline.Reader
  validation: pipeline.Reader
  permutations: np.ndarray  # uint8 [N, T]
  visits: transform.MakePuzzle
  normalization: Normalization
  model: cfn.Cfn | cfn.Stacked

  def init(self, seed: int) -> dict[str, Any]:
    """Draws the network's parameters on the host."""
    initial = alexnet.Initial(self.model.init_name, self.model.order)
    return alexnet.draw_parameters(self.shapes(), initial, seed=seed)

  def shapes(self) -> Any:
    """Gives the shapes of the parameters."""
    return alexnet.parameter_shapes(self.model, self.input_shape())

  def input_shape(self) -> tuple[int, ...]:
    """Gives the shape of one puzzle's tiles, as a batch of one."""
    geometry = self.visits.geometry
    return (1, geometry.tiles, geometry.tile_px, geometry.tile_px, 3)

  def logits(self, params: Any, batch: tasks.Batch, key: jax.Array | None = None) -> jax.Array:
    """Gives logits `[B, N]`, or `[B, k, N]`, of a batch; with a key, dropout is on."""
    arguments = [self.normalization(batch['tiles'])]
    if self.visits.puzzles > 1:
      arguments.append(jnp.asarray(self.permutations, jnp.int32)[batch['label']])  # [B, k, T]
    rngs = {} if key is None else {'dropout': key}
    logits: Any = self.model.apply({'params': params}, *arguments, train=key is not None, rngs=rngs)
    return logits


def open_pretext(config: ml_collections.ConfigDict) -> Pretext:
  """Opens the data, makes the set and the network; reads no image.

  Raises:
    ValueError: what is wrong in the config or with the data, and what would be right.
  """
  check_numbers(config)
  geometry = transform.make_geometry(config)
  normalization = make_normalization(config)
  permutations = make_permutation_set(config)
  model = make_model(config, len(permutations))
  training, validation = open_data(config)
  if not len(validation):
    raise ValueError(
      'there are no validation images: set data.val_root, or data.val_fraction above '
      f'{config.data.val_fraction}'
    )
  # The decoder may halve a photograph that is larger than the puzzle needs.
  whole = config.puzzle.crop_mode == 'whole'
  read = functools.partial(
    pipeline.Reader,
    seed=config.seed,
    min_side_px=config.puzzle.crop_px if whole else config.puzzle.resize_px,
    on_bad_image=config.data.on_bad_image,
  )
  visits = transform.MakePuzzle(
    geometry=geometry,
    permutations=permutations,
    puzzles=config.model.permutations_per_pass,
    fixed_per_image=config.permutations.fixed_per_image,
    seed=config.seed,
  )
  return Pretext(read(training), read(validation), permutations, visits, normalization, model)


def check_numbers(config: ml_collections.ConfigDict) -> None:
  """Raises ValueError for a number that no run can have, naming its field."""
  positive = (
    'batch_size eval_batch_size num_steps log_every_steps eval_every_steps '
    'checkpoint_every_steps keep_latest learning_rate'
  )
  for name in positive.split():
    if config[name] <= 0:
      raise ValueError(f'{name} = {config[name]}: more than 0')
  if config.seed < 0:
    raise ValueError(f'seed = {config.seed}: 0 or more')


def make_task(config: ml_collections.ConfigDict, pretext: Pretext) -> tasks.Task:
  """Builds what the training loop needs; pictures are the caller's to add."""
  puzzles, group = pretext.visits.puzzles, config.data.puzzles_per_image
  loading = pipeline.Loading(
    num_workers=config.data.num_workers,
    num_threads=config.data.num_threads,
    read_ahead_batches=config.data.read_ahead_batches,
    host=jax.process_index(),
    hosts=jax.process_count(),
  )
  bad_training = bad_images.BadImages(pretext.training)
  bad_validation = bad_images.BadImages(pretext.validation)

  def loss(params: Any, batch: tasks.Batch, key: jax.Array) -> tuple[jax.Array, tasks.Totals]:
    sums = _score(pretext.logits(params, batch, key), batch['label'], jnp.ones(()))
    return sums['loss'] / sums['count'], sums

  def measure(params: Any, batch: tasks.Batch) -> tasks.Totals:
    logits, labels, mask = pretext.logits(params, batch), batch['label'], batch['mask']
    if puzzles == 1:
      logits, labels = logits[:, None], labels[:, None]  # [B, 1, N], [B, 1]
    shares = jnp.mean(jnp.argmax(logits, axis=-1) == labels, axis=1)  # [B], right of each image
    return _score(logits, labels, mask[:, None]) | {
      'images': jnp.sum(mask),
      'shares': jnp.sum(shares * mask),
      'squares': jnp.sum(jnp.square(shares) * mask),
    }

  def train_batches(start: int, stop: int) -> tasks.Batches:
    return pipeline.make_training_batches(
      pretext.training,
      pretext.visits,
      batch_size=config.batch_size,
      start_step=start,
      stop_step=stop,
      group=group,
      loading=loading,
      on_bad=bad_training,
    )

  def validation_batches() -> tasks.Batches:
    return pipeline.make_evaluation_batches(
      pretext.validation,
      pretext.visits,
      batch_size=config.eval_batch_size,
      limit=config.data.val_max_images,
      loading=loading,
      on_bad=bad_validation,
    )

  def record(workdir: pathlib.Path) -> None:
    permutation_sets.save_permutations(workdir / 'permutations.npy', pretext.permutations)
    metrics.write_json(workdir / 'config.json', config.to_dict())
    bad_training.open(workdir)
    bad_validation.open(workdir)

  return tasks.Task(
    name='jigsaw',
    init=pretext.init,
    loss=loss,
    totals=('loss', 'correct', 'count'),
    report=_report_training,
    train_batches=train_batches,
    records=lambda step: pretext.training.names(
      range(step // group * config.batch_size, (step // group + 1) * config.batch_size)
    ),
    evaluations={'val': tasks.Evaluation(validation_batches, measure, _report_validation)},
    best='val_accuracy',
    labels=optimizer.label_parameters,
    examples={'puzzles': config.batch_size * puzzles, 'images': config.batch_size},
    fingerprint=make_fingerprint(config, pretext),
    summary=summarize(config, pretext),
    chance_loss=math.log(len(pretext.permutations)),
    record=record,
    pictures={},
  )


def make_fingerprint(config: ml_collections.ConfigDict, pretext: Pretext) -> dict[str, Any]:
  """Gives what a run may not change: the puzzles that it sees and the network that sees them."""
  return {
    'seed': config.seed,
    'batch_size': config.batch_size,
    'training images': pretext.training.source.fingerprint,
    'validation images': pretext.validation.source.fingerprint,
    'permutation set': permutation_sets.fingerprint(pretext.permutations),
    'permutations.fixed_per_image': config.permutations.fixed_per_image,
    'data.puzzles_per_image': config.data.puzzles_per_image,
    'data.on_bad_image': config.data.on_bad_image,
    **{f'puzzle.{name}': value for name, value in config.puzzle.to_dict().items()},
    **{f'model.{name}': value for name, value in config.model.to_dict().items()},
  }


def summarize(config: ml_collections.ConfigDict, pretext: Pretext) -> list[tuple[str, str]]:
  """Gives the task's rows of the start-up summary."""
  permutations = permutation_sets.summarize(pretext.permutations)
  images, count = len(pretext.training.source), len(pretext.permutations)
  visits = config.num_steps * config.batch_size
  puzzles = pretext.visits.puzzles
  geometry = pretext.visits.geometry
  rows = [
    ('training', pretext.training.source.description),
    ('validation', pretext.validation.source.description),
    (
      'puzzle',
      f'{geometry.grid} x {geometry.grid} tiles of {geometry.tile_px} px in cells of '
      f'{geometry.cell_px} px, crop {geometry.crop_px} px ({geometry.crop_mode}), grey '
      f'{geometry.grey_fraction:.0%}, channel shift {geometry.channel_shift_px} px',
    ),
    (
      'permutations',
      f'{count}, Hamming distance mean {permutations.mean_hamming:.3f} (at most '
      f'{permutations.largest_mean:.3f}), minimum {permutations.min_hamming}',
    ),
    (
      'network',
      f'{config.model.name}, {alexnet.count_parameters(pretext.shapes()):,} parameters, '
      f'{config.compute_dtype}',
    ),
    ('chance', f'accuracy {1 / count:.2%}, loss ln {count} = {math.log(count):.3f}'),
    (
      'run',
      f'{config.num_steps:,} steps of {config.batch_size} images, {visits / images:,.1f} epochs, '
      f'{visits * puzzles / images:,.0f} puzzles an image',
    ),
  ]
  if images < config.batch_size:
    rows.append(
      ('note', f'{images} images fill no batch of {config.batch_size}: some show twice in it')
    )
  return rows


def _score(logits: jax.Array, labels: jax.Array, mask: jax.Array) -> tasks.Totals:
  """Sums cross-entropy, right answers and puzzles where the mask is 1."""
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  correct = jnp.argmax(logits, axis=-1) == labels
  mask = jnp.broadcast_to(mask, losses.shape)
  return {
    'loss': jnp.sum(jnp.where(mask > 0, losses, 0)),
    'correct': jnp.sum(correct * mask),
    'count': jnp.sum(mask),
  }


def _report_training(sums: Mapping[str, float]) -> dict[str, float]:
  return {
    'train_loss': sums['loss'] / sums['count'],
    'train_accuracy': sums['correct'] / sums['count'],
    'learning_rate': sums['learning_rate'],
  }


def _report_validation(sums: Mapping[str, float]) -> dict[str, float]:
  # Puzzles of one image are right or wrong together: the image is the independent unit.
  low, high = metrics.confidence_interval(sums['images'], sums['shares'], sums['squares'])
  return {
    'val_loss': sums['loss'] / sums['count'],
    'val_accuracy': sums['correct'] / sums['count'],
    'val_accuracy_low': low,
    'val_accuracy_high': high,
    'val_count': round(sums['count']),
  }
