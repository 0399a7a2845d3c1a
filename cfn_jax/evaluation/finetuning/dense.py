"""The run of a task on whole images, for the training loop: detection, segmentation.

Their rooms define the network, the batches and the figures; here they become a run. Images of all
sizes share a few canvases (data/canvases.py).
"""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import ml_collections

from cfn_jax import places
from cfn_jax.data import canvases, feed
from cfn_jax.evaluation import identity, runs
from cfn_jax.models import alexnet
from cfn_jax.training import task as tasks

LEFT_OUT = 'left_out.txt'
Measure = Callable[[Any, tasks.Batch], tasks.Totals]


class Feeds(NamedTuple):
  """The feeds of a run: training, the test images during training, and those at the end."""

  training: feed.Feed
  watched: feed.Feed
  final: feed.Feed


def make_feeds(
  config: ml_collections.ConfigDict,
  training: feed.Feed,
  make_pass: Callable[[int], feed.Feed],
  count: int,
) -> Feeds:
  """Builds the passes of a test of `count` images; `make_pass` gets the limit of one."""
  shown = min(config.data.val_max_images or count, count)
  return Feeds(training, make_pass(min(config.test.watched_images, shown)), make_pass(shown))


def make_run(
  config: ml_collections.ConfigDict,
  made: Any,
  name: str,
  feeds: Feeds,
  *,
  label: str,
  judge: Any,
  watch: Measure,
  measure: Measure,
  told: list[tuple[str, str]],
  notes: list[str],
  fingerprint: Mapping[str, Any],
  settings: Mapping[str, Any],
  **fields: Any,
) -> runs.Run:
  """Builds the run that trains a network and scores it on the test images.

  Args:
    made: a `start.Start` with a `loss`.
    label: the name of the weights.
    judge: has `watch` and `report`, for the rows of `watch` and of `measure`.
    watch, measure: compiled; the rows of a pass during training, and of the one at the end.
    told: description of the data, for the start-up summary.
    notes: a sentence about each omission from the data.
    fingerprint: identifies the data.
    settings: see `runs.Run`.
    fields: the other fields of the task.
  """
  made.check()

  def write_files(workdir: pathlib.Path) -> None:
    if notes and not jax.process_index():
      with places.replacing(workdir / LEFT_OUT) as path:
        path.write_text('\n'.join([*notes, '']), encoding='utf-8')

  names = list(made.class_names)
  task = tasks.Task(
    name=config.task,
    init=made.init,
    loss=made.loss,
    train_batches=feeds.training.train,
    records=feeds.training.names,
    evaluations={'val': tasks.RowEvaluation(feeds.watched.evaluate, watch, judge.watch)},
    fingerprint={
      **identity.describe_training(config),
      **made.identify(),
      **fingerprint,
      'classes': names,
    },
    summary=[('run', made.summarize(label)), *told, *_summarize(made, feeds, len(notes))],
    write_files=write_files,
    pictures={},
    meta={'network': made.describe(), 'class_names': names},
    **fields,
  )
  final = tasks.RowEvaluation(feeds.final.evaluate, measure, judge.watch)
  settings = {'test images shown': feeds.final.limit, **settings}
  return runs.Run(name, task, {'': final}, settings, report=judge.report)


def _summarize(made: Any, feeds: Feeds, notes: int) -> list[tuple[str, str]]:
  """Returns the rows of the start-up summary about canvases, network and omissions."""
  training, test = (_tell_canvases(each) for each in (feeds.training, feeds.final))
  parameters = alexnet.count_parameters(made.shapes())
  return [
    ('canvases', f'training {training}; test {test}; a program for each'),
    ('network', f'{parameters:,} parameters, {len(made.class_names)} classes'),
    *([('left out', f'{notes:,} boxes, masks or images, see {LEFT_OUT}')] if notes else []),
  ]


def _tell_canvases(fed: feed.Feed) -> str:
  """Returns the number of canvases of a feed, and their heights and widths, as text."""
  frames: canvases.TrainingFrames | canvases.TestFrames = fed.transform.frames  # type: ignore[attr-defined]
  return canvases.tell(frames.canvases)
