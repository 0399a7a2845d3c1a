"""The pretext task: which permutation shuffled the tiles? Handed to the one training loop.

Paper, sections 3 and 4. Closes over what pretext.py reads from the config, and hands the loop what
`training/task.py` asks for.
"""

import functools
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from cfn_jax.data import bad_images, pipeline
from cfn_jax.jigsaw import permutations as permutation_sets
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import puzzle, solving
from cfn_jax.models import alexnet
from cfn_jax.training import metrics, optimizer
from cfn_jax.training import task as tasks


def make_task(config: ml_collections.ConfigDict, pretext: pretexts.Pretext) -> tasks.Task:
  """Builds what the training loop needs; pictures are the caller's to add."""
  puzzles, group = pretext.visits.puzzles, config.data.puzzles_per_image
  loading = pretexts.make_loading(config)
  bad_training = bad_images.BadImages(pretext.training, host=loading.host)
  bad_validation = bad_images.BadImages(pretext.validation, host=loading.host)

  def loss(params: Any, batch: tasks.Batch, key: jax.Array) -> tuple[jax.Array, tasks.Totals]:
    sums = _score(pretext.logits(params, batch, key), batch['label'], jnp.ones(()))
    return sums['loss'] / sums['count'], sums

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
    if loading.host == 0:
      permutation_sets.save_permutations(workdir / 'permutations.npy', pretext.permutations)
      metrics.write_json(workdir / 'config.json', config.to_dict())
    bad_training.open(workdir)
    bad_validation.open(workdir)

  return tasks.Task(
    name='jigsaw',
    init=pretext.init,
    loss=loss,
    totals=('loss', 'correct', 'count'),
    report=metrics.report_training,
    train_batches=train_batches,
    records=lambda step: pretext.training.names(
      range(step // group * config.batch_size, (step // group + 1) * config.batch_size)
    ),
    evaluations={'val': make_evaluation(pretext, validation_batches, bits=config.eval_bits)},
    best='val_accuracy',
    labels=optimizer.label_parameters,
    examples={'puzzles': config.batch_size * puzzles, 'images': config.batch_size},
    fingerprint=make_fingerprint(config, pretext),
    summary=summarize(config, pretext),
    chance_loss=math.log(len(pretext.permutations)),
    record=record,
    pictures={},
    meta={'network': pretext.describe()},
  )


def make_evaluation(
  pretext: pretexts.Pretext, batches: Callable[[], tasks.Batches], *, bits: bool
) -> tasks.Evaluation | tasks.RowEvaluation:
  """Builds the pass over the validation puzzles; `bits`: with bits and single tiles too."""

  def predict(params: Any, batch: tasks.Batch) -> tuple[jax.Array, jax.Array]:
    logits, labels = pretext.logits(params, batch), batch['label']
    if pretext.visits.puzzles == 1:
      return logits[:, None], labels[:, None]
    return logits, labels  # [B, k, N], [B, k]

  def measure(params: Any, batch: tasks.Batch) -> tasks.Totals:
    (logits, labels), mask = predict(params, batch), batch['mask']
    shares = jnp.mean(jnp.argmax(logits, axis=-1) == labels, axis=1)  # [B], right of each image
    return _score(logits, labels, mask[:, None]) | {
      'images': jnp.sum(mask),
      'shares': jnp.sum(shares * mask),
      'squares': jnp.sum(jnp.square(shares) * mask),
    }

  def measure_rows(params: Any, batch: tasks.Batch) -> tasks.Totals:
    logits, labels = predict(params, batch)
    cells = solving.make_positions(pretext.permutations)  # [N, T, T]
    chances = jax.nn.softmax(logits[..., : len(cells)])
    return {
      'label': labels,
      'loss': optax.softmax_cross_entropy_with_integer_labels(logits, labels),
      'correct': jnp.argmax(logits, axis=-1) == labels,
      'positions': jnp.einsum('bkn,nij->bkij', chances, cells),
    }

  if not bits:
    return tasks.Evaluation(batches, measure, _report_validation)
  report = functools.partial(_report_rows, pretext.permutations)
  return tasks.RowEvaluation(batches, measure_rows, report)


def make_fingerprint(
  config: ml_collections.ConfigDict, pretext: pretexts.Pretext
) -> dict[str, Any]:
  """Returns what a run may not change: the puzzles that it sees and the network that sees them."""
  return {
    'seed': config.seed,
    'batch_size': config.batch_size,
    'training images': pretext.training.source.fingerprint,
    'validation images': pretext.validation.source.fingerprint,
    'permutation set': permutation_sets.fingerprint(pretext.permutations),
    'permutations.fixed_per_image': config.permutations.fixed_per_image,
    'puzzle rules': puzzle.RULES,
    'data.puzzles_per_image': config.data.puzzles_per_image,
    'data.on_bad_image': config.data.on_bad_image,
    **{f'puzzle.{name}': value for name, value in config.puzzle.to_dict().items()},
    **{f'model.{name}': value for name, value in config.model.to_dict().items()},
  }


def summarize(
  config: ml_collections.ConfigDict, pretext: pretexts.Pretext
) -> list[tuple[str, str]]:
  """Returns the task's rows of the start-up summary."""
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
      f'{geometry.grey_fraction:.0%}, channel shift {geometry.largest_shift_px} px',
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


def _report_rows(permutations: np.ndarray, rows: Mapping[str, np.ndarray]) -> dict[str, float]:
  """Returns the same figures of rows `[images, k]`, and bits and the share of tiles put right."""
  shares = rows['correct'].mean(axis=1)
  figures = _report_validation(
    {
      'loss': float(np.sum(rows['loss'], dtype=np.float64)),
      'correct': float(np.sum(rows['correct'])),
      'count': float(rows['correct'].size),
      'images': float(len(shares)),
      'shares': float(np.sum(shares)),
      'squares': float(np.sum(np.square(shares))),
    }
  )
  positions = rows['positions'].reshape(-1, *rows['positions'].shape[2:])
  tiles = math.nan
  if np.all(np.isfinite(positions)):
    tiles, _ = solving.score_tiles(positions, permutations[rows['label'].reshape(-1)])
  bits = solving.count_bits(len(permutations), figures['val_loss'])
  return figures | {'val_bits': bits, 'val_tile_accuracy': tiles}
