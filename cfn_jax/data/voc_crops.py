"""The objects of VOC images as a source of its own, and square views of objects or whole images.

A record is an object: the bytes of its image, and its class. Paper, section 4.2. Between
voc_objects.py and the pipeline. No JAX.
"""

import dataclasses
import math

import numpy as np

from cfn_jax.data import boxes, folder, listing, pipeline, resampling, voc_objects
from cfn_jax.data.record import Record, Source, SourceError, check_index


class ObjectSource(Source):
  """The objects of a split; the name of a record is that of its image.

  Attributes:
    boxes: float32 `[n, 4]`.
    images: int32 `[n]`, each object's image as a record of the split.
  """

  boxes: np.ndarray
  images: np.ndarray

  def __init__(
    self, split: voc_objects.Split, class_names: tuple[str, ...], *, least_px: int, difficult: bool
  ) -> None:
    """Selects the objects of at least `least_px` pixels.

    Args:
      difficult: includes those that are marked as difficult.

    Raises:
      SourceError: there is none.
    """
    sizes = np.concatenate([boxes.areas(each.boxes) for each in split.objects])
    marked = np.concatenate([each.difficult for each in split.objects])
    chosen = (sizes >= least_px) & (difficult | ~marked)
    described = split.source.description.partition(':')[0]
    if not chosen.any():
      largest = int(sizes[difficult | ~marked].max(initial=0))
      raise SourceError(
        f'{described}: none of the {len(sizes):,} objects has {least_px:,} px '
        f'(objects.min_area_px), the largest has {largest:,}'
        + ('' if difficult else '; objects.difficult = False leaves out difficult ones')
      )
    counts = [len(each.classes) for each in split.objects]
    self.boxes = np.concatenate([each.boxes for each in split.objects])[chosen]
    self.images = np.repeat(np.arange(len(counts), dtype=np.int32), counts)[chosen]
    self._labels = np.concatenate([each.classes for each in split.objects])[chosen]
    self._files = split.source
    self.root = split.source.root
    self.class_names = class_names
    self.description = f'{described}: {len(self):,} of {len(sizes):,} objects'
    told = self._files.fingerprint.encode() + self.images.tobytes() + self.boxes.tobytes()
    self.fingerprint = folder.digest_labels(told, self._labels, class_names)

  def __len__(self) -> int:
    return len(self.images)

  def __getitem__(self, index: int) -> Record:
    index = check_index(index, len(self))
    record = self._files[int(self.images[index])]
    return record._replace(label=int(self._labels[index]))

  @property
  def names(self) -> listing.Names:
    """Returns the names of all images of the split."""
    return self._files.names

  def __repr__(self) -> str:
    return f'ObjectSource({self.fingerprint})'

  def labels(self) -> np.ndarray:
    """Returns the class of each record `[n]`."""
    return self._labels

  def identify(self) -> str:
    return f'{self.fingerprint} {self._files.identify()}'


@dataclasses.dataclass(frozen=True)
class MakeCrops:
  """The transform: a visit becomes one view of its object, or of the whole image.

  Attributes:
    view_px: side of the view, px; the box is warped to it.
    boxes: float32 `[n, 4]` by record; empty: whole images.
  """

  view_px: int
  boxes: np.ndarray = dataclasses.field(default_factory=lambda: np.empty((0, 4), np.float32))

  @property
  def nbytes(self) -> int:
    """Returns the bytes of an example."""
    return 3 * self.view_px**2 + 8

  def __call__(self, visit: pipeline.Visit) -> pipeline.Batch:
    """Returns `image` uint8 `[1, px, px, 3]`, `label` int32 `[2]`: the class and the record."""
    view = warp(self.cut(visit.image, visit.record), self.view_px)
    return {'image': view[None], 'label': np.array([visit.label, visit.record], np.int32)}

  def cut(self, image: np.ndarray, record: int) -> np.ndarray:
    """Returns the part of a record's image uint8 `[H, W, 3]` in its box."""
    if not len(self.boxes):
      return image
    left, top, right, bottom = self.boxes[record].tolist()
    rows = slice(math.floor(top), math.ceil(bottom) + 1)
    return image[rows, math.floor(left) : math.ceil(right) + 1]


def warp(image: np.ndarray, side: int) -> np.ndarray:
  """Resizes a whole image `[H, W, 3]` to a square, whatever its shape."""
  height, width = image.shape[:2]
  return resampling.resample(image, (0, 0, width, height), side)
