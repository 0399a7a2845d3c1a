"""What commands read at an address: which objects are asked for, and what goes with the process."""

import bucket_cases
import numpy as np
import pytest
from test_transfer_checkpoints import saved  # noqa: F401  (a fixture)

from cfn_jax import convert
from cfn_jax.buckets import addresses, folders, objects, reading
from cfn_jax.errors import CfnError
from cfn_jax.transfer import files


@pytest.fixture(scope='module')
def proxy():
  with bucket_cases.serving() as proxy:
    yield proxy


@pytest.fixture
def bucket(proxy):
  return bucket_cases.Bucket(proxy).clear()


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
  monkeypatch.setattr(objects.random, 'uniform', lambda *_: 0.02)
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  reading._fetch.cache_clear()
  return tmp_path / 'cache'


def test_weights_are_read_from_a_run_a_step_a_folder_and_a_file(saved, bucket, tmp_path, capsys):  # noqa: F811
  workdir, params = saved
  for path in workdir.rglob('*'):
    if path.is_file():
      bucket.write(f'runs/a/{path.relative_to(workdir).as_posix()}', path.read_bytes())
  for place in ('runs/a', 'runs/a/', 'runs/a/checkpoints', 'runs/a/checkpoints/3'):
    found = files.load_weights(f'gs://bucket/{place}')
    np.testing.assert_array_equal(found.params['conv1']['bias'], params['conv1']['bias'])
    assert found.origin['file'] == 'gs://bucket/runs/a/checkpoints/3'
    assert found.origin['permutations']
  convert.main(['--checkpoint=gs://bucket/runs/a', '--to=npz', f'--out={tmp_path / "out"}'])
  for path in (tmp_path / 'out').iterdir():
    bucket.write(f'exported/{path.name}', path.read_bytes())
  local = files.load_weights(tmp_path / 'out')
  for place in ('exported', 'exported/weights.npz'):
    there = files.load_weights(f'gs://bucket/{place}')
    assert there.input == local.input and there.order == local.order
    np.testing.assert_array_equal(there.params['conv1']['kernel'], local.params['conv1']['kernel'])
  with pytest.raises(CfnError, match=r"^gs://bucket/runs/a: no step '7'; there are 3"):
    files.load_weights('gs://bucket/runs/a', step='7')
  with pytest.raises(CfnError, match=r'^gs://bucket/none: there is nothing'):
    files.load_weights('gs://bucket/none')
  bucket.write('photos/c1/1.jpg')
  with pytest.raises(CfnError, match='holds no run and no weights, but other objects'):
    files.load_weights('gs://bucket/photos')


def test_what_a_process_read_goes_with_it_and_what_was_left_goes_with_the_next(cache, bucket):
  left = cache / 'cfn_jax' / 'buckets' / 'read_by_999999999'
  left.mkdir(parents=True)
  bucket.write('runs/a/config.json')
  path = reading.local('gs://bucket/runs/a')
  assert (path / 'config.json').is_file() and not left.exists()
  assert addresses.show(path) == 'gs://bucket/runs/a'


def test_a_disk_without_room_is_said_before_anything_is_fetched(bucket, tmp_path, monkeypatch):
  bucket.write('runs/a/config.json', b'x' * 3_000_000)
  free = folders.shutil.disk_usage(tmp_path)
  monkeypatch.setattr(folders.shutil, 'disk_usage', lambda _: free._replace(free=1_000_000))
  with pytest.raises(objects.BucketError, match=r'takes 3 MB, and .* has 1 MB free'):
    reading.local('gs://bucket/runs/a')
