"""Frozen features: pooled as published, the same however they are extracted, cached safely."""

import json

import jax
import jax.numpy as jnp
import labelled_cases
import numpy as np
import probe_cases
import pytest
import scipy.ndimage
import transfer_cases

from cfn_jax.evaluation import trunks
from cfn_jax.evaluation.frozen import feature_cache, features, pooling, probing
from cfn_jax.models import inputs
from cfn_jax.training import devices
from cfn_jax.transfer import surgery
from cfn_jax.transfer import weights as weights_lib


def make_maps(side, channels=2, seed=0):
  return np.random.default_rng(seed).normal(size=(2, side, side, channels)).astype(np.float32)


@pytest.mark.parametrize(
  ('layer', 'side', 'kernel', 'stride', 'pooled', 'channels'),
  [
    ('conv1', 109, 28, 9, 10, 96),
    ('conv1', 55, 19, 4, 10, 96),
    ('conv2', 54, 24, 6, 6, 256),
    ('conv2', 27, 12, 3, 6, 256),
    ('conv3', 27, 14, 3, 5, 384),
    ('conv4', 13, 9, 1, 5, 384),
    ('conv5', 27, 16, 2, 6, 256),
    ('conv5', 13, 8, 1, 6, 256),
  ],
)
def test_average_pooling_has_the_published_windows(layer, side, kernel, stride, pooled, channels):
  maps = make_maps(side, channels)
  windows = np.lib.stride_tricks.sliding_window_view(maps, (kernel, kernel), axis=(1, 2))
  expected = windows[:, ::stride, ::stride].mean((-1, -2))[:, :pooled, :pooled]
  found = np.asarray(pooling.pool(jnp.asarray(maps), layer, kind='average', dimensions=9600))
  assert found.shape == (2, pooled, pooled, channels) and 9000 < found[0].size <= 9600
  np.testing.assert_allclose(found, expected, atol=1e-5)


def test_adaptive_pooling_overlaps_as_pytorchs_does():
  maps = np.arange(49, dtype=np.float32).reshape(1, 7, 7, 1)
  found = np.asarray(pooling.pool(jnp.asarray(maps), 'conv1', kind='adaptive', dimensions=9))
  # 7 to 3: rows 0-2, 2-4, 4-6.
  assert found[0, ..., 0].tolist() == [[16, 18, 20], [30, 32, 34], [44, 46, 48]]


def test_max_pooling_reaches_every_value_and_keeps_within_the_limit():
  maps = make_maps(13, 256)
  found = np.asarray(pooling.pool(jnp.asarray(maps), 'conv5', kind='max', dimensions=9000))
  assert found.shape == (2, 5, 5, 256) and found[0].size <= 9000
  np.testing.assert_array_equal(found.max((1, 2)), maps.max((1, 2)))


def test_bilinear_pooling_is_scipys_interpolation():
  maps = make_maps(12, 1)
  found = np.asarray(pooling.pool(jnp.asarray(maps), 'conv3', kind='bilinear', dimensions=25))
  at = np.linspace(0, 11, 5)
  grid = np.meshgrid(at, at, indexing='ij')
  for ours, theirs in zip(found[..., 0], maps[..., 0]):
    np.testing.assert_allclose(
      ours, scipy.ndimage.map_coordinates(theirs, grid, order=1), atol=1e-6
    )


def test_a_small_map_is_left_as_it_is():
  maps = jnp.asarray(make_maps(3))
  for kind in pooling.KINDS:
    np.testing.assert_array_equal(pooling.pool(maps, 'conv5', kind=kind, dimensions=9600), maps)


def make_trunk(**fields):
  weights = transfer_cases.draw(width=0.1, **fields)
  return trunks.Trunk('file', weights, {})


def make_extractor(trunk, layers, *, view_px=67, stride=4, dimensions=200, kind='average'):
  return features.make_extractor(
    trunk, layers=layers, view_px=view_px, stride=stride, kind=kind, dimensions=dimensions
  )


def extract_views(extractor, views):
  run = jax.jit(lambda params, images: extractor(params, images))
  return run(extractor.params(), views)


@pytest.mark.slow
def test_features_are_the_trunks_stages_pooled():
  trunk = make_trunk(kind='trunk', record=inputs.RECORDS['caffe'])
  extractor = make_extractor(trunk, features.MAPS, kind='max')
  views = transfer_cases.images(2, 67)
  found = extract_views(extractor, views)
  stages = transfer_cases.trunk_stages(trunk.weights, views)
  for name in features.MAPS:
    pooled = pooling.pool(jnp.asarray(stages[name]), name, kind='max', dimensions=200)
    expected = np.asarray(pooled).reshape(2, -1)
    np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-4)


def test_connected_features_of_an_alexnet_are_its_own():
  trunk = make_trunk(side=1, features=24)
  extractor = make_extractor(trunk, ('fc6', 'fc7'))
  views = transfer_cases.images(2, 67)
  found = extract_views(extractor, views)
  expected = transfer_cases.ours(trunk.weights, trunk.weights.input.prepare(views))
  for name in ('fc6', 'fc7'):
    assert transfer_cases.difference(np.asarray(found[name]), expected[name]) < 1e-5


