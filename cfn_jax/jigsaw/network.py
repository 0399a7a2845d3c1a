"""The network of a config: the CFN, or the stacked network, on the trunk that `model` describes.

Paper, section 3.
"""

import ml_collections

from cfn_jax.errors import CfnError
from cfn_jax.models import alexnet, cfn, figures, trunk


def make_trunk(config: ml_collections.ConfigDict) -> trunk.Trunk:
  """Builds the trunk of the section `model` of a config."""
  c = config.model
  return trunk.Trunk(
    order=c.order,
    init_name=c.init,
    stride=c.stride,
    width=c.width,
    dtype=alexnet.find_dtype(config.compute_dtype),
    remat=config.remat,
  )


def make_model(config: ml_collections.ConfigDict, classes: int) -> alexnet.AlexNet:
  """Builds the network.

  Raises:
    CfnError: an unknown name; tiles too small for the trunk; k > 1 for the stacked network;
      fewer outputs than classes.
  """
  c = config.model
  if c.name not in cfn.NAMES:
    raise CfnError(f"model.name = '{c.name}' is unknown: one of {', '.join(cfn.NAMES)}")
  if c.name == 'stacked' and c.permutations_per_pass > 1:
    raise CfnError(
      f'model.permutations_per_pass = {c.permutations_per_pass}: the stacked network sees all '
      'tiles at once, 1 is the only choice'
    )
  if 0 < c.fc8_features < classes:
    raise CfnError(
      f'model.fc8_features = {c.fc8_features}: at least the {classes} classes, or 0 for one each'
    )
  figures.Initial(c.init, c.order)
  figures.check_input_size(config.puzzle.tile_px, c.stride)
  own = {'fc6_features': c.fc6_features} if c.fc6_features else {}
  kind = cfn.Cfn if c.name == 'cfn' else cfn.Stacked
  return kind(
    num_classes=c.fc8_features or classes,
    trunk=make_trunk(config),
    fc7_features=c.fc7_features,
    dropout=c.dropout,
    **own,
  )
