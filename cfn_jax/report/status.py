"""The status of a run from its folder: it trains, is finished, was stopped or has failed.

Nothing is changed: the lock is read, never taken. Without evidence the status is 'unknown'.
"""

import dataclasses
import pathlib
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cfn_jax.buckets import addresses, lease
from cfn_jax.training import lock, provenance

WORDS = ('running', 'finished', 'stopped', 'failed', 'unknown')
Start = Mapping[str, Any]  # a line of starts.jsonl, with the fields of its end if it has one


@dataclasses.dataclass(frozen=True)
class Status:
  """One of `WORDS`, and the evidence."""

  word: str
  why: str


def pair_starts(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """Joins the two lines of each start, see `provenance.recorded`; oldest first."""
  starts: dict[tuple[Any, ...], dict[str, Any]] = {}
  for line in lines:
    mark = tuple(str(line.get(name)) for name in ('host', 'pid', 'begun'))
    starts.setdefault(mark, {}).update(line)
  return list(starts.values())


def leave_refused(starts: Sequence[Start]) -> list[Start]:
  """Returns the starts that were let into the folder."""
  return [start for start in starts if start.get('outcome') != 'refused']


def find(
  folder: pathlib.Path, starts: Sequence[Start], *, step: int, num_steps: int, scored: bool
) -> Status:
  """Returns the status of a run.

  Args:
    starts: see `pair_starts`.
    step: the newest logged or saved one.
    num_steps: the last step; 0: unknown.
    scored: its final figures exist.
  """
  path = folder / lock.NAME
  try:
    owner = lock.read_owner(path) if path.is_file() else {}
    since_renewed = time.time() - path.stat().st_mtime if owner else None
  except OSError as error:
    return Status('unknown', f'{lock.NAME} cannot be read: {error.strerror}')
  if owner:
    watch = lease.WATCH_SECONDS if addresses.find(folder) else lock.WATCH_SECONDS
    late = since_renewed is not None and since_renewed > watch
    return _judge_process(owner, lock.NAME, renewed=not late)
  starts = leave_refused(starts)
  ended = [start for start in starts if 'outcome' in start]
  if starts and 'outcome' not in starts[-1]:
    return _judge_process(starts[-1], provenance.STARTS, renewed=None)
  if ended and ended[-1]['outcome'] in WORDS:
    message = ended[-1].get('message') or f'ended {clock(ended[-1].get("ended"))}'
    return Status(ended[-1]['outcome'], str(message))
  return _judge_files(folder, step=step, num_steps=num_steps, scored=scored)


def _judge_files(folder: pathlib.Path, *, step: int, num_steps: int, scored: bool) -> Status:
  """Returns the status of a run without recorded starts."""
  if scored:
    return Status('finished', 'its figures are there')
  if num_steps and step >= num_steps:
    return Status('finished', f'step {step:,} is the last')
  bad, rows = folder / 'bad_batch.txt', folder / 'metrics.jsonl'
  if bad.is_file() and (not rows.is_file() or bad.stat().st_mtime >= rows.stat().st_mtime):
    return Status('failed', f'after step {step:,}, a loss was not finite: see bad_batch.txt')
  if step and num_steps:
    return Status(
      'stopped', f'at step {step:,} of {num_steps:,}; whether it failed is not recorded'
    )
  return Status('unknown', 'nothing in the folder says how far it is')


def _judge_process(owner: Mapping[str, Any], file: str, *, renewed: bool | None) -> Status:
  """Returns the status of a run without a recorded end, from the process that a file names.

  Args:
    renewed: it was written in time; None for a file without renewals.
  """
  pid, host = owner.get('pid'), str(owner.get('host'))
  who = f'process {pid} on {host}'
  if host == socket.gethostname():
    if not pathlib.Path(f'/proc/{pid}').exists():
      return Status('failed', f'{who} is gone without a word, as one that was killed')
    if renewed is False:
      return Status('unknown', f'{who} is there, but has not renewed its lock: held up, or another')
    return Status('running', who)
  if not renewed:
    return Status('unknown', f'{who} wrote {file}; whether it still runs is not seen from here')
  return Status('running', who)


def clock(seconds: Any) -> str:
  """Returns a time stamp as text; '' for anything else.

  >>> clock('x')
  ''
  """
  try:
    return time.strftime('%Y-%m-%d %H:%M', time.localtime(float(seconds)))
  except (TypeError, ValueError, OverflowError, OSError):
    return ''
