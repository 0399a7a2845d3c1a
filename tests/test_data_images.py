"""Laws of decoding: content decides, every path gives the same picture, nothing damaged passes."""

import csv
import io
import pickle
import struct
import subprocess
import sys
import time
import zlib

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from cfn_jax.data import images, jpeg, orientation


def scene(height=30, width=40, seed=0):
  """A small photograph-like image: smooth colours with a little noise."""
  rng = np.random.default_rng(seed)
  coarse = rng.integers(0, 256, (4, 5, 3)).astype(np.uint8)
  smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR).astype(int)
  return np.clip(smooth + rng.integers(-8, 9, smooth.shape), 0, 255).astype(np.uint8)


def encode(image, form, **options):
  # A copy: saving leaves settings behind in a picture that spoil saving it in another form.
  picture = image.copy() if isinstance(image, Image.Image) else Image.fromarray(image)
  if 'append_images' in options:
    options['append_images'] = [other.copy() for other in options['append_images']]
  buffer = io.BytesIO()
  picture.save(buffer, form, **options)
  return buffer.getvalue()


def with_pillow(data):
  return np.array(Image.open(io.BytesIO(data)).convert('RGB'))


def difference(a, b):
  assert a.shape == b.shape
  return int(np.abs(a.astype(int) - b.astype(int)).max())


def png(width, height, kind, row, hidden=b''):
  """A PNG of one row, byte by byte; `kind` is its bit depth and colour type."""

  def chunk(name, body):
    return struct.pack('>I', len(body)) + name + body + struct.pack('>I', zlib.crc32(name + body))

  return b''.join(
    [
      b'\x89PNG\r\n\x1a\n',
      chunk(b'IHDR', struct.pack('>IIBBBBB', width, height, *kind, 0, 0, 0)),
      chunk(b'tRNS', hidden) if hidden else b'',
      chunk(b'IDAT', zlib.compress(b'\0' + row)),
      chunk(b'IEND', b''),
    ]
  )


def runs_bmp():
  """A BMP of 9 by 5 px whose rows are runs: a level at a time, then the end of the row."""
  rows = b''.join(bytes([4, 16 * row, 5, 255 - row, 0, 0]) for row in range(5)) + b'\0\1'
  palette = b''.join(bytes([level] * 3 + [0]) for level in range(256))
  info = struct.pack('<IiiHHIIiiII', 40, 9, 5, 1, 8, 1, len(rows), 0, 0, 256, 0)
  start = 14 + len(info) + len(palette)
  return struct.pack('<2sIII', b'BM', start + len(rows), 0, start) + info + palette + rows


RGB = Image.fromarray(scene())
OTHER = Image.fromarray(scene(seed=1))
FRAMES = {'save_all': True, 'append_images': [OTHER]}
DEEP = scene()[:, :, 0].astype(np.uint16) * 257

