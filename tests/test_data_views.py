"""Views of labelled images: where they lie, that they repeat, whose labels they carry."""

import numpy as np
import pytest
from PIL import Image

from cfn_jax.data import pipeline, streams, views


def make_visit(image, seed=0, record=0, label=0):
  return pipeline.Visit(image, label, record, 'name', streams.make_rng(seed, 0), -1)


def make_image(height, width, seed=0):
  return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def make(crop, px=64, resize_px=96, resize='short_side', mirror=False, **more):
  return views.MakeViews(crop, px, resize_px, resize, mirror, **more)


@pytest.mark.parametrize(('height', 'width'), [(500, 333), (227, 227), (100, 300), (1000, 40)])
def test_scaled_boxes_follow_the_frameworks_rule(height, width):
  rng = np.random.default_rng(0)
  boxes = np.array([views.sample_box(height, width, 227, rng) for _ in range(4000)])
  left, top, right, bottom = boxes.T
  assert left.min() >= 0 and top.min() >= 0 and right.max() <= width and bottom.max() <= height
  side = right - left
  np.testing.assert_allclose(side, bottom - top, atol=1e-9)
  largest = min(2 * 227, height, width)
  smallest = min(0.5 * 227, largest)
  assert smallest - 1e-9 <= side.min() and side.max() <= largest + 1e-9
  if largest > smallest:  # uniform: mean and spread of a uniform draw
    assert side.mean() == pytest.approx((smallest + largest) / 2, abs=(largest - smallest) * 0.02)
    assert side.std() == pytest.approx((largest - smallest) / 12**0.5, rel=0.05)


def test_the_centre_crop_of_an_image_of_its_size_is_that_image():
  image = make_image(96, 120)
  view = make('centre')(make_visit(image))['image']
  np.testing.assert_array_equal(view, image[16:80, 28:92])


def test_random_crops_are_windows_of_the_resized_image_and_reach_every_place():
  image = make_image(10, 12)
  made = views.MakeViews('random', 8, 10, 'short_side', False, draws=400)
  found = made(make_visit(image))['image']
  windows = {image[y : y + 8, x : x + 8].tobytes(): (y, x) for y in range(3) for x in range(5)}
  assert {windows[view.tobytes()] for view in found} == set(windows.values())


def test_half_of_the_views_are_mirrored_where_that_is_asked_for():
  image = make_image(8, 8)
  made = views.MakeViews('random', 8, 8, 'short_side', True, draws=400)
  found = made(make_visit(image))['image']
  mirrored = [np.array_equal(view, image[:, ::-1]) for view in found]
  straight = [np.array_equal(view, image) for view in found]
  assert sum(mirrored) + sum(straight) == 400 and 160 < sum(mirrored) < 240


def test_squashing_gives_a_square_whole_image_as_pillow_does():
  yy, xx = np.mgrid[:200, :300]
  image = np.stack([yy, xx * 0.8, yy * 0.3 + xx * 0.4], axis=-1).astype(np.uint8)  # smooth
  view = make('centre', px=96, resize='squash')(make_visit(image))['image']
  expected = np.asarray(Image.fromarray(image).resize((96, 96), Image.Resampling.BILINEAR))
  assert np.abs(view.astype(int) - expected).max() <= 2
  whole = make('whole', px=96)(make_visit(image))['image']
  np.testing.assert_array_equal(whole, view)


@pytest.mark.parametrize('crop', views.CROPS)
def test_the_same_visit_gives_the_same_views(crop):
  image = make_image(150, 120)
  made = make(crop, mirror=True, draws=3)
  first, again = made(make_visit(image, 5)), made(make_visit(image, 5))
  np.testing.assert_array_equal(first['image'], again['image'])
  assert first['image'].shape == (3, 64, 64, 3) and first['image'].dtype == np.uint8
  other = made(make_visit(image, 6))['image']
  assert crop in ('centre', 'whole') or not np.array_equal(first['image'], other)


def test_labels_of_several_classes_are_those_of_the_record_that_is_shown():
  labels = np.array([[0, 1], [1, 255], [0, 0]], np.uint8)
  made = make('whole', labels=labels)
  assert made(make_visit(make_image(90, 90), record=1))['label'].tolist() == [1, 255]
  one = make('whole')(make_visit(make_image(90, 90), label=7))['label']
  assert one == 7 and one.dtype == np.int32


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'crop': 'corner'}, "crop = 'corner'"),
    ({'crop': 'random', 'resize': 'fit'}, "views.resize = 'fit'"),
    ({'crop': 'random', 'resize_px': 60}, 'views.resize_px = 60: at least'),
  ],
)
def test_views_that_cannot_be_cut_are_refused(arguments, message):
  with pytest.raises(ValueError, match=message):
    make(**arguments)
