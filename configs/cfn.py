"""Pretraining by jigsaw puzzles: the context-free network.

  cfn.py             the paper's full run: 350,000 steps of 256 puzzles, 1000 permutations, ImageNet
  cfn.py:fast        eight puzzles per image, started from a run with 100 permutations
  cfn.py:release     the authors' 2016 code where it differs from the paper
  cfn.py:text        the sizes of the paper's method section: 75-px cells, random crops
  cfn.py:unblocked   chromatic aberration not blocked: the network of the paper's figures 4 and 5
  cfn.py:plus        the authors' sequel, Jigsaw++: occluders, colour projection, 701 permutations
  cfn.py:small       100 permutations, half width, 32-px tiles: hours on a CPU, any folder
  cfn.py:plus_small  :plus at the size of :small
  cfn.py:tiny        24 permutations on bundled photographs: a minute on two CPU cores
  cfn.py:plus_tiny   the same with occluders and colour projection

relative_position.py and rotation.py are its rivals on the same trunk. Any field can be set on the
command line: `--config.puzzle.grey_fraction=0`.
"""

import ml_collections

from configs import training


def get_config(variant: str = '') -> ml_collections.ConfigDict:
  """Builds the config of a variant; '' is the paper's."""
  return training.choose(_paper(), variant, VARIANTS)


def _paper() -> ml_collections.ConfigDict:
  c = make_pretext('jigsaw')
  add_permutations(c)
  return c


def make_pretext(task: str) -> ml_collections.ConfigDict:
  """Builds the fields that all pretext tasks share."""
  c = make_tiled(task)
  c.init_from = ''  # a checkpoint or weights file to start from at step 0; '': random weights
  return c


def make_tiled(task: str) -> ml_collections.ConfigDict:
  """Builds the fields of a task that trains a network on the tiles of images."""
  c = training.make_config(task)
  c.plateau_warning_steps = 20_000  # puzzles first stay at chance for thousands of steps
  add_data(c)
  add_puzzle(c)
  add_model(c)
  return c


def add_permutations(c: ml_collections.ConfigDict) -> None:
  """Adds the section `permutations`, and the fields of jigsaws alone."""
  c.eval_bits = False  # True: evaluations also log bits and the share of right tiles
  p = c.permutations = ml_collections.ConfigDict()
  p.num = 1000  # N: permutations in the set, the number of classes
  p.method = 'max'  # 'max', 'min', 'mid', 'target' or 'code'; see docs/permutations.md
  p.seed = 0  # draws the set
  p.ties = 'spread'  # equally good permutations: 'spread', 'random' or 'first'
  p.mean = 0.0  # 'target': the wanted mean Hamming distance; 0: off
  p.min_distance = 0  # smallest Hamming distance between two of the set; 0: any
  p.file = ''  # a file with the set, instead of all the above
  p.fixed_per_image = 0  # permutations per image, always the same ones; 0: all


def add_data(c: ml_collections.ConfigDict) -> None:
  """Adds the section `data` of a pretext task: images without labels."""
  d = training.add_unlabelled(c)
  d.puzzles_per_image = 1  # puzzles cut from each decoded image, one per step


def add_puzzle(c: ml_collections.ConfigDict) -> None:
  """Adds the section `puzzle`: how an image becomes tiles, and tiles become the input."""
  z = c.puzzle = ml_collections.ConfigDict()
  z.resize_px = 256  # the short side of the image is resized to this
  z.crop_px = 255  # side of the crop
  z.crop_mode = 'centre'  # 'centre', 'random' (within the central square) or 'whole' (resized)
  z.cell_px = 85  # side of a cell; equal to tile_px: tiles without gaps
  z.cell_gap_px = 0  # between two cells
  z.tile_px = 64  # side of a tile, the network's input
  z.grid = 3  # cells per side, 2 to 5
  z.grey_fraction = 0.3  # share of the visits that are grey, 0 to 1
  z.project_fraction = 0.0  # share of the other visits without the green-magenta axis, 0 to 1
  z.drop_channels = False  # True: each tile keeps one random channel, the others become its mean
  z.channel_shift_px = 2  # colour channels of a tile move by up to this, inside its cell; 0: off
  z.occluders = 0  # largest number of tiles that another example's replace in training; 0: off
  z.normalization = 'tile'  # 'tile', 'channel', 'mean' (no std) or 'global' (one mean and std)
  z.tile_scale = 50.0  # factor of normalised tiles; it must fit model.init
  z.global_mean = (123.0, 117.0, 104.0)  # RGB, 0..255: for 'global'
  z.global_std = 58.0  # 0..255: for 'global' and 'mean'


