"""Ties a process to the one that starts it: its end, and the signals that both receive."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker


def end_with(parent: int) -> None:
  """Ends this process within a second of its parent's end, however that came.

  Args:
    parent: its number; it is passed on and not asked for here, since it may be gone already.
  """

  def watch() -> None:
    while os.getppid() == parent:
      time.sleep(0.5)
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def deaf_children() -> Iterator[None]:
  """Lets the processes that this thread starts hear neither Ctrl-C nor SIGTERM, from the first.

  They leave both to the parent. Ignoring the signals once they run would be too late: while they
  still import, each would end with a traceback. Other threads of this process still take the
  signals, so that none is lost.
  """
  resource_tracker.ensure_running()  # which would unblock the signals if it were started below
  before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
