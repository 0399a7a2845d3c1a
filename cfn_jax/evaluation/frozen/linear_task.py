"""Linear classifiers on cached features, a task for the training loop.

There is one per layer of a cache, all in one run: their losses share no parameter. A cache of
features (feature_cache.py) -> (here) -> linear_probe.py for images and positions.py for tiles.
"""

import functools
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from cfn_jax.data import feed, streams
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import answers, identity
from cfn_jax.evaluation.frozen import feature_cache, features, probing
from cfn_jax.training import optimizer
from cfn_jax.training import task as tasks

STANDARDS = ('', 'channel', 'dimension')
SMALLEST_VARIANCE = 1e-5  # BatchNorm's epsilon


def check_standard(standardize: str) -> None:
  """Raises CfnError for an unknown way of normalising features."""
  if standardize not in STANDARDS:
    allowed = ', '.join(repr(each) for each in STANDARDS)
    raise CfnError(f"probe.standardize = '{standardize}' is unknown: one of {allowed}")


def make_task(
  config: ml_collections.ConfigDict,
  extracted: probing.Extracted,
  *,
  names: tuple[str, ...],
  multilabel: bool,
  summary: list[tuple[str, str]],
  name: str = 'linear_probe',
) -> tasks.Task:
  """Builds the task of one classifier of the classes `names` for each layer of a cache."""
  training, classes = extracted.training, len(names)
  layers = training.layers
  totals = ['count'] + [f'{kind}_{layer}' for kind in ('loss', 'correct') for layer in layers]

  return tasks.Task(
    name=name,
    init=functools.partial(draw_parameters, training, config, classes),
    loss=make_loss(layers, multilabel=multilabel),
    totals=tuple(totals),
    report=functools.partial(report_training, layers),
    train_batches=functools.partial(
      make_batches,
      training,
      seed=config.seed,
      rows=feed.make_loading(config).rows(config.batch_size),
      batch_size=config.batch_size,
    ),
    records=lambda step: [f'{training.cache.folder.name}, step {step}'],
    evaluations={
      'val': make_evaluation(extracted.testing, names, multilabel=multilabel, config=config)
    },
    best='val_map' if multilabel else 'val_accuracy',
    labels=label_parameters,
    examples={'images': config.batch_size},
    fingerprint={
      **identity.describe_training(config),
      'training features': training.cache.content(),
      'classes': classes,
    },
    summary=summary,
    chance_loss=classes * math.log(2) if multilabel else math.log(classes),
    pictures={},
    meta={},
  )


def draw_parameters(
  training: feature_cache.Features, config: ml_collections.ConfigDict, classes: int, seed: int
) -> dict[str, dict[str, np.ndarray]]:
  """Draws a classifier `[D, K]` for each layer, and computes the normalisation of its features."""
  params = {}
  for layer in training.layers:
    key = [seed, zlib.crc32(f'probe/{layer}'.encode())]
    rng = np.random.Generator(np.random.Philox(key=key))
    shape = (training.width(layer), classes)
    mean, scale = standardize(training, layer, config.probe.standardize)
    params[layer] = {
      'kernel': np.float32(config.probe.init_std) * rng.standard_normal(shape, np.float32),
      'bias': np.zeros(classes, np.float32),
      'mean': mean,
      'scale': scale,
    }
  return params


