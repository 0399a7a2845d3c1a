"""Flax networks for any weights: widths, groups and orders follow the weights.

Between transfer/ and models/: evaluations and parity checks build their network here.
"""

from typing import Any

import jax.numpy as jnp

from cfn_jax.models import alexnet, cfn, figures, trunk
from cfn_jax.transfer import weights as weights_lib

_FEATURES = dict(zip(figures.CONVOLUTIONS, figures.FEATURES))


def find_width(weights: weights_lib.Weights) -> float:
  """Returns the width (1: AlexNet's) of the channels of the convolutions.

  Raises:
    WeightsError: no width has these channels.
  """
  channels = {
    name: weights.params[name]['kernel'].shape[-1]
    for name in weights_lib.CONVOLUTIONS
    if name in weights.params
  }
  if not channels:
    return 1.0
  # Channels are multiples of 8, so each layer allows a range of widths. The ends come last: a round
  # figure is likelier.
  below, exact, above = (
    [(count + step) / _FEATURES[name] for name, count in channels.items()] for step in (-4, 0, 4)
  )
  for width in (*exact, (max(below) + min(above)) / 2):
    if all(figures.scaled(_FEATURES[name], width) == count for name, count in channels.items()):
      return width
  listed = ', '.join(f'{name} {count}' for name, count in channels.items())
  raise weights_lib.WeightsError(
    f'the channels ({listed}) are those of no AlexNet of any width: 96, 256, 384, 384, 256 times '
    'one factor'
  )


def make_network(
  weights: weights_lib.Weights,
  *,
  num_classes: int = 0,
  dropout: float = 0.5,
  dtype: Any = jnp.float32,
  remat: bool = False,
) -> alexnet.AlexNet:
  """Builds the network of `weights.params`.

  For a trunk it is AlexNet, whose `stages` need no fully connected layer. The caller draws
  parameters that the weights lack.

  Args:
    num_classes: outputs if the weights have no fc8; 0: 1000.
    dropout: share of values dropped in training.
    dtype, remat: see `Trunk`.

  Raises:
    WeightsError: the channels fit no width.
  """
  params = weights.params
  outputs = {
    name: params[name]['kernel'].shape[1] for name in figures.FULLY_CONNECTED if name in params
  }
  make = cfn.Cfn if weights.kind == 'cfn' else alexnet.AlexNet
  return make(
    num_classes=outputs.get('fc8', num_classes or 1000),
    trunk=trunk.Trunk(
      order=weights.order,
      stride=weights.stride,
      width=find_width(weights),
      groups=weights.groups,
      padding=weights.padding,
      dtype=dtype,
      remat=remat,
    ),
    fc6_features=outputs.get('fc6', 4096),
    fc7_features=outputs.get('fc7', 4096),
    dropout=dropout,
  )
