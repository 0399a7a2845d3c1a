"""What a source of images is: random access to named records.

Every kind of source (bundled.py, folder.py, array_records.py, tfds_source.py) returns these;
sources.py opens them; the pipeline reads them in loader processes: they pickle and import no JAX.
"""

from typing import NamedTuple, Protocol

import numpy as np

from cfn_jax import names


class SourceError(names.LinesError):
  """A data set that cannot be opened: what is wrong, where, and what would be right."""


class Record(NamedTuple):
  """One image of a source."""

  data: bytes | np.ndarray  # an encoded file's bytes, or a decoded uint8 [H, W, 3]
  name: str  # unique in its source, readable: the relative path
  label: int  # index into class_names, -1 without


class Source(Protocol):
  """Random access to records. Its repr holds no memory address: it is stable between processes."""

  class_names: tuple[str, ...]
  fingerprint: str  # changes with the set of records, not when the data are moved
  description: str  # one line for the start-up summary

  def __len__(self) -> int: ...

  def __getitem__(self, index: int) -> Record: ...


def identify(source: Source) -> str:
  """Returns what changes with the images of a source, not only with their names, where it can tell.

  It may look at each file, which the fingerprint does not.
  """
  return f'{source.fingerprint} {getattr(source, "content", "")}'.strip()


def check_index(index: int, length: int) -> int:
  """Refuses an index that a list would refuse, or count from the end."""
  if not 0 <= index < length:
    raise IndexError(f'record {index} of {length}')
  return int(index)
