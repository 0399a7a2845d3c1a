"""Detections on images: a sheet of test images with right and wrong boxes, and one image alone.

Kinds differ in colour (blue, orange, yellow and grey, which colour-blind people can distinguish)
and in the style of the line.
"""

import itertools
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cfn_jax import names
from cfn_jax.data import voc_objects
from cfn_jax.pictures import figures

if TYPE_CHECKING:
  from matplotlib.axes import Axes

RIGHT, WRONG, IGNORED = 1, 0, -1  # the verdicts of an evaluation
MOST = 12  # images on a sheet
_PER_ROW = 3
_WIDTH, _TALLEST = 4.2, 4.2  # of an image on a sheet, in inches
_MIN_SIDE_PX = 640  # of a picture of one image; smaller ones are enlarged
_DPI = 110  # as in figures.encode: the width of letters depends on it


class Kind(NamedTuple):
  """The look of boxes of one kind."""

  meaning: str
  colour: str
  line: Any
  width: float


FOUND = {
  RIGHT: Kind('found: right', '#4da3ff', 'solid', 1.8),
  WRONG: Kind('found: wrong', '#ff8c1a', (0, (5, 1.5, 1, 1.5)), 1.8),
  IGNORED: Kind('found: a difficult object', '#c9c9c9', (0, (5, 1.5, 1, 1.5)), 1.4),
}
TRUE = Kind('true', '#ffffff', 'solid', 0.8)
MISSED = Kind('true: missed', '#fff04d', (0, (1, 1)), 2.2)
DIFFICULT = Kind('true: difficult', '#ffffff', 'dashed', 1.0)
PLAIN = Kind('found', '#4da3ff', 'solid', 1.8)


class Shown(NamedTuple):
  """One image for a sheet, without boxes that should not appear, such as low scores."""

  image: np.ndarray  # uint8 [H, W, 3]
  name: str  # of the record
  objects: voc_objects.Objects
  missed: np.ndarray  # bool [number of objects]
  found: np.ndarray  # float [n, 5], boxes with their scores last
  classes: np.ndarray  # int [n]
  verdicts: np.ndarray  # int [n]


class _Box(NamedTuple):
  ends: np.ndarray  # float [4]
  kind: Kind
  text: str = ''


def draw_sheet(
  path: pathlib.Path, shown: Sequence[Shown], class_names: Sequence[str], *, title: str
) -> None:
  """Draws up to `MOST` images with found and true boxes, and a legend of the lines.

  Args:
    path: .png, .svg or .pdf.
    shown: at least one.
  """
  shown = shown[:MOST]
  columns = min(_PER_ROW, len(shown))
  rows = [shown[start : start + columns] for start in range(0, len(shown), columns)]
  heights = [min(_TALLEST, max(map(_height, row))) + 0.25 for row in rows]
  figure = figures.make(_WIDTH * columns, sum(heights) + 0.75)
  grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
  for axes in grid.ravel():
    axes.axis('off')
  drawn = []
  for axes, one in zip(grid.ravel(), shown):
    axes.imshow(one.image)
    axes.set_title(names.drawable(names.shorten(one.name, 50)), fontsize=7, pad=3)
    drawn.append((axes, _boxes_of(one, class_names)))
  kinds = (*FOUND.values(), MISSED, TRUE, DIFFICULT)
  legend = figure.legend(
    [_line(kind) for kind in kinds],
    [names.drawable(kind.meaning) for kind in kinds],
    loc='outside lower center',
    ncols=min(len(kinds), 2 * columns),
    fontsize=8,
    facecolor='#4a4a4a',
    labelcolor='white',
    handlelength=4,
  )
  legend.get_frame().set_edgecolor('none')
  figure.suptitle(names.drawable(title), fontsize=9)
  figure.set_dpi(_DPI)
  figure.draw_without_rendering()  # it places the axes, so that labels can be placed in them
  for axes, boxes in drawn:
    _draw_boxes(axes, boxes, font_size=6)
  figures.save(figure, path)


