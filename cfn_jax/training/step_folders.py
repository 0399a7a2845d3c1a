"""The folders of a run's checkpoints: listed, read with every check, set aside, scored.

A step's folder is `<workdir>/checkpoints/<step>/`; see checkpoint.py. It distinguishes damaged,
incompatible and temporarily unreadable checkpoints.
"""

import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from cfn_jax.buckets import folders
from cfn_jax.training import digests
from cfn_jax.training.store_errors import (
  CheckpointError,
  DamagedError,
  list_names,
  read_guarded,
  shorten,
)

PARTS = ('_CHECKPOINT_METADATA', 'meta/metadata', 'state/_METADATA', 'state/manifest.ocdbt')
UNFINISHED = '.orbax-checkpoint-tmp'  # what Orbax adds to a step's name while it is written
DAMAGED = 'damaged_'
COLLECTIONS = ('params', 'ema')  # the trees of parameters in a state
# The largest number of bytes of parameters per byte on the disk. Trained ones hardly compress;
# Orbax packs zeros, but no network consists of them.
_MAX_PACKING = 100

Params = dict[str, dict[str, np.ndarray]]  # layer, then 'kernel' and 'bias'


def find_steps(folder: pathlib.Path) -> list[int]:
  """Returns the steps in a folder of checkpoints, the newest last; empty without the folder."""
  paths = folder.iterdir() if folder.is_dir() else iter(())
  return sorted(int(path.name) for path in paths if path.name.isdecimal() and path.is_dir())


def read_meta(folder: pathlib.Path) -> dict[str, Any]:
  """Reads the JSON of a step.

  Raises:
    DamagedError: it is incomplete, or another part of the step is missing.
  """
  missing = [name for name in PARTS if not (folder / name).is_file()]
  if missing:
    what = f'without {list_names(missing)}' if any(folder.iterdir()) else 'an empty folder'
    raise DamagedError(f'{folder} is damaged: {what}')
  try:
    meta = json.loads((folder / 'meta' / 'metadata').read_bytes())
    if not digests.is_sealed(meta):
      raise ValueError('not what was saved')
    _check_kinds(meta)
  except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
    reason = f'it has no {error}' if isinstance(error, KeyError) else shorten(error)
    raise DamagedError(f'{folder} is damaged: meta/metadata: {reason}') from error
  return dict(meta)


def check_lost(folder: pathlib.Path, *, logged: int, unsaved: int) -> None:
  """Refuses to begin at step 0 if the checkpoints of a run are missing.

  Args:
    logged: the last step of the run's metrics.jsonl; 0 without one.
    unsaved: steps that may be logged before the first checkpoint is complete.

  Raises:
    CheckpointError: there is no step, but there are damaged ones, or the run had more steps.
  """
  if find_steps(folder):
    return
  signs = sorted(path.name for path in folder.glob(f'{DAMAGED}*'))
  if not signs and logged <= unsaved:
    return
  why = f'only {list_names(signs)}' if signs else f'but metrics.jsonl goes to step {logged}'
  raise CheckpointError(
    f'{folder} holds no checkpoint, {why}: bring the checkpoints back, or take another --workdir; '
    '--config.start_over=True begins at step 0, and writes metrics.jsonl anew'
  )


def read_state(folder: pathlib.Path, target: Any) -> Any:
  """Reads a step's arrays into the structure, shapes, types and shardings of `target`.

  Raises:
    CheckpointError: the step holds other arrays.
    DamagedError: it does not hold what was saved.
  """
  folders.bring(folder)
  saved = read_meta(folder)[digests.ARRAYS]
  abstract = jax.tree.map(_abstract, target)
  leaves = digests.name_leaves(abstract)
  wanted = {name: digests.describe(leaf) for name, leaf in leaves.items()}
  reader = ocp.StandardCheckpointHandler()
  try:
    held = read_guarded(folder, lambda: reader.metadata(folder / 'state').tree)
    found = {name: digests.describe(leaf) for name, leaf in digests.name_leaves(held).items()}
    recorded = {name: f'{each["dtype"]} {each["shape"]}' for name, each in saved.items()}
    astray = [name for name, what in recorded.items() if found.get(name) != what]
    if astray:
      raise DamagedError(f'{folder} is damaged: state/_METADATA: {list_names(astray)}')
    differences = [
      f'{name} is {found.get(name, "missing")}, not {wanted.get(name, "expected")}'
      for name in sorted({*wanted, *found})
      if wanted.get(name) != found.get(name)
    ]
    if differences:
      raise CheckpointError(f'{folder} does not fit this run: {list_names(differences)}')
    # In the structure of what was saved: empty parts, which hold no array, may come and go.
    asked = jax.tree_util.tree_map_with_path(lambda path, _: leaves[digests.name_path(path)], held)
    arguments = ocp.args.StandardRestore(asked)
    restored = read_guarded(folder, lambda: reader.restore(folder / 'state', args=arguments))
  finally:
    reader.close()
  arrays = digests.name_leaves(restored)
  state = jax.tree.unflatten(jax.tree.structure(target), [arrays[name] for name in leaves])
  _check_arrays(folder, saved, digests.copy_to_host(state))
  return state


