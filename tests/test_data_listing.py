"""Which files are images, which are passed over, and that nothing is dropped without a word."""

import io
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from cfn_jax.data import images, prepare, sources, voc_labels
from cfn_jax.data.record import SourceError


def jpeg(level=90):
  return simplejpeg.encode_jpeg(np.full((40, 50, 3), level, np.uint8))


def write(root, names):
  for name in names:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg())


def names_of(source):
  return [source[i].name for i in range(len(source))]


def open_folder(root, **fields):
  return sources.open_sources(source='folder', root=str(root), val_fraction=0, **fields)[0]


def pack(members, mode='w'):
  stream = io.BytesIO()
  with tarfile.open(fileobj=stream, mode=mode) as tar:
    for name, data in members.items():
      info = tarfile.TarInfo(name)
      info.size = len(data)
      tar.addfile(info, io.BytesIO(data))
  return stream.getvalue()


def run(source, out):
  return prepare.prepare(source=str(source), out=str(out), num_workers=1)


PASSED_OVER = (
  '._1.jpg',
  '.thumbs/1.jpg',
  '__MACOSX/a/1.jpg',
  '@eaDir/1.jpg/SYNOPHOTO_THUMB_XL.jpg',
  'a/@eaDir/1.jpg',
  '$RECYCLE.BIN/S-1-5/1.jpg',
  '$Recycle.Bin/1.jpg',
  '#recycle/1.jpg',
  '@Recycle/1.jpg',
  'System Volume Information/1.jpg',
  'lost+found/1.jpg',
)
SHOWN = ('1.jfif', '2.JPE', 'a/3.JFIF', 'a/4.jpg')


@pytest.mark.parametrize('packed', [False, True])
def test_a_folder_and_a_tar_have_one_notion_of_images_and_of_what_is_passed_over(tmp_path, packed):
  others = ('a/note.txt', '5.heic')
  root = tmp_path / 'x'
  if packed:
    root.write_bytes(pack({name: jpeg() for name in (*PASSED_OVER, *SHOWN, *others)}))
  else:
    write(root, (*PASSED_OVER, *SHOWN, *others))
  source = prepare.open_source(str(root))
  assert sorted(names_of(source)) == sorted(SHOWN) and source.left_out == []
  assert source.others == (2, '5.heic')
  assert source.description.endswith('; 2 other files passed over (such as 5.heic)')
  assert run(root, tmp_path / 'out')['others'] == {'number': 2, 'example': '5.heic'}


@pytest.mark.parametrize(
  ('folders', 'warned'),
  [
    (('train', 'val'), True),
    (('Train', 'TEST'), True),
    (('train_images', 'validation'), True),
    (('train', 'val', 'cat'), False),
    (('cat', 'dog'), False),
  ],
)
def test_folders_that_look_like_splits_are_pointed_out(tmp_path, capsys, folders, warned):
  write(tmp_path / 'data', [f'{folder}/1.jpg' for folder in folders])
  open_folder(tmp_path / 'data')
  told = capsys.readouterr().err
  assert ('name one as data.root and another as data.val_root' in told) == warned
  run(tmp_path / 'data', tmp_path / 'out')
  assert ('count as its classes' in capsys.readouterr().err) == warned


def test_folders_of_odd_names_are_pointed_out_in_one_line(tmp_path, capsys):
  root = tmp_path / '\x1b[31mred\nend'
  write(root, ['train/1.jpg', 'val/1.jpg'])
  open_folder(root)
  told = capsys.readouterr().err
  assert told.startswith('warning: ') and r'\x1b[31mred\nend are train, val' in told
  assert told.count('\n') == 1 and '\x1b' not in told


