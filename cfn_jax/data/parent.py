"""Ties a process to its parent: its end, and the signals that both receive."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker


def end_with(parent: int) -> None:
  """Ends this process within a second of its parent's end, whatever its cause.

  Args:
    parent: its process id, from the parent itself, which may have ended already.
  """

  def watch() -> None:
    while os.getppid() == parent:
      time.sleep(0.5)
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def deaf_children() -> Iterator[None]:
  """Makes the processes that this thread starts ignore Ctrl-C and SIGTERM from their start.

  They leave both to the parent. Ignoring the signals once they run would be too late: while they
  import, a signal would end each with a traceback. Other threads of this process still receive the
  signals, so none is lost.
  """
  resource_tracker.ensure_running()  # it would unblock the signals if it started below
  before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
