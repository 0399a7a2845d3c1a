"""VOC segmentation: mean IoU of FCN-AlexNet-32s whose convolutions were pretrained.

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
  # The framework's: picture by picture, the gradients of 20 averaged, a fixed rate. Of the biases
  # only those of score_fr have rate and decay of their own; the others are treated as weights.
  c.update(num_steps=100_000, batch_size=20, accumulate_steps=20, eval_batch_size=1)
  c.update(learning_rate=1e-4, decay_factor=1.0, eval_every_steps=4_000)
  training.add_weights(c)
  c.locked_convolutions = 0  # how many stay as given, from conv1 up
  c.magic_init = ''  # initial values from data: '' (off), 'fresh' or 'calibrated'

  d = c.data = ml_collections.ConfigDict()
  d.root = ''  # a folder of VOC's layout, of any classes
  d.split = 'train'  # a list of ImageSets/Segmentation; '': every image with a mask
  d.val_root = ''  # a second folder, for the test; '': the same
  d.val_split = 'val'  # as split, for the test
  d.val_fraction = 0.2  # held out by a hash of the names where neither of these is named
  d.val_max_images = 0  # test on at most this many, a random subset; 0: on all
  d.sbd_root = ''  # SBD's folder (benchmark_RELEASE): its list `split` trains; '': root's
  d.shared_images = 'leave_test'  # in both: 'leave_test' (seg11valid) or 'leave_training'
  d.more_masks = ''  # a folder beside SegmentationClass whose images of Main/<split> train too
  d.allow_empty_classes = False  # True: a class that no test image shows is skipped and named
  d.num_workers = 4  # loader processes; 0: threads of this process
  d.num_threads = 1  # reading threads in each process
  d.read_ahead_batches = 2  # batches that each loader process keeps ready

  i = c.images = ml_collections.ConfigDict()
  i.mirror = False  # True: each image comes once as it is and once mirrored; the framework: never
  i.canvases = 6  # sizes of batches, at most; a program is compiled for each

  t = c.test = ml_collections.ConfigDict()
  t.watched_images = 500  # test images that evaluations during training score, a fixed subset

  m = c.model = ml_collections.ConfigDict()
  m.init = 'caffe'  # of what is drawn: 'caffe' (for inputs of scale 50) or 'he' (of scale 1)
  # Weights that are loaded have an order and a width of their own.
  m.order = 'caffenet'  # 'caffenet': pool, then LRN, biases 1; 'alexnet': LRN, then pool, 0.1
  m.width = 1.0  # channels of conv1 .. conv5, times this
  m.fc_init = 'bias'  # of fc6 and fc7: 'bias', 'paper', 'caffe' or 'he'; see convert
  m.fc6_features = 4096  # of fc6, unless it is loaded
  m.fc7_features = 4096  # of fc7, unless it is loaded
  m.dropout = 0.5  # after fc6 and fc7; 0: off
  return c


def _small(c: ml_collections.ConfigDict) -> None:
  """For weights of cfn.py:small: images with a short side of 160 px, narrow fc6 and fc7."""
  c.data.num_workers = 0
  c.model.width = 0.5
  c.model.init = c.model.fc_init = 'he'
  c.model.fc6_features = c.model.fc7_features = 256
  c.num_steps = 3_000
  c.batch_size = 4
  c.accumulate_steps = 1
  c.learning_rate = 0.01
  c.schedule = 'cosine'
  c.warmup_steps = 100
  c.log_every_steps = 50
  c.eval_every_steps = c.checkpoint_every_steps = 1_000
  c.keep_latest = 1
  c.images.mirror = True
  c.test.watched_images = 100


VARIANTS = {'small': _small}
