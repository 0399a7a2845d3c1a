"""Objects of VOC images: what files say, what is refused, and what is done to boxes."""

import dataclasses
import pickle
import re

import numpy as np
import pytest
import voc_cases
from PIL import Image

from cfn_jax.data import image_sizes, images, voc, voc_labels, voc_objects
from cfn_jax.data.record import SourceError

FIELDS = {
  'split': 'train',
  'val_root': '',
  'val_split': 'test',
  'val_fraction': 0.1,
  'on_bad_box': 'fail',
  'allow_empty_classes': False,
}
CAT, DOG = voc_cases.write_object('cat'), voc_cases.write_object('dog')


def read(root, **fields):
  return voc_objects.open_objects(**{**FIELDS, 'root': str(root), **fields})


def refuse(root, **fields):
  with pytest.raises(SourceError) as error:
    read(root, **fields)
  assert len(str(error.value).splitlines()) <= 5
  return str(error.value)


@pytest.fixture
def root(tmp_path):
  return voc_cases.make_voc(tmp_path, {'a': [CAT], 'b': [DOG]}, {'c': [CAT, DOG]})


def test_boxes_count_from_zero_and_children_come_in_any_order(root):
  whole = (
    '<object><bndbox><ymax>70.5</ymax><xmin>11</xmin><xmax>60</xmax><ymin> 21 </ymin></bndbox>'
    '<part><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax>'
    '</bndbox></part><name> guide dog </name></object>'
  )
  part_first = voc_cases.write_object(
    'cat', (1, 1, 100, 80), difficult=1, extra='<part><bndbox><xmin>5</xmin></bndbox></part>'
  )
  voc_cases.write_annotation(root, 'a', whole, part_first)
  voc_cases.write_annotation(root, 'b')
  voc_cases.write_annotation(root, 'c', CAT, voc_cases.write_object('guide dog', difficult=0))
  training, testing, names = read(root)
  assert names == ('cat', 'guide dog')
  first, second = training.objects
  np.testing.assert_array_equal(first.boxes, [[10, 20, 59, 69.5], [0, 0, 99, 79]])
  assert first.boxes.dtype == np.float32 and first.classes.dtype == np.int32
  assert first.classes.tolist() == [1, 0] and first.difficult.tolist() == [False, True]
  assert second.boxes.shape == (0, 4) and second.classes.shape == second.difficult.shape == (0,)
  assert first.size_px == (80, 100) and testing.objects[0].difficult.tolist() == [False, False]
  assert training.listed == ('a', 'b') and testing.listed == ('c',) and not training.notes


def test_a_held_out_part_knows_its_whole_list(root):
  stems = [f'{number:02d}' for number in range(12)]
  voc_cases.write_list(root, 'train', stems[::-1])
  for stem in stems:
    voc_cases.write_image(root, stem)
    voc_cases.write_annotation(root, stem, CAT)
  training, testing, _ = read(root, val_split='', val_fraction=0.5)
  assert training.listed == testing.listed == tuple(stems[::-1])
  assert sorted(training.source.stems() + testing.source.stems()) == stems
  assert len(training.objects) == len(training.source) and len(testing.objects)
  assert pickle.loads(pickle.dumps(training.source)).stems() == training.source.stems()


def test_without_lists_each_annotated_image_is_taken(tmp_path):
  for stem in ('b', 'a', 'x.1', '._a'):
    voc_cases.write_annotation(tmp_path / 'one', stem, CAT)
  for stem in ('a', 'b', 'x.1', 'plain'):
    voc_cases.write_image(tmp_path / 'one', stem)
  voc_cases.write_annotation(tmp_path / 'two', 'c', CAT)
  voc_cases.write_image(tmp_path / 'two', 'c')
  both = {'split': '', 'val_split': '', 'val_root': str(tmp_path / 'two')}
  training, testing, _ = read(tmp_path / 'one', **both)
  assert training.listed == ('a', 'b', 'x.1') and testing.listed == ('c',)
  assert training.notes == ['JPEGImages/plain.jpg is left out: it has no annotation']
  assert '1 without an annotation (such as JPEGImages/plain.jpg)' in training.source.description
  training, testing, _ = read(tmp_path / 'one', **both | {'val_root': ''}, val_fraction=0.5)
  assert len(training.objects) + len(testing.objects) == 3
  assert training.notes and not testing.notes
  message = refuse(tmp_path / 'one', **both | {'split': 'train'})
  assert 'no ImageSets/Main' in message and "data.split = ''" in message
  voc_cases.write_annotation(tmp_path / 'one', 'gone', CAT)
  assert '1 of the 4 images' in refuse(tmp_path / 'one', **both)


def test_with_lists_an_empty_split_is_still_refused(root):
  assert 'there are test, train' in refuse(root, split='')
  assert 'data.val_split is empty' in refuse(root, val_split='', val_root=str(root))
  assert "'lists'" not in refuse(root / 'Annotations', split='')


