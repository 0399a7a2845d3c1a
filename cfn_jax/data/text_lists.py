"""Text lists with one entry per line: image names, labels, classes.

Used by voc.py, voc_labels.py and label_lists.py. Names are returned as the file system spells them.
"""

import collections
import os
import pathlib
from collections.abc import Sequence

from cfn_jax.data import file_kinds
from cfn_jax.data.record import SourceError


def read_lines(path: pathlib.Path) -> list[str]:
  """Reads the lines of a file, stripped; accepts the line ends of any system, and a BOM.

  A UTF-16 file needs its BOM. Bytes that are not UTF-8 are kept, as in file names.

  Raises:
    SourceError: the file cannot be read, or is not text.
  """
  try:
    data = path.read_bytes()
  except OSError as error:
    raise SourceError(f'{path} cannot be read: {error.strerror or error}') from None
  try:
    data = file_kinds.to_utf8(data)
  except UnicodeError as error:
    raise SourceError(f'{path} is damaged UTF-16 text ({error}); save it as UTF-8') from None
  if b'\0' in data:
    raise SourceError(f'{path} is no list: it holds zero bytes; a text file (UTF-8) is needed')
  return [os.fsdecode(line).strip() for line in data.splitlines()]


def refuse_twice(names: Sequence[str], path: pathlib.Path) -> None:
  """Raises SourceError if a list has a name twice, with the first such name."""
  counts = collections.Counter(names)
  twice = [name for name, count in counts.items() if count > 1]
  if twice:
    raise SourceError(
      f'{path} names {len(twice):,} of its {len(counts):,} images more than once, such as '
      f'{twice[0]}; an image is counted once: leave one line of each'
    )
