"""Pretraining by relative position: where does a tile lie?

The source: Doersch et al., 2015.

  relative_position.py          on the jigsaw's tiles, at the jigsaw's cost: the fair comparison
  relative_position.py:doersch  the source's tiles: 96 px, 48 px apart, all 40 pairs of an image
  relative_position.py:small    half width, 32-px tiles: hours on a CPU, any folder
  relative_position.py:tiny     bundled photographs: two minutes on two CPU cores

All fields but `pairs` are fields of cfn.py too. docs/deviations.md lists what it leaves out of the
source.
"""

import ml_collections

from configs import cfn, training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is on the jigsaw's tiles."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = cfn.make_pretext('relative_position')
  c.pairs = 'star'  # 'star': the middle tile and each around it; 'all': each and its neighbours
  c.model.permutations_per_pass = 8  # the whole star
  return c


def _doersch(c: ml_collections.ConfigDict) -> None:
  """Jitter of 7 px either way in cells of 110 px; images of 512 px, between 387 and 671 there."""
  c.pairs = 'all'
  c.model.permutations_per_pass = 40
  c.puzzle.resize_px = 512
  c.puzzle.crop_px = 398
  c.puzzle.crop_mode = 'random'
  c.puzzle.cell_px = 110
  c.puzzle.cell_gap_px = 34
  c.puzzle.tile_px = 96
  c.puzzle.grey_fraction = 0.0
  c.puzzle.channel_shift_px = 0
  c.puzzle.drop_channels = True
  c.model.stride = 4
  c.model.fc6_features = 4096
  c.model.dropout = 0.0


def _tiny(c: ml_collections.ConfigDict) -> None:
  cfn.use_bundled_crops(c)
  c.num_steps = 100  # what it learns later is about its five photographs


VARIANTS = {'doersch': _doersch, 'small': cfn.use_small_tiles, 'tiny': _tiny}
