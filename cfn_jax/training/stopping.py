"""Ends a run early, when a scheduler or a user asks for it: SIGTERM or SIGINT.

The first signal is noted: the loop finishes the current step, saves, and exits with 128 + the
signal's number (143, 130). Then the signals have their usual meaning, so a second one ends the
process at once. The loop checks between two batches.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from cfn_jax import terminal

SIGNALS = (signal.SIGTERM, signal.SIGINT)
AGREE_EVERY = 8  # calls between two agreements of several hosts, each of which waits for all


class Stopped(Exception):  # noqa: N818 - not an error: the run did what it was asked
  """A run that ended early because it was asked to.

  Attributes:
    code: the exit code.
  """

  def __init__(self, message: str, code: int) -> None:
    super().__init__(message)
    self.code = code


class Terminated(KeyboardInterrupt):
  """A SIGTERM outside a run: it unwinds the program like Ctrl-C."""


def find_number(error: KeyboardInterrupt) -> signal.Signals:
  """Returns the signal of an interrupt."""
  return signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT


@contextlib.contextmanager
def ending(idle: str = '') -> Iterator[None]:
  """Ends a command that a signal stopped: prints what is kept, and exits with the signal's code.

  Args:
    idle: the message for a signal outside a run; '': such signals pass through.
  """
  try:
    yield
  except Stopped as stopped:
    terminal.say(str(stopped))
    sys.exit(stopped.code)
  except KeyboardInterrupt as error:
    if not idle:
      raise
    number = find_number(error)
    terminal.say(f'{number.name}: {idle}; the same command resumes')
    sys.exit(128 + number)


@contextlib.contextmanager
def interrupted_by_sigterm(*, enabled: bool) -> Iterator[None]:
  """Makes SIGTERM raise `Terminated` outside a `Stopping` context.

  Not for one of several hosts: its unwinding would wait for the others.
  """

  def interrupt(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends at once
    raise Terminated

  if not enabled or threading.current_thread() is not threading.main_thread():
    yield
    return
  before = signal.signal(signal.SIGTERM, interrupt)
  try:
    yield
  finally:
    if signal.getsignal(signal.SIGTERM) is interrupt:
      signal.signal(signal.SIGTERM, before)


_missed = 0  # a signal that came after the last call in a context: the next one has it


class Stopping:
  """A context that notes signals; a call returns whether the run must stop.

  A signal that no call has told of is noted by the next context, as of the next run. Outside the
  main thread, where Python handles no signals, it never must.
  """

  def __init__(self) -> None:
    self.signal = 0  # the first that came
    self._calls = 0
    self._agreed = False
    self._before: dict[int, Any] = {}

  def __enter__(self) -> 'Stopping':
    global _missed
    if threading.current_thread() is threading.main_thread():
      self.signal, _missed = _missed, 0
      if not self.signal:
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
    return self

  def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
    global _missed
    if self.signal and kind is None and not self._agreed:
      _missed = self.signal
    if not self.signal:  # else a second signal still ends the remaining work
      for number, handler in self._before.items():
        signal.signal(number, handler)

  def __call__(self) -> bool:
    """Returns whether to stop; all hosts call it equally often, with the same answer."""
    self._calls += 1
    if jax.process_count() == 1:
      self._agreed = bool(self.signal)
    elif not self._agreed and self._calls % AGREE_EVERY == 1:
      self._agreed = any_host(bool(self.signal))
    return self._agreed

  def make_error(self, what: str) -> Stopped:
    """Builds the exception that ends the run; `what`: the state of the run, for the message."""
    number = self.signal or signal.SIGTERM  # the signal may have come to another host
    return Stopped(f'{signal.Signals(number).name}: {what}', 128 + number)

  def _note(self, number: int, _: FrameType | None) -> None:
    self.signal = self.signal or number
    for each in SIGNALS:
      signal.signal(each, signal.SIG_DFL)
    name = signal.Signals(number).name
    # Not print: the signal may interrupt another one.
    os.write(2, f'\n{name}: finishing the step, then saving; once more ends at once\n'.encode())


def any_host(flag: bool) -> bool:
  """Returns on every host whether the flag is set on any; all hosts call it together."""
  if jax.process_count() == 1:
    return flag
  return bool(np.any(multihost_utils.process_allgather(np.array(flag))))