def add_model(c: ml_collections.ConfigDict) -> None:
  """Adds the section `model` of a pretext task: the CFN."""
  m = training.add_model(c)
  m.name = 'cfn'  # 'cfn', or 'stacked': all tiles as channels of one AlexNet
  m.stride = 2  # tiles are small
  m.fc6_features = 0  # of each tile; 0: the paper's, 512 for 'cfn', AlexNet's 4096 for 'stacked'
  m.fc8_features = 0  # outputs, one for each class or more; 0: one for each
  m.permutations_per_pass = 1  # puzzles, or questions, per image and pass of the trunk


def _fast(c: ml_collections.ConfigDict) -> None:
  """Eight puzzles per image; first a run with 100 permutations, from which the next starts.

  The first run has `permutations.num` = 100 and about 20,000 steps, the second `init_from` = its
  workdir, from which all layers but fc8 are loaded. Neither has been trained at full size. The
  earlier departure from chance is known for tiles of 32 px at half width, and the steps of the
  first run are a guess (docs/studies.md).
  """
  c.model.permutations_per_pass = 8
  c.plateau_warning_steps = 5_000  # it should leave earlier than with one puzzle per image


def _release(c: ml_collections.ConfigDict) -> None:
  """The authors' prototxt and data layer: no grey, no shift, mean without std, 0..255.

  Their 100 permutations have mean distance 8.08 and minimum 2, as with random ties. fc8 still has
  1000 outputs.
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


def _plus(c: ml_collections.ConfigDict) -> None:
  """The data layer of Jigsaw++: channels differ by up to 2 px, half of the visits are grey."""
  c.permutations.num = 701
  c.puzzle.grey_fraction = 0.5
  c.puzzle.project_fraction = 0.5
  c.puzzle.channel_shift_px = 1
  c.puzzle.occluders = 2


def use_small_tiles(c: ml_collections.ConfigDict) -> None:
  """Tiles of 32 px from photographs with a short side of 128 px or more."""
  training.use_small_pretraining(c)
  c.puzzle.resize_px = 128
  c.puzzle.crop_px = 126
  c.puzzle.cell_px = 42
  c.puzzle.tile_px = 32
  c.puzzle.tile_scale = 1.0
  c.model.fc6_features = 256
  c.model.fc7_features = 1024
  c.learning_rate = 0.02
  c.plateau_warning_steps = 2_000


def use_bundled_crops(c: ml_collections.ConfigDict) -> None:
  """The same tiles from bundled photographs."""
  use_small_tiles(c)
  training.use_tiny_pretraining(c)
  c.num_steps = 150  # what it learns later is about its five photographs
  c.model.fc6_features = 128
  c.model.fc7_features = 512
  c.plateau_warning_steps = 200


def _small(c: ml_collections.ConfigDict) -> None:
  use_small_tiles(c)
  c.permutations.num = 100
  c.model.permutations_per_pass = 8


def _tiny(c: ml_collections.ConfigDict) -> None:
  use_bundled_crops(c)
  c.permutations.num = 24
  c.model.permutations_per_pass = 24  # all of them


def _plus_small(c: ml_collections.ConfigDict) -> None:
  _plus(c)
  _small(c)


def _plus_tiny(c: ml_collections.ConfigDict) -> None:
  _plus(c)
  _tiny(c)


VARIANTS = {
  'fast': _fast,
  'release': _release,
  'text': _text,
  'unblocked': _unblocked,
  'plus': _plus,
  'small': _small,
  'plus_small': _plus_small,
  'tiny': _tiny,
  'plus_tiny': _plus_tiny,
}
