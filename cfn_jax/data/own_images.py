"""A user's images, without labels: those of a folder that can be decoded, with their sizes.

Used by `predict`. The stem of an image is its name without folder and suffix.
"""

import pathlib
from typing import NamedTuple

import numpy as np

from cfn_jax import terminal
from cfn_jax.data import faults, folder, image_sizes, listing, pipeline
from cfn_jax.data.record import SourceError


class OwnImages(NamedTuple):
  """The images of a folder that can be decoded.

  Attributes:
    stems: the name of each, without folder and suffix.
    sizes: int32 `[n, 2]`, heights and widths.
    bad: number of images that cannot be decoded.
  """

  source: folder.FileSource
  stems: list[str]
  sizes: np.ndarray
  bad: int


def open_images(root: pathlib.Path) -> OwnImages:
  """Lists the images under a folder; prints those that cannot be decoded.

  Raises:
    SourceError: there is none, or two have one name.
  """
  found = listing.list_images(root)
  bad = faults.find(pipeline.Reader(folder.labelled(root, found, ()), seed=0))
  for fault in bad.values():
    terminal.say(f'left out: {fault}')
  names = [name for index, name in enumerate(found.names) if index not in bad]
  if not names:
    raise SourceError(f'{root}: none of the {len(found.names):,} images can be decoded')
  source = folder.labelled(root, found._replace(names=listing.Names.of(names)), ())
  sizes = np.array([image_sizes.read_size(root / name) for name in names], np.int32)
  return OwnImages(source, find_stems(source), sizes, len(bad))


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
