"""Evaluation: weighted k nearest neighbours.

Features are frozen; each neighbour votes by its similarity.

  knn.py             ImageNet, pool5: 20 neighbours, temperature 0.07
  knn.py:voc         a VOC folder: average precision
  knn.py:small       any class folders with a short side of 128 px, pool5 and fc6: on a CPU
  knn.py:small_voc   a VOC folder of small images: on a CPU

`--config.weights=PATH` names a workdir, a step, or a file of weights; see docs/probes.md. Nothing
is trained, so it has only the fields of training.py that every task has.
"""

import ml_collections

from configs import training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is ImageNet."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = training.make_untrained('knn')
  training.add_weights(c)
  c.layers = ('pool5',)  # any of 'conv1' .. 'conv5', 'pool5', 'fc6', 'fc7'
  c.multilabel = False  # True: an image has several classes (VOC)

  training.add_labelled(c)

  v = training.add_views(c)
  v.resize = 'short_side'  # then the centre is cropped

  n = c.knn = ml_collections.ConfigDict()
  n.k = 20  # neighbours that vote
  n.temperature = 0.07  # a vote weighs exp(cosine similarity / temperature)
  n.block_rows = 4096  # images of either side on the devices at once; changes no figure

  training.add_features(c)
  return c


def _voc(c: ml_collections.ConfigDict) -> None:
  c.multilabel = True
  c.data.source = 'voc'
  c.data.split = 'trainval'
  c.data.val_split = 'test'


def _small(c: ml_collections.ConfigDict) -> None:
  """For weights of cfn.py:small, whose fc6 sees tiles of 32 px."""
  _shrink(c)
  training.use_folder(c)


def _small_voc(c: ml_collections.ConfigDict) -> None:
  _shrink(c)
  c.multilabel = True
  training.use_voc(c)


def _shrink(c: ml_collections.ConfigDict) -> None:
  c.layers = ('pool5', 'fc6')
  c.eval_batch_size = 64
  c.views.view_px = 112
  c.views.resize_px = 128
  c.features.dtype = 'float32'
  c.features.part_images = 256
  c.knn.block_rows = 1024
  c.model.stride = 2
  c.model.init = 'he'


VARIANTS = {'voc': _voc, 'small': _small, 'small_voc': _small_voc}
