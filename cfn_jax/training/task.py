"""The interface of a task: everything that the training loop needs to know."""

import dataclasses
import pathlib
from collections.abc import Callable, Generator, Mapping
from typing import Any

import jax
import numpy as np

Batch = Mapping[str, Any]
Params = Any
Batches = Generator[dict[str, np.ndarray], None, None]  # closing it ends its processes
Totals = dict[str, jax.Array]
Execute = Callable[[pathlib.Path], dict[str, Any]]  # runs a config in a workdir


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """One pass over labelled examples, each counted once.

  Attributes:
    batches: starts a pass; every batch has a float32 `mask`, 0 for rows that fill it up.
    measure: compiled; (params, batch) to sums over the rows whose mask is 1.
    report: sums over the whole pass, as Python floats, to the figures that are logged.
  """

  batches: Callable[[], Batches]
  measure: Callable[[Params, Batch], Totals]
  report: Callable[[Mapping[str, float]], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class RowEvaluation:
  """One pass over labelled examples with figures of all of them, such as average precision.

  Attributes:
    batches: as in `Evaluation`.
    measure: compiled; (params, batch) to arrays `[B, ...]`, a row per example.
    report: the rows whose mask is 1, of the whole pass and in its order, to the logged figures.
  """

  batches: Callable[[], Batches]
  measure: Callable[[Params, Batch], Totals]
  report: Callable[[Mapping[str, np.ndarray]], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Task:
  """A task, built from a config.

  Attributes:
    name: one word; it separates the random streams of different tasks.
    init: seed to parameters, on the host.
    loss: compiled; (params, batch, key) to the loss to descend, a mean over the rows, and the sums
      that `report` reads.
    totals: the names of those sums.
    report: the sums since the last logged step and its learning rate, to the figures to log.
    train_batches: (first step, stop) to this host's rows of every batch.
    records: the names of the records in a step's batch, for messages.
    evaluations: by name; their figures are logged under their own names.
    best: the figure by which the best checkpoints are kept. Larger is better, or smaller with a
      minus before its name, as in '-val_loss'.
    labels: parameters to 'weight', 'bias' or 'locked' of each, for the optimizer.
    examples: the examples of a step, for the throughput: name to number.
    fingerprint: the facts that a resumed run must share with its checkpoint: name to value.
    summary: rows of the start-up summary: (what, value).
    chance_loss: the loss of an untrained guess, for the plateau warning, see `plateau.Plateau`.
    chance_margin: distance below it at which a loss has left it; 0: 0.1 bit of a cross-entropy.
    chance_advice: why a loss may not leave it, and what helps.
    write_files: (folder); writes the run's other inputs beside its config, at each start, on every
      host.
    pairs: rows 2i and 2i + 1 of a batch belong together, and stay so in each part of it.
    end_pictures: the names of the files that 'end' draws.
    meta: plain values that are saved with each checkpoint, for its readers.
    pictures: 'start': (folder); 'end': (folder, params, their step); 'bad_batch': (folder, batch).
  """

  name: str
  init: Callable[[int], Params]
  loss: Callable[[Params, Batch, jax.Array], tuple[jax.Array, Totals]]
  totals: tuple[str, ...]
  report: Callable[[Mapping[str, float]], dict[str, float]]
  train_batches: Callable[[int, int], Batches]
  records: Callable[[int], list[str]]
  evaluations: Mapping[str, Evaluation | RowEvaluation]
  best: str
  labels: Callable[[Params], Any]
  examples: Mapping[str, int]
  fingerprint: Mapping[str, Any]
  summary: list[tuple[str, str]]
  chance_loss: float
  pictures: Mapping[str, Callable[..., None]]
  write_files: Callable[[pathlib.Path], None] = lambda workdir: None
  pairs: bool = False
  chance_margin: float = 0.0
  chance_advice: str = 'A larger learning_rate, or other initial values, may start it.'
  end_pictures: tuple[str, ...] = ()
  meta: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def ranked_by(self) -> str:
    """Returns the name of the figure in `best`."""
    return self.best.removeprefix('-')
