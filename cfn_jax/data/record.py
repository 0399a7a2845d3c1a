"""Sources of images: random access to named records.

Every kind of source (bundled.py, folder.py, array_records.py, tfds_source.py) returns these.
sources.py opens them. The pipeline reads them in loader processes: they pickle and import no JAX.
"""

from typing import NamedTuple, Protocol

import numpy as np

from cfn_jax.errors import CfnError


class SourceError(CfnError):
  """A data set that cannot be opened, with the fault, its place and the remedy."""


class Record(NamedTuple):
  """One image of a source."""

  data: bytes | np.ndarray  # an encoded file's bytes, or a decoded uint8 [H, W, 3]
  name: str  # unique in its source, readable: the relative path
  label: int  # index into class_names, -1 without


class Source(Protocol):
  """Random access to records. Its repr has no memory address: it is the same in every process."""

  root: str = ''  # the folder that names are relative to
  class_names: tuple[str, ...]
  foreign_classes: tuple[
    str, ...
  ] = ()  # classes, not all known in training: then the images have no labels
  fingerprint: str  # depends on the set of records, not on the place of the data
  description: str  # one line for the start-up summary

  def __len__(self) -> int: ...

  def __getitem__(self, index: int) -> Record: ...

  def labels(self) -> np.ndarray | None:
    """Returns each record's label, int32 `[n]`; None if that needs reading all records."""
    return None

  def multi_labels(self, origin: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Reads the labels of images of several classes.

    Args:
      origin: for VOC folders: 'lists' or 'annotations'.

    Returns:
      uint8 `[n, K]`, 0, 1 or `voc_labels.IGNORED`; the class names.

    Raises:
      SourceError: files are missing or malformed, or this kind of source has none.
    """
    raise SourceError(
      f"{self.description}: images of several classes come from data.source = 'voc' or 'tfds'"
    )

  def identify(self) -> str:
    """Returns a digest that depends on the images, not only on their names, if possible.

    It may look at each file; the fingerprint does not.
    """
    return self.fingerprint


def renumber(own: tuple[str, ...], known: tuple[str, ...]) -> np.ndarray:
  """Returns the numbers of classes among the known ones, then -1 for images without a class.

  All are -1 if one of them is unknown.

  Returns:
    int32 `[K + 1]`

  >>> renumber(('dog', 'cat'), ('cat', 'cow', 'dog')).tolist()
  [2, 0, -1]
  >>> renumber(('dog', 'elk'), ('cat', 'cow', 'dog')).tolist()
  [-1, -1, -1]
  """
  places = {name: place for place, name in enumerate(known if set(own) <= set(known) else ())}
  return np.array([*(places.get(name, -1) for name in own), -1], np.int32)


def check_index(index: int, length: int) -> int:
  """Refuses an index that a list would refuse or count from its end."""
  if not 0 <= index < length:
    raise IndexError(f'record {index} of {length}')
  return int(index)
