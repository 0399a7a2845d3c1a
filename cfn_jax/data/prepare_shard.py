"""Makes one shard of resized images; prepare.py runs it in many processes.

A shard is finished when its `.json` exists, which is written last. Each file is written under a
temporary name and then renamed, so a process that ends leaves a complete shard or none.
"""

import errno
import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import simplejpeg

from cfn_jax import places
from cfn_jax.data import array_records, folder, images, jpeg, orientation

# One record per chunk makes access random. Compression would not make JPEGs smaller.
_WRITER_OPTIONS = 'group_size:1,uncompressed'

Settings = Mapping[str, Any]  # they decide the content of the shards: see prepare.py


def make_shard(
  source: folder.NamedSource, out: pathlib.Path, settings: Settings, number: int, rows: range
) -> int:
  """Writes the shard of the records `rows` and returns its number.

  Raises:
    OSError: it cannot be written.
    SourceError: the source cannot be read now.
  """
  from array_record.python import array_record_module

  path = out / f'{array_records.shard_stem(number)}.array_record'
  columns: dict[str, list[Any]] = {'names': [], 'labels': [], 'heights': [], 'widths': []}
  skipped = []
  with places.replacing(path) as temporary:
    try:
      writer = array_record_module.ArrayRecordWriter(str(temporary), _WRITER_OPTIONS)
      for row in rows:
        try:
          record = source[row]
          data, *sides = shrink(record.data, settings)
        except images.BadImage as error:
          skipped.append({'name': source.names[row], 'reason': error.reason})
          continue
        writer.write(data)
        for column, value in zip(columns.values(), (record.name, record.label, *sides)):
          column.append(value)
      writer.close()
      count = len(columns['names'])
      if count and array_record_module.ArrayRecordReader(str(temporary)).num_records() != count:
        raise RuntimeError(f'{temporary} does not hold the {count} records written to it')
    except RuntimeError as error:  # riegeli's: 'write() failed: REASON; writing FILE; ...'
      raise OSError(errno.EIO, str(error).partition(';')[0].rpartition(': ')[2]) from None
  entry = {'number': number, 'records': count, 'bytes': 0, 'sha256': hashlib.sha256().hexdigest()}
  if count:
    entry |= {'bytes': path.stat().st_size, 'sha256': digest(path)}
  else:
    path.unlink()
  places.write_json(path.with_suffix('.json'), {**entry, **columns, 'skipped': skipped})
  return number


def shrink(data: bytes | np.ndarray, settings: Settings) -> tuple[bytes, int, int]:
  """Returns the JPEG, its height and its width (px) that are stored for the bytes of an image.

  An upright JPEG that is small enough keeps its bytes: encoding it again would only lose. The image
  is decoded to uint8 `[H, W, 3]`.

  Raises:
    BadImage: it cannot be decoded, or cannot be stored as a JPEG.
  """
  assert isinstance(data, bytes)
  target, upsample = settings['short_side_px'], settings['upsample']
  # Decoding at half size, if that leaves twice the target, saves time and loses nothing visible.
  image = images.decode_image(data, min_side_px=2 * target)
  height, width = image.shape[:2]
  if target and (min(height, width) > target or upsample):
    height, width = images.resized_sides(height, width, target)
  if max(height, width) > images.MAX_JPEG_SIDE_PX:  # before the resized picture is allocated
    raise images.BadImage('', f'{width} x {height} px is too long for a JPEG')
  resized = images.resize_short_side(image, target, upsample=upsample) if target else image
  if resized is not image or not _can_stay(data):
    data = encode(resized, settings['quality'])
  return data, height, width


def encode(image: np.ndarray, quality: int) -> bytes:
  """Encodes uint8 `[H, W, 3]` as a JPEG, with one channel where the three are equal."""
  red, form = image[:, :, :1], {'colorsubsampling': '420'}
  # A few rows first: nearly every colour image shows its colours there.
  if (image[::16] == red[::16]).all() and (image == red).all():
    image, form = red, {'colorspace': 'GRAY', 'colorsubsampling': 'Gray'}
  return simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=quality, **form)


def _can_stay(data: bytes) -> bool:
  """Returns whether these bytes take the fast decoding path."""
  if not jpeg.is_jpeg(data) or orientation.of_jpeg(data) != 1:
    return False
  try:
    simplejpeg.decode_jpeg(data)
    return simplejpeg.decode_jpeg_header(data)[2] not in ('CMYK', 'YCCK')
  except ValueError:
    return False


def digest(path: pathlib.Path) -> str:
  """Returns the SHA-256 of a file."""
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
