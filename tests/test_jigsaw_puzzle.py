"""Laws of the puzzle: tiles inside their cells, real pixels, no shortcut left, pure draws.

Most are measured on images that encode their own coordinates, so that every pixel of a tile says
where it came from.
"""

import dataclasses
import itertools
import time

import cv2
import hypothesis
import numpy as np
import pytest
import scipy.stats
from hypothesis import strategies as st
from PIL import Image

from cfn_jax import command
from cfn_jax.data import pipeline, record, streams
from cfn_jax.jigsaw import colours, puzzle
from cfn_jax.jigsaw import pretext as pretexts

PAPER = puzzle.Geometry(
  resize_px=256,
  crop_px=255,
  crop_mode='centre',
  cell_px=85,
  tile_px=64,
  grid=3,
  grey_fraction=0.3,
  channel_shift_px=2,
)
TEXT = dataclasses.replace(PAPER, crop_px=225, cell_px=75)
SMALL = dataclasses.replace(PAPER, resize_px=64, crop_px=63, cell_px=21, tile_px=16)
IDENTITY = np.arange(9)[None]


def vary(geometry, **fields):
  return dataclasses.replace(geometry, **fields)


def coordinates(axis, side=256):
  """An image whose pixels are their y (or x); the blue channel counts down, so it has colour."""
  line = np.arange(side, dtype=np.uint8)
  plane = np.broadcast_to(line[:, None] if axis == 0 else line, (side, side))
  return np.stack([plane, plane, np.uint8(255) - plane], axis=-1)


def permutation_set(count, tiles=9, seed=0):
  rng = np.random.default_rng(seed)
  return np.stack([rng.permutation(tiles) for _ in range(count)])


def origins(geometry, seed, permutations=IDENTITY, **arguments):
  """Where each channel of each tile starts in the image: int `[T, 3, (y, x)]`.

  Checks on the way that every channel shows neighbouring pixels, in order.
  """
  corners = []
  for axis in (0, 1):
    image, rng = coordinates(axis), streams.make_rng(0, seed)
    tiles = puzzle.sample_puzzle(image, geometry, permutations, rng, **arguments).tiles.astype(int)
    tiles[..., 2] = 255 - tiles[..., 2]
    corner = tiles[:, 0, 0]  # [T, 3]
    line = np.arange(geometry.tile_px)
    line = line[:, None, None] if axis == 0 else line[:, None]
    assert (tiles == corner[:, None, None] + line).all()
    corners.append(corner)
  return np.stack(corners, axis=-1)


def cell_corners(geometry):
  """Where the cells start in a `centre` crop of a 256-px image: int `[T, 1, (y, x)]`."""
  margin = (256 - geometry.crop_px) // 2 + (
    geometry.crop_px - geometry.grid * geometry.cell_px
  ) // 2
  cells = itertools.product(range(geometry.grid), repeat=2)
  return margin + geometry.cell_px * np.array(list(cells))[:, None]


def gaps(geometry, seed):
  """All gaps between neighbouring tiles of a puzzle, of each channel on its own."""
  corner = origins(geometry, seed).reshape(geometry.grid, geometry.grid, 3, 2)
  down = corner[1:, :, :, 0] - corner[:-1, :, :, 0] - geometry.tile_px
  across = corner[:, 1:, :, 1] - corner[:, :-1, :, 1] - geometry.tile_px
  return np.concatenate([down, across], axis=None)


def photograph(height, width, seed=0):
  """A smooth coloured image."""
  rng = np.random.default_rng(seed)
  coarse = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
  return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


# The gap.


@pytest.mark.parametrize(('geometry', 'largest', 'mean'), [(TEXT, 22, 11), (PAPER, 42, 21)])
@pytest.mark.parametrize('shift', [0, 2])
def test_gap_between_neighbouring_tiles_is_uniform_differences_of_two_offsets(
  geometry, largest, mean, shift
):
  geometry = vary(geometry, grey_fraction=0.0, channel_shift_px=shift)
  measured = np.concatenate([gaps(geometry, seed) for seed in range(400)])
  assert measured.min() == 0 and measured.max() == largest
  # The standard deviation of a gap is below 9 px, of the mean of 4,800 of them below 0.15 px.
  assert abs(measured.mean() - mean) < 0.5
  if not shift:
    # Two uniform offsets of n values each: a gap of d px comes in n - |d - mean| of n * n cases.
    n = mean + 1
    expected = n - np.abs(np.arange(largest + 1) - mean)
    counts = np.bincount(measured[::3], minlength=largest + 1)  # the three channels are equal
    share = expected / n**2
    # A tile takes part in up to two gaps of an axis, so the sum is wider than chi-square.
    statistic = (np.square(counts - share * counts.sum()) / (share * counts.sum())).sum()
    assert statistic < 3 * scipy.stats.chi2.ppf(0.99, largest)


