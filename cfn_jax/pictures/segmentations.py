"""Segmentations: a sheet of test images with truth and prediction, and one image alone.

Classes have the colours of VOC's colour map. Many of its 256 look alike, so large regions carry the
name of their class too.
"""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cfn_jax import names
from cfn_jax.data import mask_files
from cfn_jax.pictures import figures

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

VOID, BACKGROUND = mask_files.VOID, 0
MOST = 12  # images on a sheet
_PER_ROW = 2
_WIDTH, _TALLEST = 2.3, 2.8  # the space of one picture on a sheet, in inches
_TITLE, _HEAD, _GAP = 0.35, 0.22, 0.08
_MIN_SIDE_PX, _MIN_WIDTH_PX = 640, 320  # of a picture of one image; smaller ones are enlarged
_DPI = 110  # as in figures.encode
_LETTER, _SQUARE, _LINE = 0.075, 0.42, 0.175  # of the legend, in inches
_STRENGTH = 0.5  # of the colours over an image
_NAMED_PART = 0.02  # share of a picture; smaller regions are not named
_LONGEST, _NAME_LETTERS = 24, 38  # letters of the name of a class, of an image
_CENTRED: dict[str, Any] = {'ha': 'center', 'va': 'center'}


class Shown(NamedTuple):
  """One image for a sheet."""

  image: np.ndarray  # uint8 [H, W, 3]
  name: str  # of the record
  truth: np.ndarray  # uint8 [H, W]
  answer: np.ndarray  # uint8 [H, W]
  iou: float  # mean over the classes in this image; nan if all of it is void


class _Entry(NamedTuple):
  number: int
  text: str


def draw_sheet(
  path: pathlib.Path, shown: Sequence[Shown], class_names: Sequence[str], *, title: str
) -> None:
  """Draws up to `MOST` images, each with its truth, its prediction and its IoU.

  Args:
    path: .png, .svg or .pdf.
    shown: at least one.
    class_names: the background first.
  """
  shown = sorted(shown[:MOST], key=lambda one: _size(one)[1])  # so that rows have no gaps
  columns = min(_PER_ROW, len(shown))
  rows = [shown[start : start + columns] for start in range(0, len(shown), columns)]
  entries = _list_entries([mask for one in shown for mask in (one.truth, one.answer)], class_names)
  width = (3 * _WIDTH + _GAP) * columns
  across, legend_high = _plan_legend(entries, width)
  heights = [max(_size(one)[1] for one in row) + _HEAD + _GAP for row in rows]
  high = _TITLE + sum(heights) + legend_high
  figure = figures.make(width, high)
  figure.set_layout_engine('none')  # computing a layout takes seconds
  figure.text(0.5, 1 - 0.5 * _TITLE / high, names.drawable(title), ha='center', va='center')
  top = high - _TITLE
  for row, row_high in zip(rows, heights):
    for place, one in enumerate(row):
      left = (3 * _WIDTH + _GAP) * place + _GAP / 2
      _draw_three(figure, one, class_names, (left, top, width, high))
    top -= row_high
  _draw_legend(figure, entries, across)
  figures.save(figure, path)


def _draw_three(
  figure: 'Figure',
  one: Shown,
  class_names: Sequence[str],
  place: tuple[float, float, float, float],
) -> None:
  """Draws image, truth and prediction from a left upper corner on.

  Args:
    place: left, top, width and height, in inches.
  """
  left, top, width, high = place
  wide, tall = _size(one)
  score = 'all of it void' if np.isnan(one.iou) else f'IoU {one.iou:.2f}'
  masks = (None, one.truth, one.answer)
  heads = (names.shorten(one.name, _NAME_LETTERS), 'truth', f'answer: {score}')
  for number, (mask, head) in enumerate(zip(masks, heads)):
    middle = left + (number + 0.5) * _WIDTH
    figure.text(
      middle / width, (top - _HEAD / 2) / high, names.drawable(head), fontsize=7, **_CENTRED
    )
    bottom = top - _HEAD - tall
    axes = figure.add_axes(
      ((middle - wide / 2) / width, bottom / high, wide / width, tall / high), aspect='auto'
    )
    axes.axis('off')
    if mask is None:
      axes.imshow(one.image, aspect='auto')
    else:
      axes.imshow(mask_files.COLOURS[mask], aspect='auto', interpolation='nearest')
      _name_regions(axes, mask, class_names, font_size=6, px_per_inch=mask.shape[1] / wide)


