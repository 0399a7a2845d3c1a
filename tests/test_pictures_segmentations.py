"""Pictures of segmentations: masks in VOC's colours, every class named, any shape and number."""

import re

import numpy as np
import pytest
from PIL import Image

from cfn_jax.data import mask_files
from cfn_jax.pictures import figures, segmentations

NAMES = ('background', 'cat', 'traffic light', 'price_$1_$x^{1')
COLOURS = mask_files.COLOURS


def make_shown(height=60, width=80, truth=(0, 1, 255), answer=(0, 2), iou=0.25, name='a.jpg'):
  """Makes an image whose masks are upright stripes."""
  masks = [
    np.array(numbers, np.uint8)[np.arange(width) * len(numbers) // width][None].repeat(height, 0)
    for numbers in (truth, answer)
  ]
  return segmentations.Shown(np.full((height, width, 3), 120, np.uint8), name, *masks, iou)


@pytest.fixture
def drawn(monkeypatch):
  """Keeps the figures that are saved."""
  kept = []
  save = figures.save
  monkeypatch.setattr(
    figures, 'save', lambda figure, path: kept.append(figure) or save(figure, path)
  )
  return kept


def legend_of(figure):
  """Returns what the legend says, by text."""
  (legend,) = figure.legends
  return {
    text.get_text(): tuple(np.round(np.array(patch.get_facecolor()[:3]) * 255).astype(int).tolist())
    for text, patch in zip(legend.get_texts(), legend.get_patches())
  }


def test_a_sheet_shows_image_truth_and_answer_in_the_colours_of_voc(tmp_path, drawn):
  one = make_shown()
  segmentations.draw_sheet(tmp_path / 'x.png', [one], NAMES, title='')
  pictures = [axes.images[0].get_array() for axes in drawn[0].axes]
  assert len(pictures) == 3
  for picture, expected in zip(pictures, (one.image, COLOURS[one.truth], COLOURS[one.answer])):
    np.testing.assert_array_equal(picture, expected)
  assert legend_of(drawn[0]) == {
    'background': (0, 0, 0),
    'cat': (128, 0, 0),
    'traffic light': (0, 128, 0),
    'void': (224, 224, 192),
  }


def test_every_word_stands_on_the_sheet(tmp_path, drawn):
  shown = [make_shown(truth=(3, 0)), make_shown(name='b$.jpg', truth=(255,), iou=np.nan)]
  segmentations.draw_sheet(tmp_path / 'x.svg', shown, NAMES, title='12 $ images')
  said = re.findall(r'<!-- (.*?) -->', (tmp_path / 'x.svg').read_text())
  words = ('a.jpg', 'b$.jpg', '12 $ images', 'answer: IoU 0.25', 'answer: all of it void', 'truth')
  for word in (*words, 'price_$1_$x^{1', 'void'):
    assert word in said, (word, said)
  (region,) = drawn[0].axes[1].texts
  assert region.get_text() == r'price_\$1_\$x^{1' and not drawn[0].axes[4].texts
  assert said.count('background') == 1  # in the legend alone


def test_names_stand_in_their_regions_and_stay_in_the_picture(tmp_path, drawn):
  thin = make_shown(truth=(0, *[1] * 20, *[0] * 20), answer=(*[0] * 60, 2, *[0] * 30))
  edges = make_shown(truth=(2, *[0] * 12), answer=(*[0] * 12, 2))
  segmentations.draw_sheet(tmp_path / 'x.png', [thin, edges], NAMES, title='')
  (figure,) = drawn
  named = {}
  for place, axes in enumerate(figure.axes):
    figure.set_dpi(110)
    frame = axes.get_window_extent()
    for text in axes.texts:
      extent = text.get_window_extent(figure.canvas.get_renderer())
      assert frame.x0 <= extent.x0 and extent.x1 <= frame.x1
      assert frame.y0 <= extent.y0 and extent.y1 <= frame.y1
      named[place, text.get_text()] = text.get_position()
  assert set(named) == {(1, 'cat'), (4, 'traffic light'), (5, 'traffic light')}  # no tiny region
  column, row = named[1, 'cat']
  assert thin.truth[int(row), int(column)] == 1


@pytest.mark.slow
def test_any_number_of_classes_has_colours_of_its_own(tmp_path, drawn):
  many = [f'class number {number}' for number in range(255)]
  shown = [
    make_shown(width=255, truth=tuple(range(100)), answer=tuple(range(100, 255))),
    make_shown(71, 500, name='x' * 300),
    make_shown(500, 71),
    make_shown(1, 1, truth=(1,), answer=(1,)),
    *[make_shown(4, 5)] * 9,
  ]
  segmentations.draw_sheet(tmp_path / 'x.png', shown, many, title='')
  (figure,) = drawn
  assert len(figure.axes) == 3 * segmentations.MOST
  legend = legend_of(figure)
  assert len(legend) == len(set(legend.values())) == 256
  extent = figure.legends[0].get_window_extent(figure.canvas.get_renderer())
  assert extent.x0 >= 0 and extent.x1 <= figure.bbox.x1
  assert extent.y1 <= min(axes.get_window_extent().y0 for axes in figure.axes)
  assert max(Image.open(tmp_path / 'x.png').size) < 4000


@pytest.mark.parametrize(
  ('height', 'width', 'times'), [(333, 500, 2), (640, 111, 1), (7, 3, 92), (1, 641, 1)]
)
def test_an_overlay_keeps_the_pixels_of_the_image(tmp_path, drawn, height, width, times):
  image = np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)
  answer = np.zeros((height, width), np.uint8)
  segmentations.draw_image(tmp_path / 'x.png', image, answer, NAMES)
  with Image.open(tmp_path / 'x.png') as picture:
    found = np.asarray(picture.convert('RGB'))
  left = (found.shape[1] - times * width) // 2
  shown = found[: times * height, left : left + times * width]
  at = times // 2
  np.testing.assert_array_equal(shown[at::times, at::times], image)
  assert list(legend_of(drawn[0])) == ['background 100.0 %']
  extent = drawn[0].legends[0].get_window_extent(drawn[0].canvas.get_renderer())
  assert extent.x0 >= 0 and extent.x1 <= found.shape[1]
  assert 0 <= extent.y0 and extent.y1 <= found.shape[0] - times * height


def test_an_overlay_mixes_regions_and_draws_their_edges():
  image = np.full((6, 6, 3), 100, np.uint8)
  mask = np.zeros((6, 6), np.uint8)
  mask[:, 2:] = 2
  mixed = segmentations.overlay(image, mask)
  assert (mixed[:, :2] == 100).all()  # the background stays clear
  assert (mixed[:, 2] == COLOURS[2]).all()
  assert (mixed[:, 3:] == [50, 114, 50]).all()
  np.testing.assert_array_equal(segmentations.overlay(image, mask.T), mixed.swapaxes(0, 1))
  mask[:, :2] = 1
  assert (segmentations.overlay(image, mask)[:, 1] == COLOURS[1]).all()


def test_the_legend_says_the_part_of_each_class(tmp_path, drawn):
  answer = np.zeros((100, 100), np.uint8)
  answer[:25] = 1
  answer[99, 0] = 2
  segmentations.draw_image(tmp_path / 'x.png', np.zeros((100, 100, 3), np.uint8), answer, NAMES)
  assert list(legend_of(drawn[0])) == ['background 75.0 %', 'cat 25.0 %', 'traffic light < 0.1 %']
  assert [text.get_text() for text in drawn[0].axes[0].texts] == ['cat']