@pytest.mark.parametrize('geometry', [TEXT, PAPER])
def test_offset_of_a_tile_is_uniform_in_its_cell(geometry):
  geometry = vary(geometry, grey_fraction=0.0, channel_shift_px=0)
  offsets = np.stack([origins(geometry, seed) for seed in range(200)]) - cell_corners(geometry)
  spare = geometry.cell_px - geometry.tile_px
  for axis in (0, 1):
    counts = np.bincount(offsets[:, :, 0, axis].ravel(), minlength=spare + 1)
    assert len(counts) == spare + 1
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


# Channel shifts.


def test_all_five_shifts_occur_on_each_axis_of_each_channel_and_move_channels_apart():
  on, off = vary(PAPER, grey_fraction=0.0), vary(PAPER, grey_fraction=0.0, channel_shift_px=0)
  # Offsets are drawn before shifts: with the shift off, the same generator gives the same tiles.
  shifts = np.stack([origins(on, seed) - origins(off, seed) for seed in range(150)])
  for channel, axis in itertools.product(range(3), range(2)):
    values, counts = np.unique(shifts[:, :, channel, axis], return_counts=True)
    assert values.tolist() == [-2, -1, 0, 1, 2]
    assert counts.min() > 0.1 * counts.sum()
  flat = shifts.reshape(-1, 6)  # channels and axes: all drawn apart from each other
  correlations = np.corrcoef(flat.T) - np.eye(6)
  # A little is shared: at an edge of its cell all channels of a tile move inwards.
  assert np.abs(correlations).max() < 0.2
  assert len(np.unique(flat, axis=0)) > 1000


@pytest.mark.parametrize('geometry', [PAPER, TEXT, vary(PAPER, tile_px=84), vary(PAPER, grid=2)])
def test_every_shifted_channel_shows_real_pixels_of_its_own_cell(geometry):
  geometry = vary(geometry, grey_fraction=0.0)
  start = cell_corners(geometry)
  for seed in range(60):
    corner = origins(
      geometry, seed, np.arange(geometry.tiles)[None]
    )  # and checks that the pixels are neighbours
    assert (corner >= start).all()
    assert (corner + geometry.tile_px <= start + geometry.cell_px).all()


def test_shift_is_uniform_on_what_keeps_the_window_in_the_cell():
  # 2 px to spare: at offset 0 the shifts 0, 1, 2 remain, at 1: -1, 0, 1, at 2: -2, -1, 0.
  on = vary(PAPER, tile_px=83, grey_fraction=0.0)
  off = vary(on, channel_shift_px=0)
  offsets = np.stack([origins(off, seed) for seed in range(150)]) - cell_corners(on)
  moved = np.stack([origins(on, seed) for seed in range(150)]) - cell_corners(on)
  for offset in range(3):
    counts = np.bincount(moved[offsets == offset], minlength=3)
    assert len(counts) == 3 and scipy.stats.chisquare(counts).pvalue > 1e-3


# Draws.


def test_same_seed_and_position_give_the_same_puzzle():
  image, permutations = photograph(300, 280), permutation_set(50)
  for position in range(5):
    made = [
      puzzle.sample_puzzle(image, TEXT, permutations, streams.make_rng(3, position))
      for _ in range(2)
    ]
    for one, other in zip(*made):
      assert one.tobytes() == other.tobytes()
  others = [
    puzzle.sample_puzzle(image, TEXT, permutations, streams.make_rng(seed, position))
    for seed, position in ((3, 0), (4, 0), (3, 1))
  ]
  assert len({made.tiles.tobytes() for made in others}) == 3


class Photographs(record.Source):
  """Five images in memory."""

  class_names = ()
  fingerprint = description = 'five images'

  def __len__(self):
    return 5

  def __getitem__(self, index):
    return record.Record(photograph(64, 70, seed=index), f'image {index}', -1)


