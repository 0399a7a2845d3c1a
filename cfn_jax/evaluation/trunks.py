"""The weights that an evaluation starts from: any that `convert` reads, or random ones.

Paper, section 4: pretrained weights are compared with the same network drawn at random. Between
transfer/ and the evaluations.
"""

import dataclasses
from typing import Any

import ml_collections

from cfn_jax import places
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import identity
from cfn_jax.models import alexnet, figures, inputs
from cfn_jax.models import trunk as trunk_lib
from cfn_jax.transfer import files, networks, surgery
from cfn_jax.transfer import weights as weights_lib

RANDOM = 'random'
PRETRAINED, BASELINE = 'pretrained', RANDOM  # the compared runs
# The input of random networks: Caffe's weights expect tens, He's unit variance.
RECORDS = {
  'caffe': inputs.InputRecord('rgb', (123.0, 117.0, 104.0), (1.0, 1.0, 1.0)),
  'he': inputs.RECORDS['unit'],
}


@dataclasses.dataclass(frozen=True)
class Trunk:
  """The start of a run.

  Attributes:
    name: its name in tables.
    weights: conv1 .. conv5, and fully connected layers if the file has AlexNet's.
    origin: the source of the weights: plain values.
    beside: of random weights: those that they stand beside, and whose shapes they take.
  """

  name: str
  weights: weights_lib.Weights
  origin: dict[str, Any]
  beside: weights_lib.Weights | None = None

  @property
  def width(self) -> float:
    """Returns the width; AlexNet's is 1."""
    return networks.find_width(self.weights)

  def label(self) -> str:
    """Returns the trunk's name in a table, marked if it is narrower or wider than AlexNet."""
    return self.name if self.width == 1 else f'{self.name} (width {self.width:.3g})'


def load_trunk(path: str, *, step: str, collection: str) -> Trunk:
  """Reads conv1 .. conv5, and AlexNet's fully connected layers if they exist.

  Raises:
    WeightsError: it cannot be read, or its trunk is incomplete.
  """
  weights = files.load_weights(path, step=step, collection=collection)
  with weights_lib.named_errors(f'weights = {path}'):
    surgery.to_cfn_trunk(weights)  # raises if it has none
  origin = weights_lib.json_ready(dict(weights.origin))
  for table in ('permutations', 'questions'):  # a score does not need them
    origin.pop(table, None)
  digest = identity.hash_arrays(weights.params)
  return Trunk(path, weights, {**origin, 'path': path, 'arrays_sha256': digest})


def draw_trunk(init: str, *, seed: int, width: float = 1.0, order: str) -> Trunk:
  """Draws a random trunk of a width.

  Raises:
    CfnError: `init` or `order` is unknown.
  """
  shapes = alexnet.parameter_shapes(trunk_lib.Trunk(width=width), (1, 227, 227, 3))
  return _draw(shapes, figures.Initial(init, order), seed, stride=4)


def draw_like(
  trunk: Trunk, init: str, *, seed: int, layers: tuple[str, ...] = weights_lib.CONVOLUTIONS
) -> Trunk:
  """Draws those layers that another trunk has, with the same shapes."""
  weights = trunk.weights
  shapes = {name: weights.params[name] for name in layers if name in weights.params}
  initial = figures.Initial(init, weights.order)
  origin = {'config': weights.origin.get('config', {})}
  return _draw(shapes, initial, seed, stride=weights.stride, padding=weights.padding, origin=origin)


def _draw(shapes: Any, initial: figures.Initial, seed: int, **fields: Any) -> Trunk:
  weights = weights_lib.make_weights(
    alexnet.draw_parameters(shapes, initial, seed=seed),
    order=initial.order,
    input_record=RECORDS[initial.init],
    **{'origin': {}, **fields},
  )
  if weights.kind == 'cfn':  # its tiles are normalised one by one; on average it is the same
    mean, std = weights.input.mean, inputs.PIXEL_STD
    red, green, blue = (each * std for each in weights.input.scale)
    own = inputs.InputRecord('rgb', mean, (red, green, blue), 'tile', std)
    weights = weights.replace(input=own)
  return Trunk(RANDOM, weights, {'path': RANDOM, 'init': initial.init, 'seed': seed})


