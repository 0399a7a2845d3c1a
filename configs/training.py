"""What every task shares: the loop, the solver, the devices, the hosts. No run of its own.

Each field stands with its meaning in cfn.py, whose figures are the start; the config of a task says
where it differs.
"""

from collections.abc import Callable, Mapping

import ml_collections

from configs import cfn

Variants = Mapping[str, Callable[[ml_collections.ConfigDict], None]]


def make_config(task: str) -> ml_collections.ConfigDict:
  """Builds the fields that the loop reads, for the config of a task to complete."""
  c = cfn.get_config().copy_and_resolve_references().unlock()
  for section in ('data', 'permutations', 'puzzle', 'model'):
    del c[section]
  del c.eval_bits  # of the pretext task alone
  del c.init_from  # what these tasks start from is their own field
  c.task = task
  c.plateau_warning_steps = 0
  return c


# What only a task that trains reads.
TRAINS = (
  *('batch_size', 'num_steps', 'accumulate_steps', 'remat', 'compute_dtype', 'ema_decay'),
  *('log_every_steps', 'eval_every_steps', 'checkpoint_every_steps', 'keep_latest', 'keep_best'),
  *('start_over', 'on_nonfinite', 'nonfinite_limit', 'plateau_warning_steps'),
  *('profile_steps', 'profile_start_step', 'solver', 'learning_rate', 'schedule', 'decay_steps'),
  *('decay_factor', 'warmup_steps', 'momentum', 'weight_decay', 'clip_gradients'),
  *('bias_rate', 'bias_decay'),
)


def make_untrained(task: str) -> ml_collections.ConfigDict:
  """Builds the fields that a task without training shares: devices, hosts, seed."""
  c = make_config(task)
  for field in TRAINS:
    del c[field]
  return c


def add_weights(c: ml_collections.ConfigDict) -> None:
  """Adds what is tested, and whether random weights are tested beside it."""
  c.weights = ''  # a workdir, a step, a file of weights, or 'random'
  c.weights_step = 'latest'  # of a workdir: 'latest', 'best' or a number
  c.weights_collection = 'params'  # of a checkpoint: 'params' or 'ema'
  c.baseline = True  # True: random weights of the same shapes beside it


def add_features(c: ml_collections.ConfigDict) -> None:
  """Adds the sections of frozen features: `features`, the cache, and `model`, the trunk."""
  f = c.features = ml_collections.ConfigDict()
  f.pooling = 'average'  # of the maps: 'average', 'max', 'adaptive' (max), 'bilinear' or 'none'
  f.dimensions = 9600  # largest number of values of a pooled map
  f.dtype = 'float16'  # of the cache: 'float32' or 'float16'
  f.part_images = 4096  # images in each part of the cache: what a stopped extraction may lose

  m = c.model = ml_collections.ConfigDict()
  m.stride = 4  # of conv1
  m.init = 'caffe'  # of random weights: 'caffe' (Gaussian, 0.01) or 'he'
  m.width = 1.0  # weights = 'random': channels of conv1 .. conv5, times this
  m.order = 'caffenet'  # weights = 'random': 'caffenet' or 'alexnet'; else as the weights


def add_data(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Adds the section `data` of labelled images, for a config to complete."""
  d = c.data = ml_collections.ConfigDict()
  d.source = 'folder'  # see the config
  d.root = ''  # the folder; for 'tfds' its data folder, '' the usual one
  d.split = ''  # see the config
  d.val_root = ''  # a second folder for the test; '': see the next two
  d.val_split = ''  # as split, for the test
  d.val_fraction = 0.2  # held out by a hash of the names where no other test is named
  d.val_max_images = 0  # test on at most this many images, a random subset; 0: on all
  d.allow_empty_classes = False  # True: a class without test images is skipped and named
  d.labels = 'lists'  # 'voc': from ImageSets/Main ('lists') or the XML files ('annotations')
  d.cache_dir = ''  # where folder listings are kept; '': the user's cache folder
  d.refresh = False  # True: list the folder again
  d.on_bad_image = 'fail'  # 'fail': stop; 'skip': list it in the workdir, show another
  d.num_workers = 8  # loader processes; 0: threads of this process
  d.num_threads = 1  # reading threads in each process
  d.read_ahead_batches = 2  # batches that each loader process keeps ready
  return d


def choose(
  c: ml_collections.ConfigDict, variant: str, variants: Variants
) -> ml_collections.ConfigDict:
  """Applies a variant to a config, and locks it; '' leaves it as it is.

  Raises:
    ValueError: there is no such variant.
  """
  if variant and variant not in variants:
    raise ValueError(f"variant '{variant}' is unknown: one of {', '.join(variants)}, or none")
  if variant:
    variants[variant](c)
  return c.lock()


def use_folder(c: ml_collections.ConfigDict) -> None:
  """Reads class folders, by threads of this process."""
  c.data.source = 'folder'
  c.data.split = ''
  c.data.val_split = ''
  c.data.num_workers = 0


def use_voc(c: ml_collections.ConfigDict) -> None:
  """Reads the train and val lists of a VOC folder, by threads of this process."""
  c.data.source = 'voc'
  c.data.split = 'train'
  c.data.val_split = 'val'
  c.data.num_workers = 0


def make_small(c: ml_collections.ConfigDict) -> None:
  """Sets what the small variants share: a folder of photographs, weights of cfn.py:small, a CPU."""
  use_folder(c)
  c.model.init = 'he'
  c.model.fc6_features = 256
  c.model.fc7_features = 256
  c.schedule = 'cosine'
  c.warmup_steps = 20
  c.log_every_steps = 25
  c.keep_latest = 1
