"""The data of a detection, opened from a config and checked before any training.

Images and their objects (data/voc_objects.py) with the proposed regions of each
(data/proposals.py).
"""

import dataclasses

import ml_collections
import numpy as np

from cfn_jax.data import canvases, faults, pipeline, proposals, voc_objects
from cfn_jax.errors import CfnError
from cfn_jax.evaluation.detection import roles, transform


@dataclasses.dataclass(frozen=True)
class Split:
  """One split: its images, their objects, and the proposed regions of each."""

  reader: pipeline.Reader
  images: voc_objects.Split
  proposals: proposals.Proposals

  def sizes(
    self, short_px: tuple[int, ...], longest_px: int, records: np.ndarray | slice = slice(None)
  ) -> canvases.Sizes:
    """Returns the sizes of the images, or of some records `[n]`; sides in px."""
    native = np.array([each.size_px for each in self.images.objects], np.int32)
    return canvases.Sizes.of(native[records], tuple(short_px), longest_px)


@dataclasses.dataclass(frozen=True)
class Opened:
  """The two splits of a detection, of the same classes."""

  training: Split
  testing: Split
  class_names: tuple[str, ...]


def open_data(config: ml_collections.ConfigDict) -> Opened:
  """Opens images, objects and proposals.

  Raises:
    SourceError: with the fault, its place and the remedy.
  """
  d = config.data
  training, testing, class_names = voc_objects.open_config(config)
  one_list = not (d.val_root or d.val_split)
  if one_list and config.proposals.test:
    raise CfnError(
      f"proposals.test = '{config.proposals.test}': the test is a part of the list of training "
      '(data.val_root and data.val_split are empty), so proposals.train holds its proposals too; '
      'leave this one empty'
    )
  where = {'train': config.proposals.train, 'test': config.proposals.test}
  opened = [
    Split(
      pipeline.Reader(images.source, seed=config.seed),
      images,
      proposals.open_proposals(
        where['train' if one_list else which],
        field=f'proposals.{"train" if one_list else which}',
        listed=images.listed,
        names=images.source.stems(),
        sizes=[each.size_px for each in images.objects],
        keep=config.proposals.keep,
      ),
    )
    for which, images in (('train', training), ('test', testing))
  ]
  for each in opened:
    faults.check(each.reader)
  return Opened(opened[0], opened[1], class_names)


def read_rule(config: ml_collections.ConfigDict) -> roles.Roles:
  """Reads the rule that gives regions their roles in training."""
  r = config.regions
  return roles.Roles(
    r.per_image, r.foreground, r.foreground_overlap, r.background_low, r.background_high
  )


def measure_moves(config: ml_collections.ConfigDict, data: Opened) -> roles.Moves:
  """Measures the moves of the training set's regions, see `roles.measure_moves`."""
  difficult = config.regions.difficult
  return roles.measure_moves(
    (
      (*transform.choose_objects(objects, difficult=difficult), data.training.proposals[index])
      for index, objects in enumerate(data.training.images.objects)
    ),
    len(data.class_names),
    config.regions.foreground_overlap,
  )