def test_puzzles_of_an_image_differ_over_three_epochs_and_are_equal_in_a_rerun():
  def run():
    seen = {}
    for position in range(15):
      visit = pipeline.Reader(Photographs(), 1).train(position)
      made = puzzle.sample_puzzle(visit.image, SMALL, permutation_set(100), visit.rng)
      seen.setdefault(visit.record, []).append((made.labels[0], made.tiles.tobytes()))
    return seen

  first, second = run(), run()
  assert first == second
  assert sorted(first) == [0, 1, 2, 3, 4]
  for visits in first.values():
    assert len(visits) == 3 and len({tiles for _, tiles in visits}) == 3
  labels = [label for visits in first.values() for label, _ in visits]
  assert len(set(labels)) > 10


def test_labels_are_uniform_over_the_set():
  image, permutations = photograph(64, 64), permutation_set(20)
  draws = [
    puzzle.sample_puzzle(image, SMALL, permutations, streams.make_rng(0, position)).labels[0]
    for position in range(2000)
  ]
  counts = np.bincount(draws, minlength=20)
  assert len(counts) == 20 and scipy.stats.chisquare(counts).pvalue > 1e-3


def test_only_allowed_rows_are_drawn_and_all_of_them():
  allowed = np.array([3, 7, 11])
  for puzzles in (1, 2):
    seen = set()
    for seed in range(60):
      rng = np.random.default_rng(seed)
      labels = puzzle.sample_labels(20, rng, puzzles=puzzles, allowed=allowed)
      assert labels.dtype == np.int32 and len(set(labels.tolist())) == puzzles
      seen |= set(labels.tolist())
      made = puzzle.sample_puzzle(
        photograph(64, 64), SMALL, permutation_set(20), rng, puzzles=puzzles, allowed=allowed
      )
      assert set(made.labels.tolist()) <= {3, 7, 11}
    assert seen == {3, 7, 11}


def test_given_labels_are_shown_and_not_drawn():
  image, permutations = photograph(64, 64), permutation_set(20)
  for labels in (np.array([13], np.int32), np.array([13, 2], np.int32)):
    made = puzzle.sample_puzzle(image, SMALL, permutations, streams.make_rng(0, 0), labels=labels)
    assert made.labels.tolist() == labels.tolist()
    reading = puzzle.sample_puzzle(image, SMALL, IDENTITY, streams.make_rng(0, 0), labels=[0])
    permutation = permutations[13] if len(labels) == 1 else np.arange(9)
    assert (made.tiles == reading.tiles[permutation]).all()


# Shuffling.


