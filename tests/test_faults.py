"""Stopped, damaged, misconfigured, out of room: what a run then does, with real processes."""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import killed_runs
import pytest
from test_main import SMALL, run, without_idle, without_timings

LONG = (
  *SMALL,
  '--config.num_steps=24',
  '--config.eval_every_steps=6',
  '--config.checkpoint_every_steps=5',
  '--config.data.val_crops_per_photograph=60',
)
TINY_IMAGES = ('--config.data.crops_per_photograph=4', '--config.data.val_crops_per_photograph=4')


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('straight') / 'run'
  result = run(*LONG, f'--workdir={workdir}')
  assert result.returncode == 0, result.stderr
  return workdir


@pytest.fixture(scope='module')
def short(tmp_path_factory):
  """A finished run of 6 steps, to be copied."""
  workdir = tmp_path_factory.mktemp('short') / 'run'
  result = run(*SMALL, f'--workdir={workdir}')
  assert result.returncode == 0, result.stderr
  return workdir


@pytest.fixture
def copied(short, tmp_path):
  return pathlib.Path(shutil.copytree(short, tmp_path / 'copied'))


def flip_largest_array(step):
  files = (path for path in (step / 'state').rglob('*') if path.is_file())
  path = max(files, key=os.path.getsize)
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(bytes(content))


def has_step(running, step):
  return any(row['step'] >= step for row in killed_runs.read_rows(running.workdir))


@pytest.mark.slow
def test_a_preempted_run_saves_and_leaves_with_143_and_no_process(tmp_path):
  arguments = (*LONG, '--config.num_steps=10000', '--config.data.num_workers=2')
  with killed_runs.Run(tmp_path / 'run', *arguments) as running:
    running.wait_until(lambda: has_step(running, 8))
    running.send(signal.SIGTERM)
    began = time.monotonic()
    assert running.finish(timeout=30) == 143, running.said()
    assert time.monotonic() - began < 30
    assert len(running.members) >= 3  # the loader processes were there
  (step,) = re.findall(r'SIGTERM: stopped after step (\d+), which is saved', running.said())
  assert (tmp_path / 'run' / 'checkpoints' / step).is_dir()
  assert 'Traceback' not in running.said() and 'leaked' not in running.said()


STOPS = (
  (signal.SIGTERM, 'compile'),
  (signal.SIGINT, 'step'),
  (signal.SIGTERM, 'evaluation'),
  (signal.SIGINT, 'evaluation'),
  (signal.SIGTERM, 'step'),
)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('workers', [0, 2])
def test_stopped_by_either_signal_anywhere_the_run_is_the_uninterrupted_one(
  workers, straight, tmp_path
):
  workdir = tmp_path / 'run'
  arguments = (*LONG, f'--config.data.num_workers={workers}')
  for number, place in STOPS:
    before = len(killed_runs.read_rows(workdir))
    with killed_runs.Run(workdir, *arguments) as running:
      if place == 'compile':
        running.wait_until(lambda: 'run   ' in running.said())
        time.sleep(2)
      elif place == 'step':
        running.wait_until(lambda n=before: len(killed_runs.read_rows(workdir)) > n)
      else:  # the row of step 4, 10, ... comes two steps before an evaluation
        running.wait_until(
          lambda n=before: any(r['step'] % 6 == 4 for r in killed_runs.read_rows(workdir)[n:])
        )
        time.sleep(0.2)
      if running.process.poll() is None:
        running.send(number)
        began = time.monotonic()
        assert running.finish(timeout=30) in (128 + number, 0), running.said()
        assert time.monotonic() - began < 30
  assert run(*arguments, f'--workdir={workdir}').returncode == 0
  ours, theirs = killed_runs.read_rows(workdir), killed_runs.read_rows(straight)
  assert without_timings(ours) == without_timings(theirs)
  killed_runs.assert_same_arrays(workdir, straight, 24)
  assert (workdir / 'answers.png').read_bytes() == (straight / 'answers.png').read_bytes()


