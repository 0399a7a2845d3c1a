"""The wire format of Protocol Buffers, as much of it as Caffe's files need.

Reading is lazy: a message is a range of the file, arrays are read when asked for, and no length is
believed that does not fit into the message around it. Source: the format's public encoding rules.
"""

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_FIELD = 2**29 - 1


class WireError(ValueError):
  """Bytes that are no such message: what, and at which byte."""


class Field(NamedTuple):
  """One field: its number, its wire type, and where its value lies.

  `value` is the number of a varint or fixed field (its raw bits), 0 for bytes.
  """

  number: int
  wire: int
  value: int
  start: int
  end: int


class Message:
  """A range of a file that holds fields."""

  def __init__(self, file: BinaryIO, start: int, end: int) -> None:
    self.file, self.start, self.end = file, start, end

  def fields(self) -> Iterator[Field]:
    """Goes through the fields; values of bytes are passed over, not read.

    Raises:
      WireError: the bytes are no message, or end too early.
    """
    position = self.start
    while position < self.end:
      key, position = self._varint(position)
      number, wire = key >> 3, key & 7
      if not 1 <= number <= _MAX_FIELD:
        raise WireError(f'field {number} at byte {position}: no such number')
      value, start = 0, position
      if wire == VARINT:
        value, position = self._varint(position)
      elif wire in (FIXED64, FIXED32):
        position += 8 if wire == FIXED64 else 4
        self._check(position)
        value = int.from_bytes(self._read(start, position - start), 'little')
      elif wire == BYTES:
        length, start = self._varint(position)
        position = start + length
        self._check(position)
      else:
        raise WireError(f'wire type {wire} at byte {position}: not used by Caffe')
      yield Field(number, wire, value, start, position)

  def child(self, field: Field) -> 'Message':
    """Returns the message inside a field."""
    if field.wire != BYTES:
      raise WireError(f'field {field.number} at byte {field.start} is no message')
    return Message(self.file, field.start, field.end)

  def text(self, field: Field, limit: int = 4096) -> str:
    """Reads a short string."""
    if field.wire != BYTES or field.end - field.start > limit:
      raise WireError(f'field {field.number} at byte {field.start} is no short text')
    try:
      return self._read(field.start, field.end - field.start).decode('utf8')
    except UnicodeDecodeError as error:
      raise WireError(f'field {field.number} at byte {field.start} is no text') from error

  def varints(self, field: Field) -> list[int]:
    """Reads one number, or a packed list of them."""
    if field.wire == VARINT:
      return [field.value]
    values, position = [], field.start
    packed = self.child(field)
    while position < field.end:
      value, position = packed._varint(position)
      values.append(value)
    return values

  def numbers(self, field: Field, dtype: str) -> np.ndarray:
    """Reads one float or double, or a packed array of them; `dtype` is '<f4' or '<f8'."""
    size = np.dtype(dtype).itemsize
    if field.wire == (FIXED32 if size == 4 else FIXED64):
      return np.frombuffer(field.value.to_bytes(size, 'little'), dtype)
    if field.wire != BYTES or (field.end - field.start) % size:
      raise WireError(f'field {field.number} at byte {field.start} is no array of {dtype}')
    return np.frombuffer(self._read(field.start, field.end - field.start), dtype)

  def _varint(self, position: int) -> tuple[int, int]:
    data = self._read(position, min(10, self.end - position))
    value = 0
    for index, byte in enumerate(data):
      value |= (byte & 0x7F) << (7 * index)
      if byte < 0x80:
        return value, position + index + 1
    raise WireError(f'the number at byte {position} does not end: the file is cut or damaged')

  def _read(self, start: int, count: int) -> bytes:
    self.file.seek(start)
    data = self.file.read(count)
    if len(data) != count:
      raise WireError(f'the file ends at byte {start + len(data)}, in the middle of a value')
    return data

  def _check(self, position: int) -> None:
    if position > self.end:
      raise WireError(
        f'a value reaches to byte {position}, its message ends at {self.end}: the file is cut or '
        'damaged'
      )


def open_message(file: BinaryIO) -> Message:
  """Takes a whole file as one message."""
  return Message(file, 0, file.seek(0, os.SEEK_END))


def encode_varint(value: int) -> bytes:
  """Writes a number of 0 or more.

  >>> encode_varint(300).hex()
  'ac02'
  """
  out = bytearray()
  while value > 0x7F:
    out.append(value & 0x7F | 0x80)
    value >>= 7
  out.append(value)
  return bytes(out)


def encode_number(field: int, value: int | float) -> bytes:
  """Writes a whole number as a varint field, another one as a float field."""
  if isinstance(value, float):
    return encode_varint(field << 3 | FIXED32) + struct.pack('<f', value)
  return encode_varint(field << 3 | VARINT) + encode_varint(value)


def encode_bytes(field: int, value: bytes | str) -> bytes:
  """Writes a field of text, or of a message that is already encoded."""
  data = value.encode('utf8') if isinstance(value, str) else value
  return encode_header(field, len(data)) + data


def encode_header(field: int, length: int) -> bytes:
  """Writes what goes before `length` bytes of a field."""
  return encode_varint(field << 3 | BYTES) + encode_varint(length)
