"""The pretext tasks for the training loop: questions about the tiles of an image.

Paper, sections 3 and 4: which permutation shuffled the tiles? And its rivals, see questions.py. It
builds the `training/task.py` interface from the parts that pretext.py reads from the config.
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

from cfn_jax import places
from cfn_jax.data import feed
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import puzzle, questions, reports, solving
from cfn_jax.jigsaw.permutation_sets import permutations as permutation_sets
from cfn_jax.pictures import run as run_pictures
from cfn_jax.training import loop, metrics, optimizer, settings, step_folders
from cfn_jax.training import task as tasks


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens the data and builds the task; see `pretexts.open_pretext`.

  Raises:
    ValueError: with the fault, its place and the remedy.
  """
  settings.check(config)
  pretext = pretexts.open_pretext(config)
  return functools.partial(execute, config, pretext, make_task(config, pretext))


def execute(
  config: ml_collections.ConfigDict,
  pretext: pretexts.Pretext,
  task: tasks.Task,
  workdir: pathlib.Path,
) -> dict[str, Any]:
  """Pretrains a network; returns the last figures, empty if the run had finished before."""
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
  """Loads the weights that the config names for step 0; a resumed run does not need them."""
  from cfn_jax.jigsaw import initial  # late: it imports the readers of all formats

  path = config.init_from
  path = path if places.is_address(path) else str(pathlib.Path(path))
  task = dataclasses.replace(task, fingerprint={**task.fingerprint, 'init_from': path})
  if step_folders.find_steps(workdir / 'checkpoints') and not config.start_over:
    return task
  params, loaded = initial.load_initial(path, task.init(config.seed), pretext)
  summary = [*task.summary, ('init_from', f'{path}: {loaded}')]
  return dataclasses.replace(task, init=lambda _: params, summary=summary)


def make_task(config: ml_collections.ConfigDict, pretext: pretexts.Pretext) -> tasks.Task:
  """Builds the task for the training loop."""
  loading, asked, judged = feed.make_loading(config), pretext.questions, pretext.judged()
  training = feed.Feed(
    pretext.training, pretext.transform, loading, config.batch_size, group=pretext.group
  )
  validation = feed.Feed(
    pretext.validation,
    judged.transform,
    loading,
    config.eval_batch_size,
    limit=pretext.val_max_images,
  )

  bits = asked.name == 'jigsaw' and config.eval_bits
  evaluate = make_bits_evaluation if bits else make_evaluation

  def loss(params: Any, batch: tasks.Batch, key: jax.Array) -> tuple[jax.Array, tasks.Totals]:
    answers = pretext.answers(batch['label'])
    sums = _score(pretext.logits(params, batch, key), answers, jnp.ones(()))
    return sums['loss'] / sums['count'], sums

  def write_files(workdir: pathlib.Path) -> None:
    if loading.host == 0:
      if asked.name == 'jigsaw':
        permutation_sets.save_permutations(workdir / 'permutations.npy', asked.rows)
      else:
        places.write_json(workdir / 'questions.json', asked.to_json(), indent=2)
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
    evaluations={'val': evaluate(judged, asked, validation.evaluate)},
    best='val_accuracy',
    labels=optimizer.label_parameters,
    examples={
      asked.plural: config.batch_size * pretext.transform.puzzles,
      'images': config.batch_size,
    },
    fingerprint=make_fingerprint(config, pretext),
    summary=reports.summarize(config, pretext),
    chance_loss=asked.chance_loss,
    chance_advice=reports.advise(config, asked),
    write_files=write_files,
    pictures=run_pictures.make_pictures(pretext),
    pairs=config.puzzle.occluders > 0,
    end_pictures=run_pictures.END,
    meta={'network': pretext.describe()},
  )


