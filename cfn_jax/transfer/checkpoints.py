"""Reads weights from a run's checkpoints, on the CPU, whatever devices saved them.

`training/step_folders.py` finds and reads the steps. Here their parameters become weights, with the
network's description, the questions of the run and its figures as their origin.
"""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from cfn_jax import places
from cfn_jax.training import step_folders
from cfn_jax.transfer import arrays as array_files
from cfn_jax.transfer import weights as weights_lib

WeightsError = weights_lib.WeightsError


def find_step(path: pathlib.Path, step: str = 'latest') -> pathlib.Path:
  """Returns the folder of one step.

  Args:
    path: a workdir, its `checkpoints` folder, a step's folder, or `state` in it.
    step: 'latest', 'best' (by the figure of its run) or a number; unused where `path` names a step.

  Raises:
    WeightsError: there is none.
  """
  if is_step(path):
    return path.parent if path.name == 'state' else path
  folder = path / 'checkpoints' if (path / 'checkpoints').is_dir() else path
  steps = [
    number
    for number in step_folders.find_steps(folder)
    if all((folder / str(number) / part).is_dir() for part in ('state', 'meta'))
  ]
  if not steps:
    runs = sorted(each.parent.name for each in path.glob('*/checkpoints'))  # of an evaluation
    hint = f' (its runs have: {", ".join(runs[:10])})' if runs else ''
    raise WeightsError(
      f'{path}: no checkpoint in it{hint}; a workdir, its checkpoints folder, a step or a file of '
      'weights is needed'
    )
  if step == 'latest':
    return folder / str(steps[-1])
  if step == 'best':
    scores = {number: _score(folder / str(number)) for number in steps}
    ranked = [(score, number) for number, score in scores.items() if math.isfinite(score)]
    if not ranked:
      raise WeightsError(f"{path}: no step was evaluated, so none is the 'best'; take 'latest'")
    return folder / str(max(ranked)[1])
  if step not in map(str, steps):
    listed = ', '.join(map(str, steps))
    raise WeightsError(f"{path}: no step '{step}'; there are {listed}, 'latest' and 'best'")
  return folder / step


def is_step(path: pathlib.Path) -> bool:
  """Returns whether a path is a step's folder, or `state` in it."""
  return (path / 'state').is_dir() or (path.name == 'state' and (path.parent / 'meta').exists())


def _score(folder: pathlib.Path) -> float:
  """Returns the figure that ranks a step in its run, larger is better; nan without one."""
  return step_folders.read_score(
    folder, str(places.read_json(folder / 'meta' / 'metadata').get('best'))
  )


def read_checkpoint(
  path: pathlib.Path, *, step: str = 'latest', collection: str = 'params'
) -> weights_lib.Weights:
  """Reads the weights of a step; see `find_step`.

  Args:
    collection: 'params', or 'ema' if the run kept averaged parameters.

  Raises:
    CfnError: with the missing or damaged part, and its place.
  """
  folder = find_step(path, step)
  held, meta = step_folders.read_params(folder, collection)
  params = {name: held[name] for name in weights_lib.LAYERS if name in held}
  origin: dict[str, Any] = {
    'file': str(folder),
    'step': int(folder.name) if folder.name.isdecimal() else 0,
    'weights': collection,
    'metrics': places.read_json(folder / 'metrics' / 'metrics'),
    'permutations': read_permutations(folder),
  }
  with weights_lib.named_errors(folder, 'its meta cannot be read'):
    fingerprint = dict(meta['fingerprint'])
    if len(params) < len(held):  # a decoder's
      origin['notes'] = [f'not read: {", ".join(sorted(set(held) - set(params)))}']
    if asked := _read_questions(folder.parent.parent / 'questions.json', fingerprint):
      origin['questions'] = asked
    told = {name: meta[name] for name in ('network', 'task', 'config', 'commit', 'fingerprint')}
    return weights_lib.from_record(params, told.pop('network'), origin | told)


def read_params(
  path: pathlib.Path, *, step: str = 'latest', collection: str = 'params'
) -> weights_lib.Params:
  """Reads the parameters of a step of any network; see `read_checkpoint`."""
  return step_folders.read_params(find_step(path, step), collection)[0]


def _read_questions(path: pathlib.Path, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
  """Reads the questions of a run without jigsaws; `{}` without a file of them."""
  if not path.exists():
    return {}
  asked = places.read_json(path)
  if asked.get('fingerprint') != fingerprint.get('questions'):
    raise WeightsError(
      f'{path} does not hold the questions that the network was trained with; mend it, or move it '
      'away to go without it'
    )
  return asked


def read_permutations(folder: pathlib.Path) -> list[list[int]]:
  """Reads the permutation set of the run of a step; `[]` without a file beside its checkpoints."""
  path = folder.parent.parent / 'permutations.npy'
  if not path.is_file():
    return []
  hint = 'mend it, or move it away to convert without it'
  try:
    permutations = array_files.load_npy(path)
  except WeightsError as error:
    raise WeightsError(f'{error}; {hint}') from error
  if permutations.dtype.kind not in 'iu' or permutations.ndim != 2:
    held = f'{permutations.dtype} {list(permutations.shape)}'
    raise WeightsError(f'{path} holds {held}, not integers [permutations, tiles]; {hint}')
  if not np.array_equal(
    np.sort(permutations, axis=1),
    np.broadcast_to(np.arange(permutations.shape[1]), permutations.shape),
  ):
    raise WeightsError(f'{path} has rows that are no permutations, counted from 0; {hint}')
  rows: list[list[int]] = permutations.tolist()
  return rows
