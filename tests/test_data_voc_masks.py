"""Masks of VOC images: what files say, what is refused, and which images train."""

import io
import os
import pickle
import re
import struct
import zlib

import cv2
import mask_cases
import numpy as np
import pytest
import voc_cases
from PIL import Image

from cfn_jax.data import mask_files, mask_splits, voc_masks
from cfn_jax.data.record import SourceError

FIELDS = {
  'split': 'train',
  'val_root': '',
  'val_split': 'val',
  'val_fraction': 0.1,
  'sbd_root': '',
  'shared_images': 'leave_test',
  'more_masks': '',
  'allow_empty_classes': False,
}
ALL = (0, 1, 2, 255)
EVERY = tuple(range(21))


def read(root, **fields):
  chosen = {**FIELDS, 'root': str(root) if root else '', **fields}
  allowed = chosen.pop('allow_empty_classes')
  return voc_masks.open_masks(mask_splits.Fields(**chosen), allow_empty_classes=allowed)


def refuse(root, **fields):
  with pytest.raises(SourceError) as error:
    read(root, **fields)
  assert len(str(error.value).splitlines()) <= 5
  return str(error.value)


def refuse_file(data):
  with pytest.raises(SourceError) as error:
    mask_files.decode_mask(data, name='m/x.png')
  assert str(error.value).startswith('m/x.png: ')
  assert len(str(error.value).splitlines()) == 1
  return str(error.value)


@pytest.fixture
def root(tmp_path):
  return mask_cases.make_voc(tmp_path / 'v', train={'a': ALL, 'b': ALL}, val={'c': ALL})


MASK = mask_cases.make_mask(*ALL, 20)
COLOURED = mask_files.COLOURS[MASK]


@pytest.mark.parametrize(
  'data',
  [
    mask_cases.encode_indexed(MASK),
    mask_cases.encode(MASK),
    mask_cases.encode(MASK.astype(np.uint16)),
    mask_cases.encode(COLOURED),
    mask_cases.encode(np.dstack([COLOURED, np.full_like(MASK, 255)])),
    mask_cases.encode(np.dstack([MASK, np.full_like(MASK, 255)])),
    mask_cases.encode_mat(MASK),
    mask_cases.encode_mat(MASK.astype(float)),
  ],
  ids=['indexed', 'grey', 'grey 16', 'RGB', 'RGBA', 'grey alpha', 'mat', 'mat of doubles'],
)
def test_every_form_says_the_same_numbers(data):
  found = mask_files.decode_mask(data, name='x')
  assert found.dtype == np.uint8
  np.testing.assert_array_equal(found, MASK)


def pack(mask, bits, colour_type, size=None):
  """Writes a PNG whose pixels have 1, 2 or 4 bits, by its specification."""
  rows = np.unpackbits(mask[..., None], axis=2)[..., 8 - bits :].reshape(len(mask), -1)
  scanlines = b''.join(b'\0' + np.packbits(row).tobytes() for row in rows)

  def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))

  sides = size or mask.shape[::-1]
  head = struct.pack('>IIBBBBB', *sides, bits, colour_type, 0, 0, 0)
  palette = chunk(b'PLTE', mask_files.COLOURS[: 2**bits].tobytes()) if colour_type == 3 else b''
  data = chunk(b'IDAT', zlib.compress(scanlines))
  return b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', head) + palette + data + chunk(b'IEND', b'')


@pytest.mark.parametrize('bits', [1, 2, 4])
@pytest.mark.parametrize('colour_type', [0, 3], ids=['grey', 'indexed'])
def test_numbers_of_few_bits_are_not_spread(bits, colour_type):
  mask = mask_cases.make_mask(*range(2**bits))
  data = pack(mask, bits, colour_type)
  np.testing.assert_array_equal(mask_files.decode_mask(data, name='x'), mask)


def test_colours_are_those_of_the_devkit():
  """Names and colours as VOC's own masks show them; all 256 differ."""
  colours = mask_files.COLOURS
  assert colours[[0, 1, 2, 8, 15, 20]].tolist() == [
    *([0, 0, 0], [128, 0, 0], [0, 128, 0], [64, 0, 0], [192, 128, 128], [0, 64, 128]),
  ]
  assert colours[255].tolist() == [224, 224, 192] and len(np.unique(colours, axis=0)) == 256


