"""Runs that live in a bucket: what arrives there, what the next start reads, what is refused."""

import json
import threading

import bucket_cases
import numpy as np
import pytest
import test_training_checkpoint as steps
import tiny_task
from bucket_cases import ADDRESS, NAME, opened, resume, save
from test_training_loop import read_rows

from cfn_jax.buckets import objects
from cfn_jax.errors import CfnError
from cfn_jax.training import checkpoint, digests, loop, mirror, provenance

pytestmark = pytest.mark.usefixtures('host')


def fit(address, **fields):
  with opened(address) as workdir, provenance.recorded(workdir):
    return loop.fit(tiny_task.make_task(), tiny_task.make_config(**fields), workdir)


def test_a_run_in_a_bucket_is_that_on_a_disk_and_resumes_on_another_host(bucket, host, tmp_path):
  fit(ADDRESS, num_steps=6)
  host('other')
  fit(ADDRESS)
  plain = tmp_path / 'plain'
  plain.mkdir()
  loop.fit(tiny_task.make_task(), tiny_task.make_config(), plain)
  with opened() as workdir:
    assert read_rows(workdir) == read_rows(plain)
    ours, theirs = (steps.open_checkpoints(folder) for folder in (workdir, plain))
    with ours, theirs:
      assert ours.steps() == theirs.steps() and ours.best() == theirs.best()
      for name, digest in theirs.meta(12)['arrays'].items():
        assert ours.meta(12)['arrays'][name] == digest
  there = {name.partition('/')[0] for name in bucket.names(f'{NAME}/')}
  assert {'checkpoints', 'config.json', 'metrics.jsonl', 'starts.jsonl', 'run.lock'} <= there
  assert any(name.startswith('events.out.') for name in there)
  assert not any(name.startswith('.') for name in there)
  assert not (tmp_path / 'other' / 'cfn_jax' / 'buckets' / 'run' / 'gs' / 'bucket' / NAME).exists()


def test_features_outlive_a_failure_on_their_host_and_nothing_else_does(bucket):
  def make(workdir):
    for folder in ('features/a', 'run/features', 'run/other'):
      (workdir / folder).mkdir(parents=True)
      (workdir / folder / 'x.npy').write_bytes(b'x')

  def list_held(workdir):
    return {path.parent.relative_to(workdir).as_posix() for path in workdir.rglob('x.npy')}

  with pytest.raises(ZeroDivisionError), opened() as workdir:
    make(workdir)
    raise ZeroDivisionError
  assert list_held(workdir) == {'features/a', 'run/features'}
  with opened() as workdir:
    assert list_held(workdir) == {'features/a', 'run/features', 'run/other'}  # the last is fetched
  assert not workdir.exists()
  with opened() as workdir:
    assert list_held(workdir) == {'run/other'}


def test_steps_are_kept_in_the_bucket_as_on_a_disk(bucket, tmp_path):
  save(3, 6, 9, 12, keep_latest=1, keep_best=1)
  plain = steps.save_all(tmp_path / 'plain', [3, 6, 9, 12], keep_latest=1, keep_best=1)
  there = {name.partition('/')[0] for name in bucket.names(f'{NAME}/checkpoints/')}
  assert there == {path.name for path in plain.iterdir()} == {'12'}
  assert 'commit_success.txt' in bucket.names(f'{NAME}/checkpoints/12/')


def test_figures_that_are_added_to_a_step_arrive(bucket):
  with opened() as workdir, steps.open_checkpoints(workdir) as saver:
    saver.save(3, steps.make_state(3), steps.META, {})
    saver.save(3, steps.make_state(3), steps.META, {'score': 0.5})
  assert json.loads(bucket.read(f'{NAME}/checkpoints/3/metrics/metrics')) == {'score': 0.5}


def test_what_is_there_is_a_checkpoint_of_orbax(bucket, tmp_path):
  import orbax.checkpoint as ocp

  save(3)
  bucket.download(f'{NAME}/checkpoints/3/', tmp_path / 'step')
  read = ocp.StandardCheckpointer().restore(tmp_path / 'step' / 'state')
  kernel = steps.make_state(3)['params']['conv1']['kernel']
  np.testing.assert_array_equal(read['params']['conv1']['kernel'], kernel)


