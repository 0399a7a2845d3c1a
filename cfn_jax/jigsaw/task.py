"""The pretext tasks, handed to the one training loop: questions about the tiles of an image.

Paper, sections 3 and 4: which permutation shuffled the tiles? And its rivals, see questions.py.
Closes over what pretext.py reads from the config, and hands the loop what `training/task.py` asks
for.
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

from cfn_jax.data import feed
from cfn_jax.jigsaw import permutations as permutation_sets
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import puzzle, reports, solving
from cfn_jax.pictures import run as run_pictures
from cfn_jax.training import loop, metrics, optimizer, step_folders
from cfn_jax.training import task as tasks


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens the data and builds the task; see `pretexts.open_pretext`.

  Raises:
    ValueError: what is wrong, where, and what would be right.
  """
  loop.check(config)
  return functools.partial(execute, config, pretexts.open_pretext(config))


def execute(
  config: ml_collections.ConfigDict, pretext: pretexts.Pretext, workdir: pathlib.Path
) -> dict[str, Any]:
  """Pretrains a network; returns the last figures, empty where the run had finished before."""
  task = make_task(config, pretext)
  if config.init_from:
    task = start_from(config, pretext, task, workdir)
  figures = loop.run(task, config, workdir)
  if not jax.process_index():
    reports.say_closing(figures, workdir, pretext.questions.plural)
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


def make_task(config: ml_collections.ConfigDict, pretext: pretexts.Pretext) -> tasks.Task:
  """Builds what the training loop needs."""
  loading, asked = feed.make_loading(config), pretext.questions
  training = feed.Feed(
    pretext.training, pretext.visits, loading, config.batch_size, group=pretext.group
  )
  validation = feed.Feed(
    pretext.validation,
    dataclasses.replace(pretext.visits, occluders=0),
    loading,
    config.eval_batch_size,
    limit=pretext.val_max_images,
  )

  evaluations = {
    'val': make_evaluation(
      pretext, validation.evaluate, bits=asked.name == 'jigsaw' and config.eval_bits
    )
  }
  if every := pretext.ask_all_pairs():
    seen = dataclasses.replace(validation, transform=every.visits)
    evaluations['all_pairs'] = make_evaluation(every, seen.evaluate, name='val_all_pairs')

  def loss(params: Any, batch: tasks.Batch, key: jax.Array) -> tuple[jax.Array, tasks.Totals]:
    answers = pretext.answers(batch['label'])
    sums = _score(pretext.logits(params, batch, key), answers, jnp.ones(()))
    return sums['loss'] / sums['count'], sums

  def record(workdir: pathlib.Path) -> None:
    if loading.host == 0:
      if asked.name == 'jigsaw':
        permutation_sets.save_permutations(workdir / 'permutations.npy', asked.rows)
      else:
        metrics.write_json(workdir / 'questions.json', asked.to_json())
      metrics.write_json(workdir / 'config.json', config.to_dict())
    training.bad.open(workdir)
    validation.bad.open(workdir)

  return tasks.Task(
    name=asked.name,
    init=pretext.init,
    loss=loss,
    totals=('loss', 'correct', 'count'),
    report=metrics.report_training,
    train_batches=training.train,
    records=training.names,
    evaluations=evaluations,
    best='val_accuracy',
    labels=optimizer.label_parameters,
    examples={
      asked.plural: config.batch_size * pretext.visits.puzzles,
      'images': config.batch_size,
    },
    fingerprint=make_fingerprint(config, pretext),
    summary=reports.summarize(config, pretext),
    chance_loss=asked.chance_loss,
    record=record,
    pictures=run_pictures.make_pictures(pretext),
    pairs=config.puzzle.occluders > 0,
    end_pictures=run_pictures.END,
    meta={'network': pretext.describe()},
  )


