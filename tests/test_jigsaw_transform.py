"""What loader processes make of a visit: labels, groups of puzzles, fixed permutations."""

import pickle

import numpy as np
import pytest

from cfn_jax.data import pipeline, streams
from cfn_jax.jigsaw import puzzle, transform
from cfn_jax.jigsaw.permutation_sets import permutations

GEOMETRY = puzzle.Geometry(
  resize_px=32,
  crop_px=30,
  crop_mode='centre',
  cell_px=10,
  tile_px=8,
  grid=3,
  grey_fraction=0.3,
  channel_shift_px=2,
)
SET = permutations.make_permutations(20, ties='random')


def make(puzzles=1, fixed=0, seed=4):
  return transform.MakePuzzle(GEOMETRY, SET, puzzles, fixed, seed)


def visit(record, position=0):
  image = np.random.default_rng(record).integers(256, size=(32, 40, 3), dtype=np.uint8)
  return pipeline.Visit(image, -1, record, f'{record}.jpg', streams.make_rng(0, position), -1)


def test_one_puzzle_has_a_scalar_label_and_k_have_k():
  one, four = make()(visit(0)), make(puzzles=4)(visit(0))
  assert one['tiles'].shape == four['tiles'].shape == (9, 8, 8, 3)
  assert one['label'].shape == () and one['label'].dtype == np.int32
  assert four['label'].shape == (4,) and len(set(four['label'].tolist())) == 4


@pytest.mark.parametrize('puzzles', [1, 3])
def test_examples_of_a_group_have_different_permutations_and_draws(puzzles):
  examples = make(puzzles=puzzles).group(visit(0), 6)
  labels = np.concatenate([np.ravel(example['label']) for example in examples])
  assert len(examples) == 6 and len(set(labels.tolist())) == 6 * puzzles
  in_order = [
    example['tiles']
    if puzzles > 1
    else puzzle.unshuffle(example['tiles'], SET[int(example['label'])])
    for example in examples
  ]
  assert len({tiles.tobytes() for tiles in in_order}) == 6


def test_fixed_permutations_of_an_image_are_the_same_at_every_visit():
  maker = make(fixed=3)
  seen = {}
  for record in range(12):
    visits = [visit(record, position) for position in range(60)]
    seen[record] = {int(maker(each)['label']) for each in visits}
    assert len(seen[record]) == 3
    again = {int(make(fixed=3)(visit(record, p))['label']) for p in range(100, 160)}
    assert again == seen[record]
  assert len({tuple(sorted(labels)) for labels in seen.values()}) > 8  # images differ
  other = {int(make(fixed=3, seed=5)(visit(0, p))['label']) for p in range(60)}
  assert other != seen[0]


def test_one_fixed_permutation_makes_the_label_a_property_of_the_image():
  maker = make(fixed=1)
  for record in range(5):
    assert len({int(maker(visit(record, position))['label']) for position in range(20)}) == 1


def test_the_transform_pickles_to_the_same_puzzles():
  ours, theirs = make(fixed=2), pickle.loads(pickle.dumps(make(fixed=2)))
  for position in range(5):
    one, other = ours(visit(1, position)), theirs(visit(1, position))
    assert one['tiles'].tobytes() == other['tiles'].tobytes() and one['label'] == other['label']
