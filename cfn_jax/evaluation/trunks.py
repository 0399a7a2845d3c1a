"""The weights that an evaluation starts from: any that can be converted, or random ones.

Paper, section 4: what was pretrained is compared with the same network drawn at random. Between
transfer/ and the evaluations.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_collections

from cfn_jax.errors import CfnError
from cfn_jax.evaluation import identity
from cfn_jax.models import alexnet, figures, inputs
from cfn_jax.models import trunk as trunk_lib
from cfn_jax.transfer import files, networks, surgery
from cfn_jax.transfer import weights as weights_lib

RANDOM = 'random'
PRETRAINED, BASELINE = 'pretrained', RANDOM  # runs that are compared
# What networks drawn at random are fed: Caffe's weights expect tens, He's the unit variance.
RECORDS = {
  'caffe': inputs.InputRecord('rgb', (123.0, 117.0, 104.0), (1.0, 1.0, 1.0)),
  'he': inputs.RECORDS['unit'],
}


@dataclasses.dataclass(frozen=True)
class Trunk:
  """Where a run starts.

  Attributes:
    name: how tables call it.
    weights: conv1 .. conv5, and fully connected layers where the file holds AlexNet's.
    origin: plain values: where the weights come from.
  """

  name: str
  weights: weights_lib.Weights
  origin: dict[str, Any]

  @property
  def width(self) -> float:
    """AlexNet's is 1."""
    return networks.find_width(self.weights)

  def label(self) -> str:
    """Names the trunk in a table; one that is not as wide as AlexNet is marked so."""
    return self.name if self.width == 1 else f'{self.name} (width {self.width:.3g})'


def load_trunk(path: str, *, step: str, collection: str) -> Trunk:
  """Reads conv1 .. conv5, and what there is of AlexNet's fully connected layers.

  Raises:
    WeightsError: it cannot be read, or has no whole trunk.
  """
  weights = files.load_weights(path, step=step, collection=collection)
  missing = [name for name in weights_lib.CONVOLUTIONS if name not in weights.params]
  if missing:
    raise weights_lib.WeightsError(
      f'weights = {path}: the trunk is not whole: {", ".join(missing)} missing'
    )
  origin = weights_lib.json_ready(dict(weights.origin))
  for table in ('permutations', 'questions'):  # of no use to a score
    origin.pop(table, None)
  digest = identity.hash_arrays(weights.params)
  return Trunk(path, weights, {**origin, 'path': path, 'arrays_sha256': digest})


def draw_trunk(
  init: str, *, seed: int, like: weights_lib.Weights | None = None, width: float = 1.0, order: str
) -> Trunk:
  """Draws a random trunk: of the shapes of other weights, or of a width.

  Raises:
    CfnError: an unknown `init` or `order`.
  """
  initial = figures.Initial(init, like.order if like else order)
  if like:
    shapes: Any = {name: like.params[name] for name in weights_lib.CONVOLUTIONS}
  else:
    shapes = alexnet.parameter_shapes(trunk_lib.Trunk(width=width), (1, 227, 227, 3))
  params = alexnet.draw_parameters(shapes, initial, seed=seed)
  weights = weights_lib.make_weights(
    params,
    order=initial.order,
    stride=like.stride if like else 4,
    record=RECORDS[init],
    origin={},
    padding=like.padding if like else 0,
  )
  origin = {'path': RANDOM, 'init': init, 'seed': seed}
  return Trunk(RANDOM, weights, origin)


def open_trunk(config: ml_collections.ConfigDict) -> Trunk:
  """Reads the trunk that a config names, or draws one where its `weights` are 'random'."""
  if not config.weights:
    raise CfnError("weights is empty: a workdir, a step or a file of weights, or 'random'")
  if config.weights == RANDOM:
    model = config.model
    return draw_trunk(model.init, seed=config.seed, width=model.width, order=model.order)
  return load_trunk(config.weights, step=config.weights_step, collection=config.weights_collection)


def open_compared(
  config: ml_collections.ConfigDict, draw: Callable[..., Trunk] | None = None
) -> dict[str, Trunk]:
  """Returns the trunk of a config and, unless it is told not to, a random one beside it, by run.

  Args:
    draw: draws the random one, as `draw_like` does.
  """
  trunk = open_trunk(config)
  if config.weights == RANDOM:
    return {BASELINE: trunk}
  if not config.baseline:
    return {PRETRAINED: trunk}
  drawn = (draw or draw_like)(trunk, config.model.init, seed=config.seed)
  return {PRETRAINED: trunk, BASELINE: drawn}


def draw_like(trunk: Trunk, init: str, *, seed: int) -> Trunk:
  """Draws a random trunk of the shapes of another."""
  return draw_trunk(init, seed=seed, like=trunk.weights, order=trunk.weights.order)


def place_trunk(trunk: Trunk, *, stride: int) -> weights_lib.Weights:
  """Moves conv1 .. conv5 to another stride of conv1, with the input record for whole images."""
  return surgery.to_alexnet(trunk.weights, num_classes=0, stride=stride)
