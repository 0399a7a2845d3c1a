"""Files of proposals: reads fast-rcnn's formats and our own, writes our own.

proposals.py reads them, prepare_proposals.py writes them; docs/data.md describes the three formats.
No pickle is loaded. proposals.py checks the boxes against their images.
"""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from cfn_jax import places, terminal
from cfn_jax.data import file_kinds
from cfn_jax.data.record import SourceError

KINDS = 'a .mat of fast-rcnn, an .npz of cfn_jax.prepare, or a folder with a .mat for each image'
ORDER = 'x1, y1, x2, y2 in pixels from 0, ends included'
_MAT_ORDER = 'y1, x1, y2, x2 in pixels from 1, ends included'
_FOLDER_ORDER = 'x1, y1, x2, y2 in pixels from 1, ends included'
_SHOWN = 10  # names in an error


class Stored(NamedTuple):
  """The proposals of some images."""

  names: Sequence[str]
  starts: np.ndarray  # int64 [n + 1], where each image's boxes begin, and the end
  boxes: np.ndarray  # float32 [sum, 4] in `ORDER`
  order: str  # of the columns in the file
  source: str = ''  # what made them, where the file says so


def read_stored(where: str, *, field: str, listed: Sequence[str], names: Sequence[str]) -> Stored:
  """Reads a file, or the files of the wanted images in a folder.

  Args:
    where: the file or the folder.
    field: the field or flag that names it, for messages.
    listed: the images of the whole list, in its order.
    names: the wanted images.

  Raises:
    SourceError: it is missing, damaged, of another kind or for other images.
  """
  path, told = places.local(where, field), f'{field}={where}'
  suffix = path.suffix.lower()
  try:
    if path.is_dir():
      return _read_folder(path, told, names)
    if not path.exists():
      raise SourceError(f'{told}: there is no such file; it names {KINDS}')
    if suffix == '.mat':
      return _read_cells(path, told, listed)
    if suffix == '.npz':
      return read_npz(path, told)
  except OSError as error:
    raise SourceError(f'{told}: cannot be read: {error.strerror or error}') from None
  raise SourceError(f'{told}: a file that ends in {suffix or "nothing"} is not read; name {KINDS}')


def save(path: pathlib.Path, stored: Stored) -> None:
  """Writes our own format completely or not at all; equal proposals make equal bytes."""
  with places.replacing(path) as temporary, temporary.open('wb') as file:
    np.savez(
      file,
      names=np.array(stored.names, np.str_),
      starts=stored.starts,
      boxes=stored.boxes,
      source=np.array(stored.source),
    )


def join(
  names: Sequence[str], matrices: Sequence[np.ndarray], *, order: str = ORDER, source: str = ''
) -> Stored:
  """Joins the boxes of each image, float32 `[m, 4]`."""
  starts = np.cumsum([0, *map(len, matrices)], dtype=np.int64)
  boxes = np.concatenate([np.zeros((0, 4), np.float32), *matrices])
  return Stored(names, starts, boxes, order, source)


def name_missing(told: str, missing: Sequence[str], total: int) -> NoReturn:
  """Raises SourceError for images without proposals."""
  more = ', ...' if len(missing) > _SHOWN else ''
  raise SourceError(
    f'{told}: {len(missing):,} of the {total:,} images have no proposals there: '
    f'{", ".join(missing[:_SHOWN])}{more}'
  )


def read_npz(path: pathlib.Path, told: str) -> Stored:
  """Reads our own format; `told` begins the message of a SourceError."""
  _check_kind(path, told, b'PK\x03\x04', 'an .npz file')
  form = f'names text [n], starts int64 [n + 1], boxes float32 [sum, 4], {ORDER}'
  try:
    with path.open('rb') as file, np.load(file, allow_pickle=False) as loaded:
      names, starts, boxes = (loaded[name] for name in ('names', 'starts', 'boxes'))
      source = str(loaded['source']) if 'source' in loaded else ''
  except KeyError as error:
    raise SourceError(f'{told}: {error.args[0]}; it needs {form}') from None
  except Exception as error:  # for a truncated or damaged archive
    raise _damaged(told, error) from None
  shaped = names.ndim == starts.ndim == 1 and boxes.ndim == 2 and boxes.shape[1:] == (4,)
  kinds = names.dtype.kind + starts.dtype.kind + boxes.dtype.kind
  if not shaped or kinds[0] != 'U' or kinds[1] not in 'iu' or kinds[2] not in 'fiu':
    found = ', '.join(
      f'{name} {array.dtype} {list(array.shape)}'
      for name, array in (('names', names), ('starts', starts), ('boxes', boxes))
    )
    raise SourceError(f'{told}: it holds {found}; it needs {form}')
  starts = starts.astype(np.int64)
  ends = len(starts) == len(names) + 1 and starts[0] == 0 and starts[-1] == len(boxes)
  if not ends or (np.diff(starts) < 0).any():
    raise SourceError(
      f'{told}: starts has {len(starts):,} numbers for {len(names):,} images and {len(boxes):,} '
      'boxes; it needs one more than images, rising from 0 to the number of boxes'
    )
  return Stored(names.tolist(), starts, _to_float32(boxes), ORDER, source)


