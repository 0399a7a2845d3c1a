"""Bytes of Protocol Buffers, put together by hand: files that no library of ours has written.

Source: the encoding rules of Protocol Buffers, field numbers of Caffe's `caffe.proto`.
"""

import struct

import numpy as np

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def encode_varint(value):
  """Encodes a whole number; one below 0 as that of the same 64 bits."""
  value %= 2**64
  out = bytearray()
  while value > 0x7F:
    out.append(value & 0x7F | 0x80)
    value >>= 7
  return bytes([*out, value])


def encode_key(field, wire):
  return encode_varint(field << 3 | wire)


def encode_header(field, length):
  return encode_key(field, BYTES) + encode_varint(length)


def encode_bytes(field, value):
  """Encodes a text, or what is encoded already."""
  data = value.encode('utf8') if isinstance(value, str) else value
  return encode_header(field, len(data)) + data


def encode_number(field, value):
  if isinstance(value, float):
    return encode_key(field, FIXED32) + struct.pack('<f', value)
  return encode_key(field, VARINT) + encode_varint(value)


def encode_dims(dims):
  """Encodes the shape of a BlobProto."""
  return encode_bytes(7, encode_bytes(1, b''.join(map(encode_varint, dims))))


def encode_array(values, *, kind='f4', chunks=1, packed=True):
  """Encodes the numbers of a BlobProto: in chunks, or one by one; doubles as `double_data`."""
  values = np.asarray(values, np.float32).reshape(-1).astype(f'<{kind}')
  field, wire = (5, FIXED32) if kind == 'f4' else (8, FIXED64)
  if packed:
    return b''.join(encode_bytes(field, part.tobytes()) for part in np.array_split(values, chunks))
  return b''.join(encode_key(field, wire) + value.tobytes() for value in values)


def encode_blob(array, *, old=False, **options):
  """Encodes a BlobProto: today's shape, or num, channels, height, width."""
  array = np.asarray(array, np.float32)
  if not old:
    return encode_dims(array.shape) + encode_array(array, **options)
  shape = (1,) * (4 - array.ndim) + array.shape
  numbers = (encode_number(axis, size) for axis, size in enumerate(shape, 1))
  return b''.join(numbers) + encode_array(array, **options)


def encode_layer(name, kind, bottom, top, blobs=(), settings=b''):
  """Encodes a layer of today's form."""
  body = encode_bytes(1, name) + encode_bytes(2, kind)
  body += encode_bytes(3, bottom) + encode_bytes(4, top)
  return encode_bytes(100, body + b''.join(encode_bytes(7, blob) for blob in blobs) + settings)


def encode_old_layer(name, kind, bottom, top, blobs=(), settings=b''):
  """Encodes a layer of the form before 2015; `kind` is a number."""
  body = encode_bytes(2, bottom) + encode_bytes(3, top) + encode_bytes(4, name)
  body += encode_number(5, kind) + b''.join(encode_bytes(6, blob) for blob in blobs)
  return encode_bytes(2, body + settings)