@pytest.mark.slow
def test_connected_features_of_a_cfn_see_the_middle_tile_of_each_cell():
  record = inputs.InputRecord('rgb', (123.0, 117.0, 104.0), (1.0, 1.0, 1.0), 'tile', 58.0)
  trunk = make_trunk(kind='cfn', stride=2, side=1, features=8, record=record)
  trunk.weights.origin['config'] = {'puzzle': {'tile_px': 33}}
  extractor = make_extractor(trunk, ('fc6', 'fc7'), view_px=111, stride=2)
  views = transfer_cases.images(1, 111)
  found = extract_views(extractor, views)
  tiles = [views[:, y : y + 33, x : x + 33] for y in (2, 39, 76) for x in (2, 39, 76)]
  prepared = record.prepare(np.stack(tiles, axis=1))
  params = trunk.weights.params
  convolutions = {name: params[name] for name in weights_lib.CONVOLUTIONS}
  pool5 = transfer_cases.ours(
    trunk.weights.replace(kind='trunk', params=convolutions), prepared[0]
  )['pool5']
  fc6 = np.maximum(0, pool5.reshape(9, -1) @ params['fc6']['kernel'] + params['fc6']['bias'])
  fc7 = np.maximum(0, fc6.reshape(1, -1) @ params['fc7']['kernel'] + params['fc7']['bias'])
  assert transfer_cases.difference(np.asarray(found['fc6']), fc6.reshape(1, -1)) < 1e-4
  assert transfer_cases.difference(np.asarray(found['fc7']), fc7) < 1e-4


def test_layers_that_the_weights_lack_are_refused():
  with pytest.raises(weights_lib.WeightsError, match='no fc6 and no fc7 in these weights'):
    make_extractor(make_trunk(kind='trunk'), ('pool5', 'fc7'))
  with pytest.raises(weights_lib.WeightsError, match='pool5 of side 6'):
    make_extractor(make_trunk(), ('fc6',))
  with pytest.raises(ValueError, match='a view holds 3 x 3 tiles of'):
    make_extractor(make_trunk(kind='cfn', stride=2, side=3), ('fc6',), stride=2)
  for layers in ((), ('conv6',), ('conv1', 'conv1')):
    with pytest.raises(ValueError, match='different ones of conv1'):
      make_extractor(make_trunk(), layers)
  with pytest.raises(ValueError, match='leaves no map after pool5'):
    make_extractor(make_trunk(), ('conv1',), view_px=20)


def test_a_random_baseline_has_the_shapes_and_feels_the_same_images():
  record = inputs.InputRecord('rgb', (123.0, 117.0, 104.0), (1.0, 1.0, 1.0), 'tile', 58.0)
  trunk = make_trunk(kind='cfn', stride=2, side=1, features=8, record=record)
  drawn = trunks.draw_like(trunk, 'he', seed=1, layers=features.DRAWN)
  for name, layer in drawn.weights.params.items():
    assert layer['kernel'].shape == trunk.weights.params[name]['kernel'].shape
  assert drawn.weights.kind == 'cfn'
  assert not np.array_equal(
    drawn.weights.params['fc6']['kernel'], trunk.weights.params['fc6']['kernel']
  )
  assert drawn.weights.input.normalization == 'tile'
  placed = surgery.to_alexnet(drawn.weights, num_classes=0).input
  np.testing.assert_allclose(placed.scale, inputs.RECORDS['unit'].scale, rtol=1e-12)


# The cache.


def measure(params, batch):
  """Features of which nothing is learned: the mean of each channel, of each view."""
  means = jnp.mean(batch['image'].astype(jnp.float32), axis=(2, 3)) * params
  draws = means.shape[1]
  return {'mean': means, 'label': jnp.repeat(batch['label'][:, None], draws, axis=1)}


