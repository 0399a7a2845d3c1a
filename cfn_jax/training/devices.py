"""Data parallelism: batches are split over all devices of all hosts, the state is on each."""

import collections
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AHEAD = 2  # batches on their way to the devices while a step runs


class BatchError(ValueError):
  """A batch that the devices cannot share equally."""


def make_mesh() -> Mesh:
  """Makes a mesh of all devices with one axis, `data`."""
  return jax.make_mesh((jax.device_count(),), ('data',), axis_types=(AxisType.Auto,))


def check_batch(batch_size: int, mesh: Mesh, *, field: str) -> None:
  """Raises BatchError where a batch cannot be split equally over the devices."""
  if batch_size < 1 or batch_size % mesh.size:
    lower = batch_size // mesh.size * mesh.size
    choices = f'{lower} or {lower + mesh.size}' if lower > 0 else f'{mesh.size}'
    raise BatchError(
      f'{field} = {batch_size} cannot be split over {mesh.size} devices: take {choices}'
    )


def replicate(tree: Any, mesh: Mesh) -> Any:
  """Puts a copy of every array on every device."""
  return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


class InFlight:
  """Keeps the host from running far ahead of the devices, whose memory its batches would fill."""

  def __init__(self, steps: int = 2) -> None:
    self._steps = steps
    self._reports: collections.deque[Any] = collections.deque()

  def __call__(self, report: Any) -> None:
    """Takes a step's result, and waits for that of `steps` steps before."""
    self._reports.append(report)
    if len(self._reports) > self._steps:
      jax.block_until_ready(self._reports.popleft())


def put_batch(batch: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
  """Splits this host's rows of a batch over its devices."""
  sharding = NamedSharding(mesh, PartitionSpec('data'))
  return {
    name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()
  }


def put_ahead(
  batches: Iterator[Mapping[str, np.ndarray]], mesh: Mesh
) -> Iterator[dict[str, jax.Array]]:
  """Puts batches on the devices `AHEAD` of their use, so that no step waits for a copy."""
  queue: collections.deque[dict[str, jax.Array]] = collections.deque()
  arriving = (put_batch(batch, mesh) for batch in batches)
  queue.extend(itertools.islice(arriving, AHEAD))
  while queue:
    yield queue.popleft()
    queue.extend(itertools.islice(arriving, 1))
