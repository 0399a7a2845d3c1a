"""Embeds the pictures of a workdir in a page, shrunk until all of them fit."""

import base64
import dataclasses
import io
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import markupsafe
import PIL.Image

from cfn_jax import terminal
from cfn_jax.errors import CfnError
from cfn_jax.jigsaw.permutation_sets import permutations
from cfn_jax.pictures import permutations as permutation_pictures

MOST_BYTES = 4_000_000  # for all pictures of one workdir, before base64
MOST = 60  # pictures of one workdir
LARGEST_PX = 100_000_000  # larger files are not opened
LARGEST_BYTES = 200_000_000
WIDEST_PX = 2_400
TITLES = {
  'puzzles': 'Puzzles of training, beside their images',
  'answers': 'Validation puzzles and the answers of the network',
  'holes': 'What is hidden in training images',
  'fillings': 'What the network fills in',
  'filters': 'Filters of conv1',
  'units': 'What units respond to',
  'bad_batch': 'The batch whose loss was not finite',
  'permutations': 'The permutation set',
  'study': 'The figures of the study',
}
LEFT_OUT = ('curves.png',)  # drawn again


@dataclasses.dataclass(frozen=True)
class Picture:
  """A picture on the page: its address contains it."""

  title: str
  name: str
  address: markupsafe.Markup


def find(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the pictures of a folder, those with a title of their own first."""
  found = [p for kind in ('png', 'jpg') for p in folder.glob(f'*.{kind}') if p.is_file()]
  known = list(TITLES)

  def rank(path: pathlib.Path) -> tuple[int, str]:
    return known.index(path.stem) if path.stem in known else len(known), path.name

  return sorted((path for path in found if path.name not in LEFT_OUT), key=rank)


def embed(paths: Sequence[pathlib.Path], notes: list[str], *, share: int) -> list[Picture]:
  """Reads pictures to addresses, with a note for an unreadable one.

  Args:
    share: the largest number of bytes of each.
  """
  pictures = []
  for path in paths:
    try:
      size = path.stat().st_size
      if size > LARGEST_BYTES:
        raise ValueError(f'it has {size:,} bytes')
      kind, data = _fit(path.read_bytes(), share)
    except Exception as error:  # decoders raise anything
      notes.append(f'{path.name} cannot be read: {terminal.first_line(error)}')
      continue
    title = TITLES.get(path.stem, path.stem.replace('_', ' '))
    pictures.append(Picture(title, path.name, make_address(kind, data)))
  return pictures


def make_address(kind: str, data: bytes) -> markupsafe.Markup:
  """Returns bytes as a data address, such as 'image/png', which needs no escapes."""
  return markupsafe.Markup(f'data:{kind};base64,{base64.b64encode(data).decode()}')


def draw_permutations(path: pathlib.Path, grid: Any, notes: list[str]) -> list[Picture]:
  """Draws the permutation set of a file, if it exists."""
  if not path.is_file():
    return []
  try:
    rows = permutations.load_permutations(str(path)).permutations
    sides = (grid, grid) if isinstance(grid, int) and grid**2 == rows.shape[1] else None
    if sides is None:
      raise CfnError(f'it has {rows.shape[1]} tiles, and the config a grid of {grid}')
    data = permutation_pictures.encode_picture('set.png', rows, grid=sides)
  except (CfnError, OSError, ValueError) as error:
    notes.append(f'{path.name} is not drawn: {terminal.describe(error)[0]}')
    return []
  return [Picture(TITLES['permutations'], path.name, make_address('image/png', data))]


def _fit(data: bytes, share: int) -> tuple[str, bytes]:
  """Returns a picture of at most `share` bytes: as it is, or as WebP, shrunk step by step."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    with PIL.Image.open(io.BytesIO(data)) as opened:
      if opened.width * opened.height > LARGEST_PX:
        raise ValueError(f'it has {opened.width} x {opened.height} px')
      kind = PIL.Image.MIME.get(opened.format or '', '')
      image = opened.convert('RGBA' if 'A' in opened.getbands() else 'RGB')
  if len(data) <= share and image.width <= WIDEST_PX and kind in ('image/png', 'image/jpeg'):
    return kind, data
  side = min(1.0, WIDEST_PX / image.width, 12_000 / image.height)  # WebP allows 16,383 px
  quality = 90
  while True:
    size = (max(1, round(image.width * side)), max(1, round(image.height * side)))
    stream = io.BytesIO()
    image.resize(size, PIL.Image.Resampling.LANCZOS).save(stream, 'WEBP', quality=quality)
    if stream.tell() <= share or max(size) <= 64:
      return 'image/webp', stream.getvalue()
    side, quality = side * 0.8, 82
