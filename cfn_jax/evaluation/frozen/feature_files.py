"""Features of images as one file: `.npz` for NumPy, `.parquet` for tables (the extra `parquet`).

A row is an image: its `name`, its `label` if the images lie in class folders, its `vector`. Rows
are written one by one, so memory holds a few megabytes beside the names. The file is complete or
absent. own_features.py writes it.
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
GROUP_BYTES = 32 * 2**20  # approximate bytes of vectors in a row group of a Parquet file


class Rows(NamedTuple):
  """Some rows of a file."""

  names: Sequence[str]
  labels: Sequence[str] | None
  vectors: np.ndarray  # [n, D]


Add = Callable[[Rows], None]


def check_path(path: pathlib.Path) -> None:
  """Raises CfnError for a name of unknown kind, a folder, or a missing library."""
  if path.suffix not in SUFFIXES:
    raise CfnError(f'--out={path}: a file that ends in {" or ".join(SUFFIXES)}')
  if path.is_dir():
    raise CfnError(f'--out={path} is a folder; name a file')
  if path.suffix == '.parquet' and importlib.util.find_spec('pyarrow') is None:
    raise CfnError(f"--out={path} needs pyarrow: pip install -e '.[parquet]'; .npz does not")


@contextlib.contextmanager
def writing(path: pathlib.Path, about: Mapping[str, Any]) -> Iterator[Add]:
  """Yields a function that adds rows to a file, which gets its name at the end; it needs a row.

  Args:
    about: plain values, saved in the file as JSON: the array `about`, or Parquet's metadata.
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
  # The number of rows comes before them, so they wait in a temporary file.
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
  r"""Returns a name of the file system as text: bytes that are not UTF-8 become \xNN."""
  return os.fsencode(name).decode('utf8', 'backslashreplace')
