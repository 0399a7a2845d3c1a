"""Reads the contents of workdirs; a missing or damaged part becomes a note.

A workdir is the folder of a training run, or of an evaluation with the folders of its runs. Either
may lie in the other. Everything is only read.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from cfn_jax import config_files, fields
from cfn_jax.errors import CfnError
from cfn_jax.report import files, folders, status
from cfn_jax.training import metrics, provenance, step_folders

NO_FIELD = '(no such field)'


@dataclasses.dataclass
class Recipe:
  """The settings and starts of a run or an evaluation.

  Attributes:
    fields: those of the config, flat; empty if unknown.
    changed: the paper's values of fields that differ from the paper's.
    starts: see `status.pair_starts`.
    meta: for a run: that of the newest readable checkpoint.
    results: for an evaluation: the contents of results.json, or the figures of its runs so far.
  """

  fields: dict[str, Any]
  changed: dict[str, Any]
  starts: list[dict[str, Any]]
  meta: dict[str, Any] = dataclasses.field(default_factory=dict)
  results: dict[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def task(self) -> str:
    """Returns the task of the config; '' if unknown."""
    return str(self.fields.get('task', ''))


@dataclasses.dataclass
class Run:
  """One training run.

  Attributes:
    name: its name in the report.
    notes: missing or damaged parts, and warnings.
  """

  name: str
  folder: pathlib.Path
  recipe: Recipe
  rows: list[metrics.Row]
  status: status.Status
  notes: list[str]

  @property
  def step(self) -> int:
    """Returns the newest logged step."""
    return max((row['step'] for row in self.rows), default=0)

  @functools.cached_property
  def figures(self) -> list[dict[str, float]]:
    """Returns the numbers of each row, see `files.figures`."""
    return [files.figures(row) for row in self.rows]


@dataclasses.dataclass
class Evaluation:
  """The results of an evaluation, complete or so far."""

  name: str
  folder: pathlib.Path
  recipe: Recipe
  notes: list[str]


@dataclasses.dataclass
class Workdir:
  """The contents of one named folder."""

  name: str
  folder: pathlib.Path
  runs: list[Run]
  evaluations: list[Evaluation]
  status: status.Status
  notes: list[str]

  def recipes(self) -> dict[str, Recipe]:
    """Returns the recipes by name; the runs of an evaluation share its recipe."""
    recipes = {run.name: run.recipe for run in self.runs if not self._inside(run)}
    for each in self.evaluations:
      if each.recipe.fields or each.recipe.results.get('command'):
        recipes[f'{each.name}, evaluation' if each.name in recipes else each.name] = each.recipe
    return recipes

  def _inside(self, run: Run) -> bool:
    known = [each.folder for each in self.evaluations if each.recipe.fields]
    return any(run.folder.is_relative_to(folder) and run.folder != folder for folder in known)


def read(workdirs: Sequence[pathlib.Path]) -> list[Workdir]:
  """Reads workdirs.

  Raises:
    CfnError: one is missing or is no workdir, or they have more runs than a report can show.
  """
  names = folders.name_apart(workdirs)
  found = [folders.find(workdir) for workdir in workdirs]
  count = sum(len(runs) + len(evaluations) for runs, evaluations in found)
  if count > folders.LIMIT:
    raise CfnError(
      f'--workdir names {count} runs and evaluations: a report takes {folders.LIMIT} at most; '
      'name fewer'
    )
  alone = len(workdirs) == 1
  return [_read_workdir(*each, alone=alone) for each in zip(workdirs, names, found)]


def _read_workdir(
  folder: pathlib.Path,
  name: str,
  found: tuple[list[pathlib.Path], list[pathlib.Path]],
  *,
  alone: bool,
) -> Workdir:
  notes: list[str] = []
  starts = status.pair_starts(files.read_lines(folder / provenance.STARTS, notes))

  def label(inner: pathlib.Path) -> str:
    if inner == folder:
      return name
    inside = inner.relative_to(folder).as_posix()
    return inside if alone and inside != name else f'{name}/{inside}'

  evaluations = [
    _read_evaluation(inner, label(inner), starts if inner == folder else []) for inner in found[1]
  ]
  runs = [_read_run(inner, label(inner), starts if inner == folder else []) for inner in found[0]]
  own = next((run.status for run in runs if run.folder == folder), None)
  if (folder / folders.STUDY).is_file():
    own = _judge_study(folder, evaluations[0].recipe.results)
  complete = any(e.folder == folder and (folder / folders.RESULTS).is_file() for e in evaluations)
  if own is None:
    own = status.find(folder, starts, step=0, num_steps=0, scored=complete)
    telling = [run for word in ('running', 'failed') for run in runs if run.status.word == word]
    if own.word == 'unknown' and telling:
      own = status.Status(telling[0].status.word, f'{telling[0].name}: {telling[0].status.why}')
    elif own.word == 'unknown' and evaluations:
      own = status.Status('stopped', 'results.json is not written yet; no run is at work')
  return Workdir(name, folder, runs, evaluations, own, notes)


def _judge_study(folder: pathlib.Path, results: Mapping[str, Any]) -> status.Status:
  """Returns the status of a study from its table, and from the runs that are at work."""
  for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
    starts = status.pair_starts(files.read_lines(inner / provenance.STARTS, []))
    found = status.find(inner, starts, step=0, num_steps=0, scored=False)
    if found.word == 'running':
      return status.Status('running', f'{inner.name}: {found.why}')
  rows = results.get('runs')
  rows = rows if isinstance(rows, Mapping) else {}
  holes = [
    f'{name}: {row["missing"]}'
    for name, row in rows.items()
    if isinstance(row, Mapping) and row.get('missing')
  ]
  if rows and not holes:
    return status.Status('finished', 'each of its rows has its figures')
  failed = [hole for hole in holes if ': failed' in hole]
  why, *_ = failed or holes or ['no run has ended']
  return status.Status('failed' if failed else 'stopped', why)


def _read_run(folder: pathlib.Path, name: str, starts: list[dict[str, Any]]) -> Run:
  notes: list[str] = []
  values = fields.flatten(
    files.read_json(folder / 'config.json', notes, 'the settings are not known')
  )
  rows = files.read_rows(folder / 'metrics.jsonl', notes)
  meta = files.read_meta(folder / 'checkpoints', notes)
  newest = max([row['step'] for row in rows] + files.find_steps(folder), default=0)
  num_steps = values.get('num_steps')
  known = status.find(
    folder,
    starts,
    step=newest,
    num_steps=num_steps if isinstance(num_steps, int) else 0,
    scored=(folder / folders.RESULT).is_file(),
  )
  recipe = Recipe(values, _compare(values, notes), starts, meta=meta)
  run = Run(name, folder, recipe, rows, known, notes)
  notes += _warn(run)
  return run


def _compare(values: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
  """Returns the paper's values of the fields that differ in a run, see `NO_FIELD`."""
  if not values:
    return {}
  try:
    paper = config_files.load(config_files.configs_by_task()[values['task']])
  except (KeyError, TypeError, CfnError):
    notes.append(f"no config is made for the task '{values.get('task')}': nothing is compared")
    return {}
  papers = json.loads(json.dumps(fields.flatten(paper)))
  return {
    name: papers.get(name, NO_FIELD)
    for name, value in values.items()
    if name not in papers or papers[name] != value
  }


