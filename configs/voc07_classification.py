"""VOC classification: mean average precision of AlexNet whose convolutions were pretrained.

  voc07_classification.py          VOC2007, trainval and test, by the framework's settings
  voc07_classification.py:small    a VOC folder of small images, its train and val: on a CPU

`--config.weights=PATH` names a workdir, a step, or a file of weights; see docs/evaluation.md. The
fields of the loop and the solver are those of cfn.py.
"""

import ml_collections

from configs import training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is the framework's."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = training.make_config('voc_classification')
  c.num_steps = 80_000  # of each run
  c.batch_size = 16  # images a step
  c.eval_batch_size = 64  # images at once in an evaluation; changes no figure
  c.learning_rate = 0.001  # at the start
  c.decay_steps = 10_000  # steps between two drops of the rate
  c.decay_factor = 0.5  # each drop multiplies the rate by this
  c.weight_decay = 1e-6  # L2, weights
  c.bias_decay = 1.0  # biases: times the weight decay; they decay here
  c.clip_gradients = 10.0  # norm of all gradients together
  training.add_weights(c)
  c.trained = 'all'  # what trains: 'all', 'fc6-8', 'fc8', or 'pool5' (a linear layer on pool5)
  c.magic_init = ''  # initial values from data: '' (off), 'fresh' or 'calibrated'

  d = training.add_data(c)
  d.source = 'voc'  # 'voc' (a VOCdevkit folder) or 'tfds'
  d.split = 'trainval'  # 'voc': a list of ImageSets/Main; 'tfds': name:split
  d.val_split = 'test'  # as split, for the test

  v = c.views = ml_collections.ConfigDict()
  v.view_px = 227  # side of what the network sees
  v.mirror = True  # half of the views are mirrored, in training and test

  t = c.test = ml_collections.ConfigDict()
  t.draws = 10  # views of each test image whose logits are summed

  m = c.model = ml_collections.ConfigDict()
  m.stride = 4  # of conv1
  m.init = 'caffe'  # of convolutions that are drawn: 'caffe' or 'he'
  m.fc_init = 'bias'  # of fully connected ones: 'bias', 'paper', 'caffe' or 'he'; see convert
  m.width = 1.0  # weights = 'random': channels of conv1 .. conv5, times this
  m.order = 'caffenet'  # weights = 'random': 'caffenet' or 'alexnet'; else as the weights
  m.fc6_features = 4096  # of fc6, where it is new
  m.fc7_features = 4096  # of fc7, where it is new
  m.dropout = 0.5  # after fc6 and fc7; 0: off
  return c


def _small(c: ml_collections.ConfigDict) -> None:
  """For weights of cfn.py:small: views of 112 px, some epochs, small fully connected layers."""
  training.make_small(c)
  training.use_voc(c)
  c.num_steps = 900
  c.batch_size = 32
  c.eval_every_steps = 450
  c.checkpoint_every_steps = 450
  c.learning_rate = 0.005
  c.views.view_px = 112
  c.test.draws = 4
  c.model.fc_init = 'he'


VARIANTS = {'small': _small}