def read_params(folder: pathlib.Path, collection: str) -> tuple[Params, dict[str, Any]]:
  """Reads one tree of parameters of a step as NumPy arrays, and the step's JSON.

  Shapes and types are those of the files, so no network needs to be known.

  Args:
    collection: 'params' or 'ema'.

  Raises:
    CheckpointError: the step has no such tree, or the store cannot read its path.
    DamagedError: it does not hold what was saved.
  """
  folder = folder.absolute()
  if '\\' in str(folder) or str(folder).encode('utf8', 'replace') != os.fsencode(folder):
    raise CheckpointError(
      f'{folder}: the checkpoint store reads nothing under a path with a backslash, or with bytes '
      'that are no UTF-8; rename the folder'
    )
  if collection not in COLLECTIONS:
    raise CheckpointError(f"weights = '{collection}' is unknown: one of {', '.join(COLLECTIONS)}")
  folders.bring(folder)
  meta = read_meta(folder)
  saved = {k: v for k, v in meta[digests.ARRAYS].items() if k.startswith(f'{collection}/')}
  if not saved and collection != 'params':
    raise CheckpointError(f'{folder}: the run kept no {collection}')
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
    restored = read_guarded(folder, lambda: _restore(reader, folder / 'state', collection))
  found = {
    f'{collection}/{layer}/{name}': array
    for layer, arrays in restored.items()
    for name, array in arrays.items()
  }
  _check_arrays(folder, saved, found)
  return restored, meta


def _check_arrays(
  folder: pathlib.Path, saved: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
  if changed := digests.compare(saved, arrays):
    raise DamagedError(
      f'{folder} is damaged: not the arrays that were saved: {list_names(changed)}'
    )


def _restore(reader: ocp.Checkpointer, folder: pathlib.Path, collection: str) -> Params:
  """Reads one tree, after comparing its stated size with that of the files."""
  metadata: Any = reader.metadata(folder)
  stated = getattr(metadata.item_metadata, 'tree', metadata.item_metadata)[collection]
  leaves = [leaf for arrays in stated.values() for leaf in arrays.values()]
  size = sum(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
  held = sum(path.stat().st_size for path in folder.rglob('*') if path.is_file())
  if size > _MAX_PACKING * held:
    raise ValueError(f'its metadata states {size:,} bytes of parameters; the files have {held:,}')
  target = {
    layer: {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in arrays.items()}
    for layer, arrays in stated.items()
  }
  wanted = {collection: target}
  arguments = ocp.checkpoint_utils.construct_restore_args(wanted)
  restored = reader.restore(
    folder,
    args=ocp.args.PyTreeRestore(item=wanted, restore_args=arguments, partial_restore=True),
  )[collection]
  return {
    layer: {name: np.asarray(array) for name, array in arrays.items()}
    for layer, arrays in restored.items()
  }


def read_back(folder: pathlib.Path, state: Any) -> None:
  """Checks that a step holds what was saved; with several hosts, that it is complete.

  Raises:
    CheckpointError: it is not.
  """
  try:
    if jax.process_count() == 1:
      read_state(folder, state)
    elif jax.process_index() == 0:  # others may see the files later
      read_meta(folder)
  except CheckpointError as error:
    raise CheckpointError(f'what was saved does not read back: {error}') from error


def read_score(folder: pathlib.Path, best: str) -> float:
  """Returns the figure that ranks steps, larger is better; nan without an evaluation.

  Args:
    best: see `Task.best`.
  """
  try:
    figures = json.loads((folder / 'metrics' / 'metrics').read_bytes())
    figure = float(figures[best.removeprefix('-')])
    return -figure if best.startswith('-') else figure
  except (OSError, ValueError, KeyError, TypeError, RecursionError):
    return float('nan')


def add_figures(folder: pathlib.Path, figures: Mapping[str, float]) -> None:
  """Adds an evaluation's figures to a step that was saved before it."""
  if not (folder / 'metrics').exists():
    partial = folder / 'metrics.partial'
    partial.mkdir(exist_ok=True)
    (partial / 'metrics').write_text(json.dumps(dict(figures)))
    partial.rename(folder / 'metrics')


def set_aside(folder: pathlib.Path) -> pathlib.Path:
  """Renames a damaged step, so that nothing mistakes it for a good one; returns its new path."""
  number, target = 1, folder.with_name(f'{DAMAGED}{folder.name}')
  while target.exists():
    number += 1
    target = folder.with_name(f'{DAMAGED}{folder.name}_{number}')
  folder.rename(target)
  return target


def _check_kinds(meta: Mapping[str, Any]) -> None:
  """Raises ValueError, KeyError, TypeError or AttributeError if a value has another type."""
  left = meta.get('unevaluated', {})
  arrays = meta[digests.ARRAYS]
  for name, right in {
    'fingerprint': isinstance(meta['fingerprint'], dict),
    'config': isinstance(meta['config'], dict),
    'unevaluated': isinstance(left, dict) and type(left.get('step', 0)) is int,
    'skipped_steps': type(meta.get('skipped_steps', 0)) is int,
    digests.ARRAYS: isinstance(arrays, dict)
    and all({'dtype', 'shape', 'sha256'} <= set(each) for each in arrays.values()),
  }.items():
    if not right:
      raise ValueError(f"'{name}' is {shorten(ValueError(repr(meta[name])))}")


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, 'sharding', None))