def test_slot_i_holds_tile_permutation_i():
  geometry = vary(PAPER, grey_fraction=0.0)
  permutations = permutation_set(30)
  for seed in range(20):
    rng = streams.make_rng(0, seed)
    label = puzzle.sample_puzzle(coordinates(0), geometry, permutations, rng).labels[0]
    corner = origins(geometry, seed, permutations)
    row, column = np.moveaxis(corner[:, 0] // 85, -1, 0)  # a corner says which cell it lies in
    assert (row * 3 + column).tolist() == permutations[label].tolist()


@hypothesis.given(st.permutations(range(9)))
@hypothesis.settings(max_examples=50, deadline=None)
def test_shuffle_then_unshuffle_is_identity(permutation):
  permutation = np.array(permutation)
  tiles = np.random.default_rng(0).integers(0, 256, (9, 2, 3, 3), dtype=np.uint8)
  shuffled = np.stack([tiles[permutation[i]] for i in range(9)])
  assert (puzzle.unshuffle(shuffled, permutation) == tiles).all()


def test_k_puzzles_have_k_labels_and_tiles_in_reading_order():
  geometry = vary(PAPER, grey_fraction=0.0)
  permutations = permutation_set(12)
  seen = set()
  for seed in range(20):
    rng = streams.make_rng(0, seed)
    made = puzzle.sample_puzzle(coordinates(0), geometry, permutations, rng, puzzles=8)
    assert made.labels.shape == (8,) and made.labels.dtype == np.int32
    assert len(set(made.labels.tolist())) == 8
    assert 0 <= made.labels.min() and made.labels.max() < 12
    seen |= set(made.labels.tolist())
    corner = origins(geometry, seed, permutations, puzzles=8)
    assert (corner[:, 0] // 85 @ [3, 1]).tolist() == list(range(9))
  assert seen == set(range(12))


# Shortcuts.


@pytest.mark.parametrize('kind', pretexts.NORMALIZATIONS)
def test_flat_image_gives_tiles_that_carry_no_position(kind):
  c = command.load_config('cfn:tiny')
  c.puzzle.normalization = kind
  normalise = pretexts.make_input(c).prepare
  for colour in ((90, 90, 90), (200, 30, 90)):
    image = np.full((70, 64, 3), colour, np.uint8)
    for position in range(20):
      rng = streams.make_rng(0, position)
      tiles = puzzle.sample_puzzle(image, SMALL, permutation_set(9), rng).tiles
      assert (tiles == tiles[0, 0, 0]).all()
      normalised = np.asarray(normalise(tiles))
      assert (normalised == normalised[0]).all()
      if kind != 'global' and len(set(tiles[0, 0, 0].tolist())) == 1:
        assert (normalised == 0).all()


# Grey.


def test_grey_is_the_first_draw_and_all_nine_tiles_share_it():
  image, permutations = photograph(64, 64), permutation_set(10)
  drawn = []
  for position in range(100):
    tiles, _, crop = puzzle.sample_puzzle(image, SMALL, permutations, streams.make_rng(5, position))
    channels_equal = (tiles == tiles[..., :1]).all((1, 2, 3))
    expected = streams.make_rng(5, position).random() < 0.3
    assert channels_equal.tolist() == [expected] * 9
    assert colours.is_grey(crop) == expected
    drawn.append(expected)
  assert 10 < sum(drawn) < 60


@pytest.mark.parametrize('fraction', [0.0, 0.3, 1.0])
def test_grey_fraction_is_the_share_of_grey_visits(fraction):
  image = photograph(64, 64)
  geometry = vary(SMALL, grey_fraction=fraction)
  grey = sum(
    colours.is_grey(
      puzzle.sample_puzzle(image, geometry, IDENTITY, streams.make_rng(0, position)).crop
    )
    for position in range(1000)
  )
  if fraction in (0, 1):
    assert grey == 1000 * fraction
  else:
    assert scipy.stats.binomtest(grey, 1000, fraction).pvalue > 1e-3


def test_grey_images_drawn_or_native_are_never_channel_shifted():
  colour = photograph(64, 64)
  native = np.repeat(np.random.default_rng(0).integers(0, 256, (64, 64, 1), np.uint8), 3, axis=2)
  for image, fraction in ((colour, 1.0), (native, 0.0), (native, 0.3)):
    on = vary(SMALL, grey_fraction=fraction)
    off = vary(on, channel_shift_px=0)
    for position in range(30):
      with_shift, without = (
        puzzle.sample_puzzle(image, g, permutation_set(5), streams.make_rng(0, position)).tiles
        for g in (on, off)
      )
      assert (with_shift == with_shift[..., :1]).all()
      assert with_shift.tobytes() == without.tobytes()


def test_grey_is_luma():
  image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
  grey = colours.make_grey(image).astype(float)
  assert (grey == grey[..., :1]).all()
  assert np.abs(grey[..., 0] - image @ [0.299, 0.587, 0.114]).max() <= 1
  assert np.abs(grey[..., 0] - cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)).max() <= 1


@pytest.mark.parametrize(('y', 'channel'), [(0, 0), (9, 1), (5, 2)])
def test_one_coloured_pixel_is_enough_to_be_no_grey_image(y, channel):
  image = np.full((10, 8, 3), 77, np.uint8)
  assert colours.is_grey(image)
  image[y, 3, channel] += 1
  assert not colours.is_grey(image)


# Each measure alone switched off.


@pytest.mark.parametrize(('cell', 'crop'), [(85, 255), (64, 255), (75, 225), (80, 250)])
def test_gap_and_shift_off_mean_contiguous_tiles_of_the_middle_of_the_crop(cell, crop):
  geometry = vary(PAPER, cell_px=cell, tile_px=cell, crop_px=crop, channel_shift_px=0)
  image, permutations = photograph(256, 300), permutation_set(5)
  for position in range(5):
    rng = streams.make_rng(0, position)
    tiles, labels, cut = puzzle.sample_puzzle(image, geometry, permutations, rng)
    assert tiles.shape == (9, cell, cell, 3)
    whole = puzzle.assemble(puzzle.unshuffle(tiles, permutations[labels[0]]), columns=3)
    margin = (crop - 3 * cell) // 2
    assert (whole == cut[margin : margin + 3 * cell, margin : margin + 3 * cell]).all()


@pytest.mark.parametrize('crop', [255, 196, 192])
def test_gap_off_alone_keeps_all_five_shifts_of_real_pixels_inside_the_crop(crop):
  geometry = vary(PAPER, cell_px=64, crop_px=crop, grey_fraction=0.0)
  assert geometry.largest_shift_px == 2
  corners = np.stack([origins(geometry, seed) for seed in range(80)])  # real pixels, in order
  first = (256 - crop) // 2
  assert corners.min() >= first and corners.max() + 64 <= first + crop
  shifts = corners - cell_corners(geometry)
  # The middle tile has room on all sides; the others too, where the crop is larger than the tiles.
  for free in [shifts[:, 4]] + ([shifts.reshape(-1, 3, 2)] if crop == 255 else []):
    for channel, axis in itertools.product(range(3), range(2)):
      values, counts = np.unique(free[:, channel, axis], return_counts=True)
      assert values.tolist() == [-2, -1, 0, 1, 2]
      assert scipy.stats.chisquare(counts).pvalue > 1e-4
  assert (shifts[:, 0] >= (0 if crop == 192 else -2)).all()


def test_shift_is_limited_by_a_gap_that_is_smaller_and_says_so():
  geometry = vary(PAPER, tile_px=84, grey_fraction=0.0)
  assert geometry.largest_shift_px == 1
  assert vary(PAPER).largest_shift_px == 2
  assert vary(PAPER, channel_shift_px=0).largest_shift_px == 0
  apart = max(np.ptp(origins(geometry, seed), axis=1).max() for seed in range(30))
  assert apart == 1


def test_shift_off_leaves_gaps_and_moves_no_channel():
  geometry = vary(PAPER, grey_fraction=0.0, channel_shift_px=0)
  seen = set()
  for seed in range(20):
    corner = origins(geometry, seed)
    assert (corner == corner[:, :1]).all()
    seen |= set(gaps(geometry, seed).tolist())
  assert len(seen) > 20


def test_assemble_leaves_gaps_of_the_fill():
  tiles = np.arange(4, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 3), np.uint8)
  canvas = puzzle.assemble(tiles, columns=2, gap_px=1, fill=9)
  assert canvas[..., 0].tolist() == [
    [0, 0, 9, 1, 1],
    [0, 0, 9, 1, 1],
    [9, 9, 9, 9, 9],
    [2, 2, 9, 3, 3],
    [2, 2, 9, 3, 3],
  ]