def test_files_that_are_no_masks_are_named_with_what_helps():
  odd = COLOURED.copy()
  odd[7, 3] = 12, 34, 56
  told = refuse_file(mask_cases.encode(odd))
  assert 'colour (12, 34, 56) at x = 3, y = 7' in told and 'palette or grey PNG' in told
  cut = mask_cases.encode_indexed(MASK)
  assert 'cut short' in refuse_file(cut[:-20])
  assert 'cut short' in refuse_file(cut[:20])
  damaged = bytearray(cut)
  damaged[-30] ^= 1
  assert 'damaged' in refuse_file(bytes(damaged))
  stream = io.BytesIO()
  Image.fromarray(MASK).save(stream, 'JPEG')
  assert 'JPEG changes class numbers' in refuse_file(stream.getvalue())
  assert 'empty file' in refuse_file(b'')
  deep = MASK.astype(np.uint16)
  deep[2, 1] = 300
  assert '300 at x = 1, y = 2' in refuse_file(mask_cases.encode(deep))
  wide = cv2.imencode('.png', COLOURED.astype(np.uint16) * 257)[1].tobytes()
  assert '16 bits a channel' in refuse_file(wide)
  huge = pack(np.zeros((1, 8), np.uint8), 1, 0, size=(60_000, 60_000))
  assert '60000 x 60000 px is more than the limit' in refuse_file(huge)
  clear = np.dstack([COLOURED, np.where(MASK == 255, 0, 255).astype(np.uint8)])
  assert 'transparent at x = 21, y = 0' in refuse_file(mask_cases.encode(clear))
  assert 'GTinst' in refuse_file(mask_cases.encode_mat(MASK, name='GTinst'))
  assert 'GTcls.Segmentation' in refuse_file(mask_cases.encode_mat(MASK, field='Other'))
  assert '0.5' in refuse_file(mask_cases.encode_mat(np.full((2, 2), 0.5)))
  assert 'nan' in refuse_file(mask_cases.encode_mat(np.full((2, 2), np.nan)))
  assert 'damaged' in refuse_file(mask_cases.encode_mat(MASK)[:300])
  assert '-v7' in refuse_file(b'MATLAB 7.3 MAT-file, HDF5')


def test_splits_know_images_masks_and_sizes(root):
  training, testing, names = read(root)
  assert names == training.class_names == ('nothing', 'cat', 'dog')
  assert training.stems() == ['a', 'b'] and training.listed == ('a', 'b')
  assert testing.stems() == ['c'] and len(testing) == 1
  assert training.sizes.dtype == np.int32 and training.sizes.tolist() == [[80, 100]] * 2
  assert not training.notes and not testing.notes and testing.unseen == ()
  again = pickle.loads(pickle.dumps(training))
  np.testing.assert_array_equal(again.mask(1), mask_cases.make_mask(*ALL))
  assert again.fingerprint == training.fingerprint


def test_the_fingerprint_changes_with_a_mask_and_with_the_names(root):
  first = read(root)[0].fingerprint
  path = root / 'SegmentationClass' / 'a.png'
  status = path.stat()
  os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
  second = read(root)[0].fingerprint
  mask_cases.write(root, 'classes.txt', ['nothing', 'cat', 'hound'])
  assert len({first, second, read(root)[0].fingerprint}) == 3


def test_without_lists_each_image_with_a_mask_is_taken(tmp_path):
  stems = [f'{number:02d}' for number in range(12)]
  mask_cases.add_masks(tmp_path, 'SegmentationClass', dict.fromkeys(stems, ALL))
  mask_cases.write(tmp_path, 'classes.txt', ['nothing', 'cat', 'dog', ''])
  mask_cases.write(tmp_path, 'SegmentationClass/._00.png', b'')
  voc_cases.write_image(tmp_path, 'plain')
  both = {'split': '', 'val_split': '', 'val_fraction': 0.5}
  training, testing, _ = read(tmp_path, **both)
  assert sorted(training.stems() + testing.stems()) == stems and testing.stems()
  assert training.listed == testing.listed == tuple(stems)
  assert training.notes == ['JPEGImages/plain.jpg is left out: it has no mask']
  assert '1 without a mask' in training.source.description and not testing.notes
  assert "data.split = '' takes each" in refuse(tmp_path)
  assert 'held out' in refuse(tmp_path, **both | {'val_fraction': 0.0})
  mask_cases.write(tmp_path, 'SegmentationClass/gone.png', b'')
  assert re.search('1 of the 13 images .* gone\n', refuse(tmp_path, **both))


