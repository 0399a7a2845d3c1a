"""Makes proposals for a folder of images, or for a VOC list, and writes them to one file.

images -> boxes (grid.py or segments.py) -> parts of 16 images in `FILE.npz.parts` -> `FILE.npz`,
which proposals.py opens. The same command resumes part by part; the bytes do not depend on the
number of processes.
"""

import functools
import glob
import math
import pathlib
import shutil
from collections.abc import Callable

import numpy as np

from cfn_jax import places, terminal
from cfn_jax.data import (
  folder,
  grid,
  listing,
  own_images,
  parts,
  proposal_files,
  segments,
  voc,
)
from cfn_jax.data import images as decoding
from cfn_jax.data.record import SourceError

_IMAGES_PER_PART = 16
_VERSION = 1  # version of the methods; parts of another version are not mixed with these


def _make_windows(image: np.ndarray) -> np.ndarray:
  return grid.make_windows(*image.shape[:2])


METHODS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
  'grid': _make_windows,
  'segments': segments.find_boxes,
}


def prepare_proposals(
  *,
  method: str,
  out: str,
  root: str = '',
  split: str = '',
  images: str = '',
  opened: folder.FileSource | None = None,
  num_workers: int = 0,
) -> proposal_files.Stored:
  """Writes and returns the proposals of all images.

  Args:
    method: one of `METHODS`.
    out: the file to write, an .npz.
    root: a folder such as `VOCdevkit/VOC2007`, whose list `split` names the images.
    images: a folder of images instead.
    opened: opened images instead.
    num_workers: number of processes; 0: one per core.

  Raises:
    PrepareError: the arguments do not fit together, the file exists, or the disk is full.
    SourceError: images are missing, or two have one name.
    BadImage: an image cannot be decoded.
  """
  path = places.local(out, '--out')
  kept = path.with_name(f'{path.name}.parts')
  if num_workers < 0:
    raise parts.PrepareError(f'--workers={num_workers}: at least 0, which is one per core')
  if path.suffix != '.npz':
    raise parts.PrepareError(f'--out={out}: the name has to end in .npz')
  if path.exists() and not kept.is_dir():  # with it, a run was killed while it cleaned up
    raise parts.PrepareError(f'--out={out} exists already; delete it, or give another name')
  if method == 'segments':
    segments.import_segmentation()
  source = opened or _open_images(root, split, images)
  names = own_images.find_stems(source)
  with parts.guard(out, 'parts'):
    kept.mkdir(parents=True, exist_ok=True)
    with parts.lock(kept):
      stated = {
        'format': 'cfn_jax proposals',
        'version': _VERSION,
        'method': method,
        'num_images': len(source),
        'source': source.fingerprint,
        'files': source.stamp(),
      }
      parts.claim(kept / 'settings.json', stated)
      make = functools.partial(_make_part, source, names, method, kept)
      _make_missing(source, make, kept, num_workers)
      made = _join_parts(kept, names)
      for leftover in path.parent.glob(f'{glob.escape(path.name)}.*.tmp'):  # of killed runs
        leftover.unlink(missing_ok=True)
      proposal_files.save(path, made)
      shutil.rmtree(kept)
  return made


def _open_images(root: str, split: str, images: str) -> folder.FileSource:
  if images and not root and not split:
    place = places.local(images, '--images')
    return folder.labelled(place, listing.list_images(place), ())
  if images or not root:
    raise parts.PrepareError('give either --images, or --root and --split')
  place = places.local(root, '--root')
  listed = voc.list_split(place, split, field='--split')
  return voc.VocSource(place, listed.names, split, listed)


def _make_missing(
  source: folder.FileSource,
  make: Callable[[int, range], int],
  kept: pathlib.Path,
  num_workers: int,
) -> None:
  bounds = [*range(0, len(source), _IMAGES_PER_PART), len(source)]
  shares = dict(enumerate(map(range, bounds, bounds[1:])))
  missing = {number: share for number, share in shares.items() if not _is_whole(kept, number)}
  done = len(source) - sum(map(len, missing.values()))
  with terminal.make_bar(total=len(source), initial=done, unit='image') as bar:
    parts.make_parts(make, missing, num_workers, lambda number: bar.update(len(missing[number])))


def _make_part(
  source: folder.FileSource,
  names: list[str],
  method: str,
  kept: pathlib.Path,
  number: int,
  share: range,
) -> int:
  """Makes and saves the proposals of a few images; returns the part's number."""
  found = []
  for place in share:
    record = source[place]
    image = decoding.decode_image(bytes(record.data), name=record.name)
    found.append(METHODS[method](image))
  stored = proposal_files.join(
    [names[place] for place in share], found, source=f'cfn_jax.prepare, {method}'
  )
  proposal_files.save(_part(kept, number), stored)
  return number


def _part(kept: pathlib.Path, number: int) -> pathlib.Path:
  return kept / f'part-{number:05d}.npz'


def _is_whole(kept: pathlib.Path, number: int) -> bool:
  path = _part(kept, number)
  try:
    return path.is_file() and bool(proposal_files.read_npz(path, path.name))
  except SourceError:  # the disk damaged it; it is made again
    return False


def _join_parts(kept: pathlib.Path, names: list[str]) -> proposal_files.Stored:
  numbers = range(math.ceil(len(names) / _IMAGES_PER_PART))
  made = [proposal_files.read_npz(_part(kept, number), '--out') for number in numbers]
  counts = [np.diff(part.starts) for part in made]
  return made[0]._replace(
    names=names,
    starts=np.concatenate([[0], np.cumsum(np.concatenate(counts))]),
    boxes=np.concatenate([part.boxes for part in made]),
  )
