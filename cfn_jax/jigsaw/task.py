"""The pretext task: which permutation shuffled the tiles? Handed to the one training loop.

Paper, sections 3 and 4. Closes over what pretext.py reads from the config, and hands the loop what
`training/task.py` asks for.
"""

import dataclasses
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

from cfn_jax import terminal
from cfn_jax.data import feed
from cfn_jax.jigsaw import permutations as permutation_sets
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import puzzle, solving
from cfn_jax.models import alexnet
from cfn_jax.pictures import run as run_pictures
from cfn_jax.training import loop, metrics, optimizer, step_folders
from cfn_jax.training import task as tasks


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens the data and builds the task; see `pretexts.open_pretext`.

  Raises:
    ValueError: what is wrong, where, and what would be right.
  """
  pretext = pretexts.open_pretext(config)
  loop.check(config)
  return functools.partial(execute, config, pretext)


def execute(
  config: ml_collections.ConfigDict, pretext: pretexts.Pretext, workdir: pathlib.Path
) -> dict[str, Any]:
  """Pretrains a network; returns the last figures, empty where the run had finished before."""
  task = make_task(config, pretext)
  if config.init_from:
    task = start_from(config, pretext, task, workdir)
  figures = loop.run(task, config, workdir)
  if not jax.process_index():
    say_closing(figures, workdir)
  return figures


def start_from(
  config: ml_collections.ConfigDict,
  pretext: pretexts.Pretext,
  task: tasks.Task,
  workdir: pathlib.Path,
) -> tasks.Task:
  """Lets step 0 take the weights that the config names; a resumed run needs them no more."""
  from cfn_jax.jigsaw import initial  # brings in the readers of all formats

  path = str(pathlib.Path(config.init_from))
  task = dataclasses.replace(task, fingerprint={**task.fingerprint, 'init_from': path})
  if step_folders.find_steps(workdir / 'checkpoints') and not config.start_over:
    return task
  params, loaded = initial.load_initial(path, task.init(config.seed), pretext)
  summary = [*task.summary, ('init_from', f'{path}: {loaded}')]
  return dataclasses.replace(task, init=lambda _: params, summary=summary)


def say_closing(figures: Mapping[str, Any], workdir: pathlib.Path) -> None:
  """Prints the figures with which a run ended, and those of its best evaluation."""
  rows = [row for row in metrics.read_rows(workdir / 'metrics.jsonl') if 'val_accuracy' in row]
  if not figures:
    terminal.say(f'{workdir}: the run is finished; more steps continue it')
  if not rows or 'train_loss' not in figures:
    return
  best = max(rows, key=lambda row: row['val_accuracy'])
  for name, row in (('finished', figures), ('best', best)):
    low, high = row['val_accuracy_low'], row['val_accuracy_high']
    terminal.say(
      f'{name} at step {row["step"]:,}: validation accuracy {row["val_accuracy"]:.2%} (95 % '
      f'interval {low:.2%} to {high:.2%}), loss {row["val_loss"]:.3f}, {row["val_count"]:,} puzzles'
    )
  terminal.say(f'training loss {figures["train_loss"]:.3f}; everything is in {workdir}')


def make_task(config: ml_collections.ConfigDict, pretext: pretexts.Pretext) -> tasks.Task:
  """Builds what the training loop needs."""
  chance, loading = math.log(len(pretext.permutations)), feed.make_loading(config)
  training = feed.Feed(
    pretext.training, pretext.visits, loading, config.batch_size, group=pretext.group
  )
  validation = feed.Feed(
    pretext.validation,
    pretext.visits,
    loading,
    config.eval_batch_size,
    limit=pretext.val_max_images,
  )

  def loss(params: Any, batch: tasks.Batch, key: jax.Array) -> tuple[jax.Array, tasks.Totals]:
    sums = _score(pretext.logits(params, batch, key), batch['label'], jnp.ones(()))
    return sums['loss'] / sums['count'], sums

  def record(workdir: pathlib.Path) -> None:
    if loading.host == 0:
      permutation_sets.save_permutations(workdir / 'permutations.npy', pretext.permutations)
      metrics.write_json(workdir / 'config.json', config.to_dict())
    training.bad.open(workdir)
    validation.bad.open(workdir)

  return tasks.Task(
    name='jigsaw',
    init=pretext.init,
    loss=loss,
    totals=('loss', 'correct', 'count'),
    report=metrics.report_training,
    train_batches=training.train,
    records=training.names,
    evaluations={'val': make_evaluation(pretext, validation.evaluate, bits=config.eval_bits)},
    best='val_accuracy',
    labels=optimizer.label_parameters,
    examples={'puzzles': config.batch_size * pretext.visits.puzzles, 'images': config.batch_size},
    fingerprint=make_fingerprint(config, pretext),
    summary=summarize(config, pretext),
    chance_loss=chance,
    record=record,
    pictures=run_pictures.make_pictures(pretext, chance_loss=chance),
    end_pictures=run_pictures.END,
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
