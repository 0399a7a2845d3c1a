"""Laws of the networks: published sizes, shared parameters, tiles that do not see each other."""

import math

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cfn_jax.models import alexnet, cfn, figures, trunk

TINY = {'fc6_features': 12, 'fc7_features': 24}
NARROW = {'width': 1 / 6}  # 16 channels in conv1


def shapes_of(model, *input_shape):
  return alexnet.parameter_shapes(model, input_shape)


def draw(model, *input_shape, seed=0):
  initial = model.trunk.initial
  return alexnet.draw_parameters(shapes_of(model, *input_shape), initial, seed=seed)


def tiles_of(seed, *shape):
  return np.random.default_rng(seed).standard_normal(shape, np.float32)


def count(tree):
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


# Sizes.

CONVOLUTIONS = {
  'conv1': 34_944,
  'conv2': 307_456,
  'conv3': 885_120,
  'conv4': 663_936,
  'conv5': 442_624,
}


@pytest.mark.parametrize(
  ('model', 'tile_px', 'fc6', 'fc7', 'fc8', 'total'),
  [
    (cfn.Cfn(1000), 75, 2_097_664, 18_878_464, 4_097_000, 27_407_208),
    (cfn.Cfn(1000), 64, 1_180_160, 18_878_464, 4_097_000, 26_489_704),
    (cfn.Cfn(1000, fc6_features=1024), 64, 2_360_320, 37_752_832, 4_097_000, 46_544_232),
    (cfn.Cfn(100, fc6_features=1024), 64, 2_360_320, 37_752_832, 409_700, 42_856_932),
    (cfn.Cfn(701, fc6_features=1024), 64, 2_360_320, 37_752_832, 2_871_997, 45_319_229),
    (alexnet.AlexNet(1000), 227, 37_752_832, 16_781_312, 4_097_000, 60_965_224),
  ],
)
def test_parameters_are_as_many_as_published(model, tile_px, fc6, fc7, fc8, total):
  tiles = (1, 9) if isinstance(model, cfn.Cfn) else (1,)
  shapes = shapes_of(model, *tiles, tile_px, tile_px, 3)
  counted = {name: count(layer) for name, layer in shapes.items()}
  assert counted == CONVOLUTIONS | {'fc6': fc6, 'fc7': fc7, 'fc8': fc8}
  assert sum(CONVOLUTIONS.values()) == 2_334_080
  assert alexnet.count_parameters(shapes) == total


def test_stacked_network_has_its_published_parameters():
  shapes = shapes_of(cfn.Stacked(1000), 1, 9, 64, 64, 3)
  assert alexnet.count_parameters(shapes) == 32_932_456
  # 27 channels instead of 3 enter conv1; the rest of the trunk is the same.
  assert shapes['conv1']['kernel'].shape == (11, 11, 27, 96)
  assert [count(shapes[name]) for name in figures.CONVOLUTIONS[1:]] == list(CONVOLUTIONS.values())[
    1:
  ]


def test_parameters_have_caffes_names_at_the_same_path_in_every_network():
  networks = (
    (alexnet.AlexNet(10), (1, 227, 227, 3)),
    (cfn.Cfn(10), (1, 9, 64, 64, 3)),
    (cfn.Stacked(10), (1, 9, 64, 64, 3)),
  )
  layers = ('conv1', 'conv2', 'conv3', 'conv4', 'conv5', 'fc6', 'fc7', 'fc8')
  expected = {(layer, name) for layer in layers for name in ('kernel', 'bias')}
  trunks = []
  for model, shape in networks:
    flat = flax.traverse_util.flatten_dict(shapes_of(model, *shape))
    assert set(flat) == expected
    assert {leaf.dtype for leaf in flat.values()} == {jnp.dtype(jnp.float32)}
    trunks.append(
      {path: leaf.shape for path, leaf in flat.items() if path[0] in figures.CONVOLUTIONS}
    )
  assert trunks[0] == trunks[1]
  assert trunks[0]['conv2', 'kernel'] == (5, 5, 48, 256)


