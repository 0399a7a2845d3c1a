"""Non-maximum suppression: the rule of the compiled routine of fast-rcnn."""

import json

import numpy as np
import pytest

from cfn_jax.data import boxes
from cfn_jax.evaluation.detection import suppression


def suppress(found, threshold):
  """Returns which boxes stay, by falling score."""
  order = np.argsort(-found[:, 4], kind='stable')
  return order[suppression.suppress_groups(found, threshold)[order]]


def draw(rng, *shape):
  """Draws boxes around few places, with scores among which some are equal."""
  centres = rng.integers(0, 4, (*shape, 2)) * 40 + rng.normal(0, 8, (*shape, 2))
  sides = rng.uniform(10, 60, (*shape, 2))
  scores = rng.integers(0, 15, (*shape, 1)) / 15
  return np.concatenate([centres - sides / 2, centres + sides / 2, scores], axis=-1)


def suppress_plainly(found, threshold):
  waiting = sorted(range(len(found)), key=lambda place: -found[place, 4])  # stable
  kept = []
  while waiting:
    kept.append(waiting.pop(0))
    waiting = [
      place
      for place in waiting
      if boxes.overlaps(found[kept[-1:], :4], found[[place], :4])[0, 0] < threshold
    ]
  return kept


def test_an_overlap_of_the_threshold_is_dropped():
  halves = np.array([[0, 0, 9, 9, 0.9], [0, 0, 9, 19, 0.8]])
  assert suppress(halves, 0.5).tolist() == [0]
  assert suppress(halves, np.nextafter(0.5, 1)).tolist() == [0, 1]


def test_what_is_dropped_drops_nothing():
  row = np.array([[0, 0, 9, 9, 0.7], [4, 0, 13, 9, 0.8], [8, 0, 17, 9, 0.9], [12, 0, 21, 9, 0.6]])
  assert suppress(row, 0.3).tolist() == [2, 0]


def test_equal_scores_keep_their_order():
  same = np.tile([0.0, 0, 9, 9, 0.5], (40, 1))
  same[:, :4] += 100 * (np.arange(40) // 2)[:, None]
  assert suppress(same, 0.3).tolist() == list(range(0, 40, 2))


@pytest.mark.parametrize('threshold', [0.1, 0.3, 0.5, 1.0])
def test_many_groups_at_once_are_suppressed_as_one_by_one(threshold, monkeypatch):
  monkeypatch.setattr(suppression, '_GROUPS_AT_ONCE', 7)
  found = draw(np.random.default_rng(0), 4, 5, 30)
  kept = suppression.suppress_groups(found, threshold)
  for image in range(4):
    for number in range(5):
      expected = suppress_plainly(found[image, number], threshold)
      assert np.flatnonzero(kept[image, number]).tolist() == sorted(expected)
      assert suppress(found[image, number], threshold).tolist() == expected


def test_empty_places_stay_empty_and_drop_nothing():
  found = draw(np.random.default_rng(1), 3, 12)
  padded = np.concatenate([found, found[:, :6]], axis=1)
  padded[:, 12:, :4] += 1000 * np.arange(6)[:, None]
  padded[:, 12:, 4] = -np.inf
  kept = suppression.suppress_groups(padded, 0.3)
  assert not kept[:, 12:].any()
  np.testing.assert_array_equal(kept[:, :12], suppression.suppress_groups(found, 0.3))


def test_no_box_and_no_group_are_fine():
  assert suppress(np.empty((0, 5)), 0.3).tolist() == []
  assert suppression.suppress_groups(np.empty((0, 20, 100, 5)), 0.3).shape == (0, 20, 100)
  with pytest.raises(ValueError, match='1 scores are nan'):
    suppress(np.full((1, 5), np.nan), 0.3)


def test_known_cases_agree(shared_root):
  case = json.loads(shared_root('golden/fast_rcnn_rules.json').read_text())['suppression']
  found = np.array(case['detections'])
  for threshold, name in ((0.3, 'kept_at_0_3'), (0.5, 'kept_at_0_5')):
    assert suppress(found, threshold).tolist() == case[name]
