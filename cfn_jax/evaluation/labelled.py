"""Labelled images for the evaluations, opened from a config and checked before any training.

Any labelled source: class folders, records and TFDS (one class per image), VOC folders and TFDS's
VOC (multilabel). Between data/ and the evaluations.
"""

import dataclasses
import functools
import hashlib

import ml_collections
import numpy as np

from cfn_jax.data import feed, pipeline, sources, splits, views
from cfn_jax.models import alexnet

# Limits of the numbers that evaluations on labelled images read and nothing else checks.
LIMITS = {
  **feed.LIMITS,
  **alexnet.LIMITS,
  'model.fc6_features': (1, 2**20),
  **views.LIMITS,
  'test.draws': (1, 1000),
}


@dataclasses.dataclass(frozen=True)
class Split:
  """One split: its images and, if an image has several classes, their labels.

  Attributes:
    labels: uint8 `[n, K]` by record; `[0, 0]` if the records have their one class.
  """

  reader: pipeline.Reader
  labels: np.ndarray

  @functools.cached_property
  def fingerprint(self) -> str:
    """Returns a digest of the images and of their labels."""
    told = self.reader.source.identify().encode() + self.labels.tobytes()
    return hashlib.sha256(told).hexdigest()[:32]


@dataclasses.dataclass(frozen=True)
class Labelled:
  """The two splits of a data set, of the same classes."""

  training: Split
  testing: Split
  class_names: tuple[str, ...]


def open_labelled(
  config: ml_collections.ConfigDict, *, multilabel: bool, min_side_px: int = 0
) -> Labelled:
  """Opens the images that a config names.

  Args:
    multilabel: an image has several classes (VOC).
    min_side_px: see `pipeline.Reader`.

  Raises:
    SourceError: with the fault, its place and the remedy.
  """
  if not multilabel:
    return open_single(config, min_side_px=min_side_px)
  d = config.data
  training, testing = _open(config)
  ours, names = training.multi_labels(d.labels)
  theirs, test_names = testing.multi_labels(d.labels)
  splits.check_same_classes(names, test_names)
  return _join(config, (training, ours), (testing, theirs), names, min_side_px)


def open_single(config: ml_collections.ConfigDict, *, min_side_px: int = 0) -> Labelled:
  """Opens the images that a config names, with one class each; see `open_labelled`."""
  training, testing = _open(config)
  names, none = _check_classes(training, testing), np.empty((0, 0), np.uint8)
  return _join(config, (training, none), (testing, none), names, min_side_px)


def _open(config: ml_collections.ConfigDict) -> tuple[sources.Source, sources.Source]:
  opened = sources.open_config(config.data)
  splits.check_held_out(*opened)
  return opened


def _join(
  config: ml_collections.ConfigDict,
  training: tuple[sources.Source, np.ndarray],
  testing: tuple[sources.Source, np.ndarray],
  names: tuple[str, ...],
  min_side_px: int,
) -> Labelled:
  """Joins sources and their labels, and checks that each class has an image."""
  d = config.data
  read = functools.partial(
    pipeline.Reader, seed=config.seed, min_side_px=min_side_px, on_bad_image=d.on_bad_image
  )
  found = Labelled(
    Split(read(training[0]), training[1]), Split(read(testing[0]), testing[1]), names
  )
  check_counts(found, allow_empty=d.allow_empty_classes)
  return found


def _check_classes(training: sources.Source, testing: sources.Source) -> tuple[str, ...]:
  """Returns the classes; refuses images without one, and test images of other classes."""
  if not training.class_names:
    raise sources.SourceError(
      f'{training.description}: the images have no classes; each must lie in the folder of its '
      'class'
    )
  if testing.foreign_classes:
    splits.check_same_classes(training.class_names, testing.foreign_classes)
  if not testing.class_names:
    raise sources.SourceError(
      f'{testing.description}: the images have no classes; cfn_jax.prepare --labels gives '
      "ImageNet's validation images theirs (docs/data.md)"
    )
  return training.class_names


def check_counts(data: Labelled, *, allow_empty: bool) -> None:
  """Refuses images without a label, and a split without an image of some class.

  A TFDS source with one class per image is not counted: that would read all of it.

  Raises:
    SourceError: with the split and the classes.
  """
  for where, split in (('training', data.training), ('test', data.testing)):
    counts = count_classes(split, len(data.class_names))
    if counts is None:
      continue
    absent = [name for name, count in zip(data.class_names, counts) if not count]
    if absent and (where == 'training' or not allow_empty):
      hint = '' if where == 'training' else '; data.allow_empty_classes=True scores the others'
      raise sources.SourceError(
        f'{split.reader.source.description}: no {where} image of {len(absent)} of the '
        f'{len(counts)} classes: {", ".join(absent[: splits.NAMED])}{hint}'
      )


def count_classes(split: Split, classes: int) -> np.ndarray | None:
  """Counts the images of each class, int `[K]`; None if that needs reading all records."""
  if len(split.labels):
    return np.sum(split.labels == 1, axis=0)
  labels = split.reader.source.labels()
  if labels is None:
    if len(split.reader.source) and split.reader.source[0].label < 0:
      raise sources.SourceError(f'{split.reader.source.description}: its images have no class')
    return None
  if np.any(labels < 0):
    raise sources.SourceError(
      f'{split.reader.source.description}: {np.sum(labels < 0):,} images have no class'
    )
  return np.bincount(labels, minlength=classes)
