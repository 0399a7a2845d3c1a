"""Evaluation: conv1 .. convK locked, the rest trained.

The frozen-layer table: conv1 .. convK of given weights in AlexNet.

  frozen_layers.py          the paper's: ImageNet, 450,000 steps for each K; ten random crops
  frozen_layers.py:small    any class folders with a short side of 128 px: minutes on a CPU

`--config.weights=PATH` names a workdir, a step, or a file of weights; see docs/evaluation.md. The
fields of the loop and the solver are those of training.py.
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

  training.add_labelled(c)
  training.add_training_views(c)
  training.add_test(c)
  training.add_model(c)
  return c


def _small(c: ml_collections.ConfigDict) -> None:
  """For weights of cfn.py:small: crops of 112 px, 300 steps of 32, small fully connected layers."""
  training.use_small(c)
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