def make_evaluation(
  judged: pretexts.Pretext, asked: questions.Questions, batches: Callable[[], tasks.Batches]
) -> tasks.Evaluation:
  """Builds the pass over the validation images: `val_...`, for the questions of training.

  If validation asks more, `val_all_pairs_...` are the figures of all questions.
  """
  subsets = {'val': judged.questions.find(asked)}
  if not np.all(subsets['val']):
    subsets['val_all_pairs'] = np.ones(len(judged.questions), bool)

  def measure(params: Any, batch: tasks.Batch) -> tasks.Totals:
    logits, answers, label = _predict(judged, params, batch)
    correct = jnp.argmax(logits, axis=-1) == answers
    sums: tasks.Totals = {}
    for name, chosen in subsets.items():
      mask = jnp.asarray(chosen)[label] * batch['mask'][:, None]  # [B, k]
      shares = jnp.sum(correct * mask, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1)
      own = _score(logits, answers, mask) | {
        'images': jnp.sum(batch['mask']),
        'shares': jnp.sum(shares),  # right of each image
        'squares': jnp.sum(jnp.square(shares)),
      }
      sums |= {f'{name}_{what}': value for what, value in own.items()}
    return sums

  def report(sums: Mapping[str, float]) -> dict[str, float]:
    return {
      figure: value for name in subsets for figure, value in _report_validation(name, sums).items()
    }

  return tasks.Evaluation(batches, measure, report)


def make_bits_evaluation(
  judged: pretexts.Pretext, asked: questions.Questions, batches: Callable[[], tasks.Batches]
) -> tasks.RowEvaluation:
  """Builds the pass that also reports bits and the share of right tiles of jigsaws."""

  def measure(params: Any, batch: tasks.Batch) -> tasks.Totals:
    logits, answers, _ = _predict(judged, params, batch)
    cells = solving.make_positions(asked.rows)  # [N, T, T]
    chances = jax.nn.softmax(logits[..., : len(cells)])
    return {
      'label': answers,
      'loss': optax.softmax_cross_entropy_with_integer_labels(logits, answers),
      'correct': jnp.argmax(logits, axis=-1) == answers,
      'positions': jnp.einsum('bkn,nij->bkij', chances, cells),
    }

  return tasks.RowEvaluation(batches, measure, functools.partial(_report_rows, asked.rows))


def _predict(
  judged: pretexts.Pretext, params: Any, batch: tasks.Batch
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Returns logits `[B, k, K]`, and the answers and numbers `[B, k]` of the questions."""
  logits, label = judged.logits(params, batch), batch['label']
  if judged.transform.puzzles == 1:
    logits, label = logits[:, None], label[:, None]
  return logits, judged.answers(label), label


def make_fingerprint(
  config: ml_collections.ConfigDict, pretext: pretexts.Pretext
) -> dict[str, Any]:
  """Returns the fingerprint of a run: its questions and its network."""
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
  """Sums cross-entropy, right answers and questions over rows with mask 1."""
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  correct = jnp.argmax(logits, axis=-1) == labels
  mask = jnp.broadcast_to(mask, losses.shape)
  return {
    'loss': jnp.sum(jnp.where(mask > 0, losses, 0)),
    'correct': jnp.sum(correct * mask),
    'count': jnp.sum(mask),
  }


def _report_validation(name: str, sums: Mapping[str, float]) -> dict[str, float]:
  # Questions of one image are correlated: the image is the independent unit.
  images, *sums_of_images = (sums[f'{name}_{what}'] for what in ('images', 'shares', 'squares'))
  metrics.check_seen(images, 'validation')
  low, high = metrics.confidence_interval(images, *sums_of_images)
  count = sums[f'{name}_count']
  return {
    f'{name}_loss': sums[f'{name}_loss'] / count,
    f'{name}_accuracy': sums[f'{name}_correct'] / count,
    f'{name}_accuracy_low': low,
    f'{name}_accuracy_high': high,
    f'{name}_count': round(count),
  }


def _report_rows(permutations: np.ndarray, rows: Mapping[str, np.ndarray]) -> dict[str, float]:
  """Returns the same figures of rows `[images, k]`, with bits and the share of right tiles."""
  shares = rows['correct'].mean(axis=1)
  figures = _report_validation(
    'val',
    {
      'val_loss': float(np.sum(rows['loss'], dtype=np.float64)),
      'val_correct': float(np.sum(rows['correct'])),
      'val_count': float(rows['correct'].size),
      'val_images': float(len(shares)),
      'val_shares': float(np.sum(shares)),
      'val_squares': float(np.sum(np.square(shares))),
    },
  )
  positions = rows['positions'].reshape(-1, *rows['positions'].shape[2:])
  tiles = math.nan
  if np.all(np.isfinite(positions)):
    tiles, _ = solving.score_tiles(positions, permutations[rows['label'].reshape(-1)])
  bits = solving.count_bits(len(permutations), figures['val_loss'])
  return figures | {'val_bits': bits, 'val_tile_accuracy': tiles}
