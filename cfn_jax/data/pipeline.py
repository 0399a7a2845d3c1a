"""From records to batches: the same batches, whatever loads them.

The batch at step s is a pure function of (source, seed, batch size, s): place p in the endless
stream of records shows record `order[epoch][p % len]`, and every draw at that place comes from a
generator keyed by (seed, p). A transform turns an image into an example. loading.py spreads the
work over threads and processes. This module starts no JAX backend.
"""

import dataclasses
from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol

import numpy as np

from cfn_jax.data import images, sources, streams
from cfn_jax.data.loading import Loading, LoadingError, run_over
from cfn_jax.errors import CfnError

__all__ = [
  'Batch',
  'Loading',
  'LoadingError',
  'Reader',
  'Transform',
  'Visit',
  'make_evaluation_batches',
  'make_training_batches',
]

Batch = dict[str, np.ndarray]

IN_PROCESS = Loading()
ON_BAD_IMAGE = ('fail', 'skip')
REPLACEMENTS = 100  # records to try in place of a bad one


class Visit(NamedTuple):
  """One visit to an image, the input of a transform."""

  image: np.ndarray  # uint8 [H, W, 3]
  label: int  # -1 without
  record: int  # its place in the source
  name: str
  rng: np.random.Generator
  bad: int  # the record that this one replaces, because it could not be decoded; -1: none
  place: int = 0  # in the endless stream, or in the pass of an evaluation


class Transform(Protocol):
  """Makes one example from a visit: arrays of fixed shapes. It must pickle.

  For groups of more than one step it has `group(visit, count)` too, a list of `count` examples. If
  shapes differ from batch to batch it has `nbytes`, those of the largest example.
  """

  def __call__(self, visit: Visit, /) -> Batch: ...


@dataclasses.dataclass(frozen=True)
class Reader:
  """Reads and decodes the records that training and evaluation visit.

  Attributes:
    seed: the seed of every draw.
    min_side_px: the JPEG decoder may halve images down to this short side; 0: never.
    on_bad_image: `fail`: a file that cannot be decoded raises BadImage; `skip`: another record,
      drawn from (seed, place), takes its place, and `Visit.bad` names it.
  """

  source: sources.Source
  seed: int
  min_side_px: int = 0
  on_bad_image: str = 'fail'

  def __post_init__(self) -> None:
    if self.on_bad_image not in ON_BAD_IMAGE:
      raise CfnError(
        f"data.on_bad_image = '{self.on_bad_image}' is unknown: one of {', '.join(ON_BAD_IMAGE)}"
      )

  def train(self, position: int) -> Visit:
    """Returns the visit at a place of the endless stream."""
    index = streams.record_index(len(self.source), seed=self.seed, position=position)
    return self._visit(index, position, streams.VISIT)._replace(place=position)

  def evaluate(self, index: int, place: int = 0) -> Visit:
    """Returns the visit of an evaluation to a record, at a place of its pass."""
    return self._visit(index, index, streams.EVALUATION)._replace(place=place)

  def decode(self, index: int) -> tuple[sources.Record, np.ndarray]:
    """Returns a record and its image, uint8 `[H, W, 3]`.

    Raises:
      BadImage: with the record and the reason.
    """
    record = self.source[index]
    if isinstance(record.data, np.ndarray):
      return record, record.data
    image = images.decode_image(record.data, name=record.name, min_side_px=self.min_side_px)
    return record, image

  def locate(self, name: str) -> str:
    """Returns a record's name with its folder, for messages, as two records may share a name."""
    return f'{self.source.root}/{name}' if self.source.root else name

  def names(self, positions: range) -> list[str]:
    """Returns the names of the records at places of the endless stream, for messages."""
    length = len(self.source)
    indices = [streams.record_index(length, seed=self.seed, position=p) for p in positions]
    return [self.source[index].name for index in indices]

  def _visit(self, index: int, position: int, stream: int) -> Visit:
    rng = streams.make_rng(self.seed, position, stream)
    try:
      record, image = self.decode(index)
      return Visit(image, record.label, index, record.name, rng, -1)
    except images.BadImage as error:
      bad = images.BadImage(self.locate(error.name), error.reason)
      if self.on_bad_image == 'fail':
        raise bad from error
    others = streams.make_rng(
      self.seed, 2 * position + (stream == streams.EVALUATION), streams.REPLACEMENT
    )
    for _ in range(REPLACEMENTS):
      other = int(others.integers(len(self.source)))
      try:
        record, image = self.decode(other)
        return Visit(image, record.label, other, record.name, rng, index)
      except images.BadImage:
        continue
    raise sources.SourceError(
      f'{bad}; and so are {REPLACEMENTS} records drawn in its place: look at the data set'
    )


@dataclasses.dataclass(frozen=True)
class _TrainingGroup:
  """Makes the batches of a group of steps from the same visits; a group of one is a batch."""

  reader: Reader
  transform: Transform
  batch_size: int
  rows: range
  group: int

  def __call__(self, number: int) -> list[Batch]:
    examples: list[list[Batch]] = [[] for _ in range(self.group)]
    bad = []
    for row in self.rows:
      visit = self.reader.train(number * self.batch_size + row)
      bad.append(visit.bad)
      for batch, example in zip(examples, _transform(self.transform, visit, self.group)):
        batch.append(example)
    return [_stack(batch) | {'bad': np.array(bad)} for batch in examples]


