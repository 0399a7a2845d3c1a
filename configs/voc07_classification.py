"""Evaluation: VOC classification.

Mean average precision of an AlexNet with pretrained convolutions.

  voc07_classification.py          VOC2007, trainval and test, by the framework's settings
  voc07_classification.py:small    a VOC folder of small images, its train and val: on a CPU

`--config.weights=PATH` names a workdir, a step, or a file of weights; see docs/evaluation.md. The
fields of the loop and the solver are those of training.py.
"""

import ml_collections

from configs import training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is the framework's."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = training.make_config('voc_classification')
  # The framework's solver; biases decay too.
  c.update(num_steps=80_000, batch_size=16, eval_batch_size=64, learning_rate=0.001)
  c.update(decay_steps=10_000, decay_factor=0.5, weight_decay=1e-6, bias_decay=1.0)
  c.update(clip_gradients=10.0)
  training.add_weights(c)
  c.trained = 'all'  # trained layers: 'all', 'fc6-8', 'fc8', or 'pool5' (a linear layer on pool5)
  c.magic_init = ''  # initial values from data: '' (off), 'fresh' or 'calibrated'

  training.add_labelled(c).update(source='voc', split='trainval', val_split='test')

  v = c.views = ml_collections.ConfigDict()
  v.view_px = 227  # side of the network's input, of random scale and place
  v.mirror = True  # half of the views are mirrored, in training and test

  t = c.test = ml_collections.ConfigDict()
  t.draws = 10  # views per test image; their logits are summed

  m = training.add_model(c)
  m.fc_init = 'bias'  # of fc6 to fc8: 'bias', 'paper', 'caffe' or 'he'; see convert
  m.load_fc = True  # fc6 and fc7 of an AlexNet's weights are loaded if they fit; False: drawn
  return c


def _small(c: ml_collections.ConfigDict) -> None:
  """For weights of cfn.py:small: views of 112 px, some epochs, small fully connected layers."""
  training.use_small(c)
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
