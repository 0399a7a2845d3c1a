"""The run of a segmentation: its task for the loop, and its passes over test images.

Between the network (segmenter.py) and the figures (judge.py).
"""

import dataclasses
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from cfn_jax import places
from cfn_jax.data import canvases, feed, pipeline, streams, voc_masks
from cfn_jax.evaluation import identity, runs
from cfn_jax.evaluation.segmentation import judge, transform
from cfn_jax.evaluation.segmentation import segmenter as segmenters
from cfn_jax.models import alexnet
from cfn_jax.training import metrics
from cfn_jax.training import task as tasks

LEFT_OUT = 'left_out.txt'


@dataclasses.dataclass(frozen=True)
class Opened:
  """The two splits of a segmentation, of the same classes: images with their masks."""

  training: voc_masks.Split
  testing: voc_masks.Split
  class_names: tuple[str, ...]


def make_run(
  config: ml_collections.ConfigDict,
  segmenter: segmenters.Segmenter,
  data: Opened,
  name: str,
  *,
  summary: str,
) -> runs.Run:
  """Builds the run that trains a segmenter and scores it on the test images."""
  segmenter.check()
  training, testing = make_training(config, data.training), data.testing
  count = len(testing.source)
  shown = min(config.data.val_max_images or count, count)
  final = make_pass(config, testing, limit=shown)
  watched = make_pass(config, testing, limit=min(config.test.watched_images, shown))
  judged = judge.Judge(testing, final.reader, split=config.data.val_split)
  largest = final.transform.frames.canvases.max(0)  # type: ignore[attr-defined]
  notes = [*data.training.notes, *testing.notes]

  def write_files(workdir: pathlib.Path) -> None:
    if notes and not jax.process_index():
      with places.replacing(workdir / LEFT_OUT) as path:
        path.write_text('\n'.join([*notes, '']), encoding='utf-8')

  def watch(params: Any, batch: tasks.Batch) -> tasks.Totals:
    answer = segmenter.answer(params, batch)
    return {'pixels': segmenter.count(answer, batch['label']), 'record': batch['record']}

  def measure(params: Any, batch: tasks.Batch) -> tasks.Totals:
    answer = segmenter.answer(params, batch)
    beyond = [(0, 0), *((0, side - own) for side, own in zip(largest, answer.shape[1:]))]
    counted = {'pixels': segmenter.count(answer, batch['label']), 'record': batch['record']}
    return counted | {'answer': jnp.pad(answer, beyond)}

  classes = len(data.class_names)
  count_parameters = alexnet.count_parameters(segmenter.shapes())
  task = tasks.Task(
    name=config.task,
    init=segmenter.init,
    loss=segmenter.loss,
    totals=('loss', 'correct', 'count'),
    report=metrics.report_training,
    train_batches=training.train,
    records=training.names,
    evaluations={'val': tasks.RowEvaluation(watched.evaluate, watch, judged.watch)},
    best='val_mean_iou',
    labels=segmenter.labels,
    examples={'images': config.batch_size},
    fingerprint={
      **identity.describe_training(config),
      **segmenter.identify(),
      'training images': data.training.fingerprint,
      'test images': testing.fingerprint,
      'classes': list(data.class_names),
    },
    summary=[
      ('run', summary),
      ('training', training.reader.source.description),
      ('test', testing.source.description),
      ('canvases', f'training {_tell(training)}; test {_tell(final)}; a program for each'),
      ('network', f'{count_parameters:,} parameters, {classes} classes'),
      *([('notes', f'{len(notes):,}, see {LEFT_OUT}')] if notes else []),
    ],
    chance_loss=math.log(classes),
    write_files=write_files,
    pictures={},
    meta={'network': segmenter.describe(), 'class_names': list(data.class_names)},
  )
  passes = {'': tasks.RowEvaluation(final.evaluate, measure, judged.watch)}
  return runs.Run(name, task, passes, {'test images shown': shown}, report=judged.report)


def make_training(config: ml_collections.ConfigDict, masks: voc_masks.Split) -> feed.Feed:
  """Builds what feeds the training."""
  # Deviation: each epoch shows each image once: the framework draws images with replacement.
  mirrored = config.images.mirror
  frames = canvases.TrainingFrames(
    canvases.Sizes.as_they_are(masks.sizes),
    config.seed,
    config.batch_size,
    config.images.canvases,
    copies=2 if mirrored else 1,
  )
  source = canvases.Doubled(masks.source) if mirrored else masks.source
  reader = pipeline.Reader(source, seed=config.seed)
  made = transform.ShowMasks(frames, masks)
  return feed.Feed(reader, made, feed.make_loading(config), config.batch_size)


def make_pass(
  config: ml_collections.ConfigDict, masks: voc_masks.Split, *, limit: int
) -> feed.Feed:
  """Builds what feeds a pass over at most so many test images."""
  records = streams.choose_records(masks.source, limit)
  sizes = canvases.Sizes.as_they_are(masks.sizes[records])
  frames = canvases.TestFrames(sizes, config.eval_batch_size, config.images.canvases)
  reader = pipeline.Reader(masks.source, seed=config.seed)
  made = transform.ShowMasks(frames, masks)
  return feed.Feed(reader, made, feed.make_loading(config), config.eval_batch_size, limit=limit)


def _tell(fed: feed.Feed) -> str:
  """Writes how many canvases a feed has, and their heights and widths."""
  return canvases.tell(fed.transform.frames.canvases)  # type: ignore[attr-defined]
