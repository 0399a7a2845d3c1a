"""Runs what is left of a study, one execution after the other, each in a process of its own.

A process, not a call: one that runs out of memory or crashes ends itself alone, each run starts
with fresh devices, and one that has left chance is stopped as any run is, by a signal. A run that
fails is named, those that start from it are left out, and the others run.
"""

import contextlib
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO

from cfn_jax import terminal
from cfn_jax.studies import executions, records, shared
from cfn_jax.training import metrics, stopping

POLL_S = 1.0  # seconds between two looks at what a run has logged
GRACE_S = 3.0  # in which a run says that it has the signal too; else it is passed on
Watch = Callable[[], bool]  # looks at what a run has logged; true: it may stop
# Runs the main command; returns why that failed, '' where it did not.
RunOne = Callable[[list[str], Watch], str]


def execute(
  left: Sequence[executions.Execution],
  workdir: pathlib.Path,
  *,
  run_one: RunOne,
  measured: Callable[[float], None],
  ended: Callable[[], object],
  sync: Callable[[], object] = lambda: None,
) -> None:
  """Runs executions that are not done; of those before, what failed or was stopped resumes.

  Args:
    measured: is told once the images a second of the first run.
    ended: is called after each.
    sync: makes the workdir what it is for others, see `shared.opened`.
  """
  unmeasured = [measured]

  for number, each in enumerate(left):
    folder = workdir / each.name
    failed = records.read_failure(workdir / each.start) if each.start else ''
    if failed:
      records.write_state(each, workdir, 'failed', f'{each.start} failed')
      terminal.say(f'{each.name}: left out, {each.start} failed')
      continue

    before = metrics.read_rows(folder / 'metrics.jsonl')

    def watch(
      each: executions.Execution = each,
      folder: pathlib.Path = folder,
      before: Sequence[metrics.Row] = before,
    ) -> bool:
      if not (unmeasured or each.stop_when_left):
        return False
      rows = metrics.read_rows(shared.find_live(folder) / 'metrics.jsonl')
      if rows[-1:] == before[-1:]:  # a run that resumes can be stopped once it has logged
        return False
      rates = records.list_rates(rows)
      if rates and unmeasured and each.trains:
        unmeasured.pop()(rates[-1])
      return each.stop_when_left and bool(records.has_left(rows, each))

    terminal.say('', f'---- {each.name}, {number + 1} of {len(left)}')
    records.write_state(each, workdir, 'started')
    sync()
    message = run_one(each.command(workdir), watch)
    sync()
    if message:
      terminal.say(f'{each.name} failed: {message}; the others run')
    elif each.trains:
      records.write_figures(each, workdir)
    records.write_state(each, workdir, 'failed' if message else 'finished', message)
    ended()
    sync()


def run_process(arguments: list[str], watch: Watch) -> str:
  """Runs the main command in a process of its own, see `RunOne`.

  Raises:
    Stopped: the run was stopped by a signal, and has saved.
  """
  process = subprocess.Popen(
    [sys.executable, '-m', 'cfn_jax.main', *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    errors='replace',
  )
  assert process.stdout is not None
  output = _Output(process.stdout)
  asked = False
  try:
    while True:
      with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(POLL_S)
        break
      if not asked and watch():
        asked = True
        process.send_signal(signal.SIGTERM)
    output.join()
  except KeyboardInterrupt as error:
    number = stopping.find_number(error)
    _pass_on(process, output, number)
    raise stopping.Stopped(
      f'{number.name}: the run under way is stopped; the same command resumes', 128 + number
    ) from None
  except BaseException:
    process.kill()
    raise
  if code in (128 + signal.SIGTERM, 128 + signal.SIGINT) and not asked:
    raise stopping.Stopped('the run under way was stopped; the same command resumes', code)
  if code in (0, 128 + signal.SIGTERM) and (asked or not code):
    return ''
  return output.find_reason(code)


def _pass_on(process: 'subprocess.Popen[str]', output: '_Output', number: int) -> None:
  """Lets a run save after a signal; a second one would end it at once, and it may have had one."""
  until = time.monotonic() + GRACE_S
  while process.poll() is None and not output.is_stopping and time.monotonic() < until:
    time.sleep(0.1)
  if process.poll() is None and not output.is_stopping:
    process.send_signal(number)
  process.wait()
  output.join()


class _Output(threading.Thread):
  """Prints what a run prints, and keeps what tells how it ends."""

  def __init__(self, stream: IO[str]) -> None:
    super().__init__(daemon=True)
    self._stream = stream
    self._last: list[str] = []
    self.is_stopping = False
    self.start()

  def run(self) -> None:
    """Reads until the run closes its end; closing ours ends a run that nobody hears."""
    with self._stream:
      for line in self._stream:
        terminal.say(line.rstrip('\n'))
        self.is_stopping |= 'finishing the step, then saving' in line
        self._last = [*self._last[-9:], line.strip()]

  def find_reason(self, code: int) -> str:
    """Returns the error that ended a run, in a line."""
    for line in reversed(self._last):
      if line.startswith('error: '):
        return line.removeprefix('error: ')
    if code < 0:
      return f'killed by {signal.Signals(-code).name}'
    return next((line for line in reversed(self._last) if line), f'exit code {code}')