@dataclasses.dataclass(frozen=True)
class _EvaluationBatch:
  """Makes batch i of a pass over some records; rows past the end are zeros with `mask` 0."""

  reader: Reader
  transform: Transform
  batch_size: int
  rows: range
  records: np.ndarray
  group: int = 1

  def __call__(self, number: int) -> list[Batch]:
    first = number * self.batch_size
    indices = [first + row for row in self.rows]
    present = [index for index in indices if index < len(self.records)]
    # A host without rows in the last batch still needs the shapes.
    shown = present or [first]
    visits = [self.reader.evaluate(int(self.records[index]), index) for index in shown]
    batch = _stack([_transform(self.transform, visit)[0] for visit in visits])
    padding = len(indices) - len(visits)
    padded = {
      name: np.concatenate([rows, np.zeros((padding, *rows.shape[1:]), rows.dtype)])
      for name, rows in batch.items()
    }
    bad = np.full(len(indices), -1)
    bad[: len(present)] = [visit.bad for visit in visits][: len(present)]
    mask = np.zeros(len(indices), np.float32)
    mask[: len(present)] = 1
    return [padded | {'mask': mask * (bad < 0), 'bad': bad}]


def make_training_batches(
  reader: Reader,
  transform: Transform,
  *,
  batch_size: int,
  start_step: int,
  stop_step: int,
  group: int = 1,
  loading: Loading = IN_PROCESS,
  on_bad: Callable[[int], None] | None = None,
) -> Generator[Batch, None, None]:
  """Yields the batches of steps `start_step` .. `stop_step - 1`: this host's rows of each.

  Args:
    group: number of consecutive steps that share the visits of one batch, each with another example
      of every visit. A start inside a group makes the whole group and drops its first steps.
    on_bad: called with the number of each record that another one replaced.
  """
  maker = _TrainingGroup(reader, transform, batch_size, loading.rows(batch_size), group)
  groups = range(start_step // group, -(-stop_step // group))
  made = _flatten(reader, maker, groups, loading, on_bad)
  try:
    for step, batch in enumerate(made, start=groups.start * group):
      if step >= stop_step:
        break
      if step >= start_step:
        yield batch
  finally:
    made.close()


def make_evaluation_batches(
  reader: Reader,
  transform: Transform,
  *,
  batch_size: int,
  limit: int = 0,
  first: int = 0,
  loading: Loading = IN_PROCESS,
  on_bad: Callable[[int], None] | None = None,
) -> Generator[Batch, None, None]:
  """Yields the batches of one pass over the records, in order, with draws fixed by (seed, index).

  Each batch has a float32 `mask`: 0 for rows that fill it up and for replaced records, which do not
  count.

  Args:
    limit: at most this many records, see `streams.choose_records`; 0: all.
    first: the place among them to begin at; draws do not depend on it.
    on_bad: called with the number of each such record.
  """
  records = streams.choose_records(reader.source, limit)[first:]
  maker = _EvaluationBatch(reader, transform, batch_size, loading.rows(batch_size), records)
  return _flatten(reader, maker, range(-(-len(records) // batch_size)), loading, on_bad)


def _flatten(
  reader: Reader,
  maker: _TrainingGroup | _EvaluationBatch,
  numbers: range,
  loading: Loading,
  on_bad: Callable[[int], None] | None,
) -> Generator[Batch, None, None]:
  """Yields the batches, and reports the bad records in them."""
  bytes_each = 0
  if loading.num_workers and len(reader.source):
    bytes_each = _measure(maker.transform) * len(maker.rows) * maker.group
  made = run_over(numbers, maker, loading, bytes_each=bytes_each)
  try:
    for batches in made:
      for batch in batches:
        if loading.num_workers:  # copied from the shared memory, which is free again at once
          batch = {name: np.array(rows) for name, rows in batch.items()}
        bad = batch.pop('bad')
        if on_bad is not None:
          for index in bad[bad >= 0]:
            on_bad(int(index))
        yield batch
  finally:
    made.close()


def _measure(transform: Transform) -> int:
  """Returns the bytes of the largest example."""
  known: int | None = getattr(transform, 'nbytes', None)
  if known is not None:
    return known
  grey = np.zeros((64, 64, 3), np.uint8)  # any image will do: examples have one size
  example = _transform(transform, Visit(grey, -1, 0, 'a grey image', streams.make_rng(0, 0), -1))
  return sum(rows.nbytes for rows in example[0].values())


def _transform(transform: Transform, visit: Visit, group: int = 1) -> list[Batch]:
  try:
    if group == 1:
      return [transform(visit)]
    examples: list[Batch] = transform.group(visit, group)  # type: ignore[attr-defined]
    return examples
  except Exception as error:
    raise RuntimeError(f'{visit.name}: {error}') from error


def _stack(examples: list[Batch]) -> Batch:
  return {name: np.stack([example[name] for example in examples]) for name in examples[0]}
