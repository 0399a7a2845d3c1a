"""Errors and output of Orbax and TensorStore: classified, shortened, silenced."""

import contextlib
import gc
import logging
import pathlib
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from cfn_jax.errors import CfnError

NOW_UNREADABLE = ('PERMISSION_DENIED', 'RESOURCE_EXHAUSTED', 'Too many open files')

Read = TypeVar('Read')


class CheckpointError(CfnError):
  """A checkpoint that cannot be saved, restored or resumed: the step, the reason, the remedy."""


class OtherRunError(CheckpointError):
  """A workdir that holds another run: nothing in it was changed."""


class DamagedError(CheckpointError):
  """A step that differs from what was saved."""


def read_guarded(where: pathlib.Path, read: Callable[[], Read]) -> Read:
  """Distinguishes damaged from temporarily unreadable files, in one short message."""
  with quiet_threads():
    try:
      return read()
    except Exception as error:  # tensorstore and Orbax raise many types
      text = shorten(error)
      passing = isinstance(error, PermissionError | MemoryError)
      passing = passing or any(sign in str(error) for sign in NOW_UNREADABLE)
    time.sleep(0.2)  # until the reads of other arrays have failed too
    gc.collect()
  if passing:
    raise CheckpointError(f'{where} cannot be read: {text}')
  raise DamagedError(f'{where} is damaged: {text}')


@contextlib.contextmanager
def quiet_threads() -> Iterator[None]:
  """Silences what Orbax and tensorstore print about a failure that is also raised.

  After the first array that cannot be read or written, each of the others prints a traceback.
  """

  def report(uncaught: Any) -> None:
    text = str(uncaught.exc_value)
    if text != 'Event loop is closed' and 'See full TensorStore details' not in text:
      hook(uncaught)

  def is_shown(record: logging.LogRecord) -> bool:
    ours = 'orbax' not in pathlib.Path(record.pathname).parts
    return ours and not record.getMessage().startswith('Task exception was never retrieved')

  hook, sys.unraisablehook = sys.unraisablehook, report
  loggers = [logging.getLogger(name) for name in ('absl', 'asyncio')]
  for logger in loggers:
    logger.addFilter(is_shown)
  try:
    yield
  finally:
    for logger in loggers:
      logger.removeFilter(is_shown)
    sys.unraisablehook = hook


def shorten(error: BaseException) -> str:
  """Returns an error's message in a line, without TensorStore's details."""
  text = str(error).partition('See full TensorStore details')[0].strip()
  return textwrap.shorten(text or type(error).__name__, 240, placeholder=' ...')


def list_names(names: list[str]) -> str:
  """Returns a few names and the number of the others, as text."""
  return ', '.join(names[:4]) + (f' and {len(names) - 4} more' if len(names) > 4 else '')
