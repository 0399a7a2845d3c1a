"""Finds truncated or damaged PNGs, which Pillow accepts: it shows the rows that it can.

Called by images.py. libjpeg's strict mode checks JPEGs, the stated length WebPs. Pillow itself
refuses GIFs, BMPs and TIFFs that lack pixels of the first picture.
"""

import struct
import zlib


def fault(data: bytes) -> str:
  """Returns why the data are no complete PNG; '' if they are.

  It checks the chunks up to IEND, and the checksums of those that carry the picture.
  """
  position, needs_palette = 8, data[25:26] == b'\x03'
  while position + 12 <= len(data):
    (length,) = struct.unpack_from('>I', data, position)
    kind = data[position + 4 : position + 8]
    end = position + 12 + length
    if end > len(data):
      break
    if kind in (b'IHDR', b'PLTE', b'IDAT'):
      (stated,) = struct.unpack_from('>I', data, end - 4)
      if zlib.crc32(memoryview(data)[position + 4 : end - 4]) != stated:
        return f'the PNG is damaged (the checksum of its {kind.decode()} chunk is wrong)'
    if kind == b'PLTE':
      needs_palette = False
    if kind == b'IDAT' and needs_palette:
      return 'the PNG is damaged (it has no palette)'
    if kind == b'IEND':
      return ''
    position = end
  return 'the PNG is cut short (it has no IEND chunk)'
