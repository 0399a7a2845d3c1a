"""The meter of shortcuts: a cue solves puzzles where its measure is off, none where it is on."""

import itertools

import cv2
import labelled_cases
import numpy as np
import pytest
import scipy.ndimage

from cfn_jax import command
from cfn_jax.data import pipeline, record
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw.permutation_sets import permutations as permutation_sets
from cfn_jax.jigsaw.shortcuts import cues, meter, report

SIDE = 128
GRID = np.arange(9).reshape(3, 3)
PAIRS = ((GRID[:, :-1], GRID[:, 1:]), (GRID[:-1], GRID[1:]))


class Drawn:
  """A source of images in memory."""

  description, root = 'drawn images', ''

  def __init__(self, images):
    self.images = images

  def __len__(self):
    return len(self.images)

  def __getitem__(self, index):
    return record.Record(self.images[index], f'{index}', -1)


def smooth(rng, sigma):
  noise = scipy.ndimage.gaussian_filter(rng.normal(size=(SIDE, SIDE)), sigma)
  return 128 + 40 * noise / noise.std()


def draw_edges(rng):
  """Detail that reaches no farther than from a tile to the one that touches it."""
  return np.repeat(smooth(rng, 0.8)[..., None], 3, axis=2)


def draw_neighbours(rng):
  """A slope of brightness in a direction of its own, under white noise."""
  angle = rng.uniform(0, 2 * np.pi)
  y, x = np.mgrid[:SIDE, :SIDE] - SIDE / 2
  light = 128 + 1.2 * (np.cos(angle) * x + np.sin(angle) * y)
  return np.repeat((light + rng.normal(0, 10, light.shape))[..., None], 3, axis=2)


def draw_position(rng):
  """The same slope in every image."""
  y, x = np.mgrid[:SIDE, :SIDE] - SIDE / 2
  light = 128 + 1.1 * x + 0.4 * y
  return np.repeat((light + rng.normal(0, 10, light.shape))[..., None], 3, axis=2)


def draw_lag(rng):
  """Red a little larger than green, blue a little smaller."""
  light, middle = smooth(rng, 1.5), SIDE / 2
  scaled = []
  for scale in (1.002, 1, 0.998):
    grow = np.array([[scale, 0, middle * (1 - scale)], [0, scale, middle * (1 - scale)]])
    scaled.append(cv2.warpAffine(light, grow, (SIDE, SIDE), flags=cv2.INTER_CUBIC))
  return np.stack(scaled, axis=-1)


def draw_blocks(rng):
  light = np.repeat(smooth(rng, 2)[..., None], 3, axis=2).clip(0, 255).astype(np.uint8)
  return cv2.imdecode(cv2.imencode('.jpg', light, [cv2.IMWRITE_JPEG_QUALITY, 8])[1], 1)


def make_config(**fields):
  """Loads a config without measures, but for those in `fields`."""
  config = command.load_config(f'{labelled_cases.REPOSITORY}/configs/cfn.py:small')
  config.puzzle.update({'cell_px': 32, 'grey_fraction': 0.0, 'channel_shift_px': 0})
  config.puzzle.normalization = 'global'
  config.permutations.num = 24
  config.model.update({'permutations_per_pass': 1, 'width': 0.1})
  config.update_from_flattened_dict(fields)
  return config


def measure(config, draw, *, images=100, count=50, reader=None):
  rng = np.random.default_rng(0)
  drawn = [np.clip(np.rint(draw(rng)), 0, 255).astype(np.uint8) for _ in range(images)]
  reader = reader or pipeline.Reader(Drawn(drawn), seed=0)
  pretext = pretexts.make_pretext(config, lambda: (reader, reader))
  return meter.measure(config, pretext, count)


NORMAL = {'puzzle.normalization': 'tile'}


