"""Decodes any picture file to uint8 RGB, or raises BadImage with the reason.

The first step of the flow: bytes of a file or a record -> image uint8 `[H, W, 3]`. The content
decides the format, not the name: JPEG (grey, CMYK, YCCK, progressive, Adobe markers), PNG, WebP,
GIF, BMP and TIFF. The first of several frames counts. EXIF orientation is applied, colour profiles
are not. A file that lacks pixels raises `BadImage`, and so does a damaged one if its format shows
it. A JPEG has no checksums, so changed bytes in its picture data may pass. Runs of zeros, which
lost disk blocks leave, do not pass in ordinary (sequential) JPEGs.

JPEGs take a fast strict path: simplejpeg, which stops at the first warning of libjpeg-turbo. If it
refuses a file for a harmless reason, a tolerant path cleans the header and decodes strictly again.
CMYK, and stray bytes before the end marker, use Pillow. Both paths use libjpeg-turbo with its
accurate transform and smooth upsampling: the largest difference between them is 0 levels (tested).
docs/data.md has the speeds of the codecs.
"""

import io
import warnings
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image, ImageFile

from cfn_jax import terminal
from cfn_jax.data import file_kinds, jpeg, orientation, png
from cfn_jax.errors import CfnError

# Larger pictures are refused before memory is allocated; above this Pillow warns of a bomb.
MAX_PIXELS = 89_478_485
# One that is halved while it is decoded holds a quarter of its pixels: phones make 200 million.
MAX_HALVED_PIXELS = 3 * MAX_PIXELS
# The longest side that a JPEG can have in libjpeg.
MAX_JPEG_SIDE_PX = 65_500

_READ = 'a JPEG, PNG, WebP, GIF, BMP or TIFF image'
_SMALLER = '; make it smaller first'
_OPENERS = ('PNG', 'WEBP', 'GIF', 'BMP', 'TIFF')

# Pillow warns of large pictures before they are refused here.
warnings.filterwarnings('ignore', category=Image.DecompressionBombWarning)


class BadImage(CfnError):  # noqa: N818
  """A file that cannot be decoded. The message is 'NAME: reason'."""

  def __init__(self, name: str, reason: str) -> None:
    super().__init__(f'{name or "image"}: {reason}')
    self.name = name
    self.reason = reason

  def __reduce__(self) -> tuple[type, tuple[str, str]]:
    return BadImage, (self.name, self.reason)  # it is sent from loader processes to the parent


def decode_image(
  data: bytes,
  *,
  name: str = '',
  min_side_px: int = 0,
) -> np.ndarray:
  """Decodes an encoded picture into an RGB image uint8 `[H, W, 3]`, upright.

  Grey pictures have three equal channels. Transparent pixels lie over white. 16-bit channels keep
  their high byte. `min_side_px` > 0 lets the JPEG decoder halve the picture up to three times while
  its short side stays at least that long; it depends on the header alone, so the result is the same
  every time.

  Raises:
    BadImage: the data is empty, damaged, cut short, not a picture, or larger than `MAX_PIXELS`.
    MemoryError: there is none left at present, which is no fault of the picture.
  """
  try:
    if jpeg.is_jpeg(data):
      return orientation.apply(_decode_jpeg(data, min_side_px), orientation.of_jpeg(data))
    return _decode_with_pillow(data)
  except BadImage as error:
    raise BadImage(name, error.reason) from error.__cause__
  except MemoryError:
    raise
  except Exception as error:  # Pillow's plugins raise anything on damaged data
    raise BadImage(name, f'it is damaged ({terminal.first_line(error)})') from error


def resize_short_side(
  image: np.ndarray, short_side_px: int, *, upsample: bool = False
) -> np.ndarray:
  """Resizes uint8 `[H, W, 3]` to a short side of `short_side_px`, aspect kept, antialiased.

  A picture that is small enough is returned as it is, unless `upsample` is set.

  >>> resize_short_side(np.zeros((300, 600, 3), np.uint8), 100).shape
  (100, 200, 3)
  >>> resize_short_side(np.zeros((30, 60, 3), np.uint8), 100).shape
  (30, 60, 3)
  """
  height, width = image.shape[:2]
  short = min(height, width)
  if short == short_side_px or (short < short_side_px and not upsample):
    return image
  new_height, new_width = resized_sides(height, width, short_side_px)
  if new_height * new_width > MAX_PIXELS:
    raise BadImage('', f'{width} x {height} px would grow to {new_width} x {new_height} px')
  resized = Image.fromarray(image).resize((new_width, new_height), Image.Resampling.BICUBIC)
  return np.asarray(resized)


