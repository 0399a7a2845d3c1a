"""Makes one shard of resized images; prepare.py runs it in many processes.

A shard is finished when its `.json` exists: it is written last, each file under a temporary name
and then renamed, so whatever ends the process leaves a whole shard or none.
"""

import dataclasses
import errno
import hashlib
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import simplejpeg

from cfn_jax.data import array_records, images, orientation, wholeness
from cfn_jax.data.record import Source

# One record per chunk is what makes access random; JPEGs do not get smaller by packing them again.
_WRITER_OPTIONS = 'group_size:1,uncompressed'
_DISK_FULL = ('No space left on device', 'Disk quota exceeded', 'File too large')


@dataclasses.dataclass(frozen=True)
class Settings:
  """What decides the content of the shards."""

  short_side_px: int  # 0: as it is
  quality: int  # of JPEGs, 1..100
  upsample: bool
  num_shards: int


class DiskFullError(Exception):
  """No room for a shard. Carries the images written to it so far, and their bytes."""

  def __init__(self, num_images: int, num_bytes: int) -> None:
    super().__init__(num_images, num_bytes)
    self.num_images = num_images
    self.num_bytes = num_bytes


class StoppedError(Exception):
  """The run is being ended; the shard was dropped."""


def make_shard(
  source: Source,
  number: int,
  places: range,
  *,
  out: pathlib.Path,
  settings: Settings,
  after_each: Callable[[], bool],
) -> dict[str, Any]:
  """Writes the shard of the records in `places` and returns what its `.json` says.

  `after_each` is called after each image, and says whether to stop.

  Raises:
    DiskFullError: there is no room.
    StoppedError: `after_each` said so.
  """
  from array_record.python import array_record_module

  path = out / f'{array_records.shard_stem(number)}.array_record'
  temporary = _temporary(path)
  columns: dict[str, list[Any]] = {'names': [], 'labels': [], 'heights': [], 'widths': []}
  skipped: list[dict[str, str]] = []
  num_bytes = 0
  try:
    writer = array_record_module.ArrayRecordWriter(str(temporary), _WRITER_OPTIONS)
    for place in places:
      try:
        record = source[place]
        data, height, width = shrink(record.data, record.name, settings)
      except images.BadImage as error:
        skipped.append({'name': error.name, 'reason': error.reason})
      else:
        writer.write(data)
        num_bytes += len(data)
        for column, value in zip(columns.values(), (record.name, record.label, height, width)):
          column.append(value)
      if after_each():
        raise StoppedError
    writer.close()
    entry = _finish(path, temporary, number, columns, skipped)
  except (OSError, RuntimeError) as error:
    temporary.unlink(missing_ok=True)
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if full or any(text in str(error) for text in _DISK_FULL):
      raise DiskFullError(len(columns['names']), num_bytes) from None
    raise
  except BaseException:
    temporary.unlink(missing_ok=True)
    raise
  return entry


def _finish(
  path: pathlib.Path,
  temporary: pathlib.Path,
  number: int,
  columns: dict[str, list[Any]],
  skipped: list[dict[str, str]],
) -> dict[str, Any]:
  """Checks the closed file, gives it its name, and then writes the entry that makes it count."""
  from array_record.python import array_record_module

  count = len(columns['names'])
  if count:
    written = array_record_module.ArrayRecordReader(str(temporary)).num_records()
    if written != count:
      raise RuntimeError(f'{temporary} holds {written} of {count} records')
    with temporary.open('rb+') as file:
      digest = hashlib.file_digest(file, 'sha256').hexdigest()
      os.fsync(file.fileno())
    size = temporary.stat().st_size
    temporary.replace(path)
  else:
    temporary.unlink()
    digest, size = hashlib.sha256().hexdigest(), 0
  entry = {'number': number, 'records': count, 'bytes': size, 'sha256': digest}
  write_json(path.with_suffix('.json'), {**entry, **columns, 'skipped': skipped})
  return {**entry, 'skipped': skipped}


def shrink(data: bytes | np.ndarray, name: str, settings: Settings) -> tuple[bytes, int, int]:
  """Returns the JPEG bytes, height and width that are stored for an image.

  An upright JPEG that is small enough already keeps its bytes: encoding it again would only lose.

  Raises:
    BadImage: it cannot be decoded, or not be a JPEG.
  """
  target = settings.short_side_px
  image = data
  if isinstance(data, bytes):
    # Decoding at half size where that leaves twice the target saves time and loses nothing visible.
    image = images.decode_image(data, name=name, min_side_px=2 * target)
  assert isinstance(image, np.ndarray)
  height, width = image.shape[:2]
  if target and (min(height, width) > target or settings.upsample):
    # Looked at before the resized picture takes memory.
    height, width = images.resized_sides(height, width, target)
  if max(height, width) > images.MAX_JPEG_SIDE_PX:
    raise images.BadImage(name, f'{width} x {height} px is too long for a JPEG')
  resized = image
  if target:
    try:
      resized = images.resize_short_side(image, target, upsample=settings.upsample)
    except images.BadImage as error:
      raise images.BadImage(name, error.reason) from None
  if isinstance(data, bytes) and resized is image and _can_stay(data):
    return data, height, width
  return encode(resized, settings.quality), height, width


def encode(image: np.ndarray, quality: int) -> bytes:
  """Encodes uint8 [H, W, 3] as a JPEG, with one channel where the three are equal."""
  red = image[:, :, :1]
  # A few rows first: nearly every image in colour shows it there.
  if (image[::16] == red[::16]).all() and (image == red).all():
    return simplejpeg.encode_jpeg(
      np.ascontiguousarray(red), quality=quality, colorspace='GRAY', colorsubsampling='Gray'
    )
  return simplejpeg.encode_jpeg(
    np.ascontiguousarray(image), quality=quality, colorsubsampling='420'
  )


def _can_stay(data: bytes) -> bool:
  """Whether these bytes take the fast decoding path."""
  if not wholeness.is_jpeg(data) or orientation.of_jpeg(data) != 1:
    return False
  try:
    if simplejpeg.decode_jpeg_header(data)[2] in ('CMYK', 'YCCK'):
      return False
    simplejpeg.decode_jpeg(data)
  except ValueError:
    return False
  return True


def _temporary(path: pathlib.Path) -> pathlib.Path:
  """A name of this process alone: one that outlives its killed parent writes to no other's file."""
  return path.with_name(f'{path.name}.{os.getpid()}.tmp')


def write_json(path: pathlib.Path, content: Any) -> None:
  """Writes a file that is there whole or not at all."""
  temporary = _temporary(path)
  try:
    with temporary.open('w') as file:
      json.dump(content, file)
      file.flush()
      os.fsync(file.fileno())
    temporary.replace(path)
  except BaseException:
    temporary.unlink(missing_ok=True)
    raise
