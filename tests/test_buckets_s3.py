"""The same over S3, by moto's server on 127.0.0.1: it keeps the conditions of a write itself."""

import json
import os
from unittest import mock

import pytest
import test_training_checkpoint as steps

from cfn_jax.buckets import addresses, lease, objects
from cfn_jax.errors import CfnError
from cfn_jax.training import mirror

boto3 = pytest.importorskip('boto3', reason="needs the extra 's3'")
moto = pytest.importorskip('moto.server', reason="needs moto's server")

ADDRESS = addresses.Address('s3', 'bucket', 'runs/ein Lauf ü')


@pytest.fixture(scope='module')
def client():
  server = moto.ThreadedMotoServer('127.0.0.1', port=0, verbose=False)
  server.start()
  host, port = server.get_host_and_port()
  named = {
    'AWS_ENDPOINT_URL': f'http://{host}:{port}',
    'AWS_ACCESS_KEY_ID': 'test',
    'AWS_SECRET_ACCESS_KEY': 'test',
    'AWS_DEFAULT_REGION': 'us-east-1',
  }
  with mock.patch.dict(os.environ, named):
    client = boto3.client('s3')
    client.create_bucket(Bucket='bucket')
    yield client
  server.stop()


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  for name, seconds in (('RENEW_SECONDS', 0.2), ('WATCH_SECONDS', 1.0), ('PAUSE', 0.1)):
    monkeypatch.setattr(lease, name, seconds)


def test_a_run_is_saved_refused_to_a_second_and_resumed(client, monkeypatch, tmp_path):
  with mirror.opened(mirror.resolve(str(ADDRESS), '--workdir')) as workdir:
    steps.save_all(workdir, [3, 6, 9], keep_latest=1, keep_best=0)
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'other'))
    with (
      pytest.raises(lease.LeaseError, match='is in use by process'),
      mirror.opened(mirror.resolve(str(ADDRESS), '--workdir')),
    ):
      pass
  listed = client.list_objects_v2(Bucket='bucket')['Contents']
  there = {each['Key'].removeprefix(f'{ADDRESS.path}/') for each in listed}
  assert {'run.lock', 'checkpoints/9/commit_success.txt'} <= there
  assert not any(name.startswith(('checkpoints/3', '.')) for name in there)
  with mirror.opened(mirror.resolve(str(ADDRESS), '--workdir')) as workdir:
    start = steps.resume(workdir)
  assert start.step == 9
  steps.assert_equal(start.state, steps.make_state(9))
  lock = client.get_object(Bucket='bucket', Key=(ADDRESS / 'run.lock').path)['Body'].read()
  assert list(json.loads(lock)) == ['token']


def test_an_object_is_written_only_over_the_version_that_was_read(client):
  store = objects.Objects(ADDRESS)
  first = store.write('x', b'1', objects.ABSENT)
  with pytest.raises(objects.ChangedError):
    store.write('x', b'2', objects.ABSENT)
  second = store.write('x', b'3', first)
  with pytest.raises(objects.ChangedError):
    store.write('x', b'4', first)
  assert store.read('x') == (b'3', second)


def test_what_is_not_there_is_said_at_once(client, monkeypatch):
  with pytest.raises(CfnError, match='there is no bucket s3://nobucket'):
    mirror.resolve('s3://nobucket/run', '--workdir')
  monkeypatch.setenv('AWS_ENDPOINT_URL', 'http://127.0.0.1:1')
  with pytest.raises(objects.PassingError, match='the server cannot be reached'):
    mirror.resolve(str(ADDRESS), '--workdir')
  monkeypatch.delenv('AWS_ACCESS_KEY_ID')
  monkeypatch.delenv('AWS_SECRET_ACCESS_KEY')
  monkeypatch.setenv('AWS_CONFIG_FILE', '/dev/null')
  monkeypatch.setenv('AWS_SHARED_CREDENTIALS_FILE', '/dev/null')
  with pytest.raises(objects.DeniedError, match='there are no credentials'):
    mirror.resolve(str(ADDRESS), '--workdir')
