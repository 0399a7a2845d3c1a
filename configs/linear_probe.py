"""Evaluation: linear classifiers on frozen features.

One classifier on each of conv1 .. conv5.

  linear_probe.py:zhang       ImageNet as Zhang et al. test AlexNet; the same without a variant
  linear_probe.py:goyal       ImageNet as Goyal et al. test AlexNet trained on puzzles
  linear_probe.py:voc07       VOC2007: Goyal et al.'s linear SVMs, C by three folds
  linear_probe.py:small       any class folders with a short side of 128 px: minutes on a CPU
  linear_probe.py:small_voc   a VOC folder of small images: sigmoids instead of SVMs, on a CPU

`--config.weights=PATH` names a workdir, a step, or a file of weights; see docs/probes.md. The
fields of the loop and the solver are those of training.py.
"""

import ml_collections

from configs import training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is Zhang et al.'s."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = training.make_frozen('linear_probe')
  c.num_steps = 140_000  # of each run
  c.decay_steps = 40_000  # three drops in all
  training.add_weights(c)
  c.layers = ('conv1', 'conv2', 'conv3', 'conv4', 'conv5')  # also 'pool5', 'fc6', 'fc7'
  c.multilabel = False  # True: an image has several classes (VOC)
  c.classifier = 'logistic'  # 'logistic' (on the loop) or 'svm' (needs multilabel = True)

  training.add_labelled(c)

  v = training.add_training_views(c)
  v.crop = 'random'  # of a training image: 'random' or 'centre'; the test sees the centre
  v.draws = 1  # views per training image, drawn once; each is a row of the cache

  training.add_probe(c).update(standardize='channel', init_std=0.0)

  s = c.svm = ml_collections.ConfigDict()
  s.costs = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # the C to choose from
  s.folds = 3  # folds by whose average precision C is chosen
  s.positive_weight = 2.0  # weight of positives; negatives have 1
  s.max_iterations = 2000  # of the solver
  s.num_threads = 0  # classes at once; 0: one for each core

  training.add_features(c)
  c.features.pooling = 'bilinear'
  return c


def _goyal(c: ml_collections.ConfigDict) -> None:
  """conv1 keeps the stride of pretraining; centre views, mirrored; biases train as weights do."""
  c.model.stride = 2
  c.views.resize = 'short_side'
  c.views.crop = 'centre'
  c.features.pooling = 'average'
  c.probe.init_std = 0.01
  c.bias_rate = 1.0
  c.bias_decay = 1.0


def _voc07(c: ml_collections.ConfigDict) -> None:
  """The whole image squashed to the view, conv1 at the stride of pretraining, and SVMs."""
  c.model.stride = 2
  c.features.pooling = 'average'
  c.views.crop = 'centre'
  c.multilabel = True
  c.classifier = 'svm'
  c.data.source = 'voc'
  c.data.split = 'trainval'
  c.data.val_split = 'test'
  c.views.resize_px = c.views.view_px
  c.views.mirror = False
  c.features.dtype = 'float32'


def _small(c: ml_collections.ConfigDict) -> None:
  """For weights of cfn.py:small: 112-px crops, and a conv1 that keeps the stride of pretraining."""
  _shrink(c)
  training.use_folder(c)


def _small_voc(c: ml_collections.ConfigDict) -> None:
  _shrink(c)
  c.multilabel = True
  training.use_voc(c)


def _shrink(c: ml_collections.ConfigDict) -> None:
  c.num_steps = 500
  c.batch_size = 64
  c.eval_batch_size = 64
  c.learning_rate = 0.001
  c.weight_decay = 1.0
  c.schedule = 'cosine'
  c.log_every_steps = 50
  c.eval_every_steps = 250
  c.checkpoint_every_steps = 250
  c.keep_latest = 1
  c.views.view_px = 112
  c.views.resize_px = 128
  c.views.resize = 'short_side'
  c.features.pooling = 'average'
  c.features.dtype = 'float32'
  c.features.part_images = 256
  c.probe.standardize = 'dimension'
  c.probe.init_std = 0.01
  c.model.stride = 2
  c.model.init = 'he'


VARIANTS = {
  'zhang': lambda _: None,
  'goyal': _goyal,
  'voc07': _voc07,
  'small': _small,
  'small_voc': _small_voc,
}
