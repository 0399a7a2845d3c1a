"""From records to batches, in any number of loader processes, the same batches always.

The batch at step s is a pure function of (source, seed, batch size, s): place p in the endless
stream of records shows record `order[epoch][p % len]`, and every draw at that place comes from a
generator keyed by (seed, p). Grain only spreads the steps over threads and processes. What is made
of an image is the transform's business, which is passed in. No JAX backend is started in here.
"""

import dataclasses
import functools
import os
import signal
import threading
import time
from collections.abc import Generator
from typing import NamedTuple, Protocol

import numpy as np
from absl import flags

from cfn_jax.data import images, sources

Batch = dict[str, np.ndarray]

# The streams of draws that one seed feeds; a new use takes a new number.
VISIT, ORDER, EVALUATION, IMAGE, REPLACEMENT = range(5)


def make_rng(seed: int, position: int, stream: int = VISIT) -> np.random.Generator:
  """Builds the generator of one place in one stream; the same on every host and process."""
  return np.random.Generator(np.random.Philox(key=[seed, position], counter=[0, 0, 0, stream]))


class Visit(NamedTuple):
  """One visit to an image, as a transform sees it."""

  image: np.ndarray  # uint8 [H, W, 3]
  label: int  # -1 without
  record: int  # its place in the source
  name: str
  rng: np.random.Generator


class Transform(Protocol):
  """Makes one example of a visit: arrays of fixed shapes. It must pickle."""

  def __call__(self, visit: Visit, /) -> Batch: ...


@dataclasses.dataclass(frozen=True)
class Loading:
  """How batches are made, which changes nothing of what is in them.

  Attributes:
    num_workers: loader processes; 0 loads in threads of this process.
    num_threads: threads that read, in each process.
    read_ahead_batches: batches held ready by each process.
    host: this host's number, and how many share each batch (`hosts`).
  """

  num_workers: int = 0
  num_threads: int = 1
  read_ahead_batches: int = 2
  host: int = 0
  hosts: int = 1

  def rows(self, batch_size: int) -> range:
    """Gives this host's rows of each batch."""
    if batch_size % self.hosts:
      raise ValueError(f'a batch of {batch_size} cannot be shared by {self.hosts} hosts equally')
    share = batch_size // self.hosts
    return range(self.host * share, (self.host + 1) * share)


def record_index(length: int, *, seed: int, position: int) -> int:
  """Gives the record at a place of the endless stream: each epoch shows every record once."""
  epoch, place = divmod(position, length)
  return int(_epoch_order(length, seed, epoch)[place])


@functools.lru_cache(maxsize=4)
def _epoch_order(length: int, seed: int, epoch: int) -> np.ndarray:
  return make_rng(seed, epoch, ORDER).permutation(length)


@dataclasses.dataclass(frozen=True)
class _TrainingBatches:
  """Makes the batch of a step: rows `rows` of `batch_size`."""

  source: sources.Source
  transform: Transform
  batch_size: int
  seed: int
  min_side_px: int
  rows: range

  def __call__(self, step: int) -> Batch:
    return _stack([self.example(step * self.batch_size + row) for row in self.rows])

  def example(self, position: int) -> Batch:
    visit = training_visit(self.source, position, seed=self.seed, min_side_px=self.min_side_px)
    return _transform(self.transform, visit)


@dataclasses.dataclass(frozen=True)
class _EvaluationBatches:
  """Makes batch i of a pass over all records in order; rows past the end are zeros, `mask` 0."""

  source: sources.Source
  transform: Transform
  batch_size: int
  seed: int
  min_side_px: int
  rows: range
  count: int

  def __call__(self, number: int) -> Batch:
    indices = [number * self.batch_size + row for row in self.rows]
    present = [index for index in indices if index < self.count]
    # A host without a row of the last batch still needs the shapes.
    examples = [self.example(index) for index in present or [0]]
    batch = _stack(examples)
    mask = np.zeros(len(indices), np.float32)
    mask[: len(present)] = 1
    padding = len(indices) - len(examples)
    padded = {
      name: np.concatenate([rows, np.zeros((padding, *rows.shape[1:]), rows.dtype)])
      for name, rows in batch.items()
    }
    return padded | {'mask': mask}

  def example(self, index: int) -> Batch:
    visit = evaluation_visit(self.source, index, seed=self.seed, min_side_px=self.min_side_px)
    return _transform(self.transform, visit)


