"""The run of a detection: its task for the loop, and its passes over test images.

Between the network (detector.py) and the figures (judge.py). The network sees no annotation of a
test image.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import ml_collections

from cfn_jax.data import canvases, feed, streams
from cfn_jax.evaluation import runs
from cfn_jax.evaluation.detection import detector as detectors
from cfn_jax.evaluation.detection import judge, opened, transform
from cfn_jax.evaluation.finetuning import dense
from cfn_jax.training import optimizer
from cfn_jax.training import task as tasks


def make_run(
  config: ml_collections.ConfigDict,
  detector: detectors.Detector,
  data: opened.Opened,
  name: str,
  *,
  label: str,
) -> runs.Run:
  """Builds the run that trains a detector and scores it, see `dense.make_run`."""
  training, testing, test = data.training, data.testing, config.test
  feeds = dense.make_feeds(
    config,
    make_training(config, detector, data),
    lambda limit: make_pass(config, testing, limit=limit),
    len(testing.reader.source),
  )

  def measure(params: Any, batch: tasks.Batch) -> tasks.Totals:
    return {'found': detector.detect(params, batch, test.per_class), 'record': batch['record']}

  return dense.make_run(
    config,
    detector,
    name,
    feeds,
    label=label,
    judge=judge.Judge(
      testing.images,
      testing.reader,
      data.class_names,
      split=config.data.val_split,
      threshold=test.suppress_overlap,
      mean_per_image=test.mean_per_image,
    ),
    watch=measure,
    measure=measure,
    told=[
      ('training', feeds.training.reader.source.description),
      ('proposals', training.proposals.description),
      ('test', testing.reader.source.description),
      ('proposals', testing.proposals.description),
    ],
    notes=[*training.images.notes, *testing.images.notes],
    fingerprint={
      'training images': training.images.fingerprint,
      'training proposals': training.proposals.fingerprint,
      'test images': testing.images.fingerprint,
    },
    settings={'test proposals': testing.proposals.fingerprint},
    totals=('class_loss', 'box_loss', 'correct', 'count'),
    report=report_training,
    best='val_map_11_point',
    labels=lambda params: optimizer.label_parameters(params, locked=detector.locked),
    examples={'images': config.batch_size, 'regions': config.batch_size * config.regions.per_image},
    chance_loss=math.log(len(data.class_names) + 1),
  )


def make_training(
  config: ml_collections.ConfigDict, detector: detectors.Detector, data: opened.Opened
) -> feed.Feed:
  """Builds the feed of training: each image once as it is and once mirrored in two epochs."""
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


def make_pass(config: ml_collections.ConfigDict, testing: opened.Split, *, limit: int) -> feed.Feed:
  """Builds the feed of a pass over at most `limit` test images."""
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
  """Returns the figures of the sums of the logged steps: means over the regions."""
  count = sums['count'] or math.nan
  classes, boxes = sums['class_loss'] / count, sums['box_loss'] / count
  return {
    'train_loss': classes + boxes,
    'train_class_loss': classes,
    'train_box_loss': boxes,
    'train_accuracy': sums['correct'] / count,
    'learning_rate': sums['learning_rate'],
  }