@pytest.mark.parametrize('order', figures.ORDERS)
@pytest.mark.parametrize(
  ('size_px', 'stride', 'sides'),
  [
    (64, 2, (27, 13, 6, 3)),
    (75, 2, (33, 16, 8, 4)),
    (64, 4, (14, 7, 3, 1)),
    (75, 4, (17, 8, 4, 2)),
    (227, 4, (55, 27, 13, 6)),
    (224, 4, (54, 27, 13, 6)),
    (225, 4, (54, 27, 13, 6)),
    (227, 2, (109, 54, 27, 13)),
  ],
)
def test_maps_have_caffes_sizes(order, size_px, stride, sides):
  model = alexnet.AlexNet(2, trunk.Trunk(order=order, stride=stride), 8, 8)
  images = jax.ShapeDtypeStruct((1, size_px, size_px, 3), jnp.float32)
  params = shapes_of(model, *images.shape)
  stages = jax.eval_shape(
    lambda p, x: model.apply({'params': p}, x, method='stages'), params, images
  )
  conv1, pool1, pool2, pool5 = sides
  expected = {'conv1': (conv1, 96), 'conv2': (pool1, 256), 'pool1': (pool1, 96)}
  expected |= {'pool2': (pool2, 256), 'conv3': (pool2, 384), 'conv4': (pool2, 384)}
  expected |= {'conv5': (pool2, 256), 'pool5': (pool5, 256)}
  expected['norm1'] = (pool1 if order == 'caffenet' else conv1, 96)
  expected['norm2'] = (pool2 if order == 'caffenet' else pool1, 256)
  found = {name: (stage.shape[1], stage.shape[3]) for name, stage in stages.items()}
  assert found == expected
  assert all(stage.shape[1] == stage.shape[2] for stage in stages.values())
  assert params['fc6']['kernel'].shape[0] == pool5**2 * 256
  layers = ('conv1', 'conv2', 'conv3', 'conv4', 'conv5', 'pool5')
  assert figures.map_sides(size_px, stride) == dict(
    zip(layers, (conv1, pool1, pool2, pool2, pool2, pool5))
  )


@pytest.mark.parametrize(
  ('size_px', 'stride', 'smallest'), [(24, 2, 25), (9, 2, 25), (38, 4, 39), (17, 1, 18), (1, 4, 39)]
)
def test_sizes_that_leave_no_map_are_refused_with_what_they_leave(size_px, stride, smallest):
  with pytest.raises(ValueError, match=f'{size_px} px at stride {stride} leaves no map'):
    figures.check_input_size(size_px, stride)
  figures.check_input_size(smallest, stride)
  with pytest.raises(ValueError):
    figures.check_input_size(smallest - 1, stride)
  images = jax.ShapeDtypeStruct((1, smallest, smallest, 3), jnp.float32)
  model = alexnet.AlexNet(2, trunk.Trunk(stride=stride, **NARROW), **TINY)
  assert jax.eval_shape(
    lambda x: model.init_with_output(jax.random.key(0), x)[0], images
  ).shape == (1, 2)


@pytest.mark.parametrize('network', [cfn.Cfn, cfn.Stacked])
@pytest.mark.parametrize('order', figures.ORDERS)
@pytest.mark.parametrize(
  ('tile_px', 'stride', 'width', 'tiles'),
  [(64, 2, 1.0, 9), (75, 2, 0.5, 9), (64, 4, 0.25, 4), (32, 2, 1.5, 25)],
)
def test_logits_are_float32_for_every_choice(network, order, tile_px, stride, width, tiles):
  for dtype in (jnp.float32, jnp.bfloat16):
    own = trunk.Trunk(order=order, stride=stride, width=width, dtype=dtype)
    model = network(7, own, 16, 8)
    shape = (2, tiles, tile_px, tile_px, 3)
    logits = jax.eval_shape(
      lambda p, x, model=model: model.apply({'params': p}, x),
      shapes_of(model, *shape),
      jax.ShapeDtypeStruct(shape, jnp.float32),
    )
    assert logits.shape == (2, 7) and logits.dtype == jnp.float32


