"""Layers against plain `lax`, against SciPy, and against Caffe's formulas in NumPy's float64."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
from jax import lax

from cfn_jax.models import convolutions, figures, layers, pooling, response_norm

# Per layer: input channels, features, kernel, padding, groups.
FULL = {
  'conv1': (3, 96, 11, 0, 1),
  'conv2': (96, 256, 5, 2, 2),
  'conv3': (256, 384, 3, 1, 1),
  'conv4': (384, 384, 3, 1, 2),
  'conv5': (384, 256, 3, 1, 2),
}
# Maps that enter the layers at stride 2, worked out by Caffe's rule.
SIDES = {
  32: {'conv1': 32, 'conv2': 5, 'conv3': 2, 'conv4': 2, 'conv5': 2},
  64: {'conv1': 64, 'conv2': 13, 'conv3': 6, 'conv4': 6, 'conv5': 6},
  75: {'conv1': 75, 'conv2': 16, 'conv3': 8, 'conv4': 8, 'conv5': 8},
}


def lax_convolution(x, kernel, *, stride, padding, groups=1):
  return lax.conv_general_dilated(
    x,
    kernel,
    (stride, stride),
    [(padding, padding)] * 2,
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    feature_group_count=groups,
  )


def normal(seed, *shape):
  return np.random.default_rng(seed).standard_normal(shape, np.float32)


def close(ours, plain, tolerance=2e-6):
  """Compares by norm: sums of thousands of products differ in their last digits."""
  assert ours.shape == plain.shape
  assert np.linalg.norm(ours - plain) <= tolerance * np.linalg.norm(plain)


def check_values_and_gradients(form, plain, x, kernel):
  @jax.jit
  def both(x, kernel, g):
    results = []
    for convolve in (form, plain):
      y, pull = jax.vjp(convolve, x, kernel)
      results.append((y, *pull(g)))
    return results

  shape = jax.eval_shape(plain, x, kernel).shape
  assert jax.eval_shape(form, x, kernel).shape == shape
  for ours, theirs in zip(*both(x, kernel, normal(7, *shape))):
    close(np.asarray(ours), np.asarray(theirs))


# Convolution.


@pytest.mark.parametrize('layer', FULL)
@pytest.mark.parametrize('tile_px', SIDES)
def test_convolution_equals_lax_in_the_shapes_of_the_network(layer, tile_px):
  channels, features, kernel_px, padding, groups = FULL[layer]
  stride = 2 if layer == 'conv1' else 1
  side = SIDES[tile_px][layer]
  settings = {'stride': stride, 'padding': padding, 'groups': groups}
  check_values_and_gradients(
    functools.partial(layers.convolution, **settings),
    functools.partial(lax_convolution, **settings),
    normal(0, 2, side, side, channels),
    normal(1, kernel_px, kernel_px, channels // groups, features),
  )


# The program of 27 channels takes XLA long to compile.
@pytest.mark.parametrize('channels', [4, pytest.param(27, marks=pytest.mark.slow)])
def test_convolution_equals_lax_for_other_inputs_than_colours(channels):
  settings = {'stride': 2, 'padding': 0, 'groups': 1}
  check_values_and_gradients(
    functools.partial(layers.convolution, **settings),
    functools.partial(lax_convolution, **settings),
    normal(0, 2, 32, 32, channels),
    normal(1, 11, 11, channels, 16),
  )


@pytest.mark.parametrize(
  ('form', 'shape', 'kernel_px', 'stride', 'padding'),
  [
    (form, *case)
    for form in (convolutions.strip, convolutions.columns, convolutions.dense)
    for case in (
      ((24, 24, 3), 7, 2, 0),
      ((9, 15, 4), 7, 4, 0),  # not square
      ((15, 13, 27), 5, 2, 2),
      ((13, 13, 8), 5, 1, 2),
      ((6, 6, 16), 3, 1, 1),
      ((2, 2, 16), 3, 1, 1),  # most taps meet padding
      ((1, 3, 5), 3, 1, 1),
      ((3, 3, 5), 3, 1, 0),  # one output
      ((9, 8, 5), 3, 3, 1),  # the last columns are left over
    )
  ],
)
def test_each_form_equals_lax_in_values_and_gradients(form, shape, kernel_px, stride, padding):
  check_values_and_gradients(
    lambda x, kernel: form(x, kernel, stride, padding),
    lambda x, kernel: lax_convolution(x, kernel, stride=stride, padding=padding),
    normal(0, 2, *shape),
    normal(1, kernel_px, kernel_px, shape[-1], 12),
  )


def test_convolution_equals_scipy():
  x, kernel = normal(0, 1, 9, 11, 4), normal(1, 3, 3, 2, 6)
  expected = np.zeros((5, 6, 6))
  padded = np.pad(x[0].astype(np.float64), [(1, 1), (1, 1), (0, 0)])
  for out in range(6):
    first = 0 if out < 3 else 2  # the group's first input
    full = scipy.signal.correlate(padded[..., first : first + 2], kernel[..., out], mode='valid')
    expected[..., out] = full[::2, ::2, 0]
  settings = {'stride': 2, 'padding': 1}
  close(np.asarray(layers.convolution(x, kernel, groups=2, **settings))[0], expected)
  halves = [
    convolutions.reference(x[..., i : i + 2], kernel[..., o : o + 3], 2, 1)
    for i, o in ((0, 0), (2, 3))
  ]
  close(np.concatenate(halves, axis=-1)[0], expected)


def test_every_form_is_chosen_for_some_layer():
  choose = layers.choose_on_cpu
  assert choose((2, 64, 64, 3), (11, 11, 3, 96)) is convolutions.strip
  assert choose((2, 64, 64, 27), (11, 11, 27, 96)) is convolutions.strip
  assert choose((2, 13, 13, 48), (5, 5, 48, 128)) is convolutions.reference
  assert choose((2, 6, 6, 256), (3, 3, 256, 384)) is convolutions.columns
  assert choose((2, 2, 2, 256), (3, 3, 256, 384)) is convolutions.dense


def test_the_platform_that_a_program_is_for_chooses_its_forms():
  def layer(x, kernel):
    maps = layers.convolution(x, kernel, stride=1, padding=0, groups=2)
    return layers.relu(layers.local_response_norm(layers.max_pool(maps))).sum()

  shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 9, 9, 8), (3, 3, 4, 8))]

  def lower(platform):
    traced = jax.jit(jax.grad(layer, argnums=(0, 1))).trace(*shapes)
    return traced.lower(lowering_platforms=(platform,)).as_text()

  # Operations that one platform's form has and the others' have not.
  own = {
    'cpu': ['stablehlo.gather'],  # strips
    'tpu': ['feature_group_count = 2', 'select_and_scatter', 'stablehlo.reduce_window'],
    'cuda': ['optimization_barrier'],
  }
  for platform in own:
    text = lower(platform)
    for other, marks in own.items():
      assert all((mark in text) == (other == platform) for mark in marks), (platform, other)
    # The CPU adds biases to all values, the others to the maxima.
    pooled = jax.jit(layers.pool_biased).trace(
      jax.ShapeDtypeStruct((2, 7, 7, 8), jnp.float32), jax.ShapeDtypeStruct((8,), jnp.float32)
    )
    text = pooled.lower(lowering_platforms=(platform,)).as_text()
    added = {line.split('tensor<')[-1] for line in text.splitlines() if 'stablehlo.add' in line}
    assert added == {'2x7x7x8xf32>' if platform == 'cpu' else '2x3x3x8xf32>'}


def test_layer_adds_its_bias_and_keeps_its_parameters_in_float32():
  initial = figures.Initial()
  layer = layers.Convolution(
    features=8,
    kernel_px=3,
    kernel_init=nn.initializers.normal(initial.std('conv2', ())),
    bias_init=nn.initializers.constant(initial.bias('conv2')),
    padding=1,
    groups=2,
    dtype=jnp.bfloat16,
  )
  x = normal(0, 1, 4, 4, 6)
  params = jax.jit(layer.init)(jax.random.key(0), x)['params']
  assert params['kernel'].shape == (3, 3, 3, 8) and params['kernel'].dtype == jnp.float32
  assert params['bias'].shape == (8,) and (params['bias'] == 1).all()
  apply = jax.jit(lambda params: layers.add_bias(*layer.apply({'params': params}, x)))
  y, without = apply(params), apply(params | {'bias': jnp.zeros(8)})
  assert y.dtype == jnp.bfloat16
  assert np.allclose(np.asarray(y - without, np.float32), 1, atol=0.02)


# Max pooling.

POOLS = [pooling.by_axes, pooling.by_place, pooling.reference]


def caffe_pool(x, gradient=None, pad=0):
  """Caffe's loop over windows of 3 at stride 2, clipped to the image, and its gradient."""
  batch, height, width, channels = x.shape

  def pooled(size):
    count = math.ceil((size + 2 * pad - 3) / 2) + 1
    return count - 1 if pad and (count - 1) * 2 >= size + pad else count

  shape = (batch, pooled(height), pooled(width), channels)
  y, back = np.zeros(shape, x.dtype), np.zeros_like(x)
  for b, i, j, c in np.ndindex(y.shape):
    top, left = max(0, 2 * i - pad), max(0, 2 * j - pad)
    window = x[b, top : 2 * i - pad + 3, left : 2 * j - pad + 3, c]
    y[b, i, j, c] = window.max()
    if gradient is not None:
      di, dj = np.unravel_index(window.argmax(), window.shape)
      back[b, top + di, left + dj, c] += gradient[b, i, j, c]
  return y, back