def make_evaluation(
  pretext: pretexts.Pretext,
  batches: Callable[[], tasks.Batches],
  *,
  bits: bool = False,
  name: str = 'val',
) -> tasks.Evaluation | tasks.RowEvaluation:
  """Builds the pass over the validation images.

  Args:
    bits: of jigsaws, with bits and single tiles too.
    name: begins the figures' names.
  """

  def predict(params: Any, batch: tasks.Batch) -> tuple[jax.Array, jax.Array]:
    logits, answers = pretext.logits(params, batch), pretext.answers(batch['label'])
    if pretext.visits.puzzles == 1:
      return logits[:, None], answers[:, None]
    return logits, answers  # [B, k, K], [B, k]

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
    cells = solving.make_positions(pretext.questions.rows)  # [N, T, T]
    chances = jax.nn.softmax(logits[..., : len(cells)])
    return {
      'label': labels,
      'loss': optax.softmax_cross_entropy_with_integer_labels(logits, labels),
      'correct': jnp.argmax(logits, axis=-1) == labels,
      'positions': jnp.einsum('bkn,nij->bkij', chances, cells),
    }

  if not bits:
    return tasks.Evaluation(batches, measure, functools.partial(_report_validation, name))
  report = functools.partial(_report_rows, pretext.questions.rows)
  return tasks.RowEvaluation(batches, measure_rows, report)


def make_fingerprint(
  config: ml_collections.ConfigDict, pretext: pretexts.Pretext
) -> dict[str, Any]:
  """Returns what a run may not change: the questions that it asks and the network that answers."""
  asked = pretext.questions
  own = (
    {
      'permutation set': permutation_sets.fingerprint(asked.rows),
      'permutations.fixed_per_image': config.permutations.fixed_per_image,
    }
    if asked.name == 'jigsaw'
    else {'questions': asked.fingerprint}
  )
  return {
    'task': asked.name,
    **own,
    'seed': config.seed,
    'batch_size': config.batch_size,
    'training images': pretext.training.source.fingerprint,
    'validation images': pretext.validation.source.fingerprint,
    'puzzle rules': puzzle.RULES,
    'data.puzzles_per_image': config.data.puzzles_per_image,
    'data.on_bad_image': config.data.on_bad_image,
    **{f'puzzle.{name}': value for name, value in config.puzzle.to_dict().items()},
    **{f'model.{name}': value for name, value in config.model.to_dict().items()},
  }


def _score(logits: jax.Array, labels: jax.Array, mask: jax.Array) -> tasks.Totals:
  """Sums cross-entropy, right answers and questions where the mask is 1."""
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  correct = jnp.argmax(logits, axis=-1) == labels
  mask = jnp.broadcast_to(mask, losses.shape)
  return {
    'loss': jnp.sum(jnp.where(mask > 0, losses, 0)),
    'correct': jnp.sum(correct * mask),
    'count': jnp.sum(mask),
  }


def _report_validation(name: str, sums: Mapping[str, float]) -> dict[str, float]:
  # Questions of one image are right or wrong together: the image is the independent unit.
  low, high = metrics.confidence_interval(sums['images'], sums['shares'], sums['squares'])
  return {
    f'{name}_loss': sums['loss'] / sums['count'],
    f'{name}_accuracy': sums['correct'] / sums['count'],
    f'{name}_accuracy_low': low,
    f'{name}_accuracy_high': high,
    f'{name}_count': round(sums['count']),
  }


def _report_rows(permutations: np.ndarray, rows: Mapping[str, np.ndarray]) -> dict[str, float]:
  """Returns the same figures of rows `[images, k]`, and bits and the share of tiles put right."""
  shares = rows['correct'].mean(axis=1)
  figures = _report_validation(
    'val',
    {
      'loss': float(np.sum(rows['loss'], dtype=np.float64)),
      'correct': float(np.sum(rows['correct'])),
      'count': float(rows['correct'].size),
      'images': float(len(shares)),
      'shares': float(np.sum(shares)),
      'squares': float(np.sum(np.square(shares))),
    },
  )
  positions = rows['positions'].reshape(-1, *rows['positions'].shape[2:])
  tiles = math.nan
  if np.all(np.isfinite(positions)):
    tiles, _ = solving.score_tiles(positions, permutations[rows['label'].reshape(-1)])
  bits = solving.count_bits(len(permutations), figures['val_loss'])
  return figures | {'val_bits': bits, 'val_tile_accuracy': tiles}
