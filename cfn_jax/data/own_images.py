"""Images of one's own, without labels: those of a folder that can be decoded, with their sizes.

What `predict` makes of an image is called by the image's name without folder and suffix.
"""

import pathlib
from typing import NamedTuple

import numpy as np

from cfn_jax import terminal
from cfn_jax.data import folder, image_sizes, listing, pipeline
from cfn_jax.data.record import SourceError


class OwnImages(NamedTuple):
  """The images of a folder that can be decoded.

  Attributes:
    stems: what each is called.
    sizes: int32 `[n, 2]`, heights and widths.
    bad: how many others cannot be.
  """

  source: folder.FileSource
  stems: list[str]
  sizes: np.ndarray
  bad: int


def open_images(root: pathlib.Path) -> OwnImages:
  """Opens the images under a folder as `open_decodable` does, each with a name of its own.

  Raises:
    SourceError: there is none, or two of one name.
  """
  source, bad = open_decodable(root)
  sizes = np.array([image_sizes.read_size(root / name) for name in source.names], np.int32)
  return OwnImages(source, find_stems(source), sizes, bad)


def open_decodable(root: pathlib.Path) -> tuple[folder.FileSource, int]:
  """Lists the images under a folder; those that cannot be decoded are named on the terminal.

  Returns:
    The others, in the order of their names, and how many are left out.

  Raises:
    SourceError: there is none.
  """
  found = listing.list_images(root)
  faults = pipeline.Reader(folder.labelled(root, found, ()), seed=0).find_faults()
  for fault in faults.values():
    terminal.say(f'left out: {fault}')
  names = [name for index, name in enumerate(found.names) if index not in faults]
  if not names:
    raise SourceError(f'{root}: none of the {len(found.names):,} images can be decoded')
  return folder.labelled(root, found._replace(names=listing.Names.of(names)), ()), len(faults)


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
