"""Boxes: overlap, mirroring, regression; values worked by hand by the rules of fast-rcnn."""

import jax.numpy as jnp
import numpy as np
import pytest

from cfn_jax.data import boxes


def test_overlap_counts_pixels_with_both_ends():
  found = boxes.overlaps(
    np.array([[0, 0, 9, 9], [9, 9, 9, 9]]),
    np.array([[0, 0, 9, 19], [5, 5, 14, 14], [10, 0, 19, 9], [0, 0, 0, 0]]),
  )
  np.testing.assert_allclose(found, [[0.5, 25 / 175, 0, 0.01], [0.005, 0.01, 0, 0]])


@pytest.mark.parametrize(
  ('proposal', 'truth', 'target'),
  [
    ([10, 20, 29, 59], [12, 16, 33, 63], [3 / 19, 0, np.log(21 / 19), np.log(47 / 39)]),
    ([0, 0, 99, 49], [0, 0, 99, 49], [0, 0, 0, 0]),
    ([50, 50, 60, 60], [40, 45, 79, 64], [0.45, -0.05, np.log(3.9), np.log(1.9)]),
  ],
)
def test_targets_and_their_way_back(proposal, truth, target):
  found = boxes.encode(np.array([proposal]), np.array([truth]))
  np.testing.assert_allclose(found, [target], atol=1e-12)
  for xp, atol in ((np, 1e-9), (jnp, 1e-4)):
    back = boxes.decode(xp.asarray([proposal], float), xp.asarray(found), xp)
    np.testing.assert_allclose(back, [truth], atol=atol)


def test_mirroring_twice_is_the_identity_and_turns_the_way_of_the_centre():
  rng = np.random.default_rng(0)
  corners = np.sort(rng.integers(0, 200, (50, 2, 2)), axis=1)
  found = corners.reshape(50, 4)[:, [0, 1, 2, 3]]
  np.testing.assert_array_equal(boxes.mirror(boxes.mirror(found, 211), 211), found)
  others = found + rng.integers(1, 9, 4) * [0, 0, 1, 1]
  wide = found + np.array([0, 0, 3, 3])
  turned = boxes.encode(boxes.mirror(wide, 211), boxes.mirror(others, 211))
  np.testing.assert_allclose(
    turned[10:], (boxes.encode(wide, others) * [-1, 1, 1, 1])[10:], atol=1e-9
  )


def test_clipping_keeps_ends_inside():
  found = boxes.clip(np.array([[371.3, 274.9, 588.7, 465.1], [-3.0, -1, 2, 2]]), 375, 500)
  np.testing.assert_allclose(found, [[371.3, 274.9, 499, 374], [0, 0, 2, 2]])
