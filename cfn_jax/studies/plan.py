"""What a study will run: each training and evaluation with its whole config, checked before any.

Every permutation set is made and the images are opened here, on the CPU; a wrong field, a geometry
that cannot be, or a run that equals another one is an error before the first step.
"""

import contextlib
import copy
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from cfn_jax import config_files, fields, idle
from cfn_jax.buckets import addresses
from cfn_jax.data import pipeline
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import identity, labelled
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import solving
from cfn_jax.jigsaw import task as jigsaw_task
from cfn_jax.models import alexnet
from cfn_jax.studies import declaration, disk, executions
from cfn_jax.training import optimizer, settings

StudyError = declaration.StudyError
# What each run has by default: a run of a study keeps its last checkpoint alone.
DEFAULTS = {'keep_latest': 1, 'keep_best': 0, 'report': False}
# The evaluations whose images have labels.
LABELLED = ('frozen_layers', 'recognition', 'linear_probe', 'knn', 'voc_classification')
# Where things lie is no part of what a run is: the images stand in its settings by content.
PLACES = frozenset(
  {'data.cache_dir', 'data.root', 'data.val_root', 'init_from', 'permutations.file', 'weights'}
)


class Planner:
  """Builds the executions of a study.

  Args:
    config_text: the config of the runs.
    given: its fields that the command line sets; a run's own fields overrule them.
    labelled_root: a folder for the evaluations that need labels; '': the data of the runs.
  """

  def __init__(
    self,
    study: declaration.Study,
    *,
    config_text: str,
    given: Mapping[str, Any],
    workdir: pathlib.Path,
    labelled_root: str = '',
  ) -> None:
    self._study, self._text = study, config_text
    self._given = {name: v for name, v in given.items() if name != 'report'}  # the study's own
    self._workdir, self._labelled = workdir, labelled_root
    self._readers: dict[str, tuple[pipeline.Reader, pipeline.Reader]] = {}
    self._checked: dict[str, dict[str, str]] = {}  # the labelled images of evaluations
    self._loaded: dict[str, ml_collections.ConfigDict] = {}
    self._changed: dict[str, list[str]] = {}  # see config_files.find_changed

  def plan(self) -> list[executions.Execution]:
    """Returns all executions, each after the one that it starts from.

    Raises:
      CfnError: what is wrong, and in which run.
    """
    self._check_given()
    ordered = _order(self._study.runs)
    self._check_differ(ordered)
    found: dict[str, executions.Execution] = {}
    for run in ordered:
      for seed in run.seeds:
        start = found[f'{run.start}_s{seed}'] if run.start else None
        trained = self._plan_run(run, seed, start)
        tests = [
          self._plan_evaluation(run, trained, self._study.evaluations[name])
          for name in run.evaluations
        ]
        found |= {each.name: each for each in (trained, *tests)}
    return [*found.values()]

  def _check_given(self) -> None:
    """Refuses a field of the command line that each run sets for itself."""
    for name in self._given:
      if name == 'seed':
        raise StudyError('--config.seed: the seeds of a study are --seeds=0,1')
      if all(name in run.fields for run in self._study.runs.values()):
        raise StudyError(f'--config.{name} has no effect: each run of the study sets it')

  def _check_differ(self, runs: Sequence[declaration.Run]) -> None:
    """Refuses a run whose config is that of another one."""
    met: dict[str, str] = {}
    for run in runs:
      values = str(fields.flatten(self._make_config(run, 0)))
      if values in met:
        raise StudyError(f'runs {met[values]} and {run.name} of the study differ in nothing')
      met[values] = run.name

  def _make_config(self, run: declaration.Run, seed: int) -> ml_collections.ConfigDict:
    config = self._load(self._text)
    for where, values in (
      ('', DEFAULTS),
      ('the study', self._study.fields),
      ('', self._given),
      (f'run {run.name}', {**run.fields, 'seed': seed}),
    ):
      _update(config, values, where)
    if run.start:
      config.init_from = addresses.show(self._workdir / f'{run.start}_s{seed}')
    with _naming(f'run {run.name}'):
      config_files.check(config)
    return config

  def _plan_run(
    self, run: declaration.Run, seed: int, start: executions.Execution | None
  ) -> executions.Execution:
    config = self._make_config(run, seed)
    with _naming(f'run {run.name}'):
      pretext = self._open(config)
      changes = self._find_changes(config, self._text)
    return executions.Execution(
      name=f'{run.name}_s{seed}',
      run=run.name,
      seed=seed,
      start=start.name if start else '',
      evaluation='',
      config_text=self._text,
      config=config,
      changes=changes,
      identity=_identify(config, jigsaw_task.make_fingerprint(config, pretext), start=start),
      facts=_find_facts(pretext),
      visits=config.num_steps * config.batch_size,
      checkpoint_bytes=disk.count_bytes(config, alexnet.count_parameters(pretext.shapes())),
      stop_when_left=run.stop_when_left,
      trains=True,
    )

  def _plan_evaluation(
    self, run: declaration.Run, trained: executions.Execution, evaluation: declaration.Evaluation
  ) -> executions.Execution:
    where, weights = f'evaluation {evaluation.name}', addresses.show(self._workdir / trained.name)
    of_run = not evaluation.config
    text = self._text if of_run else evaluation.config
    with _naming(where):
      config = self._load(text)
    if of_run:
      _update(config, {**fields.flatten(trained.config), 'init_from': weights}, where)
    else:
      _update(config, {**self._data_of(config), 'weights': weights, 'report': False}, where)
    _update(config, evaluation.fields, where)
    with _naming(f'{where} of run {run.name}'):
      config_files.check(config)
      pretext = self._open(config) if of_run else None
      labels = {} if of_run else self._check_labels(config)
      changes = self._find_changes(config, text)
    known = jigsaw_task.make_fingerprint(config, pretext) if pretext else labels
    size = (
      alexnet.count_parameters(pretext.shapes())
      if pretext
      else disk.count_tested(config, trained.config)
    )
    return executions.Execution(
      name=f'{trained.name}-{evaluation.name}',
      run=run.name,
      seed=trained.seed,
      start=trained.name,
      evaluation=evaluation.name,
      config_text=text,
      config=config,
      changes=changes,
      identity=_identify(config, known, start=trained),
      facts=_find_facts(pretext) if pretext else {},
      visits=config.num_steps * config.batch_size if pretext else 0,
      checkpoint_bytes=disk.count_bytes(config, size),
      stop_when_left=False,
      trains=of_run,
    )

  def _data_of(self, config: ml_collections.ConfigDict) -> dict[str, Any]:
    """Returns the fields of the data of an evaluation that has its own: see `labelled_root`."""
    if not config.data.source:  # it takes those of the run
      return {}
    if self._labelled:
      return {'data.root': self._labelled}
    known = fields.flatten(config)
    return {n: v for n, v in self._given.items() if n.startswith('data.') and n in known}

  def _check_labels(self, config: ml_collections.ConfigDict) -> dict[str, str]:
    """Opens the images of an evaluation that needs labels, each data set once; says which."""
    if config.task not in LABELLED:
      return {}
    multilabel = fields.flatten(config).get('multilabel', config.task == 'voc_classification')
    key = json.dumps([config.data.to_dict(), multilabel], sort_keys=True)
    if key in self._checked:
      return self._checked[key]
    try:
      found = labelled.open_labelled(config, multilabel=multilabel)
    except CfnError as error:
      hint = '--labelled=DIR names class folders, --without leaves an evaluation out'
      raise StudyError(*error.args[:-1], f'{error.args[-1]}; {hint}') from error
    self._checked[key] = {
      'training images': found.training.fingerprint,
      'test images': found.testing.fingerprint,
    }
    return self._checked[key]

  def _find_changes(self, config: ml_collections.ConfigDict, text: str) -> dict[str, Any]:
    """Returns the fields that differ from a config's own; raises where one has no effect."""
    own = fields.flatten(self._load(text))
    changes = {name: v for name, v in fields.flatten(config).items() if own[name] != v}
    if text not in self._changed:
      self._changed[text] = config_files.find_changed(self._load(text))
    idle.check(config, {*changes, *self._changed[text]})
    return changes

  def _load(self, text: str) -> ml_collections.ConfigDict:
    """Returns a config of its own of a text, whose file is executed once."""
    if text not in self._loaded:
      self._loaded[text] = config_files.load(text)
      config_files.check(self._loaded[text])
    return copy.deepcopy(self._loaded[text])

  def _open(self, config: ml_collections.ConfigDict) -> pretexts.Pretext:
    """Opens the task of a run, and the images of each data set once."""
    fields.check_numbers(config, settings.LIMITS)
    settings.make_schedule(config)
    optimizer.check_solver(config.solver)
    key = json.dumps([config.data.to_dict(), config.puzzle.to_dict()], sort_keys=True)
    if key not in self._readers:
      opened = pretexts.open_pretext(config)
      self._readers[key] = (opened.training, opened.validation)
    return pretexts.make_pretext(config, lambda: self._readers[key])