FILES = {
  'baseline.jpg': encode(RGB, 'JPEG'),
  'progressive.jpg': encode(RGB, 'JPEG', progressive=True),
  'grey.jpg': encode(RGB.convert('L'), 'JPEG'),
  'cmyk.jpg': encode(RGB.convert('CMYK'), 'JPEG'),
  'progressive_cmyk.jpg': encode(RGB.convert('CMYK'), 'JPEG', progressive=True),
  'restarts_444.jpg': encode(RGB, 'JPEG', subsampling=0, restart_marker_blocks=2),
  'rgb.jpg': encode(RGB, 'JPEG', keep_rgb=True, quality=95),
  'mpo.jpg': encode(RGB, 'MPO', **FRAMES),
  'rgb.png': encode(RGB, 'PNG'),
  'palette.png': encode(RGB.convert('P'), 'PNG'),
  'bilevel.png': encode(RGB.convert('1'), 'PNG'),
  'animated.png': encode(RGB, 'PNG', **FRAMES),
  'still.gif': encode(RGB, 'GIF'),
  'animated.gif': encode(RGB, 'GIF', **FRAMES),
  'interlaced.gif': encode(RGB, 'GIF', interlace=1),
  'lossy.webp': encode(RGB, 'WEBP'),
  'lossless.webp': encode(RGB, 'WEBP', lossless=True),
  'animated.webp': encode(RGB, 'WEBP', **FRAMES),
  'rgb.bmp': encode(RGB, 'BMP'),
  'odd_width.bmp': encode(RGB.crop((0, 0, 37, 29)), 'BMP'),
  'palette.bmp': encode(RGB.convert('P'), 'BMP'),
  'bilevel.bmp': encode(RGB.convert('1'), 'BMP'),
  'runs.bmp': runs_bmp(),
  'raw.tif': encode(RGB, 'TIFF'),
  'lzw.tif': encode(RGB, 'TIFF', compression='tiff_lzw'),
  'deflate.tif': encode(RGB, 'TIFF', compression='tiff_deflate'),
  'jpeg.tif': encode(RGB, 'TIFF', compression='jpeg'),
  'packbits.tif': encode(RGB, 'TIFF', compression='packbits'),
  'fax.tif': encode(RGB.convert('1'), 'TIFF', compression='group4'),
  'cmyk.tif': encode(RGB.convert('CMYK'), 'TIFF'),
  'stack.tif': encode(RGB, 'TIFF', **FRAMES),
  'opencv.tif': cv2.imencode('.tif', scene())[1].tobytes(),
}
# These hold 16 bits a channel, which Pillow's own conversion clips.
DEEP_FILES = {
  'grey.png': encode(Image.fromarray(DEEP), 'PNG'),
  'grey.tif': encode(Image.fromarray(DEEP), 'TIFF'),
  'big_endian.tif': encode(Image.fromarray(DEEP.astype('>u2')), 'TIFF'),
}


@pytest.mark.parametrize('name', FILES)
def test_every_form_gives_the_picture_that_pillow_gives(name):
  image = images.decode_image(FILES[name], name='wrong_name.txt')
  assert image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
  assert image.flags.c_contiguous and image.flags.writeable
  assert difference(image, with_pillow(FILES[name])) == 0


@pytest.mark.filterwarnings('ignore::UserWarning')  # Pillow's, of tags that are lost
@pytest.mark.parametrize('name', [*FILES, *DEEP_FILES])
def test_no_file_that_lost_pixels_at_its_end_passes(name):
  """A cut file is refused, or what it lacks is none of its first picture."""
  data = (FILES | DEEP_FILES)[name]
  whole = images.decode_image(data)
  for lost in [*range(1, 40), *range(40, len(data), 17)]:
    try:
      image = images.decode_image(data[:-lost])
    except images.BadImage:
      continue
    assert name.endswith(('.gif', '.bmp', '.tif')) or name == 'mpo.jpg', lost
    assert difference(image, whole) == 0, lost


@pytest.mark.filterwarnings('ignore::UserWarning')  # Pillow's, of tags that the damage hit
def test_damage_never_gives_anything_but_a_picture_or_a_bad_image():
  rng = np.random.default_rng(3)
  for data in (FILES | DEEP_FILES).values():
    for _ in range(15):
      damaged = bytearray(data)
      for place in rng.integers(0, len(data), rng.choice([1, 3, 30])):
        damaged[place] = rng.integers(256)
      try:
        image = images.decode_image(bytes(damaged))
      except images.BadImage:
        continue
      assert image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3


