"""Several processes, as on several hosts: they learn what one learns, and none hangs."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time

import conftest
import pytest
from test_main import SMALL, read_rows, run, without_timings

from cfn_jax.training import distributed

HEARTBEAT_S = 5


def free_port():
  with contextlib.closing(socket.socket()) as probe:
    probe.bind(('127.0.0.1', 0))
    return probe.getsockname()[1]


def start_processes(
  workdir, *arguments, count=2, heartbeat_s=HEARTBEAT_S, address='', environments=({}, {})
):
  """Starts `count` trainers that join; their output goes to files beside the workdir.

  Args:
    address: what they are told instead of the workdir.
    environments: what each has besides.
  """
  environment = os.environ | {
    'XLA_FLAGS': '--xla_force_host_platform_device_count=1',
    'PYTHONPATH': str(conftest.REPOSITORY),
  }
  coordinator = f'127.0.0.1:{free_port()}'
  processes = []
  for index in range(count):
    log = workdir.parent / f'{workdir.name}-{index}.log'
    joined = {
      'mode': 'explicit',
      'coordinator': coordinator,
      'num_processes': count,
      'process_id': index,
      'heartbeat_s': heartbeat_s,
    }
    fields = [f'--config.distributed.{name}={value}' for name, value in joined.items()]
    command = [sys.executable, '-m', 'cfn_jax.main', *SMALL, *arguments, *fields]
    with log.open('w') as file:
      processes.append(
        subprocess.Popen(
          [*command, f'--workdir={address or workdir}'],
          cwd=conftest.REPOSITORY,
          env=environment | environments[index],
          stdout=file,
          stderr=file,
        )
      )
  return processes


def read_log(workdir, index):
  return (workdir.parent / f'{workdir.name}-{index}.log').read_text()


@contextlib.contextmanager
def ended(processes):
  try:
    yield
  finally:
    for process in processes:
      process.kill()
      process.wait()


def wait_for(condition, timeout_s=240):
  deadline = time.monotonic() + timeout_s
  while not condition():
    assert time.monotonic() < deadline, 'waited in vain'
    time.sleep(0.1)


@pytest.mark.slow
def test_two_processes_learn_what_one_learns_and_go_on_as_one(tmp_path):
  together, alone = tmp_path / 'together', tmp_path / 'alone'
  processes = start_processes(together, heartbeat_s=60)
  with ended(processes):
    codes = [process.wait(timeout=300) for process in processes]
  assert codes == [0, 0], read_log(together, 0) + read_log(together, 1)
  result = run(*SMALL, f'--workdir={alone}')
  assert result.returncode == 0, result.stderr
  one, two = (without_timings(read_rows(folder)) for folder in (alone, together))
  for expected, found in zip(one, two, strict=True):
    assert found == pytest.approx(expected, rel=1e-4), expected['step']
  assert 'finished at step 6' in read_log(together, 0)  # the first process alone tells
  assert 'finished' not in read_log(together, 1)
  result = run(*SMALL, '--config.num_steps=7', f'--workdir={together}', devices=4)
  assert result.returncode == 0, result.stderr
  assert 'resuming from step 6' in result.stderr


def test_sigterm_ends_a_process_that_has_joined_and_not_begun():
  """The runtime's own handler would swallow it."""
  code = (
    'import os, signal, time; from cfn_jax.training import distributed; '
    f"distributed.start('explicit', coordinator='127.0.0.1:{free_port()}', num_processes=1, "
    'process_id=0, heartbeat_s=20); os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)'
  )
  done = subprocess.run([sys.executable, '-c', code], cwd=conftest.REPOSITORY, timeout=100)
  assert done.returncode == -signal.SIGTERM