@pytest.mark.parametrize(
  ('cue', 'draw', 'measures'),
  [
    ('edges', draw_edges, {'puzzle.cell_gap_px': 10}),
    ('neighbour statistics', draw_neighbours, NORMAL),
    ('position', draw_position, NORMAL),
    ('lag of colours', draw_lag, {'puzzle.channel_shift_px': 2, 'puzzle.cell_px': 42}),
    # Eight places of a tile in its cell: each phase of the blocks is as likely in every cell.
    ('JPEG blocks', draw_blocks, {'puzzle.tile_px': 35, 'puzzle.cell_px': 42}),
  ],
)
def test_a_cue_solves_puzzles_where_its_measure_is_off_and_none_where_it_is_on(cue, draw, measures):
  found = measure(make_config(**measures), draw)
  assert found['puzzles'] == found['learned_images'] == 50
  each = found['cues'][cue]
  on, off = each['on'], each['all off']
  assert off['accuracy'] >= 0.95 and off['tile_accuracy'] >= 0.95
  assert (each['verdict'], each['present']) == ('closed', True), on
  assert on['low'] < 1 / 24 < on['high'] and on['high'] < off['low']


def test_settings_switch_off_one_measure_each_and_all():
  config = command.load_config(f'{labelled_cases.REPOSITORY}/configs/cfn.py:small')
  rng = np.random.default_rng(0)
  reader = pipeline.Reader(Drawn([rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)]), seed=0)
  pretext = pretexts.make_pretext(config, lambda: (reader, reader))
  settings = meter.make_settings(config, pretext)
  own = ('gap', 'normalisation', 'shift', 'grey')
  assert [*settings] == ['on', *(f'no {name}' for name in own), 'all off']

  def switches(setting):
    g = setting.visits.geometry
    return (
      g.cell_px > g.tile_px,
      setting.input.normalization == 'tile',
      g.channel_shift_px > 0,
      g.grey_fraction > 0,
    )

  assert switches(settings['on']) == (True,) * 4 and switches(settings['all off']) == (False,) * 4
  for at, name in enumerate(own):
    assert switches(settings[f'no {name}']) == tuple(other != at for other in range(4))
  assert all(setting.visits.geometry.tile_px == 32 for setting in settings.values())
  # The same puzzle in each: only what the measures do differs.
  visit = reader.train(0)
  assert len({meter._see(visit, setting).label for setting in settings.values()}) == 1
  plus = command.load_config(f'{labelled_cases.REPOSITORY}/configs/cfn.py:plus_small')
  assert meter.find_measures(plus)['grey']['project_fraction'] == 0
  assert not meter.find_measures(make_config())


def test_fewer_images_are_said_and_too_few_refused(capsys):
  config = make_config(**{'puzzle.cell_px': 42})
  found = measure(config, draw_edges, images=31, count=50)
  assert (found['puzzles'], found['learned_images']) == (15, 16)
  report.show(found)
  shown = capsys.readouterr().out
  assert '15 puzzles, one an image (fewer than the 50 asked for)' in shown
  assert 'all off' in shown and 'measures of this config: gap' in shown
  with pytest.raises(ValueError, match=r'drawn images: 19 training images: .* need 20 or more'):
    measure(config, draw_edges, images=19)


def test_images_that_stand_in_for_bad_ones_are_left_out():
  rng = np.random.default_rng(0)
  images = [rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8) for _ in range(40)]
  images[3:7] = [b'no image'] * 4
  reader = pipeline.Reader(Drawn(images), seed=0, on_bad_image='skip')
  found = measure(make_config(), None, images=0, reader=reader)
  assert (found['puzzles'], found['learned_images']) == (18, 18)
  assert found['settings'] == ['on', 'all off'] and found['measures'] == []