def draw_image(
  path: pathlib.Path, image: np.ndarray, answer: np.ndarray, class_names: Sequence[str]
) -> None:
  """Draws one image under the colours of a prediction, and a legend with the share of each class.

  The image has its own size or a whole multiple of it. The background stays clear.

  Args:
    path: .png, .svg or .pdf.
    image: uint8 `[H, W, 3]`.
    answer: uint8 `[H, W]`.
    class_names: the background first.
  """
  height, width = image.shape[:2]
  times = max(1, -(-_MIN_SIDE_PX // max(height, width)))
  high, wide = times * height, times * width
  entries = _list_entries([answer], class_names, parts=True)
  across, legend_high = _plan_legend(entries, max(wide, _MIN_WIDTH_PX) / _DPI)
  below = round(legend_high * _DPI)
  sides = max(wide, _MIN_WIDTH_PX), high + below
  # A little more than whole pixels: a division that rounds down would cut one off.
  figure = figures.make((sides[0] + 0.01) / _DPI, (sides[1] + 0.01) / _DPI)
  figure.set_layout_engine('none')
  left = (sides[0] - wide) // 2
  axes = figure.add_axes(
    (left / sides[0], below / sides[1], wide / sides[0], high / sides[1]),
  )
  axes.axis('off')
  axes.imshow(overlay(image, answer), aspect='auto', interpolation='nearest')
  font_size = max(7.0, min(high, wide) / 70)
  _name_regions(axes, answer, class_names, font_size=font_size, px_per_inch=_DPI / times)
  _draw_legend(figure, entries, across, clear=BACKGROUND)
  figures.save(figure, path)


def overlay(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
  """Mixes an image, uint8 `[H, W, 3]`, with the colours of a mask; edges of regions stay pure."""
  colours = mask_files.COLOURS[mask]
  edge = np.zeros(mask.shape, bool)
  for later, earlier in ((np.s_[1:], np.s_[:-1]), (np.s_[:, 1:], np.s_[:, :-1])):
    differs = mask[later] != mask[earlier]
    edge[later] |= differs
    edge[earlier] |= differs
  strength = np.where(edge, 1.0, _STRENGTH)[..., None] * (mask != BACKGROUND)[..., None]
  return np.round(image * (1 - strength) + colours * strength).astype(np.uint8)


def _list_entries(
  masks: Sequence[np.ndarray], class_names: Sequence[str], *, parts: bool = False
) -> list[_Entry]:
  """Returns the classes in some masks, in their order, void last."""
  counts = np.sum([np.bincount(mask.ravel(), minlength=256) for mask in masks], axis=0)
  entries = []
  for number in np.flatnonzero(counts).tolist():
    text = 'void' if number == VOID else names.shorten(class_names[number], _LONGEST)
    if parts:
      part = 100 * counts[number] / counts.sum()
      text += f' {part:.1f} %' if part >= 0.05 else ' < 0.1 %'
    entries.append(_Entry(number, text))
  return entries


def _plan_legend(entries: Sequence[_Entry], width: float) -> tuple[int, float]:
  """Returns the number of columns of the legend, and its height in inches."""
  widest = _SQUARE + _LETTER * max(len(entry.text) for entry in entries)
  across = max(1, min(len(entries), int((width - 0.2) / widest)))
  return across, -(-len(entries) // across) * _LINE + 0.15


def _draw_legend(
  figure: 'Figure', entries: Sequence[_Entry], across: int, *, clear: int | None = None
) -> None:
  """Draws the legend; the class `clear` has no colour."""
  from matplotlib.patches import Patch

  colours = [
    'none' if number == clear else tuple((mask_files.COLOURS[number] / 255).tolist())
    for number, _ in entries
  ]
  figure.legend(
    [Patch(facecolor=colour, edgecolor='#808080') for colour in colours],
    [names.drawable(entry.text) for entry in entries],
    loc='lower center',
    ncols=across,
    fontsize=8,
    frameon=False,
    borderaxespad=0.1,
    borderpad=0.2,
    handlelength=1.5,
    columnspacing=1.2,
    labelspacing=0.3,
  )


def _name_regions(
  axes: 'Axes',
  mask: np.ndarray,
  class_names: Sequence[str],
  *,
  font_size: float,
  px_per_inch: float,
) -> None:
  """Writes the name of each class at the widest place of its regions, if they are large.

  Args:
    px_per_inch: pixels of the drawn mask.
  """
  import scipy.ndimage
  from matplotlib import patheffects

  height, width = mask.shape
  for number in np.unique(mask).tolist():
    if number in (BACKGROUND, VOID) or np.mean(mask == number) < _NAMED_PART:
      continue
    name = names.shorten(class_names[number], _LONGEST)
    depth = scipy.ndimage.distance_transform_edt(np.pad(mask == number, 1))[1:-1, 1:-1]
    row, column = np.unravel_index(np.argmax(depth), depth.shape)
    letter = font_size / 72 * px_per_inch
    half = 0.32 * letter * len(name)
    text = axes.text(
      max(half, min(float(column), width - 1 - half)) if 2 * half < width else width / 2,
      max(letter, min(float(row), height - 1 - letter)),
      names.drawable(name),
      fontsize=font_size,
      color='white',
      clip_on=True,
      **_CENTRED,
    )
    text.set_path_effects([patheffects.withStroke(linewidth=1.5, foreground='black')])


def _size(one: Shown) -> tuple[float, float]:
  """Returns the width and height of an image on a sheet, in inches."""
  height, width = one.image.shape[:2]
  scale = min((_WIDTH - _GAP) / width, _TALLEST / height)
  return width * scale, height * scale