@pytest.mark.parametrize('inside', ['', 'dataset'])
def test_sbd_trains_and_what_it_shares_leaves_one_of_the_splits(tmp_path, inside):
  sbd = mask_cases.make_sbd(tmp_path / 's', train={'a': EVERY, 'b': [0, 3]}, val={'c': EVERY})
  voc = mask_cases.make_voc(tmp_path / 'v', classes=(), val={'b': [*EVERY, 255], 'd': EVERY})
  training, testing, names = read(voc, sbd_root=str(sbd / inside))
  assert training.stems() == ['a', 'b'] and testing.stems() == ['d']
  assert training.source.names[0] == 'img/a.jpg' and names[0] == 'background' and len(names) == 21
  np.testing.assert_array_equal(training.mask(1), mask_cases.make_mask(0, 3))
  assert testing.notes == [
    'JPEGImages/b.jpg is left out: the list of the training holds it too',
  ]
  assert '1 images; 1 left out that the list of the training holds' in testing.source.description
  assert testing.listed == ('b', 'd')
  training, testing, _ = read(voc, sbd_root=str(sbd / inside), shared_images='leave_training')
  assert training.stems() == ['a'] and testing.stems() == ['b', 'd']
  assert '; 1 left out' in training.source.description and 'b.jpg' in training.notes[0]
  assert 'there are val' in refuse(voc, sbd_root=str(sbd), val_split='')  # root is the test
  assert 'has no effect' in refuse(voc, sbd_root=str(sbd), val_root=str(voc))


def test_sbd_alone_has_lists_of_its_own(tmp_path):
  sbd = mask_cases.make_sbd(tmp_path, train={'a': EVERY}, val={'c': EVERY})
  for fields in ({'root': sbd}, {'root': '', 'sbd_root': str(sbd)}):
    training, testing, _ = read(fields.pop('root'), **fields)
    assert (training.stems(), testing.stems()) == (['a'], ['c'])
  assert 'there are train, val' in refuse(sbd, split='trainval')


def test_of_other_folders_files_must_agree_to_be_shared(root, tmp_path):
  other = mask_cases.make_voc(tmp_path / 'w', val={'a': ALL, 'd': ALL})
  assert read(root, val_root=str(other))[1].stems() == ['d']  # the very same picture
  voc_cases.write_image(other, 'a', quality=10)
  assert read(root, val_root=str(other))[1].stems() == ['a', 'd']
  assert 'all 2 images' in refuse(root, val_split='train')
  assert 'leave_both' in refuse(root, shared_images='leave_both')


def test_more_masks_add_images_of_neither_list(root):
  mask_cases.add_masks(root, 'More', {'a': [0], 'c': [0], 'd': [1, 2], 'e': [1], 'f': [1]})
  voc_cases.write_list(root, 'train', ['a', 'c', 'd', 'e', 'g'])
  training, testing, _ = read(root, more_masks='More')
  assert training.stems() == ['a', 'b', 'd', 'e'] and testing.stems() == ['c']
  np.testing.assert_array_equal(training.mask(0), mask_cases.make_mask(*ALL))  # its own is better
  np.testing.assert_array_equal(training.mask(2), mask_cases.make_mask(1, 2))
  assert '4 images, 2 with masks of More' in training.source.description
  assert training.listed == ('a', 'b') and not testing.notes
  assert read(root, more_masks='./More/')[0].source.description == training.source.description
  # A list may itself name images whose masks lie there; the test may not.
  mask_cases.write(root, 'ImageSets/Segmentation/train_aug.txt', ['a', 'f'])
  assert read(root, split='train_aug', more_masks='More')[0].stems() == ['a', 'f']
  assert 'no file in' in refuse(root, split='train_aug')
  assert 'no file in' in refuse(root, val_split='train_aug', more_masks='More')
  for name in ('Less', '../v/More', str(root / 'More')):
    assert f"data.more_masks = '{name}'" in refuse(root, more_masks=name)
  assert 'set one of them' in refuse(root, more_masks='More', sbd_root=str(root))
  voc_cases.write_list(root, 'train', ['a', 'c'])  # which the lists of segmentation have
  assert "data.more_masks = 'More' adds no image" in refuse(root, more_masks='More')


