"""Boxes in an image: how much two of them overlap, and how one is encoded relative to another.

A box is x1, y1, x2, y2 in pixels from 0, ends included, float `[..., 4]`: it covers x2 - x1 + 1
pixels of a row, as in the VOC devkit. Source: Fast R-CNN (fast-rcnn, `lib/utils`). The functions
accept NumPy and JAX arrays.
"""

from typing import Any

import numpy as np

TINY = 1e-14  # the width of an empty box, so that nothing is divided by zero


def areas(boxes: Any) -> Any:
  """Returns the number of pixels `[...]` that boxes `[..., 4]` cover.

  >>> areas(np.array([0, 0, 9, 19]))
  np.int64(200)
  """
  return (boxes[..., 2] - boxes[..., 0] + 1) * (boxes[..., 3] - boxes[..., 1] + 1)


def overlaps(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
  """Returns the intersection over union of boxes: `[n, 4]` and `[m, 4]` to float64 `[n, m]`.

  >>> overlaps(np.array([[0, 0, 9, 9]]), np.array([[0, 0, 9, 19], [10, 0, 19, 9]])).tolist()
  [[0.5, 0.0]]
  """
  boxes, others = np.asarray(boxes, np.float64), np.asarray(others, np.float64)
  low = np.maximum(boxes[:, None, :2], others[None, :, :2])
  high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
  shared = np.prod(np.maximum(0, high - low + 1), axis=-1)  # [n, m]
  shares: np.ndarray = shared / (areas(boxes)[:, None] + areas(others)[None] - shared)
  return shares


def mirror(boxes: np.ndarray, width: int) -> np.ndarray:
  """Returns boxes `[n, 4]` in the image mirrored left to right.

  >>> mirror(np.array([[10, 20, 109, 219]]), 500).tolist()
  [[390, 20, 489, 219]]
  """
  return np.stack(
    [width - 1 - boxes[:, 2], boxes[:, 1], width - 1 - boxes[:, 0], boxes[:, 3]], axis=-1
  )


def clip(boxes: Any, height: Any, width: Any, xp: Any = np) -> Any:
  """Moves the ends of boxes `[..., 4]` into an image; sides are numbers, or arrays to broadcast."""
  ends = xp.stack([width, height, width, height], axis=-1) - 1
  return xp.clip(boxes, 0, ends)


def encode(proposals: np.ndarray, truths: np.ndarray) -> np.ndarray:
  """Returns the regression targets float64 `[n, 4]` that move proposals onto boxes, both `[n, 4]`.

  They are the offset of the centre in widths and heights of the proposal, and the logarithms of the
  growth. Widths are x2 - x1 here.
  """
  x, y, width, height = _centre(np.asarray(proposals, np.float64))
  true_x, true_y, true_width, true_height = _centre(np.asarray(truths, np.float64))
  return np.stack(
    [
      (true_x - x) / width,
      (true_y - y) / height,
      np.log(true_width / width),
      np.log(true_height / height),
    ],
    axis=-1,
  )


def decode(proposals: Any, deltas: Any, xp: Any = np) -> Any:
  """Moves proposals `[..., 4]` by the targets `[..., 4]` of `encode`; their shapes broadcast."""
  x, y, width, height = _centre(proposals)
  x, y = x + deltas[..., 0] * width, y + deltas[..., 1] * height
  width, height = width * xp.exp(deltas[..., 2]), height * xp.exp(deltas[..., 3])
  return xp.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=-1)


def _centre(boxes: Any) -> tuple[Any, Any, Any, Any]:
  width = boxes[..., 2] - boxes[..., 0] + TINY
  height = boxes[..., 3] - boxes[..., 1] + TINY
  return boxes[..., 0] + width / 2, boxes[..., 1] + height / 2, width, height
