"""One run at a time in a workdir: `run.lock` names the host and process that has it.

The kernel's file lock shows whether the process that wrote the file still lives, on one machine and
on most network file systems. If the file names another host, or the file system has no locks, the
time stamp shows it, which its owner renews. The stamp is watched, not compared with a clock.
"""

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from cfn_jax.errors import CfnError

NAME = 'run.lock'
RENEW_SECONDS = 5.0
WATCH_SECONDS = 20.0  # a lock of another host without renewal for this time is stale
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


class LockedError(CfnError):
  """Another run uses the workdir, with its process and host."""


@contextlib.contextmanager
def hold(workdir: pathlib.Path, say: Callable[[str], None]) -> Iterator[None]:
  """Holds a workdir's lock.

  Args:
    say: prints a note when the lock of a dead process is taken over.

  Raises:
    LockedError: another process has it.
  """
  path = workdir / NAME
  descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
  try:
    _take(path, descriptor, say)
    _write(descriptor, {'host': socket.gethostname(), 'pid': os.getpid(), 'since': time.ctime()})
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(path, ended), daemon=True)
    renewing.start()
    try:
      yield
    finally:
      ended.set()
      renewing.join()
      _write(descriptor, {})
  finally:
    os.close(descriptor)


def _take(path: pathlib.Path, descriptor: int, say: Callable[[str], None]) -> None:
  locked = _lock(descriptor)
  owner = read_owner(path)
  if locked is False:
    raise LockedError(_refuse(path, owner))
  if owner:
    here = owner['host'] == socket.gethostname()
    if (not here or locked is None) and _is_renewed(path, owner, known_here=here):
      raise LockedError(_refuse(path, owner))
    say(f'{path}: process {owner["pid"]} on {owner["host"]} is gone; its lock is taken over')


def _lock(descriptor: int) -> bool | None:
  """Returns whether the kernel granted the lock; None if the file system has none."""
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True
  except OSError as error:
    if error.errno in NO_LOCKS:
      return None
    if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
      return False
    raise


def _is_renewed(path: pathlib.Path, owner: dict[str, Any], *, known_here: bool) -> bool:
  """Watches whether a lock is renewed; returns at once if its process is known to be dead."""
  if known_here and not pathlib.Path(f'/proc/{owner["pid"]}').exists():
    return False
  before, deadline = path.stat().st_mtime_ns, time.monotonic() + WATCH_SECONDS
  while time.monotonic() < deadline:
    time.sleep(0.5)
    if path.stat().st_mtime_ns != before:
      return True
  return False


def _renew(path: pathlib.Path, ended: threading.Event) -> None:
  while not ended.wait(RENEW_SECONDS):
    with contextlib.suppress(OSError):
      os.utime(path)


def _refuse(path: pathlib.Path, owner: dict[str, Any]) -> str:
  who = f'process {owner["pid"]} on {owner["host"]}, since {owner["since"]}' if owner else 'a run'
  return f'{path.parent} is in use by {who}: take another --workdir, or end that run'


def read_owner(path: pathlib.Path) -> dict[str, Any]:
  """Returns the holder of the lock; empty without one, or if the file has none."""
  try:
    owner = json.loads(path.read_bytes()[:1000] or b'{}')
    return owner if {'host', 'pid', 'since'} <= owner.keys() else {}
  except (ValueError, AttributeError):
    return {}


def _write(descriptor: int, owner: dict[str, Any]) -> None:
  text = json.dumps(owner).encode() if owner else b''
  os.ftruncate(descriptor, 0)
  os.pwrite(descriptor, text, 0)
