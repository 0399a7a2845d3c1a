"""One pass over the test images of a classification, and the figures that its rows give.

Each image is counted once; the scores of several views of it are averaged on the device. Between
the network (classifier.py) and the figures of merit (scores.py).
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import ml_collections
import numpy as np

from cfn_jax.data import feed, views
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import classifier as classifiers
from cfn_jax.evaluation import labelled, scores
from cfn_jax.training import metrics
from cfn_jax.training import task as tasks

AVERAGES = ('logits', 'softmax')


def make_feed(
  config: ml_collections.ConfigDict, data: labelled.Labelled, transform: views.MakeViews
) -> feed.Feed:
  """Builds the feed of the test images that a config names; the views of an image are averaged."""
  return feed.Feed(
    data.testing.reader,
    transform,
    feed.make_loading(config),
    config.eval_batch_size,
    limit=config.data.val_max_images,
  )


def make_evaluation(
  classifier: classifiers.Classifier,
  images: feed.Feed,
  *,
  average: str,
  report: Callable[[Mapping[str, np.ndarray]], dict[str, Any]],
) -> tasks.RowEvaluation:
  """Builds a pass over test images: rows of `scores` and `label`, or of `rank` and `label`.

  Args:
    average: 'logits' or 'softmax': of the views of an image.

  Raises:
    CfnError: an unknown average, or one that several classes do not have.
  """
  if average not in AVERAGES or (classifier.several and average != 'logits'):
    allowed = 'logits' if classifier.several else ' or '.join(AVERAGES)
    raise CfnError(f"test.average = '{average}': {allowed}")

  def measure(params: Any, batch: tasks.Batch) -> tasks.Totals:
    found, label = classifier.average(params, batch['image'], average), batch['label']
    if classifier.several:
      return {'scores': found, 'label': label}
    own = jnp.take_along_axis(found, label[:, None], axis=1)
    rank = jnp.sum(found >= own, axis=1) - 1  # ties count against it
    good = jnp.all(jnp.isfinite(found), axis=1)
    return {'rank': jnp.where(good, rank, found.shape[1]), 'label': label}

  return tasks.RowEvaluation(images.evaluate, measure, report)


def make_report(
  classifier: classifiers.Classifier, *, detailed: bool = False
) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
  """Builds what turns the rows of a pass into figures.

  Args:
    detailed: with the figure of each class, the classes that have none, and the 95 % interval of
      the figure over test images (of mean average precision by bootstrap, of accuracy Wilson's).
  """
  names = classifier.class_names

  def report(rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    count = len(rows['label'])
    if classifier.several:
      area = scores.score_classes(rows['scores'], rows['label'], names)
      points = scores.score_classes(
        rows['scores'], rows['label'], names, scores.eleven_point_precision
      )
      figures: dict[str, Any] = {'val_map': area.mean, 'val_map_11_point': points.mean}
      details: dict[str, Any] = {
        'average_precision': area.per_class,
        'average_precision_11_point': points.per_class,
        'positives': dict(zip(names, np.sum(rows['label'] == 1, axis=0).tolist())),
      }
    else:
      area = scores.score_ranks(rows['rank'], rows['label'], names)
      figures = {'val_accuracy': float(np.mean(rows['rank'] < 1))}
      if len(names) > 5:
        figures['val_top5_accuracy'] = float(np.mean(rows['rank'] < 5))
      details = {
        'accuracy': area.per_class,
        'images': dict(zip(names, np.bincount(rows['label'], minlength=len(names)).tolist())),
      }
    figures['val_count'] = count
    if detailed and classifier.several:
      figures['val_map_low'], figures['val_map_high'] = scores.bootstrap_mean(
        rows['scores'], rows['label']
      )
    if detailed and not classifier.several:
      right = float(np.sum(rows['rank'] < 1))
      low, high = metrics.confidence_interval(count, right, right)
      figures |= {'val_accuracy_low': low, 'val_accuracy_high': high}
    if detailed:
      figures |= {'per_class': details, 'classes_without_figure': list(area.without)}
    return figures

  return report
