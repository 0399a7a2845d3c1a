"""The reports of a run: `metrics.jsonl`, TensorBoard events, a progress bar or log lines.

A row of metrics.jsonl belongs to one step and is written when it is complete: the training figures
of the step, and those of an evaluation if one was due.
"""

import contextlib
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tqdm

from cfn_jax import terminal
from cfn_jax.errors import CfnError

Row = dict[str, Any]


class Writer:
  """Writes rows in the order of their steps, to files and to the terminal.

  Args:
    workdir: the run's folder.
    start_step: rows after this step are cut off and written again.
    num_steps: the run's last step.
    notice: gets each row in order; returns a warning, or ''.
    enabled: false on all hosts but the first.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    *,
    start_step: int,
    num_steps: int,
    notice: Callable[[Mapping[str, Any]], str],
    enabled: bool = True,
  ) -> None:
    self._enabled = enabled
    if not enabled:
      return
    import tensorboardX

    self.path = workdir / 'metrics.jsonl'
    rows = [row for row in read_rows(self.path) if row['step'] <= start_step]
    self._notice = notice
    for row in rows:
      self._notice(row)
    text = ''.join(json.dumps(row) + '\n' for row in rows)
    partial = self.path.with_suffix('.partial')
    partial.write_text(text)
    partial.replace(self.path)
    self._file = self.path.open('a')
    self._board = tensorboardX.SummaryWriter(str(workdir), purge_step=start_step + 1)
    self._progress = Progress(start_step, num_steps)

  def __enter__(self) -> 'Writer':
    return self

  def __exit__(self, *_: object) -> None:
    if self._enabled:
      self._progress.close()
      self._board.close()
      with contextlib.suppress(OSError):  # already reported by the failed write
        self._file.close()

  def write(self, row: Mapping[str, Any]) -> None:
    """Writes a complete row, which has `step`, and flushes it."""
    if not self._enabled:
      return
    step = int(row['step'])
    try:
      self._file.write(json.dumps({name: _finite(value) for name, value in row.items()}) + '\n')
      self._file.flush()
      os.fsync(self._file.fileno())  # on the disk before the step's checkpoint
    except OSError as error:
      raise OSError(f'{self.path}: step {step} could not be written: {error.strerror}') from error
    for name, value in row.items():
      if name != 'step' and isinstance(value, int | float) and math.isfinite(value):
        self._board.add_scalar(name, value, step)
    self._progress.show(row)
    warning = self._notice(row)
    if warning:
      self._progress.say(warning)

  def say(self, message: str) -> None:
    """Prints a line above the progress bar."""
    if self._enabled:
      self._progress.say(message)

  def begin(self, step: int) -> None:
    """Starts the clock for the time left, once `step` is done and everything is compiled."""
    if self._enabled:
      self._progress.begin(step)


class Progress:
  """A bar in a terminal; elsewhere a line for each logged step."""

  def __init__(self, start_step: int, num_steps: int) -> None:
    self._num_steps = num_steps
    self._began = time.monotonic()
    self._start = start_step
    self._bar = tqdm.tqdm(
      initial=start_step, total=num_steps, unit='step', disable=not sys.stderr.isatty()
    )

  def begin(self, step: int) -> None:
    """Starts the clock at a step."""
    self._start, self._began = step, time.monotonic()
    if not self._bar.disable:
      self._bar.n = self._bar.initial = step
      self._bar.start_t = time.time()

  def show(self, row: Mapping[str, Any]) -> None:
    """Shows a row: losses, accuracies, throughput and the time left."""
    step = int(row['step'])
    shown = {name: _short(name, row[name]) for name in row if _short(name, row[name])}
    if not self._bar.disable:
      self._bar.set_postfix_str(', '.join(f'{name} {value}' for name, value in shown.items()))
      self._bar.update(step - self._bar.n)
      return
    pieces = [f'step {step}/{self._num_steps}', *(f'{name} {shown[name]}' for name in shown)]
    if step > self._start:
      pace = (time.monotonic() - self._began) / (step - self._start)
      pieces.append(f'left {_clock(pace * (self._num_steps - step))}')
    terminal.say('  '.join(pieces))

  def say(self, message: str) -> None:
    """Prints a line above the bar."""
    with tqdm.tqdm.external_write_mode(file=sys.stderr):
      terminal.say(message)

  def close(self) -> None:
    """Ends the bar in its current state."""
    self._bar.close()


class Stopwatch:
  """Measures the throughput between logged steps, without the time in `paused`."""

  def __init__(self) -> None:
    self.restart()

  def restart(self) -> None:
    """Begins a new interval."""
    self._began = time.perf_counter()
    self._waited = 0.0
    self._steps = 0

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Excludes the time in its context."""
    began = time.perf_counter()
    yield
    self._began += time.perf_counter() - began

  @contextlib.contextmanager
  def waiting(self) -> Iterator[None]:
    """Counts a step, and the time in its context as the wait for its batch."""
    began = time.perf_counter()
    yield
    self._waited += time.perf_counter() - began
    self._steps += 1

  def figures(self, examples: Mapping[str, int]) -> Row:
    """Returns `<name>_per_second` for the examples of a step, and the share of waiting time.

    Empty for an interval without a step: the first step, which is compiled, does not count.
    """
    if not self._steps:
      return {}
    seconds = max(time.perf_counter() - self._began, 1e-9)
    rates = {f'{name}_per_second': self._steps * n / seconds for name, n in examples.items()}
    return rates | {'input_wait_fraction': min(1.0, self._waited / seconds)}


