"""AlexNet in Caffe's two published versions, and the drawing of any network's parameters.

Every model names its layers `conv1` .. `conv5`, `fc6`, `fc7`, `fc8`, so parameters move between
models by name.
"""

import dataclasses
import functools
import zlib
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from cfn_jax.errors import CfnError
from cfn_jax.models import figures
from cfn_jax.models import trunk as trunks

Array = jax.Array

DTYPES = ('float32', 'bfloat16')  # of the computation of networks


# Limits of the numbers that networks read and nothing else checks.
LIMITS = {
  'model.stride': (1, 11),
  'model.width': (0.01, 16),
  'model.fc6_features': (0, 2**20),
  'model.fc7_features': (1, 2**20),
  'model.fc8_features': (0, 2**20),
  'model.dropout': (0, 0.99999),
}


class AlexNet(nn.Module):
  """AlexNet: images `[B, H, W, C]` float32, prepared, to logits `[B, K]` float32."""

  num_classes: int
  trunk: trunks.Trunk = dataclasses.field(default_factory=trunks.Trunk)
  fc6_features: int = 4096
  fc7_features: int = 4096
  dropout: float = 0.5

  def setup(self) -> None:
    nn.share_scope(self, self.trunk)  # parameters stay flat: params['conv1']
    self.fc6 = trunks.dense(self.trunk, 'fc6', self.fc6_features)
    self.fc7 = trunks.dense(self.trunk, 'fc7', self.fc7_features)
    self.fc8 = trunks.dense(self.trunk, 'fc8', self.num_classes, jnp.float32)
    self.drop = nn.Dropout(self.dropout)

  def __call__(self, images: Array, *, train: bool = False) -> Array:
    x = self.trunk(images)  # [B, D]
    x = self.drop(nn.relu(self.fc6(x)), deterministic=not train)
    x = self.drop(nn.relu(self.fc7(x)), deterministic=not train)
    return self.fc8(x.astype(jnp.float32))

  def stages(self, images: Array) -> dict[str, Array]:
    """Returns every stage `[B, ...]` of the trunk by Caffe's name, see `Trunk.stages`."""
    return self.trunk.stages(images)


@functools.lru_cache(maxsize=64)
def parameter_shapes(model: nn.Module, input_shape: tuple[int, ...]) -> Any:
  """Returns the tree of a model's parameters as shapes. It is shared: do not change it."""
  images = jax.ShapeDtypeStruct(input_shape, jnp.float32)
  return jax.eval_shape(lambda x: model.init(jax.random.key(0), x), images)['params']


def draw_parameters(shapes: Any, initial: figures.Initial, *, seed: int) -> dict[str, Any]:
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


def find_dtype(name: str) -> Any:
  """Returns the dtype of a network's computation; raises ValueError for an unknown one."""
  if name not in DTYPES:
    raise CfnError(f"compute_dtype = '{name}': one of {', '.join(DTYPES)}")
  return jnp.dtype(name)