def test_without_scikit_learn_the_remedy_is_told(monkeypatch):
  monkeypatch.setattr(meter.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(ValueError, match=r"scikit-learn: pip install -e '\.\[svm\]'"):
    measure(make_config(), draw_edges, images=20)


def test_edges_and_statistics_of_two_tiles_by_hand():
  tiles = np.zeros((2, 3, 2, 2))
  tiles[0] = [[1, 2], [3, 4]]
  tiles[1, 0] = [[9, 7], [5, 5]]
  across, down = cues.compare_edges(tiles)
  # Tile 0's right border (2, 4) against tile 1's left one: (9, 5) in red, (0, 0) elsewhere.
  assert across[0, 1] == pytest.approx((7 + 1 + 2 * (2 + 4)) / 6)
  assert across[1, 0] == pytest.approx((6 + 2 + 2 * (1 + 3)) / 6)  # (7, 5) against (1, 3)
  assert down[0, 1] == pytest.approx((6 + 3 + 2 * (3 + 4)) / 6)  # (3, 4) against (9, 7)
  apart = cues.compare_statistics(tiles)
  stds = np.std([1, 2, 3, 4]), np.std([9, 7, 5, 5])
  wanted = (4 + abs(stds[0] - stds[1]) + 2 * (2.5 + stds[0])) / 3
  assert apart[:, 0, 1] == pytest.approx(wanted) and apart[:, 1, 0] == pytest.approx(wanted)


def test_a_lag_is_found_to_a_hundredth_of_a_pixel():
  light = smooth(np.random.default_rng(1), 4.0)
  moved = [scipy.ndimage.shift(light, (y, x), order=5) for y, x in ((0.1, -0.2), (0, 0), (0, 0.15))]
  tile = np.stack(moved)[None, :, 30:70, 30:70]
  # Red shows green's pixels from 0.2 px to the right and 0.1 px above.
  np.testing.assert_allclose(cues.describe_lag(tile), [[0.2, -0.1, -0.15, 0]], atol=0.01)
  flat = np.full((1, 3, 8, 8), 7.0)
  assert not cues.describe_lag(flat).any() and not cues.describe_blocks(flat).any()


def test_blocks_are_found_at_their_phase():
  rng = np.random.default_rng(0)
  for phase in (0, 3, 7):
    blocks = np.repeat(rng.normal(size=6), 8)[7 - phase : 7 - phase + 33]
    tile = np.broadcast_to(blocks, (1, 3, 33, 33))  # steps after the columns of that phase
    found = cues.describe_blocks(tile)[0]
    assert np.argmax(found[:8]) == phase and found[phase] > 4 and not found[8:].any()


@pytest.mark.parametrize('grid', [2, 3])
def test_rows_ask_for_the_pairs_that_they_make_neighbours(grid):
  rng = np.random.default_rng(grid)
  tiles = grid**2
  rows = np.stack([rng.permutation(tiles) for _ in range(6)]).astype(np.uint8)
  tables = rng.random((4, 2, tiles, tiles))
  asked = cues.ask_neighbours(rows, grid)
  assert (asked.sum(1) == 2 * grid * (grid - 1)).all()
  for n, row in enumerate(rows):
    cells = np.empty(tiles, int)
    cells[row] = range(tiles)  # the place that shows each cell
    cells = cells.reshape(grid, grid)
    wanted = sum(
      tables[:, 0, cells[y, x], cells[y, x + 1]] + tables[:, 1, cells[x, y], cells[x + 1, y]]
      for y, x in itertools.product(range(grid), range(grid - 1))
    )
    np.testing.assert_allclose(tables.reshape(4, -1) @ asked[n], wanted)


def test_ties_are_drawn_evenly_and_the_best_row_wins(monkeypatch):
  monkeypatch.setattr(cues, 'MOST_SCORES', 8)
  asked = np.array([[1, 0, 0.1], [0, 1, 0.1], [0, 0, 1]])
  chosen = cues.choose_rows(np.tile([0.7, 0.7, 0], (3000, 1)), asked, np.random.default_rng(0))
  counts = np.bincount(chosen, minlength=3)
  assert counts[2] == 0 and abs(counts[0] - 1500) < 150
  tables = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 5]])
  assert cues.choose_rows(tables, asked, np.random.default_rng(0)).tolist() == [0, 1, 2]


def test_verdicts_and_the_chance_of_tiles():
  at = {'low': 0.008, 'high': 0.014}
  assert cues.judge(at, {'low': 0.5, 'high': 0.6}, 0.01) == 'closed'
  assert cues.judge({'low': 0.1, 'high': 0.2}, {'low': 0.21, 'high': 0.3}, 0.01) == 'narrowed'
  assert cues.judge({'low': 0.1, 'high': 0.2}, {'low': 0.2, 'high': 0.3}, 0.01) == 'open'
  rows = permutation_sets.make_permutations(30, method='mid')
  drawn = np.mean([(a == b).mean() for a in rows for b in rows])
  mean = permutation_sets.summarize(rows).mean_hamming
  assert cues.expect_tiles(rows, mean) == pytest.approx(drawn)