def make_batches(count, size, *, seen=None, stop_after=99, bad=()):
  def batches(first):
    for number in range(-(-(count - first) // size)):
      if number == stop_after:
        raise KeyboardInterrupt
      index = first + number * size + np.arange(size)
      if seen is not None:
        seen.append(int(index[0]))
      real = (index < count) & ~np.isin(index, bad)
      image = np.broadcast_to(index[:, None, None, None, None] % 256, (size, 2, 4, 4, 3))
      yield {
        'image': image.astype(np.uint8),
        'label': (index % 5).astype(np.int32),
        'mask': real.astype(np.float32),
      }

  return batches


def fill(folder, *, count=21, size=4, part_images=6, devices_used=1, dtype='float32', **more):
  cache = feature_cache.open_cache(
    folder, 'test', {'weights': 'w'}, images=count, part_images=part_images
  )
  return features.extract(
    measure,
    np.float32(1.5),
    make_batches(count, size, **more),
    cache,
    mesh=devices.make_mesh(devices_used),
    dtype=dtype,
  )


def test_every_image_has_its_rows_once_in_order(tmp_path):
  found = fill(tmp_path, bad=(7, 20))
  images = [index for index in range(21) if index not in (7, 20)]
  assert len(found) == 2 * len(images)
  expected = np.repeat(images, 2)
  np.testing.assert_allclose(found.rows('mean', range(len(found)))[:, 0], expected * 1.5)
  np.testing.assert_array_equal(found.labels, expected % 5)
  np.testing.assert_allclose(
    found.rows('mean', np.array([37, 0, 13]))[:, 1], expected[[37, 0, 13]] * 1.5
  )


def test_moments_are_those_of_all_rows_and_are_kept(tmp_path):
  found = fill(tmp_path)
  rows = found.rows('mean', range(len(found))).astype(np.float64)
  for _ in range(2):
    mean, variance = found.moments('mean')
    np.testing.assert_allclose(mean, rows.mean(0))
    np.testing.assert_allclose(variance, rows.var(0))
  assert (found.cache.folder / 'moments-mean.npy').exists()


@pytest.mark.parametrize(('size', 'devices_used'), [(5, 1), (8, 8), (64, 4), (1, 1)])
def test_batch_size_and_devices_change_nothing(tmp_path, size, devices_used):
  one = fill(tmp_path / 'one')
  other = fill(tmp_path / 'other', size=size, devices_used=devices_used)
  assert len(one) == len(other)
  rows = range(len(one))
  np.testing.assert_allclose(one.rows('mean', rows), other.rows('mean', rows), rtol=1e-6)
  np.testing.assert_array_equal(one.labels, other.labels)


def test_a_stopped_extraction_goes_on_after_its_last_whole_part(tmp_path):
  with pytest.raises(KeyboardInterrupt):
    fill(tmp_path / 'a', stop_after=4)  # 16 images arrived: two parts of 6 are whole
  folder = next((tmp_path / 'a').iterdir())
  kept = {path.name: path.stat().st_mtime_ns for path in folder.glob('*-0000[01].*')}
  assert len(kept) == 6
  assert not list(folder.glob('*-00002.*'))
  seen = []
  found = fill(tmp_path / 'a', size=3, seen=seen)  # another batch size, even
  assert seen[0] == 12
  assert kept == {name: (folder / name).stat().st_mtime_ns for name in kept}
  whole = fill(tmp_path / 'b')
  for path in whole.cache.folder.iterdir():
    assert path.read_bytes() == (folder / path.name).read_bytes()
  seen.clear()
  fill(tmp_path / 'a', seen=seen)
  assert not seen and len(found) == 42


def test_a_damaged_cache_is_refused(tmp_path):
  folder = fill(tmp_path).cache.folder
  path = folder / 'mean-00001.npy'
  good = path.read_bytes()
  path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
  with pytest.raises(feature_cache.CacheError, match=r'mean-00001\.npy is damaged'):
    fill(tmp_path)
  path.unlink()
  with pytest.raises(feature_cache.CacheError, match=r'mean-00001\.npy cannot be read'):
    fill(tmp_path)
  path.write_bytes(good)
  fill(tmp_path)
  (folder / 'part-00002.json').write_text('{')
  with pytest.raises(feature_cache.CacheError, match=r'part-00002\.json is missing or damaged'):
    fill(tmp_path)
  (folder / 'index.json').write_text(json.dumps({'weights': 'others'}))
  with pytest.raises(feature_cache.CacheError, match='of other features'):
    fill(tmp_path)


def test_features_too_large_for_half_precision_are_refused(tmp_path):
  cache = feature_cache.open_cache(tmp_path, 'test', {}, images=4, part_images=4)
  with pytest.raises(feature_cache.CacheError, match='too large for float16'):
    features.extract(
      measure,
      np.float32(1e6),
      make_batches(4, 4),
      cache,
      mesh=devices.make_mesh(1),
      dtype='float16',
    )


@pytest.mark.slow
def test_the_network_gives_the_same_features_in_any_batch_on_any_devices(tmp_path):
  folders = labelled_cases.make_class_folders(tmp_path / 'images', train=4, test=3)
  found = []
  for size, count in ((8, 8), (5, 1)):
    config = probe_cases.make_config(
      'linear_probe', folders, eval_batch_size=size, num_devices=count, layers=('conv2', 'conv5')
    )
    probe = probing.open_probe(config, crop='random', mirror=True, draws=2)
    found.append(probing.extract(probe, 'random', config, tmp_path / f'run{size}'))
  for one, other in zip(
    (found[0].training, found[0].testing), (found[1].training, found[1].testing)
  ):
    assert len(one) == len(other)
    for layer in one.layers:
      a, b = one.rows(layer, range(len(one))), other.rows(layer, range(len(one)))
      assert np.max(np.abs(a - b)) <= 1e-5 * np.max(np.abs(a))
  assert (len(found[0].training), len(found[0].testing)) == (2 * 12, 9)
