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


class Cfn(alexnet.AlexNet):
  """The CFN: tiles `[B, T, h, w, 3]`, each normalised, to logits `[B, N]` float32.

  An AlexNet whose trunk and fc6 see one tile at a time. Its classes are the N permutations.

  With `permutations` int32 `[B, k, T]` the tiles come in reading order, and the logits of the k
  puzzles that those permutations make are `[B, k, N]`: permuting features equals permuting tiles,
  so k puzzles cost one pass of the trunk.
  """

  trunk: trunks.Trunk = dataclasses.field(default_factory=lambda: trunks.Trunk(stride=2))
  fc6_features: int = 512

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
    """Returns fc6 of each tile, after its ReLU: `[B, T, h, w, 3]` to `[B, T, D]`."""

    def one_puzzle(module: 'Cfn', tiles: Array) -> Array:  # one puzzle's tiles are the batch
      return nn.relu(module.fc6(module.trunk(tiles)))

    shared = nn.vmap(one_puzzle, variable_axes={'params': None}, split_rngs={'params': False})
    return shared(self, tiles)


class Stacked(alexnet.AlexNet):
  """One AlexNet over all tiles: `[B, T, h, w, 3]` stacked to `[B, h, w, T * 3]`, to `[B, N]`."""

  trunk: trunks.Trunk = dataclasses.field(default_factory=lambda: trunks.Trunk(stride=2))

  def __call__(
    self, tiles: Array, permutations: Array | None = None, *, train: bool = False
  ) -> Array:
    if permutations is not None:
      raise ValueError('the stacked network sees all tiles at once: one permutation a pass')
    batch, count, height, width, channels = tiles.shape
    images = tiles.transpose(0, 2, 3, 1, 4).reshape(batch, height, width, count * channels)
    return super().__call__(images, train=train)


def permute_tiles(features: Array, permutations: Array) -> Array:
  """Makes k puzzles of each image's tiles: `[B, T, D]`, int32 `[B, k, T]` to `[B, k, T, D]`."""
  return jax.vmap(lambda tiles, rows: tiles[rows])(features, permutations)


def predict(model: nn.Module, params: Any, tiles: Array) -> Array:
  """Returns the probability of each permutation: tiles `[B, T, h, w, 3]` to `[B, N]`."""
  logits: Any = model.apply({'params': params}, tiles)
  return jax.nn.softmax(logits, axis=-1)
