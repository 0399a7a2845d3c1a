"""Fast R-CNN's rules by known values: overlap, moves, loss, scales, levels, cells, roles."""

import json

import numpy as np
import pytest

from cfn_jax.data import boxes, canvases
from cfn_jax.evaluation.detection import roles, transform
from cfn_jax.models import layers


@pytest.fixture(scope='module')
def rules(shared_root):
  return json.loads(shared_root('golden/fast_rcnn_rules.json').read_text())


def test_overlaps(rules):
  given = np.array(rules['overlap']['boxes'])
  np.testing.assert_allclose(boxes.overlaps(given, given), rules['overlap']['matrix'], rtol=1e-12)


def test_moves_of_boxes_there_and_back(rules):
  for case in rules['box_targets']:
    proposal, truth = np.array([case['proposal']]), np.array([case['truth']])
    if case['target'] is None:  # one pixel wide: never trained on
      assert len(roles.find_candidates(truth, proposal).boxes) == 1
      continue
    np.testing.assert_allclose(boxes.encode(proposal, truth)[0], case['target'], atol=1e-12)
  for case in rules['box_decoding']:
    moved = boxes.decode(np.array(case['proposal']), np.array(case['delta']))
    np.testing.assert_allclose(moved, case['box'], rtol=1e-9, atol=1e-9)
    clipped = boxes.clip(moved, np.array(375), np.array(500))
    np.testing.assert_allclose(clipped, case['clipped_to_500x375'], rtol=1e-9, atol=1e-9)
  case = rules['mirrored']
  assert boxes.mirror(np.array([case['box']]), case['width']).tolist() == [case['mirrored']]


def test_sizes_of_images(rules):
  for case in rules['image_scale']:
    native = np.array([[case['height'], case['width']]], np.int32)
    sizes = canvases.Sizes.of(native, (case['short_side'],), case['longest'])
    assert sizes.scales[0, 0] == pytest.approx(case['scale'], rel=1e-12)
    assert sizes.sides[0, 0].tolist() == case['size'][::-1]


def test_each_region_is_seen_at_its_scale(rules):
  case = rules['pyramid_level']
  width, height = case['image']
  native = np.array([[height, width]], np.int32)
  scales = canvases.Sizes.of(native, tuple(case['short_sides']), 2000).scales[0]
  given = np.array([each['roi'] for each in case['rois']], np.float32)
  levels = transform.choose_levels(given, scales)
  assert levels.tolist() == [each['level'] for each in case['rois']]


def test_ends_are_rounded_half_away_from_zero(rules):
  """A region of one cell reads the cell of its corner; one beyond the map is empty."""
  maps = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 8, 1)
  for case in rules['round_half_away']:
    region = np.array([[0, case['x'], 0, case['x'], 0]], np.float32)
    (found,) = np.asarray(layers.roi_max_pool(maps, region, scale=1 / 16, size=1)).ravel()
    assert found == (case['cell'] + 1 if case['cell'] >= 0 else 0), case


def test_roles_by_overlap(rules):
  rule = roles.Roles(64, 0.25, 0.5, 0.1, 0.5)
  for case in rules['roles']:
    objects, others = rule.draw(np.array([case['overlap']]), np.random.default_rng(0))
    drawn = {(1, 0): 'foreground', (0, 1): 'background', (0, 0): 'not drawn'}
    assert drawn[len(objects), len(others)] == case['role'], case
