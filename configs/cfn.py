"""Pretraining of the context-free network by jigsaw puzzles: every knob, and the named variants.

  cfn.py             the paper's full run: 350,000 steps of 256 puzzles, 1000 permutations, ImageNet
  cfn.py:release     what the authors' 2016 code does where it differs from the paper
  cfn.py:text        the sizes of the paper's method section: 75-px cells, random crops
  cfn.py:unblocked   chromatic aberration not blocked: the network of the paper's figures 4 and 5
  cfn.py:small       100 permutations, half width, 32-px tiles: an hour on a CPU, any folder
  cfn.py:tiny        24 permutations on bundled photographs: two minutes on two CPU cores

Any field can be set on the command line: `--config.puzzle.grey_fraction=0`.
"""

import ml_collections


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is the paper's."""
  if variant and variant not in VARIANTS:
    raise ValueError(f"variant '{variant}' is unknown: one of {', '.join(VARIANTS)}, or none")
  config = _paper()
  if variant:
    VARIANTS[variant](config)
  return config.lock()


def _paper() -> ml_collections.ConfigDict:
  c = ml_collections.ConfigDict()
  c.task = 'jigsaw'  # which task main.py hands to the loop
  c.seed = 0  # 0 or more; decides every random draw
  c.batch_size = 256  # images a step, over all devices
  c.eval_batch_size = 256  # images at once in an evaluation; changes no figure
  c.num_steps = 350_000  # steps of the whole run
  c.log_every_steps = 100  # steps between two lines of metrics.jsonl
  c.eval_every_steps = 5_000  # steps between two evaluations; one comes at the end too
  c.eval_bits = False  # True: evaluations also give bits and the share of tiles put right
  c.checkpoint_every_steps = 5_000  # steps between two checkpoints; evaluations save one too
  c.keep_latest = 2  # newest checkpoints kept
  c.keep_best = 1  # best checkpoints, by the task's own figure, kept besides them
  c.start_over = False  # True: where every checkpoint is damaged, begin again at step 0
  c.init_from = ''  # a checkpoint or weights file: step 0 starts from its weights; '': at random
  c.on_nonfinite = 'stop'  # a loss or gradient that is no number: 'stop', or 'skip' the step
  c.nonfinite_limit = 10  # 'skip': such steps that a whole run may have; one more stops it
  c.plateau_warning_steps = 20_000  # warn when the loss stays at chance for so long; 0: never
  c.num_devices = 0  # how many devices compute; 0: all of all hosts
  c.compute_dtype = 'float32'  # 'float32' or 'bfloat16'; parameters, logits, loss stay float32
  c.matmul_precision = 'default'  # float32 products: 'default', 'tensorfloat32' or 'float32'
  c.remat = False  # True: the backward pass computes the trunk again; less memory, more time
  c.accumulate_steps = 1  # parts of a batch, one after the other; less memory
  c.ema_decay = 0.0  # moving average of the parameters, evaluated beside them; 0: off, e.g. 0.999
  c.deterministic = False  # True: bit for bit the same on a GPU too, at some cost in speed

  c.compilation_cache_dir = ''  # compiled programs are kept there for later runs; '': nowhere
  c.profile_steps = 0  # steps whose trace is written into <workdir>/profile; 0: none
  c.profile_start_step = 10  # the step at which it begins, counted from the start of this process

  # Several hosts; see docs/clusters.md.
  h = c.distributed = ml_collections.ConfigDict()
  h.mode = 'off'  # 'off', 'auto' (Slurm, TPU pod, Kubernetes, Open MPI) or 'explicit'
  h.coordinator = ''  # 'explicit': HOST:PORT of process 0
  h.num_processes = 0  # 'explicit': how many there are
  h.process_id = 0  # 'explicit': which one this is, from 0
  h.heartbeat_s = 20  # seconds of silence after which a process counts as dead

  # The solver: Caffe's SGD.
  c.solver = 'caffe'  # 'caffe': the rate inside the velocity; 'optax': outside
  c.learning_rate = 0.01  # at the start
  c.schedule = 'step'  # 'step': x decay_factor every decay_steps; 'cosine': to 0 at num_steps
  c.decay_steps = 100_000  # steps between two drops of the rate
  c.decay_factor = 0.1  # each drop multiplies the rate by this
  c.warmup_steps = 0  # steps over which the rate rises linearly; 0: at once
  c.momentum = 0.9  # 0 to 1
  c.weight_decay = 5e-4  # L2, weights
  c.clip_gradients = 0.0  # larger gradients are shrunk to this norm, all together; 0: off
  c.bias_rate = 2.0  # biases: times the learning rate
  c.bias_decay = 0.0  # biases: times the weight decay

  d = c.data = ml_collections.ConfigDict()
  d.source = 'tfds'  # 'bundled', 'folder', 'records', 'tfds' or 'voc'; see docs/data.md
  d.root = ''  # the folder; for 'tfds' its data folder, '' the usual one
  d.split = 'imagenet2012:train'  # 'tfds': name:split; 'voc': a list of ImageSets/Main
  d.val_root = ''  # a second folder for validation; '': see the next two
  d.val_split = 'imagenet2012:validation'  # as split, for validation
  d.val_fraction = 0.1  # held out by a hash of the names where no other validation is named
  d.val_max_images = 0  # validate on at most this many images, a random subset; 0: on all
  d.crops_per_photograph = 800  # 'bundled': training crops out of each photograph
  d.val_crops_per_photograph = 320  # 'bundled': validation crops out of each photograph held out
  d.cache_dir = ''  # where folder listings are kept; '': the user's cache folder
  d.refresh = False  # True: list the folder again
  d.on_bad_image = 'fail'  # 'fail': stop; 'skip': list it in the workdir, show another
  d.puzzles_per_image = 1  # puzzles cut out of each decoded image, one for each of that many steps
  d.num_workers = 8  # loader processes; 0: threads of this process
  d.num_threads = 1  # reading threads in each process
  d.read_ahead_batches = 2  # batches that each loader process keeps ready

  p = c.permutations = ml_collections.ConfigDict()
  p.num = 1000  # N: permutations in the set, the number of classes
  p.method = 'max'  # 'max', 'min', 'mid', 'target' or 'code'; see docs/permutations.md
  p.seed = 0  # draws the set
  p.ties = 'spread'  # equally good permutations: 'spread', 'random' or 'first'
  p.mean = 0.0  # 'target': the wanted mean Hamming distance; 0: off
  p.min_distance = 0  # smallest Hamming distance between two of the set; 0: any
  p.file = ''  # a file that holds the set, instead of all the above
  p.fixed_per_image = 0  # permutations that an image sees, always the same ones; 0: all

  z = c.puzzle = ml_collections.ConfigDict()
  z.resize_px = 256  # the short side of the image is resized to this
  z.crop_px = 255  # side of the square cut out of it
  z.crop_mode = 'centre'  # 'centre', 'random' (within the central square) or 'whole' (resized)
  z.cell_px = 85  # side of a cell; equal to tile_px: tiles without gaps
  z.cell_gap_px = 0  # between two cells
  z.tile_px = 64  # side of a tile, the network's input
  z.grid = 3  # cells a side, 2 to 5
  z.grey_fraction = 0.3  # share of the visits that are grey, 0 to 1
  z.project_fraction = 0.0  # share of the other visits without the green-magenta axis, 0 to 1
  z.drop_channels = False  # True: each tile keeps one random channel, the others become its mean
  z.channel_shift_px = 2  # colour channels of a tile move by up to this, inside its cell; 0: off
  z.occluders = 0  # tiles that another example's replace in training, at most; 0: off
  z.normalization = 'tile'  # 'tile', 'channel', 'mean' (no std) or 'global' (one mean and std)
  z.tile_scale = 50.0  # normalised tiles are multiplied by this; goes with model.init
  z.global_mean = (123.0, 117.0, 104.0)  # RGB, 0..255: for 'global'
  z.global_std = 58.0  # 0..255: for 'global' and 'mean'

  m = c.model = ml_collections.ConfigDict()
  m.name = 'cfn'  # 'cfn', or 'stacked': all tiles as channels of one AlexNet
  m.order = 'caffenet'  # 'caffenet': pool, then LRN, biases 1; 'alexnet': LRN, then pool, 0.1
  m.init = 'caffe'  # 'caffe' (with a tile_scale near 50) or 'he' (with one near 1)
  m.stride = 2  # of conv1
  m.width = 1.0  # channels of conv1 to conv5, times this
  m.fc6_features = 0  # of each tile; 0: the paper's, 512 for 'cfn', AlexNet's 4096 for 'stacked'
  m.fc7_features = 4096  # of the whole puzzle
  m.fc8_features = 0  # outputs, one for each permutation or more; 0: one for each
  m.dropout = 0.5  # after fc6 and fc7; 0: off
  m.permutations_per_pass = 1  # puzzles made of the features of one image's tiles
  return c


