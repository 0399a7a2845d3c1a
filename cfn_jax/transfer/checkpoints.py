"""Weights out of a run's checkpoints, on the CPU, whatever devices saved them.

The layout is that of `training/checkpoint.py`: `<workdir>/checkpoints/<step>/state` (arrays) and
`meta` (JSON, with digests of the arrays). Only the parameters are read, not the optimizer's state.
"""

import contextlib
import gc
import json
import logging
import math
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from cfn_jax import terminal
from cfn_jax.training import digests
from cfn_jax.transfer import arrays as array_files
from cfn_jax.transfer import weights as weights_lib

WeightsError = weights_lib.WeightsError

COLLECTIONS = ('params', 'ema')
# How many bytes of parameters a byte on the disk may stand for. Trained ones are hardly compressed;
# Orbax packs zeros, but no network is made of them.
_MAX_PACKING = 100


def find_step(path: pathlib.Path, step: str = 'latest') -> pathlib.Path:
  """Finds the folder of one step.

  Args:
    path: a workdir, its `checkpoints` folder, a step's folder, or `state` in it.
    step: 'latest', 'best' (by the figure of its run) or a number; unused where `path` names a step.

  Raises:
    WeightsError: there is none, or it is not whole.
  """
  if path.name == 'state' and (path.parent / 'meta').exists():
    path = path.parent
  if is_step(path):
    if not (path / 'meta').is_dir():
      raise WeightsError(f'{path}: there is no meta beside the state: the step is not whole')
    return path
  folder = path / 'checkpoints' if (path / 'checkpoints').is_dir() else path
  steps = {
    int(each.name): each
    for each in folder.iterdir()
    if each.name.isdecimal() and (each / 'state').is_dir() and (each / 'meta').is_dir()
  }
  if not steps:
    runs = sorted(each.parent.name for each in path.glob('*/checkpoints'))  # of an evaluation
    hint = f' (its runs have: {", ".join(runs[:10])})' if runs else ''
    raise WeightsError(
      f'{path}: no checkpoint in it{hint}; a workdir, its checkpoints folder, a step or a file of '
      'weights is needed'
    )
  if step == 'latest':
    return steps[max(steps)]
  if step == 'best':
    figures = {each: _figure(folder) for each, folder in steps.items()}
    best = max(steps, key=lambda each: (figures[each], each))
    if figures[best] == -math.inf:
      raise WeightsError(f"{path}: no step was evaluated, so none is the 'best'; take 'latest'")
    return steps[best]
  named = {str(number): folder for number, folder in steps.items()}
  if step not in named:
    listed = ', '.join(map(str, sorted(steps)))
    raise WeightsError(f"{path}: no step '{step}'; there are {listed}, 'latest' and 'best'")
  return named[step]


def is_step(path: pathlib.Path) -> bool:
  """Tells whether a path is a step's folder, or `state` in it."""
  return (path / 'state').is_dir() or (path.name == 'state' and (path.parent / 'meta').exists())


def _figure(folder: pathlib.Path) -> float:
  """Returns what a step is ranked by, larger is better, as `Task.best` says; -inf for nothing."""
  best = str(_read_json(folder / 'meta' / 'metadata').get('best'))
  try:
    figure = float(_read_json(folder / 'metrics' / 'metrics')[best.removeprefix('-')])
    figure = -figure if best.startswith('-') else figure
  except (KeyError, TypeError, ValueError, ArithmeticError):
    return -math.inf
  return figure if math.isfinite(figure) else -math.inf