def distinct(seed, *shape):
  """Values without ties, most below 0 so that padding with zeros would show."""
  values = np.random.default_rng(seed).permutation(int(np.prod(shape)))
  return (values.reshape(shape) - values.size).astype(np.float32)


@pytest.mark.parametrize('pad', [0, 1])
@pytest.mark.parametrize('ties', [False, True])
@pytest.mark.parametrize('form', POOLS)
def test_max_pool_equals_caffes_loop_in_values_and_gradients(form, ties, pad):
  sizes = [(2, 2), (3, 14), (4, 13), (5, 12), (6, 11), (7, 10), (8, 9), (27, 2)]
  xs = [distinct(size[0], 1, *size, 2) // (10 if ties else 1) for size in sizes]
  gs = [normal(0, *caffe_pool(x, pad=pad)[0].shape) for x in xs]

  @jax.jit
  def run(xs, gs):
    results = []
    for x, g in zip(xs, gs):
      y, pull = jax.vjp(lambda x: form(x, 3, 2, pad), x)
      results.append((y, pull(g)[0]))
    return results

  for x, g, (y, back) in zip(xs, gs, run(xs, gs)):
    expected, expected_back = caffe_pool(x, g, pad)
    assert y.shape == expected.shape and (y == expected).all()
    assert np.allclose(back, expected_back, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('form', POOLS)
def test_what_is_not_a_number_passes_through_a_maximum(form):
  x = distinct(0, 1, 7, 7, 1)
  x[0, 4, 3] = np.nan  # in windows 1 and 2 of rows, 1 of columns
  found = np.argwhere(np.isnan(np.asarray(form(x, 3, 2, 0))))
  assert found.tolist() == [[0, 1, 1, 0], [0, 2, 1, 0]]


@pytest.mark.parametrize(
  ('window', 'stride'), [(2, 2), (3, 1), pytest.param(5, 2, marks=pytest.mark.slow), (2, 3)]
)
def test_other_windows_and_strides_equal_lax(window, stride):
  x = distinct(0, 2, 11, 9, 3)
  g = np.round(4 * normal(1, *pooling.reference(x, window, stride, 0).shape))
  results = []
  for form in POOLS:
    y, pull = jax.vjp(lambda x, form=form: form(x, window, stride, 0), x)
    results.append((np.asarray(y), np.asarray(pull(g)[0])))
  theirs, expected = results.pop()
  for ours, back in results:
    assert (ours == theirs).all() and (back == expected).all()


@pytest.mark.slow
def test_the_order_of_bias_and_maximum_changes_no_value_and_no_gradient():
  """But for float32 values that a bias makes equal: then the CPU takes the first in its order."""

  def run(maps, bias, order):
    before = layers.max_pool(layers.add_bias(maps, bias))
    after = layers.add_bias(layers.max_pool(maps), bias)
    return {'ours': layers.pool_biased(maps, bias), 'before': layers.relu(before)}.get(
      order, layers.relu(after)
    )

  def gradients(maps, bias, order):
    y, pull = jax.vjp(lambda *inputs: run(*inputs, order), maps, bias)
    return [np.asarray(array, np.float32) for array in (y, *pull(jnp.ones_like(y)))]

  for dtype, bias in ((jnp.float32, 0.5), (jnp.bfloat16, 1.0)):
    maps = jnp.asarray(normal(0, 4, 13, 13, 8), dtype)
    ours, after = (gradients(maps, jnp.full(8, bias), order) for order in ('ours', 'after'))
    for found, expected in zip(ours, after):
      assert np.allclose(found, expected, rtol=1e-6)
  maps = jnp.zeros((1, 3, 3, 1)).at[0, 2, 2, 0].set(1e-9)  # vanishes beside a bias of 1
  places = {
    order: np.argwhere(gradients(maps, jnp.ones(1), order)[1][0, :, :, 0]).tolist()
    for order in ('before', 'after')
  }
  assert places == {'before': [[0, 0]], 'after': [[2, 2]]}


def test_pooled_sizes_round_up():
  assert [figures.pooled_size(size) for size in (109, 55, 54, 33, 27, 16, 14, 13, 8, 7, 6, 4)] == [
    *(54, 27, 27, 16, 13, 8, 7, 6, 4, 3, 3, 2)
  ]


@pytest.mark.parametrize('shape', [(1, 1, 8, 2), (1, 8, 1, 2), (1, 1, 1, 2)])
def test_max_pool_refuses_a_map_that_leaves_nothing_and_names_its_size(shape):
  with pytest.raises(ValueError, match=f'{shape[1]} x {shape[2]} is too small'):
    layers.max_pool(np.zeros(shape, np.float32))


# Local response normalisation.


def caffe_lrn(x, window=5, alpha=1e-4, beta=0.75):
  """Caffe's formula in float64, one channel after the other."""
  x = np.asarray(x, np.float64)
  y = np.empty_like(x)
  half = window // 2
  for c in range(x.shape[-1]):
    around = x[..., max(0, c - half) : c + half + 1]
    y[..., c] = x[..., c] / (1 + alpha / window * np.square(around).sum(-1)) ** beta
  return y


CAFFE = (5, 1e-4, 0.75)
NORM_FORMS = [
  response_norm.Form(),
  response_norm.Form(again=True),
  response_norm.Form(by_band=True),
]


@pytest.mark.parametrize('form', NORM_FORMS, ids=str)
@pytest.mark.parametrize(
  ('channels', 'arguments'),
  [(96, CAFFE), (7, CAFFE), (2, CAFFE), (1, CAFFE), (12, (3, 0.3, 0.75)), (12, (5, 0.01, 0.5))],
)
def test_local_response_norm_equals_caffes_formula_in_float64(channels, arguments, form):
  x = 100 * normal(0, 2, 3, 3, channels)  # far from 1, so that alpha matters
  y = response_norm.normalise(x, *arguments, form)
  expected = caffe_lrn(x, *arguments)
  assert np.allclose(y, expected, rtol=2e-6, atol=0)
  assert np.abs(expected / x - 1).max() > 0.05


def test_local_response_norm_at_a_value_worked_by_hand():
  # Five channels of 100: 1 + 1e-4 / 5 * 5 * 100 ** 2 = 2 in the middle; 1.8 and 1.6 at the edges.
  y = layers.local_response_norm(jnp.full((1, 5), 100.0))
  expected = [100 / scale**0.75 for scale in (1.6, 1.8, 2.0, 1.8, 1.6)]
  assert np.allclose(y[0], expected, rtol=1e-6)


@pytest.mark.parametrize('form', NORM_FORMS, ids=str)
@pytest.mark.parametrize('arguments', [CAFFE, (3, 0.3, 0.75), (5, 0.01, 0.5)])
def test_gradient_of_local_response_norm_equals_autodiff_of_the_formula(arguments, form):
  window, alpha, beta = arguments

  def plain(x):
    half = window // 2
    sums = [jnp.square(x[..., max(0, c - half) : c + half + 1]).sum(-1) for c in range(x.shape[-1])]
    return x * (1 + alpha / window * jnp.stack(sums, axis=-1)) ** -beta

  x, g = 100 * normal(0, 2, 2, 3, 10), normal(1, 2, 2, 3, 10)
  gradients = [
    jax.jit(lambda x, g, f=f: jax.vjp(f, x)[1](g)[0])(x, g)
    for f in (lambda x: response_norm.normalise(x, *arguments, form), plain)
  ]
  close(np.asarray(gradients[0]), np.asarray(gradients[1]), 5e-6)


@pytest.mark.parametrize('form', NORM_FORMS, ids=str)
def test_sums_of_local_response_norm_run_in_float32_for_bfloat16(form):
  # 16 ** 2 + 1 is 256 in bfloat16, whose steps are 2 there: the small channels would vanish.
  x = jnp.array([[1, 1, 16, 1, 1]], jnp.bfloat16)
  y = response_norm.normalise(x, 5, 5.0, 0.75, form)
  expected = np.array(
    [[v / (1 + s) ** 0.75 for v, s in zip((1, 1, 16, 1, 1), (258, 259, 260, 259, 258))]]
  )
  assert y.dtype == jnp.bfloat16
  # bfloat16 keeps 8 bits: rounding the result costs at most 1 / 512 of it.
  assert np.abs(np.asarray(y, np.float64) / expected - 1).max() < 1 / 500

  gradient = jax.grad(lambda x: response_norm.normalise(x, 5, 5.0, 0.75, form).sum())
  wide = gradient(x.astype(jnp.float32))
  narrow = gradient(x)
  assert narrow.dtype == jnp.bfloat16
  assert np.abs(np.asarray(narrow, np.float64) / np.asarray(wide) - 1).max() < 1 / 200


@pytest.mark.parametrize(('std', 'most'), [(1, 1.01), (30, 1.01), (100, 1.1), (300, 1.3)])
@pytest.mark.parametrize('form', NORM_FORMS[1:], ids=str)
def test_each_form_is_as_near_to_float32_in_bfloat16_as_the_plain_one(form, std, most):
  x, g = std * normal(0, 4, 6, 6, 96), normal(1, 4, 6, 6, 96)
  x, g = (jnp.asarray(array, jnp.bfloat16) for array in (x, g))

  def run(form, dtype):
    y, pull = jax.vjp(lambda x: response_norm.normalise(x, *CAFFE, form), x.astype(dtype))
    return [np.asarray(array, np.float64) for array in (y, *pull(g.astype(dtype)))]

  exact = run(response_norm.Form(), jnp.float32)
  ours, plain = run(form, jnp.bfloat16), run(response_norm.Form(), jnp.bfloat16)
  for found, reference, value in zip(ours, plain, exact):
    error, usual = (np.linalg.norm(array - value) for array in (found, reference))
    assert 0 < error <= most * usual


@pytest.mark.slow
def test_the_places_of_maxima_are_those_of_lax_in_bfloat16():
  x = jnp.asarray(normal(0, 8, 13, 13, 16), jnp.bfloat16)
  g = jnp.round(4 * normal(1, 8, 6, 6, 16)).astype(jnp.bfloat16)  # whole: sums are exact
  results = []
  for form in POOLS:
    y, pull = jax.vjp(lambda x, form=form: form(x, 3, 2, 0), x)
    results.append((np.asarray(y, np.float32), np.asarray(pull(g)[0], np.float32)))
  theirs, expected = results.pop()
  for ours, back in results:
    assert (ours == theirs).all() and (back == expected).all()


def test_gradient_of_a_bias_is_summed_in_float32():
  # 4,095 gradients of 1 + 1/128: in bfloat16 their sum has steps of 32.
  gradient = jnp.full((63, 65, 1), 1.0078125, jnp.bfloat16)
  x, bias = jnp.zeros(gradient.shape, jnp.bfloat16), jnp.zeros(1)
  y, pull = jax.vjp(layers.add_bias, x, bias)
  assert y.dtype == jnp.bfloat16
  back, summed = pull(gradient)
  assert (back == gradient).all() and summed.dtype == jnp.float32
  assert summed[0] == 4095 * 1.0078125


def test_relu_passes_gradients_where_it_lets_values_through():
  x = jnp.array([-1.0, 0.0, 2.0, jnp.nan])
  y, pull = jax.vjp(layers.relu, x)
  assert np.array_equal(y, [0, 0, 2, np.nan], equal_nan=True)
  assert pull(jnp.full(4, 3.0))[0].tolist() == [0, 0, 3, 0]
