"""Permutation sets on disk: `.npy`, the authors' binary, and text, recognised by content.

Files count tiles from 0 or from 1; a loaded set is zero-based. A file is refused, with the number
of the row (the first row is 1), unless every row is a permutation and no row occurs twice. A header
is trusted only if the file's size agrees with it.
"""

import dataclasses
import errno
import io
import os
import pathlib
import re
import tempfile
import warnings

import numpy as np

from cfn_jax import places
from cfn_jax.data import file_kinds
from cfn_jax.jigsaw.permutation_sets.measures import PermutationError

MAX_BYTES = 2**28  # a set of all 9! permutations takes 13 MB as the authors' binary
MIN_TILES, MAX_TILES = 4, 25
NPY_MAGIC = b'\x93NUMPY'


@dataclasses.dataclass(frozen=True)
class Loaded:
  """A permutation set from a file, and its conversion."""

  permutations: np.ndarray  # uint8 [N, T], zero-based
  format: str  # 'npy', 'binary' or 'text'
  base: int  # the first tile number of the file: 0 or 1

  @property
  def note(self) -> str:
    """Returns the contents of the file and the conversion, in one line."""
    num, tiles = self.permutations.shape
    base = '0-based' if self.base == 0 else '1-based, converted to 0-based'
    return f'{num} permutations of {tiles} tiles ({self.format}, {base})'


def load_permutations(path: str | os.PathLike[str], *, grid: int = 0) -> Loaded:
  """Loads a permutation set; with `grid`, one of grid x grid tiles.

  Raises `PermutationError` with the path and, for a bad row, its number.
  """
  path = places.local(os.fspath(path))
  try:
    size = path.stat().st_size
    if size > MAX_BYTES:
      raise PermutationError(f'{path}: {size} bytes are no permutation set (at most {MAX_BYTES})')
    content = path.read_bytes()
  except OSError as error:
    raise PermutationError(f'{path}: cannot be read: {error.strerror}') from error
  try:
    rows, form = _parse(content)
    permutations, base = _check_rows(rows)
  except PermutationError as error:
    raise PermutationError(f'{path}: {error}') from None
  if grid and permutations.shape[1] != grid * grid:
    raise PermutationError(
      f'{path}: permutations of {permutations.shape[1]} tiles; '
      f'a {grid}x{grid} grid (puzzle.grid) needs {grid * grid}'
    )
  return Loaded(permutations, form, base)


def _parse(content: bytes) -> tuple[np.ndarray, str]:
  """Returns integers `[N, T]` and the name of the format."""
  if content.startswith(NPY_MAGIC):
    return _parse_npy(content), 'npy'
  if not content:
    raise PermutationError('the file is empty')
  if len(content) >= 8:
    num, tiles = (int(v) for v in np.frombuffer(content, '<i4', 2))
    if num > 0 and tiles > 0 and len(content) == 8 + 4 * num * tiles:
      return np.frombuffer(content, '<i4', offset=8).reshape(num, tiles), 'binary'
  kind = file_kinds.recognise(content[: file_kinds.HEAD]).partition(';')[0]
  if kind:
    raise PermutationError(f'it is {kind}, not a set: save the rows as .npy or as text')
  try:
    content = file_kinds.to_utf8(content)
  except UnicodeError as error:
    raise PermutationError(f'it is damaged UTF-16 text ({error}); save it as UTF-8') from None
  if b'\0' not in content:
    return _parse_text(content), 'text'
  if any(b'\0' not in content[i::2] and not any(content[1 - i :: 2]) for i in (0, 1)):
    raise PermutationError('it is UTF-16 text without its mark: save it as UTF-8')
  if len(content) >= 8:
    raise PermutationError(
      f'its header claims {num} rows of {tiles} values (int32), but {len(content) - 8} bytes follow'
    )
  raise PermutationError('neither .npy, nor int32 binary, nor text')


