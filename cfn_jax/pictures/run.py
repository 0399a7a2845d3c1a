"""The pictures that a pretraining run leaves in its workdir."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from cfn_jax.data import pipeline, streams
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import puzzle
from cfn_jax.models import cfn
from cfn_jax.pictures import figures, puzzles
from cfn_jax.training import metrics

SHOWN_PUZZLES = 8
SHOWN_ANSWERS = 16
END = ('curves.png', 'answers.png')


def make_pictures(
  pretext: pretexts.Pretext, *, chance_loss: float
) -> dict[str, Callable[..., None]]:
  """Returns the pictures of a task by their moment: 'start', 'end' and 'bad_batch'."""

  def start(workdir: pathlib.Path) -> None:
    path = workdir / 'puzzles.png'
    with figures.spared(path):
      draw_training_puzzles(path, pretext)

  def end(workdir: pathlib.Path, params: Any, step: int) -> None:
    with figures.spared(workdir / END[0]):
      rows = metrics.read_rows(workdir / 'metrics.jsonl')
      puzzles.draw_curves(workdir / END[0], rows, chance_loss=chance_loss)
    with figures.spared(workdir / END[1]):
      shown = sample_validation_puzzles(pretext, SHOWN_ANSWERS)
      tiles = np.stack([one.tiles for one in shown])
      predict = jax.jit(
        lambda params, x: cfn.predict(pretext.model, params, pretext.input.prepare(x))
      )
      answers = np.asarray(predict(params, tiles))[:, : len(pretext.permutations)]
      title = f'validation puzzles and the answers of step {step}, the best'
      puzzles.draw_answers(workdir / END[1], shown, pretext.permutations, answers, title=title)

  def bad_batch(workdir: pathlib.Path, batch: pipeline.Batch) -> None:
    path = workdir / 'bad_batch.png'
    with figures.spared(path):
      shown = []
      for row, (tiles, labels) in enumerate(zip(batch['tiles'], batch['label'])):
        label = int(np.ravel(labels)[0])
        in_order, shuffled = _both_ways(tiles, label, pretext)
        shown.append(puzzles.Shown(shuffled, label, puzzles.lay_out(in_order), f'row {row}'))
      puzzles.draw_puzzles(path, shown[:64], pretext.permutations)

  return {'start': start, 'end': end, 'bad_batch': bad_batch}


def draw_training_puzzles(path: pathlib.Path, pretext: pretexts.Pretext) -> None:
  """Draws the first puzzles of a run."""
  count = min(SHOWN_PUZZLES, len(pretext.training.source))
  visits = [pretext.training.train(position) for position in range(count)]
  puzzles.draw_puzzles(path, _show(visits, pretext, group=pretext.group), pretext.permutations)


def sample_validation_puzzles(pretext: pretexts.Pretext, count: int) -> list[puzzles.Shown]:
  """Returns `count` puzzles of the evaluation, spread evenly over the validation images."""
  records = streams.choose_records(pretext.validation.source, pretext.val_max_images)
  chosen = records[np.unique(np.linspace(0, len(records) - 1, count).astype(int))]
  return _show([pretext.validation.evaluate(int(record)) for record in chosen], pretext)


def _show(
  visits: Sequence[pipeline.Visit], pretext: pretexts.Pretext, *, group: int = 1
) -> list[puzzles.Shown]:
  shown = []
  for visit in visits:
    made = pretext.visits.first_of_group(visit, group)
    label = int(made.labels[0])
    _, shuffled = _both_ways(made.tiles, label, pretext)
    shown.append(puzzles.Shown(shuffled, label, made.crop, visit.name))
  return shown


def _both_ways(
  tiles: np.ndarray, label: int, pretext: pretexts.Pretext
) -> tuple[np.ndarray, np.ndarray]:
  """Returns an example's tiles in reading order, and shuffled by the permutation of a label."""
  permutation = pretext.permutations[label]
  if pretext.visits.puzzles > 1:  # the network permutes the features itself
    return tiles, tiles[permutation]
  return puzzle.unshuffle(tiles, permutation), tiles
