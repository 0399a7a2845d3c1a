"""Addresses and objects: what is refused at once, what is tried again, what is read there."""

import os
import shutil
import socket
import subprocess
import sys
import time

import bucket_cases
import pytest
from test_transfer_checkpoints import saved  # noqa: F401  (a fixture)

from cfn_jax import idle, places
from cfn_jax.buckets import addresses, folders, objects, probe
from cfn_jax.errors import CfnError
from cfn_jax.training import mirror

pytestmark = pytest.mark.usefixtures('host')


def refusal(address):
  """Returns the one line by which a workdir is refused, within ten seconds."""
  began = time.monotonic()
  with pytest.raises(CfnError) as caught:
    mirror.resolve(address, '--workdir')
  assert time.monotonic() - began < 10
  message = str(caught.value)
  assert '\n' not in message and len(message) < 500
  return message


@pytest.mark.parametrize(
  ('address', 'says'),
  [
    ('gs://', "'' is no name of a bucket"),
    ('gs://bucket', 'name a folder in the bucket, gs://bucket/runs'),
    ('gs://bucket/', 'name a folder in the bucket, gs://bucket/runs'),
    ('gs://UPPER/run', "'UPPER' is no name of a bucket"),
    ('gs://bucket/a//b', "the part '' cannot stand in it"),
    ('gs://bucket/a/../b', "the part '..' cannot stand in it"),
    ('gs://bucket/a\x07b', 'a character that cannot be printed'),
    ('abfs://bucket/run', 'is an address of a kind that is not read: gs://BUCKET/PATH and s3://'),
    ('hdfs://host/run', 'is an address of a kind that is not read: gs://BUCKET/PATH and s3://'),
    ('GS://bucket/run', 'is an address of a kind that is not read: gs://BUCKET/PATH and s3://'),
  ],
)
def test_an_address_that_can_be_none_is_refused(address, says):
  message = refusal(address)
  assert message.startswith(f'--workdir={address}') and says in message


@pytest.mark.parametrize(
  ('faults', 'says'),
  [
    ([(403, 'GET', '/o?')], 'its objects cannot be listed: gs://bucket/runs/a/: access is denied'),
    ([(401, 'GET', '/o?')], 'Anonymous credentials cannot be refreshed'),
    ([(403, 'POST', '')], 'nothing can be written there: gs://bucket/runs/a/.probe_'),
    ([(403, 'DELETE', '')], 'what is written there cannot be deleted, as old checkpoints must be'),
    ([(503, 'GET', '')], 'the server answers 503'),
    ([('drop', 'GET', '')], 'the server cannot be reached'),
  ],
)
def test_what_a_bucket_does_not_allow_is_said_at_once(faults, says, proxy, bucket):
  made = [bucket_cases.answer(*fault, times=1000) for fault in faults]
  with bucket_cases.failing(proxy, *made):
    message = refusal('gs://bucket/runs/a')
  assert message.startswith('--workdir=gs://bucket/runs/a') and says in message


def test_a_bucket_that_is_not_there_is_said(proxy):
  assert refusal('gs://nobucket/run').endswith('there is no bucket gs://nobucket')


def test_a_server_that_is_gone_or_mute_is_said_at_once(monkeypatch):
  with socket.create_server(('127.0.0.1', 0)) as mute:  # it takes connections and never answers
    monkeypatch.setenv('STORAGE_EMULATOR_HOST', f'http://127.0.0.1:{mute.getsockname()[1]}')
    monkeypatch.setattr(objects, 'PROBE_TIMEOUT', (0.3, 0.3))
    assert 'Read timed out' in refusal('gs://bucket/run')
  assert 'Connection refused' in refusal('gs://bucket/run')


