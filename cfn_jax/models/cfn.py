"""The context-free network: one trunk that sees one tile at a time, one head that sees them all.

Paper, section 3. The stacked network is the alternative that the paper rejects there: all tiles
enter one AlexNet as channels, so that its first layers may compare tiles by their edges.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cfn_jax.models import alexnet
from cfn_jax.models import trunk as trunks

Array = jax.Array

NAMES = ('cfn', 'stacked')


class Cfn(nn.Module):
  """The CFN: tiles `[B, T, h, w, 3]`, each normalised, to logits `[B, N]` float32.

  With `permutations` int32 `[B, k, T]` the tiles come in reading order, and the logits of the k
  puzzles that those permutations make are `[B, k, N]`: the trunk sees one tile at a time, so
  permuting its features equals permuting the tiles, and k puzzles cost one pass of the trunk.
  """

  num_permutations: int
  trunk: trunks.Trunk = dataclasses.field(default_factory=lambda: trunks.Trunk(stride=2))
  fc6_features: int = 512
  fc7_features: int = 4096
  dropout: float = 0.5

  def setup(self) -> None:
    nn.share_scope(self, self.trunk)  # parameters stay flat: params['conv1']
    self.fc6 = trunks.dense(self.trunk, 'fc6', self.fc6_features)
    self.fc7 = trunks.dense(self.trunk, 'fc7', self.fc7_features)
    self.fc8 = trunks.dense(self.trunk, 'fc8', self.num_permutations, jnp.float32)
    self.drop = nn.Dropout(self.dropout)

  def __call__(
    self, tiles: Array, permutations: Array | None = None, *, train: bool = False
  ) -> Array:
    features = self.features(tiles)  # [B, T, D]
    if permutations is not None:
      features = permute_tiles(features, permutations)  # [B, k, T, D]
    x = self.drop(features, deterministic=not train)
    x = x.reshape(*x.shape[:-2], -1)  # [B, T * D] or [B, k, T * D]
    x = self.drop(nn.relu(self.fc7(x)), deterministic=not train)
    return self.fc8(x.astype(jnp.float32))

  def features(self, tiles: Array) -> Array:
    """Gives fc6 of each tile, after its ReLU: `[B, T, h, w, 3]` to `[B, T, D]`."""

    def one_puzzle(module: 'Cfn', tiles: Array) -> Array:  # one puzzle's tiles are the batch
      return nn.relu(module.fc6(module.trunk(tiles)))

    shared = nn.vmap(one_puzzle, variable_axes={'params': None}, split_rngs={'params': False})
    return shared(self, tiles)

  def stages(self, images: Array) -> dict[str, Array]:
    """Returns every stage of the trunk by Caffe's name, see `Trunk.stages`."""
    return self.trunk.stages(images)


class Stacked(nn.Module):
  """One AlexNet over all tiles: `[B, T, h, w, 3]` stacked to `[B, h, w, T * 3]`, to `[B, N]`."""

  num_permutations: int
  trunk: trunks.Trunk = dataclasses.field(default_factory=lambda: trunks.Trunk(stride=2))
  fc6_features: int = 4096
  fc7_features: int = 4096
  dropout: float = 0.5

  def setup(self) -> None:
    self.network = alexnet.AlexNet(
      num_classes=self.num_permutations,
      trunk=self.trunk,
      fc6_features=self.fc6_features,
      fc7_features=self.fc7_features,
      dropout=self.dropout,
    )
    nn.share_scope(self, self.network)  # parameters stay flat: params['conv1']

  def __call__(
    self, tiles: Array, permutations: Array | None = None, *, train: bool = False
  ) -> Array:
    if permutations is not None:
      raise ValueError('the stacked network sees all tiles at once: one permutation a pass')
    batch, count, height, width, channels = tiles.shape
    images = tiles.transpose(0, 2, 3, 1, 4).reshape(batch, height, width, count * channels)
    return self.network(images, train=train)


def permute_tiles(features: Array, permutations: Array) -> Array:
  """Makes k puzzles of each image's tiles: `[B, T, D]`, int32 `[B, k, T]` to `[B, k, T, D]`."""
  return jax.vmap(lambda tiles, rows: tiles[rows])(features, permutations)


def predict(model: nn.Module, params: Any, tiles: Array) -> Array:
  """Gives the probability of each permutation: tiles `[B, T, h, w, 3]` to `[B, N]`."""
  logits: Any = model.apply({'params': params}, tiles)
  return jax.nn.softmax(logits, axis=-1)
