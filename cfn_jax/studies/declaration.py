"""The declaration of a study: its runs, their evaluations, its figures, and its claims.

A study is a file, one of `configs/studies/` or a user's own, whose `get_study` returns plain
mappings. Here they become frozen records, and every fault in them is named. docs/studies.md
describes them.
"""

import dataclasses
import difflib
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cfn_jax import config_files, names, places
from cfn_jax.errors import CfnError

UNITS = {'%': 100.0, 'bits': 1.0, 'steps': 1.0, 'images': 1.0, 'seconds': 1.0}  # and their scales
Reference = tuple[str, ...]  # an evaluation, or '' for the run itself, and the path of its figure
_MISSING: Any = object()


class StudyError(CfnError):
  """A study that cannot be found, read or run, with the place, the fault and the remedy."""


@dataclasses.dataclass(frozen=True)
class Run:
  """A row of the table: a training run for each seed.

  Attributes:
    fields: fields of its config that differ from those of the other rows.
    start: the run whose checkpoint it starts from; '': from random weights.
    stop_when_left: it ends when it has left chance.
    evaluations: the names of its evaluations.
    paper: the paper's figures, by name, in units of the table.
  """

  name: str
  fields: Mapping[str, Any]
  seeds: tuple[int, ...]
  start: str
  stop_when_left: bool
  evaluations: tuple[str, ...]
  paper: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """An evaluation of each run that names it: a config that tests weights, and its fields.

  Attributes:
    config: FILE.py[:VARIANT] or NAME[:VARIANT]; '': the run's own, started from its checkpoint.
  """

  name: str
  config: str
  fields: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Figure:
  """A column of the table: a figure, minus another one, or divided by one."""

  name: str
  take: Reference
  minus: Reference
  over: Reference
  unit: str

  def references(self) -> list[Reference]:
    """Returns the references of the figure."""
    return [each for each in (self.take, self.minus, self.over) if each]


@dataclasses.dataclass(frozen=True)
class Claim:
  """An expected direction, with a sentence: `figure` of one run is higher."""

  says: str
  figure: str
  higher: str
  lower: str


@dataclasses.dataclass(frozen=True)
class Study:
  """A declared study; all its runs share `fields`."""

  name: str
  title: str
  fields: Mapping[str, Any]
  runs: Mapping[str, Run]
  evaluations: Mapping[str, Evaluation]
  figures: Mapping[str, Figure]
  claims: Sequence[Claim]

  def describe(self) -> dict[str, Any]:
    """Returns the study as plain values."""
    return dataclasses.asdict(self)


def leave_out(study: Study, evaluations: Sequence[str]) -> Study:
  """Returns a study without some evaluations: their figures stay empty."""
  for name in evaluations:
    _know(f'--without={",".join(evaluations)}', 'evaluation', name, study.evaluations)
  runs = {
    name: dataclasses.replace(
      run, evaluations=tuple(each for each in run.evaluations if each not in evaluations)
    )
    for name, run in study.runs.items()
  }
  return dataclasses.replace(study, runs=runs)


def replace_seeds(study: Study, seeds: tuple[int, ...]) -> Study:
  """Returns a study all of whose runs have these seeds."""
  runs = {name: dataclasses.replace(run, seeds=seeds) for name, run in study.runs.items()}
  return dataclasses.replace(study, runs=runs)


def check_runs(study: Study, runs: Sequence[str]) -> None:
  """Raises StudyError for a run that the study lacks."""
  for name in runs:
    _know(f'--runs={",".join(runs)}', 'run', name, study.runs)


def list_names() -> list[str]:
  """Returns the names of the studies that come with the package."""
  files = sorted((config_files.find_folder() / 'studies').glob('*.py'))
  return [file.stem for file in files if '\ndef get_study(' in file.read_text(encoding='utf8')]


