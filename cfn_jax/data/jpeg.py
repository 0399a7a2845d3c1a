"""The segments of a JPEG file, read without decoding it.

Used by images.py and orientation.py. Walking the header takes microseconds; opening the file with
Pillow takes as long as decoding it.
"""

import re
from collections.abc import Iterator

# The bytes of the smallest block of a disk.
ZEROS = bytes(512)

SCAN_DATA = 0  # stands for a marker: the picture data after the header of a scan
_DHT, _END, SCAN, APP1, _APP14, _COMMENT = 0xC4, 0xD9, 0xDA, 0xE1, 0xEE, 0xFE
_BARE = frozenset([0x00, 0x01, *range(0xD0, 0xDA)])  # no segment follows these
_PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
_AFTER_SCAN = re.compile(rb'\xff[^\x00\xd0-\xd7\xff]')


def is_jpeg(data: bytes) -> bool:
  """Returns whether the first bytes are those of a JPEG."""
  return data[:3] == b'\xff\xd8\xff'


def segments(data: bytes) -> Iterator[tuple[int, int, int]]:
  """Yields each segment: its marker, the place of the marker, and the end of the segment.

  Stray and fill bytes between segments are skipped, as by libjpeg and Pillow. Picture data are a
  segment of their own, `SCAN_DATA`. An end mark is one too if anything follows it.

  >>> list(segments(bytes.fromhex('ffd8 fffe000478 78 ffda0002 123456 ffd9')))
  [(254, 2, 8), (218, 8, 12), (0, 12, 15)]
  """
  start, last = 2, len(data) - 4
  while 0 <= start <= last:
    marker = data[start + 1]
    if data[start] != 0xFF or marker == 0xFF:
      start = data.find(b'\xff', start + 1)
    elif marker in _BARE:
      if marker == _END:
        yield marker, start, start + 2
      start += 2
    else:
      end = start + 2 + (data[start + 2] << 8 | data[start + 3])
      yield marker, start, end
      start = end
      if marker == SCAN:
        found = _AFTER_SCAN.search(data, end)
        start = found.start() if found else len(data)
        yield SCAN_DATA, end, start


def is_zeroed(data: bytes) -> bool:
  """Returns whether a sequential JPEG has `ZEROS` in its picture data where no encoder writes them.

  Zeros make sense only where the all-zero code of each component's AC table ends a block, as in
  tables made for a picture with much plain background. With the standard tables, and most others,
  they would be a row of blocks that all hold the same 63 coefficients.
  """
  if data.find(ZEROS) < 0:
    return False
  first_symbols: dict[int, int] = {}  # the meaning of a code of zeros in each AC table
  tables: list[int] = []  # that of each component in a scan
  for marker, start, end in segments(data):
    segment = data[start + 4 : end]
    if marker == _END or (0xC2 <= marker <= 0xCF and marker not in (_DHT, 0xC8, 0xCC)):
      return False  # progressive, lossless or arithmetic: zeros have other meanings there
    if marker == _DHT:
      _note_first_symbols(segment, first_symbols)
    elif marker == SCAN:
      selectors = segment[2 : 1 + 2 * segment[0] : 2] if segment else b''
      tables = [first_symbols.get(byte & 15, 0) for byte in selectors]
    elif marker == SCAN_DATA and any(tables) and data.find(ZEROS, start, end) >= 0:
      return True
  return False


def _note_first_symbols(segment: bytes, first_symbols: dict[int, int]) -> None:
  """Notes the first symbol of each AC table of a DHT segment: its code has only zeros."""
  start = 0
  while start + 17 < len(segment):
    if segment[start] >> 4 == 1:
      first_symbols[segment[start] & 15] = segment[start + 17]
    start += 17 + sum(segment[start + 1 : start + 17])


def clean_header(data: bytes) -> bytes:
  """Rebuilds the header up to the first scan, without the fields that libjpeg only warns about.

  Application segments, comments and stray bytes between segments are removed. An intact Adobe
  marker stays, since it says how colours are stored. The first scan of a sequential JPEG gets the
  only legal spectral range.
  """
  kept, sequential = [data[:2]], True
  for marker, start, end in segments(data):
    segment = data[start:end]
    if marker == SCAN:
      kept.append(segment[:-3] + b'\x00\x3f\x00' if sequential else segment)
      return b''.join([*kept, data[end:]])
    sequential = sequential and marker not in _PROGRESSIVE
    sound_adobe = (
      marker == _APP14 and segment[4:9] == b'Adobe' and len(segment) >= 16 and segment[15] <= 2
    )
    if sound_adobe or not (0xE0 <= marker <= 0xEF or marker in (_COMMENT, _END)):
      kept.append(segment)
  return data