def _read_cells(path: pathlib.Path, told: str, listed: Sequence[str]) -> Stored:
  """Reads a cell of matrices, one per image of the list in its order."""
  loaded = _load_mat(path, told)
  cells, images = loaded['boxes'], loaded.get('images')
  if cells.dtype != object:
    raise SourceError(
      f'{told}: boxes is one matrix, {list(cells.shape)}, as in a file of one image; a file for a '
      'list has a cell of matrices, and files of one image each are named by their folder'
    )
  if cells.size != len(listed):
    raise SourceError(
      f'{told}: boxes of {cells.size:,} images; the list has {len(listed):,}, and such a file '
      'holds a matrix for each image of the list, in its order'
    )
  if images is not None:
    own = [_to_text(image) for image in images.ravel()]
    pairs = enumerate(zip(own, listed), start=1)
    wrong = [each for each in pairs if each[1][1] not in (each[1][0], _stem(each[1][0]))]
    if wrong or len(own) != len(listed):
      place, (name, wanted) = wrong[0] if wrong else (len(own), ('', ''))
      what = f'image {place} is {name}, in the list {wanted}' if wrong else f'{place:,} images'
      raise SourceError(f'{told}: it is of other images: {what}; give the file of this list')
  matrices = [_to_matrix(cell, told, name) for cell, name in zip(cells.ravel(), listed)]
  stored = join(listed, matrices, order=_MAT_ORDER)
  return stored._replace(boxes=stored.boxes[:, [1, 0, 3, 2]] - 1)


def _read_folder(path: pathlib.Path, told: str, names: Sequence[str]) -> Stored:
  """Reads a matrix from each image's file, as in fast-rcnn's variant `IJCV`."""
  missing = [name for name in names if not (path / f'{name}.mat').is_file()]
  if missing:
    name_missing(told, [f'{name}.mat' for name in missing], len(names))
  bar = terminal.make_bar(names, desc='proposals', unit='file', leave=False)
  matrices = [
    _to_matrix(_load_mat(path / f'{name}.mat', f'{told}/{name}.mat')['boxes'], told, name)
    for name in bar
  ]
  stored = join(names, matrices, order=_FOLDER_ORDER)
  return stored._replace(boxes=stored.boxes - 1)


def _load_mat(path: pathlib.Path, told: str) -> dict[str, np.ndarray]:
  import scipy.io

  _check_kind(path, told, b'MATLAB 5.0', "a .mat file of MATLAB's versions 5 to 7")
  try:
    loaded: dict[str, Any] = scipy.io.loadmat(path, variable_names=('boxes', 'images'))
    found = {} if 'boxes' in loaded else scipy.io.whosmat(path)
  except Exception as error:  # SciPy's reader raises many types on damaged files
    raise _damaged(told, error) from None
  if isinstance(loaded.get('boxes'), str):  # SciPy's reader puts its error there
    raise _damaged(told, ValueError(loaded['boxes']))
  if 'boxes' not in loaded:
    held = ', '.join(name for name, *_ in found) or 'nothing'
    raise SourceError(f'{told}: it has no variable boxes; it holds {held}')
  return {name: np.asarray(value) for name, value in loaded.items()}


def _check_kind(path: pathlib.Path, told: str, begins: bytes, wanted: str) -> None:
  """Refuses a file that begins with other bytes, and names its kind."""
  with path.open('rb') as file:
    head = file.read(file_kinds.HEAD)
  if head.startswith(begins):
    return
  if head.startswith((b'MATLAB 7.3', b'\x89HDF')):
    raise SourceError(
      f'{told}: MATLAB wrote it as version 7.3, which is HDF5 and is not read; open it in MATLAB '
      "and save it again with save(FILE, 'boxes', 'images', '-v7')"
    )
  what = file_kinds.recognise(head) or 'something else'
  raise SourceError(f'{told}: it should be {wanted}; it is {what}')


def _damaged(told: str, error: Exception) -> SourceError:
  return SourceError(
    f'{told}: it is cut short or damaged ({terminal.first_line(error)}); fetch or make it again'
  )


def _to_matrix(cell: Any, told: str, name: str) -> np.ndarray:
  """Returns the boxes of an image, float32 `[m, 4]`; MATLAB's empty matrix has any shape."""
  matrix = np.asarray(cell)
  if matrix.dtype.kind not in 'iuf' or (matrix.size and matrix.shape[1:] != (4,)):
    raise SourceError(
      f'{told}: boxes of {name} are {matrix.dtype} {list(matrix.shape)}; a matrix of numbers is '
      'needed, [m, 4]'
    )
  return _to_float32(matrix.reshape(-1, 4))


def _to_float32(boxes: np.ndarray) -> np.ndarray:
  with np.errstate(over='ignore'):  # too large becomes infinite, which is refused later
    return boxes.astype(np.float32)


def _to_text(cell: Any) -> str:
  """Returns the text of a MATLAB cell, or of a row of its character matrix, stripped."""
  return ''.join(map(str, np.asarray(cell).ravel())).strip()


def _stem(name: str) -> str:
  return pathlib.PurePath(name).stem
