"""Images on canvases: Fast R-CNN's scales, few canvases, one for all images of a batch."""

import numpy as np
import pytest

from cfn_jax.data import canvases, streams

NATIVE = np.array([(375, 500), (500, 375), (333, 500), (500, 333), (375, 500), (281, 500)] * 4)
SCALES = (480, 576, 688)


@pytest.mark.parametrize(
  ('height', 'width', 'short', 'longest', 'scale', 'sides'),
  [
    (375, 500, 600, 1000, 1.6, (600, 800)),
    (333, 500, 600, 1000, 600 / 333, (600, 901)),
    (500, 375, 600, 1000, 1.6, (800, 600)),
    (281, 500, 600, 1000, 2.0, (562, 1000)),  # 600 would make the long side 1068
    (200, 500, 600, 1000, 2.0, (400, 1000)),
    (375, 500, 1200, 2000, 3.2, (1200, 1600)),
    (270, 500, 1200, 2000, 4.0, (1080, 2000)),
    (375, 500, 480, 2000, 1.28, (480, 640)),
    (300, 500, 600, 1000, 2.0, (600, 1000)),  # the long side is just what it may be
    (1, 3000, 600, 1000, 1 / 3, (1, 1000)),  # no side vanishes
  ],
)
def test_the_short_side_decides_unless_the_long_one_becomes_too_long(
  height, width, short, longest, scale, sides
):
  assert canvases.find_scale(height, width, short, longest) == pytest.approx(scale, rel=1e-12)
  sizes = canvases.Sizes.of(np.array([[height, width]]), (short,), longest)
  assert tuple(sizes.sides[0, 0]) == sides
  assert sizes.scales[0, 0] == pytest.approx(scale, rel=1e-12)


def test_one_canvas_is_the_largest_and_more_need_less_area():
  sides = np.array([(600, 800)] * 50 + [(800, 600)] * 50 + [(600, 1000)] * 3)
  largest = np.array([900, 1000])
  areas = []
  for most in range(1, 6):
    found = canvases.choose(sides, most, largest)
    assert 1 <= len(found) <= most
    assert [900, 1000] in found.tolist()
    areas.append(sum(np.prod(canvases.find(found, each)) for each in sides))
  assert areas[0] == len(sides) * 900_000
  assert areas == sorted(areas, reverse=True) and areas[3] < 0.6 * areas[0]
  # Sizes that few batches need are not worth a program.
  assert canvases.choose(np.array([(600, 800)] * 99), 6, np.array([600, 800])).tolist() == [
    [600, 800]
  ]


def test_the_smallest_canvas_that_holds_all_is_taken():
  made = np.array([(600, 800), (800, 600), (1000, 1000)], np.int32)
  assert canvases.find(made, np.array([600, 800])) == (600, 800)
  assert canvases.find(made, np.array([[1, 600], [800, 2]])) == (800, 600)
  assert canvases.find(made, np.array([[[600, 800]], [[601, 2]]])) == (1000, 1000)


def make_training(batch_size, most, seed=3):
  sizes = canvases.Sizes.of(NATIVE, SCALES, 1000)
  return canvases.TrainingFrames(sizes, seed, batch_size, most)


@pytest.mark.parametrize(('batch_size', 'most'), [(1, 4), (2, 4), (3, 1), (4, 6)])
def test_training_batches_lie_on_one_of_few_canvases_that_holds_them(batch_size, most):
  frames = make_training(batch_size, most)
  assert 1 <= len(frames.canvases) <= most
  kinds = {tuple(each) for each in frames.canvases.tolist()}
  for first in range(0, 60 * batch_size, batch_size):
    places = range(first, first + batch_size)
    found = {frames.canvas(place) for place in places}
    assert len(found) == 1 and found <= kinds  # of a whole batch
    needed = np.zeros(2, int)
    for place in places:
      record = streams.record_index(2 * len(NATIVE), seed=3, position=place) % len(NATIVE)
      needed = np.maximum(needed, frames.sizes.sides[record, frames.level(place)])
    (height, width) = found.pop()
    assert height >= needed[0] and width >= needed[1]
    held = [each for each in kinds if each[0] >= needed[0] and each[1] >= needed[1]]
    assert height * width == min(h * w for h, w in held)  # no more than is needed


def test_training_draws_each_scale_equally_often_by_seed_and_place_alone():
  frames = make_training(2, 4)
  levels = [frames.level(place) for place in range(900)]
  assert min(np.bincount(levels)) > 240 and len(set(levels)) == 3
  assert levels[7] == make_training(5, 1).level(7)
  assert levels != [make_training(2, 4, seed=4).level(place) for place in range(900)]
  # A level says nothing of the image's own draws.
  draws = [streams.make_rng(3, place).integers(3) for place in range(900)]
  assert np.mean(np.array(draws) == levels) < 0.45


@pytest.mark.parametrize(('batch_size', 'most'), [(1, 6), (3, 2), (5, 1), (64, 3)])
def test_test_batches_lie_on_one_of_few_canvases_at_all_their_scales(batch_size, most):
  sizes = canvases.Sizes.of(NATIVE, SCALES, 1000)
  frames = canvases.TestFrames(sizes, batch_size, most)
  assert 1 <= len(frames.canvases) <= most
  kinds = {tuple(each) for each in frames.canvases.tolist()}
  for first in range(0, len(NATIVE), batch_size):
    places = range(first, min(first + batch_size, len(NATIVE)))
    found = {frames.canvas(place) for place in places}
    assert len(found) == 1 and found <= kinds
    (canvas,) = found
    assert (sizes.sides[places.start : places.stop] <= canvas).all()


def test_an_image_lies_at_the_top_left_of_a_black_canvas():
  image = np.full((4, 6, 3), 200, np.uint8)
  made = canvases.place(image, np.array([8, 12]), (10, 13))
  assert made.shape == (10, 13, 3) and made.dtype == np.uint8
  assert (made[:8, :12] == 200).all()
  assert not made[8:].any() and not made[:, 12:].any()


def test_resizing_keeps_where_things_are():
  image = np.zeros((20, 30, 3), np.uint8)
  image[:, :, 0] = np.arange(30) * 8
  image[:, :, 1] = np.arange(20)[:, None] * 8
  made = canvases.place(image, np.array([40, 60]), (40, 60)).astype(float)
  # The centre of pixel i lies at 2 i + 0.5 now.
  between = made[:, 2:-2].reshape(40, 28, 2, 3).mean(2)
  np.testing.assert_allclose(between[0, :, 0], np.arange(1, 29) * 8, atol=1)
