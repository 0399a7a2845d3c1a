"""Proposals of a detector: boxes where objects may be, for the images of a list.

file or grid -> float32 `[m, 4]` for each image: x1, y1, x2, y2 in pixels of the original image from
0, ends included (boxes.py). Fast R-CNN takes them from outside (its paper, section 2.3). All are
checked when they are opened. Loader processes then read them from one array.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from cfn_jax.data import grid, proposal_files
from cfn_jax.data.record import SourceError, check_index

GRID = 'grid'


class Proposals(Protocol):
  """The boxes of each image of a list, by its place in the list."""

  description: str  # one line for the start-up summary
  fingerprint: str  # changes with the boxes
  most: int  # largest number of boxes of an image

  def __len__(self) -> int: ...

  def __getitem__(self, index: int) -> np.ndarray: ...  # float32 [m, 4]


@dataclasses.dataclass(eq=False, repr=False)
class StoredProposals:
  """Boxes of all images in one array."""

  boxes: np.ndarray  # float32 [sum, 4]
  starts: np.ndarray  # int64 [n + 1]
  description: str
  fingerprint: str
  most: int

  def __len__(self) -> int:
    return len(self.starts) - 1

  def __getitem__(self, index: int) -> np.ndarray:
    index = check_index(index, len(self))
    return self.boxes[self.starts[index] : self.starts[index + 1]]

  def __repr__(self) -> str:
    return f'StoredProposals({self.fingerprint})'


@dataclasses.dataclass(eq=False, repr=False)
class GridProposals:
  """Windows that are made on demand."""

  sizes: np.ndarray  # int64 [n, 2], height and width
  keep: int
  description: str
  fingerprint: str
  most: int

  def __len__(self) -> int:
    return len(self.sizes)

  def __getitem__(self, index: int) -> np.ndarray:
    height, width = self.sizes[check_index(index, len(self))].tolist()
    return _windows(height, width, self.keep)

  def __repr__(self) -> str:
    return f'GridProposals({self.fingerprint})'


def open_proposals(
  where: str,
  *,
  field: str,
  listed: Sequence[str],
  names: Sequence[str],
  sizes: Sequence[tuple[int, int]],
  keep: int = 0,
) -> Proposals:
  """Opens the proposals of some images and checks them.

  Boxes under 2 px wide or high are dropped and counted in the description. Equal boxes stay, as in
  fast-rcnn.

  Args:
    where: 'grid', or a file or folder (proposal_files.py).
    field: the field or flag that names it, for messages.
    listed: the images of the whole list, without suffixes, in its order.
    names: the wanted images.
    sizes: height and width of each of them, px.
    keep: number of boxes to keep per image, the first ones; 0: all.

  Raises:
    SourceError: a file cannot be read or is for other images; an image has no box; a box does not
      lie in its image.
  """
  shapes = np.array(sizes, np.int64).reshape(-1, 2)
  if where == GRID:
    return _open_grid(shapes, names, field=field, keep=keep)
  if not where:
    raise SourceError(f"{field} is empty: it is '{GRID}', or names {proposal_files.KINDS}")
  stored = proposal_files.read_stored(where, field=field, listed=listed, names=names)
  told = f'{field}={where}'
  starts, boxes = _select(stored, names, told)
  owners = np.repeat(np.arange(len(names)), np.diff(starts))
  _check_boxes(boxes, owners, names, shapes, told=told, columns=stored.order)
  large = (boxes[:, 2:] - boxes[:, :2] + 1 >= grid.LEAST_SIDE_PX).all(axis=1)
  boxes, owners, small = boxes[large], owners[large], int((~large).sum())
  if keep:
    first = np.searchsorted(owners, np.arange(len(names)))
    kept = np.arange(len(owners)) - first[owners] < keep
    boxes, owners = boxes[kept], owners[kept]
  counts = np.bincount(owners, minlength=len(names))
  if not counts.all():
    none = [names[place] for place in np.flatnonzero(counts == 0)[:10]]
    raise SourceError(
      f'{told}: {int((counts == 0).sum()):,} of the {len(names):,} images have no box of '
      f'{grid.LEAST_SIDE_PX} px and more there, such as {", ".join(none)}'
    )
  left_out = f'; {small:,} boxes under {grid.LEAST_SIDE_PX} px left out' if small else ''
  origin = f' ({stored.source[:80]})' if stored.source else ''
  starts = np.concatenate([[0], np.cumsum(counts)])
  return StoredProposals(
    boxes,
    starts,
    description=f'{where}{origin}: {_describe(counts)}{left_out}',
    fingerprint=_digest('\n'.join(names).encode(), starts.tobytes(), boxes.tobytes()),
    most=int(counts.max(initial=0)),
  )


def _open_grid(shapes: np.ndarray, names: Sequence[str], *, field: str, keep: int) -> GridProposals:
  for name, (height, width) in zip(names, shapes.tolist(), strict=True):
    if min(height, width) < grid.LEAST_SIDE_PX:
      raise SourceError(
        f'{field}={GRID}: {name} is {width} x {height} px; a box in it needs '
        f'{grid.LEAST_SIDE_PX} px to each side'
      )
  different, which = np.unique(shapes, axis=0, return_inverse=True)
  each = np.array([len(_windows(*shape, keep)) for shape in different.tolist()], np.int64)
  counts = each[which.ravel()]
  return GridProposals(
    shapes,
    keep,
    description=f'a grid of windows: {_describe(counts)}',
    fingerprint=_digest(repr((GRID, grid.PARAMETERS, keep)).encode()),
    most=int(counts.max(initial=0)),
  )


@functools.lru_cache(maxsize=512)  # the images of a list share few sizes
def _windows(height: int, width: int, keep: int) -> np.ndarray:
  windows = grid.make_windows(height, width)[: keep or None]
  windows.flags.writeable = False
  return windows


def _select(
  stored: proposal_files.Stored, names: Sequence[str], told: str
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the boxes of the wanted images, in their order."""
  rows = {name: row for row, name in enumerate(stored.names)}
  if len(rows) < len(stored.names):
    twice = next(name for row, name in enumerate(stored.names) if rows[name] != row)
    raise SourceError(f'{told}: it has proposals of {twice} twice; each image needs a name')
  missing = [name for name in names if name not in rows]
  if missing:
    proposal_files.name_missing(told, missing, len(names))
  chosen = np.array([rows[name] for name in names], np.int64)
  counts = np.diff(stored.starts)[chosen]
  starts = np.concatenate([[0], np.cumsum(counts)])
  shift = stored.starts[chosen] - starts[:-1]
  return starts, stored.boxes[np.arange(starts[-1]) + np.repeat(shift, counts)]


