"""The runs of an evaluation: each is trained, scored once, and remembered.

A run with figures is not repeated, so a stopped evaluation resumes. The results are in
`<workdir>/results.json`.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
from jax.sharding import Mesh

from cfn_jax import places, terminal
from cfn_jax.buckets import addresses
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import identity
from cfn_jax.pictures import class_scores
from cfn_jax.training import (
  devices,
  loop,
  mirror,
  provenance,
  scoring,
  settings,
  step_folders,
  stopping,
)
from cfn_jax.training import task as tasks
from cfn_jax.transfer import checkpoints
from cfn_jax.transfer import weights as weights_lib

Figures = dict[str, Any]
Charts = dict[str, dict[str, dict[str, float]]]
FILE = 'results.json'


@dataclasses.dataclass(frozen=True)
class Run:
  """One training run of an evaluation, with the scoring of its weights.

  Attributes:
    name: the folder under the evaluation's workdir.
    task: the task for the loop.
    passes: the passes at the end, by name. The figures of '' are the run's own; those of others are
      stored under their names.
    settings: facts that change the figures but not the training, besides fields of the config.
    report: (folder of the run, rows of the pass '') to the final figures, instead of that pass's
      own report; it may write files.
  """

  name: str
  task: tasks.Task
  passes: Mapping[str, scoring.AnyEvaluation]
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  report: Callable[[pathlib.Path, Mapping[str, np.ndarray]], Figures] | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
  """The work of an evaluation, opened and checked.

  Attributes:
    runs: the runs in order.
    origins: the sources of the weights, by name: plain values.
    show: prints the table of the figures of the runs, by run.
    charts: pictures by file name: from the runs' figures to each row's figure of each class.
    published: the paper's figures, plain values.
  """

  runs: Sequence[Run]
  origins: Mapping[str, Any]
  show: Callable[[Mapping[str, Figures]], None]
  charts: Callable[[Mapping[str, Figures]], Charts] = lambda figures: {}
  published: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def open_plan(
  make_plan: Callable[[ml_collections.ConfigDict], Plan], config: ml_collections.ConfigDict
) -> tasks.Execute:
  """Checks the fields of the loop and makes the plan; returns the function that executes it."""
  settings.check(config)
  return functools.partial(execute, make_plan(config), config)


def execute(
  plan: Plan, config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> dict[str, Figures]:
  """Completes a plan, writes results.json, prints the table and draws the charts."""
  found = {run.name: execute_run(run, config, workdir / run.name) for run in plan.runs}
  present(
    config,
    workdir,
    found,
    origins=plan.origins,
    show=plan.show,
    charts=plan.charts(found),
    published=plan.published,
  )
  return found


def present(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  found: Mapping[str, Figures],
  *,
  origins: Mapping[str, Any],
  show: Callable[[Mapping[str, Figures]], None],
  charts: Charts | None = None,
  published: Mapping[str, Any] | None = None,
) -> None:
  """Writes results.json, prints the table and draws the charts, on the first host; see `Plan`."""
  if jax.process_index():
    return
  places.write_json(
    workdir / FILE,
    {
      'task': config.task,
      'commit': provenance.find_commit(),
      'command': provenance.find_command(),
      'seed': config.seed,
      'devices': f'{jax.device_count()} x {jax.devices()[0].device_kind}',
      'weights': weights_lib.json_ready(dict(origins)),
      'runs': dict(found),
      'published': dict(published or {}),
      'config': config.to_dict(),
    },
    indent=2,
  )
  show(found)
  class_scores.draw_charts(workdir, charts or {})
  terminal.say(f'everything is in {addresses.show(workdir)}')


def execute_run(run: Run, config: ml_collections.ConfigDict, folder: pathlib.Path) -> Figures:
  """Trains and scores one run, or reads earlier results with the same settings."""

  def compute() -> Figures:
    loop.run(run.task, config, folder)
    params = read_trained(folder, config.num_steps)
    mesh = devices.make_mesh(config.num_devices)
    placed = devices.replicate(params, mesh)
    passes = dict(run.passes)
    if run.report:
      report = functools.partial(run.report, folder)
      passes[''] = dataclasses.replace(passes[''], report=report)
    return score(passes, placed, mesh, kept=f'{run.name} is trained, not scored')

  settings = {**run.task.fingerprint, **identity.describe(config), **run.settings}
  return remember(run.name, settings, folder, compute)


def read_trained(folder: pathlib.Path, num_steps: int) -> weights_lib.Params:
  """Reads the parameters of a run's last step.

  Raises:
    CfnError: the run was trained longer before, and did not keep that step.
  """
  steps = step_folders.find_steps(folder / 'checkpoints')
  if num_steps not in steps and max(steps, default=0) > num_steps:
    raise CfnError(
      f'num_steps = {num_steps}: {addresses.show(folder)} was trained to step {steps[-1]} and kept '
      f'no step {num_steps}; take num_steps = {steps[-1]}, or another --workdir'
    )
  return checkpoints.read_params(folder, step=str(num_steps))


def score(
  passes: Mapping[str, scoring.AnyEvaluation], params: Any, mesh: Mesh, *, kept: str
) -> Figures:
  """Runs passes on parameters, see `Run.passes`; raises Stopped on a signal."""
  figures: Figures = {}
  with stopping.Stopping() as stop:
    for name, evaluation in passes.items():
      found = scoring.make_score(evaluation, mesh)(params, stop)
      if found is None:
        raise stop.make_error(f'{kept}; the same command resumes there')
      figures |= {name: found} if name else found
  return figures


def remember(
  name: str, settings: Mapping[str, Any], folder: pathlib.Path, compute: Callable[[], Figures]
) -> Figures:
  """Computes figures, or reads earlier ones with the same settings."""
  path = folder / 'result.json'
  wanted = json.loads(json.dumps(dict(settings)))
  before = places.read_json(path)
  if not stopping.any_host(before.get('settings') != wanted or 'figures' not in before):
    say(f'{name}: done before, {path}')
    done: Figures = before['figures']
    return done
  if not jax.process_index():
    folder.mkdir(parents=True, exist_ok=True)
  figures: Figures = places.make_plain(compute())
  if not jax.process_index():
    places.write_json(path, {'figures': figures, 'settings': wanted}, indent=2)
    mirror.push(folder)
  return figures


def say(message: str) -> None:
  """Prints the progress of an evaluation, on the first host."""
  if not jax.process_index():
    terminal.say(message)
