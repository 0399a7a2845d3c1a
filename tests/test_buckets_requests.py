"""Requests to a bucket: what comes through, what is tried again, what their failures are."""

import time

import bucket_cases
import pytest
import requests
from google.auth import exceptions as auth

from cfn_jax.buckets import addresses, google_store, objects

pytestmark = pytest.mark.usefixtures('host')


@pytest.mark.parametrize(
  ('fails', 'kind'),
  [
    (auth.TransportError('Failed to retrieve http://metadata'), objects.PassingError),
    (requests.ConnectionError('reset'), objects.PassingError),
    (auth.RefreshError('unavailable', retryable=True), objects.PassingError),
    (auth.RefreshError('invalid_grant: the token was revoked'), objects.DeniedError),
  ],
)
def test_credentials_that_fail_for_a_while_are_tried_again(fails, kind):
  """As on a machine of Google's, whose server of metadata is away now and then."""
  with pytest.raises(objects.BucketError) as caught, google_store._translated():
    try:
      raise fails
    except auth.TransportError as error:  # as compute_engine.Credentials.refresh does
      raise auth.RefreshError(error) from error
  assert type(caught.value) is kind


def test_an_object_that_is_replaced_while_it_is_read_has_changed(bucket, monkeypatch):
  bucket.write('a/x')

  def download(*_, **__):
    raise google_store.exceptions.NotFound('that generation has gone')

  monkeypatch.setattr(google_store.storage.Blob, 'download_as_bytes', download)
  with pytest.raises(objects.ChangedError):
    objects.Objects(addresses.Address('gs', 'bucket', 'a')).read('a/x')


@pytest.mark.parametrize('name', ['é ü/x y.json', 'plus+sign', '[brackets] & more'])
def test_names_come_through(name, bucket, tmp_path):
  store = objects.Objects(addresses.Address('gs', 'bucket', 'a'))
  store.write(name, b'data')
  assert store.find('') == [objects.Found(name, 4, pytest.approx(time.time(), abs=5))]
  assert store.read(name)[0] == bucket.read(name) == b'data'
  store.download(store.find('')[0], tmp_path / 'file')
  assert (tmp_path / 'file').read_bytes() == b'data'
  store.delete(name)
  store.delete(name)  # as it may come twice
  assert bucket.names() == []


def test_an_object_is_written_only_over_the_version_that_was_read(proxy, bucket):
  store = objects.Objects(addresses.Address('gs', 'bucket', 'a'))
  first = store.write('x', b'1', objects.ABSENT)
  with pytest.raises(objects.ChangedError):
    store.write('x', b'2', objects.ABSENT)
  with bucket_cases.failing(proxy, bucket_cases.answer('drop after', 'POST')):
    second = store.write('x', b'3', first)
  with pytest.raises(objects.ChangedError):
    store.write('x', b'4', first)
  assert store.read('x') == (b'3', second)


def test_a_request_is_tried_again_ever_more_slowly_and_not_for_ever(proxy, bucket, monkeypatch):
  store, pauses = objects.Objects(addresses.Address('gs', 'bucket', 'a'), patience=20.0), []
  clock = [0.0]
  monkeypatch.setattr(objects.time, 'monotonic', lambda: clock[0])

  def sleep(seconds):
    pauses.append(seconds)
    clock[0] += seconds

  monkeypatch.setattr(objects.time, 'sleep', sleep)
  monkeypatch.setattr(objects.random, 'uniform', lambda low, high: high)
  with bucket_cases.failing(proxy, bucket_cases.answer(503, 'GET', times=4)):
    assert store.find('') == []
  assert pauses == [0.5, 1, 2, 4]
  with (
    bucket_cases.failing(proxy, bucket_cases.answer(503, 'GET', times=1000)),
    pytest.raises(objects.PassingError, match='tried for 20 seconds'),
  ):
    store.find('')


def test_the_patience_counts_from_the_first_failure(bucket, monkeypatch):
  """A large file may take longer than it to be sent, before a connection breaks."""
  store, clock = objects.Objects(addresses.Address('gs', 'bucket', 'a'), patience=20.0), [0.0]
  monkeypatch.setattr(objects.time, 'monotonic', lambda: clock[0])
  monkeypatch.setattr(objects.time, 'sleep', lambda _: None)

  def find(prefix, limit):
    clock[0] += 100
    if clock[0] == 100:
      raise objects.PassingError('broken')
    return []

  monkeypatch.setattr(store._store, 'find', find)
  assert store.find('') == [] and clock[0] == 200


def test_a_bucket_whose_requester_pays_asks_for_the_project():
  said = 'Bucket is a requester pays bucket but no user project provided.'
  with (
    pytest.raises(objects.BucketError, match=r'pays bucket.*: set GOOGLE_CLOUD_QUOTA_PROJECT to'),
    google_store._translated(),
  ):
    raise google_store.exceptions.BadRequest(said)


def test_a_machine_that_is_none_of_googles_is_known_within_seconds():
  from google.auth.compute_engine import _metadata

  assert _metadata._METADATA_DEFAULT_TIMEOUT * _metadata._METADATA_DETECT_RETRIES <= 2
