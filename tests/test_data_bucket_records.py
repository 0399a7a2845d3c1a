"""Records in a bucket: prepared into it, copied once to a host, checked, resumed, read as local."""

import json
import shutil

import bucket_cases
import numpy as np
import pytest
from PIL import Image

from cfn_jax import prepare as prepare_command
from cfn_jax.buckets import addresses, folders
from cfn_jax.data import bucket_records, prepare, sources
from cfn_jax.errors import CfnError

ADDRESS = 'gs://bucket/sets/photös'


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
  folder = tmp_path_factory.mktemp('photos')
  rng = np.random.default_rng(0)
  for number in range(12):
    path = folder / f'c{number % 3}' / f'{number}.jpg'
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)).save(path)
  return folder


@pytest.fixture(scope='module')
def prepared(photos, tmp_path_factory):
  folder = tmp_path_factory.mktemp('prepared') / 'out'
  prepare.prepare(
    source=str(photos), out=str(folder), short_side_px=32, num_shards=4, num_workers=1
  )
  return folder


@pytest.fixture
def bucket(proxy, prepared, tmp_path, monkeypatch):
  """The records as they lie in the bucket, and a host that has none of them."""
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  bucket = bucket_cases.Bucket(proxy).clear()
  for path in prepared.iterdir():
    if not path.name.startswith('.'):
      bucket.write(f'sets/photös/{path.name}', path.read_bytes())
  return bucket


def open_records(root, **fields):
  return sources.open_sources(source='records', root=str(root), val_fraction=0.3, **fields)


def assert_same(ours, theirs):
  for one, other in zip(ours, theirs, strict=True):
    assert one.fingerprint == other.fingerprint and len(one) == len(other)
    for index in range(len(one)):
      assert one[index] == other[index]


def count_shards(proxy, since=0):
  return sum('.array_record' in path for method, path in proxy.seen[since:] if method == 'GET')


def test_records_of_a_bucket_are_those_on_the_disk_and_are_copied_once(
  bucket, proxy, prepared, tmp_path
):
  since, cache = len(proxy.seen), tmp_path / 'copies'
  assert_same(open_records(ADDRESS, cache_dir=str(cache)), open_records(prepared))
  assert count_shards(proxy, since) == 4
  assert_same(open_records(ADDRESS, cache_dir=str(cache)), open_records(prepared))
  assert count_shards(proxy, since) == 4
  assert (cache / 'gs' / 'bucket' / 'sets' / 'photös' / 'index.json').is_file()
  train, val = sources.open_sources(source='records', root=ADDRESS, val_root=ADDRESS)
  assert len(train) == len(val) == 12


def test_a_copy_that_was_stopped_is_resumed_with_the_shards_that_are_left(
  bucket, proxy, prepared, monkeypatch
):
  monkeypatch.setattr(folders, 'THREADS', 1)
  monkeypatch.setattr('cfn_jax.buckets.objects.PATIENCE_SECONDS', 0.0)
  fault = bucket_cases.answer(503, 'GET', 'shard-00002.array', times=1)
  with bucket_cases.failing(proxy, fault), pytest.raises(CfnError, match='503'):
    open_records(ADDRESS)
  since = len(proxy.seen)
  assert_same(open_records(ADDRESS), open_records(prepared))
  assert count_shards(proxy, since) in (1, 2)  # the one after it may have been under way