def test_a_run_can_be_copied_from_a_disk_and_back(bucket, tmp_path):
  plain = tmp_path / 'plain'
  steps.save_all(plain, [3])
  (plain / 'run.lock').touch()
  for path in plain.rglob('*'):
    if path.is_file():
      bucket.write(f'{NAME}/{path.relative_to(plain).as_posix()}', path.read_bytes())
  steps.assert_equal(resume().state, steps.make_state(3))
  save(6)
  bucket.download(f'{NAME}/', tmp_path / 'back')
  steps.assert_equal(steps.resume(tmp_path / 'back').state, steps.make_state(6))


def test_a_save_that_was_killed_is_set_aside_by_an_object(bucket, host):
  save(3, 6)
  bucket.delete(f'{NAME}/checkpoints/6/commit_success.txt')
  host('other')
  start = resume()
  assert start.step == 3
  assert ['an unfinished save' in note for note in start.notes] == [True]
  marker = json.loads(bucket.read(f'{NAME}/checkpoints/6/set_aside.json'))
  assert marker == {'state': 'unfinished'}
  save(6, keep_latest=3)
  assert 'commit_success.txt' in bucket.names(f'{NAME}/checkpoints/6.1/')
  host('third')
  start = resume()
  assert start.step == 6
  steps.assert_equal(start.state, steps.make_state(6))
  save(9)  # what was left unfinished before the newest step goes
  assert not bucket.names(f'{NAME}/checkpoints/6/')


def test_what_a_rule_of_the_bucket_deletes_is_a_damaged_step(bucket, host):
  save(3, 6, 9, keep_latest=3)
  lost = [name for name in bucket.names() if '/9/state/d/' in name or '/6/meta/metadata' in name]
  bucket.delete(*lost)
  host('other')
  start = resume()
  assert start.step == 3 and len(lost) > 1
  for step, note in zip((9, 6), start.notes, strict=True):
    assert f'{ADDRESS}/checkpoints/{step} is damaged' in note
    marker = json.loads(bucket.read(f'{NAME}/checkpoints/{step}/set_aside.json'))
    assert marker == {'state': 'damaged'}
  save(9)
  host('third')
  steps.assert_equal(resume().state, steps.make_state(9))
  assert bucket.names(f'{NAME}/checkpoints/9/')  # it is never deleted


def test_a_run_whose_checkpoints_were_deleted_is_not_begun_anew(bucket, host):
  with opened() as workdir:
    (workdir / 'metrics.jsonl').write_text('{"step": 12}\n')
    steps.save_all(workdir, [12])
  bucket.delete(*[name for name in bucket.names() if '/checkpoints/' in name])
  host('other')
  with pytest.raises(checkpoint.CheckpointError, match=r'but metrics\.jsonl goes to step 12'):
    fit(ADDRESS)


def test_a_server_that_fails_now_and_then_changes_nothing(proxy, bucket, host):
  faults = [
    bucket_cases.answer(what, method)
    for what in (503, 'drop', 'drop after', 429)
    for method in ('GET', 'POST', 'DELETE')
  ]
  workdir = mirror.resolve(ADDRESS, '--workdir')
  with bucket_cases.failing(proxy, *faults), mirror.opened(workdir):
    steps.save_all(workdir, [3, 6, 9], keep_latest=1, keep_best=0)
  host('other')
  steps.assert_equal(resume().state, steps.make_state(9))


