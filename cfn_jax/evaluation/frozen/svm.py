"""Linear SVMs on frozen features, one for each class and layer: VOC2007's protocol.

Source: Goyal et al.'s benchmark: features of length 1, the squared hinge, positives with weight 2,
C chosen for each class by the average precision of three folds. Ignored labels are negatives in
training and left out of the test. scikit-learn (the extra `svm`) is imported on demand.
"""

import concurrent.futures
import functools
import importlib.util
import os
import pathlib
import warnings
from typing import Any

import jax
import ml_collections
import numpy as np

from cfn_jax.errors import CfnError
from cfn_jax.evaluation import identity, runs, scores
from cfn_jax.evaluation.frozen import probing

LENGTH_EPSILON = 1e-5  # added to the length that features are divided by


def check(config: ml_collections.ConfigDict) -> None:
  """Raises CfnError for impossible settings, or without scikit-learn."""
  c = config.svm
  if not config.multilabel:
    raise CfnError("classifier = 'svm' is for images of several classes: multilabel = True (VOC)")
  if not c.costs or min(c.costs) <= 0:
    raise CfnError(f'svm.costs = {tuple(c.costs)}: at least one, each more than 0')
  if c.folds < 2:
    raise CfnError(f'svm.folds = {c.folds}: at least 2')
  if c.positive_weight <= 0:
    raise CfnError(f'svm.positive_weight = {c.positive_weight}: more than 0')
  if c.max_iterations < 1 or c.num_threads < 0:
    raise CfnError('svm.max_iterations: at least 1; svm.num_threads: at least 0')
  if jax.process_count() > 1:
    raise CfnError("classifier = 'svm' runs in one process: distributed.mode = 'off'")
  if importlib.util.find_spec('sklearn') is None:
    raise CfnError("classifier = 'svm' needs scikit-learn: pip install -e '.[svm]'")


def run(
  config: ml_collections.ConfigDict,
  extracted: probing.Extracted,
  names: tuple[str, ...],
  folder: pathlib.Path,
) -> dict[str, Any]:
  """Trains and scores the SVMs of every layer; earlier results are not repeated."""
  c, layers = config.svm, {}
  settings = identity.describe(config) | extracted.identity()
  for layer in extracted.training.layers:
    training, testing = (
      (normalize(found.rows(layer, range(len(found)))), found.labels)
      for found in (extracted.training, extracted.testing)
    )
    with concurrent.futures.ThreadPoolExecutor(c.num_threads or os.cpu_count()) as pool:
      work = {
        name: pool.submit(
          runs.remember,
          f'SVM of {layer}, {name}',
          settings,
          folder / 'svm' / layer / f'{k:03d}',
          functools.partial(score_class, c, training, testing, k),
        )
        for k, name in enumerate(names)
      }
      layers[layer] = summarize({name: future.result() for name, future in work.items()})
    mean = layers[layer]['map']
    shown = 'of no class' if mean is None else f'{mean:.2%}'
    runs.say(f'{folder.name}: SVMs on {layer}: mAP {shown}')
  return {'layers': layers, 'val_count': len(extracted.testing)}


def score_class(
  c: ml_collections.ConfigDict,
  training: tuple[np.ndarray, np.ndarray],
  testing: tuple[np.ndarray, np.ndarray],
  k: int,
) -> dict[str, Any]:
  """Chooses the cost of a class, trains on all training features, and scores the test.

  Args:
    c: the section `svm` of the config.
    training, testing: features `[n, D]` and labels `[n, K]`.
    k: the number of the class.
  """
  x, target = training[0], np.where(training[1][:, k] == 1, 1, -1)
  from sklearn import exceptions

  with warnings.catch_warnings():  # a cost without convergence loses in the folds
    warnings.simplefilter('ignore', exceptions.ConvergenceWarning)
    cost, means = choose_cost(c, x, target)
    fitted = make_svm(c, cost).fit(x, target)
  found, labels = fitted.decision_function(testing[0]), testing[1][:, k]
  return {
    'cost': cost,
    'folds': means,
    'average_precision': scores.average_precision(found, labels),
    'eleven_point': scores.eleven_point_precision(found, labels),
  }


def summarize(each: dict[str, Any]) -> dict[str, Any]:
  """Averages over the classes that have a figure."""

  def mean(kind: str) -> float | None:
    known = [found[kind] for found in each.values() if found[kind] is not None]
    return float(np.mean(known)) if known else None

  return {
    'map': mean('average_precision'),
    'map_11_point': mean('eleven_point'),
    'per_class': {name: found['average_precision'] for name, found in each.items()},
    'costs': {name: found['cost'] for name, found in each.items()},
    'classes_without_figure': [
      name for name, found in each.items() if found['average_precision'] is None
    ],
  }


def normalize(x: np.ndarray) -> np.ndarray:
  """Divides rows float32 `[n, D]` by their lengths."""
  lengths: np.ndarray = np.linalg.norm(x, axis=1, keepdims=True)
  return x / (lengths + np.float32(LENGTH_EPSILON))


def make_svm(c: ml_collections.ConfigDict, cost: float) -> Any:
  """Builds scikit-learn's linear SVM with the settings of the section `svm` of the config."""
  from sklearn import svm

  return svm.LinearSVC(
    C=cost,
    class_weight={1: c.positive_weight, -1: 1.0},
    loss='squared_hinge',
    penalty='l2',
    tol=1e-4,
    max_iter=c.max_iterations,
    dual=True,
    random_state=0,
  )


def choose_cost(
  c: ml_collections.ConfigDict, x: np.ndarray, target: np.ndarray
) -> tuple[float, list[float]]:
  """Chooses the cost with the best mean average precision over stratified folds, the first of ties.

  Args:
    x, target: features `[n, D]`, and 1 or -1 `[n]`.

  Returns:
    The cost, and each cost's mean; no means if there is one cost, or too few examples of a side.
  """
  if len(c.costs) == 1 or min(np.sum(target == 1), np.sum(target == -1)) < c.folds:
    return c.costs[0], []
  from sklearn import model_selection

  def score(fitted: Any, x: np.ndarray, target: np.ndarray) -> float:
    return scores.average_precision(fitted.decision_function(x), target == 1)

  means = []
  for cost in c.costs:
    found = model_selection.cross_val_score(
      make_svm(c, cost), x, target, cv=c.folds, scoring=score, error_score='raise'
    )
    means.append(float(np.mean(found)))
  return c.costs[int(np.argmax(means))], means
