"""Proposals without looking at the image: a grid of windows for its height and width.

Six sizes of three shapes, about 2,000 windows per image. docs/data.md has their recall. Used by
proposals.py and prepare_proposals.py.
"""

import numpy as np

LEAST_SIDE_PX = 2  # of a proposal: regression divides by its width less one
_LARGEST = 0.9  # side of the largest square, in sides of a square as large as the image
_SMALLER = 0.65  # factor from one size to the next
_SIZES = 6
_SHAPES = (0.5, 1.0, 2.0)  # width by height
_STEP = 0.47  # largest step from a window to the next, in its widths and heights

PARAMETERS = (_LARGEST, _SMALLER, _SIZES, _SHAPES, _STEP)


def make_windows(height: int, width: int) -> np.ndarray:
  """Returns the windows of an image, the whole image first, then large before small ones.

  Returns:
    float32 `[m, 4]`: distinct x1, y1, x2, y2 in whole pixels from 0, ends included.

  >>> make_windows(160, 213).shape, make_windows(160, 213)[:2].tolist()
  ((1923, 4), [[0.0, 0.0, 212.0, 159.0], [0.0, 0.0, 116.0, 159.0]])
  """
  made = [np.array([[0, 0, width - 1, height - 1]])]
  for size in _LARGEST * _SMALLER ** np.arange(_SIZES) * np.sqrt(height * width):
    for shape in _SHAPES:
      xs, wide = _place(width, size * np.sqrt(shape))
      ys, high = _place(height, size / np.sqrt(shape))
      y, x = (each.ravel() for each in np.meshgrid(ys, xs, indexing='ij'))
      made.append(np.stack([x, y, x + wide - 1, y + high - 1], axis=1))
  windows = np.concatenate(made)
  keys = windows[:, [1, 3]] * width + windows[:, [0, 2]]  # the place of each corner in the image
  _, first = np.unique(keys @ [height * width, 1], return_index=True)
  return windows[np.sort(first)].astype(np.float32)


def _place(side: int, wanted: float) -> tuple[np.ndarray, int]:
  """Returns where windows begin along a side of the image, spaced evenly, and their side."""
  own = min(side, max(LEAST_SIDE_PX, round(wanted)))
  count = int(np.ceil((side - own) / (_STEP * own))) + 1
  return np.rint(np.linspace(0, side - own, count)).astype(np.int64), own