def _check_boxes(
  boxes: np.ndarray,
  owners: np.ndarray,
  names: Sequence[str],
  shapes: np.ndarray,
  *,
  told: str,
  columns: str,
) -> None:
  """Refuses boxes that do not lie in their image; names the first."""
  ends = (shapes[:, ::-1] - 1).astype(np.float32)[owners]  # [sum, 2], the last column and row
  inside = ((boxes >= 0) & (boxes <= np.tile(ends, 2))).all(axis=1)
  faults = {
    'is not of finite numbers': ~np.isfinite(boxes).all(axis=1),
    'ends before it begins': (boxes[:, 2:] < boxes[:, :2]).any(axis=1),
    'lies outside': ~inside,
  }
  for fault, found in faults.items():
    if not found.any():
      continue
    row = int(found.argmax())
    place = int(row - np.searchsorted(owners, owners[row])) + 1
    height, width = shapes[owners[row]].tolist()
    numbers = ', '.join(f'{value:g}' for value in boxes[row].tolist())
    hint = ''
    if fault == 'lies outside' and ((boxes >= 0) & (boxes <= np.tile(ends[:, ::-1], 2))).all():
      hint = '; all would lie inside with x and y exchanged'
    raise SourceError(
      f'{told}: box {place} of {names[owners[row]]} ({width} x {height} px) {fault}: {numbers} '
      f'(x1, y1, x2, y2 from 0); {int(found.sum()):,} of {len(boxes):,} boxes have this fault. The '
      f'columns of such a file are {columns}{hint}'
    )


def _describe(counts: np.ndarray) -> str:
  mean = counts.mean() if len(counts) else 0
  return f'{len(counts):,} images, {mean:,.0f} boxes each on average'


def _digest(*parts: bytes) -> str:
  digest = hashlib.sha256()
  for part in parts:
    digest.update(part)
  return digest.hexdigest()[:16]
