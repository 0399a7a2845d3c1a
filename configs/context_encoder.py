"""Pretraining by inpainting: what is hidden in an image?

Pathak et al., "Context Encoders", 2016.

  context_encoder.py          views of 227 px of ImageNet, regions of random form are hidden
  context_encoder.py:centre   a square in the middle is hidden instead
  context_encoder.py:small    half width, views of 96 px: hours on a CPU, any folder
  context_encoder.py:tiny     bundled photographs: minutes on two CPU cores

docs/deviations.md lists what it leaves out of the source.
"""

import ml_collections

from configs import training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is the full run."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = training.make_config('context_encoder')
  c.num_steps = 100_000  # the source names none for the features of its tables
  c.batch_size = 64  # the source's
  c.reconstruction = 'l2'  # the error over hidden pixels: 'l2' or 'l1'
  c.solver = 'adamw'  # the source's Adam, and its figures
  c.learning_rate = 2e-4  # the source's, fixed: decay_steps are all steps
  c.momentum = 0.5  # the source's
  c.weight_decay = 0.0  # off
  c.bias_rate = 1.0  # biases learn like weights

  training.add_unlabelled(c)
  v = training.add_training_views(c)
  v.resize = 'short_side'  # 'short_side', or 'squash': to a square

  i = c.input = ml_collections.ConfigDict()
  i.mean = (123.0, 117.0, 104.0)  # RGB, 0..255; the colour of hidden pixels
  i.std = 58.0  # 0..255, of pixels; fillings and errors are in this unit
  i.scale = 58.0  # the standard deviation of the network's input; goes with model.init

  m = c.mask = ml_collections.ConfigDict()
  m.kind = 'random_region'  # 'random_region', or 'centre': a square in the middle
  m.side_px = 113  # 'centre': side of the square
  m.blob_px = 30.0  # 'random_region': distance of independent values of its noise
  m.smallest = 0.2  # 'random_region': least hidden share of the view
  m.largest = 0.3  # largest hidden share of the view

  d = c.decoder = ml_collections.ConfigDict()
  d.features = (128, 64, 64, 32)  # channels of the layers that enlarge pool5; the last one has 3

  training.add_trunk(c)
  return c


def _centre(c: ml_collections.ConfigDict) -> None:
  c.mask.kind = 'centre'


def _small(c: ml_collections.ConfigDict) -> None:
  """The pixels of nine tiles of 32 px."""
  training.use_small_pretraining(c)
  c.views.view_px = 96
  c.views.resize_px = 128
  c.mask.blob_px = 12.5
  c.decoder.features = (64, 32, 32)
  c.input.scale = 1.0
  c.model.stride = 2
  c.learning_rate = 1e-3
  c.momentum = 0.9


def _tiny(c: ml_collections.ConfigDict) -> None:
  _small(c)
  training.use_tiny_pretraining(c)
  c.views.view_px = 64
  c.views.resize_px = 80
  c.mask.blob_px = 8.0
  c.batch_size = 32
  c.eval_every_steps = 50


VARIANTS = {'centre': _centre, 'small': _small, 'tiny': _tiny}
