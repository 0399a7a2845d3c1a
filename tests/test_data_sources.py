"""Laws of sources: every image once, in a stable order, under a stable name, in any process."""

import errno
import hashlib
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest
import simplejpeg

from cfn_jax.data import array_records, bundled, folder, images, listing, prepare, sources
from cfn_jax.data.record import SourceError


def write_images(root, names):
  for i, name in enumerate(names):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(simplejpeg.encode_jpeg(np.full((8, 9, 3), i % 256, np.uint8)))


def names_of(source):
  return [source[i].name for i in range(len(source))]


def open_folder(root, **fields):
  return sources.open_sources(source='folder', root=str(root), **{'val_fraction': 0.0, **fields})


# Bundled photographs.


def test_bundled_crops_are_a_pure_function_of_the_index():
  train, _ = sources.open_sources(source='bundled')
  again = pickle.loads(pickle.dumps(train))
  for i in (0, 1, 7, len(train) - 1):
    assert np.array_equal(train[i].data, again[i].data) and train[i].name == again[i].name
  code = (
    'import hashlib; from cfn_jax.data import sources\n'
    'train, _ = sources.open_sources(source="bundled")\n'
    'print(train.fingerprint, hashlib.sha256(train[7].data.tobytes()).hexdigest())'
  )
  other = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert other.stdout.split() == [
    train.fingerprint,
    hashlib.sha256(train[7].data.tobytes()).hexdigest(),
  ]


def test_bundled_crops_are_thousands_of_distinct_ones_of_random_scale():
  train, val = sources.open_sources(source='bundled')
  assert len(train) >= 3000 and len(val) >= 600
  assert len(set(names_of(train))) == len(train)
  boxes, sides = set(), []
  for i in range(len(train)):
    name = train.photographs[i % len(train.photographs)]
    box = bundled.crop_box(i, *bundled._load(name).shape[:2])
    boxes.add((name, *box))
    sides.append(min(box[2:]))
    top, left, height, width = box
    assert top >= 0 and top + height <= bundled._load(name).shape[0]
    assert left >= 0 and left + width <= bundled._load(name).shape[1]
    assert max(height, width) <= 1.26 * min(height, width)
  assert len(boxes) == len(train)
  assert min(sides) == bundled.SMALLEST_SIDE_PX and max(sides) > 450
  # Log-uniform: as many crops between 128 and 181 px as between 181 and 256.
  low, high = (np.mean([(a <= s < b) for s in sides]) for a, b in ((128, 181), (181, 256)))
  assert abs(low - high) < 0.05


def test_validation_photographs_are_held_out_whole():
  train, val = sources.open_sources(source='bundled')
  assert not set(train.photographs) & set(val.photographs)
  assert set(train.photographs) | set(val.photographs) == set(bundled._FILES)
  assert train.fingerprint != val.fingerprint


def test_bundled_crops_are_pixels_of_their_photograph():
  train, _ = sources.open_sources(source='bundled', crops_per_photograph=3)
  record = train[4]
  assert record.name == f'{train.photographs[4]}-00004' and record.label == -1
  top, left, height, width = bundled.crop_box(4, *bundled._load(train.photographs[4]).shape[:2])
  whole = bundled._load(train.photographs[4])
  assert np.array_equal(record.data, whole[top : top + height, left : left + width])
  record.data[:] = 0  # a caller may write to its crop; the photograph is not touched
  assert whole.max() > 0 and train[4].data.max() > 0


