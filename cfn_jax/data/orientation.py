"""Reads the orientation that a camera wrote into a file, and turns images upright.

Used by images.py; simplejpeg ignores EXIF.
"""

import re
import struct
from typing import Any

import numpy as np

from cfn_jax.data import jpeg

TAG = 0x0112


def of_jpeg(data: bytes) -> int:
  """Reads the orientation in a JPEG's header: 1..8; 1 if it is missing or invalid.

  Like Pillow, it falls back on the orientation in an XMP packet.
  """
  from_xmp = 1
  for marker, start, end in jpeg.segments(data):
    if marker == jpeg.SCAN:
      break
    if marker == jpeg.APP1:
      segment = data[start + 4 : end]
      if segment.startswith(b'Exif\x00'):
        return of_exif(segment[6:])
      found = re.search(rb'tiff:Orientation(?:="|>)([1-8])\b', segment)
      if found and segment.startswith(b'http://ns.adobe.com/xap/'):
        from_xmp = int(found[1])
  return from_xmp


def of_exif(tiff: bytes) -> int:
  """Reads tag 274 from an EXIF block (after its `Exif` header); 1 if missing or invalid."""
  order = {b'II': '<', b'MM': '>'}.get(tiff[:2])
  if order is None:
    return 1
  try:
    (start,) = struct.unpack_from(order + 'I', tiff, 4)
    (count,) = struct.unpack_from(order + 'H', tiff, start)
    for i in range(count):
      tag, kind = struct.unpack_from(order + 'HH', tiff, start + 2 + 12 * i)
      if tag == TAG:
        form = {1: 'B', 3: 'H', 4: 'I'}.get(kind)
        value = struct.unpack_from(order + form, tiff, start + 10 + 12 * i)[0] if form else 1
        return value if 1 <= value <= 8 else 1
  except struct.error:
    pass
  return 1


def apply(image: np.ndarray, orientation: Any) -> np.ndarray:
  """Turns and mirrors `[H, W, 3]` upright; unknown orientations leave it as it is."""
  if orientation == 2:
    image = image[:, ::-1]
  elif orientation == 3:
    image = image[::-1, ::-1]
  elif orientation == 4:
    image = image[::-1]
  elif orientation == 5:
    image = image.transpose(1, 0, 2)
  elif orientation == 6:
    image = image.transpose(1, 0, 2)[:, ::-1]
  elif orientation == 7:
    image = image[::-1, ::-1].transpose(1, 0, 2)
  elif orientation == 8:
    image = image.transpose(1, 0, 2)[::-1]
  return np.ascontiguousarray(image)