@pytest.mark.parametrize(
  ('ours', 'theirs', 'told'),
  [
    ([CAT], [CAT, DOG], r'1 only in test \(dog\)$'),
    ([CAT, DOG], [CAT], r'1 only in training \(dog\); data.allow_empty_classes=True'),
    ([], [CAT], 'no annotation holds an object'),
  ],
)
def test_classes_must_be_those_of_the_training(root, ours, theirs, told):
  for stem, objects in (('a', ours), ('b', []), ('c', theirs)):
    voc_cases.write_annotation(root, stem, *objects)
  assert re.search(told, refuse(root))
  if ours == [CAT, DOG]:
    assert read(root, allow_empty_classes=True)[2] == ('cat', 'dog')
  else:
    assert re.search(told, refuse(root, allow_empty_classes=True))


BAD = {
  'outside': (11, 21, 101, 70),
  'reversed': (60, 21, 11, 70),
  'not finite': ('nan', 21, 60, 70),
  'under 2 px': (11, 21, 11.5, 70),
}


@pytest.mark.parametrize('fault', BAD)
def test_a_bad_box_stops_all_and_is_named(root, fault):
  bad = voc_cases.write_object('cat', BAD[fault])
  voc_cases.write_annotation(root, 'c', CAT, DOG, bad)
  message = refuse(root)
  ends = ', '.join(str(end) for end in BAD[fault])
  assert f'c.xml: cat ({ends}) of 100 x 80 px, {fault}' in message
  assert '1 of the 5 boxes' in message and "data.on_bad_box='clip'" in message


def test_ten_bad_boxes_are_named(root):
  bad = [voc_cases.write_object('cat', (n + 2, 1, n, 9)) for n in range(1, 14)]
  voc_cases.write_annotation(root, 'a', CAT, *bad)
  assert refuse(root).count('reversed') == 10 + 1  # and what clipping does to them


def test_clipping_cuts_boxes_and_drops_what_is_none(root):
  found = [
    *BAD.values(),
    (-5, 0, 300, 40),
    (100, 1, 140, 50),
    (200, 1, 300, 50),
    ('1e300', 1, 2, 3),
    (99, 79, 100, 80),
  ]
  written = [voc_cases.write_object('cat', box, difficult=n % 2) for n, box in enumerate(found)]
  voc_cases.write_annotation(root, 'a', DOG, *written)
  training, _, _ = read(root, on_bad_box='clip')
  first = training.objects[0]
  np.testing.assert_array_equal(
    first.boxes, [[10, 20, 59, 69], [10, 20, 99, 69], [0, 0, 99, 39], [98, 78, 99, 79]]
  )
  assert first.classes.tolist() == [1, 0, 0, 0]
  assert first.difficult.tolist() == [False, False, False, False]
  assert [note.partition(' px ')[2] for note in training.notes] == [
    'is cut to its image',
    'is dropped: reversed',
    'is dropped: not finite',
    'is dropped: under 2 px',
    'is cut to its image',
    'is dropped: outside, and cut to its image under 2 px',
    'is dropped: outside, and cut to its image under 2 px',
    'is dropped: not finite',
  ]
  assert training.notes[0] == 'a.xml: cat (11, 21, 101, 70) of 100 x 80 px is cut to its image'


def test_a_class_that_loses_all_its_boxes_is_told(root):
  lost = voc_cases.write_object('dog', (60, 1, 50, 9))
  voc_cases.write_annotation(root, 'b', lost)
  for allow in (False, True):
    message = refuse(root, on_bad_box='clip', allow_empty_classes=allow)
    assert 'classes of the training can be used: dog' in message
  voc_cases.write_annotation(root, 'b', DOG)
  voc_cases.write_annotation(root, 'c', CAT, lost)
  assert 'classes of the test can be used: dog' in refuse(root, on_bad_box='clip')
  assert len(read(root, on_bad_box='clip', allow_empty_classes=True)[1].objects[0].classes) == 1


@pytest.mark.parametrize(
  ('text', 'told'),
  [
    ('<annotation>', 'a.xml cannot be read'),
    ('<?xml version="1.0" encoding="none"?><annotation/>', 'a.xml cannot be read'),
    ('<html/>', 'it holds <html>'),
    ('<annotation><filename>z.jpg</filename></annotation>', 'its <filename> is z.jpg'),
    ('<annotation><object/></annotation>', 'no <name>'),
    ('<annotation><object><name>cat</name></object></annotation>', 'cat has no <bndbox>'),
    (f'<annotation>{CAT.replace("ymax", "top")}</annotation>', 'cat has no <ymax>'),
    (f'<annotation>{CAT.replace(">60<", ">6O<")}</annotation>', "cat <xmax> is '6O', not a num"),
    (
      f'<annotation>{voc_cases.write_object(difficult="2")}</annotation>',
      "cat has <difficult> '2'",
    ),
    (
      '<annotation><size><width>99</width><height>80</height></size></annotation>',
      'says 99 x 80 px, but a.jpg has 100 x 80 px',
    ),
    (
      '<annotation><size><width>many</width></size></annotation>',
      "<size><width> is 'many', not a number",
    ),
  ],
)
def test_a_file_that_cannot_be_used_is_named(root, text, told):
  (root / 'Annotations' / 'a.xml').write_text(text)
  message = refuse(root)
  assert told in message and str(root / 'Annotations' / 'a.xml') in message


