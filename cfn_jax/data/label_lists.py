"""Labels of images that have no class folders, such as ImageNet's validation images.

Used by prepare.py. A list of labels is one of:

- ILSVRC's `ILSVRC2012_validation_ground_truth.txt`: a number on each line, line i for the image
  whose name ends in i. The order of the classes (the synsets) says what the numbers mean.
- names and classes: `ImageId,n01751748 111 108 ...` or `NAME n01751748`, an image on each line.

Classes are numbered in sorted order, as class folders are.
"""

import csv
import pathlib
import posixpath
import re
from collections.abc import Sequence

import numpy as np

from cfn_jax.data import text_lists
from cfn_jax.data.record import SourceError

_ILSVRC_CLASSES = 1000
_READ = 'a comma or blanks part a name from its class'
_ASK = 'give --synsets: meta.mat of the development kit, or its wnids in the order of the numbers'

Lines = list[tuple[int, str]]  # the number and the text of each


def read_labels(
  names: Sequence[str], labels: pathlib.Path, synsets: pathlib.Path | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
  """Returns the label of each image.

  Args:
    names: the images, as relative paths.
    labels: a list of labels, of either kind.
    synsets: `meta.mat`, or a text file with a class on each line, its first word.

  Returns:
    int32 `[N]`, the class names.

  Raises:
    SourceError: with the file and its fault; an image has no label, or the reverse.
  """
  lines = [(number, line) for number, line in enumerate(text_lists.read_lines(labels), 1) if line]
  if not lines:
    raise SourceError(f'{labels} is empty: it should hold the labels of {len(names):,} images')
  order = read_synsets(synsets) if synsets else ()
  if all(re.fullmatch('[0-9]{1,9}', line) for _, line in lines):
    found = _by_number(names, labels, lines, order)
  else:
    found = _by_name(names, labels, lines, order)
  classes = tuple(sorted(set(order or found)))
  places = {name: place for place, name in enumerate(classes)}
  return np.array([places[name] for name in found], np.int32), classes


def read_synsets(path: pathlib.Path) -> tuple[str, ...]:
  """Reads the classes in the order of their numbers, from 1.

  Raises:
    SourceError: there are none, or one occurs twice.
  """
  if path.suffix.lower() == '.mat':
    order = _read_meta(path)
  else:
    order = tuple(line.split()[0].rstrip(',') for line in text_lists.read_lines(path) if line)
  if not order or len(set(order)) < len(order):
    twice = next((name for name in order if order.count(name) > 1), '')
    raise SourceError(f'{path} names ' + (f'{twice} twice' if twice else 'no class'))
  return order


def _read_meta(path: pathlib.Path) -> tuple[str, ...]:
  """Reads the development kit's table: the leaves (no children) have the numbers 1, 2, ..."""
  import scipy.io

  try:
    table = scipy.io.loadmat(path, squeeze_me=True)['synsets']
    rows = zip(table['ILSVRC2012_ID'], table['WNID'], table['num_children'])
    leaves = sorted((int(number), str(wnid)) for number, wnid, children in rows if not children)
  except OSError as error:
    raise SourceError(f'{path} cannot be read: {error.strerror or error}') from None
  except Exception as error:  # SciPy's reader raises many types on other files
    raise SourceError(
      f"{path} is not the development kit's meta.mat: {type(error).__name__} ({error})"
    ) from None
  if [number for number, _ in leaves] != list(range(1, len(leaves) + 1)):
    raise SourceError(f'{path}: its classes are not numbered from 1 without a gap')
  return tuple(wnid for _, wnid in leaves)


def _by_number(
  names: Sequence[str], path: pathlib.Path, lines: Lines, order: tuple[str, ...]
) -> list[str]:
  """Returns the class of line i for the image whose name ends in i."""
  if not order:
    raise SourceError(f'{path} holds numbers, whose meaning it does not say: {_ASK}')
  if len(order) == _ILSVRC_CLASSES and list(order) == sorted(order):
    raise SourceError(
      f'--synsets lists {order[0]}, {order[1]}, ... in sorted order, which is not that of the '
      f'numbers in {path}; {_ASK}'
    )
  if len(names) != len(lines):
    raise SourceError(f'{path} has {len(lines):,} labels, there are {len(names):,} images')
  for number, line in lines:
    if not 1 <= int(line) <= len(order):
      raise SourceError(f'{path}, line {number}: {line[:20]} is no number of 1..{len(order)}')
  found, seen = [], set()
  for name in names:
    digits = re.search('([0-9]+)$', _stem(name))
    place = int(digits[1]) if digits else 0
    if not 1 <= place <= len(lines) or place in seen:
      why = 'another image has its number' if place in seen else f'no number of 1..{len(lines)}'
      raise SourceError(f'{name}: its name must end in the line of its label in {path}, but: {why}')
    seen.add(place)
    found.append(order[int(lines[place - 1][1]) - 1])
  return found


def _by_name(
  names: Sequence[str], path: pathlib.Path, lines: Lines, order: tuple[str, ...]
) -> list[str]:
  """Returns each image's class from the line that names it, with or without folders and suffix."""
  wanted = {_stem(name): name for name in names}
  if len(wanted) < len(names):
    raise SourceError(f'two of the {len(names):,} images have one name, so {path} cannot tell them')
  known = frozenset(order)
  rows = [(number, line, *_split_line(line)) for number, line in lines]
  others = known | {label for *_, label in rows[1:]}
  if _stem(rows[0][2]) not in wanted and rows[0][3] not in others:
    del rows[0]  # the headings of a table
  found: dict[str, str] = {}
  for number, line, name, label in rows:
    stem = name if name in wanted else _stem(name)
    where = f'{path}, line {number}: '
    if stem not in wanted:
      hint = '' if label and ';' not in line else f'; {_READ}'
      raise SourceError(f'{where}{name!r} is none of the {len(names):,} images{hint}')
    if not label or label.isdigit():
      raise SourceError(f'{where}{line[:60]!r}: a name and a class (a wnid) are expected; {_READ}')
    if known and label not in known:
      raise SourceError(f'{where}the class {label!r} is not in the list of --synsets')
    if found.setdefault(stem, label) != label:
      raise SourceError(f'{where}{name!r} is {label} here and {found[stem]} before')
  missing = [name for stem, name in wanted.items() if stem not in found]
  if missing:
    raise SourceError(
      f'{path} says nothing of {len(missing):,} of the {len(names):,} images, such as {missing[0]}'
    )
  return [found[_stem(name)] for name in names]


def _split_line(line: str) -> tuple[str, str]:
  """Splits a line into the image and the first word after it.

  >>> _split_line('val_1,n01751748 111 108'), _split_line('val_2.JPEG\\tn03444034\\t0')
  (('val_1', 'n01751748'), ('val_2.JPEG', 'n03444034'))
  """
  cells = next(csv.reader([line])) if ',' in line else line.split(None, 1)
  words = cells[1].split() if len(cells) > 1 else []
  return cells[0].strip(), words[0] if words else ''


def _stem(name: str) -> str:
  """Returns the name of a file without folders and suffix."""
  return posixpath.splitext(posixpath.basename(name))[0]
