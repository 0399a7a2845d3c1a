"""The same over S3, by moto's server on 127.0.0.1: it keeps the conditions of a write itself."""

import json
import os

import bucket_cases
import pytest
import test_training_checkpoint as steps

from cfn_jax.buckets import addresses, lease, objects
from cfn_jax.errors import CfnError
from cfn_jax.training import mirror

boto3 = pytest.importorskip('boto3', reason="needs the extra 's3'")
botocore = pytest.importorskip('botocore')
from cfn_jax.buckets import s3_store  # noqa: E402

ADDRESS = addresses.Address('s3', 'bucket', 'runs/ein Lauf ü')


@pytest.fixture(scope='module')
def client():
  with bucket_cases.serving_s3() as client:
    yield client


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  for name, seconds in (('RENEW_SECONDS', 0.2), ('WATCH_SECONDS', 1.0), ('PAUSE', 0.1)):
    monkeypatch.setattr(lease, name, seconds)


@pytest.mark.slow
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


@pytest.mark.parametrize(
  ('status', 'word', 'kind'),
  [
    (400, 'RequestTimeout', objects.PassingError),
    (200, 'InternalError', objects.PassingError),  # at the end of an upload in parts
    (503, 'SlowDown', objects.PassingError),
    (409, 'ConditionalRequestConflict', objects.PassingError),
    (400, 'ExpiredToken', objects.DeniedError),
    (400, '400', objects.DeniedError),
    (403, 'AccessDenied', objects.DeniedError),
    (400, 'EntityTooLarge', objects.BucketError),
    (404, 'NoSuchKey', objects.MissingError),
    (412, 'PreconditionFailed', objects.ChangedError),
  ],
)
def test_an_answer_is_told_by_its_code_and_its_word(status, word, kind):
  answer = {'ResponseMetadata': {'HTTPStatusCode': status}, 'Error': {'Code': word}}
  with pytest.raises(objects.BucketError) as caught, s3_store._translated():
    raise botocore.exceptions.ClientError(answer, 'PutObject')
  assert type(caught.value) is kind


@pytest.mark.parametrize(
  'error',
  [
    boto3.exceptions.RetriesExceededError(ConnectionError('reset')),
    botocore.exceptions.MetadataRetrievalError(error_msg='timed out'),
    botocore.exceptions.CredentialRetrievalError(provider='iam-role', error_msg='timed out'),
    botocore.exceptions.ReadTimeoutError(endpoint_url='http://x'),
  ],
)
def test_credentials_and_connections_that_fail_for_a_while_are_tried_again(error):
  with pytest.raises(objects.PassingError), s3_store._translated():
    raise error


def test_a_server_that_fails_now_and_then_changes_nothing(client, monkeypatch, tmp_path):
  monkeypatch.setattr(objects.random, 'uniform', lambda *_: 0.02)
  file, faults = (
    tmp_path / 'file',
    [
      bucket_cases.answer(what, method)
      for what in (503, 'drop', 'drop after')
      for method in ('GET', 'HEAD', 'PUT', 'DELETE')
    ],
  )
  file.write_bytes(bytes(range(256)) * 4096)
  with bucket_cases.before_s3() as proxy, bucket_cases.failing(proxy, *faults):
    store = objects.Objects(ADDRESS)
    for version in (None, objects.ABSENT):
      etag = store.write('faults/file', file, version)
      assert store.read('faults/file') == (file.read_bytes(), etag)
      [found] = store.find('faults/')
      store.download(found, tmp_path / 'back')
      assert (tmp_path / 'back').read_bytes() == file.read_bytes()
      store.delete('faults/file')
  assert len({(method, *path.split('?')[:1]) for method, path in proxy.seen}) >= 4


def test_a_file_beyond_the_size_of_a_request_is_sent_in_parts(client, monkeypatch, tmp_path):
  sizes = {'multipart_threshold': 2**20, 'multipart_chunksize': 5 * 2**20, 'use_threads': False}
  monkeypatch.setattr(s3_store, 'PARTS', boto3.s3.transfer.TransferConfig(**sizes))
  (tmp_path / 'file').write_bytes(os.urandom(6 * 2**20))
  store = objects.Objects(ADDRESS)
  etag = store.write('parts', tmp_path / 'file')
  assert etag.endswith('-2"')  # as S3 marks what came in two parts
  assert store.read('parts') == ((tmp_path / 'file').read_bytes(), etag)


def test_more_objects_than_an_answer_lists_are_all_found(client, monkeypatch):
  monkeypatch.setenv('MOTO_S3_DEFAULT_MAX_KEYS', '3')
  store = objects.Objects(ADDRESS)
  names = [f'pages/{number}' for number in range(7)]
  for name in names:
    store.write(name, b'x')
  assert client.list_objects_v2(Bucket='bucket', Prefix='pages/')['KeyCount'] == 3
  assert sorted(found.name for found in store.find('pages/')) == names
  assert len(store.find('pages/', limit=5)) == 5


def test_a_version_that_was_deleted_is_not_written_over(client):
  store = objects.Objects(ADDRESS)
  version = store.write('gone', b'1')
  store.delete('gone')
  with pytest.raises(objects.ChangedError):
    store.write('gone', b'2', version)


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