@pytest.mark.parametrize(
  'head',
  [
    '<filename/>',
    '<filename>a</filename>',
    '<filename>C:\\photos\\a.png</filename>',
    '<size><width>0</width><height>0</height></size>',
    '<size><width/><height/></size>',
    '<size><height>80</height><width>100.0</width></size>',
  ],
)
def test_what_annotation_tools_write_passes(root, head):
  voc_cases.write_annotation(root, 'a', CAT, head=head)
  assert len(read(root)[0].objects[0].classes) == 1


def test_missing_files_and_wrong_choices_are_told(root):
  assert "data.on_bad_box = 'skip'" in refuse(root, on_bad_box='skip')
  assert 'data.root is empty' in refuse('')
  assert 'none of the 2 images is held out' in refuse(root, val_split='', val_fraction=0.0)
  (root / 'JPEGImages' / 'b.jpg').write_bytes(b'')
  assert 'b.jpg: its header says no size' in refuse(root)
  (root / 'Annotations' / 'b.xml').unlink()
  assert '1 of the 2 images have no file' in refuse(root)


def test_sizes_are_those_of_upright_images(root):
  exif = Image.Exif()
  exif[274] = 6
  voc_cases.write_image(root, 'a', exif=exif)
  assert read(root)[0].objects[0].size_px == (100, 80)
  size = '<size><width>100</width><height>80</height></size>'
  voc_cases.write_annotation(root, 'a', CAT, head=size)
  assert 'a.jpg has 80 x 100 px once it is upright' in refuse(root)


def test_the_fingerprint_changes_with_all_that_objects_say(root):
  training = read(root)[0]
  assert training.fingerprint == read(root)[0].fingerprint
  first = training.objects[0]
  others = [
    dataclasses.replace(first, boxes=first.boxes + 1),
    dataclasses.replace(first, classes=1 - first.classes),
    dataclasses.replace(first, difficult=~first.difficult),
  ]
  both = dataclasses.replace(
    first,
    **{
      name: np.concatenate([getattr(each, name) for each in training.objects])
      for name in ('boxes', 'classes', 'difficult')
    },
  )
  none = dataclasses.replace(
    first, boxes=first.boxes[:0], classes=first.classes[:0], difficult=first.difficult[:0]
  )
  changed = [
    *((other, training.objects[1]) for other in others),
    training.objects[::-1],
    (both, none),
    (none, both),
  ]
  told = [dataclasses.replace(training, objects=objects).fingerprint for objects in changed]
  voc_cases.write_image(root, 'a', quality=20)
  told.append(read(root)[0].fingerprint)
  assert len({training.fingerprint, *told}) == 1 + len(changed) + 1


def test_headers_say_the_size_of_what_is_decoded(shared_data, tmp_path):
  several = tmp_path / 'large_header.jpg'
  Image.new('RGB', (50, 30)).save(several, icc_profile=bytes(200_000))
  turned = Image.Exif()
  turned[274] = 5
  for suffix in ('png', 'webp', 'tiff'):
    Image.new('RGB', (50, 30)).save(tmp_path / f'turned.{suffix}', exif=turned)
  seen = 0
  for path in [*sorted(shared_data('quirks').iterdir()), *tmp_path.iterdir()]:
    try:
      image = images.decode_image(path.read_bytes())
    except images.BadImage:
      continue
    assert image_sizes.read_size(path) == image.shape[:2], path.name
    seen += 1
  assert seen >= 18


def test_real_annotations_say_what_classification_reads(shared_data, tmp_path):
  shared_data('voc_native100.tar')
  import tarfile

  with tarfile.open(shared_data('voc_native100.tar')) as tar:
    tar.extractall(tmp_path, filter='data')
  root = tmp_path / 'voc_native100'
  training, testing, names = read(root, split='all', val_split='', val_fraction=0.5)
  assert names == voc_labels.CLASSES
  assert sum(len(each.classes) for part in (training, testing) for each in part.objects) == 273
  assert sum(each.difficult.sum() for part in (training, testing) for each in part.objects) == 38
  for part in (training, testing):
    labels, _ = part.source.multi_labels('annotations')
    for row, each in zip(labels, part.objects):
      easy, hard = set(each.classes[~each.difficult]), set(each.classes[each.difficult])
      assert set(np.flatnonzero(row == 1)) == easy
      assert set(np.flatnonzero(row == voc_labels.IGNORED)) == hard - easy


def test_stems_keep_their_dots():
  assert voc.stem_of('JPEGImages/img.rf.1.jpg') == 'img.rf.1'