BEFORE = """
import os, signal, sys
from absl import app
from cfn_jax import command, main
from cfn_jax.jigsaw import task
def open_task(config):
  os.kill(os.getpid(), int(sys.argv[0]))
  raise AssertionError('the signal came to nothing')
task.open_task = open_task
number, *arguments = sys.argv[1:]
app.run(main.main, argv=[number, *arguments], flags_parser=command.parse_flags)
"""


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_run_ends_with_its_code_and_a_line(number, tmp_path):
  result = subprocess.run(
    [sys.executable, '-c', BEFORE, str(int(number)), *SMALL, f'--workdir={tmp_path / "run"}'],
    cwd=killed_runs.REPOSITORY,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert result.returncode == 128 + number, result.stderr
  assert (
    f'{number.name}: stopped while no run was training; the same command resumes' in result.stderr
  )
  assert 'Traceback' not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(number, tmp_path):
  """The first comes during the first step's compilation, which it cannot shorten."""
  environment = {'JAX_COMPILATION_CACHE_DIR': str(tmp_path / 'empty')}
  with killed_runs.Run(
    tmp_path / 'run', *LONG, '--config.data.num_workers=2', environment=environment
  ) as running:
    running.wait_until(lambda: 'run   ' in running.said())
    time.sleep(2)
    running.send(number)
    running.wait_until(lambda: 'once more ends at once' in running.said())
    began = time.monotonic()
    running.send(number)
    assert running.process.wait(10) == -number  # the system's own end: a shell reports 128 + number
    assert time.monotonic() - began < 2
    running.check_nothing_is_left()


@pytest.mark.slow
def test_the_second_of_two_runs_is_refused_and_a_killed_ones_lock_is_taken_over(tmp_path):
  workdir = tmp_path / 'run'
  with killed_runs.Run(workdir, *LONG, '--config.num_steps=10000') as running:
    running.wait_until(lambda: has_step(running, 6))
    second = run(*LONG, f'--workdir={workdir}')
    assert second.returncode == 2
    who = f'process {running.process.pid} on {socket.gethostname()}'
    assert f'{workdir} is in use by {who}' in second.stderr
    assert 'Traceback' not in second.stderr
    killed_runs.kill(running)
  third = run(*LONG, f'--workdir={workdir}')
  assert third.returncode == 0, third.stderr
  assert f'{who} is gone; its lock is taken over' in third.stderr


@pytest.mark.slow
def test_a_flipped_bit_in_the_newest_checkpoint_costs_only_its_own_steps(copied, short):
  flip_largest_array(copied / 'checkpoints' / '6')
  result = run(*SMALL, f'--workdir={copied}')
  assert result.returncode == 0, result.stderr
  assert f'{copied}/checkpoints/6 is damaged: not the arrays that were saved' in result.stderr
  assert 'resuming from step 3' in result.stderr and 'Traceback' not in result.stderr
  assert (copied / 'checkpoints' / 'damaged_6' / 'state').is_dir()
  killed_runs.assert_same_arrays(copied, short, 6)
  rows = killed_runs.read_rows(copied), killed_runs.read_rows(short)
  assert without_timings(rows[0]) == without_timings(rows[1])


@pytest.mark.slow
def test_with_every_checkpoint_damaged_the_run_starts_over_only_when_told(copied, short):
  for step in ('3', '6'):
    flip_largest_array(copied / 'checkpoints' / step)
  refused = run(*SMALL, f'--workdir={copied}')
  assert refused.returncode == 2
  assert 'every checkpoint is damaged; --config.start_over=True' in refused.stderr
  assert (copied / 'checkpoints' / '6').is_dir() and 'Traceback' not in refused.stderr
  told = run(*SMALL, '--config.start_over=True', f'--workdir={copied}')
  assert told.returncode == 0, told.stderr
  killed_runs.assert_same_arrays(copied, short, 6)
  assert (copied / 'checkpoints' / 'damaged_3').is_dir()


REFUSED = {
  '--config.batch_size=16': 'batch_size: 8 then, 16 now',
  '--config.seed=5': 'seed: 0 then, 5 now',
  '--config.model.fc6_features=32': 'model.fc6_features: 16 then, 32 now',
  '--config.permutations.seed=9': 'permutation set: ',
  '--config.data.crops_per_photograph=11': 'training images: ',
}


@pytest.mark.slow
@pytest.mark.parametrize('change', REFUSED)
def test_another_run_in_the_workdir_is_refused_with_both_values(change, copied):
  result = run(*SMALL, '--config.num_steps=9', change, f'--workdir={copied}')
  assert result.returncode == 2
  assert REFUSED[change] in result.stderr and 'init_from' in result.stderr
  assert 'then' in result.stderr and 'now' in result.stderr
  assert 'Traceback' not in result.stderr
  assert not (copied / 'checkpoints' / '9').exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_run_goes_on_with_other_workers_and_logging(copied, tmp_path):
  more = (*SMALL, '--config.num_steps=12')
  assert run(*more, f'--workdir={tmp_path / "straight"}').returncode == 0
  others = ('--config.data.num_workers=1', '--config.log_every_steps=3')
  result = run(*more, *others, f'--workdir={copied}')
  assert result.returncode == 0, result.stderr
  assert 'data.num_workers: 0 then, 1 now; log_every_steps: 2 then, 3 now' in result.stderr
  parts = ('params', 'optimizer')  # the sums since the last logged step are others
  killed_runs.assert_same_arrays(copied, tmp_path / 'straight', 12, parts)


@pytest.mark.long
@pytest.mark.slow
def test_weights_start_another_run_from_a_root_a_step_or_its_state(short, tmp_path):
  """Another batch size, another number of permutations: all but fc8 is taken."""
  said = 'conv1..conv5, fc6, fc7 loaded (14/14 arrays), fc8 new'
  changes = ('--config.permutations.num=9', '--config.batch_size=16', '--config.num_steps=2')
  arrays = []
  for number, path in enumerate(('', 'checkpoints', 'checkpoints/6', 'checkpoints/6/state')):
    workdir = tmp_path / str(number)
    result = run(*SMALL, *changes, f'--config.init_from={short / path}', f'--workdir={workdir}')
    assert result.returncode == 0, result.stderr
    assert said in ' '.join(result.stderr.split())
    arrays.append(killed_runs.read_arrays(workdir, 2))
  for other in arrays[1:]:
    assert all((other[name] == arrays[0][name]).all() for name in arrays[0])
  more = (*SMALL, *changes, f'--workdir={tmp_path / "0"}', '--config.num_steps=4')
  went_on = run(*more, f'--config.init_from={short}/')
  assert went_on.returncode == 0 and 'resuming from step 2' in went_on.stderr
  refused = run(*more)
  assert refused.returncode == 2 and f"init_from: '{short}' then, None now" in refused.stderr


@pytest.mark.slow
def test_weights_that_fit_nothing_are_refused(short, tmp_path):
  workdir = f'--workdir={tmp_path / "run"}'
  result = run(*SMALL, '--config.model.width=0.2', f'--config.init_from={short}', workdir)
  assert result.returncode == 2
  assert 'conv1/kernel is [11, 11, 3, 8], the network has [11, 11, 3, 16]' in result.stderr
  result = run(*SMALL, f'--config.init_from={tmp_path / "nothing"}', workdir)
  assert result.returncode == 2 and 'there is no such file or folder' in result.stderr
  assert 'Traceback' not in result.stderr


@pytest.mark.slow
def test_a_finished_run_says_so_and_then_goes_on_to_20_as_a_straight_run_does(tmp_path):
  ten = (*SMALL, '--config.num_steps=10', f'--workdir={tmp_path / "run"}')
  twenty = (*SMALL, '--config.num_steps=20')
  assert run(*ten).returncode == 0
  again = run(*ten)
  assert again.returncode == 0 and 'the run is finished' in again.stderr
  assert run(*twenty, f'--workdir={tmp_path / "run"}').returncode == 0
  assert run(*twenty, f'--workdir={tmp_path / "straight"}').returncode == 0
  killed_runs.assert_same_arrays(tmp_path / 'run', tmp_path / 'straight', 20)
  rows = {row['step']: row for row in without_timings(killed_runs.read_rows(tmp_path / 'run'))}
  for row in without_timings(killed_runs.read_rows(tmp_path / 'straight')):
    if row['step'] != 10:  # evaluated where the shorter run ended
      assert rows[row['step']] == row


@pytest.mark.long
@pytest.mark.slow
def test_a_workdir_may_be_relative_in_the_home_folder_or_behind_a_link(short, tmp_path):
  """And the checkpoints may come from another place: each is a copy."""
  for name in ('relative', 'home', 'link target'):
    shutil.copytree(short, tmp_path / name)
  (tmp_path / 'link').symlink_to(tmp_path / 'link target')
  environment = {'HOME': str(tmp_path)}
  config = (f'--config={killed_runs.REPOSITORY}/configs/cfn.py:tiny', *SMALL[1:])
  for workdir in ('relative', '~/home/', f'{tmp_path}/link/'):
    with killed_runs.Run(
      workdir,
      *config,
      '--config.num_steps=7',
      environment=environment,
      log=tmp_path / 'log',
      cwd=tmp_path,
    ) as running:
      assert running.finish() == 0, running.said()
    assert 'resuming from step 6' in running.said()
  for name in ('relative', 'home', 'link target'):
    assert (tmp_path / name / 'checkpoints' / '7').is_dir()
  assert (tmp_path / 'link').is_symlink()


@pytest.mark.long
@pytest.mark.slow
def test_a_clock_set_back_between_two_runs_changes_nothing(copied, tmp_path):
  (tmp_path / 'past').mkdir()
  (tmp_path / 'past' / 'sitecustomize.py').write_text(
    'import time\n_now = time.time\ntime.time = lambda: _now() - 3e7\n'
  )
  path = f'{tmp_path / "past"}{os.pathsep}{killed_runs.REPOSITORY}'
  more = (*SMALL, '--config.num_steps=9')
  with killed_runs.Run(copied, *more, environment={'PYTHONPATH': path}) as running:
    assert running.finish() == 0, running.said()
  assert 'resuming from step 6' in running.said()
  assert run(*more, f'--workdir={tmp_path / "straight"}').returncode == 0
  killed_runs.assert_same_arrays(copied, tmp_path / 'straight', 9)
  assert [row['step'] for row in killed_runs.read_rows(copied)] == [2, 3, 4, 6, 8, 9]


def in_own_mounts(script, *arguments, timeout=240):
  """Runs a shell script in a mount namespace of its own; skips where that is not allowed."""
  try:
    allowed = subprocess.run(['unshare', '-m', 'true'], capture_output=True, check=False)
  except FileNotFoundError:
    pytest.skip('there is no unshare')
  if allowed.returncode:
    pytest.skip('mounting needs privileges')
  environment = os.environ | {'XLA_FLAGS': '', 'PYTHONPATH': str(killed_runs.REPOSITORY)}
  return subprocess.run(
    ['unshare', '-m', 'bash', '-ec', script, 'bash', *map(str, arguments)],
    cwd=killed_runs.REPOSITORY,
    env=environment,
    capture_output=True,
    text=True,
    timeout=timeout,
    check=False,
  )


MAIN = f'{sys.executable} -m cfn_jax.main'


@pytest.mark.slow
def test_a_full_disk_fails_the_run_loudly_and_leaves_the_checkpoint_before_whole(short, tmp_path):
  """On a file system of 6 MB, filled up to its last kilobytes once the run has begun."""
  room = tmp_path / 'room'
  room.mkdir()
  script = (
    f'mount -t tmpfs -o size=6m tmpfs {room}; cp -r {short} {room}/run\n'
    f'head -c 100M /dev/zero > {room}/filler 2>/dev/null || true\n'
    f'truncate -s -60K {room}/filler\n'
    f'set +e; {MAIN} "$@" --workdir={room}/run; echo "exit $?"; set -e\n'
    f'rm {room}/filler; ls {room}/run/checkpoints\n'
    f'{MAIN} "$@" --workdir={room}/run; ls {room}/run/checkpoints\n'
  )
  result = in_own_mounts(script, *SMALL, '--config.num_steps=9')
  assert result.returncode == 0, result.stderr
  lines = result.stdout.split()
  assert lines[:2] == ['exit', '2'], result.stdout + result.stderr
  said = result.stderr.split('error: ')[-1].splitlines()[0]  # after what Orbax prints of it
  assert 'No space left on device' in said or 'could not be saved' in said
  assert lines[2:].count('6') == 2 and '9' in lines  # kept, and the run went on from it
  assert 'resuming from step 6' in result.stderr


@pytest.mark.long
@pytest.mark.slow
def test_a_limit_on_files_fails_the_run_with_the_checkpoint_before_whole(copied):
  """The limit stands in for a quota: nothing of more than 20 kB can be written."""
  script = 'ulimit -f 20; exec "$@"'
  result = subprocess.run(
    ['bash', '-c', script, 'bash', *MAIN.split(), *SMALL, '--config.num_steps=9',
     f'--workdir={copied}'],
    cwd=killed_runs.REPOSITORY,
    env=os.environ | {'XLA_FLAGS': '', 'JAX_ENABLE_COMPILATION_CACHE': 'false'},
    capture_output=True,
    text=True,
    timeout=240,
    check=False,
  )  # fmt: skip
  assert result.returncode == 2, result.stderr
  assert 'step 9 could not be saved' in result.stderr
  assert 'step 6 is the newest whole one' in result.stderr
  assert 'Traceback' not in result.stderr
  assert run(*SMALL, '--config.num_steps=9', f'--workdir={copied}').returncode == 0


@pytest.mark.slow
def test_a_read_only_data_folder_is_enough(tmp_path):
  import numpy as np
  from PIL import Image

  data = tmp_path / 'data'
  (data / 'kind').mkdir(parents=True)
  rng = np.random.default_rng(0)
  for number in range(20):
    pixels = rng.integers(0, 256, (140, 150, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(data / 'kind' / f'{number}.png')
  script = f'mount --bind -o ro {data} {data}; touch {data}/x && exit 9; exec {MAIN} "$@"'
  folder = ('--config.data.source=folder', f'--config.data.root={data}')
  others = ('--config.data.val_fraction=0.3', f'--workdir={tmp_path / "run"}')
  result = in_own_mounts(script, *without_idle((*SMALL, *folder)), *others)
  assert result.returncode == 0, result.stderr
  assert 'finished at step 6' in result.stderr


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(('batch', 'works'), [(8, True), (2048, False)])
def test_little_shared_memory_is_enough_or_the_run_says_what_to_do(batch, works, tmp_path):
  script = f'mount -t tmpfs -o size=64m tmpfs /dev/shm; exec {MAIN} "$@"'
  arguments = ('--config.data.num_workers=2', f'--config.batch_size={batch}')
  result = in_own_mounts(script, *SMALL, *arguments, f'--workdir={tmp_path / "run"}')
  if works:
    assert result.returncode == 0, result.stderr
  else:
    assert result.returncode == 2, result.stderr
    assert re.search(r'/dev/shm has 6\d MB free.* take fewer data.num_workers', result.stderr)
    assert 'Traceback' not in result.stderr


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_stop_at_one_step_when_one_of_them_is_told(tmp_path):
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    coordinator = f'127.0.0.1:{probe.getsockname()[1]}'
  arguments = (
    *LONG,
    '--config.num_steps=10000',
    '--config.eval_every_steps=10000',
    '--config.distributed.mode=explicit',
    f'--config.distributed.coordinator={coordinator}',
    '--config.distributed.num_processes=2',
  )
  workdir = tmp_path / 'run'
  one, two = (
    killed_runs.Run(
      workdir, *arguments, f'--config.distributed.process_id={i}', log=tmp_path / f'log{i}'
    )
    for i in range(2)
  )
  with one, two:
    one.wait_until(lambda: has_step(one, 4), timeout=200)
    two.send(signal.SIGTERM)
    assert one.finish(timeout=60) == 143, one.said()
    assert two.finish(timeout=60) == 143, two.said()
  (step,) = re.findall(r'stopped after step (\d+), which is saved', one.said())
  assert f'stopped after step {step}' in two.said()
  assert (workdir / 'checkpoints' / step).is_dir()