def standardize(
  training: feature_cache.Features, layer: str, kind: str
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the mean and scale of the normalisation (x - mean) * scale, float32 `[D]` each.

  They are those of all training features, as BatchNorm without affine parameters converges to.
  """
  width = training.width(layer)
  if not kind:
    return np.zeros(width, np.float32), np.ones(width, np.float32)
  mean, variance = training.moments(layer)
  if kind == 'channel' and layer in features.MAPS:
    channels = int(training.cache.identity['channels'][layer])
    own = mean.reshape(-1, channels)
    of_channel = own.mean(0)
    within = variance.reshape(-1, channels).mean(0) + np.square(own - of_channel).mean(0)
    mean, variance = (np.tile(each, len(own)) for each in (of_channel, within))
  scale = 1 / np.sqrt(variance + SMALLEST_VARIANCE)
  return mean.astype(np.float32), scale.astype(np.float32)


def label_parameters(params: Any) -> Any:
  """Labels parameters for the optimizer: those of the normalisation are locked."""
  labels = optimizer.label_parameters(params)
  for layer in labels.values():
    layer['mean'] = layer['scale'] = 'locked'
  return labels


def compute_logits(layer: Mapping[str, Any], x: jax.Array) -> jax.Array:
  """Returns the logits `[B, K]` of features `[B, D]`."""
  exact = jax.lax.Precision.HIGHEST
  x = (x - layer['mean']) * layer['scale']
  return jnp.dot(x, layer['kernel'], precision=exact) + layer['bias']


def make_loss(
  layers: tuple[str, ...], *, multilabel: bool
) -> Callable[[Any, tasks.Batch, jax.Array], tuple[jax.Array, tasks.Totals]]:
  """Builds the loss `[]` of a batch: the sum over the layers of the means over the rows.

  The loss of each layer is that of `answers.sum_losses`.
  """

  def loss(params: Any, batch: tasks.Batch, key: jax.Array) -> tuple[jax.Array, tasks.Totals]:
    labels = batch[feature_cache.LABEL]
    count = jnp.float32(len(labels))
    sums: tasks.Totals = {'count': count}
    for name in layers:
      logits = compute_logits(params[name], batch[name])
      found = answers.sum_losses(logits, labels, multilabel=multilabel)
      sums[f'loss_{name}'], sums[f'correct_{name}'] = found
    total = jnp.sum(jnp.stack([sums[f'loss_{name}'] for name in layers])) / count
    return total, sums

  return loss


def report_training(layers: tuple[str, ...], sums: Mapping[str, float]) -> dict[str, float]:
  """Returns the figures of the sums of the logged steps: means over the layers."""
  count = (sums['count'] or math.nan) * len(layers)  # no step of the interval was finite
  return {
    'train_loss': sum(sums[f'loss_{name}'] for name in layers) / count,
    'train_accuracy': sum(sums[f'correct_{name}'] for name in layers) / count,
    'learning_rate': sums['learning_rate'],
  }


def make_batches(
  found: feature_cache.Features,
  start: int,
  stop: int,
  *,
  seed: int,
  rows: range,
  batch_size: int,
) -> tasks.Batches:
  """Returns this host's rows of the batches of some steps, shuffled again in every epoch."""
  for step in range(start, stop):
    places = [step * batch_size + row for row in rows]
    indices = [streams.record_index(len(found), seed=seed, position=place) for place in places]
    yield found.take(np.array(indices))


def make_evaluation(
  found: feature_cache.Features,
  names: tuple[str, ...],
  *,
  multilabel: bool,
  config: ml_collections.ConfigDict,
  report: Callable[..., dict[str, Any]] | None = None,
) -> tasks.RowEvaluation:
  """Builds a pass over all rows of a cache: class scores `[n, K]` of each layer, and `label`.

  If images have one class, the rows hold the rank of the label instead of scores.

  Args:
    report: `probing.detail`; None: `report_best`.
  """
  batch_size = config.eval_batch_size

  def batches() -> tasks.Batches:
    own = jax.process_count(), jax.process_index()
    share = batch_size // own[0]
    for first in range(0, len(found), batch_size):
      indices = np.arange(first + own[1] * share, first + (own[1] + 1) * share)
      mask = (indices < len(found)).astype(np.float32)
      yield {**found.take(np.minimum(indices, len(found) - 1)), 'mask': mask}

  def measure(params: Any, batch: tasks.Batch) -> tasks.Totals:
    label = batch[feature_cache.LABEL]
    rows: tasks.Totals = {feature_cache.LABEL: label}
    for layer in found.layers:
      logits = compute_logits(params[layer], batch[layer])
      rows[layer] = logits if multilabel else answers.rank_labels(logits, label)
    return rows

  described = functools.partial(report or report_best, names=names, multilabel=multilabel)
  return tasks.RowEvaluation(batches, measure, described)


def report_best(
  rows: Mapping[str, np.ndarray], *, names: tuple[str, ...], multilabel: bool
) -> dict[str, Any]:
  """Returns the logged figures of rows `[N, ...]`: of each layer, and of the best one."""
  kind = 'map' if multilabel else 'accuracy'
  found = probing.detail(rows, names=names, multilabel=multilabel, interval=False)
  figures = {f'val_{kind}_{layer}': each[kind] for layer, each in found['layers'].items()}
  return {f'val_{kind}': max(figures.values()), **figures, 'val_count': found['val_count']}
