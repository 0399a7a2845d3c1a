"""What units respond to: the same as brute force, from places that are told; `visualize units`."""

import json

import jax
import numpy as np
import pytest
import transfer_cases
from PIL import Image

from cfn_jax import visualize
from cfn_jax.data import feed as feeds
from cfn_jax.data import folder as folders
from cfn_jax.data import listing, pipeline
from cfn_jax.errors import CfnError
from cfn_jax.evaluation.frozen import responses, units
from cfn_jax.models import figures
from cfn_jax.transfer import files, geometry, networks

COUNT, TILES, TILE_PX, RESIZE_PX = 20, 3, 48, 64


@pytest.fixture(scope='module')
def weights():
  origin = {'config': {'puzzle': {'tile_px': TILE_PX, 'resize_px': RESIZE_PX}}}
  return transfer_cases.draw(kind='trunk', stride=2, width=0.1).replace(origin=origin)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  root = tmp_path_factory.mktemp('images')
  (root / 'below').mkdir()
  for number in range(COUNT):
    rng = np.random.default_rng(number)
    small = rng.integers(256, size=(9, 12, 3), dtype=np.uint8)
    size = (128, 96) if number % 2 else (64, 80)
    path = root / f'{number:02}.png' if number else root / 'below' / 'first.png'
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(path)
  return root


@pytest.fixture(scope='module')
def reader(folder):
  source = folders.labelled(folder, listing.list_images(folder), ())
  return pipeline.Reader(source, seed=3, on_bad_image='skip')


def measure(weights, reader, batch_size):
  cut = units.make_cut(weights, TILES)
  fed = feeds.Feed(reader, cut, pipeline.Loading(), batch_size)
  return units.measure_responses(weights, fed)


@pytest.fixture(scope='module')
def measured(weights, reader):
  return measure(weights, reader, batch_size=7)


def feed(tiles):
  """Feeds means `[images, n, F]`, whose places are counted through."""
  found = responses.Responses(tiles.shape[-1])
  for record, means in enumerate(tiles):
    found.add(record, means, 1000 * record + np.arange(means.size).reshape(means.shape))
  return found


def test_running_figures_and_best_tiles_equal_brute_force():
  rng = np.random.default_rng(0)
  tiles = rng.integers(0, 40, (50, 4, 6)).astype(np.float32) / 8  # with many equal values
  found, flat = feed(tiles), tiles.reshape(-1, 6).astype(np.float64)
  np.testing.assert_allclose(found.mean(), flat.mean(0))
  np.testing.assert_allclose(found.std(), flat.std(0))
  np.testing.assert_allclose(found.covariance(), np.cov(flat.T, bias=True), atol=1e-12)
  for unit in range(6):
    best = [(-image[:, unit].max(), record) for record, image in enumerate(tiles)]
    wanted = sorted(best)[:16]
    assert found.best.value[unit].tolist() == [-value for value, _ in wanted]
    assert found.best.record[unit].tolist() == [record for _, record in wanted]
    for record, tile, place in zip(*(each[unit] for each in found.best[1:])):
      assert tile == tiles[record, :, unit].argmax()
      assert place == 1000 * record + tile * 6 + unit
  top = np.array([sorted(tiles.max(1)[:, unit])[-16:] for unit in range(6)])
  np.testing.assert_allclose(found.scores(), (top.mean(1) - flat.mean(0)) / flat.std(0), rtol=1e-6)


def test_the_pick_takes_the_highest_scores_and_leaves_out_dead_units_and_copies():
  rng = np.random.default_rng(0)
  tiles = rng.exponential(size=(400, 1, 6)).astype(np.float32)
  tiles[..., 1] = 0.1  # dead: one value
  tiles[..., 4] = 2 * tiles[..., 2] + 0.01 * tiles[..., 0]  # a copy of 2, nearly
  tiles[..., 5] = -tiles[..., 3] + 9  # the opposite of 3 is no copy
  found = feed(tiles)
  order = [unit for unit in np.argsort(-found.scores(), kind='stable').tolist() if unit != 1]
  copies = max(order.index(2), order.index(4))
  assert found.pick(6) == order[:copies] + order[copies + 1 :]
  assert found.pick(2) == found.pick(6)[:2]
  assert found.scores()[1] == -np.inf