@pytest.mark.parametrize(('width', 'channels'), [(1.0, 96), (0.5, 48), (0.25, 24), (0.01, 8)])
def test_width_multiplies_the_channels(width, channels):
  shapes = shapes_of(cfn.Cfn(10, trunk.Trunk(stride=2, width=width)), 1, 9, 64, 64, 3)
  assert shapes['conv1']['bias'].shape == (channels,)
  assert all(layer['bias'].shape[0] % 8 == 0 for layer in map(shapes.get, figures.CONVOLUTIONS))


# Values.


@pytest.fixture(scope='module')
def tiny():
  """A small CFN on 32-px tiles, its parameters, and its functions compiled."""
  model = cfn.Cfn(11, trunk.Trunk(init_name='he', stride=2, **NARROW), **TINY)
  params = draw(model, 1, 9, 32, 32, 3)
  return model, params


def test_nine_tiles_through_the_trunk_equal_one_at_a_time(tiny):
  model, params = tiny
  tiles = tiles_of(0, 2, 9, 32, 32, 3)
  features = jax.jit(lambda x: model.apply({'params': params}, x, method='features'))
  together = np.asarray(features(tiles))
  alone = [[np.asarray(features(tile[None, None]))[0, 0] for tile in puzzle] for puzzle in tiles]
  assert together.shape == (2, 9, 12)
  assert np.abs(together).max() > 0.1
  assert np.abs(together - np.array(alone)).max() < 1e-6 * max(1, np.abs(together).max())
  # No tile sees another: changing one changes its features alone.
  tiles[0, 4] += 1
  changed = (np.asarray(features(tiles)) != together).any(-1)
  assert changed[0].tolist() == [t == 4 for t in range(9)] and not changed[1].any()


@pytest.mark.slow
@pytest.mark.parametrize('remat', [False, True])
def test_the_fold_equals_a_plain_vmap_in_values_and_gradients(tiny, remat, monkeypatch):
  model, params = tiny
  model = model.clone(trunk=model.trunk.clone(remat=remat))
  tiles, g = tiles_of(0, 3, 9, 32, 32, 3), tiles_of(1, 3, 9, 12)

  def run(params, tiles):
    return model.apply({'params': params}, tiles, method='features')

  def compute():  # a new function each time, so that nothing compiled before is used again
    values, pull = jax.jit(lambda *inputs: jax.vjp(run, *inputs))(params, tiles)
    return [values, *jax.tree.leaves(pull(g))]

  folded = compute()
  seen = []
  monkeypatch.setattr(cfn, 'fold', lambda function: seen.append(1) or function)
  plain = compute()
  assert seen
  for ours, theirs in zip(folded, plain, strict=True):
    assert np.linalg.norm(ours - theirs) <= 2e-6 * np.linalg.norm(theirs)


def test_the_fold_makes_one_batch_of_all_tiles(tiny, monkeypatch):
  model, params = tiny
  tiles, seen = tiles_of(0, 3, 9, 32, 32, 3), []
  stages = trunk.Trunk.stages
  monkeypatch.setattr(
    trunk.Trunk, 'stages', lambda self, images: seen.append(images.shape) or stages(self, images)
  )
  jax.eval_shape(lambda: model.apply({'params': params}, tiles, method='features'))
  assert (27, 32, 32, 3) in seen


def test_permuting_the_tiles_equals_permuting_their_features(tiny):
  model, params = tiny
  tiles = tiles_of(1, 2, 9, 32, 32, 3)
  rng = np.random.default_rng(0)
  permutations = np.stack([[rng.permutation(9) for _ in range(3)] for _ in range(2)])
  apply = jax.jit(lambda *arguments: model.apply({'params': params}, *arguments))
  logits = np.asarray(apply(tiles, permutations.astype(np.int32)))
  assert logits.shape == (2, 3, 11)
  for k in range(3):
    puzzles = np.stack([tiles[b][permutations[b, k]] for b in range(2)])
    assert np.abs(logits[:, k] - np.asarray(apply(puzzles))).max() < 1e-6
  assert np.abs(logits[:, 0] - logits[:, 1]).max() > 1e-4  # and the permutation matters


