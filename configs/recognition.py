"""Evaluation: the CFN, or AlexNet, trained on labels.

Recognition on ImageNet. The CFN sees the tiles of whole images.

  recognition.py                  the CFN: nine tiles of 75 px, the authors' solver
  recognition.py:alexnet          AlexNet: random crops of 227 px of 256, mirrored
  recognition.py:small            the CFN on class folders with a short side of 128 px: on a CPU
  recognition.py:small_alexnet    AlexNet on the same

The fields of the loop and the solver are those of training.py.
"""

import ml_collections

from configs import training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is the paper's."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = training.make_config('recognition')

  training.add_labelled(c)

  v = training.add_training_views(c)
  v.crop = 'whole'  # 'whole': the image at view_px; 'random': crops, the test also at the centre
  v.view_px = 225  # side of the network's input; for the CFN a multiple of model.grid
  v.mirror = False  # as in pretraining

  t = training.add_test(c)
  t.draws = 1  # views to average; 1: only the figure of one view

  i = c.input = ml_collections.ConfigDict()
  i.normalization = 'mean'  # of each tile: 'mean', 'tile', 'channel'; 'global': fixed figures
  i.scale = 58.0  # factor of the normalised values; it must fit model.init
  i.mean = (123.0, 117.0, 104.0)  # RGB, 0..255: for 'global'
  i.std = 58.0  # 0..255: for 'global' and 'mean'

  m = training.add_model(c)
  m.name = 'cfn'  # 'cfn' or 'alexnet'
  m.grid = 3  # 'cfn': tiles per side
  m.stride = 2  # as in pretraining
  m.fc6_features = 512  # of each tile
  return c


def _alexnet(c: ml_collections.ConfigDict) -> None:
  """CaffeNet's recipe: pixels of 0..255 minus their mean."""
  c.num_steps = 450_000
  c.views.crop = 'random'
  c.views.view_px = 227
  c.views.mirror = True
  c.test.draws = 10
  c.input.normalization = 'global'
  c.model.name = 'alexnet'
  c.model.stride = 4
  c.model.fc6_features = 4096


def _small(c: ml_collections.ConfigDict) -> None:
  """Tiles of 42 px, half width: minutes on a CPU."""
  training.use_small(c)
  c.num_steps = 600
  c.batch_size = 32
  c.eval_batch_size = 64
  c.learning_rate = 0.01
  c.eval_every_steps = 200
  c.checkpoint_every_steps = 200
  c.views.crop = 'random'
  c.views.view_px = 126
  c.views.resize_px = 128
  c.views.resize = 'short_side'
  c.views.mirror = True
  c.test.draws = 10
  c.input.scale = 1.0
  c.model.width = 0.5


def _small_alexnet(c: ml_collections.ConfigDict) -> None:
  _small(c)
  c.views.view_px = 112
  c.input.normalization = 'global'
  c.model.name = 'alexnet'
  c.model.stride = 4


VARIANTS = {'alexnet': _alexnet, 'small': _small, 'small_alexnet': _small_alexnet}
