"""A network on labelled images, handed to the one training loop: AlexNet, or the CFN on tiles.

Paper, section 4: the frozen-layer table, VOC classification and recognition are this task with
different loaded and locked layers, views and losses.
"""

import dataclasses
import math
import pathlib
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections

from cfn_jax.data import feed, views
from cfn_jax.evaluation import answers, identity, labelled
from cfn_jax.evaluation.finetuning import start as starts
from cfn_jax.models import alexnet
from cfn_jax.models import trunk as trunks
from cfn_jax.training import metrics, optimizer
from cfn_jax.training import task as tasks


class Pool5Linear(nn.Module):
  """A linear classifier on pool5: images `[B, H, W, C]` to logits `[B, K]`."""

  num_classes: int
  trunk: trunks.Trunk

  def setup(self) -> None:
    nn.share_scope(self, self.trunk)  # parameters stay flat: params['conv1']
    self.fc8 = trunks.dense(self.trunk, 'fc8', self.num_classes, jnp.float32)

  def __call__(self, images: jax.Array, *, train: bool = False) -> jax.Array:
    return self.fc8(self.trunk(images).astype(jnp.float32))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classifier(starts.Start):
  """`AlexNet`, `Pool5Linear` or `Cfn`, with its start and its input.

  Attributes:
    multilabel: an image has several classes: a sigmoid for each instead of one softmax.
    grid: tiles per side of the CFN's views; 0: the network sees whole views.
  """

  multilabel: bool
  grid: int = 0

  def shapes(self) -> Any:
    """Returns the shapes of the parameters."""
    side = self.view_px // max(1, self.grid)
    tiles = (self.grid**2,) if self.grid else ()
    return alexnet.parameter_shapes(self.network, (1, *tiles, side, side, 3))

  def prepare(self, images: jax.Array) -> jax.Array:
    """Returns the network's input for views uint8 `[B, px, px, 3]`."""
    if self.grid:
      batch, side = images.shape[0], self.view_px // self.grid
      images = images.reshape(batch, self.grid, side, self.grid, side, 3)
      images = images.swapaxes(2, 3).reshape(batch, -1, side, side, 3)  # [B, T, h, w, 3]
    return self.input_record.prepare(images)

  def logits(self, params: Any, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
    """Returns logits `[B, K]` of views uint8 `[B, px, px, 3]`; with a key, dropout is on."""
    rngs = {} if key is None else {'dropout': key}
    found: Any = self.network.apply(
      {'params': params}, self.prepare(images), train=key is not None, rngs=rngs
    )
    return found

  def loss(self, params: Any, batch: tasks.Batch, key: jax.Array) -> tuple[jax.Array, tasks.Totals]:
    """Returns the mean loss `[]` over the images of a batch, and the sums for the log."""
    logits = self.logits(params, batch['image'], key)
    count = jnp.float32(len(logits))
    total, right = answers.sum_losses(logits, batch['label'], multilabel=self.multilabel)
    return total / count, {'loss': total, 'correct': right, 'count': count}

  def average(self, params: Any, images: jax.Array, average: str) -> jax.Array:
    """Returns scores `[B, K]` of `[B, draws, px, px, 3]`: summed logits, or mean probabilities."""
    views_of_all = images.reshape(-1, *images.shape[2:])  # [B * draws, px, px, 3]
    found = self.logits(params, views_of_all)
    if average == 'softmax':
      found = jax.nn.softmax(found, axis=-1)
    found = found.reshape(*images.shape[:2], -1)  # [B, draws, K]
    return jnp.sum(found, axis=1) if average == 'logits' else jnp.mean(found, axis=1)


def make_task(
  config: ml_collections.ConfigDict,
  classifier: Classifier,
  data: labelled.Labelled,
  *,
  train_views: views.MakeViews,
  testing: feed.Feed,
  evaluation: tasks.RowEvaluation,
  run: str,
) -> tasks.Task:
  """Builds the task for the training loop.

  Args:
    testing: the test images of `evaluation`, the pass during training.
    run: a line about the training.
  """
  classifier.check()
  training = feed.Feed(
    data.training.reader, train_views, feed.make_loading(config), config.batch_size
  )

  def write_files(workdir: pathlib.Path) -> None:
    training.bad.open(workdir)
    testing.bad.open(workdir)

  classes, count = len(data.class_names), alexnet.count_parameters(classifier.shapes())
  return tasks.Task(
    name=config.task,
    init=classifier.init,
    loss=classifier.loss,
    totals=('loss', 'correct', 'count'),
    report=metrics.report_training,
    train_batches=training.train,
    records=training.names,
    evaluations={'val': evaluation},
    best='val_map' if classifier.multilabel else 'val_accuracy',
    labels=lambda params: optimizer.label_parameters(params, locked=classifier.locked),
    examples={'images': config.batch_size},
    fingerprint={
      **identity.describe_training(config),
      **classifier.identify(),
      'training images': data.training.fingerprint,
      'test images': data.testing.fingerprint,
      'classes': list(data.class_names),
    },
    summary=[
      ('run', run),
      ('training', training.reader.source.description),
      ('test', testing.reader.source.description),
      ('network', f'{count:,} parameters, stride {classifier.network.trunk.stride}'),
    ],
    chance_loss=classes * math.log(2) if classifier.multilabel else math.log(classes),
    write_files=write_files,
    pictures={},
    meta={'network': classifier.describe(), 'class_names': list(data.class_names)},
  )