def test_a_server_that_vanishes_ends_the_run_and_the_same_command_sends_the_rest(
  proxy, bucket, host, monkeypatch
):
  save(3)
  monkeypatch.setattr(objects, 'PATIENCE_SECONDS', 1.0)
  with (
    pytest.raises(checkpoint.CheckpointError) as caught,
    bucket_cases.failing(proxy),
    opened() as workdir,
    steps.open_checkpoints(workdir) as saver,
  ):
    proxy.faults.append(bucket_cases.answer('drop', 'POST', times=1000, after=8))
    (workdir / 'metrics.jsonl').write_text('{"step": 6}')
    saver.save(6, steps.make_state(6), steps.META, {'score': 1})
    saver.wait()
  told = str(caught.value)
  assert told.startswith('step 6: gs://bucket/runs/')
  assert 'tried for 1 seconds; step 3 is the newest there; kept on this host' in told
  assert told.endswith(str(workdir / 'checkpoints' / '6'))
  assert bucket.read(f'{NAME}/metrics.jsonl') == b'{"step": 6}'  # before the step
  there = bucket.names(f'{NAME}/checkpoints/6/')
  assert there and 'commit_success.txt' not in there
  assert resume().step == 6
  host('other')
  steps.assert_equal(resume().state, steps.make_state(6))


def test_what_this_host_kept_does_not_count_once_another_has_run(
  proxy, bucket, host, monkeypatch, capsys
):
  save(3)
  monkeypatch.setattr(objects, 'PATIENCE_SECONDS', 0.5)
  with pytest.raises(checkpoint.CheckpointError), bucket_cases.failing(proxy), opened() as workdir:
    proxy.faults.append(bucket_cases.answer('drop', method='POST', times=1000))
    steps.save_all(workdir, [6])
  host('other')
  save(5)
  kept = host('host')
  assert resume().step == 5
  [left] = (kept / 'cfn_jax' / 'buckets').glob(f'left_*/gs/bucket/{NAME}')
  assert (left / 'checkpoints' / '6' / 'state').is_dir()  # nothing is lost
  assert f'not sent, and kept: {left}' in capsys.readouterr().err


@pytest.mark.parametrize('part', ['result.json', 'report.html'])
def test_files_that_could_not_be_sent_are_kept_and_sent_by_the_same_command(
  part, proxy, bucket, monkeypatch
):
  """As those of an evaluation that has no steps."""
  monkeypatch.setattr(objects, 'PATIENCE_SECONDS', 0.5)
  with pytest.raises(objects.BucketError) as caught, bucket_cases.failing(proxy):  # noqa: SIM117
    with opened() as workdir:
      for name in ('result.json', 'report.html'):
        (workdir / name).write_text(name)
      proxy.faults.append(bucket_cases.answer(503, 'POST', part, times=1000))
  told = f'kept on this host, and sent by the same command: {workdir}'
  assert str(caught.value).endswith(told) and 'no step' not in str(caught.value)
  assert part not in bucket.names(f'{NAME}/')
  with opened() as workdir:
    assert (workdir / part).read_text() == part
    assert bucket.read(f'{NAME}/{part}').decode() == part


def test_the_proxy_keeps_the_condition_that_the_emulator_ignores(bucket):
  import requests

  url = f'{bucket_cases.os.environ["STORAGE_EMULATOR_HOST"]}/upload/storage/v1/b/bucket/o'
  options = {'uploadType': 'media', 'name': 'once', 'ifGenerationMatch': 0}
  codes = [requests.post(url, params=options, data=b'x').status_code for _ in range(2)]
  assert codes == [200, 412]


def test_an_array_that_no_host_holds_whole_is_named():
  with pytest.raises(CfnError, match=r'^params/x is spread over several hosts'):
    digests.replace_leaves({'params': {'x': 1.0}}, {})


def test_small_files_are_sent_several_at_once(proxy, bucket, monkeypatch):
  monkeypatch.setattr(objects, 'PATIENCE_SECONDS', 1.0)
  both = threading.Barrier(2)

  def meet(method, path):
    if method == 'POST' and 'notes' in path:
      both.wait(timeout=20)  # breaks where the other comes only after this one
    return

  with opened() as workdir:
    for number in range(2):
      (workdir / f'notes{number}').touch()
    with bucket_cases.failing(proxy, meet):
      mirror.push(workdir)
    assert not both.broken
  assert {'notes0', 'notes1'} <= set(bucket.names(f'{NAME}/'))
