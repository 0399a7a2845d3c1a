"""The context-free network: its trunk sees one tile at a time, its head several.

Paper, section 3. The stacked network is the alternative that the paper rejects: all tiles enter one
AlexNet as channels, so its first layers may compare tiles by their edges.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from cfn_jax.models import alexnet
from cfn_jax.models import trunk as trunks

Array = jax.Array

NAMES = ('cfn', 'stacked')


class Cfn(alexnet.AlexNet):
  """The CFN: tiles `[B, S, h, w, 3]`, each normalised, to logits `[B, K]` float32.

  It is an AlexNet whose trunk and fc6 see one tile at a time, and whose fc7 sees S of them. A
  jigsaw's classes are its permutations of S = T tiles.

  With `rows` int32 `[B, k, S]` all T tiles are in reading order, and `[B, k, K]` are the logits of
  the k questions that show these rows. Selecting features equals selecting tiles, so k questions
  cost one pass of the trunk.
  """

  trunk: trunks.Trunk = dataclasses.field(default_factory=lambda: trunks.Trunk(stride=2))
  fc6_features: int = 512

  def __call__(
    self,
    tiles: Array,
    rows: Array | None = None,
    *,
    occluders: Array | None = None,
    train: bool = False,
  ) -> Array:
    features = self.features(tiles)  # [B, T, D]
    if occluders is not None:
      features = occlude(features, occluders)
    if rows is not None:
      features = take_tiles(features, rows)  # [B, k, S, D]
    return self.head(features, train=train)

  def head(self, features: Array, *, train: bool = False) -> Array:
    """Returns the logits `[..., K]` of features `[..., S, D]`, in the order of a question."""
    x = self.drop(features, deterministic=not train)
    x = x.reshape(*x.shape[:-2], -1)  # [B, S * D] or [B, k, S * D]
    x = self.drop(nn.relu(self.fc7(x)), deterministic=not train)
    return self.fc8(x.astype(jnp.float32))

  def features(self, tiles: Array) -> Array:
    """Returns fc6 of each tile, after its ReLU: `[B, T, h, w, 3]` to `[B, T, D]`."""

    def one_puzzle(tiles: Array) -> Array:  # the tiles of one puzzle are the batch
      return nn.relu(self.fc6(self.trunk(tiles)))

    if self.is_initializing():  # linen creates no parameters below a plain vmap
      return one_puzzle(tiles[0])[None]
    return jax.vmap(fold(one_puzzle))(tiles)


class Stacked(alexnet.AlexNet):
  """One AlexNet over all tiles: `[B, S, h, w, 3]` stacked to `[B, h, w, S * 3]`, to `[B, K]`."""

  trunk: trunks.Trunk = dataclasses.field(default_factory=lambda: trunks.Trunk(stride=2))

  def __call__(self, tiles: Array, rows: Array | None = None, *, train: bool = False) -> Array:
    if rows is not None:
      raise ValueError('the stacked network sees all tiles at once: one row a pass')
    batch, count, height, width, channels = tiles.shape
    images = tiles.transpose(0, 2, 3, 1, 4).reshape(batch, height, width, count * channels)
    return super().__call__(images, train=train)


def fold(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
  """Makes `vmap` fold its mapped axis into the batch of a function of `[B, ...]`.

  Values and gradients are those of a plain vmap. A TPU would copy its five-dimensional maps to four
  dimensions and back around every convolution.
  """
  folded = jax.custom_batching.custom_vmap(function)

  @folded.def_vmap
  def rule(size: int, batched: list[bool], x: Array) -> tuple[Array, bool]:
    del batched  # the only argument is
    y = function(x.reshape(-1, *x.shape[2:]))
    return y.reshape(size, -1, *y.shape[1:]), True

  return folded


def take_tiles(features: Array, rows: Array) -> Array:
  """Selects tiles of each image: `[B, T, D]`, int32 `[B, ..., S]` to `[B, ..., S, D]`."""
  return jax.vmap(lambda tiles, numbers: tiles[numbers])(features, rows)


def occlude(features: Array, occluders: Array) -> Array:
  """Replaces tiles by those of another example: features `[B, T, D]` in reading order, B even.

  Examples 2i and 2i + 1 lend each other tiles. The trunk sees one tile at a time, so replacing a
  feature equals replacing a tile.

  Args:
    occluders: int `[B, T]`: the other example's tile for each place; -1: none.
  """
  others = features.reshape(-1, 2, *features.shape[1:])[:, ::-1].reshape(features.shape)
  lent = take_tiles(others, jnp.maximum(occluders, 0).astype(jnp.int32))
  return jnp.where((occluders >= 0)[..., None], lent, features)


def predict(model: nn.Module, params: Any, tiles: Array) -> Array:
  """Returns the probability of each class: tiles `[B, S, h, w, 3]` to `[B, K]`."""
  logits: Any = model.apply({'params': params}, tiles)
  return jax.nn.softmax(logits, axis=-1)
