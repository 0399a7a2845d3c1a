"""One VOC annotation, `Annotations/<image>.xml`: the objects of an image and their boxes.

Source: the VOC devkit. Files of common annotation tools, with children in any order, are accepted
too. Boxes count from 1 in a file, from 0 here (boxes.py). Used by voc_objects.py.
"""

import dataclasses
import pathlib
import xml.etree.ElementTree

import numpy as np

from cfn_jax.data import image_sizes, voc
from cfn_jax.data.images import BadImage
from cfn_jax.data.record import SourceError

_ENDS = ('xmin', 'ymin', 'xmax', 'ymax')
# The words of tools for an object that is not difficult, and for one that is.
_DIFFICULT = {'': False, '0': False, 'false': False, 'unspecified': False, '1': True, 'true': True}


@dataclasses.dataclass(frozen=True)
class Annotation:
  """The contents of one file.

  Attributes:
    size_px: height and width of the upright image.
    names: each object's class.
    boxes: float32 `[n, 4]` from 0.
  """

  file: str
  size_px: tuple[int, int]
  names: list[str]
  boxes: np.ndarray
  difficult: list[bool]


def read_annotation(path: pathlib.Path, image: pathlib.Path) -> Annotation:
  """Reads a file and checks it against its image.

  Raises:
    SourceError: the file is damaged or belongs to another image, or the image's header is damaged.
  """
  try:
    tree = xml.etree.ElementTree.parse(path).getroot()
  except (OSError, ValueError, LookupError, xml.etree.ElementTree.ParseError) as error:
    raise SourceError(f'{path} cannot be read: {error}') from None
  if tree.tag != 'annotation':
    raise SourceError(f'{path} is no VOC annotation: it holds <{tree.tag}>, not <annotation>')
  told = (tree.findtext('filename') or '').strip().replace('\\', '/').rpartition('/')[2]
  if told and path.stem not in (told, voc.stem_of(told)):
    raise SourceError(
      f'{path} is of another image: its <filename> is {told}; name both alike, or remove the tag'
    )
  try:
    size_px = image_sizes.read_size(image)
  except BadImage as error:
    raise SourceError(f'{error}; take it off the list or replace it') from None
  _check_size(path, tree, image, size_px)
  objects = tree.findall('object')
  found = [_read_object(path, each) for each in objects]
  ends = np.array([box for _, box, _ in found]).reshape(-1, 4) - 1
  with np.errstate(over='ignore'):  # a number beyond float32 becomes infinite, which is reported
    ends = ends.astype(np.float32)
  return Annotation(
    path.name,
    size_px,
    [name for name, _, _ in found],
    ends,
    [difficult for _, _, difficult in found],
  )


def _check_size(
  path: pathlib.Path,
  tree: xml.etree.ElementTree.Element,
  image: pathlib.Path,
  size_px: tuple[int, int],
) -> None:
  """Refuses a <size> that is not the image's; tools write 0 x 0 if they do not know it."""
  width, height = (
    _read_number(path, f'<size><{side}>', tree.findtext(f'size/{side}') or '0')
    for side in ('width', 'height')
  )
  if (height, width) in (size_px, (0, 0)):
    return
  turned = (width, height) == size_px
  raise SourceError(
    f'{path} says {width:g} x {height:g} px, but {image.name} has {size_px[1]} x {size_px[0]} px'
    + (' once it is upright (EXIF orientation); its boxes must be those of that' if turned else '')
  )


def _read_object(
  path: pathlib.Path, each: xml.etree.ElementTree.Element
) -> tuple[str, list[float], bool]:
  """Returns the class, the box counted as in the file, and whether the object is difficult."""
  name = (each.findtext('name') or '').strip()
  if not name:
    raise SourceError(f'{path}: an object has no <name>, its class')
  box = each.find('bndbox')  # the object's own: its parts have boxes too
  absent = [end for end in _ENDS if box is None or not (box.findtext(end) or '').strip()]
  if box is None or absent:
    raise SourceError(f'{path}: {name} has no {"<bndbox>" if box is None else f"<{absent[0]}>"}')
  difficult = (each.findtext('difficult') or '').strip()
  if difficult.lower() not in _DIFFICULT:
    raise SourceError(f'{path}: {name} has <difficult> {difficult!r}; it is 0 or 1')
  ends = [_read_number(path, f'{name} <{end}>', box.findtext(end) or '') for end in _ENDS]
  return name, ends, _DIFFICULT[difficult.lower()]


def _read_number(path: pathlib.Path, what: str, text: str) -> float:
  try:
    return float(text)
  except ValueError:
    raise SourceError(f'{path}: {what} is {text.strip()[:40]!r}, not a number') from None