def _release(c: ml_collections.ConfigDict) -> None:
  """The authors' prototxt and data layer: no grey, no shift, mean without std, 0..255.

  Their 100 permutations have mean distance 8.08 and minimum 2, as random ties give; fc8 has 1000
  outputs all the same.
  """
  c.model.fc6_features = 1024
  c.model.fc8_features = 1000
  c.permutations.num = 100
  c.permutations.ties = 'random'
  c.puzzle.grey_fraction = 0.0
  c.puzzle.channel_shift_px = 0
  c.puzzle.normalization = 'mean'
  c.puzzle.tile_scale = c.puzzle.global_std


def _text(c: ml_collections.ConfigDict) -> None:
  """225-px crops at random places, cells of 75 px."""
  c.puzzle.crop_px = 225
  c.puzzle.crop_mode = 'random'
  c.puzzle.cell_px = 75


def _unblocked(c: ml_collections.ConfigDict) -> None:
  """Random crops, no grey, no channel shift."""
  c.puzzle.crop_mode = 'random'
  c.puzzle.grey_fraction = 0.0
  c.puzzle.channel_shift_px = 0


def _small(c: ml_collections.ConfigDict) -> None:
  """For a folder of photographs with a short side of 128 px or more, on a CPU."""
  c.data.source = 'folder'
  c.data.split = ''
  c.data.val_split = ''
  c.data.num_workers = 0
  c.permutations.num = 100
  c.puzzle.resize_px = 128
  c.puzzle.crop_px = 126
  c.puzzle.cell_px = 42
  c.puzzle.tile_px = 32
  c.puzzle.tile_scale = 1.0
  c.model.init = 'he'
  c.model.width = 0.5
  c.model.fc6_features = 256
  c.model.fc7_features = 1024
  c.model.permutations_per_pass = 8
  c.batch_size = 64
  c.num_steps = 9_000
  c.learning_rate = 0.02
  c.schedule = 'cosine'
  c.warmup_steps = 100
  c.log_every_steps = 50
  c.eval_every_steps = 500
  c.checkpoint_every_steps = 500
  c.plateau_warning_steps = 2_000


def _tiny(c: ml_collections.ConfigDict) -> None:
  """Seven photographs, cropped at random scales: it overfits, and shows that everything works."""
  _small(c)
  c.data.source = 'bundled'
  c.permutations.num = 24
  c.model.width = 0.25
  c.model.fc6_features = 128
  c.model.fc7_features = 512
  c.model.permutations_per_pass = 24  # all of them
  c.num_steps = 300
  c.warmup_steps = 50
  c.log_every_steps = 10
  c.eval_every_steps = 25
  c.checkpoint_every_steps = 100
  c.plateau_warning_steps = 200


VARIANTS = {
  'release': _release,
  'text': _text,
  'unblocked': _unblocked,
  'small': _small,
  'tiny': _tiny,
}
