"""Photographs without a download: crops of those in the scikit-image and scikit-learn wheels.

The wheels contain seven colour scenes. Pictures that the libraries fetch on demand are not used,
nor are colour pictures that show no scene (a colour wheel, a galaxy field, a retina, a tissue
slice). Two whole photographs are held out for validation.
"""

import functools
import hashlib
import importlib.util
import math
import pathlib

import numpy as np

from cfn_jax.data import images
from cfn_jax.data.record import Record, Source, SourceError, check_index

# name -> (package, file inside it). The motorcycle's right view shows the same scene: left out.
_SKIMAGE, _SKLEARN = ('skimage', 'data'), ('sklearn', 'datasets/images')
_FILES = {
  'astronaut': (*_SKIMAGE, 'astronaut.png'),
  'chelsea': (*_SKIMAGE, 'chelsea.png'),
  'china': (*_SKLEARN, 'china.jpg'),
  'coffee': (*_SKIMAGE, 'coffee.png'),
  'flower': (*_SKLEARN, 'flower.jpg'),
  'motorcycle': (*_SKIMAGE, 'motorcycle_left.png'),
  'rocket': (*_SKIMAGE, 'rocket.jpg'),
}
TRAINING = ('astronaut', 'coffee', 'flower', 'motorcycle', 'rocket')
VALIDATION = ('chelsea', 'china')

SMALLEST_SIDE_PX = 128
# A share of the photograph's shorter side. A whole photograph could be cut in one way only.
LARGEST_SIDE = 0.95
# The longer side of a crop is at most this many times the shorter one.
LARGEST_ASPECT = 1.25
# Part of each crop's random key: another number makes other crops.
_CROP_SEED = 2016


class BundledSource(Source):
  """Distinct crops of random scale and place; crop i is a pure function of i and the photographs.

  Crops are uint8 `[H, W, 3]` at native resolution. The shorter side is log-uniform from
  `SMALLEST_SIDE_PX` to nearly the photograph's shorter side. Labels are -1.
  """

  def __init__(self, photographs: tuple[str, ...], crops_per_photograph: int) -> None:
    if crops_per_photograph < 1:
      raise SourceError(f'{crops_per_photograph} crops per photograph: at least 1 is needed')
    self.class_names: tuple[str, ...] = ()
    self.photographs = photographs
    self._length = len(photographs) * crops_per_photograph
    digest = hashlib.sha256(f'{_CROP_SEED} {crops_per_photograph}'.encode())
    for name in photographs:
      digest.update(name.encode() + hashlib.sha256(_path(name).read_bytes()).digest())
    self.fingerprint = digest.hexdigest()[:32]
    shown = ', '.join(photographs)
    self.description = (
      f'bundled: {self._length:,} crops of {len(photographs)} photographs ({shown})'
    )

  def __repr__(self) -> str:
    return f'BundledSource({self.fingerprint})'

  def __len__(self) -> int:
    return self._length

  def __getitem__(self, index: int) -> Record:
    index = check_index(index, self._length)
    name = self.photographs[index % len(self.photographs)]
    photograph = _load(name)
    top, left, height, width = crop_box(index, *photograph.shape[:2])
    crop = photograph[top : top + height, left : left + width].copy()
    return Record(crop, f'{name}-{index:05d}', -1)


def crop_box(index: int, height: int, width: int) -> tuple[int, int, int, int]:
  """Draws crop `index` of a photograph: top, left, height, width in pixels."""
  rng = np.random.Generator(np.random.Philox(key=[_CROP_SEED, index]))
  largest = LARGEST_SIDE * min(height, width)
  side = math.exp(rng.uniform(math.log(SMALLEST_SIDE_PX), math.log(largest)))
  upright = rng.random() < 0.5
  room = (height if upright else width) / side
  long_side = side * math.exp(rng.uniform(0, math.log(min(LARGEST_ASPECT, room))))
  crop_height = round(long_side if upright else side)
  crop_width = round(side if upright else long_side)
  top = int(rng.integers(height - crop_height + 1))
  left = int(rng.integers(width - crop_width + 1))
  return top, left, crop_height, crop_width


def open_bundled(
  *, crops_per_photograph: int, val_crops_per_photograph: int
) -> tuple[BundledSource, BundledSource]:
  """Opens training and validation crops, which share no photograph.

  Raises:
    SourceError: the packages that carry the photographs are not installed.
  """
  missing = sorted({_FILES[name][0] for name in _FILES if not _path(name).is_file()})
  if missing:
    raise SourceError(
      f"data.source = 'bundled' needs the photographs in {' and '.join(missing)}, not found here. "
      "Install them: pip install -e '.[demo]'"
    )
  return (
    BundledSource(TRAINING, crops_per_photograph),
    BundledSource(VALIDATION, val_crops_per_photograph),
  )


def _path(name: str) -> pathlib.Path:
  package, *inside = _FILES[name]
  spec = importlib.util.find_spec(package)  # finds the folder without importing the package
  if spec is None or not spec.submodule_search_locations:
    return pathlib.Path(package, *inside)
  return pathlib.Path(next(iter(spec.submodule_search_locations)), *inside)


@functools.cache
def _load(name: str) -> np.ndarray:
  """Decodes a photograph once per process; never pickled with a source."""
  path = _path(name)
  photograph = images.decode_image(path.read_bytes(), name=str(path))
  photograph.flags.writeable = False
  return photograph
