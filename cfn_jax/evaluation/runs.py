"""The runs of an evaluation, one after the other: each trained, scored once, and remembered.

A run that has its figures is not repeated, so an evaluation that was stopped resumes where it was.
What an evaluation found is kept in `<workdir>/results.json`.
"""

import dataclasses
import functools
import json
import math
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import ml_collections

from cfn_jax import terminal
from cfn_jax.evaluation import identity
from cfn_jax.pictures import class_scores
from cfn_jax.training import devices, loop, metrics, provenance, scoring, settings, stopping
from cfn_jax.training import task as tasks
from cfn_jax.transfer import checkpoints
from cfn_jax.transfer import weights as weights_lib

Figures = dict[str, Any]
Charts = dict[str, dict[str, dict[str, float]]]
FILE = 'results.json'


@dataclasses.dataclass(frozen=True)
class Run:
  """One training run of an evaluation, and how its weights are scored at the end.

  Attributes:
    name: the folder under the evaluation's workdir.
    task: handed to the loop.
    final: the one pass that returns the run's figures.
    settings: what changes the figures but not the training, besides fields of the config.
    also: further passes, whose figures stand under their names beside those of `final`.
  """

  name: str
  task: tasks.Task
  final: scoring.AnyEvaluation
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  also: Mapping[str, scoring.AnyEvaluation] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Plan:
  """All that an evaluation does, opened and checked.

  Attributes:
    runs: in the order in which they are done.
    origins: where the weights come from, by name: plain values.
    show: prints the table of the figures of the runs, by run.
    charts: pictures: the file's name to each row's figure of each class, of the runs' figures.
    published: the paper's figures beside them, plain values.
  """

  runs: Sequence[Run]
  origins: Mapping[str, Any]
  show: Callable[[Mapping[str, Figures]], None]
  charts: Callable[[Mapping[str, Figures]], Charts] = lambda figures: {}
  published: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def open_plan(
  make_plan: Callable[[ml_collections.ConfigDict], Plan], config: ml_collections.ConfigDict
) -> tasks.Execute:
  """Checks the fields of the loop, makes the plan, and returns what goes through it."""
  settings.check(config)
  return functools.partial(execute, make_plan(config), config)


def execute(
  plan: Plan, config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> dict[str, Figures]:
  """Does what is left of a plan, writes results.json, prints the table and draws the charts."""
  found = {run.name: execute_run(run, config, workdir / run.name) for run in plan.runs}
  write_results(config, workdir, found, origins=plan.origins, published=plan.published)
  if not jax.process_index():
    plan.show(found)
  close(workdir, plan.charts(found))
  return found


def close(workdir: pathlib.Path, charts: Charts) -> None:
  """Draws the bar charts of an evaluation, and says where everything is, on the first host."""
  if jax.process_index():
    return
  class_scores.draw_charts(workdir, charts)
  terminal.say(f'everything is in {workdir}')


def write_results(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  found: Mapping[str, Figures],
  *,
  origins: Mapping[str, Any],
  published: Mapping[str, Any],
) -> None:
  """Writes what an evaluation found, and how, on the first host."""
  if jax.process_index():
    return
  metrics.write_json(
    workdir / FILE,
    {
      'task': config.task,
      'commit': provenance.find_commit(),
      'command': ' '.join(['python', '-m', 'cfn_jax.main', *sys.argv[1:]]),
      'seed': config.seed,
      'devices': f'{jax.device_count()} x {jax.devices()[0].device_kind}',
      'weights': weights_lib.json_ready(dict(origins)),
      'runs': dict(found),
      'published': dict(published),
      'config': config.to_dict(),
    },
  )


def execute_run(run: Run, config: ml_collections.ConfigDict, folder: pathlib.Path) -> Figures:
  """Trains and scores one run, or reads what was found before with the same settings."""

  def compute() -> Figures:
    loop.run(run.task, config, folder)
    params = checkpoints.read_params(folder, step=str(config.num_steps))
    mesh = devices.make_mesh(config.num_devices)
    placed = devices.replicate(params, mesh)
    scored: dict[str, Any] = {}
    with stopping.Stopping() as stop:
      for name, evaluation in {'': run.final, **run.also}.items():
        found = scoring.make_score(evaluation, mesh)(placed, stop)
        if found is None:
          raise stop.make_error(
            f'{run.name} is trained, not scored; the same command resumes there'
          )
        scored |= {name: found} if name else found
    return scored

  return remember(run.name, identify(run, config), folder, compute)


def identify(run: Run, config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns all that the figures of a run depend on, as plain values."""
  return {**run.task.fingerprint, **identity.describe(config), **run.settings}


def remember(
  name: str, settings: Mapping[str, Any], folder: pathlib.Path, compute: Callable[[], Figures]
) -> Figures:
  """Computes figures, or reads those that were found before with the same settings."""
  path = folder / 'result.json'
  wanted = json.loads(json.dumps(dict(settings)))
  before = _read(path)
  if not stopping.any_host(before.get('settings') != wanted):
    say(f'{name}: done before, {path}')
    done: Figures = before['figures']
    return done
  if not jax.process_index():
    folder.mkdir(parents=True, exist_ok=True)
  figures: Figures = make_plain(compute())
  if not jax.process_index():
    metrics.write_json(path, {'figures': figures, 'settings': wanted})
  return figures


def make_plain(value: Any) -> Any:
  """Returns figures as JSON holds them: one that is not a number becomes null."""
  if isinstance(value, Mapping):
    return {str(name): make_plain(each) for name, each in value.items()}
  if isinstance(value, list | tuple):
    return [make_plain(each) for each in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


def _read(path: pathlib.Path) -> dict[str, Any]:
  try:
    values = json.loads(path.read_text(encoding='utf8'))
  except (OSError, ValueError):
    return {}
  return values if isinstance(values, dict) and 'figures' in values else {}


def say(message: str) -> None:
  """Tells on the terminal how far an evaluation is; on the first host."""
  if not jax.process_index():
    terminal.say(message)
