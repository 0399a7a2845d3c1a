"""The shared parts of configs: devices, hosts, the loop, the solver, common sections.

Each field has its meaning and the paper's figure, or that of most tasks. The config of a task
changes some and adds its own.
"""

from collections.abc import Callable, Mapping

import ml_collections

Variants = Mapping[str, Callable[[ml_collections.ConfigDict], None]]


def make_untrained(task: str) -> ml_collections.ConfigDict:
  """Builds the fields of every task: its name, the seed, the devices, the hosts."""
  c = ml_collections.ConfigDict()
  c.task = task  # which task main.py runs
  c.seed = 0  # 0 or more; decides every random draw
  c.eval_batch_size = 256  # images at once in an evaluation; changes no figure
  c.num_devices = 0  # number of devices; 0: all of all hosts
  c.matmul_precision = 'default'  # float32 products: 'default', 'tensorfloat32' or 'float32'
  c.deterministic = False  # True: equal bits on a GPU too, at some cost in speed
  c.report = True  # True: a finished run writes report.html to its workdir
  c.compilation_cache_dir = ''  # folder of compiled programs for later runs; '': none

  # Several hosts; see docs/clusters.md.
  h = c.distributed = ml_collections.ConfigDict()
  h.mode = 'off'  # 'off', 'auto' (Slurm, TPU pod, Kubernetes, Open MPI) or 'explicit'
  h.coordinator = ''  # 'explicit': HOST:PORT of process 0
  h.num_processes = 0  # 'explicit': number of processes
  h.process_id = 0  # 'explicit': the number of this one, from 0
  h.heartbeat_s = 20  # seconds of silence after which a process counts as dead
  return c


def make_frozen(task: str) -> ml_collections.ConfigDict:
  """Builds those and the fields of the loop, for a task that trains on frozen features."""
  c = make_untrained(task)
  c.batch_size = 256  # global batch size: images per step over all devices and hosts
  c.num_steps = 350_000  # steps of the whole run
  c.log_every_steps = 100  # steps between two lines of metrics.jsonl
  c.eval_every_steps = 5_000  # steps between two evaluations; one comes at the end too
  c.checkpoint_every_steps = 5_000  # steps between two checkpoints; evaluations save one too
  c.keep_latest = 2  # number of newest checkpoints to keep
  c.keep_best = 1  # number of best checkpoints to keep besides, by the task's own figure
  c.start_over = False  # True: start at step 0 if every checkpoint is damaged
  c.on_nonfinite = 'stop'  # for a loss or gradient that is not finite: 'stop', or 'skip' the step
  c.nonfinite_limit = 10  # 'skip': largest number of such steps of a run; one more stops it
  c.plateau_warning_steps = 0  # warn if the loss stays at chance for this number of steps; 0: never
  c.accumulate_steps = 1  # parts of a batch, one after the other; less memory
  c.ema_decay = 0.0  # moving average of the parameters, evaluated beside them; 0: off, e.g. 0.999
  c.profile_steps = 0  # number of steps to trace to <workdir>/profile; 0: none
  c.profile_start_step = 10  # first traced step, counted from the start of this process

  # The solver. AdamW needs another rate and decay, such as 0.001 and 0.05.
  c.solver = 'caffe'  # SGD, 'caffe': the rate inside the velocity, 'optax': outside; or 'adamw'
  c.learning_rate = 0.01  # at the start
  c.schedule = 'step'  # 'step': x decay_factor every decay_steps; 'cosine': to 0 at num_steps
  c.decay_steps = 100_000  # steps between two drops of the rate
  c.decay_factor = 0.1  # each drop multiplies the rate by this
  c.warmup_steps = 0  # steps over which the rate rises linearly; 0: at once
  c.momentum = 0.9  # 0 to 1; 'adamw': of the first average
  c.weight_decay = 5e-4  # L2, weights; 'adamw': beside the gradient
  c.clip_gradients = 0.0  # largest joint norm of the gradients; 0: off
  c.bias_rate = 2.0  # biases: times the learning rate
  c.bias_decay = 0.0  # biases: times the weight decay
  return c


def make_config(task: str) -> ml_collections.ConfigDict:
  """Builds those and the fields of computation, for a task that trains a network."""
  c = make_frozen(task)
  c.compute_dtype = 'float32'  # 'float32' or 'bfloat16'; parameters, logits, loss stay float32
  c.remat = False  # True: the backward pass recomputes the trunk; less memory, more time
  return c


