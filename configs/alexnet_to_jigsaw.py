"""From labels to puzzles: conv1 .. convK of a supervised AlexNet locked in the CFN.

  alexnet_to_jigsaw.py          the paper's table 3: 100 permutations, ImageNet
  alexnet_to_jigsaw.py:small    32-px tiles of any folder: on a CPU

`--config.weights=PATH` names the AlexNet: a file, or a workdir of recognition.py:alexnet. All other
fields are those of cfn.py.
"""

import ml_collections

from configs import cfn

VARIANTS = ('small',)


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is the paper's."""
  if variant and variant not in VARIANTS:
    raise ValueError(f"variant '{variant}' is unknown: small, or none")
  c = cfn.get_config(variant).copy_and_resolve_references().unlock()
  del c.init_from  # `weights` says it
  c.task = 'alexnet_to_jigsaw'
  c.permutations.num = 100
  c.permutations.ties = 'random'  # minimum distance 2, as in the set to which the 88 % belong
  c.weights = ''  # the AlexNet: a workdir, a step, a file of weights, or 'random'
  c.weights_step = 'latest'  # of a workdir: 'latest', 'best' or a number
  c.weights_collection = 'params'  # of a checkpoint: 'params' or 'ema'
  c.layers = (1, 2, 3, 4, 5)  # the K: conv1 .. convK are locked, a run for each
  c.locked_tiles = 'normalised'  # for layers trained on images: each tile, or 'as_learned' (none)
  c.baseline = True  # True: the same network with nothing loaded and nothing locked beside it
  if variant == 'small':
    c.num_steps = 600  # of each of six runs: half an hour in all
    c.eval_every_steps = 300
    c.checkpoint_every_steps = 300
  return c.lock()
