"""The size of a picture as images.py decodes it, upright, from its header alone.

Used by voc_objects.py, whose boxes lie in the upright picture.
"""

import contextlib
import io
import pathlib
import struct

from PIL import Image, UnidentifiedImageError

from cfn_jax import terminal
from cfn_jax.data import jpeg, orientation
from cfn_jax.data.images import BadImage

_HEAD = 1 << 16  # bytes; the header of most JPEGs ends before
_TURNED = (5, 6, 7, 8)  # orientations that exchange the sides


def read_size(path: pathlib.Path) -> tuple[int, int]:
  """Returns the height and width of a picture, EXIF orientation applied.

  Raises:
    BadImage: the file cannot be read, or its header has no size.
  """
  try:
    with path.open('rb') as file:
      data = file.read(_HEAD)
      height, width = _jpeg_size(data)
      if not height:
        data += file.read()
        height, width = _jpeg_size(data) if jpeg.is_jpeg(data) else (0, 0)
  except OSError as error:
    raise BadImage(str(path), f'cannot be read: {error.strerror or error}') from None
  if height:
    turned = orientation.of_jpeg(data) in _TURNED
  else:
    height, width, turned = _size_by_pillow(path, data)
  return (width, height) if turned else (height, width)


def _jpeg_size(data: bytes) -> tuple[int, int]:
  """Returns the stored height and width; 0, 0 if this is no JPEG or its scan begins later."""
  found = 0, 0
  for marker, start, _ in jpeg.segments(data) if jpeg.is_jpeg(data) else ():
    if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) and start + 9 <= len(data):
      found = struct.unpack_from('>HH', data, start + 5)
    elif marker == jpeg.SCAN:
      return found
  return 0, 0


def _size_by_pillow(path: pathlib.Path, data: bytes) -> tuple[int, int, bool]:
  """Returns the height, the width, and whether they must be exchanged."""
  try:
    with Image.open(io.BytesIO(data)) as picture:
      width, height = picture.size
      if picture.format == 'TIFF':  # Pillow turns its size itself
        return height, width, False
      with contextlib.suppress(Exception):  # damaged EXIF does not affect the size
        return height, width, picture.getexif().get(orientation.TAG) in _TURNED
      return height, width, False
  except UnidentifiedImageError:  # its text names an object in memory
    raise BadImage(str(path), 'its header says no size') from None
  except Exception as error:  # Pillow's plugins raise anything on damaged data
    reason = f'its header says no size ({terminal.first_line(error)})'
    raise BadImage(str(path), reason) from None