def add_weights(c: ml_collections.ConfigDict) -> None:
  """Adds the tested weights, and whether random weights are tested too."""
  c.weights = ''  # a workdir, a step, a file of weights, or 'random'
  c.weights_step = 'latest'  # of a workdir: 'latest', 'best' or a number
  c.weights_collection = 'params'  # of a checkpoint: 'params' or 'ema'
  c.baseline = True  # True: test random weights of the same shapes too


def add_images(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Adds the section `data`: the images, here ImageNet's, and their loading."""
  d = c.data = ml_collections.ConfigDict()
  d.source = 'tfds'  # 'bundled', 'folder', 'records', 'tfds' or 'voc'; see docs/data.md
  d.root = ''  # the folder; for 'tfds' its data folder, '' the usual one
  d.split = 'imagenet2012:train'  # 'tfds': name:split; 'voc': a list of ImageSets/Main
  d.val_root = ''  # a second folder, for validation or test; '': see the next two
  d.val_split = 'imagenet2012:validation'  # as split, for validation or test
  d.val_fraction = 0.1  # held out by a hash of the names where neither of these is named
  d.val_max_images = 0  # largest number of images to validate or test on, a random subset; 0: all
  d.cache_dir = ''  # records of a bucket are copied there, on each host; '': to the user's cache
  add_loading(d)
  return d


def add_loading(d: ml_collections.ConfigDict) -> None:
  """Adds the fields of loading to the section `data`."""
  d.num_workers = 8  # loader processes; 0: threads of this process
  d.num_threads = 1  # reading threads in each process
  d.read_ahead_batches = 2  # batches that each loader process keeps ready


def add_annotated(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Adds the section `data` of a VOC folder whose objects or pixels are annotated."""
  d = c.data = ml_collections.ConfigDict()
  d.root = ''  # a folder of VOC's layout, of any classes
  d.split = 'train'  # a list of ImageSets; '': every image that is annotated
  d.val_root = ''  # a second folder, for the test; '': the same
  d.val_split = 'val'  # as split, for the test
  d.val_fraction = 0.2  # held out by a hash of the names where neither of these is named
  d.val_max_images = 0  # test on at most this many, a random subset; 0: on all
  d.allow_empty_classes = False  # True: a class that the test lacks is skipped and named
  add_loading(d)
  return d


def add_data(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Adds the section `data` with the treatment of bad images."""
  d = add_images(c)
  d.on_bad_image = 'fail'  # 'fail': stop; 'skip': list it in the workdir, show another
  return d


def add_unlabelled(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Adds the section `data` of pretraining: images whose labels are not read."""
  d = add_data(c)
  d.crops_per_photograph = 800  # 'bundled': training crops of each photograph
  d.val_crops_per_photograph = 320  # 'bundled': validation crops of each held-out photograph
  return d


def add_labelled(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Adds the section `data` of labelled images."""
  d = add_data(c)
  d.source = 'tfds'  # one class per image: 'folder', 'records' or 'tfds'; several: 'voc' or 'tfds'
  d.val_fraction = 0.2  # larger than for a validation set
  d.allow_empty_classes = False  # True: a class without test images is skipped and named
  d.labels = 'lists'  # 'voc': from ImageSets/Main ('lists') or the XML files ('annotations')
  return d


def add_views(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Adds the section `views`: the network's view of an image."""
  v = c.views = ml_collections.ConfigDict()
  v.view_px = 227  # side of what the network sees
  v.resize_px = 256  # the image is resized to this before it is cropped
  v.resize = 'squash'  # 'squash': to a square, as Caffe stores ImageNet; 'short_side'
  return v


def add_training_views(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Adds the section `views` of a task that trains on them."""
  v = add_views(c)
  v.mirror = True  # training: half of the views are mirrored
  return v


def add_test(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Adds the section `test`: the average over the views of a test image."""
  t = c.test = ml_collections.ConfigDict()
  t.draws = 10  # views of each test image that are averaged
  t.average = 'softmax'  # of the views: 'softmax' (probabilities) or 'logits'
  t.mirror = False  # True: half of those views are mirrored
  return t


def add_trunk(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Adds the section `model`: conv1 .. conv5, AlexNet's."""
  m = c.model = ml_collections.ConfigDict()
  m.stride = 4  # of conv1
  m.init = 'caffe'  # of drawn layers: 'caffe' (for inputs of scale 50) or 'he' (of scale 1)
  # Loaded weights have their own order and width.
  m.order = 'caffenet'  # 'caffenet': pool, then LRN, biases 1; 'alexnet': LRN, then pool, 0.1
  m.width = 1.0  # factor of the channels of conv1 .. conv5
  return m


def add_model(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Adds the section `model` with fully connected layers, AlexNet's too."""
  m = add_trunk(c)
  m.fc6_features = 4096  # of fc6, unless it is loaded
  m.fc7_features = 4096  # of fc7, unless it is loaded; of the whole image or puzzle
  m.dropout = 0.5  # after fc6 and fc7; 0: off
  return m


def add_cache(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Adds the section `features`: the cache of frozen features."""
  f = c.features = ml_collections.ConfigDict()
  f.dtype = 'float16'  # of the cache: 'float32' or 'float16'
  f.part_images = 4096  # images per part of the cache; a stop loses at most one part
  return f


def add_features(c: ml_collections.ConfigDict) -> None:
  """Adds the sections of frozen features: `features`, pooled maps, and `model`, the trunk."""
  f = add_cache(c)
  f.pooling = 'average'  # of the maps: 'average', 'max', 'adaptive' (max), 'bilinear' or 'none'
  f.dimensions = 9600  # largest number of values of a pooled map
  add_trunk(c)


def add_probe(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Adds the section `probe`: a linear classifier on frozen features."""
  p = c.probe = ml_collections.ConfigDict()
  p.standardize = 'dimension'  # mean 0, variance 1 by 'channel', 'dimension'; '': features as is
  p.init_std = 0.01  # standard deviation of the classifier's first weights
  return p


def choose(
  c: ml_collections.ConfigDict, variant: str, variants: Variants
) -> ml_collections.ConfigDict:
  """Applies a variant to a config, and locks it; '' changes nothing.

  Raises:
    ValueError: there is no such variant.
  """
  if variant and variant not in variants:
    raise ValueError(f"variant '{variant}' is unknown: one of {', '.join(variants)}, or none")
  if variant:
    variants[variant](c)
  return c.lock()


def use_folder(c: ml_collections.ConfigDict) -> None:
  """Reads class folders, with threads of this process."""
  c.data.source = 'folder'
  c.data.split = ''
  c.data.val_split = ''
  c.data.num_workers = 0


def use_voc(c: ml_collections.ConfigDict) -> None:
  """Reads the train and val lists of a VOC folder, with threads of this process."""
  c.data.source = 'voc'
  c.data.split = 'train'
  c.data.val_split = 'val'
  c.data.num_workers = 0


def use_small_network(c: ml_collections.ConfigDict) -> None:
  """Sets a network for weights of cfn.py:small, small enough for a CPU."""
  c.model.init = 'he'
  c.model.fc6_features = 256
  c.model.fc7_features = 256
  c.schedule = 'cosine'
  c.keep_latest = 1


def use_small_annotated(c: ml_collections.ConfigDict) -> None:
  """Sets the shared fields of small detections and segmentations."""
  use_small_network(c)
  c.data.num_workers = 0
  c.model.width = 0.5
  c.model.fc_init = 'he'
  c.warmup_steps = 100
  c.log_every_steps = 50
  c.eval_every_steps = c.checkpoint_every_steps = 1_000


def use_small(c: ml_collections.ConfigDict) -> None:
  """Sets the shared fields of small variants: a folder, weights of cfn.py:small, a CPU."""
  use_folder(c)
  use_small_network(c)
  c.warmup_steps = 20
  c.log_every_steps = 25


def use_small_pretraining(c: ml_collections.ConfigDict) -> None:
  """Sets a folder of photographs with a short side of 128 px or more, half width, a CPU."""
  use_folder(c)
  c.model.init = 'he'
  c.model.width = 0.5
  c.batch_size = 64
  c.num_steps = 9_000
  c.schedule = 'cosine'
  c.warmup_steps = 100
  c.log_every_steps = 50
  c.eval_every_steps = 500
  c.checkpoint_every_steps = 500


def use_tiny_pretraining(c: ml_collections.ConfigDict) -> None:
  """Sets seven photographs, cropped at random scales: it shows that everything works."""
  c.data.source = 'bundled'
  c.model.width = 0.25
  c.num_steps = 300
  c.warmup_steps = 50
  c.log_every_steps = 10
  c.eval_every_steps = 25
  c.checkpoint_every_steps = 100
