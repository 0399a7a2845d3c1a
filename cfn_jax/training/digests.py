"""Digests of the arrays of a checkpoint, which detect any change between save and restore.

Orbax silently restores an array file with a flipped bit. So the JSON item of the same step has
every array's shape, dtype and SHA-256, and a digest of itself. They are computed while the files
are written, and the step counts only once both exist.
"""

import concurrent.futures
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from cfn_jax.errors import CfnError

Digests = dict[str, dict[str, Any]]
ARRAYS, OWN = 'arrays', 'sha256'  # their keys in the JSON item
THREADS = 4  # hashing releases Python's lock


def name_leaves(tree: Any) -> dict[str, Any]:
  """Returns the leaves of a tree by their paths: 'params/conv1/kernel'."""
  return {name_path(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def replace_leaves(tree: Any, leaves: Mapping[str, Any]) -> Any:
  """Returns a tree with leaves of the same names in the places of its own.

  Raises:
    CfnError: there is none for one of its own, as no host holds that whole.
  """
  if spread := [name for name in name_leaves(tree) if name not in leaves]:
    raise CfnError(
      f'{spread[0]} is spread over several hosts, and a run in a bucket saves what each holds '
      'whole: take a --workdir that every host sees, on a disk or mounted'
    )
  return jax.tree.unflatten(jax.tree.structure(tree), [leaves[name] for name in name_leaves(tree)])


def name_path(path: tuple[Any, ...]) -> str:
  """Returns the name of a place in a tree of classes, dicts or tuples."""
  return '/'.join(str(getattr(k, 'name', getattr(k, 'key', getattr(k, 'idx', k)))) for k in path)


def copy_to_host(tree: Any) -> dict[str, np.ndarray]:
  """Copies the arrays `[...]` that this host holds whole; the devices may change theirs meanwhile.

  Arrays that are spread over several hosts are left out: no host can hash them.
  """
  held = {
    name: leaf
    for name, leaf in name_leaves(tree).items()
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated
  }
  return {name: np.array(leaf) for name, leaf in jax.device_get(held).items()}


def describe(leaf: Any) -> str:
  """Returns an array's dtype and shape in words."""
  return f'{leaf.dtype} {list(leaf.shape)}'


def hash_arrays(arrays: Mapping[str, np.ndarray]) -> Digests:
  """Returns the shape, dtype and SHA-256 (of the bytes in C order) of each array `[...]`."""

  def hash_one(array: np.ndarray) -> dict[str, Any]:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    digest = hashlib.sha256(flat.data).hexdigest()
    return {'shape': list(array.shape), 'dtype': str(array.dtype), 'sha256': digest}

  with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
    return dict(zip(arrays, pool.map(hash_one, arrays.values())))


def compare(saved: Mapping[str, Mapping[str, Any]], arrays: Mapping[str, np.ndarray]) -> list[str]:
  """Returns the names of the arrays `[...]` that differ from what was saved."""
  ours = hash_arrays(arrays)
  return [name for name in sorted({*saved, *ours}) if saved.get(name) != ours.get(name)]


def seal(meta: Mapping[str, Any]) -> dict[str, Any]:
  """Adds to a JSON mapping its own digest."""
  return dict(meta) | {OWN: _hash_json(meta)}


def is_sealed(meta: Mapping[str, Any]) -> bool:
  """Returns whether a mapping is an unchanged result of `seal`."""
  rest = {name: value for name, value in meta.items() if name != OWN}
  return bool(meta.get(OWN) == _hash_json(rest))


def _hash_json(value: Any) -> str:
  # Through JSON once: tuples come back as lists, and the digest must not differ.
  text = json.dumps(json.loads(json.dumps(value)), sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


class MetaHandler(ocp.JsonCheckpointHandler):
  """Writes a JSON item with the digests of arrays, computed in the background of the save."""

  async def async_save(
    self, directory: Any, item: Any = None, args: Any = None
  ) -> list[ocp.future.Future] | None:
    """Starts writing; the save is committed once the futures are done."""

    async def write() -> None:
      if jax.process_index() == 0:
        meta = seal({**args.meta, ARRAYS: hash_arrays(args.copies)})
        (directory / 'metadata').write_text(json.dumps(meta))

    future = ocp.future.CommitFutureAwaitingContractedSignals(write(), name='digests')
    return [future]


@ocp.args.register_with_handler(MetaHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class MetaSave(ocp.args.CheckpointArgs):
  """The arguments of `MetaHandler`: the mapping, and host copies of the arrays by name."""

  meta: Mapping[str, Any]
  copies: Mapping[str, np.ndarray]


def open_writer(*, alone: bool) -> ocp.AsyncCheckpointer:
  """Makes what saves steps, with their digests.

  Args:
    alone: each host saves for itself; else all hosts save together.
  """
  number = jax.process_index()
  ours = {'active_processes': {number}, 'barrier_sync_key_prefix': f'host {number}'}
  hosts = ocp.options.MultiprocessingOptions(**ours if alone else {})
  return ocp.AsyncCheckpointer(
    ocp.CompositeCheckpointHandler(
      state=ocp.StandardCheckpointHandler(multiprocessing_options=hosts),
      meta=MetaHandler(),
      metrics=ocp.JsonCheckpointHandler('metrics'),
      composite_options=ocp.CompositeOptions(multiprocessing_options=hosts),
    ),
    multiprocessing_options=hosts,
  )