def load(text: str) -> Study:
  """Reads a study: a name of `list_names`, or a path to a file.

  Raises:
    StudyError: there is none, or it has a fault.
    ConfigError: the file cannot be executed.
  """
  places.check({'--study': text}, given=True)
  path = pathlib.Path(text).expanduser()
  if text in list_names():
    path = config_files.find_folder() / 'studies' / f'{text}.py'
  if path.suffix != '.py' or not os.path.isfile(path):  # noqa: PTH113  (never raises)
    raise StudyError(
      f'--study={names.printable(text)}: one of {", ".join(list_names())}, or a file FILE.py, is '
      f'needed{_guess(text, list_names())}'
    )
  return read(path.stem, config_files.call(path, 'get_study')[1])


def read(name: str, declared: Any) -> Study:
  """Makes a study from the values of its file.

  Raises:
    StudyError: with the faulty part.
  """
  where = f'study {name}'
  top = _take(where, declared, {'title': str, 'runs': Mapping, 'figures': Mapping}, {
    'fields': ({}, Mapping),
    'seeds': ((0,), tuple),
    'evaluations': ({}, Mapping),
    'claims': ((), Sequence),
  })  # fmt: skip
  evaluations = {each: _read_evaluation(where, each, v) for each, v in top['evaluations'].items()}
  figures = {each: _read_figure(where, each, v, evaluations) for each, v in top['figures'].items()}
  runs = {each: _read_run(where, each, v, top) for each, v in top['runs'].items()}
  if not runs or not figures:
    raise StudyError(f'{where}: it needs runs and figures')
  claims = [_read_claim(where, each, runs, figures) for each in top['claims']]
  sentences = [claim.says for claim in claims]
  for says in sentences:
    if sentences.count(says) > 1:
      raise StudyError(f"{where}, claim: '{says}' stands there twice: a verdict has one sentence")
  _check_order(where, runs)
  return Study(name, top['title'], dict(top['fields']), runs, evaluations, figures, claims)


def _read_run(study: str, name: str, declared: Any, top: Mapping[str, Any]) -> Run:
  where = f'{study}, run {name}'
  _check_name(where, name)
  found = _take(where, declared, {}, {
    'fields': ({}, Mapping),
    'seeds': (top['seeds'], tuple),
    'start': ('', str),
    'stop_when_left': (False, bool),
    'evaluations': ((), tuple),
    'paper': ({}, Mapping),
  })  # fmt: skip
  check_seeds(where, found['seeds'])
  _check_fields(where, {**top['fields'], **found['fields']})
  for each in found['evaluations']:
    _know(where, 'evaluation', each, top['evaluations'])
  for each, value in found['paper'].items():
    _know(where, "paper's figure", each, top['figures'])
    if type(value) not in (int, float):
      raise StudyError(f'{where}: paper: {each} = {value!r}: a number is needed')
  if found['start']:
    _know(where, 'start', found['start'], top['runs'])
  return Run(name=name, **found)


def _read_evaluation(study: str, name: str, declared: Any) -> Evaluation:
  where = f'{study}, evaluation {name}'
  _check_name(where, name)
  found = _take(where, declared, {}, {'config': ('', str), 'fields': ({}, Mapping)})
  _check_fields(where, found['fields'])
  return Evaluation(name, **found)


def _read_figure(
  study: str, name: str, declared: Any, evaluations: Mapping[str, Evaluation]
) -> Figure:
  where = f'{study}, figure {name}'
  if not isinstance(name, str):
    raise StudyError(f'{where}: its name is a heading of the table: a text')
  found = _take(
    where, declared, {'take': tuple, 'unit': str}, {'minus': ((), tuple), 'over': ((), tuple)}
  )
  _know(where, 'unit', found['unit'], UNITS)
  figure = Figure(name=name, **found)
  for reference in figure.references():
    if len(reference) < 2 or not all(isinstance(part, str) for part in reference):
      raise StudyError(
        f"{where}: {reference!r}: an evaluation, or '' for the run, and the figure are needed"
      )
    if reference[0]:
      _know(where, 'evaluation', reference[0], evaluations)
  return figure