def test_damaged_picture_data_of_a_png_do_not_pass():
  data = bytearray(FILES['rgb.png'])
  data[len(data) // 2] ^= 1
  with pytest.raises(images.BadImage, match='checksum'):
    images.decode_image(bytes(data))


def test_quirks_give_what_their_table_says(shared_data):
  folder = shared_data('quirks')
  with (folder / 'QUIRKS.csv').open() as file:
    rows = [row for row in csv.DictReader(file) if not row['file'].endswith('.xml')]
  assert len(rows) >= 20
  for row in rows:
    data = (folder / row['file']).read_bytes()
    if row['decode'] != 'ok':
      with pytest.raises(images.BadImage, match=f'^{row["file"]}: .'):
        images.decode_image(data, name=row['file'])
      continue
    image = images.decode_image(data, name=row['file'])
    height, width = int(row['height']), int(row['width'])
    if row['exif_orientation'] in ('5', '6', '7', '8'):
      height, width = width, height
    assert image.shape == (height, width, 3), row['file']
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert('RGB')
    assert difference(image, np.array(upright)) == 0, row['file']
    if row['mode'] == 'L':
      assert (image == image[:, :, :1]).all()


def test_all_orientations_of_one_scene_come_out_alike(shared_data):
  folder = shared_data('quirks')
  upright = [
    images.decode_image((folder / f'exif_landscape_{i}.jpg').read_bytes()).astype(int)
    for i in (1, 2, 3, 4, 6, 8)
  ]
  for image in upright[1:]:
    assert np.abs(image - upright[0]).mean() < 20  # the pictures were taken one by one
  assert np.abs(upright[0] - upright[0][:, ::-1]).mean() > 40  # the bound tells mirrored ones


@pytest.mark.parametrize('form', ['JPEG', 'PNG', 'WEBP', 'TIFF'])
@pytest.mark.parametrize('value', range(1, 9))
def test_orientation_is_applied_in_every_form(form, value):
  exif = Image.Exif()
  exif[orientation.TAG] = value
  data = encode(RGB, form, exif=exif)
  expected = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert('RGB'))
  assert difference(images.decode_image(data), expected) == 0
  if value >= 5:
    assert expected.shape[:2] == (40, 30)


def test_orientation_turns_pixels_the_way_exif_says():
  # 6: the camera lay on its side, so the first stored pixel is the scene's top right one.
  image = np.arange(6, dtype=np.uint8).reshape(2, 3, 1).repeat(3, axis=2)
  assert orientation.apply(image, 6)[:, :, 0].tolist() == [[3, 0], [4, 1], [5, 2]]
  assert orientation.apply(image, 8)[:, :, 0].tolist() == [[2, 5], [1, 4], [0, 3]]
  assert orientation.apply(image, 5)[:, :, 0].tolist() == [[0, 3], [1, 4], [2, 5]]
  assert orientation.apply(image, 7)[:, :, 0].tolist() == [[5, 2], [4, 1], [3, 0]]


def jpeg_with_exif(tiff, stray=b''):
  segment = b'Exif\0\0' + tiff
  head = b'\xff\xe1' + struct.pack('>H', len(segment) + 2) + segment
  return FILES['baseline.jpg'][:20] + stray + head + FILES['baseline.jpg'][20:]  # behind JFIF's


def ifd(order, kind, value):
  form = {1: 'Bxxx', 3: 'Hxx', 4: 'I'}[kind]
  magic = b'II*\0' if order == '<' else b'MM\0*'
  entry = struct.pack(order + 'HHI' + form, 0x0112, kind, 1, value)
  return magic + struct.pack(order + 'IH', 8, 1) + entry + bytes(4)


@pytest.mark.parametrize('order', ['<', '>'])
@pytest.mark.parametrize('kind', [1, 3, 4])
def test_orientation_is_read_from_any_integer_type_and_byte_order(order, kind):
  assert orientation.of_jpeg(jpeg_with_exif(ifd(order, kind, 6))) == 6


@pytest.mark.parametrize('stray', [b'x', b'\xff', b'\xff\0', b'x\xff\xd0\xff'])
def test_orientation_is_read_behind_stray_bytes_as_pillow_does(stray):
  data = jpeg_with_exif(ifd('<', 3, 6), stray)
  assert orientation.of_jpeg(data) == Image.open(io.BytesIO(data)).getexif()[274] == 6


