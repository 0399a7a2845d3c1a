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
from cfn_jax.pictures import curves, figures, filters, puzzles
from cfn_jax.training import metrics

SHOWN_PUZZLES = 8
SHOWN_ANSWERS = 16
END = ('curves.png', 'answers.png', 'filters.png')


def make_pictures(pretext: pretexts.Pretext) -> dict[str, Callable[..., None]]:
  """Returns the pictures of a task by their moment: 'start', 'end' and 'bad_batch'."""

  asked, judged = pretext.questions, pretext.judged()

  def start(workdir: pathlib.Path) -> None:
    path = workdir / 'puzzles.png'
    with figures.spared(path):
      draw_training_puzzles(path, pretext)

  def end(workdir: pathlib.Path, params: Any, step: int) -> None:
    with figures.spared(workdir / END[0]):
      rows = metrics.read_rows(workdir / 'metrics.jsonl')
      chances = {'loss': asked.chance_loss, 'accuracy': asked.chance_accuracy}
      curves.draw_curves(workdir / END[0], rows, chances)
    with figures.spared(workdir / END[1]):
      shown = sample_validation_puzzles(judged, SHOWN_ANSWERS)
      tiles = np.stack([one.tiles for one in shown])
      predict = jax.jit(
        lambda params, x: cfn.predict(pretext.model, params, pretext.input.prepare(x))
      )
      answers = np.asarray(predict(params, tiles))[:, : asked.classes]
      title = f'validation {asked.plural} and the answers of step {step}, the best'
      puzzles.draw_answers(workdir / END[1], shown, judged.questions, answers, title=title)
    with figures.spared(workdir / END[2]):
      filters.draw_run(workdir / END[2], params, pretext.input, pretext.model.trunk, step)

  def bad_batch(workdir: pathlib.Path, batch: pipeline.Batch) -> None:
    path = workdir / 'bad_batch.png'
    with figures.spared(path):
      shown = []
      for row, (tiles, labels) in enumerate(zip(batch['tiles'], batch['label'])):
        label = int(np.ravel(labels)[0])
        in_order = tiles
        if pretext.transform.puzzles == 1 and asked.name == 'jigsaw':
          in_order = puzzle.unshuffle(tiles, asked.rows[label])
        whole = puzzles.lay_out(in_order)
        shown.append(puzzles.Shown(_take(tiles, label, pretext), label, whole, f'row {row}'))
      puzzles.draw_puzzles(path, shown[:64], asked)

  return {'start': start, 'end': end, 'bad_batch': bad_batch}


def draw_training_puzzles(path: pathlib.Path, pretext: pretexts.Pretext) -> None:
  """Draws the first puzzles of a run."""
  count = min(SHOWN_PUZZLES, len(pretext.training.source))
  visits = [pretext.training.train(position) for position in range(count)]
  note = 'tiles that occluders replace are not shown' if pretext.transform.occluders else ''
  shown = _show(visits, pretext, group=pretext.group)
  puzzles.draw_puzzles(path, shown, pretext.questions, note=note)


def sample_validation_puzzles(judged: pretexts.Pretext, count: int) -> list[puzzles.Shown]:
  """Returns `count` puzzles of the evaluation, spread evenly over the validation images."""
  records = streams.choose_records(judged.validation.source, judged.val_max_images)
  chosen = records[np.unique(np.linspace(0, len(records) - 1, count).astype(int))]
  return _show([judged.validation.evaluate(int(record)) for record in chosen], judged)


def _show(
  visits: Sequence[pipeline.Visit], pretext: pretexts.Pretext, *, group: int = 1
) -> list[puzzles.Shown]:
  shown = []
  for visit in visits:
    made = pretext.transform.first_of_group(visit, group)
    label = int(made.labels[0])
    tiles = _take(made.tiles, label, pretext)
    shown.append(puzzles.Shown(tiles, label, made.crop, visit.name))
  return shown


def _take(tiles: np.ndarray, label: int, pretext: pretexts.Pretext) -> np.ndarray:
  """Returns the tiles of an example's question; for k > 1 the network selects them itself."""
  return tiles[pretext.questions.rows[label]] if pretext.transform.puzzles > 1 else tiles
