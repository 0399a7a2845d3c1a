"""Features of images as one file: `.npz` for NumPy, `.parquet` for tables (the extra `parquet`).

A row is an image: its `name`, its `label` where the images lie in class folders, its `vector`.
Written row by row, so that no more than a few megabytes are held beside the names; the file is
there whole or not at all. Written by own_features.py.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cfn_jax import places
from cfn_jax.errors import CfnError

SUFFIXES = ('.npz', '.parquet')
GROUP_BYTES = 32 * 2**20  # of vectors in a row group of a Parquet file, about


class Rows(NamedTuple):
  """Some rows of a file."""

  names: Sequence[str]
  labels: Sequence[str] | None
  vectors: np.ndarray  # [n, D]


Add = Callable[[Rows], None]


def check_path(path: pathlib.Path) -> None:
  """Raises CfnError for a name that is of no known kind, a folder, or lacks its library."""
  if path.suffix not in SUFFIXES:
    raise CfnError(f'--out={path}: a file that ends in {" or ".join(SUFFIXES)}')
  if path.is_dir():
    raise CfnError(f'--out={path} is a folder; name a file')
  if path.suffix == '.parquet' and importlib.util.find_spec('pyarrow') is None:
    raise CfnError(f"--out={path} needs pyarrow: pip install -e '.[parquet]'; .npz does not")


@contextlib.contextmanager
def writing(path: pathlib.Path, about: Mapping[str, Any]) -> Iterator[Add]:
  """Yields what adds rows to a file, which gets its name at the end; at least one row is needed.

  Args:
    about: plain values, kept in the file as JSON: the array `about`, or Parquet's metadata.
  """
  write = _write_parquet if path.suffix == '.parquet' else _write_npz
  with (
    places.naming(path),
    places.replacing(path) as temporary,
    write(temporary, json.dumps(dict(about))) as add,
  ):
    yield add


@contextlib.contextmanager
def _write_npz(path: pathlib.Path, about: str) -> Iterator[Add]:
  names: list[str] = []
  labels: list[str] = []
  added: list[np.ndarray] = []  # the last vectors, for their type and width
  # How many rows there are stands before them: they wait in a file without a name.
  with tempfile.TemporaryFile(dir=path.parent) as waiting:

    def add(rows: Rows) -> None:
      names.extend(map(_readable, rows.names))
      labels.extend(map(_readable, rows.labels or ()))
      waiting.write(np.ascontiguousarray(rows.vectors).data)
      added[:] = [rows.vectors[:1]]

    yield add
    waiting.flush()
    shape = len(names), added[0].shape[1]
    arrays = {
      'name': np.array(names),
      **({'label': np.array(labels)} if labels else {}),
      'vector': np.memmap(waiting, added[0].dtype, 'r', shape=shape),
      'about': np.array(about),
    }
    with zipfile.ZipFile(path, 'w') as archive:
      for name, array in arrays.items():
        with archive.open(f'{name}.npy', 'w', force_zip64=True) as file:
          np.lib.format.write_array(file, array, allow_pickle=False)


@contextlib.contextmanager
def _write_parquet(path: pathlib.Path, about: str) -> Iterator[Add]:
  import pyarrow
  import pyarrow.parquet

  held: list[Rows] = []
  writer: Any = None

  def write() -> None:
    nonlocal writer
    vectors = np.concatenate([rows.vectors for rows in held])
    flat = pyarrow.array(vectors.reshape(-1))
    columns = {'name': [_readable(name) for rows in held for name in rows.names]}
    if held[0].labels is not None:
      columns['label'] = [_readable(label) for rows in held for label in rows.labels or ()]
    columns['vector'] = pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    table = pyarrow.table(columns, metadata={'about': about})
    writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema)
    writer.write_table(table, row_group_size=table.num_rows)
    held.clear()

  def add(rows: Rows) -> None:
    held.append(rows)
    if sum(each.vectors.nbytes for each in held) >= GROUP_BYTES:
      write()

  try:
    yield add
    if held:
      write()
  finally:
    if writer:
      writer.close()


def _readable(name: str) -> str:
  r"""Returns a name of the file system as text: bytes that are no UTF-8 become \xNN."""
  return os.fsencode(name).decode('utf8', 'backslashreplace')
