"""The origin of a run: its commit, command and versions, the start-up summary, `starts.jsonl`.

Checkpoints and results name the commit. Each start of a run adds lines to `starts.jsonl`: the
command, the place, the versions, and its end.
"""

import contextlib
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax

from cfn_jax import terminal
from cfn_jax.buckets import addresses
from cfn_jax.training import lock, stopping, store_errors

STARTS = 'starts.jsonl'
LIBRARIES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain', 'numpy')


@functools.cache
def find_commit() -> str:
  """Returns the commit of this package's clone, marked if files differ from it; '' without one."""
  here = pathlib.Path(__file__).resolve()
  try:
    _run_git(here.parent, 'ls-files', '--error-unmatch', here.name)  # not of a clone around it
    return _run_git(here.parent, 'describe', '--always', '--dirty', '--abbrev=40', '--exclude=*')
  except (OSError, subprocess.SubprocessError):
    return ''


def _run_git(folder: pathlib.Path, *arguments: str) -> str:
  done = subprocess.run(
    ['git', *arguments], cwd=folder, capture_output=True, text=True, timeout=20, check=True
  )
  return done.stdout.strip()


def find_command() -> str:
  """Returns the command line of this process, as a shell takes it."""
  return shlex.join(['python', '-m', 'cfn_jax.main', *sys.argv[1:]])


def describe_devices() -> str:
  """Returns how many devices there are, of what kind, and on how many hosts."""
  kinds = {device.device_kind for device in jax.devices()}
  hosts = f' on {jax.process_count()} hosts' if jax.process_count() > 1 else ''
  return f'{jax.device_count()} x {", ".join(sorted(kinds))}{hosts}'


def show_summary(rows: list[tuple[str, str]], workdir: pathlib.Path) -> None:
  """Prints what is about to run, on the first host; `rows`: (what, value)."""
  if jax.process_index():
    return
  terminal.show_pairs(
    [('workdir', addresses.show(workdir)), ('devices', describe_devices()), *rows]
  )


@contextlib.contextmanager
def recorded(workdir: pathlib.Path) -> Iterator[None]:
  """Adds a line to `starts.jsonl` as a start begins, and one as it ends, on the first host.

  The second line has the outcome: 'finished', 'stopped', 'failed', or 'refused' if the workdir is
  that of another run, with the message. A start that is killed leaves none.
  """
  if jax.process_index():
    yield
    return
  begun = time.time()
  mark = {'host': socket.gethostname(), 'pid': os.getpid(), 'begun': begun}
  _append(workdir, mark | _describe_start())
  outcome, message = 'failed', ''
  try:
    yield
    outcome = 'finished'
  except BaseException as error:
    stopped = isinstance(error, stopping.Stopped | KeyboardInterrupt)
    refused = isinstance(error, lock.LockedError) or (
      isinstance(error, store_errors.OtherRunError) and not _has_trained(workdir, begun)
    )
    outcome = 'stopped' if stopped else 'refused' if refused else 'failed'
    message = terminal.describe(error)[0] if isinstance(error, Exception) else type(error).__name__
    raise
  finally:
    _append(workdir, mark | {'ended': time.time(), 'outcome': outcome, 'message': message})


def _has_trained(workdir: pathlib.Path, since: float) -> bool:
  """Returns whether a run of an evaluation was trained, before another one was refused."""
  return any(path.stat().st_mtime > since for path in workdir.rglob('metrics.jsonl'))


def _describe_start() -> dict[str, Any]:
  versions = {'python': platform.python_version()}
  for name in LIBRARIES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[name] = importlib.metadata.version(name)
  return {
    'command': find_command(),
    'folder': os.fsdecode(pathlib.Path.cwd()),
    'commit': find_commit(),
    'devices': describe_devices(),
    'versions': versions,
  }


def _append(workdir: pathlib.Path, line: dict[str, Any]) -> None:
  """Adds a line; where that fails, the run itself has more to say of it."""
  with contextlib.suppress(OSError), (workdir / STARTS).open('a') as file:
    file.write(json.dumps(line) + '\n')
