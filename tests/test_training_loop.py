"""The loop with a small task: stopped anywhere, restarted, skipped, refused, equal bit for bit."""

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import tiny_task

from cfn_jax.buckets import objects
from cfn_jax.training import checkpoint, finite, lock, loop, settings, step_folders, stopping


@pytest.fixture(autouse=True)
def _keep_signal_handlers():
  before = {number: signal.getsignal(number) for number in stopping.SIGNALS}
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


def fit(workdir, config=None, **task):
  workdir.mkdir(exist_ok=True)
  return loop.fit(tiny_task.make_task(**task), config or tiny_task.make_config(), workdir)


def fit_to_the_end(workdir, config=None, signals=None, **task):
  """Starts again after each stop; gives the codes with which it stopped."""
  codes = []
  while True:
    try:
      fit(workdir, config, signals=signals if not codes else None, **task)
      return codes
    except stopping.Stopped as stopped:
      codes.append(stopped.code)
      for number in stopping.SIGNALS:  # as a new process has them
        signal.signal(number, signal.default_int_handler)


def read_rows(workdir):
  rows = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
  timings = ('examples_per_second', 'input_wait_fraction')
  return [{name: row[name] for name in row if name not in timings} for row in rows]


def read_arrays(workdir, step):
  import orbax.checkpoint as ocp

  tree = ocp.StandardCheckpointer().restore(workdir / 'checkpoints' / str(step) / 'state')
  return {
    jax.tree_util.keystr(path): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
  }


def assert_same_run(ours, theirs, step=12):
  assert read_rows(ours) == read_rows(theirs)
  ours_arrays, theirs_arrays = read_arrays(ours, step), read_arrays(theirs, step)
  assert ours_arrays.keys() == theirs_arrays.keys() and len(ours_arrays) > 5
  for name, array in theirs_arrays.items():
    np.testing.assert_array_equal(ours_arrays[name], array, err_msg=name)
  assert (ours / 'end').read_text() == (theirs / 'end').read_text()  # the best step


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('straight') / 'run'
  fit(workdir)
  return workdir


def test_rows_and_checkpoints_of_a_run(straight):
  assert [row['step'] for row in read_rows(straight)] == [2, 3, 4, 6, 8, 9, 10, 12]
  assert read_rows(straight)[-1].keys() >= {'train_loss', 'val_accuracy'}
  assert (straight / 'run.lock').read_text() == ''


PLACES = [
  ('train', 0),
  ('train', 7),
  ('evaluation', 1),
  ('evaluation', 10),
]  # 9 to 11: the last one
MORE = [
  *(('train', step) for step in (2, 3, 4, 11)),
  *(('evaluation', batch) for batch in (0, 2, 3, 9, 11)),
]


@pytest.mark.parametrize(
  'place', [*PLACES, *(pytest.param(place, marks=pytest.mark.slow) for place in MORE)], ids=str
)
def test_a_run_stopped_anywhere_and_restarted_equals_a_straight_one(place, straight, tmp_path):
  number = signal.SIGINT if place[1] % 2 else signal.SIGTERM
  codes = fit_to_the_end(tmp_path / 'run', signals={place: number})
  assert codes == [128 + number]
  assert_same_run(tmp_path / 'run', straight)


def test_a_run_stopped_again_and_again_equals_a_straight_one(straight, tmp_path):
  workdir = tmp_path / 'run'
  for place in (('train', 3), ('evaluation', 0), ('evaluation', 2), ('train', 9)):
    with pytest.raises(stopping.Stopped):
      fit(workdir, signals={place: signal.SIGTERM})
  fit(workdir)
  assert_same_run(workdir, straight)


def test_a_stop_in_an_evaluation_saves_the_step_and_leaves_the_evaluation(tmp_path):
  with pytest.raises(stopping.Stopped, match='SIGTERM: stopped after step 3, which is saved'):
    fit(tmp_path / 'run', signals={('evaluation', 1): signal.SIGTERM})
  assert step_folders.find_steps(tmp_path / 'run' / 'checkpoints') == [3]
  assert [row['step'] for row in read_rows(tmp_path / 'run')] == [2]
  meta = step_folders.read_meta(tmp_path / 'run' / 'checkpoints' / '3')
  assert meta['unevaluated'] == {'step': 3}