def make_training_batches(
  source: sources.Source,
  transform: Transform,
  *,
  batch_size: int,
  seed: int,
  start_step: int,
  stop_step: int,
  min_side_px: int = 0,
  loading: Loading = Loading(),
) -> Generator[Batch, None, None]:
  """Gives the batches of steps `start_step` .. `stop_step - 1`: this host's rows of each.

  Args:
    min_side_px: lets the JPEG decoder halve images whose short side stays at least this; 0: never.
  """
  maker = _TrainingBatches(
    source, transform, batch_size, seed, min_side_px, loading.rows(batch_size)
  )
  return _iterate(maker, range(start_step, stop_step), loading)


def make_evaluation_batches(
  source: sources.Source,
  transform: Transform,
  *,
  batch_size: int,
  seed: int,
  limit: int = 0,
  min_side_px: int = 0,
  loading: Loading = Loading(),
) -> Generator[Batch, None, None]:
  """Gives every record once, in order, with draws fixed by (seed, index), and a float32 `mask`.

  Args:
    limit: only the first so many records; 0: all.
  """
  count = min(limit or len(source), len(source))
  maker = _EvaluationBatches(
    source, transform, batch_size, seed, min_side_px, loading.rows(batch_size), count
  )
  return _iterate(maker, range(-(-count // batch_size)), loading)


def training_records(source: sources.Source, *, batch_size: int, seed: int, step: int) -> list[str]:
  """Names the records of a step's batch, for messages."""
  positions = range(step * batch_size, (step + 1) * batch_size)
  return [
    source[record_index(len(source), seed=seed, position=position)].name for position in positions
  ]


def training_visit(
  source: sources.Source, position: int, *, seed: int, min_side_px: int = 0
) -> Visit:
  """Gives the visit at a place of the endless stream of training records."""
  index = record_index(len(source), seed=seed, position=position)
  return _visit(source, index, make_rng(seed, position), min_side_px)


def evaluation_visit(
  source: sources.Source, index: int, *, seed: int, min_side_px: int = 0
) -> Visit:
  """Gives the one visit of an evaluation to a record."""
  return _visit(source, index, make_rng(seed, index, EVALUATION), min_side_px)


def _visit(source: sources.Source, index: int, rng: np.random.Generator, min_side_px: int) -> Visit:
  record = source[index]
  image = record.data
  if not isinstance(image, np.ndarray):
    image = images.decode_image(image, name=record.name, min_side_px=min_side_px)
  return Visit(image, record.label, index, record.name, rng)


def _transform(transform: Transform, visit: Visit) -> Batch:
  try:
    return transform(visit)
  except Exception as error:
    raise RuntimeError(f'{visit.name}: {error}') from error


def _stack(examples: list[Batch]) -> Batch:
  return {name: np.stack([example[name] for example in examples]) for name in examples[0]}


def _iterate(
  maker: _TrainingBatches | _EvaluationBatches, numbers: range, loading: Loading
) -> Generator[Batch, None, None]:
  """Runs a maker over numbers in Grain's threads or processes; closes them when it ends."""
  import grain

  _mark_grain_flags()
  elements = grain.MapDataset.range(numbers.start, numbers.stop).map(maker)
  read = grain.ReadOptions(
    num_threads=loading.num_threads, prefetch_buffer_size=loading.read_ahead_batches
  )
  dataset = elements.to_iter_dataset(read)
  if loading.num_workers:
    options = grain.MultiprocessingOptions(
      num_workers=loading.num_workers, per_worker_buffer_size=loading.read_ahead_batches
    )
    dataset = dataset.mp_prefetch(options, worker_init_fn=_start_worker)
  iterator = iter(dataset)
  try:
    yield from iterator
  finally:
    iterator.close()


def _start_worker(*_: int) -> None:
  """Ties a loader process to its parent: deaf to the signals that a terminal sends to both (the
  parent may still be saving), gone within a second of the parent's end, however that ended."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  parent = os.getppid()

  def watch() -> None:
    while os.getppid() == parent:
      time.sleep(0.5)
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


def _mark_grain_flags() -> None:
  """Lets Grain read its own flags where absl's were never parsed: pytest, notebooks, scripts."""
  if not flags.FLAGS.is_parsed():
    for name in flags.FLAGS:
      if name.startswith('grain_'):
        flags.FLAGS[name].present = 1
