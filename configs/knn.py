"""Weighted k nearest neighbours on frozen features.

  knn.py             ImageNet, pool5: 20 neighbours, temperature 0.07
  knn.py:voc         a VOC folder: average precision
  knn.py:small       any class folders with a short side of 128 px, pool5 and fc6: on a CPU
  knn.py:small_voc   a VOC folder of small images: on a CPU

`--config.weights=PATH` names a workdir, a step, or a file of weights; see docs/probes.md. Nothing
is trained: of the fields of cfn.py those of the loop and the solver have no effect.
"""

import ml_collections

from configs import training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is ImageNet."""
  variants = {'': lambda _: None, 'voc': _voc, 'small': _small, 'small_voc': _small_voc}
  if variant not in variants:
    known = ', '.join(name for name in variants if name)
    raise ValueError(f"variant '{variant}' is unknown: one of {known}, or none")
  config = _full()
  variants[variant](config)
  return config.lock()


def _full() -> ml_collections.ConfigDict:
  c = training.make_config('knn')
  c.weights = ''  # what is tested: a workdir, a step, a file of weights, or 'random'
  c.weights_step = 'latest'  # of a workdir: 'latest', 'best' or a number
  c.weights_collection = 'params'  # of a checkpoint: 'params' or 'ema'
  c.baseline = True  # True: random weights of the same shapes beside it
  c.layers = ('pool5',)  # any of 'conv1' .. 'conv5', 'pool5', 'fc6', 'fc7'
  c.several = False  # True: an image has several classes (VOC)

  d = training.add_data(c)
  d.source = 'tfds'  # 'folder' (of class folders), 'records', 'tfds' or 'voc'
  d.split = 'imagenet2012:train'  # 'tfds': name:split; 'voc': a list of ImageSets/Main
  d.val_split = 'imagenet2012:validation'  # as split, for the test

  v = c.views = ml_collections.ConfigDict()
  v.view_px = 227  # side of the centre that the network sees
  v.resize_px = 256  # the image is resized to this before it is cropped
  v.resize = 'short_side'  # 'squash': to a square, as Caffe stores ImageNet; 'short_side'

  f = c.features = ml_collections.ConfigDict()
  f.pooling = 'average'  # of the maps: 'average', 'max', 'adaptive' (max), 'bilinear' or 'none'
  f.dimensions = 9600  # largest number of values of a pooled map
  f.dtype = 'float16'  # of the cache: 'float32' or 'float16'
  f.part_images = 4096  # images in each part of the cache: what a stopped extraction may lose

  n = c.knn = ml_collections.ConfigDict()
  n.k = 20  # neighbours that vote
  n.temperature = 0.07  # a vote weighs exp(cosine similarity / temperature)
  n.block_rows = 4096  # images of either side on the devices at once; changes no figure

  m = c.model = ml_collections.ConfigDict()
  m.stride = 4  # of conv1
  m.init = 'caffe'  # of random weights: 'caffe' (Gaussian, 0.01) or 'he'
  m.width = 1.0  # weights = 'random': channels of conv1 .. conv5, times this
  m.order = 'caffenet'  # weights = 'random': 'caffenet' or 'alexnet'; else as the weights
  return c


def _voc(c: ml_collections.ConfigDict) -> None:
  c.several = True
  c.data.source = 'voc'
  c.data.split = 'trainval'
  c.data.val_split = 'test'


def _small(c: ml_collections.ConfigDict) -> None:
  """For weights of cfn.py:small, whose fc6 sees tiles of 32 px."""
  _shrink(c)
  c.data.source = 'folder'
  c.data.split = ''
  c.data.val_split = ''


def _small_voc(c: ml_collections.ConfigDict) -> None:
  _shrink(c)
  c.several = True
  c.data.source = 'voc'
  c.data.split = 'train'
  c.data.val_split = 'val'


def _shrink(c: ml_collections.ConfigDict) -> None:
  c.layers = ('pool5', 'fc6')
  c.data.num_workers = 0
  c.eval_batch_size = 64
  c.views.view_px = 112
  c.views.resize_px = 128
  c.features.dtype = 'float32'
  c.features.part_images = 256
  c.knn.block_rows = 1024
  c.model.stride = 2
  c.model.init = 'he'
