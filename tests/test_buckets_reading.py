"""What commands read at an address: which objects are asked for, and what goes with the process."""

import numpy as np
import pytest
from test_transfer_checkpoints import saved  # noqa: F401  (a fixture)

from cfn_jax import convert
from cfn_jax.buckets import folders, objects, reading
from cfn_jax.errors import CfnError
from cfn_jax.transfer import cards, files

pytestmark = pytest.mark.usefixtures('host')


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


def test_a_file_is_asked_for_alone_with_its_card(proxy, bucket):
  """Not with what lies beside it, of which a bucket may hold any amount."""
  for name in ('weights.npz', 'model_card.json', 'model_card.json.old', 'x.json', 'runs/a/x'):
    bucket.write(name, name.encode())
    bucket.write(f'sub/{name}', name.encode())
  since = len(proxy.seen)
  assert reading.CARD == cards.NAME
  for place in ('', 'sub/'):
    path = reading.local(f'gs://bucket/{place}weights.npz')
    assert path.read_bytes() == b'weights.npz'
    there = {each.name for each in path.parent.iterdir() if each.is_file()}
    assert there == {'weights.npz', reading.CARD}
  listings = [path for _, path in proxy.seen[since:] if '/o?' in path]
  assert listings
  assert all('maxResults=1&' in f'{path}&' or 'weights.npz%2F' in path for path in listings)
  with pytest.raises(CfnError, match=r'^gs://bucket/weights: there is nothing'):
    reading.local('gs://bucket/weights')


def test_a_folder_called_checkpoints_may_hold_runs_and_weights(bucket):
  bucket.write('me/checkpoints/runA/config.json')
  bucket.write('me/checkpoints/weights.npz')
  assert (reading.local('gs://bucket/me/checkpoints/runA') / 'config.json').is_file()
  assert reading.local('gs://bucket/me/checkpoints/weights.npz').is_file()


def test_a_step_that_is_deleted_while_a_run_is_read_is_none(bucket, monkeypatch):
  for step in (3, 6):
    for name in ('commit_success.txt', 'meta/metadata', 'metrics/metrics'):
      bucket.write(f'runs/a/checkpoints/{step}/{name}')
  bucket.write('runs/a/notes.txt')
  found = objects.Objects.find

  def find(store, prefix, **options):
    listed = found(store, prefix, **options)
    if options.get('limit') == folders.MOST:
      bucket.delete('runs/a/checkpoints/3/meta/metadata', 'runs/a/notes.txt')
    return listed

  monkeypatch.setattr(objects.Objects, 'find', find)
  path = reading.local('gs://bucket/runs/a')
  assert [each.name for each in (path / 'checkpoints').iterdir()] == ['6']
  assert not (path / 'notes.txt').exists()


@pytest.mark.parametrize('said', [b'', b'{"sta', b'[]', b'{}', b'\xff', b'[' * 10**5])
def test_a_mark_that_says_nothing_sets_a_step_aside_as_damaged(said, bucket):
  for step in (3, 6):
    bucket.write(f'runs/a/checkpoints/{step}/commit_success.txt')
  bucket.write('runs/a/checkpoints/6/set_aside.json', said)
  path = reading.local('gs://bucket/runs/a')
  assert {each.name for each in (path / 'checkpoints').iterdir()} == {'3', 'damaged_6'}


def test_the_newest_save_of_a_step_counts(bucket):
  for save in range(12):
    name = f'300.{save}' if save else '300'
    bucket.write(f'runs/a/checkpoints/{name}/commit_success.txt')
    bucket.write(f'runs/a/checkpoints/{name}/meta/metadata', name.encode())
  path = reading.local('gs://bucket/runs/a')
  assert (path / 'checkpoints' / '300' / 'meta' / 'metadata').read_text() == '300.11'


def test_a_disk_without_room_is_said_before_anything_is_fetched(bucket, tmp_path, monkeypatch):
  bucket.write('runs/a/config.json', b'x' * 3_000_000)
  free = folders.shutil.disk_usage(tmp_path)
  monkeypatch.setattr(folders.shutil, 'disk_usage', lambda _: free._replace(free=1_000_000))
  with pytest.raises(objects.BucketError, match=r'takes 3 MB, and .* has 1 MB free'):
    reading.local('gs://bucket/runs/a')
