"""The run of a classification: its passes over test images, and the figures of their rows.

Each image counts once; the device averages the scores of its views. Between the network
(classifier.py) and the figures of merit (scores.py).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections
import numpy as np

from cfn_jax.data import feed
from cfn_jax.data import views as view_lib
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import answers, labelled, runs, scores
from cfn_jax.evaluation.finetuning import classifier as classifiers
from cfn_jax.training import task as tasks

AVERAGES = ('logits', 'softmax')


def make_run(
  config: ml_collections.ConfigDict,
  classifier: classifiers.Classifier,
  data: labelled.Labelled,
  name: str,
  *,
  views: view_lib.MakeViews,
  once: view_lib.MakeViews,
  finals: Mapping[str, view_lib.MakeViews],
  average: str,
  summary: str,
) -> runs.Run:
  """Builds the run that trains a classifier and scores it on the test images.

  Args:
    views: those of the training images.
    once: views of the test images, in the pass during training.
    finals: views of the test images, in the passes at the end; see `runs.Run`.
    average: the average over the views of an image, see `make_evaluation`.
    summary: a line about the training.
  """

  def see(views: view_lib.MakeViews) -> feed.Feed:
    return feed.Feed(
      data.testing.reader,
      dataclasses.replace(views, labels=data.testing.labels),
      feed.make_loading(config),
      config.eval_batch_size,
      limit=config.data.val_max_images,
    )

  def evaluate(images: feed.Feed, *, detailed: bool = True) -> tasks.RowEvaluation:
    report = make_report(classifier, detailed=detailed)
    return make_evaluation(classifier, images, average=average, report=report)

  testing = see(once)
  task = classifiers.make_task(
    config,
    classifier,
    data,
    train_views=dataclasses.replace(views, labels=data.training.labels),
    testing=testing,
    evaluation=evaluate(testing, detailed=False),
    run=summary,
  )
  passes = {
    which: evaluate(testing if each is once else see(each)) for which, each in finals.items()
  }
  count = len(data.testing.reader.source)
  shown = min(config.data.val_max_images or count, count)
  return runs.Run(name, task, passes, {'test images shown': shown})


def make_evaluation(
  classifier: classifiers.Classifier,
  images: feed.Feed,
  *,
  average: str,
  report: Callable[[Mapping[str, np.ndarray]], dict[str, Any]],
) -> tasks.RowEvaluation:
  """Builds a pass over test images: rows of `scores` `[K]` or `rank` `[]`, and of `label`.

  Args:
    average: 'logits' or 'softmax', over the views of an image.

  Raises:
    CfnError: the average is unknown.
  """
  if average not in AVERAGES:
    raise CfnError(f"test.average = '{average}': {' or '.join(AVERAGES)}")

  def measure(params: Any, batch: tasks.Batch) -> tasks.Totals:
    found, label = classifier.average(params, batch['image'], average), batch['label']
    if classifier.multilabel:
      return {'scores': found, 'label': label}
    return {'rank': answers.rank_labels(found, label), 'label': label}

  return tasks.RowEvaluation(images.evaluate, measure, report)


def make_report(
  classifier: classifiers.Classifier, *, detailed: bool = False
) -> Callable[[Mapping[str, np.ndarray]], dict[str, Any]]:
  """Returns the function that turns the rows of a pass, `[N, ...]`, into figures.

  Args:
    detailed: adds the figure of each class, the classes without one, and the 95 % interval of the
      figure over test images (by bootstrap for mean average precision, Wilson's for accuracy).
  """
  names = classifier.class_names

  def report(rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    labels = rows['label']
    if classifier.multilabel:
      found = answers.judge_scores(rows['scores'], labels, names, interval=detailed)
      points = scores.score_classes(rows['scores'], labels, names, scores.eleven_point_precision)
      per_class = {
        'average_precision': found['per_class'],
        'average_precision_11_point': points.per_class,
        'positives': dict(zip(names, np.sum(labels == 1, axis=0).tolist())),
      }
    else:
      found = answers.judge_ranks(rows['rank'], labels, names)
      counts = np.bincount(labels, minlength=len(names)).tolist()
      per_class = {'accuracy': found['per_class'], 'images': dict(zip(names, counts))}
    without = found.pop('classes_without_figure')
    figures = {f'val_{name}': figure for name, figure in found.items() if name != 'per_class'}
    figures['val_count'] = len(labels)
    if detailed:
      return figures | {'per_class': per_class, 'classes_without_figure': without}
    return {name: each for name, each in figures.items() if not name.endswith(('_low', '_high'))}

  return report