@pytest.mark.parametrize(
  'tiff', [ifd('<', 3, 0), ifd('<', 3, 9), ifd('>', 3, 65535), b'II', b'II*\0\xff\xff\xff\xff', b'']
)
def test_an_invalid_orientation_is_ignored(tiff):
  image = images.decode_image(jpeg_with_exif(tiff))
  assert difference(image, with_pillow(FILES['baseline.jpg'])) == 0


def test_sixteen_bits_are_scaled_and_not_clipped():
  for data in DEEP_FILES.values():
    image = images.decode_image(data)
    assert difference(image, (DEEP >> 8).astype(np.uint8)[:, :, None].repeat(3, axis=2)) == 0
  ramp = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
  for data in (encode(Image.fromarray(ramp), 'PNG'), encode(Image.fromarray(ramp), 'TIFF')):
    assert images.decode_image(data)[0, :, 0].tolist() == [0, 0, 1, 128, 255]
  colour = scene().astype(np.uint16) * 257
  data = cv2.imencode('.png', colour[:, :, ::-1])[1].tobytes()
  assert difference(images.decode_image(data), scene()) == 0


def test_floating_point_and_integer_tiffs_are_scaled_or_refused():
  def tiff(values):
    return encode(Image.fromarray(np.array([values])), 'TIFF')

  assert images.decode_image(tiff(np.float32([0, 0.5, 1])))[0, :, 1].tolist() == [0, 128, 255]
  assert images.decode_image(tiff(np.float32([0, 17.4, 255])))[0, :, 1].tolist() == [0, 17, 255]
  assert images.decode_image(tiff(np.int32([0, 256, 65535])))[0, :, 1].tolist() == [0, 1, 255]
  for values in (np.float32([-1, 2]), np.float32([0, np.nan]), np.int32([0, 1 << 20])):
    with pytest.raises(images.BadImage, match='pixels lie in'):
      images.decode_image(tiff(values))


def test_transparent_pixels_lie_over_white():
  pixels = np.zeros((1, 3, 4), np.uint8)
  pixels[0, :] = [[200, 0, 0, 255], [200, 0, 0, 0], [200, 0, 0, 51]]  # whole, none, a fifth
  for form in ({'form': 'PNG'}, {'form': 'WEBP', 'lossless': True, 'exact': True}):
    over_white = images.decode_image(encode(pixels, **form))
    assert over_white[0].tolist() == [[200, 0, 0], [255, 255, 255], [244, 204, 204]]


def test_every_kind_of_transparency_is_seen():
  white = [255, 255, 255]
  grey = np.array([[[9, 255], [9, 0]]], np.uint8)
  assert images.decode_image(encode(Image.fromarray(grey), 'PNG'))[0].tolist() == [[9] * 3, white]
  palette = Image.new('P', (2, 1))
  palette.putpalette([10, 20, 30, 40, 50, 60])
  palette.putpixel((1, 0), 1)
  for form in ('PNG', 'GIF'):
    data = encode(palette, form, transparency=1)
    assert images.decode_image(data)[0].tolist() == [[10, 20, 30], white]
  keyed = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8))
  data = encode(keyed, 'PNG', transparency=(4, 5, 6))
  assert images.decode_image(data)[0].tolist() == [[1, 2, 3], white]
  for deep in (
    png(2, 1, (16, 0), struct.pack('>2H', 0x0900, 0x8000), hidden=struct.pack('>H', 0x8000)),
    png(
      *(2, 1, (16, 2)),
      struct.pack('>6H', *[0x0900] * 3, 0x4000, 0x5000, 0x6000),
      hidden=struct.pack('>3H', 0x4000, 0x5000, 0x6000),
    ),
  ):
    assert images.decode_image(deep)[0].tolist() == [[9] * 3, white]