# Crops.


@pytest.mark.parametrize('size', [(256, 256), (256, 400), (391, 256)])
def test_centre_crop_of_an_image_of_the_right_size_is_not_resampled(size):
  image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
  for crop, geometry in ((255, PAPER), (225, TEXT)):
    top, left = (size[0] - 256) // 2, (size[1] - 256) // 2  # of the central square
    top, left = top + (256 - crop) // 2, left + (256 - crop) // 2
    cut = puzzle.sample_crop(image, geometry, np.random.default_rng(0))
    assert cut.tobytes() == image[top : top + crop, left : left + crop].tobytes()


def test_random_crops_reach_every_place_of_the_central_square_and_no_other():
  geometry = vary(TEXT, crop_mode='random')
  y, x = np.mgrid[:256, :300]
  image = np.stack([y, x % 256, x // 256], axis=-1).astype(np.uint8)
  places = []
  for seed in range(1500):
    cut = puzzle.sample_crop(image, geometry, np.random.default_rng(seed)).astype(int)
    top, left = cut[0, 0, 0], cut[0, 0, 1] + 256 * cut[0, 0, 2]
    assert (cut == image[top : top + 225, left : left + 225]).all()
    places.append((top, left - (300 - 256) // 2))
  for axis in zip(*places):
    counts = np.bincount(axis, minlength=32)
    assert len(counts) == 32 and scipy.stats.chisquare(counts).pvalue > 1e-3


def test_whole_mode_shows_all_of_the_image():
  geometry = vary(PAPER, crop_mode='whole', crop_px=225, cell_px=75)
  image = photograph(100, 311)
  cut = puzzle.sample_crop(image, geometry, np.random.default_rng(0))
  expected = Image.fromarray(image).resize((225, 225), Image.Resampling.BILINEAR)
  assert np.abs(cut - np.asarray(expected).astype(int)).mean() < 0.5
  exact = np.random.default_rng(0).integers(0, 256, (225, 225, 3), dtype=np.uint8)
  assert (puzzle.sample_crop(exact, geometry, np.random.default_rng(0)) == exact).all()


@pytest.mark.parametrize('size', [(512, 640), (700, 300), (128, 100), (300, 258)])
@pytest.mark.parametrize('mode', ['centre', 'random'])
def test_crop_equals_resizing_the_short_side_and_then_cropping(size, mode):
  image = photograph(*size)
  geometry = vary(TEXT, crop_mode=mode)
  height, width = size
  scale = min(size) / 256
  big_y, big_x = round(height / scale), round(width / scale)
  resized = Image.fromarray(image).resize((big_x, big_y), Image.Resampling.BILINEAR)
  resized = np.asarray(resized).astype(int)
  top, left = 15, 15
  if mode == 'random':
    top, left = np.random.default_rng(0).integers(0, 32, size=2)
  y, x = round((big_y - 256) / 2 + top), round((big_x - 256) / 2 + left)
  cut = puzzle.sample_crop(image, geometry, np.random.default_rng(0))
  assert cut.shape == (225, 225, 3) and cut.dtype == np.uint8
  # Resizing to whole pixels and rounding the corner may move the picture by half a pixel.
  assert np.abs(cut - resized[y : y + 225, x : x + 225]).mean() < 1.0


@pytest.mark.parametrize('size', [(1, 1), (3, 2), (40, 60), (255, 255)])
def test_smaller_images_are_resized_up(size):
  image = photograph(*size)
  cut = puzzle.sample_crop(image, PAPER, np.random.default_rng(0))
  assert cut.shape == (255, 255, 3)
  middle = image[size[0] // 2, size[1] // 2].astype(int)
  assert np.abs(cut[127, 127] - middle).max() < 64


@pytest.mark.parametrize('size', [(4000, 3), (3, 4000)])
@pytest.mark.parametrize('mode', puzzle.CROP_MODES)
def test_extreme_shapes_work_without_a_giant_intermediate(size, mode):
  image = np.zeros((*size, 3), np.uint8)
  middle = tuple(slice(side // 2 - 2, side // 2 + 2) if side > 3 else slice(None) for side in size)
  image[middle] = 200  # only the central square is bright
  began = time.perf_counter()
  made = puzzle.sample_puzzle(
    image, vary(TEXT, crop_mode=mode), permutation_set(5), np.random.default_rng(0)
  )
  assert time.perf_counter() - began < 1
  assert made.crop.shape == (225, 225, 3)
  if mode != 'whole':
    assert made.crop.min() > 100


@pytest.mark.parametrize('size', [(300, 40_000), (40_000, 300), (60, 33_000)])
@pytest.mark.parametrize('mode', puzzle.CROP_MODES)
def test_sides_beyond_opencvs_limit_of_32766_px_work(size, mode):
  image = np.zeros((*size, 3), np.uint8)
  image[size[0] // 2 - 20 : size[0] // 2 + 20, size[1] // 2 - 20 : size[1] // 2 + 20] = 200
  cut = puzzle.sample_crop(image, vary(TEXT, crop_mode=mode), np.random.default_rng(0))
  assert cut.shape == (225, 225, 3)
  if mode == 'centre':
    assert cut[112, 112].min() > 190 and cut[0, 0].max() < 210


# Any grid, any geometry.


@pytest.mark.parametrize('grid', [2, 3, 4, 5])
def test_grids_from_two_to_five_keep_tiles_in_their_cells(grid):
  geometry = vary(PAPER, grid=grid, cell_px=50, tile_px=40, grey_fraction=0.0)
  assert geometry.tiles == grid**2
  permutations = permutation_set(6, tiles=grid**2)
  rng = streams.make_rng(0, 0)
  label = puzzle.sample_puzzle(coordinates(0), geometry, permutations, rng).labels[0]
  corner = origins(geometry, 0, permutations)
  start = cell_corners(geometry)[permutations[label]]
  assert (corner >= start).all() and (corner + 40 <= start + 50).all()


@st.composite
def geometries(draw):
  grid = draw(st.integers(2, 5))
  cell = draw(st.integers(1, 256 // grid))
  crop = draw(st.integers(grid * cell, 256))
  return puzzle.Geometry(
    resize_px=256,
    crop_px=crop,
    crop_mode='centre',
    cell_px=cell,
    tile_px=draw(st.integers(1, cell)),
    grid=grid,
    grey_fraction=0.0,
    channel_shift_px=draw(st.integers(0, 6)),
  )


@hypothesis.given(geometries(), st.integers(0, 2**32))
@hypothesis.settings(max_examples=150, deadline=None)
def test_in_any_geometry_every_channel_of_a_tile_lies_within_its_cell_or_the_crop(geometry, seed):
  corner = origins(geometry, seed, np.arange(geometry.tiles)[None])
  start, end = cell_corners(geometry), cell_corners(geometry) + geometry.cell_px
  if geometry.tile_px == geometry.cell_px:  # no gaps
    start = np.full_like(start, (256 - geometry.crop_px) // 2)
    end = start + geometry.crop_px
  assert corner.shape == (geometry.tiles, 3, 2)
  assert (corner >= start).all()
  assert (corner + geometry.tile_px <= end).all()
  assert np.ptp(corner, axis=1).max() <= 2 * geometry.channel_shift_px


@hypothesis.given(
  st.integers(1, 90), st.integers(1, 90), st.sampled_from(puzzle.CROP_MODES), st.integers(0, 9)
)
@hypothesis.settings(max_examples=80, deadline=None)
def test_any_image_gives_a_crop_of_the_stated_size(height, width, mode, seed):
  image = photograph(height, width)
  geometry = vary(SMALL, resize_px=70, crop_mode=mode)
  cut = puzzle.sample_crop(image, geometry, np.random.default_rng(seed))
  assert cut.shape == (63, 63, 3) and cut.dtype == np.uint8


# Bad input.


@pytest.mark.parametrize(
  ('fields', 'words'),
  [
    ({'grid': 1}, ['puzzle.grid = 1', '2 x 2']),
    ({'tile_px': 0}, ['puzzle.tile_px = 0', 'at least 1']),
    ({'tile_px': 86}, ['puzzle.tile_px = 86', 'larger than its cell', 'puzzle.cell_px = 85']),
    ({'crop_px': 254}, ['puzzle.cell_px = 85', '255 px', 'puzzle.crop_px = 254']),
    ({'grid': 4}, ['4 cells', 'puzzle.cell_px = 85', '340 px', 'puzzle.crop_px = 255']),
    ({'crop_mode': 'middle'}, ["puzzle.crop_mode = 'middle'", 'centre, random, whole']),
    ({'resize_px': 254}, ['puzzle.crop_px = 255', 'puzzle.resize_px = 254']),
    ({'grey_fraction': 1.5}, ['puzzle.grey_fraction = 1.5', '0 to 1']),
    ({'grey_fraction': -0.1}, ['puzzle.grey_fraction = -0.1', '0 to 1']),
    ({'channel_shift_px': -1}, ['puzzle.channel_shift_px = -1', '0 or more']),
  ],
)
def test_sizes_that_do_not_fit_name_the_field_and_its_value(fields, words):
  with pytest.raises(ValueError) as raised:
    vary(PAPER, **fields)
  for word in words:
    assert word in str(raised.value)


def test_whole_mode_needs_no_resize():
  assert vary(PAPER, crop_mode='whole', resize_px=10).crop_px == 255


@pytest.mark.parametrize(
  'image',
  [
    np.zeros((8, 8), np.uint8),
    np.zeros((8, 8, 4), np.uint8),
    np.zeros((8, 8, 3), np.float32),
  ],
)
def test_what_is_no_image_is_refused_with_its_type_and_shape(image):
  with pytest.raises(ValueError) as raised:
    puzzle.sample_puzzle(image, PAPER, IDENTITY, np.random.default_rng(0))
  assert str(image.dtype) in str(raised.value) and str(list(image.shape)) in str(raised.value)