def resized_sides(height: int, width: int, short_side_px: int) -> tuple[int, int]:
  """Returns the height and width of a picture whose short side becomes `short_side_px`.

  >>> resized_sides(300, 600, 100)
  (100, 200)
  """
  short = min(height, width)
  return max(1, round(height * short_side_px / short)), max(1, round(width * short_side_px / short))


def _decode_jpeg(data: bytes, min_side_px: int) -> np.ndarray:
  """Decodes by the fast strict path, then by the tolerant one for harmless faults."""
  if jpeg.is_zeroed(data):
    raise BadImage('', 'the JPEG is damaged (a stretch of its picture data is zeros)')
  try:
    return _decode_jpeg_strictly(data, min_side_px)
  except ValueError as error:
    if isinstance(error, BadImage):
      raise
  # libjpeg stops at the first warning, which may hide a worse one: mend the header, look again.
  cleaned = jpeg.clean_header(data)
  try:
    return _decode_jpeg_strictly(cleaned, min_side_px)
  except ValueError as error:
    if isinstance(error, BadImage):
      raise
    reason = str(error)
  too_long = reason.endswith('extraneous bytes before marker 0xd9')
  if too_long and jpeg.ZEROS not in cleaned[: cleaned.find(b'\xff\xd9')]:
    # Every block was there, then surplus bytes, and no run of zeros was decoded as blocks.
    return _decode_jpeg_with_pillow(cleaned, min_side_px)
  if 'Premature end' in reason or 'premature end' in reason:
    raise BadImage('', f'the JPEG is cut short ({reason})')
  raise BadImage('', f'the JPEG is damaged ({reason})')