@pytest.mark.parametrize('beside', ['txt', 'xml', 'png', 'webp', 'JSON'])
def test_files_beside_the_photographs_of_a_voc_folder_are_no_photographs(tmp_path, beside):
  stems = [f'im{i}' for i in range(8)]
  write(tmp_path, [f'JPEGImages/{stem}.jpg' for stem in stems])
  write(tmp_path, [f'JPEGImages/{stem}.{beside}' for stem in stems])
  write(tmp_path, [f'JPEGImages/._{stem}.jpg' for stem in stems])
  stems.append('drawn')  # a photograph that is no JPEG, its label file first
  write(tmp_path, ['JPEGImages/drawn.tiff', 'JPEGImages/drawn.csv'])
  (tmp_path / 'ImageSets/Main').mkdir(parents=True)
  (tmp_path / 'ImageSets/Main/all.txt').write_text('\n'.join(stems))
  train, _ = sources.open_sources(source='voc', root=str(tmp_path), split='all', val_fraction=0)
  assert names_of(train) == [*(f'JPEGImages/{s}.jpg' for s in stems[:-1]), 'JPEGImages/drawn.tiff']


@pytest.mark.parametrize(
  ('one', 'other'), [('a.jpg', 'a.JPG'), ('a.jpeg', 'a.jpg'), ('a.png', 'a.gif')]
)
def test_two_images_of_one_name_in_a_voc_folder_are_an_error(tmp_path, one, other):
  write(tmp_path, [f'JPEGImages/{one}', f'JPEGImages/{other}', 'JPEGImages/b.jpg'])
  (tmp_path / 'ImageSets/Main').mkdir(parents=True)
  (tmp_path / 'ImageSets/Main/all.txt').write_text('a\nb\n')
  (tmp_path / 'ImageSets/Main/some.txt').write_text('b\n')
  with pytest.raises(SourceError, match=rf'several images called a: .*{other}'):
    sources.open_sources(source='voc', root=str(tmp_path), split='all')
  sources.open_sources(source='voc', root=str(tmp_path), split='some', val_fraction=0)


ENCODED = {
  'plain': lambda text: text.encode(),
  'BOM': lambda text: b'\xef\xbb\xbf' + text.encode(),
  'Windows': lambda text: text.replace('\n', '\r\n').encode(),
  'old Mac': lambda text: text.replace('\n', '\r').encode(),
  'UTF-16': lambda text: text.encode('utf-16'),
  'UTF-16 big': lambda text: b'\xfe\xff' + text.encode('utf-16-be'),
}


@pytest.mark.parametrize('form', ENCODED)
def test_lists_of_a_voc_folder_are_read_in_every_form(tmp_path, form):
  stems = ['im 1', 'caf\xe9', 'a  b 2', 'x']
  write(tmp_path, [f'JPEGImages/{stem}.jpg' for stem in stems])
  lists = tmp_path / 'ImageSets/Main'
  lists.mkdir(parents=True)
  encode = ENCODED[form]
  (lists / 'all.txt').write_bytes(encode('\n'.join(stems) + '\n\n'))
  labels = dict(zip(stems, (1, -1, 0, 1)))
  text = ''.join(f'{stem} {label:2d}\n' for stem, label in labels.items())
  (lists / 'cat_all.txt').write_bytes(encode(text))
  (lists / '._cat_all.txt').write_bytes(b'\x00\x05\x16\x07')
  for split in ('all', 'cat_all'):
    train, _ = sources.open_sources(source='voc', root=str(tmp_path), split=split, val_fraction=0)
    assert names_of(train) == [f'JPEGImages/{stem}.jpg' for stem in stems]
  found, classes = voc_labels.read_labels(tmp_path, 'all', stems)
  assert classes == ('cat',) and found[:, 0].tolist() == [1, 0, voc_labels.IGNORED, 1]


def test_names_that_are_no_utf8_are_found_and_a_list_that_is_no_text_is_named(tmp_path):
  lists = tmp_path / 'ImageSets/Main'
  lists.mkdir(parents=True)
  (tmp_path / 'JPEGImages').mkdir()
  (tmp_path / 'JPEGImages' / os.fsdecode(b'caf\xe9.jpg')).write_bytes(jpeg())
  (lists / 'all.txt').write_bytes(b'caf\xe9\n')
  train, _ = sources.open_sources(source='voc', root=str(tmp_path), split='all', val_fraction=0)
  assert images.decode_image(train[0].data).shape == (40, 50, 3)
  (lists / 'bad.txt').write_bytes('caf\n'.encode('utf-16-le'))  # without its mark
  (lists / 'cut.txt').write_bytes(b'\xff\xfea')
  for split, reason in (('bad', 'it holds zero bytes'), ('cut', 'is damaged UTF-16')):
    with pytest.raises(SourceError, match=rf'Main/{split}\.txt is .*{reason.split(" ")[-1]}'):
      sources.open_sources(source='voc', root=str(tmp_path), split=split)