@contextlib.contextmanager
def _named_errors(folder: pathlib.Path) -> Iterator[None]:
  """Makes one error, which names the step, of all that values of a wrong kind in its JSON raise."""
  try:
    yield
  except WeightsError as error:
    if str(error).startswith(str(folder)):
      raise
    raise WeightsError(f'{folder}: {error}') from error
  except KeyError as error:
    raise WeightsError(f'{folder}: its meta has no {error}') from error
  except (TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
    reason = terminal.first_line(error)
    raise WeightsError(f'{folder}: its meta cannot be read: {reason}') from error


def read_checkpoint(
  path: pathlib.Path, *, step: str = 'latest', collection: str = 'params'
) -> weights_lib.Weights:
  """Reads the weights of a step; see `find_step`.

  Args:
    collection: 'params', or 'ema' where the run kept averaged parameters.

  Raises:
    WeightsError: what is missing or damaged, and where.
  """
  folder = find_step(path, step)
  params, meta = _read_step(folder, collection)
  permutations = _read_permutations(folder.parent.parent / 'permutations.npy')
  origin: dict[str, Any] = {
    'file': str(folder),
    'step': int(folder.name) if folder.name.isdecimal() else 0,
    'weights': collection,
    'metrics': _read_json(folder / 'metrics' / 'metrics'),
    'permutations': permutations,
  }
  with _named_errors(folder):
    network, fingerprint = meta['network'], dict(meta['fingerprint'])
    if asked := _read_questions(folder.parent.parent / 'questions.json', fingerprint):
      origin['questions'] = asked
    return weights_lib.make_weights(
      params,
      order=str(network['order']),
      stride=int(network['stride']),
      record=weights_lib.read_record(network['input']),
      origin=origin | {name: meta[name] for name in ('task', 'config', 'commit', 'fingerprint')},
      padding=int(network['padding']),
    )


def read_params(
  path: pathlib.Path, *, step: str = 'latest', collection: str = 'params'
) -> weights_lib.Params:
  """Reads the parameters of a step, whatever network they are of; see `read_checkpoint`."""
  return _read_step(find_step(path, step), collection)[0]


def _read_step(folder: pathlib.Path, collection: str) -> tuple[weights_lib.Params, dict[str, Any]]:
  """Returns the parameters of a step and its meta, compared with their digests."""
  with _named_errors(folder):
    meta = _read_json(folder / 'meta' / 'metadata')
    if not meta or not digests.is_sealed(meta):
      raise WeightsError(f'{folder} is damaged: meta/metadata is not what was saved')
    saved = meta[digests.ARRAYS]
    if not isinstance(saved, dict):
      raise WeightsError(f'{folder} is damaged: meta/metadata: {digests.ARRAYS} is no object')
    params = _restore(folder / 'state', collection)
    _check_digests(params, saved, collection, folder)
  return params, meta


def _check_digests(
  params: weights_lib.Params,
  saved: Mapping[str, Any],
  collection: str,
  folder: pathlib.Path,
) -> None:
  """Compares the arrays with the digests in the meta."""
  found = {
    f'{collection}/{layer}/{name}': array
    for layer, arrays in params.items()
    for name, array in arrays.items()
  }
  wanted = {name: each for name, each in saved.items() if name.startswith(f'{collection}/')}
  changed = digests.compare(wanted, found)
  if changed:
    raise WeightsError(f'{folder} is damaged: not the arrays that were saved: {changed[0]}, ...')


def _read_json(path: pathlib.Path) -> dict[str, Any]:
  try:
    values = json.loads(path.read_text(encoding='utf8'))
  except (OSError, ValueError, RecursionError):
    return {}
  return values if isinstance(values, dict) else {}


def _read_questions(path: pathlib.Path, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
  """Reads the questions of a run that asks no jigsaws, `{}` where there are none beside it."""
  if not path.exists():
    return {}
  asked = _read_json(path)
  if asked.get('fingerprint') != fingerprint.get('questions'):
    raise WeightsError(
      f'{path} does not hold the questions that the network was trained with; mend it, or move it '
      'away to go without it'
    )
  return asked


def _read_permutations(path: pathlib.Path) -> list[list[int]]:
  """Reads the set of the run, `[]` where there is none beside its checkpoints."""
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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Hushes Orbax's note that one item of a step is no step of its own, and, where a file is
  damaged, the tracebacks of the other reads that are still under way in tensorstore's threads."""
  logger = logging.getLogger('absl')
  level, hook = logger.level, sys.unraisablehook
  logger.setLevel(logging.ERROR)
  sys.unraisablehook = lambda _: None
  try:
    yield
  except Exception:
    time.sleep(0.2)
    gc.collect()
    raise
  finally:
    logger.setLevel(level)
    sys.unraisablehook = hook


def _check_sizes(saved: Mapping[str, Any], folder: pathlib.Path) -> None:
  """Compares what the metadata states with the files, before anything is allocated."""
  stated = sum(
    math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
    for arrays in saved.values()
    for leaf in arrays.values()
  )
  held = sum(path.stat().st_size for path in folder.rglob('*') if path.is_file())
  if stated > _MAX_PACKING * held:
    raise WeightsError(
      f'{folder} is damaged: its metadata states {stated:,} bytes of parameters; the files have '
      f'{held:,}'
    )


def _restore(folder: pathlib.Path, collection: str) -> weights_lib.Params:
  """Reads one tree of parameters as NumPy arrays; shapes and types are those of the metadata."""
  if collection not in COLLECTIONS:
    raise WeightsError(f"weights = '{collection}' is unknown: one of {', '.join(COLLECTIONS)}")
  folder = folder.absolute()
  if '\\' in str(folder) or str(folder).encode('utf8', 'replace') != os.fsencode(folder):
    raise WeightsError(
      f'{folder}: the checkpoint store reads nothing under a path with a backslash, or with bytes '
      'that are no UTF-8; rename the folder'
    )
  try:
    with _quiet(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
      metadata: Any = reader.metadata(folder)
      tree = getattr(metadata.item_metadata, 'tree', metadata.item_metadata)
      saved = tree.get(collection) if isinstance(tree, dict) else None
      if not saved:
        if collection == 'params':
          raise WeightsError(f'{folder}: it cannot be restored: there are no parameters in it')
        raise WeightsError(f'{folder}: the run kept no {collection}')
      _check_sizes(saved, folder)
      target = {
        layer: {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in arrays.items()}
        for layer, arrays in saved.items()
      }
      wanted = {collection: target}
      restored = reader.restore(
        folder,
        args=ocp.args.PyTreeRestore(
          item=wanted,
          restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
          partial_restore=True,
        ),
      )[collection]
  except WeightsError:
    raise
  except Exception as error:  # Orbax and TensorStore raise many kinds for a damaged file
    reason = terminal.first_line(error)
    raise WeightsError(f'{folder}: it cannot be restored: {reason}') from error
  return {
    layer: {name: np.asarray(array) for name, array in arrays.items()}
    for layer, arrays in restored.items()
  }