def report_training(sums: Mapping[str, float]) -> dict[str, float]:
  """Returns the figures of the sums `loss`, `correct` and `count` of the logged steps."""
  count = sums['count'] or math.nan  # no step of the interval was finite
  return {
    'train_loss': sums['loss'] / count,
    'train_accuracy': sums['correct'] / count,
    'learning_rate': sums['learning_rate'],
  }


def check_seen(count: float, what: str) -> None:
  """Raises CfnError if none of some images could be read."""
  if not count:
    raise CfnError(
      f'no {what} image can be read, see bad_images.tsv: mend them, or name others as '
      'data.val_root or data.val_split'
    )


def confidence_interval(count: float, total: float, squares: float) -> tuple[float, float]:
  """Returns the 95 % interval of a mean of values in 0..1 over independent examples.

  It is Wilson's score interval for the number of yes-or-no examples with the same variance. For
  values that are 0 or 1 it is Wilson's own.

  Args:
    count, total, squares: number, sum and sum of squares of the values.

  >>> low, high = confidence_interval(100, 50, 50)
  >>> round(low, 3), round(high, 3)
  (0.404, 0.596)
  """
  z, mean = 1.959964, total / count
  variance = squares / count - mean * mean
  if variance > 0 and 0 < mean < 1:
    count = count * mean * (1 - mean) / variance
  centre = mean + z * z / (2 * count)
  spread = z * math.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count))
  whole = 1 + z * z / count
  return (centre - spread) / whole, (centre + spread) / whole


def read_rows(path: pathlib.Path) -> list[Row]:
  """Reads metrics.jsonl: every complete row, which begins with its `step`.

  Other lines are skipped: a kill during a write leaves an incomplete last line.
  """
  rows = []
  lines = path.read_text(errors='replace').splitlines() if path.exists() else []
  for line in lines:
    with contextlib.suppress(ValueError, RecursionError):
      row = json.loads(line)
      if isinstance(row, dict) and type(row.get('step')) is int:
        rows.append(row)
  return rows


def _finite(value: Any) -> Any:
  """Replaces a figure that is not finite by text: JSON has no NaN."""
  return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _short(name: str, value: Any) -> str:
  if name.endswith('loss'):
    return f'{value:.3f}'
  if name.endswith(('accuracy', 'map', 'iou')):
    return f'{value:.1%}'
  return f'{value:,.0f}' if name.endswith('per_second') else ''


def _clock(seconds: float) -> str:
  minutes, seconds = divmod(int(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours}:{minutes:02d}:{seconds:02d}' if hours else f'{minutes}:{seconds:02d}'