def _parse_npy(content: bytes) -> np.ndarray:
  # The header is read by hand: np.load would allocate whatever shape it claims.
  stream = io.BytesIO(content)
  try:
    version = np.lib.format.read_magic(stream)
    read = {
      (1, 0): np.lib.format.read_array_header_1_0,
      (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      shape, fortran, dtype = read(stream)
  except Exception as error:  # NumPy parses the header as Python: damage raises many types
    reason = str(error).splitlines()[0][:80] if str(error) else ''
    raise PermutationError(
      f'damaged .npy header ({type(error).__name__} {reason})'.replace(' )', ')')
    ) from None
  if dtype.kind not in 'iu':
    raise PermutationError(f'its dtype is {dtype}: must be an integer type')
  if len(shape) != 2 or min(shape) < 0:
    raise PermutationError(f'its shape is {shape}: must be [permutations, tiles]')
  left = len(content) - stream.tell()
  if left != shape[0] * shape[1] * dtype.itemsize:
    raise PermutationError(f'its header claims {shape} of {dtype}, but {left} bytes follow')
  values = np.frombuffer(content, dtype, offset=stream.tell())
  return values.reshape(shape, order='F' if fortran else 'C')


def _parse_text(content: bytes) -> np.ndarray:
  try:
    lines = content.decode().splitlines()
  except UnicodeDecodeError:
    raise PermutationError('neither .npy, nor int32 binary, nor text') from None
  rows: list[list[int]] = []
  for line in lines:
    line = line.split('#', 1)[0].strip()
    if not line:
      continue
    number = len(rows) + 1
    fields = re.split(r'\s*[,;]\s*|\s+', line.rstrip(',;'))
    if not all(re.fullmatch(r'\d{1,9}', field) for field in fields):
      raise PermutationError(f'row {number} is {line[:40]!r}: must be whole numbers')
    if rows and len(fields) != len(rows[0]):
      raise PermutationError(f'row {number} has {len(fields)} values, row 1 has {len(rows[0])}')
    rows.append([int(field) for field in fields])
  if not rows:
    raise PermutationError('the file holds no rows')
  return np.array(rows)


def _check_rows(rows: np.ndarray) -> tuple[np.ndarray, int]:
  """Checks that rows `[N, T]` are different permutations; returns them as uint8, and the base."""
  num, tiles = rows.shape
  if not MIN_TILES <= tiles <= MAX_TILES:
    raise PermutationError(
      f'rows have {tiles} values: must be {MIN_TILES} (2x2) to {MAX_TILES} (5x5) tiles'
    )
  if num < 2:
    raise PermutationError(f'num {num}: must be at least 2 permutations')
  rows = np.ascontiguousarray(rows)
  ordered = np.sort(rows, axis=1)
  from_zero = (ordered == np.arange(tiles)).all(1)
  from_one = (ordered == np.arange(1, tiles + 1)).all(1)
  bad = np.flatnonzero(~(from_zero | from_one))
  if len(bad):
    values = ' '.join(map(str, rows[bad[0]].tolist()))
    raise PermutationError(
      f'row {bad[0] + 1} is {values}: no permutation of 0..{tiles - 1} or 1..{tiles}'
    )
  base = 0 if from_zero[0] else 1
  other = np.flatnonzero(from_zero != from_zero[0])
  if len(other):
    raise PermutationError(
      f'row {other[0] + 1} is {1 - base}-based, row 1 is {base}-based: the base cannot be told'
    )
  permutations = (rows - base).astype(np.uint8)
  _, firsts, inverse = np.unique(permutations, axis=0, return_index=True, return_inverse=True)
  firsts = firsts[inverse.ravel()]  # [N], the first row with the same values
  repeats = np.flatnonzero(firsts != np.arange(num))
  if len(repeats):
    raise PermutationError(f'row {repeats[0] + 1} repeats row {firsts[repeats[0]] + 1}')
  return permutations, base


def save_permutations(path: str | os.PathLike[str], permutations: np.ndarray) -> None:
  """Saves a set uint8 `[N, T]` completely or not at all; the suffix decides the format.

  `.npy` uint8, zero-based; `.bin` the authors' int32 binary, one-based; `.csv` and `.txt` text,
  zero-based. Raises `PermutationError` for another suffix or a place that cannot be written.
  """
  write_files({places.local(os.fspath(path)): encode_permutations(path, permutations)})


def encode_permutations(path: str | os.PathLike[str], permutations: np.ndarray) -> bytes:
  """Returns the content of the file that `save_permutations` writes for `[N, T]`."""
  suffix = pathlib.Path(path).suffix.lower()
  if suffix == '.bin':
    return (
      np.array(permutations.shape, '<i4').tobytes()
      + (permutations.astype('<i4') + np.int32(1)).astype('<i4').tobytes()
    )
  stream = io.BytesIO()
  if suffix == '.npy':
    np.lib.format.write_array(stream, np.ascontiguousarray(permutations, np.uint8), (1, 0))
  elif suffix in ('.csv', '.txt'):
    np.savetxt(stream, permutations, fmt='%d', delimiter=',' if suffix == '.csv' else ' ')
  else:
    raise PermutationError(f'{path}: the suffix must be .npy, .bin, .csv or .txt')
  return stream.getvalue()


def write_files(contents: dict[pathlib.Path, bytes]) -> None:
  """Writes files through temporary neighbours: all, or none if one cannot be written."""
  temporaries: dict[pathlib.Path, pathlib.Path] = {}
  umask = os.umask(0)
  os.umask(umask)
  try:
    for path, content in contents.items():
      try:
        if path.is_dir():
          raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        handle, name = tempfile.mkstemp(prefix=f'.{path.name}.', dir=path.parent)
        temporaries[path] = pathlib.Path(name)
        with os.fdopen(handle, 'wb') as stream:
          stream.write(content)
          stream.flush()
          os.fsync(stream.fileno())
        temporaries[path].chmod(0o666 & ~umask)  # mkstemp's own mode is private
      except OSError as error:
        raise PermutationError(f'{path}: cannot be written: {error.strerror}') from error
    for path in contents:
      temporaries[path].replace(path)
      del temporaries[path]
  finally:
    for temporary in temporaries.values():
      temporary.unlink(missing_ok=True)
