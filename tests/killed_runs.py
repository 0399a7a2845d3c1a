"""Runs that tests kill: processes of the main command, their children, their shared memory."""

import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
from test_main import REPOSITORY

SHARED_MEMORY = pathlib.Path('/dev/shm')


class Run:
  """A run of the main command in a session of its own; use it as a context, it leaves nothing."""

  def __init__(self, workdir, *arguments, environment=None, log=None, **popen):
    self.workdir = pathlib.Path(workdir)
    self.log = log or self.workdir.with_name(f'{self.workdir.name}.log')
    self.log.parent.mkdir(parents=True, exist_ok=True)
    self._shared = set()
    base = os.environ | {
      'XLA_FLAGS': '--xla_force_host_platform_device_count=1',
      'PYTHONPATH': str(REPOSITORY),
    }
    with self.log.open('w') as file:
      self.process = subprocess.Popen(
        [sys.executable, '-m', 'cfn_jax.main', *arguments, f'--workdir={workdir}'],
        **({'cwd': REPOSITORY} | popen),
        env=base | (environment or {}),
        stdout=file,
        stderr=subprocess.STDOUT,
        start_new_session=True,
      )
    self.members = {self.process.pid}

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self.process.poll() is None:
      self.process.kill()
    self.process.wait()

  def said(self):
    return self.log.read_text(errors='replace')

  def look(self):
    """Notes the processes of the session, and the shared memory that they have open."""
    for pid in find_session(self.process.pid):
      self.members.add(pid)
      try:
        for line in pathlib.Path(f'/proc/{pid}/maps').read_text().splitlines():
          if '/dev/shm/' in line:
            self._shared.add(pathlib.Path(line.split(maxsplit=5)[5].removesuffix(' (deleted)')))
      except OSError:
        pass

  def wait_until(self, condition, timeout=120, pause=0.002):
    """Waits for a condition, or the end of the run; tells whether it came."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and self.process.poll() is None:
      if condition():
        return True
      time.sleep(pause)
    assert self.process.poll() is not None, f'it did not come in {timeout} s:\n{self.said()}'
    return condition()

  def send(self, number):
    """Sends a signal to all of the run's processes, as a terminal and a scheduler do."""
    self.look()
    os.killpg(self.process.pid, number)

  def finish(self, timeout=180):
    """Waits for the end; gives the exit code."""
    code = self.process.wait(timeout)
    self.check_nothing_is_left()
    return code

  def check_nothing_is_left(self, timeout=10):
    deadline = time.monotonic() + timeout
    while find_session(self.process.pid) or any(path.exists() for path in self._shared):
      assert time.monotonic() < deadline, (find_session(self.process.pid), self._shared)
      time.sleep(0.05)


def find_session(leader):
  """Returns the living processes of a session."""
  found = []
  for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
    try:
      state, _, _, session = path.read_text().rpartition(')')[2].split()[:4]
    except (OSError, ValueError):
      continue
    if int(session) == leader and state != 'Z':
      found.append(int(path.parent.name))
  return found


def read_rows(workdir):
  """Returns the whole rows that are there now."""
  path = pathlib.Path(workdir) / 'metrics.jsonl'
  lines = path.read_text().split('\n')[:-1] if path.exists() else []
  return [json.loads(line) for line in lines]


def read_arrays(workdir, step):
  import jax
  import orbax.checkpoint as ocp

  path = pathlib.Path(workdir).resolve() / 'checkpoints' / str(step) / 'state'
  tree = ocp.StandardCheckpointer().restore(path)
  return {
    jax.tree_util.keystr(path): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
  }


def assert_same_arrays(ours, theirs, step, parts=''):
  """Compares all arrays of a step, or those of the named parts of the state."""
  ours, theirs = read_arrays(ours, step), read_arrays(theirs, step)
  assert ours.keys() == theirs.keys() and len(ours) > 30
  for name, array in theirs.items():
    if parts and name.split("'")[1] not in parts:
      continue
    np.testing.assert_array_equal(ours[name], array, err_msg=name)


def is_writing(workdir, part=''):
  """Tells whether a checkpoint is being written, and whether a part of it is there already."""
  for folder in (pathlib.Path(workdir) / 'checkpoints').glob('*.orbax-checkpoint-tmp*'):
    try:
      if not part or any(folder.rglob(part)):
        return True
    except OSError:  # renamed meanwhile
      pass
  return False


def kill(run):
  """Kills the run alone, as the kernel does when memory is short; its children must notice."""
  run.look()
  run.process.kill()
  run.process.wait(30)
  run.check_nothing_is_left()
