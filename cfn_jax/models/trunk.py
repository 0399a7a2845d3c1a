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
  """Prepared images `[B, H, W, C]` to pool5, flattened: `[B, h * w * features]`.

  Attributes:
    order: `caffenet` (pool, then LRN) or `alexnet` (LRN, then pool).
    init_name: initial values of layers, see `figures.Initial`; those of the head too.
    stride, padding: conv1's.
    width: factor of the channels of conv1 .. conv5.
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

  def stages(self, images: Array, extents: Array | None = None) -> dict[str, Array]:
    """Returns every stage by Caffe's name.

    `conv1` .. `conv5` after their ReLU, `norm1`, `norm2`, `pool1`, `pool2`, `pool5`, each
    `[B, h, w, features]`.

    Args:
      extents: int32 `[B, 2]`: the height and width of each image, at the top left of a larger
        canvas of zeros. Maps are then those of the image alone, with zeros beyond.
    """
    stages: dict[str, Array] = {}
    x, pooled = images, extents
    for stage, convolution in ((1, self.conv1), (2, self.conv2)):
      maps, bias, sides = _convolve(convolution, x, pooled)
      pooled = _pool_sides(sides, padding=self.pool_padding)
      stages[f'conv{stage}'] = layers.relu(layers.add_bias(maps, bias))
      if self.order == 'caffenet':
        x = layers.pool_biased(maps, bias, padding=self.pool_padding)
        x = stages[f'pool{stage}'] = cut(x, pooled)
        x = stages[f'norm{stage}'] = layers.local_response_norm(x)
      else:
        x = stages[f'norm{stage}'] = layers.local_response_norm(stages[f'conv{stage}'])
        x = stages[f'pool{stage}'] = cut(layers.max_pool(x, padding=self.pool_padding), pooled)
    for name in ('conv3', 'conv4'):
      maps, bias, pooled = _convolve(getattr(self, name), x, pooled)
      x = stages[name] = nn.relu(layers.add_bias(maps, bias))
    maps, bias, sides = _convolve(self.conv5, x, pooled)
    stages['conv5'] = layers.relu(layers.add_bias(maps, bias))
    stages['pool5'] = cut(layers.pool_biased(maps, bias), _pool_sides(sides))
    return stages

  def describe(self) -> dict[str, Any]:
    """Returns the facts about the trunk that its parameters do not show, as plain values."""
    return {'order': self.order, 'stride': self.stride, 'padding': self.padding}

  @property
  def initial(self) -> figures.Initial:
    """Returns the initial values of layers."""
    return figures.Initial(self.init_name, self.order)


def _convolve(
  convolution: layers.Convolution, x: Array, extents: Array | None
) -> tuple[Array, Array, Array | None]:
  """Returns the maps without their bias, the bias, and the sides of the maps of each image.

  Values beyond an image are so low that no maximum is there and ReLU turns them into zeros.
  """
  maps, bias = convolution(x)
  if extents is None:
    return maps, bias, None
  sides = figures.convolved_size(
    extents,
    kernel_px=convolution.kernel_px,
    stride=convolution.stride,
    padding=convolution.padding,
  )
  return cut(maps, sides, -jnp.inf), bias, sides


def _pool_sides(sides: Array | None, padding: int = 0) -> Array | None:
  return None if sides is None else figures.pooled_size(sides, padding=padding)


def cut(maps: Array, sides: Array | None, fill: float = 0.0) -> Array:
  """Fills the places beyond each image in maps `[B, h, w, C]`; sides are int32 `[B, 2]`."""
  if sides is None:
    return maps
  row, column = (jnp.arange(count) < side[:, None] for count, side in zip(maps.shape[1:3], sides.T))
  inside = row[:, :, None, None] & column[:, None, :, None]
  return jnp.where(inside, maps, jnp.array(fill, maps.dtype))


def dense(
  trunk: Trunk, layer: str, features: int, dtype: Any = None, *, kernel_px: int = 1
) -> layers.Dense:
  """Builds a fully connected layer of a head, with the initial values of its trunk."""
  return layers.Dense(
    features,
    dtype=trunk.dtype if dtype is None else dtype,
    kernel_init=_kernel_init(trunk.initial, layer),
    bias_init=nn.initializers.constant(trunk.initial.bias(layer)),
    kernel_px=kernel_px,
  )


def _kernel_init(initial: figures.Initial, layer: str) -> nn.initializers.Initializer:
  def draw(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    return initial.std(layer, shape) * jax.random.normal(key, shape, dtype)

  return draw
