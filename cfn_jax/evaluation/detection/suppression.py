"""Greedy non-maximum suppression: of overlapping boxes the one with the highest score stays.

Source: Fast R-CNN (fast-rcnn, `lib/utils/nms.pyx`, the compiled routine). It drops a box at an
overlap of the threshold or more; its Python version keeps one at exactly the threshold. Between the
network's scores and average_precision.py.
"""

import math

import numpy as np

from cfn_jax.data import boxes

_GROUPS_AT_ONCE = 512  # their boxes fit the processor's cache


def suppress_groups(found: np.ndarray, threshold: float) -> np.ndarray:
  """Returns the boxes that stay in each of many groups, such as the classes of many images.

  Args:
    found: float `[..., n, 5]`: boxes with their scores last, in any order. The first of equal
      scores counts as the higher one. A score of -inf marks an empty place.
    threshold: the overlap at which the box of the lower score is dropped.

  Returns:
    bool `[..., n]`.

  Raises:
    ValueError: a score is nan.

  >>> found = np.array([[0, 0, 9, 9, 0.9], [0, 0, 9, 19, 0.8], [50, 0, 59, 9, 0.95]])
  >>> suppress_groups(found, 0.5).tolist()
  [True, False, True]
  """
  if np.isnan(found[..., 4]).any():
    raise ValueError(f'{np.isnan(found[..., 4]).sum():,} scores are nan')
  groups = found.reshape(math.prod(found.shape[:-2]), *found.shape[-2:])  # [G, n, 5]
  kept = np.empty(groups.shape[:2], bool)
  for start in range(0, len(groups), _GROUPS_AT_ONCE):
    part = slice(start, start + _GROUPS_AT_ONCE)
    kept[part] = _suppress_part(groups[part], threshold)
  return kept.reshape(found.shape[:-1])


def _suppress_part(found: np.ndarray, threshold: float) -> np.ndarray:
  order = np.argsort(-found[..., 4], axis=1, kind='stable')  # [G, n]
  found = np.take_along_axis(found, order[..., None], axis=1)
  ends, areas = np.moveaxis(found[..., :4], 2, 0), boxes.areas(found)  # [4, G, n], [G, n]
  stays = found[..., 4] > -np.inf
  for rank in range(found.shape[1] - 1):
    (groups,) = np.nonzero(stays[:, rank])
    left, top, right, bottom = ends[:, groups, rank, None]  # [g, 1] each
    lefts, tops, rights, bottoms = ends[:, groups, rank + 1 :]  # [g, n - rank - 1] each
    wide = np.minimum(right, rights) - np.maximum(left, lefts) + 1
    high = np.minimum(bottom, bottoms) - np.maximum(top, tops) + 1
    shared = np.maximum(wide, 0) * np.maximum(high, 0)
    covered = areas[groups, rank, None] + areas[groups, rank + 1 :] - shared
    stays[groups, rank + 1 :] &= shared / covered < threshold
  kept = np.empty_like(stays)
  np.put_along_axis(kept, order, stays, axis=1)
  return kept
