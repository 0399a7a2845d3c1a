"""Data parallelism: batches are sharded over all devices of all hosts, which all hold the state."""

import collections
import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.extend.backend
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from cfn_jax import terminal
from cfn_jax.errors import CfnError

PRECISIONS = ('default', 'tensorfloat32', 'float32')  # default: the backend's own choice
EXTRAS = {'cuda': 'cuda12', 'gpu': 'cuda12', 'tpu': 'tpu'}  # of the package, by platform
AHEAD = 2  # batches in transfer to the devices while a step runs


def find_least(number: int) -> int:
  """Returns the least of the hosts' numbers; all hosts call it together."""
  if jax.process_count() == 1:
    return number
  return int(np.min(multihost_utils.process_allgather(np.array(number))))


def take_first(arrays: Any) -> Any:
  """Returns the first host's arrays on all hosts; all call it together."""
  if jax.process_count() == 1:
    return arrays
  return jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(arrays))


class BatchError(CfnError):
  """Missing devices, or a batch that they cannot share equally."""


class PlatformError(CfnError):
  """A requested kind of device that is missing."""


class OutOfMemoryError(CfnError):
  """A device has too little memory for a step or an evaluation; with settings that need less."""


# Fields of a config that reduce memory, and how.
LESS_MEMORY = {
  'batch_size': 'smaller',
  'eval_batch_size': 'smaller',
  'accumulate_steps': 'larger, the batch in parts',
  'remat': 'True, the trunk computed again',
  'compute_dtype': "'bfloat16'",
}


@contextlib.contextmanager
def explain_memory(fields: Mapping[str, Any]) -> Iterator[None]:
  """Adds the remedies when a device runs out of memory; `fields` are those of the config.

  Raises:
    OutOfMemoryError: in place of the runtime's own error.
  """
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    ways = '; '.join(
      f'{name} (now {fields[name]!r}): {way}' for name, way in LESS_MEMORY.items() if name in fields
    )
    raise OutOfMemoryError(
      f'a device ran out of memory ({terminal.first_line(error)}). Less is needed with '
      f'another value of {ways}'
    ) from error


def check_platform() -> None:
  """Starts the devices.

  Raises:
    PlatformError: the environment asks for missing devices; with those that exist, and what to
      install. Or it asks for 64 bits, which no run records.
  """
  if jax.config.values['jax_enable_x64']:
    given = os.environ.get('JAX_ENABLE_X64', '')
    raise PlatformError(f"JAX_ENABLE_X64='{given}': numbers are those of compute_dtype; unset it")
  try:
    jax.devices()
    return
  except (RuntimeError, AssertionError) as error:  # a bare assertion if the plugin is missing
    reason = (str(error) or 'it is not installed').splitlines()[0].partition(' (set JAX')[0]
  flag = 'jax_platforms'
  if reason.startswith('Unknown backend') and jax.config.values['jax_platform_name']:
    flag = 'jax_platform_name'  # chooses among the started ones
  asked, variable = jax.config.values[flag] or '', flag.upper()
  jax.config.update(flag, None)
  try:
    there = ', '.join(jax.extend.backend.backends())
  except (RuntimeError, AssertionError):  # the choice of platforms is not the cause
    given = ', '.join(
      f"{name}='{value}'" for name, value in os.environ.items() if name[:4] == 'JAX_'
    )
    raise PlatformError(
      f'{given}: JAX finds no device ({reason}); unset what is not needed'
    ) from None
  extras = [extra for kind, extra in EXTRAS.items() if kind in asked.split(',')]
  remedy = f"; pip install -e '.[{extras[0]}]' brings it" if extras else ''
  raise PlatformError(
    f"{variable}='{asked}' cannot be had ({reason}): there is {there}, which an unset "
    f'{variable} takes{remedy}'
  )


def make_mesh(count: int = 0) -> Mesh:
  """Makes a mesh with one axis, `data`, of `count` devices; 0: all of all hosts.

  Raises:
    BatchError: there are fewer, or several hosts are to share fewer than all.
  """
  found = jax.device_count()
  if not 0 <= count <= found:
    raise BatchError(f'num_devices = {count}, but there are {found}: at most {found}, 0 for all')
  if count not in (0, found) and jax.process_count() > 1:
    raise BatchError(f'num_devices = {count}: several hosts use all their {found} devices')
  return make_mesh_of(jax.devices()[: count or found])


def make_mesh_of(chosen: Sequence[jax.Device]) -> Mesh:
  """Makes a mesh of devices, which may be absent, in the order of their hosts.

  So the rows of a batch that a host gives lie together, in the order of the hosts. `jax.make_mesh`
  would reorder TPUs by their topology, and with them the examples.
  """
  ordered = sorted(chosen, key=lambda device: (device.process_index, device.id))
  return Mesh(np.array(ordered), ('data',), axis_types=(AxisType.Auto,))


def whole(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of the state: whole on each device."""
  return NamedSharding(mesh, PartitionSpec())


def split(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of a batch: its rows are split over the devices."""
  return NamedSharding(mesh, PartitionSpec('data'))


def describe(tree: Any, sharding: NamedSharding) -> Any:
  """Returns arrays as shapes with shardings, to compile for."""
  return jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=sharding), tree
  )


def set_precision(name: str) -> None:
  """Sets the precision of float32 products; see `PRECISIONS`.

  Raises:
    CfnError: another name.
  """
  if name not in PRECISIONS:
    raise CfnError(f"matmul_precision = '{name}' is unknown: one of {', '.join(PRECISIONS)}")
  jax.config.update('jax_default_matmul_precision', None if name == 'default' else name)


def check_batch(batch_size: int, devices: int, *, field: str, parts: int = 1) -> None:
  """Raises BatchError if a batch, or each of its parts, cannot be split over the devices."""
  if parts < 1:
    raise BatchError(f'accumulate_steps = {parts}: at least 1')
  unit = devices * parts
  if batch_size < 1 or batch_size % unit:
    lower = batch_size // unit * unit
    choices = f'{lower} or {lower + unit}' if lower > 0 else f'{unit}'
    in_parts = f' in {parts} parts' if parts > 1 else ''
    raise BatchError(
      f'{field} = {batch_size} cannot be split over {devices} devices{in_parts}: take {choices}'
    )


def replicate(tree: Any, mesh: Mesh) -> Any:
  """Puts a copy of every array on every device."""
  return jax.device_put(tree, whole(mesh))


class InFlight:
  """Keeps the host from running far ahead of the devices and filling their memory with batches."""

  def __init__(self, steps: int = 2) -> None:
    self._steps = steps
    self._reports: collections.deque[Any] = collections.deque()

  def __call__(self, report: Any) -> None:
    """Accepts a step's result, and waits for the result of `steps` steps before."""
    self._reports.append(report)
    if len(self._reports) > self._steps:
      jax.block_until_ready(self._reports.popleft())


def put_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
  """Splits this host's rows of a batch, `[B / hosts, ...]`, over its devices."""
  return {
    name: jax.make_array_from_process_local_data(split(mesh), rows) for name, rows in batch.items()
  }


def put_ahead(
  batches: Iterator[Mapping[str, np.ndarray]], mesh: Mesh
) -> Iterator[dict[str, jax.Array]]:
  """Puts batches `[B, ...]` on the devices `AHEAD` of their use, so no step waits for a copy."""
  queue: collections.deque[dict[str, jax.Array]] = collections.deque()
  arriving = (put_batch(batch, mesh) for batch in batches)
  queue.extend(itertools.islice(arriving, AHEAD))
  while queue:
    yield queue.popleft()
    queue.extend(itertools.islice(arriving, 1))
