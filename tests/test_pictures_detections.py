"""Pictures of detections: every box and name is there, and can be told from the others."""

import itertools
import re

import numpy as np
import pytest
from PIL import Image

from cfn_jax.data import voc_objects
from cfn_jax.evaluation.detection import average_precision
from cfn_jax.pictures import detections, figures

NAMES = ('cat', 'traffic light', 'price_$1_$x^{1')


def make_shown(height=120, width=160, found=(), truths=(), name='a.jpg'):
  """Makes an image of rows of box, score, class, and of box, class, difficult."""
  objects = voc_objects.Objects(
    np.array([row[0] for row in truths], np.float32).reshape(-1, 4),
    np.array([row[1] for row in truths], np.int32),
    np.array([row[2] for row in truths], bool),
    (height, width),
  )
  boxes = np.array([[*row[0], row[1]] for row in found], float).reshape(-1, 5)
  classes = np.array([row[2] for row in found], int)
  verdicts, missed = average_precision.judge_image(boxes, classes, objects)
  image = np.full((height, width, 3), 120, np.uint8)
  return detections.Shown(image, name, objects, missed, boxes, classes, verdicts)


SHOWN = make_shown(
  found=[([10, 10, 59, 59], 0.91, 0), ([90, 20, 149, 99], 0.45, 1), ([60, 80, 85, 110], 0.7, 2)],
  truths=[
    ([12, 10, 61, 59], 0, False),
    ([60, 10, 85, 40], 2, False),
    ([60, 80, 85, 112], 2, True),
  ],
)


@pytest.fixture
def drawn(monkeypatch):
  """Keeps the figures that are saved."""
  kept = []
  save = figures.save
  monkeypatch.setattr(
    figures, 'save', lambda figure, path: kept.append(figure) or save(figure, path)
  )
  return kept


def lines_of(axes):
  """Returns colour and line style of the boxes, without the dark line below each."""
  return [
    (patch.get_edgecolor()[:3], patch._linestyle, patch.get_bbox().extents.tolist())
    for patch in axes.patches[1::2]
  ]


def test_every_name_and_score_stands_on_the_sheet(tmp_path):
  detections.draw_sheet(tmp_path / 'sheet.svg', [SHOWN], NAMES, title='2 of 3 right $')
  text = (tmp_path / 'sheet.svg').read_text()
  said = re.findall(r'<!-- (.*?) -->', text)
  for words in ('cat 0.91', 'traffic light 0.45', 'price_$1_$x^{1 0.70', 'a.jpg'):
    assert words in said, (words, said)
  assert said.count('price_$1_$x^{1') == 1  # the missed object
  for kind in (*detections.FOUND.values(), detections.MISSED, detections.DIFFICULT):
    assert kind.meaning in said


def test_kinds_differ_in_colour_and_in_line(tmp_path, drawn):
  detections.draw_sheet(tmp_path / 'sheet.png', [SHOWN], NAMES, title='')
  (figure,) = drawn
  lines = lines_of(figure.axes[0])
  assert len(lines) == 6
  right, wrong, missed = (
    next(line for line in lines if line[2] == ends)
    for ends in ([9.5, 9.5, 59.5, 59.5], [89.5, 19.5, 149.5, 99.5], [59.5, 9.5, 85.5, 40.5])
  )
  assert len({line[0] for line in (right, wrong, missed)}) == 3
  assert len({str(line[1]) for line in (right, wrong, missed)}) == 3
  hidden = next(line for line in lines if line[2] == [59.5, 79.5, 85.5, 112.5])
  assert hidden[1] == 'dashed'
  found = [line[2] for line in lines[-3:]]
  assert found[-1] == right[2] and found[0] == wrong[2]  # the highest score lies on top


def test_labels_cover_no_other_and_stay_in_the_picture(tmp_path, drawn):
  same = [([40, 40, 119, 99], 0.9 - n / 10, n % 2) for n in range(6)]
  corners = [([0, 0, 9, 9], 0.5, 1), ([150, 110, 159, 119], 0.4, 1), ([0, 0, 159, 119], 0.3, 0)]
  detections.draw_sheet(tmp_path / 's.png', [make_shown(found=same + corners)], NAMES, title='')
  edges = [([155, 12 * n, 159, 12 * n + 9], 0.5, 1) for n in range(9)]
  detections.draw_sheet(tmp_path / 's.png', [make_shown(found=edges)], NAMES, title='')
  detections.draw_image(
    tmp_path / 'i.png',
    np.zeros((120, 160, 3), np.uint8),
    np.array([[*box, score] for box, score, _ in same + corners]),
    np.array([number for _, _, number in same + corners]),
    NAMES,
  )
  for figure in drawn:
    figure.set_dpi(110)  # as it is written
    axes = figure.axes[0]
    renderer = figure.canvas.get_renderer()
    extents = [text.get_window_extent(renderer) for text in axes.texts]
    assert len(extents) == 9
    for first, second in itertools.combinations(extents, 2):
      assert not first.overlaps(second)
    frame = axes.bbox
    for each in extents:
      assert frame.x0 <= each.x0 and each.x1 <= frame.x1
      assert frame.y0 <= each.y0 and each.y1 <= frame.y1


def test_any_shape_and_number_of_images(tmp_path, drawn):
  shown = [
    make_shown(71, 500, found=[([0, 0, 499, 70], 0.5, 1)], name='wide'),
    make_shown(500, 71, truths=[([0, 0, 70, 499], 2, False)], name='x' * 300),
    make_shown(1, 1, found=[([0, 0, 0, 0], 0.5, 1)]),
    *[make_shown()] * 10,
  ]
  detections.draw_sheet(tmp_path / 'sheet.png', shown, NAMES, title='')
  assert sum(bool(axes.images) for axes in drawn[0].axes) == detections.MOST
  assert max(Image.open(tmp_path / 'sheet.png').size) < 3000
  detections.draw_sheet(tmp_path / 'one.png', shown[1:2], NAMES, title='')
  assert sum(bool(axes.images) for axes in drawn[1].axes) == 1


@pytest.mark.parametrize(
  ('height', 'width', 'times'),
  [(333, 500, 2), (640, 111, 1), (1000, 777, 1), (7, 3, 92), (1, 641, 1)],
)
def test_one_image_keeps_its_pixels(tmp_path, height, width, times):
  rng = np.random.default_rng(0)
  image = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
  detections.draw_image(tmp_path / 'x.png', image, np.empty((0, 5)), np.empty(0, int), NAMES)
  with Image.open(tmp_path / 'x.png') as picture:
    drawn = np.asarray(picture.convert('RGB'))
  assert drawn.shape == (height * times, width * times, 3)
  at = times // 2
  np.testing.assert_array_equal(drawn[at::times, at::times], image)


def test_the_verdicts_are_those_of_the_evaluation():
  for name in ('RIGHT', 'WRONG', 'IGNORED'):
    assert getattr(detections, name) == getattr(average_precision, name)
