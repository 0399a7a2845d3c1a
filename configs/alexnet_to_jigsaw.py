"""Evaluation: a supervised AlexNet's layers in the CFN.

From labels to puzzles: conv1 .. convK are locked.

  alexnet_to_jigsaw.py          the paper's table 3: 100 permutations, ImageNet
  alexnet_to_jigsaw.py:small    32-px tiles of any folder: on a CPU

`--config.weights=PATH` names the AlexNet: a file, or a workdir of recognition.py:alexnet. All other
fields are those of cfn.py.
"""

import ml_collections

from configs import cfn, training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is the paper's."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = cfn.make_tiled('alexnet_to_jigsaw')
  cfn.add_permutations(c)
  c.permutations.num = 100
  c.permutations.ties = 'random'  # minimum distance 2, as in the set to which the 88 % belong
  training.add_weights(c)
  c.baseline = True  # True: also train the same network with nothing loaded and nothing locked
  c.layers = (1, 2, 3, 4, 5)  # the K: conv1 .. convK are locked, a run for each
  c.locked_tiles = 'normalised'  # for layers that saw images: 'normalised' or 'as_learned'
  return c


def _small(c: ml_collections.ConfigDict) -> None:
  cfn.VARIANTS['small'](c)
  c.num_steps = 600  # of each of six runs: half an hour in all
  c.eval_every_steps = 300
  c.checkpoint_every_steps = 300


VARIANTS = {'small': _small}
