"""Pretraining by rotation: how many quarter turns?

The source: Gidaris et al., 2018.

  rotation.py          227-px crops of ImageNet in all four rotations, on AlexNet's stride of 4
  rotation.py:small    half width, 48-px crops: two and a half hours on a CPU, any folder
  rotation.py:tiny     bundled photographs: two minutes on two CPU cores

All fields are fields of cfn.py too. docs/deviations.md lists what it leaves out of the source.
"""

import ml_collections

from configs import cfn, training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is the full run."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = cfn.make_pretext('rotation')
  c.batch_size = 192  # images, each in four rotations
  c.num_steps = 333_000  # 50 epochs of ImageNet
  c.puzzle.crop_px = 227
  c.puzzle.crop_mode = 'random'
  c.puzzle.grid = 1  # one tile, without a gap, in its four rotations
  c.puzzle.cell_px = 227
  c.puzzle.tile_px = 227
  c.puzzle.grey_fraction = 0.0
  c.puzzle.channel_shift_px = 0
  c.model.stride = 4
  c.model.fc6_features = 4096
  c.model.permutations_per_pass = 4  # all rotations
  return c


def _shrink(c: ml_collections.ConfigDict) -> None:
  """Four crops of 48 px: the pixels of nine tiles of 32 px, at 2.4 times the cost of a step."""
  c.puzzle.resize_px = 64
  c.puzzle.crop_px = 48
  c.puzzle.cell_px = 48
  c.puzzle.tile_px = 48
  c.model.stride = 2


def _small(c: ml_collections.ConfigDict) -> None:
  cfn.use_small_tiles(c)
  _shrink(c)


def _tiny(c: ml_collections.ConfigDict) -> None:
  cfn.use_bundled_crops(c)
  _shrink(c)
  c.num_steps = 100  # what it learns later is about its five photographs


VARIANTS = {'small': _small, 'tiny': _tiny}