def test_credentials_that_are_not_there_are_named(monkeypatch, tmp_path):
  monkeypatch.delenv('STORAGE_EMULATOR_HOST')
  monkeypatch.setenv('GOOGLE_APPLICATION_CREDENTIALS', str(tmp_path / 'none.json'))
  message = refusal('gs://bucket/run')
  assert message.startswith('--workdir=gs://bucket/run: ')
  assert 'there are no credentials (File ' in message and 'none.json was not found' in message
  assert 'gcloud auth application-default login' in message


@pytest.mark.parametrize(
  ('address', 'library', 'extra'),
  [('gs://bucket/run', 'google.cloud.storage', 'gcs'), ('s3://bucket/run', 'boto3', 's3')],
)
def test_a_missing_extra_is_named(address, library, extra, monkeypatch):
  for name in [name for name in sys.modules if name.startswith('cfn_jax.buckets.')]:
    if name.endswith('_store'):
      monkeypatch.delitem(sys.modules, name)
      monkeypatch.delattr(sys.modules['cfn_jax.buckets'], name.rpartition('.')[2])
  monkeypatch.setitem(sys.modules, library, None)
  assert f"pip install 'cfn_jax[{extra}]'" in refusal(address)


@pytest.mark.parametrize(
  ('there', 'says'),
  [
    ('runs/a', 'is an object: name a folder of its own'),
    ('runs/a/b/run.lock', 'another run lies in it, gs://bucket/runs/a/b: name'),
    ('runs/run.lock', 'lies in another run, gs://bucket/runs: name a folder of its own'),
    ('runs/a/c1/1.jpg', 'holds other objects, such as c1/1.jpg, and no run: name'),
  ],
)
def test_a_place_that_is_taken_is_refused(there, says, bucket):
  bucket.write(there)
  assert says in refusal('gs://bucket/runs/a')


def test_a_run_of_more_objects_than_are_looked_at_is_known(bucket, monkeypatch):
  """An evaluation of segmentation has thousands of pictures, whose names come first."""
  monkeypatch.setattr(probe, 'LOOKED_AT', 2)
  for name in ('a.png', 'b.png', 'c.png'):
    bucket.write(f'runs/a/{name}')
  assert 'holds other objects, such as a.png' in refusal('gs://bucket/runs/a')
  bucket.write('runs/a/results.json')
  mirror.resolve('gs://bucket/runs/a', '--workdir')


def test_credentials_that_see_the_address_alone_are_enough(proxy, bucket):
  def deny(method, path):
    asked = bucket_cases.unquote(path).partition('prefix=')[2]
    return 403 if method == 'GET' and asked and not asked.startswith('runs/a/') else None

  with bucket_cases.failing(proxy, deny):
    mirror.resolve('gs://bucket/runs/a', '--workdir')
  assert bucket.names() == []


def test_a_server_that_keeps_no_condition_is_refused_for_runs_alone(proxy, bucket, monkeypatch):
  monkeypatch.setenv('STORAGE_EMULATOR_HOST', f'http://127.0.0.1:{proxy.port}')  # past the proxy
  assert 'so nothing can lock a run: take a store' in refusal('gs://bucket/runs/a')
  probe.check_access(addresses.Address('gs', 'bucket', 'records'), '--out')
  assert bucket.names() == []


def test_an_evaluation_that_was_copied_from_a_disk_is_taken(bucket):
  bucket.write('runs/a/config.json')
  bucket.write('runs/a/fc7_s0/run.lock', b'')
  mirror.resolve('gs://bucket/runs/a', '--workdir')


@pytest.mark.parametrize('there', ['runs/ab/run.lock', 'runs/a/config.json', 'runs/a/run.lock'])
def test_neighbours_of_the_same_beginning_and_its_own_files_are_not_in_the_way(there, bucket):
  bucket.write(there)
  mirror.resolve('gs://bucket/runs/a', '--workdir')
  assert bucket.names() == [there]  # the probe is gone


