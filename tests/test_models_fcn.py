"""FCN-AlexNet-32s: golden values, its enlargement, native sizes on one canvas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_models_golden import _golden_parameters

from cfn_jax.models import fcn, layers, trunk, upsampling

MEAN = np.array([104.00699, 116.66877, 122.67892], 'f4')


def golden_network():
  params = _golden_parameters()
  sizes = {'fc6': (48, 256, 6, 1.0), 'fc7': (48, 48, 1, 1.0), 'score_fr': (21, 48, 1, 0.1)}
  for k, (name, (outputs, inputs, side, gain)) in enumerate(sizes.items(), start=6):
    rs = np.random.RandomState(k)
    weight = rs.standard_normal([outputs, inputs, side, side]).astype('f4')
    weight *= np.float32(gain * np.sqrt(2 / (inputs * side**2)))
    bias = rs.standard_normal([outputs]).astype('f4') * np.float32(0.1)
    params[name] = {'kernel': weight.transpose(2, 3, 1, 0).reshape(-1, outputs), 'bias': bias}
  return fcn.Fcn(21, trunk.Trunk(padding=100), fc6_features=48, fc7_features=48), params


@pytest.mark.parametrize('beyond', [0, 53])
@pytest.mark.parametrize(('height', 'width'), [(61, 83), (150, 207)])
def test_the_network_equals_the_golden_file_on_any_canvas(shared_root, height, width, beyond):
  golden = np.load(shared_root('golden/fcn_alexnet_32s.npz'))
  name = f'fcn32s_{height}x{width}'
  canvas = np.zeros((1, height + beyond, width + 2 * beyond, 3), np.float32)
  canvas[0, :height, :width] = golden[f'{name}/picture'][..., ::-1] - MEAN
  network, params = golden_network()
  extents = np.array([[height, width]], np.int32)
  found = jax.jit(network.apply)({'params': params}, canvas, extents)[0, :height, :width]
  scores = np.asarray(found).transpose(2, 0, 1)
  if f'{name}/score' in golden:
    wanted = golden[f'{name}/score'][0]
    assert np.abs(scores - wanted).max() < 1e-5 * np.abs(wanted).max()
  else:
    wanted = golden[f'{name}/score/every97']
    assert np.abs(scores.ravel()[::97] - wanted).max() < 1e-5 * np.abs(wanted).max()
  np.testing.assert_array_equal(scores.argmax(0), golden[f'{name}/prediction'])


@pytest.mark.parametrize(
  ('stride', 'kernel_px', 'crop_px'), [(32, 63, 18), (32, 64, 19), (2, 3, 1)]
)
def test_the_enlargement_is_a_transposed_convolution(stride, kernel_px, crop_px):
  """Each cell adds its value times a product of two triangles, by plain loops."""
  rng = np.random.default_rng(0)
  maps = rng.standard_normal((1, 3, 4, 2)).astype(np.float32)
  middle = (kernel_px - 1) / 2
  half = (kernel_px + 1) // 2
  triangle = np.array([1 - abs(i - middle) / half for i in range(kernel_px)])
  sides = [stride * (count - 1) + kernel_px for count in maps.shape[1:3]]
  whole = np.zeros((*sides, 2))
  for row, column in np.ndindex(3, 4):
    at = slice(stride * row, stride * row + kernel_px), slice(stride * column, None)
    whole[at[0], stride * column : stride * column + kernel_px] += (
      np.outer(triangle, triangle)[..., None] * maps[0, row, column]
    )
  wanted = whole[crop_px : crop_px + 20, crop_px : crop_px + 30]
  settings = {'stride': stride, 'kernel_px': kernel_px, 'crop_px': crop_px}
  for form in (layers.upsample_bilinear, upsampling.by_products, upsampling.by_blends):
    enlarge = functools.partial(form, sides=wanted.shape[:2], **settings)
    found, pull = jax.vjp(enlarge, jnp.asarray(maps))
    np.testing.assert_allclose(found[0], wanted, atol=1e-5)
    (gradient,) = pull(2 * found)
    # The enlargement is linear: the gradient of its squared sum, times the maps, is twice that.
    assert np.vdot(gradient, maps) == pytest.approx(2 * np.vdot(found, found), rel=1e-5)


def test_sides_of_the_score_are_those_of_the_published_network():
  assert [fcn.score_sides(side) for side in (1, 61, 83, 150, 207, 375, 500)] == [
    *(1, 2, 3, 5, 7, 12, 16)
  ]
  np.testing.assert_array_equal(fcn.score_sides(np.array([375, 500])), [12, 16])


def check_native(sizes):
  network = fcn.Fcn(
    3, trunk.Trunk(padding=100, width=0.05), fc6_features=8, fc7_features=8, dropout=0.0
  )
  rng = np.random.default_rng(0)

  def draw(leaf):
    std = 0.1 if len(leaf.shape) == 1 else np.sqrt(2 / np.prod(leaf.shape[:-1]))
    return np.float32(std) * rng.standard_normal(leaf.shape).astype('f4')

  params = jax.tree.map(draw, fcn.shapes(network))
  sides = np.array(sizes, np.int32)
  canvas = np.zeros((len(sides), *sides.max(0), 3), np.float32)
  for image, (height, width) in zip(canvas, sides):
    image[:height, :width] = 50 * rng.standard_normal((height, width, 3))
  run = jax.jit(lambda images, extents: network.apply({'params': params}, images, extents))
  together = np.asarray(run(canvas, sides))
  for index, (height, width) in enumerate(sides):
    alone = run(canvas[index : index + 1, :height, :width], sides[index : index + 1])[0]
    difference = np.linalg.norm(together[index, :height, :width] - alone)
    assert difference < 1e-6 * np.linalg.norm(alone), (height, width)


def test_an_image_on_a_canvas_has_the_scores_of_the_image_alone():
  check_native([(40, 90), (77, 30)])


@pytest.mark.slow
def test_the_gradient_on_a_canvas_is_that_of_the_image_alone():
  own = trunk.Trunk(order='alexnet', padding=100, width=0.05, remat=True)
  network = fcn.Fcn(3, own, fc6_features=8, fc7_features=8, dropout=0.0)
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda leaf: 0.1 * rng.standard_normal(leaf.shape).astype('f4'), fcn.shapes(network)
  )
  height, width = 40, 90
  image, weight = (rng.standard_normal((1, height, width, 3)).astype('f4') for _ in range(2))
  extent = np.array([[height, width]], np.int32)

  def pull(canvas):
    def total(params):
      scores = network.apply({'params': params}, canvas, extent)[:, :height, :width]
      return jnp.sum(scores * weight)

    return jax.jit(jax.grad(total))(params)

  larger = np.pad(image, ((0, 0), (0, 37), (0, 21), (0, 0)))
  for alone, placed in zip(*(jax.tree.leaves(pull(canvas)) for canvas in (image, larger))):
    assert np.linalg.norm(alone) > 0
    assert np.linalg.norm(alone - placed) < 1e-5 * np.linalg.norm(alone)


@pytest.mark.slow
def test_ten_sizes_share_one_canvas():
  sizes = [(375, 500), (500, 375), (333, 500), (500, 334), (281, 500), (500, 230), (442, 500)]
  check_native([(h // 3, w // 3) for h, w in [*sizes, (500, 500), (400, 400), (96, 500)]])