def test_without_the_packages_the_extra_is_named(monkeypatch):
  monkeypatch.setattr(bundled.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(SourceError, match=r"pip install -e '\.\[demo\]'"):
    sources.open_sources(source='bundled')


# Folders.


def test_a_folder_gives_its_images_in_sorted_order_and_nothing_else(tmp_path):
  wanted = ['a.JPG', 'b/c.jpeg', 'b/d.Png', 'b2/e.webp', 'f.gif', 'g.bmp', 'h.tif', 'i.TIFF']
  write_images(tmp_path, wanted)
  write_images(tmp_path, ['._a.JPG', '.hidden.jpg', '.git/x.jpg', '__MACOSX/b/c.jpeg', 'j.txt'])
  os.mkfifo(tmp_path / 'pipe.jpg')
  train, val = open_folder(tmp_path)
  assert names_of(train) == sorted(wanted) and len(val) == 0
  assert train.class_names == () and {train[i].label for i in range(len(train))} == {-1}
  assert train[0].data == (tmp_path / 'a.JPG').read_bytes()
  assert '8 images' in train.description


def test_class_folders_give_labels_by_sorted_name(tmp_path):
  write_images(tmp_path, ['dog/1.jpg', 'cat/deep/er/2.jpg', 'ant/3.jpg'])
  train, _ = open_folder(tmp_path)
  assert train.class_names == ('ant', 'cat', 'dog')
  assert [(r.name, r.label) for r in map(train.__getitem__, range(3))] == [
    ('ant/3.jpg', 0),
    ('cat/deep/er/2.jpg', 1),
    ('dog/1.jpg', 2),
  ]


def test_names_with_spaces_newlines_and_foreign_bytes_survive(tmp_path):
  names = ['a b.jpg', 'new\nline.jpg', 'ünï.jpg', os.fsdecode(b'bad\xff.jpg')]
  write_images(tmp_path, names)
  train, _ = open_folder(tmp_path)
  assert sorted(names_of(train)) == sorted(names)
  assert sorted(names_of(pickle.loads(pickle.dumps(train)))) == sorted(names)


def test_links_to_folders_end_and_give_each_image_once(tmp_path):
  root = tmp_path / 'data'
  write_images(root, ['real/1.jpg', 'real/2.jpg'])
  write_images(tmp_path / 'elsewhere', ['3.jpg'])
  (root / 'real' / 'loop').symlink_to(root)
  (root / 'again').symlink_to(root / 'real')
  (root / 'linked').symlink_to(tmp_path / 'elsewhere')
  train, _ = open_folder(root)
  assert names_of(train) == ['linked/3.jpg', 'real/1.jpg', 'real/2.jpg']


def test_a_dead_link_is_a_bad_image_and_not_no_image(tmp_path):
  (tmp_path / 'a.jpg').symlink_to(tmp_path / 'gone.jpg')
  train, _ = open_folder(tmp_path)
  with pytest.raises(images.BadImage, match=r'^a\.jpg: cannot be read: No such file'):
    train[0]


def test_the_fingerprint_follows_the_names_and_not_the_place(tmp_path):
  names = ['x/1.jpg', 'y/2.jpg']
  write_images(tmp_path / 'one', names)
  write_images(tmp_path / 'two', names)
  one, two = open_folder(tmp_path / 'one')[0], open_folder(tmp_path / 'two')[0]
  assert one.fingerprint == two.fingerprint and repr(one) == repr(two) and '0x' not in repr(one)
  write_images(tmp_path / 'two', ['y/3.jpg'])
  assert open_folder(tmp_path / 'two')[0].fingerprint != one.fingerprint


def test_an_added_file_moves_no_other_between_the_splits(tmp_path):
  names = [f'{i:04d}.jpg' for i in range(600)]
  write_images(tmp_path, names)
  train, val = open_folder(tmp_path, val_fraction=0.2)
  assert sorted(names_of(train) + names_of(val)) == names
  assert 0.14 < len(val) / len(names) < 0.26
  write_images(tmp_path, ['0000a.jpg', 'new/1.jpg'])
  train_after, val_after = open_folder(tmp_path, val_fraction=0.2)
  assert set(names_of(train)) <= set(names_of(train_after))
  assert set(names_of(val)) <= set(names_of(val_after))
  _, larger = open_folder(tmp_path, val_fraction=0.4)
  assert set(names_of(val_after)) <= set(names_of(larger))


def test_a_second_folder_gives_validation_with_the_classes_of_the_first(tmp_path):
  write_images(tmp_path / 'train', ['cat/1.jpg', 'dog/2.jpg', 'eel/3.jpg'])
  write_images(tmp_path / 'val', ['dog/4.jpg', 'eel/5.jpg'])
  write_images(tmp_path / 'strange', ['fox/6.jpg'])
  train, val = open_folder(tmp_path / 'train', val_root=str(tmp_path / 'val'), val_fraction=0.5)
  assert len(train) == 3 and [val[i].label for i in range(2)] == [1, 2]
  assert val.class_names == train.class_names
  _, strange = open_folder(tmp_path / 'train', val_root=str(tmp_path / 'strange'))
  assert strange.class_names == () and strange[0].label == -1
  assert (val.foreign_classes, strange.foreign_classes) == ((), ('fox',))


def test_opening_a_folder_opens_none_of_its_files(tmp_path):
  root = tmp_path / 'data'
  write_images(root, [f'{i}.jpg' for i in range(20)])
  opened, listening = [], [True]  # a hook stays for good

  def note(event, arguments):
    if listening and event == 'open' and '.jpg' in str(arguments[0]):
      opened.append(arguments[0])

  sys.addaudithook(note)
  try:
    train, _ = open_folder(root, val_fraction=0.2)
    assert opened == []
    assert train[0].data and len(opened) == 1
  finally:
    listening.clear()


def test_a_million_names_are_small_and_quick():
  names = listing.Names.of(f'n{i % 1000:08d}/n{i % 1000:08d}_{i}.JPEG' for i in range(1_000_000))
  started = time.process_time()
  again = pickle.loads(pickle.dumps(names))
  assert time.process_time() - started < 1.0
  assert len(again) == 1_000_000 and again[999_999] == 'n00000999/n00000999_999999.JPEG'
  started = time.process_time()
  for i in range(0, 1_000_000, 1000):
    assert again[i]
  assert time.process_time() - started < 0.1


@pytest.mark.parametrize('bad', ['missing', 'empty', 'file', 'no images', 'unset', 'unreadable'])
def test_a_folder_that_cannot_be_used_is_explained(tmp_path, bad, monkeypatch):
  root = tmp_path / 'data'
  reason = {
    'missing': 'there is no folder .*data',
    'empty': 'is empty',
    'file': 'is a file, not a folder',
    'no images': r'no images in .*none of its 2 files \(such as .*\.txt\)',
    'unset': 'data.root is empty',
    'unreadable': 'cannot list .*Permission denied',
  }[bad]
  if bad != 'missing':
    root.mkdir()
  if bad == 'file':
    root.rmdir()
    root.write_text('text')
  if bad == 'no images':
    (root / 'a.txt').write_text('a')
    (root / 'b.txt').write_text('b')
  if bad == 'unreadable':  # the tests may run as root, whom no permission stops

    def refuse(path):
      raise PermissionError(13, 'Permission denied', str(path))

    monkeypatch.setattr(listing.os, 'scandir', refuse)
  with pytest.raises(SourceError, match=reason) as caught:
    sources.open_sources(source='folder', root='' if bad == 'unset' else str(root))
  assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize('number', ['EMFILE', 'ENFILE', 'EIO', 'ESTALE', 'ENOMEM'])
def test_a_fault_that_may_pass_is_no_bad_image(tmp_path, monkeypatch, number):
  write_images(tmp_path / 'data', ['1.jpg'])
  train, _ = open_folder(tmp_path / 'data')

  def refuse(path, *_):
    raise OSError(getattr(errno, number), 'not now', path)

  monkeypatch.setattr(folder, 'open', refuse, raising=False)
  with pytest.raises(SourceError, match=r'data/1\.jpg cannot be read now: not now'):
    train[0]


def test_a_file_that_is_not_there_is_a_bad_image(tmp_path, monkeypatch):
  write_images(tmp_path, [f'{i}.jpg' for i in range(4)])
  train, _ = open_folder(tmp_path)
  for i in range(3):
    (tmp_path / f'{i}.jpg').unlink()
  (tmp_path / '1.jpg').mkdir()
  (tmp_path / '2.jpg').symlink_to('2.jpg')
  for i in range(3):
    with pytest.raises(images.BadImage, match=f'^{i}.jpg: cannot be read'):
      train[i]

  def refuse(path, *_):
    raise PermissionError(errno.EACCES, 'Permission denied', path)

  monkeypatch.setattr(folder, 'open', refuse, raising=False)
  with pytest.raises(images.BadImage, match=r'^3\.jpg: cannot be read: Permission denied'):
    train[3]


def test_links_that_lead_nowhere_do_not_hide_the_rest(tmp_path):
  root = tmp_path / 'data'
  write_images(root, ['a/1.jpg'])
  for name in ('self', 'a/self', 'a/2.jpg'):
    (root / name).symlink_to(pathlib.PurePath(name).name)
  (root / 'gone').symlink_to('nowhere')
  (root / 'a' / '3.jpg').symlink_to('1.jpg/below')
  (root / 'a' / '4.jpg').symlink_to('nowhere.jpg')
  train, _ = open_folder(root)
  assert [os.fsdecode(name) for name in train.names.encoded()] == [
    *('a/1.jpg', 'a/2.jpg', 'a/3.jpg', 'a/4.jpg')
  ]
  assert train[0].data
  for i in (1, 2, 3):
    with pytest.raises(images.BadImage, match='cannot be read'):
      train[i]


def test_fractions_that_leave_nothing_or_mean_nothing_are_refused(tmp_path):
  write_images(tmp_path, ['1.jpg'])
  for fraction in (-0.1, 1.0, 7):
    with pytest.raises(SourceError, match='val_fraction'):
      open_folder(tmp_path, val_fraction=fraction)
  with pytest.raises(SourceError, match='fell into validation'):
    open_folder(tmp_path, val_fraction=1 - 1e-12)


def test_an_index_out_of_range_is_an_index_error(tmp_path):
  write_images(tmp_path, ['1.jpg', '2.jpg'])
  train, _ = open_folder(tmp_path)
  for index in (2, -1):
    with pytest.raises(IndexError):
      train[index]


def test_an_unknown_kind_is_refused():
  with pytest.raises(SourceError, match='bundled, folder, records, tfds, voc'):
    sources.open_sources(source='web', root='x')


# PASCAL VOC lists.


def make_voc(root):
  stems = [f'2007_{i:06d}' for i in range(6)]
  write_images(root, [f'JPEGImages/{stem}.jpg' for stem in stems])
  lists = root / 'ImageSets' / 'Main'
  lists.mkdir(parents=True)
  (lists / 'train.txt').write_text('\n'.join(stems[:4]) + '\n')
  (lists / 'val.txt').write_text('\n'.join(stems[4:]) + '\n')
  (lists / 'cat_val.txt').write_text(f'{stems[4]}  1\n{stems[5]} -1\n')
  return stems


def test_voc_lists_name_the_images(tmp_path):
  stems = make_voc(tmp_path)
  fields = {'source': 'voc', 'root': str(tmp_path)}
  train, val = sources.open_sources(**fields, split='train', val_split='val')
  assert names_of(train) == [f'JPEGImages/{stem}.jpg' for stem in stems[:4]]
  assert names_of(val) == [f'JPEGImages/{stem}.jpg' for stem in stems[4:]]
  assert images.decode_image(val[1].data).shape == (8, 9, 3) and val[1].label == -1
  _, listed = sources.open_sources(**fields, split='train', val_split='cat_val')
  assert names_of(listed) == names_of(val)
  split = sources.open_sources(**fields, split='train', val_fraction=0.5)
  assert sorted(names_of(split[0]) + names_of(split[1])) == names_of(train)


def test_voc_mistakes_are_explained(tmp_path):
  root = tmp_path / 'VOCdevkit' / 'VOC2007'
  stems = make_voc(root)
  for path, split, reason in (
    (root, 'test', r"data.split = 'test': there is no list .*there are train, val$"),
    (root, '', 'there are train, val'),
    (root.parent, 'train', f'did you mean {root}'),
  ):
    with pytest.raises(SourceError, match=reason):
      sources.open_sources(source='voc', root=str(path), split=split)
  (root / 'JPEGImages' / f'{stems[0]}.jpg').unlink()
  with pytest.raises(SourceError, match=f'1 of the 4 images .* such as {stems[0]}'):
    sources.open_sources(source='voc', root=str(root), split='train')


def test_the_real_voc_lists_open(shared_data, tmp_path):
  with tarfile.open(shared_data('voc_native100.tar')) as tar:
    tar.extractall(tmp_path, filter='data')
  train, val = sources.open_sources(
    source='voc', root=str(tmp_path / 'voc_native100'), split='all', val_fraction=0.3
  )
  assert len(train) + len(val) == 100
  assert images.decode_image(train[0].data, name=train[0].name).shape[2] == 3


# Prepared records.


@pytest.fixture
def records(tmp_path):
  write_images(tmp_path / 'photos', [f'{c}/{i:03d}.jpg' for c in 'ab' for i in range(30)])
  prepare.prepare(
    source=str(tmp_path / 'photos'),
    out=str(tmp_path / 'records'),
    num_shards=4,
    num_workers=1,
  )
  return tmp_path / 'records'


def open_records(root, **fields):
  return sources.open_sources(source='records', root=str(root), **fields)


def test_records_give_the_names_labels_and_pictures_of_their_folder(records):
  plain, _ = open_folder(records.parent / 'photos')
  train, val = open_records(records, val_fraction=0)
  assert names_of(train) == names_of(plain) and train.class_names == ('a', 'b') and len(val) == 0
  for i in (0, 29, 30, 59, 14, 15):
    assert train[i].label == plain[i].label
    assert np.array_equal(images.decode_image(train[i].data), images.decode_image(plain[i].data))
  again = pickle.loads(pickle.dumps(train))  # after its files were opened
  assert (
    again[31] == train[31] and again.fingerprint == train.fingerprint and '0x' not in repr(again)
  )


def test_records_are_split_like_their_folder(records):
  folder_split = open_folder(records.parent / 'photos', val_fraction=0.3)
  records_split = open_records(records, val_fraction=0.3)
  assert [names_of(s) for s in records_split] == [names_of(s) for s in folder_split]
  assert {records_split[1][i].label for i in range(len(records_split[1]))} == {0, 1}


def test_a_second_folder_of_records_gives_validation(records, tmp_path):
  prepare.prepare(
    source=str(tmp_path / 'photos' / 'a'),
    out=str(tmp_path / 'other'),
    num_workers=1,
  )
  train, val = open_records(records, val_root=str(tmp_path / 'other'))
  assert len(train) == 60 and len(val) == 30 and val[0].label == -1
  _, same = open_records(records, val_root=str(records))
  assert same.class_names == ('a', 'b') and same[59].label == 1


def test_records_that_were_moved_keep_their_fingerprint(records, tmp_path):
  before = open_records(records)[0].fingerprint
  records.rename(tmp_path / 'moved')
  assert open_records(tmp_path / 'moved')[0].fingerprint == before


def test_a_cut_shard_is_named_with_its_number(records):
  path = records / 'shard-00002.array_record'
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  with pytest.raises(SourceError, match=r'shard 2 .*shard-00002\.array_record.* is cut short'):
    open_records(records)
  path.unlink()
  with pytest.raises(SourceError, match=r'shard 2 of .* is missing'):
    open_records(records)


def test_damage_inside_a_shard_names_shard_and_record(records):
  path = records / 'shard-00001.array_record'
  data = bytearray(path.read_bytes())
  first = data.index(b'\xff\xd8\xff')
  data[first : first + 200] = bytes(200)
  path.write_bytes(data)
  train, _ = open_records(records, val_fraction=0)
  with pytest.raises(SourceError, match=r'shard 1 .*a/015\.jpg.*same cfn_jax\.prepare.*--verify'):
    train[15]
  assert train[0].data


def test_only_so_many_shards_are_open_at_a_time(records, monkeypatch):
  monkeypatch.setattr(array_records, '_MOST_READERS', 2)
  train, _ = open_records(records, val_fraction=0)
  plain, _ = open_folder(records.parent / 'photos')
  for i in (0, 15, 30, 45, 1, 16, 0, 59):
    assert train[i].data == plain[i].data
    links = (p.readlink() for p in pathlib.Path('/proc/self/fd').iterdir() if p.is_symlink())
    assert sum(link.name.endswith('.array_record') for link in links) <= 2


@pytest.mark.parametrize(
  ('field', 'value'),
  [
    *[('version', None), ('version', 'one'), ('shards', None), ('shards', 7), ('shards', [7])],
    *[('shards', [{'number': 0}]), ('class_names', None), ('class_names', [1]), ('checksum', 5)],
  ],
)
def test_a_damaged_index_is_explained(records, field, value):
  stated = json.loads((records / 'index.json').read_text())
  stated[field] = value
  if value is None:
    del stated[field]
  (records / 'index.json').write_text(json.dumps(stated))
  with pytest.raises(SourceError, match=rf'index\.json is damaged: its .*{field}'):
    open_records(records)


@pytest.mark.parametrize('text', ['{}', '[]', '{"names": 3, "labels": 3}', '{"names": []}'])
def test_a_damaged_index_of_a_shard_is_explained(records, text):
  (records / 'shard-00002.json').write_text(text)
  with pytest.raises(SourceError, match=r'the index of shard 2 of .* is damaged'):
    open_records(records)


def test_records_of_another_kind_or_unfinished_ones_are_refused(records, tmp_path):
  (tmp_path / 'foreign').mkdir()
  (tmp_path / 'foreign' / 'x.array_record-00000-of-00001').write_bytes(bytes(100))
  with pytest.raises(SourceError, match=r'no index\.json that cfn_jax\.prepare wrote'):
    open_records(tmp_path / 'foreign')
  (tmp_path / 'foreign' / 'index.json').write_text('{"format": "another project"}')
  with pytest.raises(SourceError, match=r'no index\.json that cfn_jax\.prepare wrote'):
    open_records(tmp_path / 'foreign')
  (records / 'index.json').unlink()
  with pytest.raises(SourceError, match=r'is not finished \(4 shards are\)'):
    open_records(records)
  with pytest.raises(SourceError, match='does not exist'):
    open_records(tmp_path / 'nothing')


# TensorFlow Datasets.


@pytest.fixture(scope='module')
def tfds_dir(tmp_path_factory):
  """A small data set in TFDS's ArrayRecord form, prepared without TensorFlow."""
  data_dir = tmp_path_factory.mktemp('tfds')
  code = f"""
import io, numpy as np, simplejpeg, tensorflow_datasets as tfds
class Toy(tfds.core.GeneratorBasedBuilder):
  VERSION, NAMES = tfds.core.Version('1.0.0'), ['cat', 'dog']
  def _info(self):
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({{
      'image': tfds.features.Image(shape=(None, None, 3), encoding_format='jpeg'),
      'label': tfds.features.ClassLabel(names=self.NAMES)}}))
  def _split_generators(self, download):
    return {{'train': self._make(30), 'test': self._make(10)}}
  def _make(self, count):
    for i in range(count):
      data = simplejpeg.encode_jpeg(np.full((20, 30, 3), 5 * i, np.uint8))
      yield i, {{'image': io.BytesIO(data), 'label': i % 2}}
  def _generate_examples(self): pass
class Pets(Toy):
  NAMES = ['dog', 'eel', 'cat']
for builder in (Toy, Pets):
  builder(data_dir={str(data_dir)!r}, file_format='array_record').download_and_prepare()
"""
  subprocess.run([sys.executable, '-c', code], check=True, capture_output=True)
  return data_dir


def open_tfds(data_dir, **fields):
  return sources.open_sources(source='tfds', root=str(data_dir), **fields)


def test_a_tfds_split_gives_encoded_images_and_labels(tfds_dir):
  train, val = open_tfds(tfds_dir, split='toy:train', val_split='test')
  assert (len(train), len(val), train.class_names) == (30, 10, ('cat', 'dog'))
  seen = {}
  for i in range(30):
    record = train[i]
    image = images.decode_image(record.data, name=record.name)
    seen[int(image[0, 0, 0])] = record.label
  assert seen == {5 * i: i % 2 for i in range(30)}
  assert train[3].name == 'toy/train/00000003'
  again = pickle.loads(pickle.dumps(train))
  assert again[7] == train[7] and repr(again) == repr(train) and '0x' not in repr(train)


def test_tfds_classes_are_numbered_as_in_training_or_the_images_have_none(tfds_dir):
  _, part = open_tfds(tfds_dir, split='pets:train', val_split='toy:test')
  assert part.class_names == ('dog', 'eel', 'cat') and part.foreign_classes == ()
  for record in map(part.__getitem__, range(10)):
    number = int(images.decode_image(record.data, name=record.name)[0, 0, 0]) // 5
    assert part.class_names[record.label] == ('cat', 'dog')[number % 2]
  _, foreign = open_tfds(tfds_dir, split='toy:train', val_split='pets:test')
  assert (foreign.class_names, foreign.foreign_classes) == ((), ('dog', 'eel', 'cat'))
  assert foreign[0].label == -1


def test_a_tfds_split_can_be_sliced_or_split_by_hash(tfds_dir):
  train, val = open_tfds(tfds_dir, split='toy:train', val_fraction=0.3)
  assert len(train) + len(val) == 30 and not set(names_of(train)) & set(names_of(val))
  assert train.fingerprint != val.fingerprint
  first, rest = open_tfds(tfds_dir, split='toy:train[:40%]', val_split='toy:train[40%:]')
  assert (len(first), len(rest)) == (12, 18)


def test_tfds_is_read_without_tensorflow_and_without_jax(tfds_dir):
  code = (
    'import sys; from cfn_jax.data import sources\n'
    f'train, _ = sources.open_sources(source="tfds", root={str(tfds_dir)!r}, split="toy:train")\n'
    'train[0]\n'
    'assert not {"jax", "tensorflow"} & set(sys.modules)'
  )
  subprocess.run([sys.executable, '-c', code], check=True)


@pytest.mark.parametrize(
  ('split', 'reason'),
  [
    ('train', "is 'name:split'"),
    ('toy:nope', "has no split 'nope'; it has test, train"),
    ('no_such_set:train', "cannot open TFDS data set 'no_such_set'"),
    ('imagenet2012:train', 'tfds build imagenet2012 --file_format=array_record'),
  ],
)
def test_tfds_mistakes_are_explained(tfds_dir, split, reason):
  with pytest.raises(SourceError, match=reason) as caught:
    open_tfds(tfds_dir, split=split)
  assert len(str(caught.value).splitlines()) == (4 if 'imagenet2012' in split else 1)
