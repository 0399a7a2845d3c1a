"""Images of one's own, without labels: a folder of any files, each readable one with its size.

Used by `predict`. An image is called by its name without folder and suffix.
"""

import pathlib
from typing import NamedTuple

import numpy as np

from cfn_jax import terminal
from cfn_jax.data import folder, image_sizes, images, listing
from cfn_jax.data.record import SourceError


class OwnImages(NamedTuple):
  """The images of a folder.

  Attributes:
    stems: what each is called.
    sizes: int32 `[n, 2]`, heights and widths.
    bad: how many other files look like images and have no size.
  """

  source: folder.FileSource
  stems: list[str]
  sizes: np.ndarray
  bad: int


def open_images(root: pathlib.Path) -> OwnImages:
  """Lists the images under a folder; those that cannot be read are named on the terminal.

  Raises:
    SourceError: there is none, or two of one name.
  """
  found = listing.list_images(root)
  sizes, readable = [], []
  for name in found.names:
    try:
      sizes.append(image_sizes.read_size(root / name))
      readable.append(name)
    except images.BadImage as error:
      terminal.say(f'left out: {error}')
  if not readable:
    raise SourceError(f'{root}: none of the {len(found.names):,} images can be read')
  source = folder.labelled(root, found._replace(names=listing.Names.of(readable)), ())
  bad = len(found.names) - len(readable)
  return OwnImages(source, find_stems(source), np.array(sizes, np.int32), bad)


def find_stems(source: folder.FileSource) -> list[str]:
  """Returns the images' names without folder and suffix.

  Raises:
    SourceError: two have the same.
  """
  first: dict[str, str] = {}
  for name in source.names:
    stem = pathlib.PurePath(name).stem
    if stem in first:
      raise SourceError(
        f'{first[stem]} and {name} have the same name without folder and suffix, by which images '
        'are told apart; rename one'
      )
    first[stem] = name
  return list(first)
