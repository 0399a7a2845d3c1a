"""Recognises files of an unexpected kind by their first bytes.

Readers of images, tars, lists and permutation sets use it to name the kind and the remedy.
"""

import codecs

HEAD = 64  # bytes that `recognise` needs

# These may contain images, which must be unpacked first.
PACKED = (
  *('.gz', '.bz2', '.xz', '.lzma', '.zst', '.lz4', '.br', '.z'),
  *('.tgz', '.tbz', '.tbz2', '.txz', '.tzst', '.zip', '.7z', '.rar', '.cab', '.iso', '.cpio'),
)
_KINDS = (
  (b'\x1f\x8b', 'gzip-compressed data; decompress it first (gunzip)'),
  (b'BZh', 'bzip2-compressed data; decompress it first (bunzip2)'),
  (b'\xfd7zXZ\x00', 'xz-compressed data; decompress it first (unxz)'),
  (b'\x28\xb5\x2f\xfd', 'zstd-compressed data; decompress it first (unzstd)'),
  (b'\x04\x22\x4d\x18', 'lz4-compressed data; decompress it first (unlz4)'),
  (b'\x1f\x9d', 'data compressed by compress; decompress it first (uncompress)'),
  (b'LZIP', 'lzip-compressed data; decompress it first (lunzip)'),
  (b'PK\x03\x04', 'a ZIP archive (as .npz and .pt are); unpack it first'),
  (b'PK\x05\x06', 'an empty ZIP archive'),
  (b"7z\xbc\xaf'\x1c", 'a 7z archive; unpack it first'),
  (b'Rar!\x1a\x07', 'a RAR archive; unpack it first'),
  (b'MSCF', 'a CAB archive; unpack it first'),
  (b'!<arch>\n', 'an ar archive; unpack it first'),
  (b'PAR1', 'a Parquet table; write its images as files first'),
  (b'ARROW1', 'an Arrow table; write its images as files first'),
  (b'SQLite format 3\x00', 'an SQLite database'),
  (b'%PDF', 'a PDF document'),
  (b'8BPS', 'a Photoshop document'),
  (b'\x00\x00\x00\x0cjP  ', 'a JPEG 2000 image'),
  (b'\xff\x4f\xff\x51', 'a JPEG 2000 image'),
  (b'\x89HDF', 'an HDF5 file'),
  (b'\x93NUMPY', 'a NumPy array'),
  (b'MATLAB ', 'a MATLAB file'),
  (b'\x80\x02', 'a pickle'),
  (b'\x80\x03', 'a pickle'),
  (b'\x80\x04', 'a pickle'),
  (b'\x80\x05', 'a pickle'),
  (b'version https://git-lfs', 'a Git LFS pointer; git lfs pull fetches the file itself'),
  (b'version https://hawser', 'a Git LFS pointer; git lfs pull fetches the file itself'),
  (b'/annex/objects/', 'a git-annex pointer; git annex get fetches the file itself'),
)
_IMAGES = (
  (b'\xff\xd8\xff', 'a JPEG image'),
  (b'\x89PNG', 'a PNG image'),
  (b'GIF8', 'a GIF image'),
  (b'II*\x00', 'a TIFF image'),
  (b'MM\x00*', 'a TIFF image'),
)

DECODED = frozenset((*(what for _, what in _IMAGES), 'a WebP image'))  # images.py reads these


def recognise(head: bytes) -> str:
  """Returns the kind of a file that begins with these bytes, and the remedy; '' if unknown.

  >>> recognise(b'PK\\x03\\x04...'), recognise(b'RIFF....WEBP')
  ('a ZIP archive (as .npz and .pt are); unpack it first', 'a WebP image')
  """
  if not head:
    return 'an empty file'
  for magic, what in (*_KINDS, *_IMAGES):
    if head.startswith(magic):
      return what
  if head[:4] == b'RIFF' and head[8:12] == b'WEBP':
    return 'a WebP image'
  if head[4:8] == b'ftyp':
    return 'a HEIC, AVIF or video file; convert it to JPEG'
  if head.lstrip()[:1] == b'<':
    return 'an HTML, XML or SVG text'
  return ''


def is_text(head: bytes) -> bool:
  """Returns whether a file that begins with these bytes is text: UTF-8, or with UTF-16's mark.

  >>> is_text(b'a.jpg,cat'), is_text(b'a\\x00b')
  (True, False)
  """
  marked = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
  return marked or (head != b'' and not any(byte < 32 and byte not in b'\t\n\f\r' for byte in head))


def is_archive(name: str) -> bool:
  """Returns whether a file's name is that of an archive, a plain tar included.

  >>> is_archive('b.TAR'), is_archive('c.zip'), is_archive('tar.jpg')
  (True, True, False)
  """
  return name.lower().endswith(('.tar', *PACKED))


def to_utf8(data: bytes) -> bytes:
  """Returns text that begins with the mark of UTF-16, or of UTF-8, as UTF-8 without a mark.

  Raises:
    UnicodeError: it is damaged UTF-16.
  """
  if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
    return data.decode('utf-16').encode()
  return data.removeprefix(codecs.BOM_UTF8)