def test_inner_tars_of_any_case_are_opened_and_packed_archives_are_listed(tmp_path):
  inner = {f'{i}.JPEG': jpeg() for i in range(4)}
  stream = io.BytesIO()
  with zipfile.ZipFile(stream, 'w') as archive:
    archive.writestr('1.jpg', jpeg())
  held = {
    **{f'a/{i}.jpg': jpeg() for i in range(4)},
    'b.TAR': pack(inner),
    'c.Tar': pack({'deep.TAR': pack(inner), 'e.tgz': pack(inner, 'w:gz')}),
    'd.tar.gz': pack(inner, 'w:gz'),
    'f.tar.XZ': pack(inner, 'w:xz'),
    'g.zip': stream.getvalue(),
    'h.7z': b'7z',
    '._i.zip': b'',
    'read.me': b'x',
  }
  (tmp_path / 'x.tar').write_bytes(pack(held))
  index = run(tmp_path / 'x.tar', tmp_path / 'out')
  assert index['class_names'] == ('a', 'b', 'c') and index['num_records'] == 12
  reasons = {line['name']: line['reason'] for line in index['skipped']}
  assert set(reasons) == {'c/e.tgz', 'd.tar.gz', 'f.tar.XZ', 'g.zip', 'h.7z'}
  assert all('archive other than a plain tar' in reason for reason in reasons.values())
  assert index['num_skipped'] == 5 and index['others']['number'] == 1
  (tmp_path / 'y.tar').write_bytes(pack({'d.tar.gz': held['d.tar.gz'], 'read.me': b'x'}))
  with pytest.raises(
    SourceError, match=r'no images in .*such as read\.me; d\.tar\.gz: it is an arch'
  ):
    run(tmp_path / 'y.tar', tmp_path / 'none')


@pytest.mark.parametrize('form', ['gnu', 'posix'])
def test_a_member_with_holes_is_listed_and_the_others_are_read(tmp_path, form):
  holes = tmp_path / 'holes.bmp'
  picture = np.zeros((300, 300, 3), np.uint8)
  picture[:20], picture[-20:] = 90, 200
  stream = io.BytesIO()
  Image.fromarray(picture).save(stream, 'BMP')
  with holes.open('wb') as file:
    for start in range(0, len(stream.getvalue()), 4096):
      block = stream.getvalue()[start : start + 4096]
      if any(block):
        file.seek(start)
        file.write(block)
    file.truncate(len(stream.getvalue()))
  (tmp_path / 'z.jpg').write_bytes(jpeg())
  command = ['tar', f'--format={form}', '-cSf', str(tmp_path / 'x.tar'), '-C', str(tmp_path)]
  subprocess.run([*command, 'holes.bmp', 'z.jpg'], check=True)
  with tarfile.open(tmp_path / 'x.tar') as tar:
    if not tar.getmember('holes.bmp').issparse():
      pytest.skip('this file system keeps no holes')
  index = run(tmp_path / 'x.tar', tmp_path / 'out')
  assert index['num_records'] == 1
  [line] = index['skipped']
  assert line['name'] == 'holes.bmp' and 'stored with holes' in line['reason']


def test_links_and_devices_of_a_tar_are_listed(tmp_path):
  with tarfile.open(tmp_path / 'x.tar', 'w') as tar:
    for name, kind, target in (
      ('1.jpg', tarfile.REGTYPE, ''),
      ('2.jpg', tarfile.LNKTYPE, '1.jpg'),
      ('3.jpg', tarfile.LNKTYPE, 'nowhere.jpg'),
      ('4.jpg', tarfile.FIFOTYPE, ''),
      ('5', tarfile.DIRTYPE, ''),
    ):
      info = tarfile.TarInfo(name)
      info.type, info.linkname = kind, target
      info.size = len(jpeg()) if kind == tarfile.REGTYPE else 0
      tar.addfile(info, io.BytesIO(jpeg()))
  index = run(tmp_path / 'x.tar', tmp_path / 'out')
  assert index['num_records'] == 2
  reasons = {line['name']: line['reason'] for line in index['skipped']}
  assert set(reasons) == {'3.jpg', '4.jpg'} and 'nowhere.jpg' in reasons['3.jpg']


