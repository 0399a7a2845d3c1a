"""Evaluation: how well a CFN solves puzzles, in bits.

Also single tiles, permutations outside the set, and positions.

  solve.py          all images of the checkpoint's own training, all steps
  solve.py:small    4,000 images for the probe of positions: minutes on a CPU

`--config.weights=PATH` names a workdir, a step, or a folder of weights of a CFN. Its own config and
permutation set are used; see docs/probes.md. The fields of the loop and the solver, those of
training.py, are for the linear probe of positions.
"""

import ml_collections

from configs import training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is all images."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = training.make_frozen('solve')
  c.num_steps = 20_000  # of the probe of positions
  c.batch_size = 1024  # tiles per step
  c.schedule = 'cosine'  # over num_steps
  training.add_weights(c)

  s = c.solve = ml_collections.ConfigDict()
  s.puzzles_per_image = 8  # puzzles of each validation image
  s.outside_permutations = 1000  # permutations outside the set to draw those from
  s.vote = False  # True: also with a vote over the set's symmetries; see docs/permutations.md
  s.train_visits = 0  # images to train the probe of positions on; 0: each image once

  d = training.add_images(c)
  d.source = ''  # '': the images of the checkpoint's training; else as in cfn.py
  d.split = ''  # for a source of its own, as the next
  d.val_split = ''  # for validation

  f = training.add_cache(c)
  f.dtype = 'float32'  # of fc6 of single tiles
  f.part_images = 4096  # a multiple of eval_batch_size

  training.add_probe(c)
  return c


def _small(c: ml_collections.ConfigDict) -> None:
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


VARIANTS = {'small': _small}
