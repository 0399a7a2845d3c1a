"""Evaluation: VOC segmentation by FCN-AlexNet-32s.

Mean IoU, with pretrained convolutions.

  voc12_segmentation.py          VOC2012, train and val, or SBD's train (data.sbd_root)
  voc12_segmentation.py:small    a VOC folder of small images: on a CPU

`--config.weights=PATH` names a workdir, a step, or a file of weights; see docs/segmentation.md. The
fields of the loop and the solver are those of training.py.
"""

import ml_collections

from configs import training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is the framework's."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = training.make_config('voc_segmentation')
  # The framework's: image by image, the gradients of 20 averaged, a fixed rate. Only score_fr's
  # biases have their own rate and decay; the others are treated as weights.
  c.update(num_steps=100_000, batch_size=20, accumulate_steps=20, eval_batch_size=1)
  c.update(learning_rate=1e-4, decay_factor=1.0, eval_every_steps=4_000)
  training.add_weights(c)
  c.locked_convolutions = 0  # number of locked convolutions, from conv1 up
  c.magic_init = ''  # initial values from data: '' (off), 'fresh' or 'calibrated'

  d = training.add_annotated(c)
  d.sbd_root = ''  # SBD's folder (benchmark_RELEASE): its list `split` trains; '': root's
  d.shared_images = 'leave_test'  # in both: 'leave_test' (seg11valid) or 'leave_training'
  d.more_masks = ''  # a folder beside SegmentationClass whose images of Main/<split> train too

  i = c.images = ml_collections.ConfigDict()
  i.mirror = False  # True: each image once as it is and once mirrored; the framework: never
  i.canvases = 6  # largest number of sizes of batches; a program is compiled for each

  t = c.test = ml_collections.ConfigDict()
  t.watched_images = 500  # test images to score during training, a fixed subset

  m = training.add_model(c)
  del m.stride  # fixed: conv1's stride is 4, so there are 32 pixels per score
  m.fc_init = 'bias'  # of fc6 and fc7: 'bias', 'paper', 'caffe' or 'he'; see convert
  m.load_fc = True  # fc6 and fc7 of an AlexNet's weights are loaded if they fit; False: drawn
  return c


def _small(c: ml_collections.ConfigDict) -> None:
  """For weights of cfn.py:small: images with a short side of 160 px, narrow fc6 and fc7."""
  training.use_small_annotated(c)
  c.num_steps = 3_000
  c.batch_size = 4
  c.accumulate_steps = 1
  c.learning_rate = 0.003  # chosen on a held-out fifth of the training masks
  c.images.mirror = True
  c.test.watched_images = 100


VARIANTS = {'small': _small}
