"""One run at a time at an address: a lock that is taken, renewed, watched, lost and doubted."""

import json
import subprocess
import sys
import time

import bucket_cases
import pytest
import test_training_checkpoint as steps
from bucket_cases import ADDRESS, NAME, opened, resume, save

from cfn_jax.buckets import addresses, lease, objects
from cfn_jax.errors import CfnError
from cfn_jax.training import checkpoint, mirror

pytestmark = pytest.mark.usefixtures('host')


def test_a_second_run_is_refused_and_one_that_is_gone_is_replaced(bucket, host, monkeypatch):
  with opened(), monkeypatch.context() as patient:
    patient.setattr(lease, 'WATCH_SECONDS', 20.0)
    began = time.monotonic()
    host('other')
    with pytest.raises(lease.LeaseError, match=r'is in use by process [0-9]+ on .*: take another'):
      resume()
    host('host')
    assert time.monotonic() - began < 15  # a lock that is renewed is not watched to the end
  held = {'host': 'elsewhere', 'pid': 1, 'since': 'yesterday', 'machine': 'x', 'token': 't'}
  bucket.write(f'{NAME}/run.lock', json.dumps(held).encode())
  with opened():
    assert json.loads(bucket.read(f'{NAME}/run.lock'))['renewed'] >= 1
  assert list(json.loads(bucket.read(f'{NAME}/run.lock'))) == ['token']


def test_a_lock_whose_answer_was_lost_is_known_as_ones_own(proxy, bucket):
  address = addresses.parse(ADDRESS, '--workdir')
  lock = lease.Lease(address, objects.Objects(address))
  with bucket_cases.failing(proxy, bucket_cases.answer('drop after', 'POST', 'ifGenerationMatch')):
    lock.take(print)
  assert lock.before == {}
  lock.release()
  assert json.loads(bucket.read(f'{NAME}/run.lock')) == {'token': lock.token}


def test_a_run_whose_lock_was_taken_over_writes_nothing_more(bucket):
  with (
    pytest.raises(checkpoint.CheckpointError, match='process 7 on elsewhere'),
    opened() as workdir,
  ):
    taken = json.dumps({'host': 'elsewhere', 'pid': 7, 'since': 'now', 'token': 't'}).encode()
    bucket.write(f'{NAME}/run.lock', taken)
    steps.save_all(workdir, [3])
  assert bucket.names(f'{NAME}/') == ['run.lock']
  assert bucket.read(f'{NAME}/run.lock') == taken


def test_a_run_whose_renewal_fails_while_another_takes_its_lock_writes_nothing_more(
  proxy, bucket, monkeypatch
):
  monkeypatch.setattr(lease, 'RENEW_SECONDS', 60.0)
  taken = json.dumps({'host': 'elsewhere', 'pid': 7, 'since': 'now', 'token': 't'}).encode()
  with pytest.raises(lease.LeaseError, match='process 7 on elsewhere'), opened() as workdir:
    (workdir / 'metrics.jsonl').write_text('{"step": 3}')
    bucket.write(f'{NAME}/run.lock', taken)
    proxy.faults.append(bucket_cases.answer('drop', 'POST', 'run.lock'))
    with bucket_cases.failing(proxy):
      mirror.push(workdir)
  assert bucket.names(f'{NAME}/') == ['run.lock']