@pytest.mark.parametrize(
  ('data', 'reason'),
  [
    (b'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n', 'git lfs pull'),
    (b'/annex/objects/SHA256E-s9--0.jpg\n', 'git annex get'),
    (b'PK\x03\x04' + bytes(60), 'a ZIP archive'),
    (b'PK\x05\x06' + bytes(60), 'an empty ZIP archive'),
    (jpeg(), 'a JPEG image'),
    (b'\x1f\x8b\x08' + bytes(60), r'gzip-compressed data; decompress it first'),
    (b'', 'an empty file'),
    (b'\x04\x22\x4d\x18' + bytes(600), 'lz4-compressed data; decompress it first'),
    (b'\x1f\x9d' + bytes(600), 'data compressed by compress'),
    (b'PAR1' + bytes(600), 'a Parquet table'),
    (b'ARROW1' + bytes(600), 'an Arrow table'),
    (b'MSCF' + bytes(600), 'a CAB archive; unpack it first'),
  ],
)
def test_a_source_of_another_format_is_named_with_what_to_do(tmp_path, data, reason):
  (tmp_path / 'x').write_bytes(data)
  with pytest.raises(SourceError, match=rf'not a readable tar file: it is .*{reason}'):
    run(tmp_path / 'x', tmp_path / 'out')
  if data and not data.startswith(b'\xff\xd8'):
    with pytest.raises(images.BadImage, match=f'1.jpg: it is .*{reason.split(";")[0]}'):
      images.decode_image(data, name='1.jpg')


@pytest.mark.parametrize('data', ['a.jpg,cat\n' * 99, 'caf\xe9.jpg\n', 'x'])
@pytest.mark.parametrize('encoding', ['utf8', 'utf-16'])
def test_a_list_as_source_is_told_to_be_text(tmp_path, data, encoding):
  (tmp_path / 'x.csv').write_text(data, encoding)
  with pytest.raises(SourceError, match=r'it is text \(a folder or a plain tar is needed\)'):
    run(tmp_path / 'x.csv', tmp_path / 'out')


def test_unknown_bytes_as_source_are_told_what_is_needed(tmp_path):
  (tmp_path / 'x').write_bytes(b'\x00\x01\x02' * 400)
  with pytest.raises(SourceError, match='a folder or a plain tar is needed') as error:
    run(tmp_path / 'x', tmp_path / 'out')
  assert '\n' not in str(error.value)


def test_archives_beside_class_folders_are_listed(tmp_path):
  write(tmp_path / 'x', ['a/1.jpg', 'c/1.jpg'])
  for name in ('b.tar', 'd.ZIP', 'a/e.tar.gz', '.f.zip', 'note.txt'):
    (tmp_path / 'x' / name).write_bytes(pack({'1.jpg': jpeg()}))
  index = run(tmp_path / 'x', tmp_path / 'out')
  assert index['num_records'] == 2 and index['num_skipped'] == 3
  assert {line['name'] for line in index['skipped']} == {'b.tar', 'd.ZIP', 'a/e.tar.gz'}
  assert all('it is an archive' in line['reason'] for line in index['skipped'])
  assert index['others'] == {'number': 1, 'example': 'note.txt'}
  source = open_folder(tmp_path / 'x')
  told = '1 other file passed over (such as note.txt); 3 archives are not read (such as a/e.tar.gz)'
  assert source.description.endswith(told)


def test_a_folder_of_records_or_tars_is_told_what_it_is(tmp_path):
  write(tmp_path / 'photos', ['1.jpg'])
  run(tmp_path / 'photos', tmp_path / 'records')
  with pytest.raises(SourceError, match=r"holds records.*data\.source = 'records'"):
    open_folder(tmp_path / 'records')
  (tmp_path / 'tars').mkdir()
  (tmp_path / 'tars' / 'n01440764.tar').write_bytes(pack({'1.jpg': jpeg()}))
  with pytest.raises(
    SourceError, match=r'none of its 1 files .*python -m cfn_jax\.prepare --source'
  ):
    open_folder(tmp_path / 'tars')