def test_a_network_is_measured_as_brute_force_does(weights, reader, measured):
  cut = units.make_cut(weights, TILES)
  assert (cut.tile_px, cut.resize_px) == (TILE_PX, RESIZE_PX)
  tiles = np.stack([cut(reader.evaluate(record))['tiles'] for record in range(COUNT)])
  stages = transfer_cases.trunk_stages(weights, tiles.reshape(-1, TILE_PX, TILE_PX, 3))
  for name in figures.CONVOLUTIONS:
    maps = stages[name].reshape(COUNT, TILES, -1, stages[name].shape[-1])
    found = measured[name]
    np.testing.assert_allclose(found.mean(), maps.mean((0, 1, 2)), rtol=1e-4)
    means = maps.mean(2)
    wanted = np.sort(means.max(1), axis=0)[::-1][:16].T
    np.testing.assert_allclose(found.best.value, wanted, rtol=1e-4)
    unit = int(np.argmax(found.std()))  # a live one
    record, tile = found.best.record[unit, 0], found.best.tile[unit, 0]
    assert found.best.place[unit, 0] == maps[record, tile, :, unit].argmax()


def test_no_size_of_batch_changes_what_is_found(weights, reader, measured):
  again = measure(weights, reader, batch_size=20)
  for name, found in measured.items():
    np.testing.assert_array_equal(again[name].best.record, found.best.record)
    np.testing.assert_allclose(again[name].mean(), found.mean(), rtol=1e-6)


def test_tiles_are_cut_where_their_boxes_say():
  ramp = np.zeros((200, 300, 3), np.uint8)
  ramp[..., 0], ramp[..., 1] = np.arange(300) * 0.8, np.arange(200)[:, None]
  rng = np.random.default_rng(0)
  visit = pipeline.Visit(ramp, -1, 5, 'name', rng, -1)
  one = units.CutTiles(40, 32, 100)(visit)
  left, top, right, bottom = one['box'].T
  np.testing.assert_allclose(right - left, 64, rtol=1e-6)
  np.testing.assert_allclose(bottom - top, 64, rtol=1e-6)
  assert left.min() >= 0 and top.min() >= 0 and right.max() <= 300 and bottom.max() <= 200
  assert left.max() > 200 and top.max() > 100
  # The mean of a ramp is its value in the middle of the box.
  means = one['tiles'].mean((1, 2))
  np.testing.assert_allclose(means[:, 0], 0.8 * ((left + right) / 2 - 0.5), atol=1)
  np.testing.assert_allclose(means[:, 1], (top + bottom) / 2 - 0.5, atol=1)


@pytest.mark.parametrize(
  ('stride', 'padding'), [pytest.param(2, 0, marks=pytest.mark.slow), (4, 5)]
)
def test_receptive_fields_are_where_gradients_come_from(stride, padding):
  weights = transfer_cases.draw(kind='trunk', stride=stride, width=0.1).replace(padding=padding)
  network, side = networks.make_network(weights), 140
  x = np.random.default_rng(0).normal(size=(4, side, side, 3)).astype(np.float32)
  fields = figures.receptive_fields(stride, padding=padding)
  for name, place in (('conv1', 7), ('conv2', 5), ('conv3', 4)):

    def respond(x, name=name, place=place):
      stages = network.apply({'params': weights.params}, x, method='stages')
      return stages[name][:, place, place + 1].sum()

    seen = np.abs(jax.jit(jax.grad(respond))(x)).sum((0, 3)) > 0
    for axis, at in ((1, place), (0, place + 1)):
      first = fields[name].start_px + at * fields[name].pitch_px
      last = first + fields[name].size_px - 1
      wanted = [max(first, 0), min(last, side - 1)]
      assert np.flatnonzero(seen.any(axis))[[0, -1]].tolist() == wanted, (name, axis)


