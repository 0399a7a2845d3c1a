"""Lists that people keep as text, one entry a line: image names, labels, classes.

Used by voc.py, voc_labels.py and label_lists.py. Names come out as the file system spells them.
"""

import os
import pathlib

from cfn_jax.data import file_kinds
from cfn_jax.data.record import SourceError


def read_lines(path: pathlib.Path) -> list[str]:
  """Reads the lines of a file, blank ends removed; line ends of any system, a BOM or none.

  A UTF-16 file needs its BOM. Bytes that are no UTF-8 stay what they are in file names.

  Raises:
    SourceError: the file cannot be read, or is no text.
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
