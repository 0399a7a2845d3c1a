"""Files with the class of each pixel of an image: PNGs, and the .mat files of SBD.

A PNG holds class numbers, as palette indices or as greys, or colours of VOC's colour map. Used by
voc_masks.py, in loader processes too. Written masks and pictures use the same colours.
"""

import io
import struct

import numpy as np
from PIL import Image

from cfn_jax import terminal
from cfn_jax.data import file_kinds, images, png
from cfn_jax.data.record import SourceError

VOID = 255  # an unknown pixel: neither trained on nor scored
SUFFIXES = ('.png', '.mat')
READ = 'masks are PNGs, or .mat files of SBD'
_REMEDY = 'save it as a palette or grey PNG of class numbers'
_INDEXED, _GREY = 3, 0  # colour types of a PNG with one number per pixel


def make_colours() -> np.ndarray:
  """Returns the colour map of the VOC devkit, uint8 `[256, 3]`: a colour for each number.

  The bits of a number, three at a time, are the bits of red, green and blue from the top.

  >>> make_colours()[[0, 1, 15, VOID]].tolist()
  [[0, 0, 0], [128, 0, 0], [192, 128, 128], [224, 224, 192]]
  """
  bits = np.arange(256)[:, None] >> np.arange(8) & 1  # [256, 8]
  colours = np.zeros((256, 3), np.uint8)
  for bit in range(8):
    colours[:, bit % 3] |= (bits[:, bit] << (7 - bit // 3)).astype(np.uint8)
  return colours


COLOURS = make_colours()
_TIMES = np.array([1 << 16, 1 << 8, 1])
_CODES = COLOURS @ _TIMES
_BY_CODE = np.argsort(_CODES)


def decode_mask(data: bytes, *, name: str) -> np.ndarray:
  """Decodes the bytes of a file to class numbers, uint8 `[H, W]`; `VOID` for unknown pixels.

  Args:
    name: the file, for messages.

  Raises:
    SourceError: the file is damaged, of another kind, or has numbers or colours of no class.
  """
  try:
    if data.startswith(b'MATLAB'):
      return _decode_mat(data)
    if data.startswith(b'\x89PNG'):
      return _decode_png(data)
    kind = file_kinds.recognise(data[: file_kinds.HEAD])
    lossy = '; JPEG changes class numbers' if kind == 'a JPEG image' else ''
    raise SourceError(f'it is {kind or "of an unknown kind"}{lossy}; {READ}')
  except SourceError as error:
    raise SourceError(f'{name}: {error}') from None
  except MemoryError:
    raise
  except Exception as error:  # Pillow and SciPy raise anything on damaged data
    raise SourceError(f'{name}: it is damaged ({terminal.first_line(error)})') from None


def _decode_png(data: bytes) -> np.ndarray:
  fault = png.fault(data)
  if fault:
    raise SourceError(f'{fault}; replace it')
  width, height, depth, colour_type = struct.unpack_from('>IIBB', data, 16)
  if width * height > images.MAX_PIXELS:
    raise SourceError(
      f'{width} x {height} px is more than the limit of {images.MAX_PIXELS:,} pixels; make the '
      'mask and its image smaller'
    )
  with Image.open(io.BytesIO(data), formats=('PNG',)) as picture:
    values = np.array(picture)
  if colour_type == _GREY and 1 < depth < 8:  # Pillow spreads such numbers over 0..255
    values //= 255 // (2**depth - 1)
  if colour_type in (_INDEXED, _GREY):
    return _to_numbers(values)
  if depth == 16:
    raise SourceError(f'it has 16 bits a channel; {_REMEDY}')
  if values.shape[2] in (2, 4):
    hidden = np.argwhere(values[..., -1] != 255)
    if len(hidden):
      row, column = hidden[0]
      raise SourceError(f'it is transparent at x = {column}, y = {row}; {_REMEDY}')
    values = values[..., :-1]
  return values[..., 0] if values.shape[2] == 1 else _number_colours(values)


def _to_numbers(values: np.ndarray) -> np.ndarray:
  """Returns whole numbers of any type as uint8."""
  if values.ndim != 2:
    raise SourceError(f'its numbers are {list(values.shape)}; a mask has a height and a width')
  if values.dtype in (np.uint8, np.bool_):
    return values.astype(np.uint8)
  wrong = np.argwhere((values < 0) | (values > VOID) | (values % 1 != 0))
  if len(wrong):
    row, column = wrong[0]
    raise SourceError(
      f'{values[row, column]} at x = {column}, y = {row} is no class number; they are whole, from '
      f'0, and {VOID} is void'
    )
  return values.astype(np.uint8)


def _number_colours(colours: np.ndarray) -> np.ndarray:
  """Returns the numbers uint8 `[H, W]` of colours uint8 `[H, W, 3]`."""
  codes = colours @ _TIMES
  places = np.minimum(np.searchsorted(_CODES, codes, sorter=_BY_CODE), len(_CODES) - 1)
  numbers = _BY_CODE[places]
  unknown = np.argwhere(_CODES[numbers] != codes)
  if len(unknown):
    row, column = unknown[0]
    shown = ', '.join(map(str, colours[row, column].tolist()))
    raise SourceError(
      f"the colour ({shown}) at x = {column}, y = {row} is none of VOC's colour map; {_REMEDY}"
    )
  return numbers.astype(np.uint8)


def _decode_mat(data: bytes) -> np.ndarray:
  """Reads `GTcls.Segmentation`."""
  import scipy.io

  if data.startswith(b'MATLAB 7.3'):
    raise SourceError('it is a MATLAB 7.3 file (HDF5), which is not read; save it with -v7')
  loaded = scipy.io.loadmat(io.BytesIO(data))
  held = sorted(name for name in loaded if not name.startswith('__'))
  if 'GTcls' not in held or 'Segmentation' not in (loaded['GTcls'].dtype.names or ()):
    hint = '; masks of classes are those in the folder cls' if 'GTinst' in held else ''
    raise SourceError(f'it holds {", ".join(held) or "nothing"}, not GTcls.Segmentation{hint}')
  return _to_numbers(loaded['GTcls']['Segmentation'].flat[0])