def test_take_tiles_gathers():
  features = np.arange(8).reshape(2, 4, 1)
  permutations = np.array([[[3, 0, 2, 1], [0, 1, 2, 3]], [[1, 2, 3, 0], [2, 2, 2, 2]]])
  permuted = np.asarray(cfn.take_tiles(features, permutations))[..., 0]
  assert permuted.tolist() == [[[3, 0, 2, 1], [0, 1, 2, 3]], [[5, 6, 7, 4], [6, 6, 6, 6]]]


def dropped(model, params, *arguments, key=0):
  """Runs in training; gives input and output of each dropout in turn."""

  @jax.jit
  def run(*arguments):
    met = []

    def watch(call, args, kwargs, context):
      y = call(*args, **kwargs)
      if isinstance(context.module, nn.Dropout):
        met.append((args[0], y))
      return y

    with nn.intercept_methods(watch):
      model.apply({'params': params}, *arguments, train=True, rngs={'dropout': jax.random.key(key)})
    return met

  return [tuple(map(np.asarray, pair)) for pair in run(*arguments)]


def test_nine_tiles_and_k_puzzles_get_masks_of_their_own():
  model = cfn.Cfn(5, trunk.Trunk(stride=2, width=1 / 12), 64, 32)
  params = draw(model, 1, 9, 32, 32, 3)  # Caffe's biases of 1 keep every feature above 0
  tiles = tiles_of(2, 2, 9, 32, 32, 3)
  same = np.tile(np.arange(9, dtype=np.int32), (2, 3, 1))
  for arguments, shape in (((tiles,), (2, 9, 64)), ((tiles, same), (2, 3, 9, 64))):
    (before, after), (fc7_before, fc7_after) = dropped(model, params, *arguments)
    assert before.shape == shape and fc7_before.shape == (*shape[:-2], 32)
    assert (before > 0).all()
    kept = after != 0
    masks = kept.reshape(-1, 64)
    assert len(np.unique(masks, axis=0)) == math.prod(shape[:-1])
    assert abs(kept.mean() - 0.5) < 5 * 0.5 / math.sqrt(kept.size)
    assert np.allclose(after[kept], 2 * before[kept])
    assert np.allclose(fc7_after[fc7_after != 0], 2 * fc7_before[fc7_after != 0])
    assert len(np.unique((fc7_after != 0).reshape(-1, 32), axis=0)) == math.prod(shape[:-2])


def test_dropout_follows_its_key_and_is_off_without_training(tiny):
  model, params = tiny
  tiles = tiles_of(3, 2, 9, 32, 32, 3)

  @jax.jit
  def train(key):
    rngs = {'dropout': jax.random.key(key)}
    return model.apply({'params': params}, tiles, train=True, rngs=rngs)

  test = jax.jit(lambda: model.apply({'params': params}, tiles))
  assert (train(0) == train(0)).all() and (train(0) != train(1)).any()
  assert (test() == test()).all() and (test() != train(0)).any()


def test_predictions_are_probabilities_of_the_logits(tiny):
  model, params = tiny
  tiles = tiles_of(4, 3, 9, 32, 32, 3)
  chances = np.asarray(jax.jit(lambda x: cfn.predict(model, params, x))(tiles))
  logits = np.asarray(jax.jit(lambda x: model.apply({'params': params}, x))(tiles), np.float64)
  assert chances.shape == (3, 11) and (chances > 0).all()
  assert np.allclose(chances.sum(-1), 1, atol=1e-6)
  expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  assert np.allclose(chances, expected, rtol=1e-5)


def test_stacked_network_is_alexnet_over_all_channels_in_reading_order():
  model = cfn.Stacked(3, trunk.Trunk(init_name='he', stride=2, **NARROW), **TINY)
  plain = alexnet.AlexNet(3, trunk.Trunk(init_name='he', stride=2, **NARROW), **TINY)
  params = draw(model, 1, 4, 32, 32, 3)
  tiles = tiles_of(5, 2, 4, 32, 32, 3)
  images = np.concatenate([tiles[:, t] for t in range(4)], axis=-1)  # [B, h, w, 12]
  ours = jax.jit(lambda x: model.apply({'params': params}, x))(tiles)
  theirs = jax.jit(lambda x: plain.apply({'params': params}, x))(images)
  assert np.allclose(ours, theirs, rtol=1e-6, atol=1e-7)
  with pytest.raises(ValueError, match='one row a pass'):
    model.apply({'params': params}, tiles, np.zeros((2, 2, 4), np.int32))


