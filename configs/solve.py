"""How well a CFN solves puzzles: bits, single tiles, permutations outside the set, positions.

  solve.py          all images of the checkpoint's own training, all steps
  solve.py:small    4,000 images for the probe of positions: minutes on a CPU

`--config.weights=PATH` names a workdir, a step, or a folder of weights of a CFN, whose own config
and permutation set are used; see docs/probes.md. The fields of the loop and the solver, those of
cfn.py, are for the linear probe of positions.
"""

import ml_collections

from configs import training

VARIANTS = ('small',)


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant."""
  if variant and variant not in VARIANTS:
    raise ValueError(f"variant '{variant}' is unknown: small, or none")
  c = training.make_config('solve')
  c.num_steps = 20_000  # of the probe of positions
  c.batch_size = 1024  # tiles a step
  c.learning_rate = 0.01  # at the start
  c.schedule = 'cosine'  # 'step': x decay_factor every decay_steps; 'cosine': to 0 at num_steps
  training.add_weights(c)

  s = c.solve = ml_collections.ConfigDict()
  s.puzzles_per_image = 8  # permutations that each validation image is shown in
  s.outside_permutations = 1000  # permutations outside the set to draw those from
  s.train_visits = 0  # images whose tiles train the probe of positions; 0: each image once

  d = c.data = ml_collections.ConfigDict()
  d.source = ''  # '': the images of the checkpoint's training; else as in cfn.py, with the next 5
  d.root = ''  # the folder
  d.split = ''  # 'tfds': name:split; 'voc': a list of ImageSets/Main
  d.val_root = ''  # a second folder for validation
  d.val_split = ''  # as split, for validation
  d.val_fraction = 0.1  # held out by a hash of the names where no other validation is named
  d.val_max_images = 0  # validate on at most this many images, a random subset; 0: on all
  d.num_workers = 8  # loader processes; 0: threads of this process
  d.num_threads = 1  # reading threads in each process
  d.read_ahead_batches = 2  # batches that each loader process keeps ready

  f = c.features = ml_collections.ConfigDict()
  f.dtype = 'float32'  # of the cache of fc6 features: 'float32' or 'float16'
  f.part_images = 4096  # images in each part of it; a multiple of eval_batch_size

  p = c.probe = ml_collections.ConfigDict()
  p.standardize = 'dimension'  # features: mean 0, variance 1 by 'dimension'; '': as they are
  p.init_std = 0.01  # standard deviation of the probe's first weights
  if variant == 'small':
    c.num_steps = 1_000
    c.eval_batch_size = 64
    c.log_every_steps = 100
    c.eval_every_steps = 500
    c.checkpoint_every_steps = 500
    c.keep_latest = 1
    c.solve.train_visits = 4_000
    c.data.val_max_images = 1_000
    c.data.num_workers = 0
    c.features.part_images = 1_024
  return c.lock()