def test_cmyk_jpegs_are_read_in_adobes_inverted_form():
  ink = np.zeros((16, 16, 4), np.uint8)
  ink[:, :, 0], ink[:, :, 3] = 255, 51  # full cyan, a fifth of black
  image = images.decode_image(encode(Image.fromarray(ink, 'CMYK'), 'JPEG', quality=100))
  assert np.abs(image.astype(int) - [0, 204, 204]).max() <= 2


def test_the_first_frame_counts():
  for name in ('animated.gif', 'animated.webp', 'animated.png', 'mpo.jpg'):
    image = images.decode_image(FILES[name]).astype(int)
    assert np.abs(image - scene()).mean() < np.abs(image - scene(seed=1)).mean() / 2, name


def test_fast_and_tolerant_paths_give_the_same_picture(shared_data):
  """The stated largest difference is 0: both are libjpeg-turbo with the same settings."""
  files = sorted(shared_data('quirks').glob('*.jp*g'))
  real = [
    p.read_bytes() for p in files if p.read_bytes()[:2] == b'\xff\xd8' and 'trunc' not in p.name
  ]
  assert len(real) > 8
  made = [FILES[n] for n in FILES if n.endswith('.jpg') and 'cmyk' not in n]
  for data in [*real, *made]:
    fast = images._decode_jpeg_strictly(data, 0)
    assert difference(fast, images._decode_jpeg_with_pillow(data, 0)) == 0
    assert difference(fast, images._decode_jpeg_strictly(jpeg.clean_header(data), 0)) == 0
    opencv = cv2.imdecode(
      np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    )
    if simplejpeg.decode_jpeg_header(data)[2] not in ('CMYK', 'YCCK'):
      assert difference(fast, opencv) == 0  # a third decoder, built from other sources


@pytest.mark.parametrize('form', ['baseline.jpg', 'progressive.jpg', 'grey.jpg', 'cmyk.jpg'])
def test_a_smaller_decoded_picture_keeps_the_side_asked_for(form):
  mode = {'grey.jpg': 'L', 'cmyk.jpg': 'CMYK'}.get(form, 'RGB')
  picture = Image.fromarray(scene(301, 410)).convert(mode)
  data = encode(picture, 'JPEG', progressive='progressive' in form)
  whole = images.decode_image(data)
  sizes = {}
  for side in (0, 302, 301, 152, 151, 76, 75, 38, 1):
    image = images.decode_image(data, min_side_px=side)
    sizes[side] = image.shape[0]
    assert difference(image, images.decode_image(data, min_side_px=side)) == 0
    factor = -(-301 // image.shape[0])
    small = cv2.resize(whole, image.shape[1::-1], interpolation=cv2.INTER_AREA)
    assert np.abs(small.astype(int) - image).mean() < (0.1 if factor == 1 else 6)
    assert (
      difference(
        images._decode_jpeg_with_pillow(data, side), images._decode_jpeg_strictly(data, side)
      )
      == 0
    )
  assert sizes == {0: 301, 302: 301, 301: 301, 152: 301, 151: 151, 76: 76, 75: 76, 38: 38, 1: 38}


def harmless_faults():
  data = FILES['baseline.jpg']
  version = data.index(b'JFIF\0') + 5
  scan = data.index(b'\xff\xda')
  body = scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], 'big')
  return {
    'unknown JFIF version': data[:version] + b'\x07' + data[version + 1 :],
    'odd spectral range': data[: body - 3] + bytes(3) + data[body:],
    'stray bytes between segments': data[:20] + b'xx' + data[20:],
    'unknown Adobe transform': data[:2] + b'\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\x09' + data[2:],
    'bytes after the end': data + b'anything at all',
    'many zeros before the end': data[:-2] + bytes(300) + b'\xff\xd9',
  }