def _warn(run: Run) -> list[str]:
  """Returns warnings about a run that failed or may have failed."""
  notes = []
  if str(run.recipe.meta.get('commit')).endswith('-dirty'):
    notes.append('files differed from the commit')
  texts = [row for row in run.figures if not all(map(math.isfinite, row.values()))]
  if texts:
    notes.append(f'{len(texts):,} logged steps with figures that are not finite')
  skipped = max((row.get('skipped_steps', 0) for row in run.figures), default=0)
  if skipped > 0:
    notes.append(f'{skipped:,.0f} steps skipped: a loss or gradient was not finite')
  if (run.folder / 'bad_images.tsv').is_file():
    notes.append('images were left out: bad_images.tsv lists them')
  damaged = sorted((run.folder / 'checkpoints').glob(f'{step_folders.DAMAGED}*'))
  if damaged:
    notes.append(f'damaged checkpoints: {step_folders.list_names([p.name for p in damaged])}')
  waits = [row.get('input_wait_fraction', math.nan) for row in run.figures[-20:]]
  waits = [each for each in waits if math.isfinite(each)]
  if waits and sum(waits) / len(waits) > 0.2:
    notes.append(f'{sum(waits) / len(waits):.0%} of the time of steps is waiting for images')
  return notes


def _read_evaluation(folder: pathlib.Path, name: str, starts: list[dict[str, Any]]) -> Evaluation:
  notes: list[str] = []
  if (folder / folders.RESULTS).exists():
    results = files.read_json(folder / folders.RESULTS, notes, 'no table')
  else:
    notes.append('results.json is not there (yet): these are the runs that are done')
    done = [inner for inner, entries in folders.walk(folder) if folders.RESULT in entries]
    results = {
      'runs': {
        inner.relative_to(folder.parent).as_posix(): files.read_json(
          inner / folders.RESULT, notes, 'no figures'
        ).get('figures')
        for inner in done
      }
    }
  config = results.get('config')
  values = fields.flatten(config) if isinstance(config, dict) else {}
  recipe = Recipe(values, _compare(values, notes), starts, results=results)
  return Evaluation(name, folder, recipe, notes)