# Initial values.


def within(sample, std):
  """Says whether a sample may well be normal with mean 0 and this standard deviation."""
  n = sample.size
  return (
    abs(sample.std() / std - 1) < 5 / math.sqrt(2 * n) and abs(sample.mean()) < 5 * std / n**0.5
  )


@pytest.mark.parametrize(('order', 'bias'), [('caffenet', 1.0), ('alexnet', 0.1)])
def test_caffe_starts_with_the_fillers_of_its_prototxts(order, bias):
  model = cfn.Cfn(50, trunk.Trunk(order=order, stride=2), fc7_features=512)
  params = draw(model, 1, 9, 64, 64, 3)
  biases = {'conv1': 0, 'conv2': bias, 'conv3': 0, 'conv4': bias, 'conv5': bias}
  biases |= {'fc6': bias, 'fc7': bias, 'fc8': 0}
  for layer, values in params.items():
    assert values['kernel'].dtype == values['bias'].dtype == np.float32
    assert within(values['kernel'], 0.005 if layer in ('fc6', 'fc7') else 0.01), layer
    assert (values['bias'] == np.float32(biases[layer])).all(), layer


def test_he_starts_with_variance_two_over_inputs_and_no_biases():
  params = draw(
    cfn.Cfn(50, trunk.Trunk(init_name='he', stride=2), fc7_features=512), 1, 9, 64, 64, 3
  )
  inputs = {'conv1': 363, 'conv2': 1200, 'conv3': 2304, 'conv4': 1728, 'conv5': 1728}
  inputs |= {'fc6': 2304, 'fc7': 4608}
  for layer, values in params.items():
    std = math.sqrt(2 / inputs[layer]) if layer in inputs else 0.01
    assert within(values['kernel'], std), layer
    assert (values['bias'] == 0).all()


@pytest.mark.parametrize('init', figures.INITS)
def test_initialisers_of_flax_have_the_same_spread(init):
  initial = figures.Initial(init, 'alexnet')
  for layer, shape in (('conv3', (3, 3, 16, 64)), ('fc6', (300, 80)), ('fc8', (300, 80))):
    made = trunk.dense(trunk.Trunk(order='alexnet', init_name=init), layer, shape[-1])
    drawn = np.asarray(made.kernel_init(jax.random.key(0), shape))
    assert within(drawn, initial.std(layer, shape))
    biases = made.bias_init(jax.random.key(0), (3,))
    assert (biases == np.float32(initial.bias(layer))).all()


def test_drawn_parameters_are_a_function_of_seed_and_name():
  model = cfn.Cfn(512, trunk.Trunk(stride=2, **NARROW), 64, 576)
  first, again, other = (draw(model, 1, 9, 32, 32, 3, seed=seed) for seed in (3, 3, 4))
  for layer, values in first.items():
    assert values['kernel'].tobytes() == again[layer]['kernel'].tobytes()
    assert (values['kernel'] != other[layer]['kernel']).any()
  # Layers of one shape draw different values, so that no two layers start alike.
  starts = [values['kernel'].ravel()[:8] / values['kernel'].std() for values in first.values()]
  assert len({tuple(np.round(start, 2)) for start in starts}) == len(starts)
  # And a layer's values do not depend on which other layers there are.
  initial = figures.Initial()
  alone = alexnet.draw_parameters(
    {'fc6': shapes_of(model, 1, 9, 32, 32, 3)['fc6']}, initial, seed=3
  )
  assert alone['fc6']['kernel'].tobytes() == first['fc6']['kernel'].tobytes()


@pytest.mark.parametrize(
  ('init', 'order', 'message'),
  [
    ('xavier', 'caffenet', "model.init = 'xavier' is unknown: one of caffe, he"),
    ('he', 'vgg', "model.order = 'vgg' is unknown: one of caffenet, alexnet"),
  ],
)
def test_unknown_initial_values_are_refused(init, order, message):
  with pytest.raises(ValueError, match=message):
    figures.Initial(init, order)
