"""The start of a network that trains on labels: given layers, drawn ones, locked ones.

Paper, section 4: conv1 .. conv5 are given, the rest is drawn. Shared by classification,
detection and segmentation.
"""

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import ml_collections

from cfn_jax import fields
from cfn_jax.evaluation import identity, trunks
from cfn_jax.models import alexnet, figures, inputs
from cfn_jax.transfer import checkpoints, networks, surgery
from cfn_jax.transfer import weights as weights_lib

Params = dict[str, Any]
VIEW_PX = 227  # AlexNet's; also for the whole images that magic_init measures


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start(abc.ABC):
  """A network and its start.

  Attributes:
    network: has a `trunk`.
    view_px: side of a square view of an image.
    input_record: the preparation of images, views or tiles.
    class_names: K of them.
    initial: initial values of layers that are not loaded.
    fc_init: initial values of fully connected ones, see `surgery.FC_INITS`; '': `initial`.
    given: the loaded parameters; only `loaded` of them are used.
    loaded: layers that start with the given parameters; the others are drawn.
    locked: layers without gradient and decay.
    rescale: changes the drawn parameters before the first step (magic_init).
    padding: conv1's, for readers of a checkpoint's weights: that of the given weights if the
      network has its own; -1: the network's.
  """

  network: Any
  view_px: int
  input_record: inputs.InputRecord
  class_names: tuple[str, ...]
  initial: figures.Initial
  fc_init: str = ''
  given: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  loaded: tuple[str, ...] = ()
  locked: tuple[str, ...] = ()
  rescale: Callable[[Params], Params] | None = None
  padding: int = -1

  @abc.abstractmethod
  def shapes(self) -> Any:
    """Returns the shapes of the parameters."""

  @abc.abstractmethod
  def logits(self, params: Any, images: Any, key: Any = None) -> Any:
    """Returns logits `[B, K]` of views uint8 `[B, px, px, 3]`; with a key, dropout is on."""

  def check(self) -> None:
    """Raises WeightsError if the given layers do not fit the network.

    Raises:
      ValueError: layers are drawn for inputs of another scale than those of the record.
    """
    if self.fc_init:
      surgery.check_fc_init(self.fc_init)
    surgery.merge(self.shapes(), self.given, self.loaded)
    drawn = {name for name in self.shapes() if name not in self.loaded} - figures.OUTPUTS
    connected = drawn & set(weights_lib.FULLY_CONNECTED) if self.fc_init else set()
    contrast = self.input_record.contrast()
    for field, init, layers in (
      ('model.init', self.initial.init, drawn - connected),
      ('model.fc_init', self.fc_init, connected),
    ):
      if layers and not self.rescale:
        named = surgery.name_layers(sorted(layers))
        figures.check_contrast(init, contrast, field=field, layers=named)

  def init(self, seed: int) -> Params:
    """Draws the parameters on the host, and inserts the loaded layers."""
    shapes = self.shapes()
    wanted = {name: layer for name, layer in shapes.items() if name not in self.loaded}
    drawn = alexnet.draw_parameters(wanted, self.initial, seed=seed)
    for name in weights_lib.FULLY_CONNECTED:
      if self.fc_init and name in wanted:
        shape = wanted[name]['kernel'].shape
        drawn[name] = surgery.draw_layer(name, shape, fc_init=self.fc_init, seed=seed)
    params = {name: self.given[name] if name in self.loaded else drawn[name] for name in shapes}
    return self.rescale(params) if self.rescale else params

  def describe(self) -> dict[str, Any]:
    """Returns the description of the network in a checkpoint, for transfer/."""
    told = self.network.trunk.describe() | {'input': self.input_record.to_json()}
    return told if self.padding < 0 else told | {'padding': self.padding}

  def summarize(self, label: str) -> str:
    """Returns a line about the given layers and the trained ones; `label` names the weights."""
    taken = f'{surgery.name_layers(self.loaded)} as given; ' if self.loaded else ''
    trains = surgery.name_layers(name for name in self.shapes() if name not in self.locked)
    return f'{label}: {taken}{trains} trained'

  def identify(self) -> dict[str, Any]:
    """Returns everything that training depends on besides images and config, as plain values."""
    shapes = fields.flatten(self.shapes())
    network = Start.describe(self)  # the other facts follow from images and config
    return {
      'network': network | {'groups': list(self.network.trunk.groups)},
      'shapes': {name: list(array.shape) for name, array in shapes.items()},
      'loaded': {name: identity.hash_arrays({name: self.given[name]}) for name in self.loaded},
      'locked': ', '.join(self.locked),
    }


Made = TypeVar('Made', bound=Start)


def read_config(
  config: ml_collections.ConfigDict,
  trunk: trunks.Trunk,
  make: Callable[..., Any],
  *,
  stride: int,
  fc6_px: int,
  drawn: bool,
) -> dict[str, Any]:
  """Returns the start of a network on whole images, from a config and a trunk.

  fc6 and fc7 are loaded if the weights have AlexNet's for maps of the same side, see
  `trunks.connect`.

  Args:
    make: (AlexNet's trunk of these weights, and the fields `fc6_features`, `fc7_features` and
      `dropout`) to the network.
    fc6_px: side of the map that fc6 sees.
    drawn: the trunk is random, so magic_init draws it again.

  Returns:
    The fields of `Start` except `view_px` and `class_names`.
  """
  model = config.model
  placed = surgery.to_alexnet(trunk.weights, num_classes=0, stride=stride)
  alex = networks.make_network(
    placed, dtype=alexnet.find_dtype(config.compute_dtype), remat=config.remat
  )
  connected, features = trunks.connect(config, trunk, fc6_px)
  params = placed.params | connected
  fresh = drawn and config.magic_init
  return {
    'network': make(alex.trunk, dropout=model.dropout, **features),
    'input_record': placed.input,
    'initial': figures.Initial(model.init, placed.order),
    'fc_init': model.fc_init,
    'padding': placed.padding,
    'given': params,
    'loaded': () if fresh else tuple(layer for layer in weights_lib.LAYERS if layer in params),
    'locked': weights_lib.CONVOLUTIONS[: config.locked_convolutions],
  }


def give_all(made: Made, folder: pathlib.Path) -> Made:
  """Returns a network with all parameters of a checkpoint.

  Args:
    folder: the folder of the step.

  Raises:
    CfnError: the checkpoint is damaged.
  """
  params = checkpoints.read_params(folder)
  return dataclasses.replace(made, given=params, loaded=tuple(params))
