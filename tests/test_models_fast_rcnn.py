"""Pooling of regions, and Fast R-CNN on a canvas: Caffe's rules, golden values, native sizes."""

import io
import math
import tarfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from test_models_golden import _golden_parameters

from cfn_jax.models import fast_rcnn, layers, trunk


def pool_plainly(maps, rois, scale, size):
  """Caffe's loops: the maxima, and where each lies: (row, column), None in an empty bin."""
  _, height, width, channels = maps.shape
  pooled = np.zeros((len(rois), size, size, channels), np.float32)
  places = np.full(pooled.shape, None)
  for r, (image, *ends) in enumerate(rois):
    x1, y1, x2, y2 = (int(math.copysign(math.floor(abs(e * scale) + 0.5), e)) for e in ends)
    tall, wide = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
    for i, j, channel in np.ndindex(size, size, channels):
      cells = [
        (-maps[int(image), row, column, channel], row, column)
        for row in range(y1 + i * tall // size, y1 + math.ceil((i + 1) * tall / size))
        for column in range(x1 + j * wide // size, x1 + math.ceil((j + 1) * wide / size))
        if 0 <= row < height and 0 <= column < width
      ]
      if cells:
        value, *places[r, i, j, channel] = min(cells)  # of equal ones the first
        pooled[r, i, j, channel] = -value
  return pooled, places


@pytest.mark.parametrize('size', [1, 3, 6])
def test_pooling_equals_caffes_loops_where_values_are_equal_too(size):
  rng = np.random.default_rng(size)
  maps = rng.integers(-3, 4, (2, 7, 9, 2)).astype(np.float32)  # many equal maxima
  ends = np.round(rng.uniform(-0.3, 1.3, (40, 4)) * [144, 112, 144, 112])
  rois = np.concatenate([rng.integers(0, 2, (40, 1)), ends], 1).astype(np.float32)
  pooled, places = pool_plainly(maps, rois, 1 / 16, size)
  gradient = rng.integers(-9, 9, pooled.shape).astype(np.float32)
  wanted = np.zeros_like(maps)
  for at, place in np.ndenumerate(places):
    if place is not None:
      wanted[(int(rois[at[0], 0]), *place, at[3])] += gradient[at]

  def pool(maps):
    return layers.roi_max_pool(maps, jnp.asarray(rois), scale=1 / 16, size=size)

  np.testing.assert_array_equal(jax.jit(pool)(maps), pooled)
  many = jnp.asarray(np.tile(rois, (15, 1)))  # more than are pooled at once
  found = layers.roi_max_pool(maps, many, scale=1 / 16, size=size)
  np.testing.assert_array_equal(found, np.tile(pooled, (15, 1, 1, 1)))
  found, back = jax.vjp(jax.jit(pool), maps)
  np.testing.assert_array_equal(found, pooled)
  np.testing.assert_array_equal(back(gradient)[0], wanted)


@pytest.mark.parametrize('setting', ['6x6_scale_1_16', '3x3_scale_1_8', '7x7_scale_1_16'])
def test_pooling_equals_the_golden_file(shared_root, setting):
  golden = np.load(shared_root('golden/roi_max_pool.npz'))
  size, scale = int(setting[0]), 1 / int(setting.rpartition('_')[2])

  @jax.jit
  def pool(maps):
    return layers.roi_max_pool(maps, jnp.asarray(golden['rois']), scale=scale, size=size)

  maps = golden['maps'].transpose(0, 2, 3, 1)
  found, back = jax.vjp(pool, maps)
  np.testing.assert_array_equal(found.transpose(0, 3, 1, 2), golden[f'{setting}/pooled'])
  np.testing.assert_array_equal(pool(maps), found)
  if f'{setting}/top_gradient' in golden:
    gradient = back(golden[f'{setting}/top_gradient'].transpose(0, 2, 3, 1))[0]
    wanted = golden[f'{setting}/map_gradient']
    np.testing.assert_allclose(gradient.transpose(0, 3, 1, 2), wanted, atol=1e-5)


def test_a_gradient_of_regions_takes_little_memory():
  maps = jax.ShapeDtypeStruct((2, 38, 63, 256), jnp.float32)
  rois = jax.ShapeDtypeStruct((128, 5), jnp.float32)

  def total(maps, rois):
    return jnp.sum(layers.roi_max_pool(maps, rois, scale=1 / 16, size=6) ** 2)

  needed = jax.jit(jax.grad(total)).lower(maps, rois).compile().memory_analysis()
  assert needed.temp_size_in_bytes < 80 << 20  # the plain rule: 4 GiB


def golden_network(stride):
  def draw(k, shape, fan_in, gain=1.0):
    rs = np.random.RandomState(k)
    weight = rs.standard_normal(shape).astype('f4') * np.float32(gain * np.sqrt(2 / fan_in))
    return weight, rs.standard_normal([shape[0]]).astype('f4') * np.float32(0.1)

  params = _golden_parameters()
  sizes = {'fc6': (64, 9216, 1), 'fc7': (64, 64, 1), 'cls_score': (21, 64, 0.02)}
  sizes['bbox_pred'] = (84, 64, 0.02)
  for k, (name, (outputs, inputs, gain)) in enumerate(sizes.items(), start=6):
    weight, bias = draw(k, (outputs, inputs), inputs, gain)
    if name == 'fc6':
      weight = weight.reshape(64, 256, 6, 6).transpose(0, 2, 3, 1).reshape(64, -1)
    params[name] = {'kernel': weight.T, 'bias': bias}
  padded = trunk.Trunk(stride=stride, padding=5, pool_padding=1)
  return fast_rcnn.FastRcnn(20, padded, fc6_features=64, fc7_features=64), params


@pytest.mark.parametrize('beyond', [0, 41])
@pytest.mark.parametrize(('stride', 'height', 'width'), [(4, 183, 243), (2, 94, 123)])
def test_the_network_equals_the_golden_file_on_any_canvas(
  shared_root, stride, height, width, beyond
):
  golden = np.load(shared_root('golden/fast_rcnn_forward.npz'))
  name = f'caffenet_s{stride}_{height}x{width}'
  images = np.random.RandomState(100).uniform(0, 255, [2, 3, height, width]).astype('f4')
  images -= np.array([102.9801, 115.9465, 122.7717], 'f4')[:, None, None]
  canvas = np.zeros((1, 2, height + beyond, width + beyond, 3), 'f4')
  canvas[0, :, :height, :width] = images.transpose(0, 2, 3, 1)
  network, params = golden_network(stride)
  extents = np.full((1, 2, 2), [height, width], np.int32)
  scores, moves = jax.jit(network.apply)(
    {'params': params}, canvas, extents, golden[f'{name}/rois'][None]
  )
  for found, blob in ((scores[0], 'cls_score'), (moves.reshape(-1, 84), 'bbox_pred')):
    wanted = golden[f'{name}/{blob}']
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max(), blob


def check_native(sizes, order, stride, factor=1.0, names=('conv5',)):
  """All images on one canvas against each alone; conv5 without the cut moves far more."""
  model = trunk.Trunk(order=order, stride=stride, width=0.05, padding=5, pool_padding=1)
  rng = np.random.default_rng(0)
  sides = np.array([[round(side * factor) for side in size] for size in sizes])
  canvas = np.zeros((len(sides), *sides.max(0), 3), np.float32)
  for image, (height, width) in zip(canvas, sides):
    image[:height, :width] = 50 * rng.standard_normal((height, width, 3))
  params = model.init(jax.random.key(1), canvas[:1])
  params = jax.tree.map(lambda leaf: leaf * 5 if leaf.ndim > 1 else leaf + 0.1, params)

  @jax.jit
  def stages(*arguments):
    found = model.apply(params, *arguments, method='stages')
    return {name: found[name] for name in names}

  together, uncut = stages(canvas, sides.astype(np.int32)), stages(canvas)
  moved = []
  for index, (height, width) in enumerate(sides):
    alone = stages(canvas[index : index + 1, :height, :width])
    for name, maps in alone.items():
      found = together[name][index]
      own = found[: maps.shape[1], : maps.shape[2]]
      largest = np.abs(maps).max()
      assert np.abs(own - maps[0]).max() < 1e-6 * largest, (name, height, width)
      assert not np.any(found[maps.shape[1] :]), name
      assert not np.any(found[:, maps.shape[2] :]), name
    last = alone['conv5'][0]
    moved.append(
      np.abs(uncut['conv5'][index][: last.shape[0], : last.shape[1]] - last).max() / largest
    )
  assert max(moved) > 1e-2  # the cuts are needed


@pytest.mark.slow
@pytest.mark.parametrize(('order', 'stride'), [('caffenet', 4), ('alexnet', 2)])
def test_an_image_on_a_canvas_has_the_maps_of_the_image_alone(order, stride):
  names = ('conv1', 'norm1', 'pool1', 'conv2', 'pool2', 'norm2', 'conv3', 'conv4', 'conv5', 'pool5')
  check_native([(60, 90), (99, 63)], order, stride, names=names)


@pytest.mark.slow
def test_all_native_sizes_of_photographs_fit_one_canvas(shared_root):
  with tarfile.open(shared_root('data/voc_native100.tar')) as tar:
    names = [name for name in tar.getnames() if name.endswith('.jpg')]
    files = [io.BytesIO(tar.extractfile(name).read()) for name in names]
  sizes = sorted({Image.open(file).size[::-1] for file in files})
  assert len(sizes) == 34
  check_native(sizes, 'caffenet', 4, factor=0.5)
