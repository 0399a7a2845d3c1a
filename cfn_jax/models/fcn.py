"""FCN-AlexNet-32s: scores of the classes for each pixel of an image.

Source: fcn.berkeleyvision.org, `voc-fcn-alexnet/train.prototxt`. AlexNet's fully connected layers
slide over the map like convolutions. Their scores are enlarged 32 times, bilinearly, and cut to the
image. Paper, section 4.1: the convolutions are the CFN's.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cfn_jax.models import figures, layers
from cfn_jax.models import trunk as trunks

Array = jax.Array

PADDING_PX = 100  # of conv1, so that small images have a score too
STRIDE = 4  # of conv1; with three poolings there are 32 pixels per score
FC6_PX = 6  # side of fc6's kernel
KERNEL_PX, CROP_PX = 63, 18  # score x lies at pixel 32 x + 13 of the image


class Fcn(nn.Module):
  """Images on a canvas to scores of its pixels, `[B, H, W, C]` to `[B, H, W, K]`.

  Parameters: AlexNet's up to fc7, as a fully connected AlexNet has them, and `score_fr`.

  Attributes:
    num_classes: K, including the background.
    trunk: of stride 4, with conv1 padded by 100.
  """

  num_classes: int
  trunk: trunks.Trunk = dataclasses.field(
    default_factory=functools.partial(trunks.Trunk, padding=PADDING_PX)
  )
  fc6_features: int = 4096
  fc7_features: int = 4096
  dropout: float = 0.5

  def setup(self) -> None:
    nn.share_scope(self, self.trunk)  # parameters stay flat: params['conv1']
    self.fc6 = trunks.dense(self.trunk, 'fc6', self.fc6_features, kernel_px=FC6_PX)
    self.fc7 = trunks.dense(self.trunk, 'fc7', self.fc7_features)
    self.score_fr = trunks.dense(self.trunk, 'score_fr', self.num_classes, jnp.float32)
    self.drop = nn.Dropout(self.dropout)

  def __call__(self, images: Array, extents: Array, *, train: bool = False) -> Array:
    """Runs the network.

    Args:
      images: `[B, H, W, C]`, prepared, each at the top left of the canvas; the rest counts as
        zeros.
      extents: int32 `[B, 2]`, heights and widths of the images.
    """

    def run(trunk: trunks.Trunk, images: Array, extents: Array) -> Array:
      return trunk.stages(images, extents)['pool5']

    run = nn.remat(run) if self.trunk.remat else run
    x = run(self.trunk, trunks.cut(images, extents), extents)
    x = self.drop(nn.relu(self.fc6(x)), deterministic=not train)  # [B, h, w, features]
    x = self.drop(nn.relu(self.fc7(x)), deterministic=not train)
    scores = trunks.cut(self.score_fr(x.astype(jnp.float32)), score_sides(extents))
    height, width = images.shape[1:3]
    return layers.upsample_bilinear(
      scores, (height, width), stride=8 * STRIDE, kernel_px=KERNEL_PX, crop_px=CROP_PX
    )


def score_sides(sides: Any) -> Any:
  """Returns the sides of the score map for sides of images, px; numbers or arrays.

  >>> score_sides(375), score_sides(500)
  (12, 16)
  """
  sides = figures.convolved_size(
    sides, kernel_px=figures.KERNELS_PX[0], stride=STRIDE, padding=PADDING_PX
  )
  for _ in range(3):
    sides = figures.pooled_size(sides)
  return sides - FC6_PX + 1


@functools.lru_cache(maxsize=16)
def shapes(network: Fcn) -> Any:
  """Returns the tree of a network's parameters as shapes. It is shared: do not change it."""
  images = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
  extents = jax.ShapeDtypeStruct((1, 2), jnp.int32)
  found = jax.eval_shape(lambda *x: network.init(jax.random.key(0), *x), images, extents)
  return found['params']