def test_the_command_draws_the_units_and_writes_their_places(weights, folder, tmp_path, capsys):
  files.save_weights(weights, tmp_path / 'w.npz')
  arguments = ['units', f'--weights={tmp_path / "w.npz"}', f'--images={folder}', '--tiles=3']
  visualize.main([*arguments, f'--out={tmp_path / "all.png"}', '--seed=3'])
  written = json.loads((tmp_path / 'all.json').read_text())
  assert {name: len(found) for name, found in written['layers'].items()} == dict.fromkeys(
    figures.CONVOLUTIONS, 6
  )
  assert (written['tile_px'], written['short_side_px']) == (TILE_PX, RESIZE_PX)
  for name, found in written['layers'].items():
    for unit in found:
      assert len({tile['image'] for tile in unit['tiles']}) == 16
      field = unit['tiles'][0]['field_px']
      assert (field is None) == (name not in ('conv1', 'conv2')), name
  assert 'the best 16 of 60 tiles of 48 px' in capsys.readouterr().out
  named = [*arguments, '--units=conv2:3,1', '--units=conv5:0', f'--out={tmp_path / "some.png"}']
  visualize.main([*named, '--seed=3'])
  some = json.loads((tmp_path / 'some.json').read_text())
  assert {name: [unit['unit'] for unit in found] for name, found in some['layers'].items()} == {
    'conv2': [3, 1],
    'conv5': [0],
  }
  heights = [Image.open(tmp_path / name).height for name in ('some.png', 'all.png')]
  assert heights[0] < heights[1] / 2
  same = {unit['unit']: unit for unit in written['layers']['conv2']}
  for unit in some['layers']['conv2']:
    assert unit == same.get(unit['unit'], unit)


@pytest.mark.parametrize(
  ('arguments', 'told'),
  [
    (['--units=conv6:1'], '--units=conv6:1: LAYER:NUMBER,NUMBER with one of conv1'),
    (['--units=conv1'], "--units=conv1: '': conv1 has units 0 to 7"),
    (['--units=conv1:8'], "--units=conv1:8: '8': conv1 has units 0 to 7"),
    (['--units=conv1:1,1'], 'a unit is named twice'),
    (['--units=conv1:1', '--units=conv1:2'], 'conv1 is named twice'),
    (['--tile-px=80', '--short-side=70'], '--tile-px=80: images have a short side of 70 px'),
    (['--tile-px=20'], 'an image of 20 px at stride 2 leaves no map after pool5'),
    (['--tiles=0'], '--tiles=0: at least 1'),
    (['--out=x.json'], '--out=x.json: the name must end in'),
    (['--images=few'], 'few: 2 images; a unit is shown by its best tiles of 16 different ones'),
    (['--images=none'], 'none'),
  ],
)
def test_bad_input_is_told_in_a_line(
  arguments, told, weights, folder, tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  files.save_weights(weights, tmp_path / 'w.npz')
  (tmp_path / 'few').mkdir()
  for number in range(2):
    Image.new('RGB', (90, 90)).save(tmp_path / 'few' / f'{number}.png')
  with pytest.raises(SystemExit):
    visualize.main(['units', '--weights=w.npz', f'--images={folder}', *arguments])
  said = capsys.readouterr().err
  assert told in said and len(said.splitlines()) == 1
  assert not (tmp_path / 'units.png').exists()


def test_a_damaged_image_is_named_and_left_out(weights, folder, tmp_path, capsys):
  files.save_weights(weights, tmp_path / 'w.npz')
  images = tmp_path / 'images'
  images.mkdir()
  for path in folder.rglob('*.png'):
    (images / path.name).write_bytes(path.read_bytes())
  (images / '07.png').write_bytes(b'\x89PNG\r\n\x1a\n')
  arguments = [f'--weights={tmp_path / "w.npz"}', f'--images={images}', '--tiles=1']
  visualize.main(['units', *arguments, '--units=conv1:0', f'--out={tmp_path / "u.png"}'])
  found = capsys.readouterr()
  assert (
    f'of each of 19 images; 1 could not be decoded, see {tmp_path}/u.bad_images.tsv' in found.out
  )
  assert '07.png' in (tmp_path / 'u.bad_images.tsv').read_text()
  written = json.loads((tmp_path / 'u.json').read_text())['layers']['conv1'][0]
  assert len({tile['image'] for tile in written['tiles']} - {'07.png'}) == 16


def test_tiles_are_those_of_pretraining_else_the_paper_s():
  trunk = transfer_cases.draw(kind='trunk')
  assert geometry.choose_tile(trunk) == (64, 256)
  cfn = transfer_cases.draw(kind='cfn', stride=2, side=3)
  assert geometry.choose_tile(cfn) == (57, 228)  # the smallest with a pool5 of 3 x 3
  with pytest.raises(CfnError, match='leaves no map'):
    units.make_cut(trunk, 1, tile_px=30)
