"""Recognition: the CFN on the tiles of whole images, or AlexNet, trained on ImageNet's labels.

  recognition.py                  the CFN: nine tiles of 75 px, the authors' solver
  recognition.py:alexnet          AlexNet: random crops of 227 px of 256, mirrored
  recognition.py:small            the CFN on class folders with a short side of 128 px: on a CPU
  recognition.py:small_alexnet    AlexNet on the same

The fields of the loop and the solver are those of cfn.py.
"""

import ml_collections

from configs import training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is the paper's."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = training.make_config('recognition')

  d = training.add_data(c)
  d.source = 'tfds'  # 'folder' (of class folders), 'records' or 'tfds'
  d.split = 'imagenet2012:train'  # 'tfds': name:split
  d.val_split = 'imagenet2012:validation'  # as split, for the test

  v = c.views = ml_collections.ConfigDict()
  v.crop = 'whole'  # 'whole': the image resized; 'random': crops of it, the test also at the centre
  v.view_px = 225  # side of what the network sees; for the CFN a multiple of model.grid
  v.resize_px = 256  # 'random': the image is resized to this before it is cropped
  v.resize = 'squash'  # 'random': 'squash' (to a square, as Caffe stores ImageNet) or 'short_side'
  v.mirror = False  # training: half of the views are mirrored

  t = c.test = ml_collections.ConfigDict()
  t.draws = 1  # views of each test image that are averaged, besides the figure of one; 1: that one
  t.average = 'softmax'  # of the views: 'softmax' (probabilities) or 'logits'
  t.mirror = False  # True: half of those views are mirrored

  i = c.input = ml_collections.ConfigDict()
  i.normalization = 'mean'  # of each tile: 'mean', 'tile', 'channel'; 'global': fixed figures
  i.scale = 58.0  # the normalised values are multiplied by this; goes with model.init
  i.mean = (123.0, 117.0, 104.0)  # RGB, 0..255: for 'global'
  i.std = 58.0  # 0..255: for 'global' and 'mean'

  m = c.model = ml_collections.ConfigDict()
  m.name = 'cfn'  # 'cfn' or 'alexnet'
  m.grid = 3  # 'cfn': tiles a side
  m.order = 'caffenet'  # 'caffenet': pool, then LRN, biases 1; 'alexnet': LRN, then pool, 0.1
  m.init = 'caffe'  # 'caffe' (with a scale near 50) or 'he' (with one near 1)
  m.stride = 2  # of conv1
  m.width = 1.0  # channels of conv1 .. conv5, times this
  m.fc6_features = 512  # of each tile
  m.fc7_features = 4096  # of the whole image
  m.dropout = 0.5  # after fc6 and fc7; 0: off
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
  training.make_small(c)
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
