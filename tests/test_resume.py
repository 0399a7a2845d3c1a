"""Killed at any moment and started again with the same command, a run is the uninterrupted run."""

import random
import time

import killed_runs
import pytest
from test_main import SMALL, run, without_timings

STEPS = 48
STORM = (
  *SMALL,
  f'--config.num_steps={STEPS}',
  '--config.eval_every_steps=6',
  '--config.checkpoint_every_steps=3',
  '--config.keep_latest=3',
  '--config.keep_best=2',
  '--config.ema_decay=0.9',
  '--config.data.val_crops_per_photograph=60',
)
# Where a run is killed, in turn: so many kills for each number of workers.
AIMS = ('compile', 'evaluation', 'write', 'commit', 'step', 'random') * 2


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('straight') / 'run'
  result = run(*STORM, f'--workdir={workdir}')
  assert result.returncode == 0, result.stderr
  return workdir


def wait_for(aim, running, rng):
  """Waits for the moment at which to kill."""
  rows_before = len(killed_runs.read_rows(running.workdir))

  def new_rows():
    return killed_runs.read_rows(running.workdir)[rows_before:]

  if aim == 'compile':
    running.wait_until(lambda: 'run   ' in running.said())
    time.sleep(rng.uniform(0, 4))
  elif aim == 'evaluation':  # rows of steps 4, 10, ... come two steps before one
    running.wait_until(lambda: any(row['step'] % 6 == 4 for row in new_rows()))
    time.sleep(rng.uniform(0.03, 0.6))
  elif aim == 'write':
    running.wait_until(lambda: killed_runs.is_writing(running.workdir), pause=0.0005)
    time.sleep(rng.uniform(0, 0.02))
  elif aim == 'commit':
    part = rng.choice(('metadata', 'manifest.ocdbt', '_METADATA'))
    running.wait_until(lambda: killed_runs.is_writing(running.workdir, part), pause=0.0005)
  elif aim == 'step':
    running.wait_until(lambda: len(new_rows()) >= 2)
    time.sleep(rng.uniform(0, 0.3))
  else:
    time.sleep(rng.uniform(1, 14))


@pytest.mark.slow
@pytest.mark.parametrize('workers', [pytest.param(0, marks=pytest.mark.long), 2])
def test_a_storm_of_kills_changes_no_bit(workers, straight, tmp_path):
  workdir, rng = tmp_path / 'run', random.Random(workers)
  arguments = (*STORM, f'--config.data.num_workers={workers}')
  # A cache of its own, empty at first: the first kills come during compilation.
  environment = {'JAX_COMPILATION_CACHE_DIR': str(tmp_path / 'cache')}
  kills, left_unfinished = 0, 0
  for aim in AIMS:
    with killed_runs.Run(workdir, *arguments, environment=environment) as running:
      wait_for(aim, running, rng)
      if running.process.poll() is None:
        killed_runs.kill(running)
        kills += 1
        left_unfinished += killed_runs.is_writing(workdir)
      assert 'error' not in running.said(), running.said()
  with killed_runs.Run(workdir, *arguments, environment=environment) as running:
    assert running.finish() == 0, running.said()
  assert kills >= 10
  assert left_unfinished >= 2
  ours, theirs = killed_runs.read_rows(workdir), killed_runs.read_rows(straight)
  assert [row['step'] for row in ours] == [row['step'] for row in theirs]
  assert without_timings(ours) == without_timings(theirs)
  killed_runs.assert_same_arrays(workdir, straight, STEPS)
  kept = [
    sorted(path.name for path in (folder / 'checkpoints').iterdir())
    for folder in (workdir, straight)
  ]
  assert kept[0] == kept[1]
  for name in ('answers.png', 'puzzles.png', 'permutations.npy'):
    assert (workdir / name).read_bytes() == (straight / name).read_bytes(), name
