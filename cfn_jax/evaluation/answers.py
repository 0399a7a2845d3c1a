"""Scores answers to labelled images: losses and ranks on the device, figures on the host.

Images have one class or several (VOC). Shared by fine-tuned networks and by probes of frozen
features.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cfn_jax.errors import CfnError
from cfn_jax.evaluation import scores
from cfn_jax.training import metrics


def sum_losses(
  logits: jax.Array, labels: jax.Array, *, multilabel: bool
) -> tuple[jax.Array, jax.Array]:
  """Returns the summed losses of logits `[B, K]`, and the number of right answers.

  For one class, labels `[B]`: softmax cross-entropy. For several, `[B, K]`: sigmoid cross-entropies
  of the classes that are not ignored, summed over the classes, as in Kraehenbuehl's layer; then the
  number of right answers is the share of right classes times B.
  """
  if not multilabel:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.sum(losses), jnp.sum(jnp.argmax(logits, axis=-1) == labels)
  counted = labels != scores.IGNORED
  losses = optax.sigmoid_binary_cross_entropy(logits, jnp.where(counted, labels, 0))
  right = jnp.sum(((logits > 0) == (labels == 1)) & counted) / jnp.sum(counted) * len(logits)
  return jnp.sum(jnp.where(counted, losses, 0)), right


def rank_labels(found: jax.Array, labels: jax.Array) -> jax.Array:
  """Returns the number `[B]` of classes that score at least as high as the label; scores `[B, K]`.

  Ties count against the label. Scores that are not finite put it last.
  """
  own = jnp.take_along_axis(found, labels[:, None], axis=1)
  good = jnp.all(jnp.isfinite(found), axis=1)
  return jnp.where(good, jnp.sum(found >= own, axis=1) - 1, found.shape[1])


def judge_scores(
  found: np.ndarray, labels: np.ndarray, names: tuple[str, ...], *, interval: bool = True
) -> dict[str, Any]:
  """Scores images of several classes by class scores `[n, K]`: means, and each class.

  Args:
    interval: adds the 95 % interval of the mean over test images, which takes a second.
  """
  metrics.check_seen(len(labels), 'test')
  area = scores.score_classes(found, labels, names)
  points = scores.score_classes(found, labels, names, scores.eleven_point_precision)
  return {
    'map': area.mean,
    **(scores.keep_draws('map', scores.draw_means(found, labels)) if interval else {}),
    'map_11_point': points.mean,
    'per_class': area.per_class,
    'classes_without_figure': list(area.without),
  }


def judge_ranks(ranks: np.ndarray, labels: np.ndarray, names: tuple[str, ...]) -> dict[str, Any]:
  """Scores images of one class by the ranks `[n]` of their labels: top-1, top-5, and each class."""
  metrics.check_seen(len(ranks), 'test')
  if np.any(labels < 0):
    raise CfnError(f'{np.sum(labels < 0):,} of {len(labels):,} test images have no class')
  per_class = scores.score_ranks(ranks, labels, names)
  right = float(np.sum(ranks < 1))
  low, high = metrics.confidence_interval(len(ranks), right, right)
  figures: dict[str, Any] = {
    'accuracy': right / len(ranks),
    'accuracy_low': low,
    'accuracy_high': high,
  }
  if len(names) > 5:
    figures['top5_accuracy'] = float(np.mean(ranks < 5))
  return figures | {
    'per_class': per_class.per_class,
    'classes_without_figure': list(per_class.without),
  }
