"""Runs an evaluation of a task on given parameters: sums, or rows, over every example once.

The training loop and the scoring of finished weights use the same functions.
"""

import collections
import contextlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cfn_jax.training import devices
from cfn_jax.training import task as tasks

AnyEvaluation = tasks.Evaluation | tasks.RowEvaluation
Score = Callable[[Any, Callable[[], bool]], dict[str, Any] | None]


def make_evaluate(
  task: tasks.Task, mesh: Mesh
) -> Callable[[Any, Callable[[], bool]], dict[str, Any] | None]:
  """Builds the function that runs every evaluation of a task on a state's parameters.

  The figures of their moving average, if there is one, are named `ema_...`. The function returns
  None if it was asked to stop.
  """
  scores = {name: make_score(each, mesh) for name, each in task.evaluations.items()}

  def evaluate(state: Any, stop: Callable[[], bool]) -> dict[str, Any] | None:
    averages = {'': state.params} | ({'ema_': state.ema} if jax.tree.leaves(state.ema) else {})
    figures: dict[str, Any] = {}
    for prefix, params in averages.items():
      for score in scores.values():
        found = score(params, stop)
        if found is None:
          return None
        figures |= {prefix + figure: value for figure, value in found.items()}
    return figures

  return evaluate


def make_score(evaluation: AnyEvaluation, mesh: Mesh) -> Score:
  """Builds the function of one pass: (params, whether to stop) to figures; None if it stopped.

  Every host gets the figures of all rows.
  """
  if isinstance(evaluation, tasks.Evaluation):
    return _score_sums(evaluation, mesh)
  return _score_rows(evaluation, mesh)


def _score_sums(evaluation: tasks.Evaluation, mesh: Mesh) -> Score:
  measure = jax.jit(evaluation.measure)

  def score(params: Any, stop: Callable[[], bool]) -> dict[str, Any] | None:
    totals: collections.Counter[str] = collections.Counter()
    with contextlib.closing(evaluation.batches()) as batches:
      for batch in devices.put_ahead(batches, mesh):
        if stop():
          return None
        sums = jax.device_get(measure(params, batch))
        totals.update({name: float(value) for name, value in sums.items()})
    return evaluation.report(totals)

  return score


def _score_rows(evaluation: tasks.RowEvaluation, mesh: Mesh) -> Score:
  def measure(params: Any, batch: tasks.Batch) -> tuple[tasks.Totals, jax.Array]:
    return evaluation.measure(params, batch), batch['mask']

  # Replicated: each host reads the rows of all hosts.
  compiled = jax.jit(measure, out_shardings=NamedSharding(mesh, PartitionSpec()))

  def score(params: Any, stop: Callable[[], bool]) -> dict[str, Any] | None:
    found: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    with contextlib.closing(evaluation.batches()) as batches:
      for batch in devices.put_ahead(batches, mesh):
        if stop():
          return None
        rows, mask = jax.device_get(compiled(params, batch))
        for name, array in rows.items():
          found[name].append(np.asarray(array)[mask > 0])
    return evaluation.report({name: np.concatenate(arrays) for name, arrays in found.items()})

  return score