def test_before_the_first_step_nothing_is_saved(tmp_path):
  def send(seed):
    os.kill(os.getpid(), signal.SIGTERM)
    return {'fc': {'kernel': np.zeros(4, np.float32), 'bias': np.zeros((), np.float32)}}

  import dataclasses

  task = dataclasses.replace(tiny_task.make_task(), init=send)
  with pytest.raises(stopping.Stopped, match='before the first step'):
    loop.fit(task, tiny_task.make_config(), tmp_path)
  assert step_folders.find_steps(tmp_path / 'checkpoints') == []


def test_the_first_signal_is_noted_and_the_second_is_the_systems(capfd):
  with stopping.Stopping() as stop:
    assert not stop()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop()
    for number in stopping.SIGNALS:
      assert signal.getsignal(number) is signal.SIG_DFL
  assert 'SIGTERM: finishing the step, then saving' in capfd.readouterr().err
  assert stop.make_error('').code == 143


def test_a_signal_after_the_last_look_ends_the_next_run(tmp_path):
  with stopping.Stopping() as stop:
    assert not stop()
    os.kill(os.getpid(), signal.SIGTERM)  # while a picture is drawn, say
  with pytest.raises(stopping.Stopped, match='SIGTERM: stopped before the first step') as stopped:
    fit(tmp_path / 'next')
  assert stopped.value.code == 143
  with stopping.Stopping() as stop:
    assert not stop()


def test_an_evaluation_that_was_made_up_for_is_not_made_again(tmp_path):
  with pytest.raises(stopping.Stopped):
    fit(tmp_path, signals={('evaluation', 10): signal.SIGTERM})
  assert step_folders.find_steps(tmp_path / 'checkpoints')[-1] == 12
  assert fit(tmp_path)['val_accuracy'] and fit(tmp_path) == {}


def test_a_finished_run_says_so_and_goes_on_with_more_steps(straight, tmp_path, capsys):
  config = tiny_task.make_config(num_steps=6)
  assert fit(tmp_path / 'run', config)
  assert fit(tmp_path / 'run', config) == {}
  assert fit(tmp_path / 'run')
  assert_same_run(tmp_path / 'run', straight)
  assert 'resuming from step 6 (changed: num_steps: 6 then, 12 now)' in capsys.readouterr().err


