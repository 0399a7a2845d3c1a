"""The frozen-layer table: conv1 .. convK of given weights locked in AlexNet, the rest trained anew.

  frozen_layers.py          the paper's: ImageNet, 450,000 steps for each K; ten random crops
  frozen_layers.py:small    any class folders with a short side of 128 px: minutes on a CPU

`--config.weights=PATH` names a workdir, a step, or a file of weights; see docs/evaluation.md. The
fields of the loop and the solver are those of cfn.py.
"""

import ml_collections

from configs import training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is the paper's."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = training.make_config('frozen_layers')
  c.num_steps = 450_000  # of each run; CaffeNet's own recipe, the paper states none
  training.add_weights(c)
  c.layers = (1, 2, 3, 4, 5)  # the K: conv1 .. convK are locked, a run for each

  d = training.add_data(c)
  d.source = 'tfds'  # 'folder' (of class folders), 'records' or 'tfds'
  d.split = 'imagenet2012:train'  # 'tfds': name:split
  d.val_split = 'imagenet2012:validation'  # as split, for the test

  v = c.views = ml_collections.ConfigDict()
  v.view_px = 227  # side of what the network sees
  v.resize_px = 256  # the image is resized to this before it is cropped
  v.resize = 'squash'  # 'squash': to a square, as Caffe stores ImageNet; 'short_side'
  v.mirror = True  # training: half of the views are mirrored

  t = c.test = ml_collections.ConfigDict()
  t.draws = 10  # random crops of each test image
  t.average = 'softmax'  # of the crops: 'softmax' (probabilities) or 'logits'
  t.mirror = False  # True: half of the test crops are mirrored

  m = c.model = ml_collections.ConfigDict()
  m.stride = 4  # of conv1
  m.init = 'caffe'  # of what is drawn: 'caffe' (Gaussian, 0.01 and 0.005) or 'he'
  m.width = 1.0  # weights = 'random': channels of conv1 .. conv5, times this
  m.order = 'caffenet'  # weights = 'random': 'caffenet' or 'alexnet'; else as the weights
  m.fc6_features = 4096  # of fc6
  m.fc7_features = 4096  # of fc7
  m.dropout = 0.5  # after fc6 and fc7; 0: off
  return c


def _small(c: ml_collections.ConfigDict) -> None:
  """For weights of cfn.py:small: crops of 112 px, 300 steps of 32, small fully connected layers."""
  training.make_small(c)
  c.num_steps = 300
  c.batch_size = 32
  c.eval_batch_size = 64
  c.learning_rate = 0.01
  c.eval_every_steps = 150
  c.checkpoint_every_steps = 150
  c.views.view_px = 112
  c.views.resize_px = 128
  c.views.resize = 'short_side'


VARIANTS = {'small': _small}
