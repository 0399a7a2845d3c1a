"""What trains: regions by their overlap with objects, and by how much their boxes must move."""

import numpy as np
import pytest

from cfn_jax.data import boxes, streams
from cfn_jax.errors import CfnError
from cfn_jax.evaluation.detection import roles

RULE = roles.Roles(8, 0.25, 0.5, 0.1, 0.5)


def draw(overlap, rule=RULE, seed=0):
  return rule.draw(np.asarray(overlap), streams.make_rng(seed, 0))


# ---- the rule


@pytest.mark.parametrize(
  ('overlap', 'role'),
  [
    (1.0, 'object'),
    (0.5, 'object'),
    (0.49999, 'background'),
    (0.3, 'background'),
    (0.1, 'background'),
    (0.0999, ''),
    (0.0, ''),
  ],
)
def test_the_overlap_decides_the_role(overlap, role):
  front, back = draw([overlap])
  assert (len(front), len(back)) == (role == 'object', role == 'background')


def test_a_gap_between_the_roles_is_drawn_for_neither():
  front, back = draw([0.6, 0.7, 0.45, 0.2], roles.Roles(8, 0.5, 0.7, 0.1, 0.4))
  assert front.tolist() == [1] and back.tolist() == [3]


@pytest.mark.parametrize(
  ('objects', 'others', 'wanted'),
  [
    (50, 50, (2, 6)),  # a quarter of 8
    (1, 50, (1, 7)),  # the background fills up
    (0, 50, (0, 8)),
    (50, 3, (2, 3)),  # objects do not
    (50, 0, (2, 0)),
    (0, 0, (0, 0)),
    (2, 6, (2, 6)),
  ],
)
def test_a_quarter_shows_objects_and_the_rest_the_background(objects, others, wanted):
  overlap = np.repeat([0.9, 0.3, 0.01], [objects, others, 20])
  front, back = draw(overlap)
  assert (len(front), len(back)) == wanted
  assert len({*front, *back}) == sum(wanted)  # each once
  assert (overlap[front] == 0.9).all() and (overlap[back] == 0.3).all()


def test_every_region_of_a_role_is_equally_likely():
  overlap = np.repeat([0.9, 0.3], [5, 12])
  seen = np.zeros(17)
  for seed in range(2000):
    np.add.at(seen, np.concatenate(draw(overlap, seed=seed)), 1)
  np.testing.assert_allclose(seen[:5], 2000 * 2 / 5, rtol=0.12)
  np.testing.assert_allclose(seen[5:], 2000 * 6 / 12, rtol=0.12)


@pytest.mark.parametrize(
  ('low', 'high', 'least'), [(0.5, 0.5, 0.5), (0.6, 0.5, 0.5), (-0.1, 0.5, 0.5), (0.1, 0.6, 0.5)]
)
def test_background_that_is_none_is_refused(low, high, least):
  with pytest.raises(CfnError, match=f'regions.background_low = {low}, background_high = {high}'):
    roles.Roles(8, 0.25, least, low, high)


# ---- candidates


def test_objects_come_first_and_regions_belong_to_the_nearest_one():
  objects = np.array([[0, 0, 9, 9], [0, 0, 9, 19]], np.float32)
  found = roles.find_candidates(objects, np.array([[0, 0, 9, 15], [0, 0, 9, 10], [90, 90, 95, 95]]))
  np.testing.assert_array_equal(found.boxes[:2], objects)
  np.testing.assert_allclose(found.overlap, [1, 1, 160 / 200, 100 / 110, 0])
  assert found.nearest[:4].tolist() == [0, 1, 1, 0]


def test_regions_under_two_pixels_are_never_drawn():
  thin = np.array([[5, 5, 5, 25], [5, 5, 25, 5], [5, 5, 5.5, 25], [5, 5, 6, 6]], np.float32)
  found = roles.find_candidates(thin[:1], thin[1:])
  np.testing.assert_array_equal(found.boxes, thin[3:])
  assert len(roles.find_candidates(np.zeros((0, 4)), thin[:3]).boxes) == 0
  moves = roles.measure_moves([(thin[:1], np.array([0]), thin)], 1, 0.01)
  assert np.abs(moves.means).max() < 1e3  # not 1e14


def test_an_image_without_objects_has_candidates_that_overlap_with_none():
  found = roles.find_candidates(np.zeros((0, 4), np.float32), np.array([[0, 0, 9, 9.0]]))
  assert found.overlap.tolist() == [0]
  front, back = draw(found.overlap, roles.Roles(8, 0.25, 0.5, 0.0, 0.5))
  assert not len(front) and back.tolist() == [0]


# ---- moves


def test_moves_are_normalised_by_the_doubled_lists_own_means_and_deviations():
  rng = np.random.default_rng(0)
  width, images, told = 200, [], {1: [], 2: [], 3: []}
  for _ in range(12):
    first = rng.integers(0, 90, (4, 2))
    objects = np.concatenate([first, first + rng.integers(20, 90, (4, 2))], 1).astype(np.float32)
    objects, classes = objects[:3], np.array([0, 1, 1])
    near = np.tile(objects, (30, 1)) + rng.integers(-15, 16, (90, 4))
    near = near[(near[:, :2] >= 0).all(1) & (near[:, 2:] - near[:, :2] >= 1).all(1)]
    images.append((objects, classes, near.astype(np.float32)))
    for mirrored in (False, True):
      own, regions = objects, np.concatenate([objects, near])
      if mirrored:
        own, regions = boxes.mirror(own, width), boxes.mirror(regions, width)
      for region in regions:
        shares = boxes.overlaps(region[None], own)[0]
        if shares.max() >= 0.5:
          best = shares.argmax()
          old, new = region.astype(float), own[best].astype(float)
          x, y = ((old + np.roll(old, 2)) / 2)[:2]
          wide, high = old[2] - old[0], old[3] - old[1]
          x_new, y_new = ((new + np.roll(new, 2)) / 2)[:2]
          told[classes[best] + 1].append(
            (
              (x_new - x) / wide,
              (y_new - y) / high,
              np.log((new[2] - new[0]) / wide),
              np.log((new[3] - new[1]) / high),
            )
          )
  found = roles.measure_moves(images, 3, 0.5)
  assert found.means.shape == found.stds.shape == (4, 4)
  for label in (1, 2):
    np.testing.assert_allclose(found.means[label], np.mean(told[label], 0), atol=1e-5)
    np.testing.assert_allclose(found.stds[label], np.std(told[label], 0), rtol=1e-4)
  assert not found.means[[0, 3]].any() and (found.stds[[0, 3]] == 1).all()  # without a region


def test_a_class_whose_regions_never_move_is_not_scaled():
  own = np.array([[0, 0, 9, 9], [20, 20, 49, 39]], np.float32)
  found = roles.measure_moves([(own, np.array([0, 1]), own)], 2, 0.5)
  assert not found.means.any() and (found.stds == 1).all()
