"""The run of a detection: its task for the loop, and its passes over test images.

Between the network (detector.py) and the figures (judge.py). No annotation of a test image reaches
the network.
"""

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections

from cfn_jax import places
from cfn_jax.data import canvases, feed, streams
from cfn_jax.evaluation import identity, runs
from cfn_jax.evaluation.detection import detector as detectors
from cfn_jax.evaluation.detection import judge, opened, transform
from cfn_jax.models import alexnet
from cfn_jax.training import optimizer
from cfn_jax.training import task as tasks

LEFT_OUT = 'left_out.txt'


def make_run(
  config: ml_collections.ConfigDict,
  detector: detectors.Detector,
  data: opened.Opened,
  name: str,
  *,
  summary: str,
) -> runs.Run:
  """Builds the run that trains a detector and scores it on the test images."""
  detector.check()
  training, testing, test = make_training(config, detector, data), data.testing, config.test
  judged = judge.Judge(
    testing.images,
    testing.reader,
    data.class_names,
    split=config.data.val_split,
    threshold=test.suppress_overlap,
    mean_per_image=test.mean_per_image,
  )
  count = len(testing.reader.source)
  shown = min(config.data.val_max_images or count, count)
  final = make_pass(config, detector, testing, limit=shown)
  watched = make_pass(config, detector, testing, limit=min(test.watched_images, shown))
  notes = [*data.training.images.notes, *testing.images.notes]

  def write_files(workdir: pathlib.Path) -> None:
    if notes and not jax.process_index():
      with places.replacing(workdir / LEFT_OUT) as path:
        path.write_text('\n'.join([*notes, '']), encoding='utf-8')

  def measure(params: Any, batch: tasks.Batch) -> tasks.Totals:
    return {'found': detector.detect(params, batch, test.per_class), 'record': batch['record']}

  classes = len(data.class_names)
  task = tasks.Task(
    name=config.task,
    init=detector.init,
    loss=detector.loss,
    totals=('class_loss', 'box_loss', 'correct', 'count'),
    report=report_training,
    train_batches=training.train,
    records=training.names,
    evaluations={'val': tasks.RowEvaluation(watched.evaluate, measure, judged.watch)},
    best='val_map_11_point',
    labels=lambda params: optimizer.label_parameters(params, locked=detector.locked),
    examples={'images': config.batch_size, 'regions': config.batch_size * config.regions.per_image},
    fingerprint={
      **identity.describe_training(config),
      **detector.identify(),
      'training images': data.training.images.fingerprint,
      'training proposals': data.training.proposals.fingerprint,
      'test images': testing.images.fingerprint,
      'classes': list(data.class_names),
    },
    summary=[
      ('run', summary),
      ('training', training.reader.source.description),
      ('proposals', data.training.proposals.description),
      ('test', testing.reader.source.description),
      ('proposals', testing.proposals.description),
      ('canvases', f'training {_tell(training)}; test {_tell(final)}; a program for each'),
      ('network', f'{alexnet.count_parameters(detector.shapes()):,} parameters, {classes} classes'),
      *([('left out', f'{len(notes):,} boxes or images, see {LEFT_OUT}')] if notes else []),
    ],
    chance_loss=math.log(classes + 1),
    write_files=write_files,
    pictures={},
    meta={'network': detector.describe(), 'class_names': list(data.class_names)},
  )
  passes = {'': tasks.RowEvaluation(final.evaluate, measure, judged.watch)}
  settings = {'test images shown': shown, 'test proposals': testing.proposals.fingerprint}
  return runs.Run(name, task, passes, settings, report=judged.report)


def make_training(
  config: ml_collections.ConfigDict, detector: detectors.Detector, data: opened.Opened
) -> feed.Feed:
  """Builds what feeds the training: each image once as it is and once mirrored in two epochs."""
  images, training = config.images, data.training
  frames = canvases.TrainingFrames(
    training.sizes(images.scales_px, images.longest_px),
    config.seed,
    config.batch_size,
    images.canvases,
  )
  made = transform.TrainRegions(
    frames,
    training.images.objects,
    training.proposals,
    opened.read_rule(config),
    detector.moves,
    config.regions.difficult,
  )
  reader = dataclasses.replace(training.reader, source=canvases.Doubled(training.reader.source))
  return feed.Feed(reader, made, feed.make_loading(config), config.batch_size)


def make_pass(
  config: ml_collections.ConfigDict,
  detector: detectors.Detector,
  testing: opened.Split,
  *,
  limit: int,
) -> feed.Feed:
  """Builds what feeds a pass over at most so many test images."""
  records = streams.choose_records(testing.reader.source, limit)
  frames = canvases.TestFrames(
    testing.sizes(config.test.scales_px, config.images.longest_px, records),
    config.eval_batch_size,
    config.images.canvases,
  )
  made = transform.TestRegions(frames, testing.proposals, testing.proposals.most)
  loading = feed.make_loading(config)
  return feed.Feed(testing.reader, made, loading, config.eval_batch_size, limit=limit)


def report_training(sums: Mapping[str, float]) -> dict[str, float]:
  """Turns the sums of the logged steps into figures, means over the regions."""
  count = sums['count'] or math.nan
  classes, boxes = sums['class_loss'] / count, sums['box_loss'] / count
  return {
    'train_loss': classes + boxes,
    'train_class_loss': classes,
    'train_box_loss': boxes,
    'train_accuracy': sums['correct'] / count,
    'learning_rate': sums['learning_rate'],
  }


def _tell(fed: feed.Feed) -> str:
  """Writes how many canvases a feed has, and their heights and widths."""
  return canvases.tell(fed.transform.frames.canvases)  # type: ignore[attr-defined]
