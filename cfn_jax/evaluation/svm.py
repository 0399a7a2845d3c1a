"""Linear SVMs on frozen features, one for each class and layer: VOC2007's protocol.

Source: Goyal et al.'s benchmark: features of length 1, the squared hinge, positives weighing twice,
C chosen for each class by the average precision of three folds. Ignored labels are negatives in
training and left out of the test. scikit-learn (the extra `svm`) is imported when it is needed.
"""

import concurrent.futures
import functools
import importlib.util
import os
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
import numpy as np

from cfn_jax.errors import CfnError
from cfn_jax.evaluation import identity, probing, runs, scores

LENGTH_EPSILON = 1e-5  # added to the length that features are divided by
Score = Callable[[np.ndarray], np.ndarray]


def check(config: ml_collections.ConfigDict) -> None:
  """Raises CfnError for settings that cannot be, or without scikit-learn."""
  c = config.svm
  if not config.several:
    raise CfnError("classifier = 'svm' is for images of several classes: several = True (VOC)")
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
  """Trains and scores the SVMs of every layer; what was found before is not repeated."""
  c, layers = config.svm, {}
  settings = {
    **identity.describe(config),
    'training features': dict(extracted.training.cache.identity),
    'test features': dict(extracted.testing.cache.identity),
  }
  for layer in extracted.training.layers:
    data = [
      (normalize(found.rows(layer, range(len(found)))), found.labels)
      for found in (extracted.training, extracted.testing)
    ]

    each = {}
    with concurrent.futures.ThreadPoolExecutor(c.num_threads or os.cpu_count()) as pool:
      work = {
        name: pool.submit(
          runs.remember,
          f'SVM of {layer}, {name}',
          settings,
          folder / 'svm' / layer / f'{k:03d}',
          functools.partial(score_class, c, data[0], data[1], k),
        )
        for k, name in enumerate(names)
      }
      for name, future in work.items():
        each[name] = future.result()
    layers[layer] = summarize(each)
    runs.say(f'{folder.name}: SVMs on {layer}: mAP {layers[layer]["map"]:.2%}')
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
    k: which class.
  """
  x, positive = training[0], training[1][:, k] == 1

  def fit(rows: np.ndarray, labels: np.ndarray, cost: float) -> Score:
    return fit_svm(rows, labels, cost=cost, weight=c.positive_weight, iterations=c.max_iterations)

  cost, means = choose_cost(x, positive, costs=tuple(c.costs), folds=c.folds, fit=fit)
  found, labels = fit(x, positive, cost)(testing[0]), testing[1][:, k]
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


def fit_svm(
  x: np.ndarray, positive: np.ndarray, *, cost: float, weight: float, iterations: int
) -> Score:
  """Trains a linear SVM, and returns its decision function: `[n, D]` to `[n]`."""
  from sklearn import exceptions, svm

  made = svm.LinearSVC(
    C=cost,
    class_weight={1: weight, -1: 1.0},
    loss='squared_hinge',
    penalty='l2',
    tol=1e-4,
    max_iter=iterations,
    dual=True,
    random_state=0,
  )
  with warnings.catch_warnings():  # a cost at which it does not converge loses in the folds
    warnings.simplefilter('ignore', exceptions.ConvergenceWarning)
    made.fit(x, np.where(positive, 1, -1))
  decide: Score = made.decision_function
  return decide


def choose_cost(
  x: np.ndarray,
  positive: np.ndarray,
  *,
  costs: tuple[float, ...],
  folds: int,
  fit: Callable[[np.ndarray, np.ndarray, float], Score],
) -> tuple[float, list[float]]:
  """Chooses the cost whose mean average precision over stratified folds is best; the first of ties.

  Returns:
    The cost, and each cost's mean; no means where there is one cost, or too few positives.
  """
  if len(costs) == 1 or min(positive.sum(), len(positive) - positive.sum()) < folds:
    return costs[0], []
  from sklearn import model_selection

  splits = list(model_selection.StratifiedKFold(folds).split(x, positive))
  means = []
  for cost in costs:
    found = [
      scores.average_precision(fit(x[ours], positive[ours], cost)(x[held]), positive[held])
      for ours, held in splits
    ]
    means.append(float(np.mean(found)))
  return costs[int(np.argmax(means))], means