@pytest.mark.slow
@pytest.mark.parametrize('killed', [0, 1])
def test_when_a_process_dies_the_other_ends_and_names_it(killed, tmp_path):
  workdir = tmp_path / 'workdir'
  long = ('--config.num_steps=100000', '--config.eval_every_steps=100000')
  processes = start_processes(workdir, *long)
  with ended(processes):
    metrics = workdir / 'metrics.jsonl'
    wait_for(lambda: metrics.exists() and len(read_rows(workdir)) > 3)
    processes[killed].send_signal(signal.SIGKILL)
    began = time.monotonic()
    code = processes[1 - killed].wait(timeout=30)
    assert code in (distributed.LOST_PEER, -signal.SIGABRT), code  # the runtime's own is the latter
    assert time.monotonic() - began < 30
  said = read_log(workdir, 1 - killed)
  if killed == 1:
    name = f'1 ({socket.gethostname()}, pid {processes[1].pid})'
    by_runtime = re.search(r'tasks are unhealthy[^\n]*\n1\n', said)  # where a save waits for it
    assert f'lost process {name}' in said or (by_runtime and f', {name}' in said)
  else:  # the runtime itself ends those who lose their leader
    assert f'process 0 is the leader ({socket.gethostname()}, pid {processes[0].pid})' in said
    assert 'lost process 0' in said or 'leader task' in said


@pytest.mark.slow
def test_a_signal_to_one_process_stops_and_saves_both(tmp_path):
  workdir = tmp_path / 'workdir'
  long = ('--config.num_steps=100000', '--config.eval_every_steps=100000')
  processes = start_processes(workdir, *long, heartbeat_s=60)
  with ended(processes):
    metrics = workdir / 'metrics.jsonl'
    wait_for(lambda: metrics.exists() and len(read_rows(workdir)) > 3)
    processes[1].send_signal(signal.SIGTERM)
    codes = [process.wait(timeout=30) for process in processes]
  assert codes == [143, 143], read_log(workdir, 0) + read_log(workdir, 1)
  steps = [int(p.name) for p in (workdir / 'checkpoints').iterdir() if p.name.isdigit()]
  assert max(steps) > 0


@pytest.mark.long
@pytest.mark.slow
def test_a_process_that_fails_does_not_leave_the_other_waiting(tmp_path):
  workdir = tmp_path / 'workdir'
  processes = start_processes(workdir, '--config.learning_rate=1e20', '--config.num_steps=100')
  with ended(processes):
    codes = [process.wait(timeout=120) for process in processes]
  assert 0 not in codes
  assert 'not finite at step' in read_log(workdir, 0) + read_log(workdir, 1)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'mode': 'slurm'}, "distributed.mode = 'slurm' is unknown: one of off, auto, explicit"),
    ({'mode': 'off', 'process_id': 1}, "'off' takes no coordinator"),
    ({'mode': 'explicit'}, "distributed.coordinator = '': HOST:PORT"),
    ({'mode': 'explicit', 'coordinator': 'host:port'}, "'host:port': HOST:PORT"),
    ({'mode': 'explicit', 'coordinator': 'a:1'}, 'process_id = 0 of num_processes = 0'),
    (
      {'mode': 'explicit', 'coordinator': 'a:1', 'num_processes': 2, 'process_id': 2},
      'process_id = 2 of num_processes = 2: the processes are counted from 0',
    ),
    ({'heartbeat_s': 0}, 'heartbeat_s = 0: at least 1'),
  ],
)
def test_settings_that_join_nothing_are_refused(fields, message):
  settings = {
    'mode': 'off',
    'coordinator': '',
    'num_processes': 0,
    'process_id': 0,
    'heartbeat_s': 20,
  }
  with pytest.raises(distributed.DistributedError, match=message):
    mode, *_ = (settings := settings | fields).values()
    distributed.check(mode, **{name: settings[name] for name in settings if name != 'mode'})


def test_a_single_process_is_joined_to_no_one_and_named():
  distributed.start('off', coordinator='', num_processes=0, process_id=0, heartbeat_s=20)
  assert distributed.name_processes() == [f'{socket.gethostname()}, pid {os.getpid()}']
