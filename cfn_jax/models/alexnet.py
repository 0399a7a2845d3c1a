"""AlexNet in Caffe's two published versions, and the trunk that the CFN shares with it.

Architectures, sizes and initial values: `bvlc_alexnet` and `bvlc_reference_caffenet` of Caffe.
Layers are named `conv1` .. `conv5`, `fc6`, `fc7`, `fc8` in every model, so that parameters move
between models by name.
"""

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from cfn_jax.models import layers

Array = jax.Array

DTYPES = ('float32', 'bfloat16')  # in which networks compute
ORDERS = ('caffenet', 'alexnet')  # pool then LRN; LRN then pool
INITS = ('caffe', 'he')
TRUNK = ('conv1', 'conv2', 'conv3', 'conv4', 'conv5')
# Features, kernel, padding, groups. conv1's stride is the model's choice.
_CONVOLUTIONS = {
  'conv1': (96, 11, 0, 1),
  'conv2': (256, 5, 2, 2),
  'conv3': (384, 3, 1, 1),
  'conv4': (384, 3, 1, 2),
  'conv5': (256, 3, 1, 2),
}
GROUPS = tuple(groups for *_, groups in _CONVOLUTIONS.values())  # of conv1 .. conv5
_CAFFE_STD = {'fc6': 0.005, 'fc7': 0.005}  # every other layer: 0.01
_BIASED = ('conv2', 'conv4', 'conv5', 'fc6', 'fc7')


@dataclasses.dataclass(frozen=True)
class Initial:
  """How a network starts: Caffe's fillers, or He's variance with biases of zero.

  The classifier fc8 is Gaussian with std 0.01 and bias 0 in both, so that an untrained network
  starts near the loss of chance.
  """

  init: str = 'caffe'
  order: str = 'caffenet'

  def __post_init__(self) -> None:
    if self.init not in INITS:
      raise ValueError(f"model.init = '{self.init}' is unknown: one of {', '.join(INITS)}")
    if self.order not in ORDERS:
      raise ValueError(f"model.order = '{self.order}' is unknown: one of {', '.join(ORDERS)}")

  def std(self, layer: str, kernel_shape: tuple[int, ...]) -> float:
    """Gives the standard deviation of a layer's weights; `kernel_shape` ends in `in, out`."""
    if self.init == 'he' and layer != 'fc8':
      return float(np.sqrt(2 / np.prod(kernel_shape[:-1])))
    return _CAFFE_STD.get(layer, 0.01)

  def bias(self, layer: str) -> float:
    """Gives the value at which a layer's biases start."""
    if self.init == 'he' or layer not in _BIASED:
      return 0.0
    return 1.0 if self.order == 'caffenet' else 0.1

  def kernel_init(self, layer: str) -> nn.initializers.Initializer:
    """Gives the weights' initialiser for flax."""

    def draw(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
      return self.std(layer, shape) * jax.random.normal(key, shape, dtype)

    return draw

  def bias_init(self, layer: str) -> nn.initializers.Initializer:
    """Gives the biases' initialiser for flax."""
    return nn.initializers.constant(self.bias(layer))

  def dense(self, layer: str, features: int, dtype: Any) -> nn.Dense:
    """Builds a fully connected layer."""
    return nn.Dense(
      features,
      dtype=dtype,
      kernel_init=self.kernel_init(layer),
      bias_init=self.bias_init(layer),
    )


def fits(init: str, contrast: float) -> bool:
  """Tells whether layers drawn so learn from inputs of this standard deviation.

  He's expect about 1: from tens they start at a loss of a hundred. All others, Caffe's Gaussians,
  expect tens, and so does LRN: near 1 they see almost nothing, and the loss stays at chance.
  """
  return contrast <= 10 if init == 'he' else contrast >= 10


def parameter_shapes(model: nn.Module, input_shape: tuple[int, ...]) -> Any:
  """Gives the tree of a model's parameters as shapes, without compiling or computing anything."""
  images = jax.ShapeDtypeStruct(input_shape, jnp.float32)
  return jax.eval_shape(lambda x: model.init(jax.random.key(0), x), images)['params']


def draw_parameters(shapes: Any, initial: Initial, *, seed: int) -> dict[str, Any]:
  """Draws parameters of the given shapes on the host: float32, `params['conv1']['kernel']`, ...

  Each array is a pure function of (seed, its name, its shape).
  """
  drawn = {}
  for path, leaf in flax.traverse_util.flatten_dict(shapes).items():
    layer = path[0]
    if path[-1] == 'bias':
      drawn[path] = np.full(leaf.shape, initial.bias(layer), np.float32)
    else:
      rng = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32('/'.join(path).encode())]))
      std = np.float32(initial.std(layer, leaf.shape))
      drawn[path] = std * rng.standard_normal(leaf.shape, np.float32)
  return flax.traverse_util.unflatten_dict(drawn)


def count_parameters(params: Mapping[str, Any]) -> int:
  """Counts all values, biases included."""
  return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))


def scaled(features: int, width: float) -> int:
  """Gives the channels of a layer at a width: a multiple of 8, at least 8.

  >>> [scaled(features, 0.5) for features in (96, 256, 384)]
  [48, 128, 192]
  """
  return max(8, round(features * width / 8) * 8)


