"""What a network that trains on labels starts from: given layers, drawn ones, locked ones.

Paper, section 4: conv1 .. conv5 are given, the rest is drawn. Shared by classification and
detection.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from cfn_jax import fields
from cfn_jax.evaluation import identity
from cfn_jax.models import alexnet, figures, inputs
from cfn_jax.transfer import surgery
from cfn_jax.transfer import weights as weights_lib

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
  """A network, and what it starts from.

  Attributes:
    network: has a `trunk`.
    view_px: side of a square view of an image.
    input_record: how images, views or tiles, are prepared.
    class_names: K of them.
    initial: how the layers that are not loaded start.
    fc_init: how fully connected ones start, see `surgery.FC_INITS`; '': as `initial` says.
    given: the loaded parameters; only `loaded` of them are taken.
    loaded: layers that start as given; the others are drawn.
    locked: layers that take neither gradient nor decay.
    rescale: changes the drawn parameters before the first step (magic_init).
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

  def shapes(self) -> Any:
    """Returns the shapes of the parameters."""
    raise NotImplementedError

  def logits(self, params: Any, images: Any, key: Any = None) -> Any:
    """Returns logits `[B, K]` of views uint8 `[B, px, px, 3]`; with a key, dropout is on."""
    raise NotImplementedError

  def check(self) -> None:
    """Raises WeightsError where the given layers do not fit the network.

    Raises:
      ValueError: layers are drawn for inputs of another scale than those of the record.
    """
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
    """Draws the parameters on the host, and puts the loaded layers in."""
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
    """Returns what a checkpoint says of the network, for transfer/."""
    return self.network.trunk.describe() | {'input': self.input_record.to_json()}

  def identify(self) -> dict[str, Any]:
    """Returns all that training depends on besides images and config, as plain values."""
    shapes = fields.flatten(self.shapes())
    return {
      'network': self.describe() | {'groups': list(self.network.trunk.groups)},
      'shapes': {name: list(array.shape) for name, array in shapes.items()},
      'loaded': {name: identity.hash_arrays({name: self.given[name]}) for name in self.loaded},
      'locked': ', '.join(self.locked),
    }
