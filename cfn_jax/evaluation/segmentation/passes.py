"""The run of a segmentation: its task for the loop, and its passes over test images.

Between the network (segmenter.py) and the figures (judge.py).
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from cfn_jax.data import canvases, feed, pipeline, streams, voc_masks
from cfn_jax.evaluation import runs
from cfn_jax.evaluation.finetuning import dense
from cfn_jax.evaluation.segmentation import judge, transform
from cfn_jax.evaluation.segmentation import segmenter as segmenters
from cfn_jax.training import metrics
from cfn_jax.training import task as tasks


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
  label: str,
) -> runs.Run:
  """Builds the run that trains a segmenter and scores it, see `dense.make_run`."""
  testing = data.testing
  feeds = dense.make_feeds(
    config,
    make_training(config, data.training),
    lambda limit: make_pass(config, testing, limit=limit),
    len(testing.source),
  )
  largest = feeds.final.transform.frames.canvases.max(0)  # type: ignore[attr-defined]

  def score(params: Any, batch: tasks.Batch) -> tuple[tasks.Totals, jax.Array]:
    answer = segmenter.answer(params, batch)
    pixels = segmenter.count(answer, batch['label'])
    return {'pixels': pixels, 'record': batch['record']}, answer

  def measure(params: Any, batch: tasks.Batch) -> tasks.Totals:
    rows, answer = score(params, batch)
    beyond = [(0, 0), *((0, side - own) for side, own in zip(largest, answer.shape[1:]))]
    return rows | {'answer': jnp.pad(answer, beyond)}

  return dense.make_run(
    config,
    segmenter,
    name,
    feeds,
    label=label,
    judge=judge.Judge(testing, feeds.final.reader, split=config.data.val_split),
    watch=lambda params, batch: score(params, batch)[0],
    measure=measure,
    told=[
      ('training', feeds.training.reader.source.description),
      ('test', testing.source.description),
    ],
    notes=[*data.training.notes, *testing.notes],
    fingerprint={
      'training images': data.training.fingerprint,
      'test images': testing.fingerprint,
    },
    settings={},
    totals=('loss', 'correct', 'count'),
    report=metrics.report_training,
    best='val_mean_iou',
    labels=segmenter.labels,
    examples={'images': config.batch_size},
    chance_loss=math.log(len(data.class_names)),
  )


def make_training(config: ml_collections.ConfigDict, masks: voc_masks.Split) -> feed.Feed:
  """Builds the feed of training."""
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
  """Builds the feed of a pass over at most `limit` test images."""
  records = streams.choose_records(masks.source, limit)
  sizes = canvases.Sizes.as_they_are(masks.sizes[records])
  frames = canvases.TestFrames(sizes, config.eval_batch_size, config.images.canvases)
  reader = pipeline.Reader(masks.source, seed=config.seed)
  made = transform.ShowMasks(frames, masks)
  return feed.Feed(reader, made, feed.make_loading(config), config.eval_batch_size, limit=limit)