def make_convolutions(
  *,
  stride: int,
  width: float,
  initial: Initial,
  dtype: Any,
  groups: tuple[int, ...] = GROUPS,
  padding: int = 0,
) -> dict[str, layers.Convolution]:
  """Builds conv1 .. conv5; `stride` and `padding` are conv1's, `groups` those of all five."""
  return {
    name: layers.Convolution(
      features=scaled(features, width),
      kernel_px=kernel_px,
      kernel_init=initial.kernel_init(name),
      bias_init=initial.bias_init(name),
      stride=stride if name == 'conv1' else 1,
      padding=padding if name == 'conv1' else own_padding,
      groups=own_groups,
      dtype=dtype,
    )
    for (name, (features, kernel_px, own_padding, _)), own_groups in zip(
      _CONVOLUTIONS.items(), groups, strict=True
    )
  }


def apply_trunk(module: Any, images: Array, *, order: str) -> dict[str, Array]:
  """Runs the convolutions of a module that owns conv1 .. conv5.

  Args:
    images: `[B, H, W, C]`, already normalised.
    order: `caffenet` (pool then LRN) or `alexnet` (LRN then pool).

  Returns:
    Every stage by Caffe's name: `conv1` .. `conv5` after their ReLU, `norm1`, `norm2`, `pool1`,
    `pool2`, `pool5`, each `[B, h, w, features]`.
  """
  stages: dict[str, Array] = {}
  x = images
  for stage, name in ((1, 'conv1'), (2, 'conv2')):
    maps = getattr(module, name)(x)
    stages[name] = nn.relu(maps)
    if order == 'caffenet':
      x = stages[f'pool{stage}'] = _pool_relu(maps)
      x = stages[f'norm{stage}'] = layers.local_response_norm(x)
    else:
      x = stages[f'norm{stage}'] = layers.local_response_norm(stages[name])
      x = stages[f'pool{stage}'] = layers.max_pool(x)
  for name in ('conv3', 'conv4'):
    x = stages[name] = nn.relu(getattr(module, name)(x))
  maps = module.conv5(x)
  stages['conv5'] = nn.relu(maps)
  stages['pool5'] = _pool_relu(maps)
  return stages


def _pool_relu(maps: Array) -> Array:
  """Pools, then cuts off at zero: the same as the other way round, on a quarter of the values."""
  return nn.relu(layers.max_pool(maps))


def pool5(module: Any, images: Array, *, remat: bool) -> Array:
  """Runs the trunk of a module for its last maps, flattened: `[B, H, W, C]` to `[B, D]`.

  With `remat` the backward pass computes the maps again instead of keeping them.
  """

  def run(module: Any, images: Array) -> Array:
    maps = module.stages(images)['pool5']
    return maps.reshape(maps.shape[0], -1)  # [B, h * w * features]

  return (nn.remat(run) if remat else run)(module, images)


def map_sides(size_px: int, stride: int) -> dict[str, int]:
  """Gives the side of each layer's output for a square image; 0 where nothing is left.

  >>> map_sides(64, 2)
  {'conv1': 27, 'conv2': 13, 'conv3': 6, 'conv4': 6, 'conv5': 6, 'pool5': 3}
  """

  def pooled(side: int) -> int:
    return max(0, layers.pooled_size(side)) if side > 0 else 0

  conv1 = max(0, (size_px - _CONVOLUTIONS['conv1'][1]) // stride + 1)
  conv2, conv3 = pooled(conv1), pooled(pooled(conv1))
  names = ('conv1', 'conv2', 'conv3', 'conv4', 'conv5', 'pool5')
  return dict(zip(names, (conv1, conv2, conv3, conv3, conv3, pooled(conv3))))


def check_dtype(name: str) -> None:
  """Raises ValueError for a type in which no network computes."""
  if name not in DTYPES:
    raise ValueError(f"compute_dtype = '{name}': one of {', '.join(DTYPES)}")


def check_input_size(size_px: int, stride: int) -> None:
  """Raises ValueError where an image of this side leaves nothing after the three poolings."""
  sides = map_sides(size_px, stride)
  if sides['pool5'] < 1:
    listed = ', '.join(f'{name} {side}' for name, side in sides.items())
    raise ValueError(
      f'an image of {size_px} px at stride {stride} leaves no map after pool5 ({listed}); '
      'take a larger one or a smaller stride'
    )


class AlexNet(nn.Module):
  """AlexNet: images `[B, H, W, C]` float32, normalised, to logits `[B, K]` float32."""

  num_classes: int
  order: str = 'caffenet'
  init_name: str = 'caffe'
  stride: int = 4
  width: float = 1.0
  fc6_features: int = 4096
  fc7_features: int = 4096
  dropout: float = 0.5
  dtype: Any = jnp.float32
  groups: tuple[int, ...] = GROUPS
  padding: int = 0  # of conv1
  remat: bool = False

  def setup(self) -> None:
    initial = Initial(self.init_name, self.order)
    convolutions = make_convolutions(
      stride=self.stride,
      width=self.width,
      initial=initial,
      dtype=self.dtype,
      groups=self.groups,
      padding=self.padding,
    )
    for name, layer in convolutions.items():
      setattr(self, name, layer)
    self.fc6 = initial.dense('fc6', self.fc6_features, self.dtype)
    self.fc7 = initial.dense('fc7', self.fc7_features, self.dtype)
    self.fc8 = initial.dense('fc8', self.num_classes, jnp.float32)
    self.drop = nn.Dropout(self.dropout)

  def __call__(self, images: Array, *, train: bool = False) -> Array:
    x = pool5(self, images, remat=self.remat)  # [B, D]
    x = self.drop(nn.relu(self.fc6(x)), deterministic=not train)
    x = self.drop(nn.relu(self.fc7(x)), deterministic=not train)
    return self.fc8(x.astype(jnp.float32))

  def stages(self, images: Array) -> dict[str, Array]:
    """Gives every stage of the trunk by Caffe's name; see `apply_trunk`."""
    return apply_trunk(self, images, order=self.order)