def _read_claim(
  study: str, declared: Any, runs: Mapping[str, Run], figures: Mapping[str, Figure]
) -> Claim:
  where = f'{study}, claim'
  claim = Claim(**_take(where, declared, dict.fromkeys(('says', 'figure', 'higher', 'lower'), str)))
  _know(where, 'figure', claim.figure, figures)
  needed = {reference[0] for reference in figures[claim.figure].references()} - {''}
  for name in (claim.higher, claim.lower):
    _know(where, 'run', name, runs)
    if absent := needed - {*runs[name].evaluations}:
      raise StudyError(f"{where}: run {name} has no evaluation '{absent.pop()}'")
  if claim.higher == claim.lower:
    raise StudyError(f"{where}: '{claim.higher}' is compared with itself")
  return claim


def check_seeds(where: str, seeds: Sequence[Any]) -> None:
  """Raises StudyError for impossible seeds."""
  if not seeds or any(type(seed) is not int or seed < 0 for seed in seeds):
    raise StudyError(f'{where}: seeds = {seeds!r}: whole numbers, 0 or more, are needed')
  if len({*seeds}) < len(seeds):
    raise StudyError(f'{where}: seeds = {seeds!r}: one is named twice')


def _check_fields(where: str, fields: Mapping[Any, Any]) -> None:
  for name in fields:
    if not isinstance(name, str):
      raise StudyError(f"{where}: fields: {name!r} is no name of a field, such as 'puzzle.grid'")
    if name == 'seed':
      raise StudyError(f"{where}: fields: 'seed': the seeds of a run are its 'seeds'")


def _check_order(study: str, runs: Mapping[str, Run]) -> None:
  """Refuses starts that form a circle, or that have no checkpoint of a run's seed."""
  for name, run in runs.items():
    seen, each = {name}, run
    while each.start:
      if each.start in seen:
        raise StudyError(f'{study}, run {name}: its start leads back to {each.start}')
      seen.add(each.start)
      absent = {*run.seeds} - {*runs[each.start].seeds}
      if absent:
        raise StudyError(
          f'{study}, run {name}: seeds = {run.seeds}: its start {each.start} has only '
          f'{runs[each.start].seeds}'
        )
      each = runs[each.start]


def _take(
  where: str,
  declared: Any,
  needed: Mapping[str, type],
  optional: Mapping[str, tuple[Any, type]] | None = None,
) -> dict[str, Any]:
  """Returns the parts of a mapping, each with its type, and defaults for missing ones."""
  optional = optional or {}
  if not isinstance(declared, Mapping):
    raise StudyError(f'{where}: a mapping is needed, not {type(declared).__name__}')
  for name in declared:
    _know(where, 'part', name, [*needed, *optional])
  found = {}
  for name, kind in (*needed.items(), *((n, kind) for n, (_, kind) in optional.items())):
    value = declared.get(name, optional[name][0] if name in optional else _MISSING)
    if value is _MISSING:
      raise StudyError(f"{where}: it has no '{name}'")
    if not isinstance(value, kind) or (kind is Sequence and isinstance(value, str)):
      raise StudyError(f"{where}: '{name}' = {value!r:.80}: a {kind.__name__.lower()} is needed")
    found[name] = value
  return found


def _check_name(where: str, name: Any) -> None:
  if not isinstance(name, str) or not re.fullmatch(r'\w+', name, re.ASCII):
    raise StudyError(f'{where}: a name is letters, digits and _: it becomes a folder')


def _know(where: str, what: str, name: Any, known: Iterable[str]) -> None:
  if name not in known:
    raise StudyError(f"{where}: there is no {what} '{name}'{_guess(str(name), known)}")


def _guess(name: str, known: Iterable[str]) -> str:
  like = difflib.get_close_matches(name, [*known], 1)
  return f"; did you mean '{like[0]}'?" if like else ''