@pytest.mark.parametrize('fault', harmless_faults())
def test_harmless_faults_are_tolerated(fault):
  data = harmless_faults()[fault]
  assert difference(images.decode_image(data), with_pillow(FILES['baseline.jpg'])) == 0


@pytest.mark.parametrize('fault', [f for f in harmless_faults() if 'end' not in f])
def test_a_harmless_fault_hides_no_worse_one(fault):
  """libjpeg stops at the first warning; a cut JPEG with an end marker only warns."""
  data = harmless_faults()[fault]
  with pytest.raises(images.BadImage, match='cut short'):
    images.decode_image(data[: len(data) * 3 // 4] + b'\xff\xd9')
  with pytest.raises(images.BadImage, match='cut short'):
    images.decode_image(data[:-2])


def scan_start(data):
  scan = data.index(b'\xff\xda')
  return scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], 'big')


@pytest.mark.parametrize('options', [{}, {'subsampling': 0}, {'optimize': True}])
@pytest.mark.parametrize('part', ['middle', 'second half', 'whole'])
def test_a_jpeg_with_a_stretch_of_zeros_does_not_pass(options, part):
  data = bytearray(encode(scene(600, 800), 'JPEG', quality=95, **options))
  middle = len(data) // 2
  start = scan_start(data) + 9 if part == 'whole' else middle
  stop = middle + 3000 if part == 'middle' else len(data) - 2
  data[start:stop] = bytes(stop - start)
  with pytest.raises(images.BadImage, match='zeros'):
    images.decode_image(bytes(data), min_side_px=64)


