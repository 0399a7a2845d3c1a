"""Finds picture files that were cut short, which decoders let pass.

Called by images.py before it decodes. A file that lacks its last bytes often still gives every row,
or a picture whose rest is grey: Pillow takes a PNG without its end chunk, a GIF cut in its second
frame, a BMP without its last padding. Each format says how long it is; these functions hold it to
its word. JPEGs are left to libjpeg's strict mode, but for stretches of zeros, and libwebp sees to
WebPs.
"""

import re
import struct
import zlib

# As many zeros as the smallest block of a disk holds.
ZEROS = bytes(512)
# Bytes of a TIFF value by type, forms of the types that hold offsets, and the pairs of tags that
# say where picture data lie: strips, tiles, an embedded JPEG.
_TIFF_SIZES = {3: 2, 4: 4, 5: 8, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_TIFF_FORMS = {3: 'H', 4: 'I', 16: 'Q'}
_TIFF_SPANS = ((273, 279), (324, 325), (513, 514))
_TIFF_PLACES = frozenset(tag for pair in _TIFF_SPANS for tag in pair)


def is_jpeg(data: bytes) -> bool:
  """Whether the first bytes are those of a JPEG."""
  return data[:3] == b'\xff\xd8\xff'


def is_zeroed_jpeg(data: bytes) -> bool:
  """Whether a sequential JPEG has `ZEROS` in its picture data where no encoder puts them.

  Zeros make sense only where the all-zero code of each component's AC table ends a block, as in
  tables made for a picture with much plain background. With the standard tables, and most others,
  they would be a row of blocks that all hold the same 63 coefficients.
  """
  if data.find(ZEROS) < 0:
    return False
  first_symbols: dict[int, int] = {}  # what each AC table says for a code of zeros
  position = 2
  while position + 4 <= len(data):
    if data[position] != 0xFF or data[position + 1] in (0, 0xFF):
      position = data.find(b'\xff', position + 1)  # after stray or fill bytes
      if position < 0:
        return False
      continue
    marker = data[position + 1]
    if marker == 0xD9:
      return False
    if marker == 1 or 0xD0 <= marker <= 0xD8:
      position += 2
      continue
    if 0xC2 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
      return False  # progressive, lossless or arithmetic: zeros there have other meanings
    end = position + 2 + int.from_bytes(data[position + 2 : position + 4], 'big')
    segment = data[position + 4 : end]
    if marker == 0xC4:
      _first_symbols(segment, first_symbols)
    position = end
    if marker == 0xDA and segment:
      tables = [first_symbols.get(byte & 15, 0) for byte in segment[2 : 1 + 2 * segment[0] : 2]]
      found = re.compile(rb'\xff[^\x00\xd0-\xd7\xff]').search(data, end)
      position = found.start() if found else len(data)
      if any(tables) and data.find(ZEROS, end, position) >= 0:
        return True
  return False


def _first_symbols(segment: bytes, first_symbols: dict[int, int]) -> None:
  """Notes the first symbol of each AC table of a DHT segment: its code has only zeros."""
  start = 0
  while start + 17 < len(segment):
    if segment[start] >> 4 == 1:
      first_symbols[segment[start] & 15] = segment[start + 17]
    start += 17 + sum(segment[start + 1 : start + 17])


def fault(data: bytes, form: str) -> str:
  """Says in what way the data are no whole file of the form (Pillow's name for it); '' if whole."""
  check = {'PNG': _png, 'GIF': _gif, 'BMP': _bmp, 'TIFF': _tiff}.get(form)
  return check(data) if check is not None else ''


def _png(data: bytes) -> str:
  """Chunks up to IEND, with the checksums of those that carry the picture."""
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


def _gif(data: bytes) -> str:
  """Blocks up to the trailer."""
  missing = 'the GIF is cut short (it has no trailer)'

  def after_blocks(position: int) -> int:
    while position < len(data) and data[position]:
      position += 1 + data[position]
    return position + 1

  if len(data) < 13:
    return missing
  position = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)
  while position < len(data):
    if data[position] == 0x3B:
      return ''
    if data[position] == 0x21:
      position = after_blocks(position + 2)
    elif data[position] == 0x2C:
      if position + 10 > len(data):
        return missing
      flags = data[position + 9]
      position = after_blocks(position + 11 + (3 << (flags & 7) + 1 if flags & 0x80 else 0))
    else:
      position += 1  # stray bytes between blocks, as some writers leave
  return missing


def _bmp(data: bytes) -> str:
  """Rows up to the last padding byte where they are not packed, else the stated length."""
  (start, header) = struct.unpack_from('<II', data, 10)
  if header < 40:
    width, height, _, bits = struct.unpack_from('<HHHH', data, 18)
    compression, stated = 0, 0
  else:
    width, height, _, bits, compression, stated = struct.unpack_from('<iiHHII', data, 18)
  if compression in (0, 3, 6):
    needed = start + (width * bits + 31) // 32 * 4 * abs(height)
  else:
    needed = start + stated
  return f'the BMP is cut short ({len(data)} of {needed} bytes)' if len(data) < needed else ''


def _tiff(data: bytes) -> str:
  """Every directory of the chain, what its entries point at, and all strips and tiles."""
  order = '<' if data[:2] == b'II' else '>'
  big = data[2:4] in (b'\x2b\x00', b'\x00\x2b')  # BigTIFF: 8-byte counts and offsets
  count_form, entry_size, offset_form = (
    (order + 'Q', 20, order + 'Q') if big else (order + 'H', 12, order + 'I')
  )
  head, width = (8, 8) if big else (2, 4)
  end, seen = 0, set()
  try:
    (directory,) = struct.unpack_from(offset_form, data, 8 if big else 4)
    while directory and directory not in seen:
      seen.add(directory)
      (count,) = struct.unpack_from(count_form, data, directory)
      values: dict[int, tuple[int, ...]] = {}
      for i in range(count):
        entry = directory + head + entry_size * i
        tag, kind = struct.unpack_from(order + 'HH', data, entry)
        (number,) = struct.unpack_from(offset_form, data, entry + 4)
        place, size = entry + 4 + width, number * _TIFF_SIZES.get(kind, 1)
        if size > width:
          (place,) = struct.unpack_from(offset_form, data, place)
          end = max(end, place + size)
        if tag in _TIFF_PLACES and kind in _TIFF_FORMS and place + size <= len(data):
          values[tag] = struct.unpack_from(f'{order}{number}{_TIFF_FORMS[kind]}', data, place)
      for starts, sizes in _TIFF_SPANS:
        spans = zip(values.get(starts, ()), values.get(sizes, ()))
        end = max([end, *(start + size for start, size in spans)])
      directory_end = directory + head + entry_size * count
      (directory,) = struct.unpack_from(offset_form, data, directory_end)
  except struct.error:
    return 'the TIFF is cut short (a directory is missing)'
  return f'the TIFF is cut short ({len(data)} of {end} bytes)' if end > len(data) else ''