def test_half_a_webp_is_cut_short():
  stream = io.BytesIO()
  noise = np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8)
  Image.fromarray(noise).save(stream, 'WEBP')
  whole = stream.getvalue()
  assert images.decode_image(whole).shape == (90, 90, 3)
  for length in (len(whole) // 2, len(whole) - 1, 40):
    with pytest.raises(images.BadImage, match='the WebP is cut short'):
      images.decode_image(whole[:length])


def test_a_large_jpeg_is_decoded_where_it_is_halved(monkeypatch):
  """The limit is on what is held, so the test lowers it instead of making 200 million pixels."""
  monkeypatch.setattr(images, 'MAX_PIXELS', 10_000)
  monkeypatch.setattr(images, 'MAX_HALVED_PIXELS', 30_000)
  data = simplejpeg.encode_jpeg(np.full((120, 160, 3), 70, np.uint8))  # 19,200 pixels
  assert images.decode_image(data, min_side_px=60).shape == (60, 80, 3)
  for min_side_px in (0, 61):
    with pytest.raises(images.BadImage, match='160 x 120 px is more than the limit of 10,000'):
      images.decode_image(data, min_side_px=min_side_px)
  larger = simplejpeg.encode_jpeg(np.full((160, 200, 3), 70, np.uint8))  # 32,000 pixels
  with pytest.raises(images.BadImage, match='200 x 160 px is more than the limit of 30,000'):
    images.decode_image(larger, min_side_px=20)


def test_a_picture_above_the_limit_of_pillow_is_refused_in_our_words():
  header = b'BM' + (54).to_bytes(4, 'little') + bytes(4) + (54).to_bytes(4, 'little')
  header += (40).to_bytes(4, 'little') + (20_000).to_bytes(4, 'little') * 2
  header += b'\x01\x00\x18\x00' + bytes(24)
  with pytest.raises(images.BadImage, match='more than the limit of 89,478,485 pixels'):
    images.decode_image(header)


def test_a_picture_that_is_too_large_is_refused_without_a_warning_of_pillow(tmp_path):
  picture = bytes.fromhex('89504e470d0a1a0a0000000d49484452')  # a PNG of 12,000 x 9,000 px
  picture += struct.pack('>IIBBBBB', 12_000, 9_000, 8, 0, 0, 0, 0)
  picture += struct.pack('>II', zlib.crc32(picture[12:]), 0) + b'IDAT'
  picture += struct.pack('>II', zlib.crc32(b'IDAT'), 0) + b'IEND\xaeB`\x82'
  (tmp_path / 'x').mkdir()
  (tmp_path / 'x/1.png').write_bytes(picture)
  (tmp_path / 'x/2.jpg').write_bytes(jpeg())
  command = (sys.executable, '-m', 'cfn_jax.prepare', '--source=x', '--out=out')
  done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
  told = done.stdout + done.stderr
  assert '12000 x 9000 px is more than the limit' in told and 'Warning' not in told


NO_HOME = """
import os, pwd, sys
os.environ.pop('HOME', None)
os.environ.pop('XDG_CACHE_HOME', None)
def nobody(uid): raise KeyError(uid)
pwd.getpwuid = nobody
from cfn_jax.data import sources
train, _ = sources.open_sources(source='folder', root=sys.argv[1], val_fraction=0)
print(len(train))
try:
  sources.open_sources(source='folder', root='~/photos')
except ValueError as error:
  print(error)
"""


def test_a_user_without_a_home_folder_has_no_traceback(tmp_path):
  write(tmp_path, ['1.jpg'])
  done = subprocess.run(
    [sys.executable, '-c', NO_HOME, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path
  )
  assert done.returncode == 0, done.stderr
  count, error = done.stdout.splitlines()
  assert count == '1' and 'there is no such home folder' in error and '~/photos' in error