def test_a_progressive_jpeg_whose_second_half_is_zeros_does_not_pass():
  data = bytearray(encode(scene(600, 800), 'JPEG', quality=75, progressive=True))
  data[len(data) // 2 : -2] = bytes(len(data) - len(data) // 2 - 2)
  with pytest.raises(images.BadImage, match='damaged'):
    images.decode_image(bytes(data))


@pytest.mark.parametrize('options', [{}, {'optimize': True}, {'progressive': True}])
@pytest.mark.parametrize('mode', ['L', 'RGB', 'CMYK'])
def test_zeros_that_stand_for_plain_background_are_no_damage(options, mode):
  plain = Image.new('RGB', (1600, 1200), (255, 255, 255)).convert(mode)
  data = encode(plain, 'JPEG', **options)
  assert not options or bytes(512) in data
  assert difference(images.decode_image(data), with_pillow(data)) == 0


def test_zeros_in_the_header_or_after_the_end_are_no_damage():
  data = FILES['baseline.jpg']
  thumbnail = b'\xff\xe1\x10\x00' + data[:100] + bytes(0xFFE - 100)
  for padded in (data[:2] + thumbnail + data[2:], data + bytes(5000), data + bytes(600) + data):
    assert difference(images.decode_image(padded), with_pillow(data)) == 0


def test_running_out_of_memory_says_nothing_about_the_picture(monkeypatch):
  def exhaust(*_, **__):
    raise MemoryError

  monkeypatch.setattr(images.simplejpeg, 'decode_jpeg', exhaust)
  monkeypatch.setattr(images.Image, 'open', exhaust)
  for form in ('baseline.jpg', 'rgb.png'):
    with pytest.raises(MemoryError):
      images.decode_image(FILES[form])


@pytest.mark.parametrize(
  ('data', 'reason'),
  [
    (b'', 'empty'),
    (b'\xff', 'damaged, or not'),
    (b'\xff\xd8\xff', 'damaged'),
    (b'\x1f\x8b\x08' + bytes(50), 'gzip'),
    (b'<!DOCTYPE html><p>not found', 'HTML'),
    (b'  <svg xmlns="http://www.w3.org/2000/svg"/>', 'SVG'),
    (b'PK\x03\x04' + bytes(50), 'ZIP'),
    (b'%PDF-1.4', 'PDF'),
    (b'\0\0\0\x18ftypheic' + bytes(50), 'HEIC'),
    (b'just text', 'not a JPEG'),
    (bytes(1000), 'not a JPEG'),
  ],
)
def test_what_is_no_image_is_named(data, reason):
  with pytest.raises(images.BadImage, match=f'^some/file.jpg: .*{reason}'):
    images.decode_image(data, name='some/file.jpg')


def bombs():
  jpeg, gif = bytearray(FILES['baseline.jpg']), bytearray(FILES['still.gif'])
  frame = jpeg.index(b'\xff\xc0')
  jpeg[frame + 5 : frame + 9] = struct.pack('>HH', 65000, 65000)
  gif[6:10] = struct.pack('<HH', 65000, 65000)
  bmp = bytearray(FILES['rgb.bmp'])
  bmp[18:26] = struct.pack('<ii', 60000, 60000)
  return {
    'jpeg': bytes(jpeg),
    'png': png(60000, 60000, (8, 2), bytes(100)),
    'gif': bytes(gif),
    'bmp': bytes(bmp),
  }


@pytest.mark.parametrize('form', bombs())
def test_decompression_bombs_are_refused_before_they_take_memory(form):
  started = time.process_time()
  with pytest.raises(images.BadImage, match=r'limit|exceeds'):
    images.decode_image(bombs()[form])
  assert time.process_time() - started < 0.5


def test_a_palette_png_without_its_palette_is_damaged():
  with pytest.raises(images.BadImage, match='no palette'):
    images.decode_image(png(4, 1, (2, 3), b'\x1b'))


def test_pictures_without_pixels_are_refused():
  for data in (png(0, 10, (8, 2), b''), png(10, 0, (8, 2), b'')):
    with pytest.raises(images.BadImage):
      images.decode_image(data)


def test_extreme_shapes_are_decoded_as_they_are():
  for form in ('JPEG', 'PNG'):
    assert images.decode_image(encode(scene(3, 4000), form)).shape == (3, 4000, 3)
    assert images.decode_image(encode(scene(1, 1), form)).shape == (1, 1, 3)


def test_resizing_keeps_the_aspect_and_averages():
  image = np.zeros((40, 60, 3), np.uint8)
  image[:, ::2] = 255  # one-pixel stripes: without antialiasing they would stay black or white
  small = images.resize_short_side(image, 10)
  assert small.shape == (10, 15, 3) and small.dtype == np.uint8
  assert np.abs(small[:, 2:-2].astype(int) - 127).max() < 25
  reference = np.array(Image.fromarray(scene(301, 410)).resize((136, 100), Image.Resampling.BOX))
  assert np.abs(images.resize_short_side(scene(301, 410), 100).astype(int) - reference).mean() < 4
  assert images.resize_short_side(image, 40) is image
  assert images.resize_short_side(image, 80) is image
  assert images.resize_short_side(image, 80, upsample=True).shape == (80, 120, 3)
  with pytest.raises(images.BadImage, match='would grow'):
    images.resize_short_side(np.zeros((3, 4000, 3), np.uint8), 300, upsample=True)


def test_a_bad_image_survives_pickling():
  error = pickle.loads(pickle.dumps(images.BadImage('a.jpg', 'the file is empty')))
  assert str(error) == 'a.jpg: the file is empty' and error.name == 'a.jpg'


def test_decoding_and_opening_a_folder_import_neither_jax_nor_tensorflow(tmp_path):
  (tmp_path / 'a.jpg').write_bytes(FILES['baseline.jpg'])
  code = (
    'import sys\n'
    'from cfn_jax.data import images, sources, prepare\n'
    f'train, val = sources.open_sources(source="folder", root={str(tmp_path)!r}, val_fraction=0)\n'
    'images.decode_image(train[0].data)\n'
    'assert not {"jax", "tensorflow", "torch", "grain"} & set(sys.modules), "imported"\n'
  )
  subprocess.run([sys.executable, '-c', code], check=True)