def _order(runs: Mapping[str, declaration.Run]) -> list[declaration.Run]:
  """Returns the runs, each after its start, else as they were declared."""
  found: dict[str, declaration.Run] = {}

  def add(run: declaration.Run) -> None:
    if run.start:
      add(runs[run.start])
    found.setdefault(run.name, run)

  for run in runs.values():
    add(run)
  return [*found.values()]


def _update(config: ml_collections.ConfigDict, values: Mapping[str, Any], where: str) -> None:
  """Sets fields; raises StudyError, which says where they stand, for one that there is not."""
  with _naming(where):
    for name, value in values.items():
      if isinstance(config_files.find_field(config, name), ml_collections.ConfigDict):
        raise StudyError(f"'{name}' is a section: name its fields, as '{name}.FIELD'")
      try:
        config.update_from_flattened_dict({name: value})
      except (TypeError, ValueError) as error:
        raise StudyError(f'{name} = {value!r}: {error}') from None


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
  """Says in an error which part of the study it is of."""
  try:
    yield
  except CfnError as error:
    if not where:
      raise
    raise StudyError(f'{where}: {error.args[0]}', *error.args[1:]) from error


def _identify(
  config: ml_collections.ConfigDict,
  known: Mapping[str, Any],
  *,
  start: executions.Execution | None,
) -> dict[str, Any]:
  """Returns what an execution is: its fields, what it reads, and what its start is."""
  found: dict[str, Any] = json.loads(
    json.dumps(
      {
        **{n: v for n, v in fields.flatten(config).items() if n not in PLACES | identity.SPREAD},
        **known,
        'start': start.name if start else '',
        **({f'start.{n}': v for n, v in start.identity.items()} if start else {}),
      }
    )
  )
  return found


def _find_facts(pretext: pretexts.Pretext) -> dict[str, float]:
  asked = pretext.questions
  facts = {'chance_loss': asked.chance_loss, 'chance_accuracy': asked.chance_accuracy}
  if asked.name == 'jigsaw':
    facts['guess_tile_accuracy'] = solving.guess_tiles(asked.rows)
  return facts
