"""Evaluation: VOC detection by Fast R-CNN.

Mean average precision, with pretrained convolutions.

  voc07_detection.py                 VOC2007, trainval and test, five scales: the paper's
  voc07_detection.py:single_scale    the framework's own settings, one scale
  voc07_detection.py:small           a VOC folder of small images, its train and val: on a CPU

`--config.weights=PATH` names a workdir, a step, or a file of weights, and
`--config.proposals.train=A.mat --config.proposals.test=B.mat` the regions; see docs/detection.md.
The fields of the loop and the solver are those of training.py.
"""

import ml_collections

from configs import training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is the paper's."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = training.make_config('voc_detection')
  # The paper states no number of steps; this is that of the authors' later work.
  c.update(num_steps=150_000, batch_size=2, eval_batch_size=1, learning_rate=0.001)
  c.update(decay_steps=50_000, eval_every_steps=25_000)
  training.add_weights(c)
  c.locked_convolutions = 1  # number of locked convolutions, from conv1 up; 1 is the framework's
  c.magic_init = ''  # initial values from data: '' (off), 'fresh' or 'calibrated'

  d = training.add_annotated(c)
  d.update(split='trainval', val_split='test')
  d.on_bad_box = 'fail'  # for a bad box: 'fail', or 'clip' it and note it

  p = c.proposals = ml_collections.ConfigDict()
  p.train = ''  # regions of the images: 'grid', or a file; see docs/data.md
  p.test = ''  # of the test images
  p.keep = 0  # number of boxes to use per image, the first ones; 0: all

  i = c.images = ml_collections.ConfigDict()
  i.scales_px = (480, 576, 688, 864, 1200)  # short sides; training draws one for each image
  i.longest_px = 2000  # largest long side; it decides if it would be exceeded
  i.canvases = 6  # largest number of sizes of batches; a program is compiled for each

  r = c.regions = ml_collections.ConfigDict()
  r.per_image = 64  # regions per image of a step
  r.foreground = 0.25  # share of them that shows objects
  r.foreground_overlap = 0.5  # a region shows an object from this overlap on
  r.background_low = 0.1  # ... and the background from this overlap
  r.background_high = 0.5  # ... to below this one
  r.difficult = True  # objects marked as difficult train like others

  t = c.test = ml_collections.ConfigDict()
  t.scales_px = (480, 576, 688, 864, 1200)  # short sides; each region is seen at one of them
  t.watched_images = 500  # test images to score during training, a fixed subset
  t.per_class = 100  # best boxes of each class and image
  t.mean_per_image = 40  # of these, boxes per image of each class on average; 0: all
  t.suppress_overlap = 0.3  # overlap with a better box at which one is dropped

  m = training.add_model(c)
  m.fc_init = 'bias'  # of fc6 and fc7: 'bias', 'paper', 'caffe' or 'he'; see convert
  m.load_fc = True  # fc6 and fc7 of an AlexNet's weights are loaded if they fit; False: drawn
  return c


def _single_scale(c: ml_collections.ConfigDict) -> None:
  """One scale, 40,000 steps, as the framework was published."""
  c.num_steps = 40_000
  c.decay_steps = 30_000
  c.eval_every_steps = 10_000
  c.images.scales_px = c.test.scales_px = (600,)
  c.images.longest_px = 1000


def _small(c: ml_collections.ConfigDict) -> None:
  """For weights of cfn.py:small: images of 160 px, conv1's stride 2, a grid of windows."""
  _single_scale(c)
  training.use_small_annotated(c)
  c.data.split = 'train'
  c.data.val_split = 'val'
  c.proposals.train = c.proposals.test = 'grid'
  c.images.scales_px = c.test.scales_px = (160,)
  c.images.longest_px = 267
  c.model.stride = 2
  c.num_steps = 4_000
  c.learning_rate = 0.02
  c.test.watched_images = 200


VARIANTS = {'single_scale': _single_scale, 'small': _small}
