"""The trunk that all networks share: conv1 .. conv5 of AlexNet, in either of Caffe's layer orders.

Images, or tiles, prepared -> (here) -> maps of every stage, or pool5 flattened -> a head. A network
owns a `Trunk` and shares its scope, so parameters stay flat: `params['conv1']`.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cfn_jax.models import figures, layers

Array = jax.Array


class Trunk(nn.Module):
  """Images `[B, H, W, C]`, prepared, to pool5 flattened, `[B, h * w * features]`.

  Attributes:
    order: `caffenet` (pool, then LRN) or `alexnet` (LRN, then pool).
    init_name: how layers start, see `figures.Initial`; those of the head too.
    stride, padding: conv1's.
    width: channels of conv1 .. conv5, times this.
    groups: of conv1 .. conv5.
    pool_padding: of pool1 and pool2.
    dtype: of the computation.
    remat: the backward pass computes the maps again instead of keeping them.
  """

  order: str = 'caffenet'
  init_name: str = 'caffe'
  stride: int = 4
  width: float = 1.0
  groups: tuple[int, ...] = figures.GROUPS
  padding: int = 0
  pool_padding: int = 0
  dtype: Any = jnp.float32
  remat: bool = False

  def setup(self) -> None:
    initial = self.initial
    for index, name in enumerate(figures.CONVOLUTIONS):
      layer = layers.Convolution(
        features=figures.scaled(figures.FEATURES[index], self.width),
        kernel_px=figures.KERNELS_PX[index],
        kernel_init=_kernel_init(initial, name),
        bias_init=nn.initializers.constant(initial.bias(name)),
        stride=1 if index else self.stride,
        padding=figures.PADDINGS[index] if index else self.padding,
        groups=self.groups[index],
        dtype=self.dtype,
      )
      setattr(self, name, layer)

  def __call__(self, images: Array) -> Array:
    def run(trunk: 'Trunk', images: Array) -> Array:
      maps = trunk.stages(images)['pool5']
      return maps.reshape(maps.shape[0], -1)  # [B, h * w * features]

    return (nn.remat(run) if self.remat else run)(self, images)

  def stages(self, images: Array) -> dict[str, Array]:
    """Returns every stage by Caffe's name.

    `conv1` .. `conv5` after their ReLU, `norm1`, `norm2`, `pool1`, `pool2`, `pool5`, each
    `[B, h, w, features]`.
    """
    stages: dict[str, Array] = {}
    x = images
    for stage, convolution in ((1, self.conv1), (2, self.conv2)):
      maps, bias = convolution(x)
      stages[f'conv{stage}'] = layers.relu(layers.add_bias(maps, bias))
      if self.order == 'caffenet':
        x = stages[f'pool{stage}'] = layers.pool_biased(maps, bias, padding=self.pool_padding)
        x = stages[f'norm{stage}'] = layers.local_response_norm(x)
      else:
        x = stages[f'norm{stage}'] = layers.local_response_norm(stages[f'conv{stage}'])
        x = stages[f'pool{stage}'] = layers.max_pool(x, padding=self.pool_padding)
    for name in ('conv3', 'conv4'):
      x = stages[name] = nn.relu(layers.add_bias(*getattr(self, name)(x)))
    maps, bias = self.conv5(x)
    stages['conv5'] = layers.relu(layers.add_bias(maps, bias))
    stages['pool5'] = layers.pool_biased(maps, bias)
    return stages

  def describe(self) -> dict[str, Any]:
    """Returns what a checkpoint says of the trunk that its parameters do not, as plain values."""
    return {'order': self.order, 'stride': self.stride, 'padding': self.padding}

  @property
  def initial(self) -> figures.Initial:
    """How layers start."""
    return figures.Initial(self.init_name, self.order)


def dense(trunk: Trunk, layer: str, features: int, dtype: Any = None) -> layers.Dense:
  """Builds a fully connected layer of a head, which starts as the layers of its trunk do."""
  return layers.Dense(
    features,
    dtype=trunk.dtype if dtype is None else dtype,
    kernel_init=_kernel_init(trunk.initial, layer),
    bias_init=nn.initializers.constant(trunk.initial.bias(layer)),
  )


def _kernel_init(initial: figures.Initial, layer: str) -> nn.initializers.Initializer:
  def draw(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    return initial.std(layer, shape) * jax.random.normal(key, shape, dtype)

  return draw
