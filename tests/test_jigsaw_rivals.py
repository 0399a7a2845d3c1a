"""What other pretext tasks need of the puzzle: short rows, gaps, rotations, colours, occluders."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cfn_jax import command
from cfn_jax.data import pipeline, streams
from cfn_jax.jigsaw import colours, puzzle, questions, transform
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import task as jigsaw_task
from cfn_jax.models import cfn
from cfn_jax.training import state as states

GEOMETRY = puzzle.Geometry(
  resize_px=64,
  crop_px=63,
  crop_mode='centre',
  cell_px=21,
  tile_px=16,
  grid=3,
  grey_fraction=0.0,
  channel_shift_px=2,
)
IMAGE = np.random.default_rng(0).integers(256, size=(70, 90, 3), dtype=np.uint8)


def sample(geometry, rows, *, puzzles=1, labels=None, seed=0):
  rng = streams.make_rng(0, seed)
  return puzzle.sample_puzzle(IMAGE, geometry, rows, rng, puzzles=puzzles, labels=labels)


# ---- rows, gaps and rotations


def test_a_short_row_shows_its_tiles_as_they_are_cut_in_reading_order():
  pairs = questions.ask_relative_position(3, 'star')
  for label in range(8):
    labels = np.array([label], np.int32)
    shown = sample(GEOMETRY, pairs.rows, labels=labels)
    whole = sample(GEOMETRY, np.arange(9)[None], labels=np.array([0], np.int32))
    assert shown.tiles.shape == (2, 16, 16, 3)
    np.testing.assert_array_equal(shown.tiles, whole.tiles[pairs.rows[label]])


def test_a_gap_moves_cells_apart_by_its_pitch():
  rows = np.arange(9)[None]
  fields = {'channel_shift_px': 0, 'cell_px': 12, 'tile_px': 12, 'cell_gap_px': 9}
  geometry = dataclasses.replace(GEOMETRY, **fields)
  assert (geometry.pitch_px, geometry.extent_px) == (21, 54)
  made = sample(geometry, rows)
  margin = (63 - 54) // 2
  for number, tile in enumerate(made.tiles):
    y, x = (margin + 21 * place for place in divmod(number, 3))
    np.testing.assert_array_equal(tile, made.crop[y : y + 12, x : x + 12])
  with pytest.raises(ValueError, match=r'need a crop of 66 px: puzzle.crop_px = 63'):
    dataclasses.replace(GEOMETRY, **{**fields, 'cell_gap_px': 15})


def turned(**changes):
  sides = {'grid': 1, 'cell_px': 40, 'tile_px': 40, 'turned': True}
  return dataclasses.replace(GEOMETRY, **{**sides, **changes})


def test_rotations_are_quarter_turns_counter_clockwise_of_one_crop():
  made = sample(turned(channel_shift_px=0), questions.ask_rotation().rows, puzzles=4)
  assert made.tiles.shape == (4, 40, 40, 3)
  for turns in range(4):
    np.testing.assert_array_equal(made.tiles[turns], np.rot90(made.tiles[0], turns))
  # By hand: the right column of the image is the top row after one turn.
  np.testing.assert_array_equal(made.tiles[1][0], made.tiles[0][:, -1])
  start = (63 - 40) // 2
  np.testing.assert_array_equal(made.tiles[0], made.crop[start:, start:][:40, :40])


@pytest.mark.parametrize('turns', range(4))
def test_one_rotation_is_that_of_its_row(turns):
  rows, labels = questions.ask_rotation().rows, np.array([turns], np.int32)
  # With more than one row the draw of the rows comes before the shifts, so compare unshifted ones.
  one = sample(turned(channel_shift_px=0), rows, labels=labels)
  every = sample(turned(channel_shift_px=0), rows, puzzles=4)
  assert one.tiles.shape == (1, 40, 40, 3)
  np.testing.assert_array_equal(one.tiles[0], every.tiles[turns])


@pytest.mark.parametrize('changes', [{'grid': 2}, {'cell_px': 50}, {'cell_gap_px': 5}])
def test_rotations_of_cells_with_gaps_are_refused(changes):
  with pytest.raises(ValueError, match='rotations are of one tile without a gap'):
    turned(**changes)


# ---- colours


def test_projection_takes_green_against_magenta_out_and_leaves_the_rest():
  a = np.array([-1, 2, -1])
  image = np.random.default_rng(1).integers(60, 190, size=(20, 20, 3), dtype=np.uint8)
  found = colours.project_colour(image).astype(float)
  plain = image - (image @ a)[..., None] * a / 6.0  # I - aa' / a'a, in float64
  assert np.abs(found - plain.clip(0, 255)).max() <= 0.5 + 1e-4
  assert np.abs(found @ a).max() <= 2  # nothing of it is left but rounding
  grey = np.full((4, 4, 3), 77, np.uint8)
  np.testing.assert_array_equal(colours.project_colour(grey), grey)


def test_the_share_of_projected_visits_is_of_those_that_are_not_grey():
  geometry = dataclasses.replace(GEOMETRY, grey_fraction=0.5, project_fraction=0.5)
  kinds = collections.Counter()
  plain = puzzle.sample_crop(IMAGE, geometry, streams.make_rng(0, 0))
  looks = {
    colours.make_grey(plain).tobytes(): 'grey',
    colours.project_colour(plain).tobytes(): 'projected',
    plain.tobytes(): 'plain',
  }
  for seed in range(400):
    kinds[looks[sample(geometry, np.arange(9)[None], seed=seed).crop.tobytes()]] += 1
  assert 160 < kinds['grey'] < 240 and 70 < kinds['projected'] < 130 and 70 < kinds['plain'] < 130


def test_each_tile_keeps_one_channel_and_the_others_hold_its_dithered_mean():
  fields = {'drop_channels': True, 'channel_shift_px': 0}
  geometry, kept = dataclasses.replace(GEOMETRY, **fields), collections.Counter()
  for seed in range(60):
    rng = streams.make_rng(0, seed)
    made = puzzle.sample_puzzle(IMAGE, geometry, np.arange(9)[None], rng)
    plain = sample(dataclasses.replace(GEOMETRY, channel_shift_px=0), np.arange(9)[None], seed=seed)
    for tile, whole in zip(made.tiles, plain.tiles):
      same = [c for c in range(3) if (tile[..., c] == whole[..., c]).all()]
      assert len(same) == 1
      kept[same[0]] += 1
      mean = whole[..., same[0]].mean()
      others = np.delete(tile, same[0], axis=2).astype(float)
      assert np.abs(others - mean).max() < 1 and abs(others.mean() - mean) < 0.2
  assert min(kept.values()) > 120  # of 540, a third each


# ---- occluders


def test_occluders_never_come_from_the_same_cell_and_are_as_many_as_are_drawn():
  counts, places, sources, moves = (collections.Counter() for _ in range(4))
  for seed in range(3000):
    drawn = transform.draw_occluders(9, 2, streams.make_rng(0, seed))
    cells = np.flatnonzero(drawn >= 0)
    assert np.all(drawn[cells] != cells) and len(set(drawn[cells].tolist())) == len(cells)
    counts[len(cells)] += 1
    places.update(cells.tolist())
    sources.update(drawn[cells].tolist())
    if len(cells) == 2:  # how the two lay to each other in their own image, and lie now
      moves[int(drawn[cells[1]] - drawn[cells[0]]) == int(cells[1] - cells[0])] += 1
  assert set(counts) == {0, 1, 2} and min(counts.values()) > 900
  assert len(places) == len(sources) == 9 and min(places.values()) > 250 < min(sources.values())
  assert moves[True] < 0.2 * moves[False]  # what was next to each other is not kept so


def make_pretext(**changes):
  config = command.load_config('cfn:tiny')
  with config.unlocked():
    config.update_from_flattened_dict(
      {
        'model.width': 0.1,
        'model.fc6_features': 8,
        'model.fc7_features': 8,
        'model.dropout': 0.0,
        'puzzle.occluders': 2,
        'batch_size': 4,
        'num_devices': 1,
        **changes,
      }
    )
  return config, pretexts.open_pretext(config)


@pytest.mark.slow
@pytest.mark.parametrize('k', [1, 3])
def test_replacing_a_feature_equals_replacing_the_tile(k):
  _, pretext = make_pretext(**{'model.permutations_per_pass': k})
  batches = pipeline.make_training_batches(
    pretext.training, pretext.transform, batch_size=4, start_step=0, stop_step=6
  )
  for batch in batches:
    if (batch['occluders'] >= 0).any(axis=1).all():
      break
  batches.close()
  rows = pretext.questions.rows
  in_order = batch['tiles'].copy()
  if k == 1:
    labels = zip(batch['tiles'], batch['label'])
    in_order = np.stack([puzzle.unshuffle(tiles, rows[label]) for tiles, label in labels])
  replaced = in_order.copy()
  for b, cells in enumerate(batch['occluders']):
    for cell, source in enumerate(cells):
      if source >= 0:
        replaced[b, cell] = in_order[b ^ 1, source]
  if k == 1:
    replaced = np.stack([tiles[rows[label]] for tiles, label in zip(replaced, batch['label'])])
  params = pretext.init(0)
  occluded = pretext.logits(params, batch, jax.random.key(0))
  by_pixels = pretext.logits(params, {**batch, 'tiles': replaced})
  np.testing.assert_allclose(occluded, by_pixels, atol=1e-5)
  plain = pretext.logits(params, batch)  # an evaluation: nothing is occluded
  assert np.abs(plain - occluded).max() > 1e-3


def test_gradients_flow_to_the_example_that_lends_a_tile():
  features = jax.random.normal(jax.random.key(0), (2, 4, 3))
  occluders = jnp.array([[-1, 2, -1, -1], [-1, -1, -1, -1]], jnp.int8)
  gradient = jax.grad(lambda x: cfn.occlude(x, occluders)[0].sum())(features)
  assert gradient[..., 0].tolist() == [[1, 0, 1, 1], [0, 0, 1, 0]]


@pytest.mark.slow
def test_pairs_of_examples_stay_together_in_the_parts_of_a_batch():
  config, pretext = make_pretext(batch_size=8)
  task = jigsaw_task.make_task(config, pretext)
  assert task.pairs
  batch = next(task.train_batches(0, 1))
  params = task.init(0)
  descend = {parts: states._make_descend(task, parts) for parts in (1, 4)}
  found = {parts: jax.jit(run)(params, batch, jax.random.key(0)) for parts, run in descend.items()}
  np.testing.assert_allclose(found[4][0], found[1][0], rtol=1e-6)
  for ours, theirs in zip(jax.tree.leaves(found[4][2]), jax.tree.leaves(found[1][2])):
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
  apart = states._make_descend(dataclasses.replace(task, pairs=False), 2)
  assert abs(jax.jit(apart)(params, batch, jax.random.key(0))[0] - found[1][0]) > 1e-6


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'puzzle.occluders': 9}, 'puzzle.occluders = 9: from 0 to 8 of the 9 tiles'),
    ({'puzzle.occluders': -1}, 'puzzle.occluders = -1: from 0 to 8'),
    (
      {'model.name': 'stacked', 'model.permutations_per_pass': 1},
      "replace features of single tiles: model.name = 'cfn'",
    ),
    ({'batch_size': 1}, 'batch_size = 1, in accumulate_steps = 1, must be a multiple of 2'),
    ({'accumulate_steps': 4}, 'batch_size = 4, in accumulate_steps = 4, must be a multiple of 8'),
  ],
)
def test_occluders_that_cannot_be_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    make_pretext(**changes)