def test_a_host_without_a_disk_for_it_says_so(monkeypatch, tmp_path):
  (tmp_path / 'file').touch()
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
  message = refusal('gs://bucket/run')
  assert 'cannot be made a folder: Not a directory' in message and 'XDG_CACHE_HOME' in message
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.delenv('HOME')
  monkeypatch.setattr(os.path, 'expanduser', lambda text: text)  # a user without an account
  assert 'there is no home folder: set XDG_CACHE_HOME' in refusal('gs://bucket/run')


def test_several_weights_may_lie_in_buckets(tmp_path):
  both = 'gs://bucket/a,gs://bucket/b'
  assert places.split(both, '--weights') == ['gs://bucket/a', 'gs://bucket/b']
  named = places.split_named('a=gs://bucket/x,b=runs/b', 'weights')
  assert named == {'a': 'gs://bucket/x', 'b': 'runs/b'}
  assert places.split_named('gs://bucket/a=b', 'weights') == {'': 'gs://bucket/a=b'}
  assert idle._is_folder('gs://bucket/a', 'checkpoints')


def test_a_local_folder_tells_its_address(tmp_path):
  address = addresses.Address('gs', 'bucket', 'runs/a')
  for owner in ('run', 'read_by_7'):
    path = addresses.stage(address, owner)
    assert addresses.find(path / 'x') == address / 'x'
    assert addresses.rename(f'{path}/x: bad') == 'gs://bucket/runs/a/x: bad'
  assert addresses.find(tmp_path) is None and addresses.show(tmp_path) == str(tmp_path)


def test_a_listing_knows_whole_unfinished_and_set_aside_steps():
  paths = [
    'config.json', 'sub/', 'checkpoints/3/commit_success.txt', 'checkpoints/3/meta/metadata',
    'checkpoints/4/meta/metadata', 'sub/checkpoints/5/commit_success.txt', '../x',
  ]  # fmt: skip
  address = addresses.Address('gs', 'bucket', 'a')
  found = [objects.Found(f'a/{path}', 1, 0.0) for path in paths]
  listing = folders.make_listing(found, address)
  assert [*listing.files] == ['config.json']
  assert {key: [*held] for key, held in listing.steps.items()} == {
    ('checkpoints', '3'): ['commit_success.txt', 'meta/metadata'],
    ('checkpoints', '4'): ['meta/metadata'],
    ('sub/checkpoints', '5'): ['commit_success.txt'],
  }


def test_the_folder_of_a_process_is_removed_once_it_is_gone_and_those_of_others_stay(tmp_path):
  root = addresses.find_root()
  owner = addresses.make_owner('read_by')
  gone = {'PYTHONPATH': os.pathsep.join(sys.path), 'XDG_CACHE_HOME': os.environ['XDG_CACHE_HOME']}
  code = (
    'import os; from cfn_jax.buckets import addresses; print(addresses.make_owner("read_by"), '
    'flush=True); os._exit(0)'
  )
  made = subprocess.run(
    [sys.executable, '-c', code], env=os.environ | gone, capture_output=True, text=True, check=True
  )
  killed = made.stdout.strip()
  elsewhere = killed.replace(socket.gethostname(), 'elsewhere')
  shutil.copytree(root / killed, root / elsewhere)
  begun = owner.rpartition('_')[0] + '_begun'
  (root / begun).mkdir()
  (root / begun / addresses.HELD).touch()  # its owner has not locked it yet
  assert killed != owner and (root / killed / addresses.HELD).is_file()
  other = addresses.make_owner('read_by')
  assert {path.name for path in root.iterdir()} == {owner, other, elsewhere, begun}


def test_a_workdir_that_stands_for_an_address_is_refused(host):
  folder = addresses.stage(addresses.Address('gs', 'bucket', 'runs/a'), 'run')
  for path in (folder, folder / 'b'):
    assert 'is the local folder of gs://bucket/runs/a' in refusal(str(path))
  mine = host('mine') / 'mine'
  assert mirror.resolve(str(mine), '--workdir') == mine.resolve()