def test_a_shard_that_is_not_what_the_index_says_is_refused(bucket):
  name = 'sets/photös/shard-00001.array_record'
  data = bytearray(bucket.read(name))
  data[len(data) // 2] ^= 1
  bucket.write(name, bytes(data))
  with pytest.raises(CfnError, match=r'shard-00001\.array_record is not what index\.json says'):
    open_records(ADDRESS)


def test_shards_that_were_made_anew_are_copied_anew(bucket, proxy, photos, tmp_path):
  open_records(ADDRESS)
  again = tmp_path / 'again'
  prepare.prepare(source=str(photos), out=str(again), short_side_px=24, num_shards=4, num_workers=1)
  for path in again.iterdir():
    bucket.write(f'sets/photös/{path.name}', path.read_bytes())
  assert_same(open_records(ADDRESS), open_records(again))


def test_labels_that_were_made_anew_are_copied_anew_and_stand_for_other_data(
  bucket, photos, prepared, tmp_path
):
  """The shards of images keep their bytes, and the classes their names."""
  before, again = open_records(ADDRESS)[0], tmp_path / 'again'
  shutil.copytree(prepared, again)
  path = again / 'shard-00000.json'
  columns = json.loads(path.read_bytes())
  labels = columns['labels']
  path.write_text(json.dumps(columns | {'labels': [(each + 1) % 3 for each in labels]}))
  prepare.prepare(source=str(photos), out=str(again), short_side_px=32, num_shards=4, num_workers=1)
  for path in again.iterdir():
    bucket.write(f'sets/photös/{path.name}', path.read_bytes())
  after = open_records(ADDRESS)[0]
  assert_same([after], [open_records(again)[0]])
  assert after.identify() != before.identify()
  assert (after.labels() != before.labels()).any() and after.class_names == before.class_names


def test_a_disk_that_is_too_small_is_said_before_anything_is_copied(bucket, proxy, monkeypatch):
  free = folders.shutil.disk_usage('/')
  monkeypatch.setattr(folders.shutil, 'disk_usage', lambda _: free._replace(free=100))
  since = len(proxy.seen)
  with pytest.raises(CfnError, match=r'has 0 MB free: set data\.cache_dir to a folder'):
    open_records(ADDRESS)
  assert count_shards(proxy, since) == 0


@pytest.mark.parametrize(
  ('fields', 'says'),
  [
    ({'source': 'folder', 'root': ADDRESS}, 'records alone are read there'),
    ({'source': 'voc', 'root': ADDRESS, 'split': 'train'}, 'records alone are read there'),
    ({'source': 'tfds', 'root': ADDRESS, 'split': 'a:b'}, 'records alone are read there'),
    ({'source': 'folder', 'root': '.', 'val_root': ADDRESS}, 'data.val_root = gs://bucket/sets'),
    ({'source': 'folder', 'root': '.', 'cache_dir': 'x'}, "data.cache_dir = 'x': not read with"),
    (
      {'source': 'records', 'root': 'gs://bucket/none'},
      'data.root = gs://bucket/none holds no index',
    ),
    ({'source': 'records', 'root': 'gs://bucket'}, 'name a folder in the bucket'),
    ({'source': 'records', 'root': 'gs://nobucket/a'}, 'there is no bucket gs://nobucket'),
  ],
)
def test_other_images_of_a_bucket_are_refused_with_a_way_out(fields, says, bucket):
  with pytest.raises(CfnError, match=bucket_cases.re.escape(says)):
    sources.open_sources(**fields)


def test_prepare_writes_into_a_bucket(bucket, photos, prepared, capsys):
  there = 'gs://bucket/made/here'
  bucket.write('made/here/', b'')  # as consoles make folders
  bucket.write('made/here/.probe_5')  # of a command that was killed
  command = [f'--source={photos}', f'--out={there}', '--short-side=32', '--shards=4', '--workers=1']
  prepare_command.main(command)
  assert f'4 shards in {there}' in capsys.readouterr().out
  assert set(bucket.names('made/here/')) - {'', '.probe_5'} == {
    path.name for path in prepared.iterdir() if not path.name.startswith('.')
  }
  made = json.loads(bucket.read('made/here/index.json'))
  assert made['checksum'] == json.loads((prepared / 'index.json').read_text())['checksum']
  assert_same(open_records(there), open_records(prepared))
  with pytest.raises(SystemExit):
    prepare_command.main([*command[:2], '--short-side=16', '--shards=4', '--workers=1'])
  assert f'{there} was begun with short_side_px = 32' in capsys.readouterr().err
  stage = addresses.make_stage(addresses.parse(there, '--out'), bucket_records.OWNER)
  (stage / 'settings.json').write_text('{}')  # this host had begun with others
  with pytest.raises(SystemExit):
    prepare_command.main(command)
  told = capsys.readouterr().err
  assert f'{there} was prepared with other settings since this host began: delete {stage}' in told
  shutil.rmtree(stage)
  bucket.write('other/x')
  with pytest.raises(SystemExit):
    prepare_command.main([command[0], '--out=gs://bucket/other'])
  assert 'holds other objects, such as x' in capsys.readouterr().err


def test_processes_of_a_host_wait_for_one_copy(bucket, proxy, tmp_path):
  since = len(proxy.seen)
  folders.transfer(lambda _: bucket_records.copy(ADDRESS, 'data.root', ''), [0, 1, 2])
  assert count_shards(proxy, since) == 4