def test_a_torn_line_and_rows_after_the_checkpoint_are_written_again(straight, tmp_path):
  workdir = tmp_path / 'run'
  fit(workdir, tiny_task.make_config(num_steps=6))
  with (workdir / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 8, "train_loss": 1.0}\n{"step": 9, "val')
  fit(workdir)
  assert_same_run(workdir, straight)


def test_a_damaged_step_is_told_and_its_work_done_again(straight, tmp_path, capsys):
  workdir = tmp_path / 'run'
  fit(workdir, tiny_task.make_config(num_steps=6))
  (workdir / 'checkpoints' / '6' / 'meta' / 'metadata').unlink()
  fit(workdir)
  assert_same_run(workdir, straight)
  said = capsys.readouterr().err
  assert 'checkpoints/6 is damaged: without meta/metadata; it is kept as damaged_6' in said
  assert 'resuming from step 4' in said
  assert (workdir / 'checkpoints' / 'damaged_6').is_dir()


@pytest.mark.parametrize('left', ['nothing', 'damaged'])
def test_a_run_that_lost_its_checkpoints_starts_over_only_when_told(left, straight, tmp_path):
  workdir = tmp_path / 'run'
  fit(workdir, tiny_task.make_config(num_steps=8 if left == 'nothing' else 3))
  shutil.rmtree(workdir / 'checkpoints')
  if left == 'damaged':
    (workdir / 'checkpoints' / 'damaged_3').mkdir(parents=True)
  before = (workdir / 'metrics.jsonl').read_bytes()
  why = 'goes to step 8' if left == 'nothing' else 'only damaged_3'
  with pytest.raises(checkpoint.CheckpointError, match=f'{why}.*start_over=True'):
    fit(workdir)
  assert (workdir / 'metrics.jsonl').read_bytes() == before
  fit(workdir, tiny_task.make_config(start_over=True))
  assert_same_run(workdir, straight)


def test_a_run_that_was_killed_before_its_first_checkpoint_simply_starts_again(straight, tmp_path):
  """The first save, of step 3, is waited for after step 4 is logged."""
  workdir = tmp_path / 'run'
  fit(workdir, tiny_task.make_config(num_steps=4))
  for step in ('3', '4'):
    shutil.rmtree(workdir / 'checkpoints' / step)
  (workdir / 'checkpoints' / '3.orbax-checkpoint-tmp').mkdir()
  fit(workdir)
  assert_same_run(workdir, straight)


def test_a_run_that_was_killed_before_its_first_checkpoint_may_save_more_often(straight, tmp_path):
  rare = {'checkpoint_every_steps': 100, 'eval_every_steps': 100}
  fit(tmp_path, tiny_task.make_config(num_steps=8, **rare))
  shutil.rmtree(tmp_path / 'checkpoints' / '8')
  fit(tmp_path)
  assert_same_run(tmp_path, straight)


def test_an_evaluation_scores_the_moving_average_beside_the_parameters(tmp_path):
  fit(tmp_path / 'run', tiny_task.make_config(ema_decay=0.9))
  row, arrays = read_rows(tmp_path / 'run')[-1], read_arrays(tmp_path / 'run', 12)

  def score(part):
    kernel, bias = (arrays[f"['{part}']['fc']['{name}']"] for name in ('kernel', 'bias'))
    batches = [tiny_task.make_batch(1_000_000 + i) for i in range(tiny_task.EVALUATION_BATCHES)]
    return -sum(np.abs(batch['x'] @ kernel + bias - batch['y']).sum() for batch in batches)

  assert row['val_accuracy'] == pytest.approx(score('params'), rel=1e-5)
  assert row['ema_val_accuracy'] == pytest.approx(score('ema'), rel=1e-5)
  assert abs(row['ema_val_accuracy'] - row['val_accuracy']) > 0.01


def test_times_set_back_change_nothing(straight, tmp_path):
  """All files of the first part are from next year."""
  workdir = tmp_path / 'run'
  fit(workdir, tiny_task.make_config(num_steps=6))
  later = time.time() + 365 * 86400
  for path in workdir.rglob('*'):
    os.utime(path, (later, later))
  fit(workdir)
  assert_same_run(workdir, straight)


def test_other_worker_and_logging_settings_are_allowed(straight, tmp_path):
  workdir = tmp_path / 'run'
  fit(workdir, tiny_task.make_config(num_steps=6, log_every_steps=3))
  fit(workdir)
  ours, theirs = read_arrays(workdir, 12), read_arrays(straight, 12)
  for name, array in theirs.items():
    np.testing.assert_array_equal(ours[name], array, err_msg=name)
  assert read_rows(workdir)[-1] == read_rows(straight)[-1]


def test_a_bad_step_stops_with_step_records_picture_and_the_last_good_checkpoint(tmp_path):
  with pytest.raises(finite.NonFiniteError) as caught:
    fit(tmp_path / 'run', bad_steps=(5,))
  for text in ('at step 5 (seen at step 6)', 'record 40', '8 records', 'step 4', 'bad_batch.png'):
    assert text in str(caught.value), text
  assert (tmp_path / 'run' / 'bad_batch.png').read_text() == 'True'
  listed = (tmp_path / 'run' / 'bad_batch.txt').read_text().splitlines()
  assert listed == [f'{row}\trecord {40 + row}' for row in range(8)]
  assert step_folders.find_steps(tmp_path / 'run' / 'checkpoints') == [3, 4]


def test_a_bucket_that_fails_does_not_hide_the_bad_step(tmp_path, monkeypatch, capsys):
  def fail(folder):
    raise objects.BucketError('gs://bucket: no answer')

  monkeypatch.setattr(finite.mirror, 'push', fail)
  with pytest.raises(finite.NonFiniteError, match='not finite at step 5'):
    fit(tmp_path / 'run', bad_steps=(5,))
  assert 'warning: gs://bucket: no answer' in capsys.readouterr().err
  assert (tmp_path / 'run' / 'bad_batch.txt').read_text()


def test_a_skipped_step_is_a_step_the_rate_drops_on_time(tmp_path):
  config = tiny_task.make_config(
    on_nonfinite='skip',
    checkpoint_every_steps=1,
    keep_latest=12,
    momentum=0.0,
    decay_steps=6,
    decay_factor=1e-12,  # step 6 and all after it move nothing
  )
  fit(tmp_path / 'run', config, bad_steps=(4,))
  kernels = [read_arrays(tmp_path / 'run', s)["['params']['fc']['kernel']"] for s in range(1, 13)]
  moved = [not np.allclose(a, b, rtol=1e-6) for a, b in itertools.pairwise(kernels)]
  assert moved == [True, True, True, False, True, *[False] * 6]


def test_another_solver_is_refused_by_its_name(tmp_path):
  fit(tmp_path / 'run', tiny_task.make_config(num_steps=4))
  with pytest.raises(step_folders.CheckpointError, match="solver: 'caffe' then, 'adamw' now"):
    fit(tmp_path / 'run', tiny_task.make_config(solver='adamw'))


def test_skipped_steps_change_no_parameter_and_are_counted(tmp_path, capsys):
  config = tiny_task.make_config(on_nonfinite='skip', nonfinite_limit=3, checkpoint_every_steps=1)
  fit(tmp_path / 'run', config, bad_steps=(5, 6, 7))
  rows = read_rows(tmp_path / 'run')
  counted = {row['step']: row['skipped_steps'] for row in rows if 'skipped_steps' in row}
  assert counted == {2: 0, 4: 0, 6: 1, 8: 3, 10: 3, 12: 3}
  losses = {row['step']: row.get('train_loss') for row in rows}
  assert losses[8] == 'nan'  # no step of the stretch counts
  assert np.isfinite([losses[step] for step in (2, 4, 6, 10, 12)]).all()
  said = capsys.readouterr().err
  assert 'not finite at step 5, which is skipped; 1 of at most 3' in said
  assert 'not finite at step 6, which is skipped; 2 of at most 3' in said
  kernel = "['params']['fc']['kernel']"
  arrays = read_arrays(tmp_path / 'run', 12)
  assert np.isfinite(arrays[kernel]).all()


def test_one_skipped_step_more_than_the_limit_stops_the_run_after_restarts_too(tmp_path):
  config = tiny_task.make_config(on_nonfinite='skip', nonfinite_limit=2)
  bad = {'bad_steps': (1, 5, 9)}
  signals = {('train', 7): signal.SIGTERM}
  with pytest.raises(stopping.Stopped):
    fit(tmp_path / 'run', config, signals=signals, **bad)
  with pytest.raises(finite.NonFiniteError, match=r'at step 9.*3 steps of at most 2'):
    fit(tmp_path / 'run', config, **bad)


def test_a_sigterm_outside_a_run_unwinds_and_a_second_one_is_the_systems():
  ours = signal.getsignal(signal.SIGTERM)
  with stopping.interrupted_by_sigterm(enabled=True), stopping.Stopping() as stop:
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop()  # a run notes it, as ever
  signal.signal(signal.SIGTERM, ours)
  with stopping.interrupted_by_sigterm(enabled=True):
    with pytest.raises(stopping.Terminated):
      os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
  signal.signal(signal.SIGTERM, ours)
  for enabled in (True, False):
    with stopping.interrupted_by_sigterm(enabled=enabled):
      assert (signal.getsignal(signal.SIGTERM) is ours) != enabled
    assert signal.getsignal(signal.SIGTERM) is ours


def test_an_unknown_choice_for_bad_steps_is_refused():
  with pytest.raises(ValueError, match="on_nonfinite = 'ignore' is unknown: one of stop, skip"):
    settings.check(tiny_task.make_config(on_nonfinite='ignore'))
  with pytest.raises(ValueError, match='nonfinite_limit = -1: at least 0'):
    settings.check(tiny_task.make_config(nonfinite_limit=-1))


def test_a_second_run_in_a_workdir_is_refused_with_host_and_process(tmp_path):
  with (
    lock.hold(tmp_path, print),
    pytest.raises(lock.LockedError, match=f'process {os.getpid()} on {socket.gethostname()}'),
  ):
    fit(tmp_path)
  assert not (tmp_path / 'checkpoints').exists()
  assert fit(tmp_path)


def test_a_lock_is_free_again_after_an_error(tmp_path):
  with pytest.raises(RuntimeError), lock.hold(tmp_path, print):
    raise RuntimeError
  said = []
  with lock.hold(tmp_path, said.append):
    pass
  assert not said


HOLD = """
import pathlib, sys, time
from cfn_jax.training import lock
with lock.hold(pathlib.Path(sys.argv[1]), print):
  print('held', flush=True)
  time.sleep(60)
"""


def test_the_lock_of_a_killed_process_is_taken_over_with_a_note(tmp_path):
  arguments = [sys.executable, '-c', HOLD, str(tmp_path)]
  with subprocess.Popen(
    arguments, cwd=tiny_task.REPOSITORY, stdout=subprocess.PIPE, text=True
  ) as process:
    assert process.stdout.readline() == 'held\n'
    with (
      pytest.raises(lock.LockedError, match=f'process {process.pid}'),
      lock.hold(tmp_path, print),
    ):
      pass
    process.kill()
  said = []
  with lock.hold(tmp_path, said.append):
    pass
  assert len(said) == 1 and f'process {process.pid} on {socket.gethostname()} is gone' in said[0]


@pytest.mark.parametrize('renewed', [True, False])
def test_another_hosts_lock_counts_while_it_is_renewed(renewed, tmp_path, monkeypatch):
  monkeypatch.setattr(lock, 'WATCH_SECONDS', 2.0)
  path = tmp_path / lock.NAME
  path.write_text(json.dumps({'host': 'elsewhere', 'pid': 7, 'since': 'Monday'}))
  stamps = iter(range(10**9, 2 * 10**9))
  if renewed:
    real = time.sleep

    def renew(seconds):
      os.utime(path, (next(stamps), next(stamps)))
      real(seconds)

    monkeypatch.setattr(lock.time, 'sleep', renew)
  said = []
  if renewed:
    with pytest.raises(lock.LockedError, match='process 7 on elsewhere, since Monday'):
      lock.hold(tmp_path, said.append).__enter__()
  else:
    with lock.hold(tmp_path, said.append):
      pass
    assert 'process 7 on elsewhere is gone' in said[0]


def test_a_garbled_lock_is_no_obstacle(tmp_path):
  (tmp_path / lock.NAME).write_bytes(b'\xff{"host": 3')
  with lock.hold(tmp_path, print):
    pass


def test_a_file_system_without_locks_is_judged_by_the_process(tmp_path, monkeypatch):
  monkeypatch.setattr(lock, '_lock', lambda descriptor: None)
  monkeypatch.setattr(lock, 'WATCH_SECONDS', 1.0)
  monkeypatch.setattr(lock, 'RENEW_SECONDS', 0.1)
  with lock.hold(tmp_path, print), pytest.raises(lock.LockedError):
    lock.hold(tmp_path, print).__enter__()
  owner = {'host': socket.gethostname(), 'pid': 2**22 + 1, 'since': 'Monday'}
  (tmp_path / lock.NAME).write_text(json.dumps(owner))
  said = []
  with lock.hold(tmp_path, said.append):
    pass
  assert 'is gone' in said[0]


def test_other_settings_are_refused_before_anything_is_written(straight, tmp_path):
  workdir = tmp_path / 'run'
  fit(workdir, tiny_task.make_config(num_steps=6))
  before = (workdir / 'metrics.jsonl').read_bytes()
  with pytest.raises(checkpoint.CheckpointError, match='batch_size: 8 then, 16 now'):
    fit(workdir, fingerprint={'seed': 0, 'batch_size': 16})
  assert (workdir / 'metrics.jsonl').read_bytes() == before