def test_masks_that_cannot_be_used_are_told_before_training(root):
  masks = root / 'SegmentationClass'
  (masks / 'a.png').write_bytes(mask_cases.encode_indexed(mask_cases.make_mask(1, shape=(100, 80))))
  told = refuse(root)
  assert '1 of the 3 masks' in told and 'a.png has 80 x 100 px' in told
  assert 'JPEGImages/a.jpg 100 x 80 px once it is upright' in told
  wrong = mask_cases.make_mask(0)
  wrong[5, 9] = 3
  (masks / 'b.png').write_bytes(mask_cases.encode_indexed(wrong))
  (masks / 'c.png').write_bytes(mask_cases.encode_indexed(wrong)[:-9])
  told = refuse(root)
  assert '3 of the 3' in told and '3 at x = 9, y = 5 is no class: they are 0 to 2' in told
  assert 'cut short' in told
  (masks / 'c.png').rename(masks / 'c.jpg')
  told = refuse(root)
  assert '1 of the 1 images' in told and 'there is SegmentationClass/c.jpg' in told
  (masks / 'c.png').symlink_to(masks / 'nowhere')
  assert 'c.png: cannot be read: No such file' in refuse(root)


def test_an_image_has_one_mask_and_turns_with_it(root):
  exif = Image.Exif()
  exif[0x0112] = 6
  voc_cases.write_image(root, 'a', exif=exif)
  assert 'once it is upright' in refuse(root)
  turned = mask_cases.encode_indexed(mask_cases.make_mask(*ALL, shape=(100, 80)))
  mask_cases.write(root, 'SegmentationClass/a.png', turned)
  assert read(root)[0].sizes.tolist() == [[100, 80], [80, 100]]
  voc_cases.write_image(root, 'a', suffix='.png')  # a picture beside a JPEG is none of the images
  read(root)
  mask_cases.write(root, 'SegmentationClass/a.mat', mask_cases.encode_mat(MASK))
  assert 'several files called a' in refuse(root)
  (root / 'JPEGImages' / 'b.jpg').write_bytes(b'no picture')
  (root / 'SegmentationClass' / 'a.mat').unlink()
  assert 'b.jpg' in refuse(root) and 'replace it' in refuse(root)


def test_classes_that_masks_do_not_show(root):
  mask_cases.add_masks(root, 'SegmentationClass', {'c': (0, 2, 255)})
  assert '1 of the 3 classes are in no mask of the test: cat' in refuse(root)
  _, testing, _ = read(root, allow_empty_classes=True)
  assert testing.unseen == (1,) and testing.notes == [
    'cat is left out: no mask of the test shows it'
  ]
  mask_cases.add_masks(root, 'SegmentationClass', dict.fromkeys('ab', (0, 1)))
  assert 'in none of the training: dog' in refuse(root, allow_empty_classes=True)
  mask_cases.add_masks(root, 'SegmentationClass', {'a': ALL, 'c': ALL, 'b': (255,)})
  read(root)  # a picture that is all void is no error
  mask_cases.add_masks(root, 'SegmentationClass', {'c': (255,)})
  assert '3 of the 3 classes' in refuse(root, allow_empty_classes=True)
  (root / 'classes.txt').unlink()
  assert '21 of the 21' in refuse(root) and 'classes.txt' in refuse(root)


@pytest.mark.parametrize(
  ('lines', 'told'),
  [
    (['nothing', '', 'cat'], 'line 2: it is empty'),
    (['nothing', 'cat', 'cat'], 'names cat twice'),
    (['nothing'], 'names 1 classes'),
    ([str(number) for number in range(256)], 'names 256 classes'),
  ],
)
def test_names_of_classes_are_checked(root, lines, told):
  mask_cases.write(root, 'classes.txt', lines)
  assert told in refuse(root)


def test_the_test_has_the_classes_of_the_training(root, tmp_path):
  other = mask_cases.make_voc(tmp_path / 'w', classes=('nothing', 'dog', 'cat'), val={'d': ALL})
  assert 'the classes differ' in refuse(root, val_root=str(other))
  (other / 'classes.txt').unlink()
  assert read(root, val_root=str(other))[2] == ('nothing', 'cat', 'dog')


def test_folders_of_another_layout_are_refused(root, tmp_path):
  assert f'did you mean {root}' in refuse(tmp_path)
  assert 'no JPEGImages and no SegmentationClass' in refuse(root / 'ImageSets')
  assert 'there is no such folder' in refuse(tmp_path / 'x')
  assert 'data.root is empty' in refuse('')
  assert 'dataset/img' in refuse(root, sbd_root=str(root))
  assert 'there are train, val' in refuse(root, split='')
  mask_cases.write(root, 'ImageSets/Segmentation/train.txt', [''])
  assert 'is empty' in refuse(root)