@pytest.mark.parametrize('part', ['checkpoints/6/state', '3/commit_success'])
def test_a_run_that_loses_its_lock_during_a_push_commits_and_deletes_nothing_more(
  part, proxy, bucket, monkeypatch
):
  monkeypatch.setattr(lease, 'RENEW_SECONDS', 60.0)
  monkeypatch.setattr(lease, 'TRUSTED_SECONDS', 0.3)
  save(3)
  taken = json.dumps({'host': 'elsewhere', 'pid': 7, 'since': 'now', 'token': 't'}).encode()
  asked = []

  def suspend(method, path):
    if method in ('POST', 'DELETE') and part in bucket_cases.unquote(path) and not asked:
      asked.append(path)
      bucket.write(f'{NAME}/run.lock', taken)
      return 0.5
    return None

  with (
    pytest.raises(CfnError, match='process 7 on elsewhere'),
    bucket_cases.failing(proxy, suspend),
    opened() as workdir,
  ):
    steps.save_all(workdir, [6], keep_latest=1, keep_best=0)
  there = bucket.names(f'{NAME}/checkpoints/')
  if part.startswith('3'):
    assert any(name.startswith('3/') for name in there)  # the request under way was the last
  else:
    assert '6/commit_success.txt' not in there and '3/commit_success.txt' in there
  assert bucket.read(f'{NAME}/run.lock') == taken and asked


def test_a_file_that_was_changed_by_hand_is_written_again_under_the_lock(proxy, bucket):
  with opened() as workdir:
    for number in range(4):
      (workdir / 'notes.txt').write_text('x' * number)
      if number == 1:
        bucket.write(f'{NAME}/notes.txt', b'by hand')
      if number == 2:
        bucket.delete(f'{NAME}/notes.txt')
      with bucket_cases.failing(proxy, bucket_cases.answer('drop after', 'POST', 'notes.txt')):
        mirror.push(workdir)
      assert bucket.read(f'{NAME}/notes.txt') == b'x' * number


def test_a_renewal_that_fails_in_any_way_is_followed_by_others(bucket, monkeypatch):
  address = addresses.parse(ADDRESS, '--workdir')
  lock = lease.Lease(address, objects.Objects(address))
  lock.take(print)
  with monkeypatch.context() as broken:
    broken.setattr(lock._store, 'write', lambda *_: 1 / 0)
    time.sleep(0.6)
  time.sleep(0.6)
  lock.check()
  assert lock._renewing.is_alive() and lock._store.patience == 0
  assert lock._store._store._timeout == objects.PROBE_TIMEOUT
  before = json.loads(bucket.read(f'{NAME}/run.lock'))['renewed']
  time.sleep(0.6)
  assert json.loads(bucket.read(f'{NAME}/run.lock'))['renewed'] > before
  lock.release()


def test_an_outage_while_a_lock_is_watched_does_not_count(bucket, monkeypatch):
  """Two looks during which the server is away: the owner renews only after them."""
  address = addresses.parse(ADDRESS, '--workdir')
  store, clock, looks = objects.Objects(address), [0.0], []
  monkeypatch.setattr(lease, 'WATCH_SECONDS', 60.0)
  monkeypatch.setattr(lease.time, 'monotonic', lambda: clock[0])
  monkeypatch.setattr(lease.time, 'sleep', lambda seconds: None)

  def read(name):
    looks.append(clock[0])
    clock[0] += 70.0 if len(looks) == 2 else 1.0
    held = {'host': 'elsewhere', 'pid': 1, 'renewed': len(looks) > 4}
    return json.dumps(held).encode(), '1'

  monkeypatch.setattr(store, 'read', read)
  with pytest.raises(lease.LeaseError, match='is in use by process 1 on elsewhere'):
    lease.Lease(address, store).take(print)
  assert len(looks) == 5


def test_the_documented_times_leave_no_two_owners():
  """docs/reliability.md and docs/clusters.md; other tests shorten them."""
  told = (
    'from cfn_jax.buckets import lease, objects; from cfn_jax.training import distributed, lock; '
    'print(lease.RENEW_SECONDS, lease.TRUSTED_SECONDS, lease.WATCH_SECONDS, lock.RENEW_SECONDS, '
    'lock.WATCH_SECONDS, objects.PATIENCE_SECONDS, distributed.JOIN_SECONDS)'
  )
  done = subprocess.run([sys.executable, '-c', told], capture_output=True, text=True, check=True)
  assert done.stdout.split() == ['10.0', '45.0', '60.0', '5.0', '20.0', '600.0', '300.0']
