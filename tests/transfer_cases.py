"""Networks and measures that the tests of transfer/ share."""

import jax
import jax.numpy as jnp
import numpy as np

from cfn_jax.models import figures, inputs
from cfn_jax.transfer import networks
from cfn_jax.transfer import weights as weights_lib

STAGES = ('conv1', 'conv2', 'conv3', 'conv4', 'conv5', 'norm1', 'norm2', 'pool1', 'pool2', 'pool5')
TOLERANCE = 1e-5


def draw(
  *,
  kind='alexnet',
  order='caffenet',
  groups=(1, 2, 1, 2, 2),
  stride=4,
  width=0.25,
  side=6,
  features=24,
  outputs=10,
  record=inputs.RECORDS['caffe'],
  seed=0,
):
  """Draws weights whose activations keep their size, so that LRN and biases matter."""
  rng = np.random.default_rng(seed)
  channels = [figures.scaled(count, width) for count in (96, 256, 384, 384, 256)]
  params, before = {}, 3
  for index, (name, count) in enumerate(zip(weights_lib.CONVOLUTIONS, channels)):
    kernel_px = figures.KERNELS_PX[index]
    params[name] = _layer(rng, (kernel_px, kernel_px, before // groups[index], count))
    before = count
  tiles = 9 if kind == 'cfn' else 1
  if kind != 'trunk':
    params['fc6'] = _layer(rng, (side * side * before, features))
    params['fc7'] = _layer(rng, (tiles * features, features + 8))
    params['fc8'] = _layer(rng, (features + 8, outputs))
  return weights_lib.make_weights(
    params, order=order, stride=stride, input_record=record, origin={}
  )


def _layer(rng, shape):
  kernel = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1]))
  return {
    'kernel': kernel.astype(np.float32),
    'bias': rng.standard_normal(shape[-1]).astype(np.float32),
  }


def images(count=2, size_px=227, seed=1):
  """Draws uint8 RGB images whose channels differ: exchanging them changes every activation."""
  rng = np.random.default_rng(seed)
  noise = rng.integers(0, 120, [count, size_px, size_px, 3])
  return (noise + np.array([0, 60, 130])).astype(np.uint8)


def ours(weights, prepared):
  """Runs our network on prepared input `[B, H, W, 3]` (a CFN: `[B, T, h, w, 3]`), layer by layer.

  Spatial stages come as `[B, C, h, w]`; those of a CFN for all its tiles in a row; fc6 and fc7
  after their ReLU.
  """
  network = networks.make_network(weights)
  is_cfn, whole = weights.kind == 'cfn', 'fc8' in weights.params

  @jax.jit
  def run(params, x):
    tiles = x.reshape(-1, *x.shape[-3:]) if is_cfn else x
    found = network.apply({'params': params}, tiles, method='stages')
    found = {name: stage.transpose(0, 3, 1, 2) for name, stage in found.items()}
    if whole:
      found['fc8'], state = network.apply(
        {'params': params}, x, capture_intermediates=lambda module, _: module.name in ('fc6', 'fc7')
      )
      if not is_cfn:
        inner = state['intermediates']
        found |= {name: jnp.maximum(inner[name]['__call__'][0], 0) for name in ('fc6', 'fc7')}
    return found

  return {name: np.asarray(stage) for name, stage in run(weights.params, prepared).items()}


def trunk_stages(weights, images):
  """Runs the trunk on uint8 images `[B, H, W, 3]`: every stage by Caffe's name, `[B, h, w, D]`."""
  network = networks.make_network(weights)
  run = jax.jit(lambda params, x: network.apply({'params': params}, x, method='stages'))
  found = run(weights.params, weights.input.prepare(images))
  return {name: np.asarray(stage) for name, stage in found.items()}


def difference(found, wanted):
  """Returns the L2 norm of the difference relative to that of `wanted`; inf for other shapes."""
  if found.shape != wanted.shape:
    return np.inf
  wanted = wanted.astype(np.float64)
  return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def assert_same_arrays(one, other):
  """Both weights hold the same layers, bit for bit."""
  assert one.layers() == other.layers()
  assert jax.tree.structure(one.params) == jax.tree.structure(other.params)
  for layer in one.layers():
    for name in ('kernel', 'bias'):
      a, b = one.params[layer][name], other.params[layer][name]
      assert a.dtype == b.dtype == np.float32 and a.shape == b.shape, (layer, name)
      assert a.tobytes() == b.tobytes(), (layer, name)