def open_trunk(config: ml_collections.ConfigDict) -> Trunk:
  """Reads the trunk that a config names, or draws one if its `weights` are 'random'."""
  if not config.weights:
    raise CfnError("weights is empty: a workdir, a step or a file of weights, or 'random'")
  if config.weights == RANDOM:
    model = config.model
    return draw_trunk(model.init, seed=config.seed, width=model.width, order=model.order)
  return load_trunk(config.weights, step=config.weights_step, collection=config.weights_collection)


def open_compared(
  config: ml_collections.ConfigDict, layers: tuple[str, ...] = weights_lib.CONVOLUTIONS
) -> dict[str, Trunk]:
  """Returns the trunk of a config and, unless turned off, a random one, by run.

  Args:
    layers: the layers of the random one.
  """
  trunk = open_trunk(config)
  if config.weights == RANDOM:
    return {BASELINE: trunk}
  return _add_baseline(config, {PRETRAINED: trunk}, layers)


def open_named(
  config: ml_collections.ConfigDict, layers: tuple[str, ...] = weights_lib.CONVOLUTIONS
) -> dict[str, Trunk]:
  """Returns the same for several trunks, by their names in `weights`; for one trunk, by run.

  The random one has the shapes of the first.
  """
  paths = places.split_named(config.weights, 'weights')
  if '' in paths:
    return open_compared(config, layers)
  if RANDOM in {*paths, *paths.values()}:
    raise CfnError(
      f'weights = {config.weights}: random weights stand beside the others by themselves; leave '
      'them out'
    )
  found = {
    name: dataclasses.replace(
      load_trunk(path, step=config.weights_step, collection=config.weights_collection), name=name
    )
    for name, path in paths.items()
  }
  return _add_baseline(config, found, layers)


def _add_baseline(
  config: ml_collections.ConfigDict, trunks: dict[str, Trunk], layers: tuple[str, ...]
) -> dict[str, Trunk]:
  """Adds a random trunk like the first one, unless the config turns it off."""
  if not config.baseline:
    return trunks
  first = next(iter(trunks.values()))
  drawn = draw_like(first, config.model.init, seed=config.seed, layers=layers)
  return {**trunks, BASELINE: dataclasses.replace(drawn, beside=first.weights)}


def connect(
  config: ml_collections.ConfigDict, trunk: Trunk, side: int
) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
  """Returns fc6 and fc7 of an AlexNet whose pool5 has this side, {} without them, and their widths.

  The widths are those of the loaded layers, or of the model's fields. Random weights have the
  widths of the run that they stand beside.

  Args:
    config: `model.load_fc` says whether the two are loaded.

  Raises:
    CfnError: they are not to be loaded, and there are none.
  """
  model, weights = config.model, trunk.beside or trunk.weights
  fits = weights.kind == 'alexnet' and 'fc7' in weights.params and weights.pool5_side() == side
  found = {name: weights.params[name] for name in ('fc6', 'fc7')} if fits else {}
  if not model.load_fc and not found:
    raise CfnError(
      f'model.load_fc = False has no effect: {trunk.name} holds no fc6 and fc7 of an AlexNet for '
      f'maps of {side} px'
    )
  if not found or not model.load_fc:
    return {}, {'fc6_features': model.fc6_features, 'fc7_features': model.fc7_features}
  widths = {f'{name}_features': layer['kernel'].shape[1] for name, layer in found.items()}
  return ({} if trunk.beside else found), widths


def make_network(
  config: ml_collections.ConfigDict, trunk: Trunk, num_classes: int
) -> tuple[weights_lib.Weights, alexnet.AlexNet]:
  """Returns a trunk with the stride of a config, and the AlexNet in which it is trained.

  Raises:
    CfnError: the views are too small for it.
  """
  model = config.model
  placed = surgery.to_alexnet(trunk.weights, num_classes=0, stride=model.stride)
  figures.check_input_size(config.views.view_px + 2 * placed.padding, model.stride)
  network = networks.make_network(
    placed,
    num_classes=num_classes,
    dropout=model.dropout,
    dtype=alexnet.find_dtype(config.compute_dtype),
    remat=config.remat,
  )
  return placed, network.clone(fc6_features=model.fc6_features, fc7_features=model.fc7_features)
