"""Labels of VOC images: lists, annotations, TFDS; what is malformed is refused."""

import subprocess
import sys

import labelled_cases
import numpy as np
import pytest

from cfn_jax.data import sources, voc_labels

NAMES = ('cat', 'dog', 'person')


@pytest.fixture
def voc(tmp_path):
  return labelled_cases.make_voc(tmp_path / 'VOC2008')


def stems(root, split='train'):
  return (root / 'ImageSets' / 'Main' / f'{split}.txt').read_text().split()


def test_lists_say_absent_present_or_only_difficult(voc):
  labels, names = voc_labels.read_labels(voc, 'train', stems(voc))
  assert names == NAMES and labels.dtype == np.uint8 and labels.shape == (12, 3)
  assert labels[0].tolist() == [1, 0, 0]
  assert labels[3].tolist() == [1, 0, 255]  # its person is difficult
  assert labels[11].tolist() == [0, 0, 1]  # one difficult person, and one who is not


def test_annotations_say_the_same_as_lists_and_no_tag_means_not_difficult(voc):
  by_list, names = voc_labels.read_labels(voc, 'train', stems(voc))
  by_object, all_names = voc_labels.read_labels(voc, 'train', stems(voc), origin='annotations')
  assert all_names == voc_labels.CLASSES
  for k, name in enumerate(names):
    np.testing.assert_array_equal(by_object[:, all_names.index(name)], by_list[:, k])
  assert by_object.sum() == by_list.astype(int).sum()


def test_the_order_asked_for_is_the_order_given(voc):
  asked = stems(voc)[::-1]
  labels, _ = voc_labels.read_labels(voc, 'train', asked)
  straight, _ = voc_labels.read_labels(voc, 'train', asked[::-1])
  np.testing.assert_array_equal(labels, straight[::-1])


def test_a_source_gives_the_labels_of_its_own_images(voc):
  found, fields = {}, {'source': 'voc', 'root': str(voc), 'split': 'train'}
  for source in sources.open_sources(**fields, val_fraction=0.4):
    labels, names = source.multi_labels('lists')
    assert names == NAMES and len(labels) == len(source) > 0
    found |= {source[i].name: row for i, row in enumerate(labels.tolist())}
  whole, _ = sources.open_sources(**fields, val_fraction=0)
  expected, _ = voc_labels.read_labels(voc, 'train', stems(voc))
  assert [found[whole[i].name] for i in range(12)] == expected.tolist()
  photographs, _ = sources.open_sources(source='folder', root=str(voc))
  with pytest.raises(sources.SourceError, match=r"come from data.source = 'voc' or"):
    photographs.multi_labels('lists')


def test_real_lists_agree_with_real_annotations(shared_data, tmp_path):
  archive = shared_data('voc2008_160.tar')
  wanted = [f'voc2008_160/{folder}' for folder in ('ImageSets/Main', 'Annotations')]
  subprocess.run(['tar', 'xf', str(archive), '-C', str(tmp_path), *wanted], check=True)
  root = tmp_path / 'voc2008_160'
  asked = stems(root, 'val')
  by_list, names = voc_labels.read_labels(root, 'val', asked)
  by_object, all_names = voc_labels.read_labels(root, 'val', asked, origin='annotations')
  assert names == all_names and len(asked) == 2219
  np.testing.assert_array_equal(by_list, by_object)


@pytest.mark.parametrize(
  ('line', 'reason'),
  [
    ('2008_train000 2', r'cat_train.txt, line 1: .*-1, 0 or 1'),
    ('2008_train000', 'line 1'),
    ('2008_train000 1 1', 'says nothing of 12 of the 12 images'),  # a name may hold blanks
    ('2008_train001 1', r'says nothing of 11 of the 12 images of train, such as 2008_train000'),
  ],
)
def test_a_malformed_list_is_refused_with_its_line(voc, line, reason):
  (voc / 'ImageSets' / 'Main' / 'cat_train.txt').write_text(line + '\n')
  with pytest.raises(sources.SourceError, match=reason):
    voc_labels.read_labels(voc, 'train', stems(voc))


def test_what_is_missing_is_named(voc):
  with pytest.raises(sources.SourceError, match=r'no list <class>_trainval.txt'):
    voc_labels.read_labels(voc, 'trainval', stems(voc))
  with pytest.raises(sources.SourceError, match=r"data.labels = 'xml'"):
    voc_labels.read_labels(voc, 'train', stems(voc), origin='xml')
  (voc / 'Annotations' / '2008_train002.xml').write_text('<annotation>')
  with pytest.raises(sources.SourceError, match=r'2008_train002.xml cannot be read'):
    voc_labels.read_labels(voc, 'train', stems(voc), origin='annotations')
  labelled_cases.write_annotation(voc / 'Annotations' / '2008_train002.xml', [('head', '0')])
  with pytest.raises(sources.SourceError, match=r"'head', which VOC does not have"):
    voc_labels.read_labels(voc, 'train', stems(voc), origin='annotations')


def test_missing_images_are_counted_and_ten_are_named(voc):
  for index in range(11):
    (voc / 'JPEGImages' / f'2008_train{index:03d}.jpg').unlink()
  with pytest.raises(sources.SourceError) as error:
    sources.open_sources(source='voc', root=str(voc), split='train', val_split='val')
  message = str(error.value)
  assert '11 of the 12 images' in message and message.count('2008_train') == 10


def test_tfds_labels_are_ignored_where_all_objects_are_difficult(tmp_path):
  code = f"""
import io, numpy as np, simplejpeg, tensorflow_datasets as tfds
class Mini(tfds.core.GeneratorBasedBuilder):
  VERSION = tfds.core.Version('1.0.0')
  def _info(self):
    many = tfds.features.Sequence(tfds.features.ClassLabel(names=['cat', 'dog', 'person']))
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({{
      'image': tfds.features.Image(shape=(None, None, 3), encoding_format='jpeg'),
      'labels': many, 'labels_no_difficult': many}}))
  def _split_generators(self, download):
    return {{'train': self._make(6), 'test': self._make(3)}}
  def _make(self, count):
    for i in range(count):
      data = simplejpeg.encode_jpeg(np.full((20, 30, 3), 5 * i, np.uint8))
      yield i, {{'image': io.BytesIO(data), 'labels': [i % 3, 2], 'labels_no_difficult': [i % 3]}}
  def _generate_examples(self): pass
Mini(data_dir={str(tmp_path)!r}, file_format='array_record').download_and_prepare()
"""
  subprocess.run([sys.executable, '-c', code], check=True, capture_output=True)
  train, _ = sources.open_sources(
    source='tfds', root=str(tmp_path), split='mini:train', val_split='test'
  )
  labels, names = train.multi_labels('lists')
  assert names == NAMES
  expected = {0: [1, 0, 255], 1: [0, 1, 255], 2: [0, 0, 1]}
  from cfn_jax.data import images

  for index in range(6):
    record = train[index]
    number = int(images.decode_image(record.data, name=record.name)[0, 0, 0]) // 5
    assert labels[index].tolist() == expected[number % 3]
  with pytest.raises(sources.SourceError, match="no feature 'objects'"):
    train.read_features(('objects',))
