"""Steps whose loss or gradient is not finite: the run stops, or counts them.

Such a step changes no parameter (state.py). It is noticed when the figures of its interval are
read: at the next logged step, and before a save.
"""

import contextlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax

from cfn_jax.buckets import addresses, objects
from cfn_jax.errors import CfnError
from cfn_jax.training import mirror, stopping
from cfn_jax.training import task as tasks

ON_NONFINITE = ('stop', 'skip')


class NonFiniteError(CfnError):
  """A loss or gradient is not finite, with its step, its records, and where to resume."""


def check_choice(choice: str, limit: int) -> None:
  """Raises CfnError for an unknown treatment of such steps."""
  if choice not in ON_NONFINITE:
    raise CfnError(f"on_nonfinite = '{choice}' is unknown: one of {', '.join(ON_NONFINITE)}")
  if limit < 0:
    raise CfnError(f'nonfinite_limit = {limit}: at least 0')


class Watch:
  """Counts the steps that were not finite, over all starts of a run.

  Args:
    choice: 'stop' at the first, or 'skip' up to `limit` of them.
    count: those before this start, from the checkpoint.
    newest: returns the newest checkpoint, -1 for none.
    draw: draws a batch, given its folder and the batch.
    say: prints a message to the user.
  """

  def __init__(
    self,
    task: tasks.Task,
    workdir: pathlib.Path,
    *,
    choice: str,
    limit: int,
    count: int,
    newest: Callable[[], int],
    draw: Callable[[pathlib.Path, Any], None],
    say: Callable[[str], None],
  ) -> None:
    self._task, self._workdir = task, workdir
    self._limit = limit if choice == 'skip' else 0
    self.count = count  # in the stretches that are over
    self._newest, self._draw, self._say = newest, draw, say
    self._told, self._ended = -1, -1

  def __call__(self, report: Mapping[str, Any], step: int, *, ends: bool) -> int:
    """Checks the report of the interval up to `step`; returns the bad steps so far.

    Args:
      ends: the interval ends with this step.

    Raises:
      NonFiniteError: the step may not be skipped.
    """
    first, number = int(report.get('bad_step', -1)), int(report.get('bad_steps', 0))
    total = self.count + (0 if step == self._ended else number)
    if ends:
      self.count, self._ended = total, step
    if first >= 0 and total > self._limit:
      self._stop(first, total, step)
    if first > self._told:
      self._told = first
      self._say(
        f'warning: the loss or its gradient is not finite at step {first}, which is skipped; '
        f'{total} of at most {self._limit} such steps so far'
      )
    return total

  def _stop(self, bad: int, total: int, step: int) -> None:
    with contextlib.closing(self._task.train_batches(bad, bad + 1)) as batches:
      self._draw(self._workdir, next(batches))
    records, saved = self._task.records(bad), self._newest()
    listed = self._workdir / 'bad_batch.txt'
    if jax.process_index() == 0:
      lines = [f'{row}\t{name}\n' for row, name in enumerate(records)]
      listed.write_text(''.join(lines))
      try:
        mirror.push(self._workdir)
      except objects.BucketError as error:  # the loss is what must be told
        self._say(f'warning: {error}')
    stopping.any_host(False)  # the first host that fails may end the others: all wait for the list
    more = f'; {total} steps of at most {self._limit}' if self._limit else ''
    raise NonFiniteError(
      f'the loss or its gradient is not finite at step {bad} (seen at step {step}{more}); '
      f'{len(records)} records, {", ".join(records[:4])} ..., all of them in '
      f'{addresses.show(listed)}; the batch is drawn in '
      f'{addresses.show(self._workdir / "bad_batch.png")}; '
      + (f'the last good checkpoint is step {saved}' if saved >= 0 else 'no checkpoint before it')
      + '; a smaller learning_rate is the usual cure'
    )
