"""One pass over the test images of a classification, and the figures that its rows give.

Each image is counted once; the scores of several views of it are averaged on the device. Between
the network (classifier.py) and the figures of merit (scores.py).
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import ml_collections
import numpy as np

from cfn_jax.data import pipeline
from cfn_jax.evaluation import classifier as classifiers
from cfn_jax.evaluation import labelled, scores, views
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.training import metrics
from cfn_jax.training import task as tasks

AVERAGES = ('logits', 'softmax')


def bind(
  config: ml_collections.ConfigDict,
  classifier: classifiers.Classifier,
  data: labelled.Labelled,
  *,
  average: str,
) -> Callable[..., tasks.RowEvaluation]:
  """Returns `make_evaluation` for a config's test images: of a transform, report and on_bad."""
  return functools.partial(
    make_evaluation,
    classifier,
    data.testing,
    batch_size=config.eval_batch_size,
    loading=pretexts.make_loading(config),
    average=average,
    limit=config.data.val_max_images,
  )


def make_evaluation(
  classifier: classifiers.Classifier,
  split: labelled.Split,
  transform: views.MakeViews,
  *,
  batch_size: int,
  loading: pipeline.Loading,
  average: str,
  limit: int,
  report: Callable[[Mapping[str, np.ndarray]], dict[str, Any]],
  on_bad: Callable[[int], None] | None = None,
) -> tasks.RowEvaluation:
  """Builds a pass over a split: rows of `scores` and `label`, or of `rank` and `label`.

  Args:
    transform: of the test; its `draws` views of an image are averaged.
    average: 'logits' or 'softmax'.
    limit: this many images, a fixed random subset; 0: all.

  Raises:
    ValueError: an unknown average, or one that several classes do not have.
  """
  if average not in AVERAGES or (classifier.several and average != 'logits'):
    allowed = 'logits' if classifier.several else ' or '.join(AVERAGES)
    raise ValueError(f"test.average = '{average}': {allowed}")
  if transform.draws < 1:
    raise ValueError(f'test.draws = {transform.draws}: at least 1')

  def batches() -> tasks.Batches:
    return pipeline.make_evaluation_batches(
      split.reader, transform, batch_size=batch_size, limit=limit, loading=loading, on_bad=on_bad
    )

  def measure(params: Any, batch: tasks.Batch) -> tasks.Totals:
    found, label = classifier.average(params, batch['image'], average), batch['label']
    if classifier.several:
      return {'scores': found, 'label': label}
    own = jnp.take_along_axis(found, label[:, None], axis=1)
    rank = jnp.sum(found >= own, axis=1) - 1  # ties count against it
    good = jnp.all(jnp.isfinite(found), axis=1)
    return {'rank': jnp.where(good, rank, found.shape[1]), 'label': label}

  return tasks.RowEvaluation(batches, measure, report)


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