def _decode_jpeg_strictly(data: bytes, min_side_px: int) -> np.ndarray:
  height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
  factor = _halving(width, height, min_side_px)
  _check_size(width, height, factor)
  if colorspace in ('CMYK', 'YCCK'):
    _check_size(width, height)
    simplejpeg.decode_jpeg(data, 'CMYK')  # strict about damage; libjpeg does not turn CMYK into RGB
    return _decode_jpeg_with_pillow(data, min_side_px)
  if factor == 1:
    return simplejpeg.decode_jpeg(data)
  return simplejpeg.decode_jpeg(
    data, min_height=-(-height // factor), min_width=-(-width // factor)
  )


def _decode_jpeg_with_pillow(data: bytes, min_side_px: int) -> np.ndarray:
  height, width, _, _ = simplejpeg.decode_jpeg_header(data)
  _check_size(width, height)  # before Pillow, which has a limit of its own
  with Image.open(io.BytesIO(data), formats=('JPEG',)) as picture:
    factor = _halving(width, height, min_side_px)
    if factor > 1:
      picture.draft(picture.mode, (width // factor, height // factor))
    return np.array(picture.convert('RGB'))


def _halving(width: int, height: int, min_side_px: int) -> int:
  """Returns the largest of 1, 2, 4, 8 that leaves a short side of `min_side_px`; 1 if that is 0."""
  if min_side_px <= 0:
    return 1
  return next(f for f in (8, 4, 2, 1) if f == 1 or -(-min(width, height) // f) >= min_side_px)


def _decode_with_pillow(data: bytes) -> np.ndarray:
  """Decodes everything that is not a JPEG."""
  _check_format(data)
  try:
    picture = Image.open(io.BytesIO(data), formats=_OPENERS)
  except Image.UnidentifiedImageError:
    raise BadImage('', f'it is damaged, or not {_READ}') from None
  except Image.DecompressionBombError:
    raise BadImage('', f'it has more than the limit of {MAX_PIXELS:,} pixels{_SMALLER}') from None
  with picture:
    _check_size(*picture.size)
    fault = png.fault(data) if picture.format == 'PNG' else ''
    if fault:
      raise BadImage('', fault)
    hidden = picture.info.get('transparency')
    if picture.format == 'PNG' and data[24] == 16 and isinstance(hidden, tuple):
      # Pillow keeps the high bytes of the pixels, but all of the colour that stands for nothing.
      picture.info['transparency'] = tuple(value >> 8 for value in hidden)
    picture.load()  # TIFF turns itself upright here, and then has no orientation any more
    _check_size(*picture.size)
    try:
      stated = picture.getexif().get(orientation.TAG, 1)
    except Exception:  # damaged EXIF is no reason to lose an intact picture
      stated = 1
    return orientation.apply(_to_rgb(picture), stated)


def _to_rgb(picture: ImageFile.ImageFile) -> np.ndarray:
  """Converts any of Pillow's modes to uint8 `[H, W, 3]`."""
  if picture.mode == 'F' or picture.mode.startswith('I'):
    return np.repeat(_grey_bytes(picture)[:, :, None], 3, axis=2)
  transparent = picture.mode in ('LA', 'PA', 'La', 'RGBA', 'RGBa') or 'transparency' in picture.info
  if not transparent:
    return np.array(picture.convert('RGB'))
  layer = picture.convert('RGBA')
  canvas = Image.new('RGBA', layer.size, (255, 255, 255, 255))
  return np.array(Image.alpha_composite(canvas, layer).convert('RGB'))


def _grey_bytes(picture: ImageFile.ImageFile) -> np.ndarray:
  """Scales a grey picture of more than 8 bits to uint8 `[H, W]`; Pillow would clip it."""
  values = np.asarray(picture)
  tags: Any = getattr(picture, 'tag_v2', {})
  if picture.mode == 'F':
    low, high = float(values.min()), float(values.max())  # a NaN fails both comparisons below
    if low >= 0 and high <= 1:
      return np.rint(values * 255).astype(np.uint8)
    if low >= 0 and high <= 255:
      return np.rint(values).astype(np.uint8)
    raise BadImage('', f'its floating-point pixels lie in {low:g}..{high:g}, not in 0..1 or 0..255')
  bits = tags.get(258, (16,))[0]
  bits = bits if 8 < bits <= 16 else 16
  low, high = int(values.min()), int(values.max())
  if low < 0 or high >= 1 << bits:
    raise BadImage('', f'its integer pixels lie in {low}..{high}, not in 0..{(1 << bits) - 1}')
  grey = (values.astype(np.int32) >> (bits - 8)).astype(np.uint8)
  if tags.get(262) == 0 and picture.mode.startswith('I;'):
    grey = 255 - grey  # Pillow leaves white-is-zero alone above 8 bits
  hidden = picture.info.get('transparency')
  if isinstance(hidden, int):
    grey = np.where(values == hidden, np.uint8(255), grey)
  return grey


def _check_size(width: int, height: int, factor: int = 1) -> None:
  """Refuses too many pixels; `factor` divides the sides while they are decoded."""
  if width < 1 or height < 1:
    raise BadImage('', f'{width} x {height} px is no picture')
  limit = MAX_PIXELS if factor == 1 else MAX_HALVED_PIXELS
  if width * height > limit:
    raise BadImage(
      '', f'{width} x {height} px is more than the limit of {limit:,} pixels{_SMALLER}'
    )


def _check_format(data: bytes) -> None:
  """Refuses files of another kind, and a WebP that is shorter than it states."""
  if not data:
    raise BadImage('', 'the file is empty')
  kind, _, remedy = file_kinds.recognise(data[: file_kinds.HEAD]).partition('; ')
  if kind and kind not in file_kinds.DECODED:
    raise BadImage('', f'it is {kind}, not {_READ}' + (f'; {remedy}' if remedy else ''))
  if kind == 'a WebP image' and len(data) < 8 + int.from_bytes(data[4:8], 'little'):
    raise BadImage('', 'the WebP is cut short (it ends before the length that it states)')
