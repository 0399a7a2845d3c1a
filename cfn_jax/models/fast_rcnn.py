"""Fast R-CNN: scores and box moves for the regions of an image.

Source: fast-rcnn, `models/CaffeNet/train.prototxt`. The trunk runs once over an image, at one scale
or several. Each region of its last maps is pooled to 6 x 6 for AlexNet's fully connected layers.
Paper, section 4.1: the convolutions are the CFN's.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cfn_jax.models import layers
from cfn_jax.models import trunk as trunks

Array = jax.Array

BINS = 6  # side of the grid that fc6 sees of a region
PADDING_PX = 5  # of conv1
POOL_PADDING = 1  # of pool1 and pool2


class FastRcnn(nn.Module):
  """Images on a canvas and their regions to scores `[B, R, K + 1]` and moves `[B, R, K + 1, 4]`.

  Class 0 is the background. Parameters: AlexNet's up to fc7, `cls_score`, `bbox_pred`.

  Attributes:
    num_classes: K, without the background.
    trunk: with conv1 padded by 5 and pool1, pool2 by 1, so that cell i lies at pixel i / `scale`.
  """

  num_classes: int
  trunk: trunks.Trunk = dataclasses.field(
    default_factory=lambda: trunks.Trunk(padding=PADDING_PX, pool_padding=POOL_PADDING)
  )
  fc6_features: int = 4096
  fc7_features: int = 4096
  dropout: float = 0.5

  def setup(self) -> None:
    nn.share_scope(self, self.trunk)  # parameters stay flat: params['conv1']
    self.fc6 = trunks.dense(self.trunk, 'fc6', self.fc6_features)
    self.fc7 = trunks.dense(self.trunk, 'fc7', self.fc7_features)
    self.cls_score = trunks.dense(self.trunk, 'cls_score', self.num_classes + 1, jnp.float32)
    self.bbox_pred = trunks.dense(self.trunk, 'bbox_pred', 4 * (self.num_classes + 1), jnp.float32)
    self.drop = nn.Dropout(self.dropout)

  @property
  def scale(self) -> float:
    """Returns the cells of the last maps per pixel."""
    return 1 / (4 * self.trunk.stride)

  def __call__(
    self, images: Array, extents: Array, regions: Array, *, train: bool = False
  ) -> tuple[Array, Array]:
    """Runs the network.

    Args:
      images: `[B, L, H, W, C]`, prepared: each image at L scales, at the top left of the canvas;
        the rest counts as zeros.
      extents: int32 `[B, L, 2]`, heights and widths of the images.
      regions: `[B, R, 5]`: the number of the scale, and x1, y1, x2, y2 in pixels there, ends
        included.
    """
    maps = self.maps(images, extents)
    pool = jax.vmap(lambda maps, rois: layers.roi_max_pool(maps, rois, scale=self.scale, size=BINS))
    x = pool(maps, regions)  # [B, R, n, n, C]
    x = x.reshape(*x.shape[:2], -1)
    x = self.drop(nn.relu(self.fc6(x)), deterministic=not train)
    x = self.drop(nn.relu(self.fc7(x)), deterministic=not train).astype(jnp.float32)
    moves = self.bbox_pred(x)
    return self.cls_score(x), moves.reshape(*moves.shape[:2], -1, 4)

  def maps(self, images: Array, extents: Array) -> Array:
    """Returns conv5 of each image after its ReLU, `[B, L, h, w, C]`."""

    def run(trunk: trunks.Trunk, images: Array, extents: Array) -> Array:
      return trunk.stages(images, extents)['conv5']

    run = nn.remat(run) if self.trunk.remat else run
    together = images.reshape(-1, *images.shape[2:])  # [B * L, H, W, C]
    extents = extents.reshape(-1, 2)
    # Deviation: maps are cut at the edge of each image: fast-rcnn's training sees the zeros that
    # fill a batch up.
    maps = run(self.trunk, trunks.cut(together, extents), extents)
    return maps.reshape(*images.shape[:2], *maps.shape[1:])


@functools.lru_cache(maxsize=16)
def shapes(network: FastRcnn) -> Any:
  """Returns the tree of a network's parameters as shapes. It is shared: do not change it."""
  side = 16 * network.trunk.stride
  seen = [(1, 1, side, side, 3), (1, 1, 2), (1, 1, 5)]
  examples = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in seen]
  examples[1] = jax.ShapeDtypeStruct(seen[1], jnp.int32)
  return jax.eval_shape(lambda *x: network.init(jax.random.key(0), *x), *examples)['params']