def draw_image(
  path: pathlib.Path,
  image: np.ndarray,
  found: np.ndarray,
  classes: np.ndarray,
  class_names: Sequence[str],
) -> None:
  """Draws one image with its detections, at its own size or a whole multiple of it.

  Args:
    path: .png, .svg or .pdf.
    image: uint8 `[H, W, 3]`.
    found: float `[n, 5]`, boxes with their scores last.
    classes: int `[n]`.
  """
  height, width = image.shape[:2]
  times = max(1, -(-_MIN_SIDE_PX // max(height, width)))
  # A little more than whole pixels: a division that rounds down would cut one off.
  figure = figures.make((times * width + 0.01) / _DPI, (times * height + 0.01) / _DPI)
  figure.set_layout_engine('none')  # the image fills it
  axes = figure.add_axes((0, 0, 1, 1))
  axes.axis('off')
  axes.imshow(image, aspect='auto', interpolation='nearest')
  figure.set_dpi(_DPI)
  figure.draw_without_rendering()
  boxes = [
    _Box(row[:4], PLAIN, _name(class_names, number, row[4])) for row, number in zip(found, classes)
  ]
  _draw_boxes(axes, boxes, font_size=max(7.0, min(height, width) * times / 90))
  figures.save(figure, path)


def _boxes_of(one: Shown, class_names: Sequence[str]) -> list[_Box]:
  """Returns the boxes of an image, the top ones last."""
  boxes = []
  for ends, number, difficult, missed in zip(
    one.objects.boxes, one.objects.classes, one.objects.difficult, one.missed
  ):
    kind = DIFFICULT if difficult else MISSED if missed else TRUE
    boxes.append(_Box(ends, kind, class_names[number] if missed else ''))
  order = np.argsort(one.found[:, 4], kind='stable')
  boxes += [
    _Box(
      one.found[place, :4],
      FOUND[int(one.verdicts[place])],
      _name(class_names, one.classes[place], one.found[place, 4]),
    )
    for place in order
  ]
  return boxes


def _draw_boxes(axes: 'Axes', boxes: Sequence[_Box], *, font_size: float) -> None:
  from matplotlib.patches import Rectangle

  for ends, kind, _ in boxes:
    left, top, right, bottom = ends
    corner, sides = (left - 0.5, top - 0.5), (right - left + 1, bottom - top + 1)
    style: dict[str, Any] = {'fill': False, 'in_layout': False}
    axes.add_patch(
      Rectangle(corner, *sides, edgecolor='black', linewidth=kind.width + 1.2, alpha=0.6, **style)
    )
    axes.add_patch(
      Rectangle(
        corner, *sides, edgecolor=kind.colour, linewidth=kind.width, linestyle=kind.line, **style
      )
    )
  _place_labels(axes, boxes, font_size)


def _place_labels(axes: 'Axes', boxes: Sequence[_Box], font_size: float) -> None:
  """Writes each text at the place around its box where it covers the least of others."""
  figure: Any = axes.figure
  renderer = figure.canvas.get_renderer()
  frame = axes.transData.inverted().transform(axes.bbox.get_points())
  (left, bottom), (right, top) = frame  # y grows downwards
  pixel = (right - left) / axes.bbox.width  # the size of a screen point in the image
  others = [each.ends for each in boxes]
  taken: list[np.ndarray] = []
  for each in reversed(boxes):
    if not each.text:
      continue
    text = axes.text(
      0,
      0,
      names.drawable(each.text),
      fontsize=font_size,
      color='black',
      va='top',
      in_layout=False,
      bbox={'facecolor': each.kind.colour, 'edgecolor': 'none', 'pad': 1, 'alpha': 0.85},
    )
    extent = text.get_window_extent(renderer)
    pad = 2 * pixel
    size = np.array([extent.width, extent.height]) * pixel + 2 * pad
    places = [_keep_inside(at, size, (left, top, right, bottom)) for at in _around(each.ends, size)]
    costs = [_cost(place, rank, taken, others) for rank, place in enumerate(places)]
    place = places[int(np.argmin(costs))]
    taken.append(place)
    text.set_position((place[0] + pad, place[1] + pad))


def _around(ends: np.ndarray, size: np.ndarray) -> list[tuple[float, float]]:
  """Returns possible corners of a label, the best first: above, below, inside, beside."""
  left, top, right, bottom = ends
  wide, high = size
  middle = (left + right - wide) / 2
  columns = (left, right - wide, middle)
  places = [(x, y) for y in (top - high, bottom) for x in columns]
  places += [(x, y) for y in (top, bottom - high) for x in columns]
  steps = np.linspace(top, max(top, bottom - high), 5)
  places += list(itertools.product((right, left - wide, left), steps))
  return places


def _keep_inside(
  place: tuple[float, float], size: np.ndarray, frame: tuple[float, float, float, float]
) -> np.ndarray:
  """Returns a label `[4]`, moved into the picture; a wider one begins at its left."""
  left, top, right, bottom = frame
  x = max(left, min(place[0], right - size[0]))
  y = max(top, min(place[1], bottom - size[1]))
  return np.array([x, y, x + size[0], y + size[1]])


def _cost(
  place: np.ndarray, rank: int, taken: Sequence[np.ndarray], boxes: Sequence[np.ndarray]
) -> float:
  """Returns the cost of a label's place: other labels that it covers, then lines of boxes."""
  area = (place[2] - place[0]) * (place[3] - place[1])
  labels = sum(_shared(place, other) for other in taken) / area
  lines = sum(_crosses(place, other) for other in boxes)
  return 20 * labels + lines + 0.05 * rank


def _shared(first: np.ndarray, second: np.ndarray) -> float:
  sides = np.minimum(first[2:], second[2:]) - np.maximum(first[:2], second[:2])
  return float(np.prod(np.maximum(sides, 0)))


def _crosses(label: np.ndarray, box: np.ndarray) -> bool:
  """Returns whether a box's line crosses a label, which then lies neither outside nor inside."""
  inside = np.all(label[:2] >= box[:2]) and np.all(label[2:] <= box[2:])
  return _shared(label, box) > 0 and not inside


def _line(kind: Kind) -> Any:
  from matplotlib.lines import Line2D

  return Line2D([], [], color=kind.colour, linestyle=kind.line, linewidth=kind.width)


def _height(one: Shown) -> float:
  """Returns the height of an image on a sheet, in inches."""
  return _WIDTH * one.image.shape[0] / one.image.shape[1]


def _name(class_names: Sequence[str], number: int, score: float) -> str:
  return f'{class_names[number]} {score:.2f}'
