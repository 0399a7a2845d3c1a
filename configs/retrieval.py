"""Evaluation: retrieval of images or objects.

Which are near to a query, by frozen features?

Paper, section 4.2: objects of VOC2007's test, each the query for those of trainval.

  retrieval.py                 VOC2007: objects of 10,000 px or more, pool5
  retrieval.py:small           a VOC folder of small images, with lists `train` and `val`: on a CPU
  retrieval.py:small_folders   class folders of small images, whole ones: on a CPU

`--config.weights=PATH` names a workdir, a step, or a file of weights; NAME=PATH,NAME=PATH compares
several; see docs/retrieval.md. Nothing is trained, so it has only the fields of training.py that
every task has.
"""

import ml_collections

from configs import training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is the paper's."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = training.make_untrained('retrieval')
  training.add_weights(c)
  c.layers = ('pool5',)  # any of 'conv1' .. 'conv5', 'pool5', 'fc6', 'fc7'

  d = training.add_data(c)
  d.source = 'voc'  # 'voc': objects are compared; 'folder', 'records', 'tfds': whole images
  d.split = 'trainval'  # the gallery; or the rest of `val_fraction`
  d.val_split = 'test'  # the queries; or the images held out
  d.val_fraction = 0.2  # more than a validation set takes
  d.allow_empty_classes = False  # True: a class without queries, or gallery, is skipped and named
  d.on_bad_box = 'fail'  # 'voc', a box outside its image: 'fail', or 'clip', see docs/detection.md

  o = c.objects = ml_collections.ConfigDict()
  o.min_area_px = 10_000  # 'voc': objects of fewer pixels are left out
  o.difficult = True  # 'voc': False: objects that are marked as difficult are left out too

  v = c.views = ml_collections.ConfigDict()
  v.view_px = 227  # side of the network's input: an object or an image, warped to a square

  r = c.retrieval = ml_collections.ConfigDict()
  r.block_rows = 1024  # rows of either side on the devices at once; changes no figure
  r.sheet_queries = 20  # queries on the sheet with their four nearest; 0: no sheet

  training.add_features(c)
  return c


def _small(c: ml_collections.ConfigDict) -> None:
  """10,000 px of images with a short side of 375 px are 1,820 px of those with 160."""
  _shrink(c)
  training.use_voc(c)
  c.objects.min_area_px = 1_820


def _small_folders(c: ml_collections.ConfigDict) -> None:
  _shrink(c)
  training.use_folder(c)


def _shrink(c: ml_collections.ConfigDict) -> None:
  """For weights of cfn.py:small."""
  c.eval_batch_size = 64
  c.views.view_px = 112
  c.features.dtype = 'float32'
  c.features.part_images = 256
  c.model.stride = 2
  c.model.init = 'he'


VARIANTS = {'small': _small, 'small_folders': _small_folders}
