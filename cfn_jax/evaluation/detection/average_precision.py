"""Average precision of detections: which are right, and the figures.

The rules are those of the VOC devkit (`VOCevaldet.m`). A detection belongs to the object of its
class and image that it overlaps most, if that is at least half. Only then does it matter whether
the object is difficult (ignored) or taken (wrong). Files of detections are read in their order,
which settles ties. The 11-point figure is that of VOC2007, the area that of VOC2010 and later. It
follows suppression.py; bootstrap.py computes intervals.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cfn_jax.data import boxes, voc_objects

MIN_OVERLAP = 0.5
RIGHT, WRONG, IGNORED = 1, 0, -1


class Detections(NamedTuple):
  """The detections of one class, in the order of a file."""

  images: np.ndarray  # int [n], indices into the test's images
  scores: np.ndarray  # float [n]
  boxes: np.ndarray  # float [n, 4]


class Truths(NamedTuple):
  """The objects of one class in all images."""

  images: np.ndarray  # int [m]
  boxes: np.ndarray  # float [m, 4]
  difficult: np.ndarray  # bool [m]


@dataclasses.dataclass(frozen=True)
class Judged:
  """The detections of one class, judged.

  Attributes:
    verdicts: int8 `[n]`, `RIGHT`, `WRONG` or `IGNORED`, in the order of the detections.
    matches: int64 `[n]`: the object of each, an index into the truths; -1: none.
    order: int64 `[n]`, the detections by falling score.
    images: int64 `[n]`, the image of each.
    positives: int64 `[images]`: the number of objects to find in each image.
    recall: float64 `[n]`, by falling score; nan without a positive.
    precision: float64 `[n]`, by falling score; nan before the first that counts.
    eleven_points: the mean, over recalls 0, 0.1 .. 1, of the best precision there or beyond.
    area: under that curve.
  """

  verdicts: np.ndarray
  matches: np.ndarray
  order: np.ndarray
  images: np.ndarray
  positives: np.ndarray
  recall: np.ndarray
  precision: np.ndarray
  eleven_points: float
  area: float


@dataclasses.dataclass(frozen=True)
class Scores:
  """The figures of all classes.

  Attributes:
    mean_eleven_points, mean_area: over the classes that have a figure; nan if none has.
    eleven_points, area: by class; nan for a class without a positive.
    positives: by class: the number of objects that count.
    without: the classes without a positive.
    judged: for each class.
  """

  mean_eleven_points: float
  mean_area: float
  eleven_points: dict[str, float]
  area: dict[str, float]
  positives: dict[str, int]
  without: tuple[str, ...]
  judged: tuple[Judged, ...]


def judge(detections: Detections, truths: Truths, *, images: int) -> Judged:
  """Judges the detections of one class.

  Args:
    images: number of images of the test, including those without an object or a detection.

  Raises:
    ValueError: shapes do not fit, scores or boxes are not finite, or an image is outside.
  """
  _check(detections, truths, images)
  order = np.argsort(-np.asarray(detections.scores, np.float64), kind='stable')
  verdicts = np.full(len(order), WRONG, np.int8)
  matches = np.full(len(order), -1, np.int64)
  theirs = _by_image(truths.images, np.arange(len(truths.images)), images)
  for image, ours in enumerate(_by_image(detections.images, order, images)):
    objects = theirs[image]
    if len(ours) and len(objects):
      verdicts[ours], found = match(
        detections.boxes[ours], truths.boxes[objects], truths.difficult[objects]
      )
      matches[ours] = np.where(found >= 0, objects[found], -1)
  counted = truths.images[~truths.difficult]
  positives = np.bincount(counted, minlength=images)
  right = np.cumsum(verdicts[order] == RIGHT)
  wrong = np.cumsum(verdicts[order] == WRONG)
  total = int(positives.sum())
  with np.errstate(invalid='ignore'):
    precision, recall = right / (right + wrong), right / np.float64(total)
  curve = right[None], np.nan_to_num(precision)[None], np.array([total])
  return Judged(
    verdicts,
    matches,
    order,
    np.asarray(detections.images, np.int64),
    positives,
    recall,
    precision,
    float(eleven_points(*curve)[0]),
    float(area(*curve)[0]),
  )


def match(
  found: np.ndarray, truths: np.ndarray, difficult: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Judges the detections of one class in one image.

  Args:
    found: float `[n, 4]`, by falling score.
    truths: float `[m, 4]`, at least one.
    difficult: bool `[m]`.

  Returns:
    The verdicts, int8 `[n]`, and the object of each, int64 `[n]`, -1: none.
  """
  shares = boxes.overlaps(found, truths)  # [n, m]
  best = np.argmax(shares, axis=1)
  best = np.where(shares.max(axis=1) >= MIN_OVERLAP, best, -1)
  _, first = np.unique(best, return_index=True)
  verdicts = np.full(len(found), WRONG, np.int8)
  verdicts[first] = RIGHT
  verdicts[difficult[best]] = IGNORED
  verdicts[best < 0] = WRONG
  return verdicts, best


def judge_image(
  found: np.ndarray, classes: np.ndarray, objects: voc_objects.Objects
) -> tuple[np.ndarray, np.ndarray]:
  """Judges detections of one image, of any classes, for its picture.

  Args:
    found: float `[n, 5]`, boxes with their scores last, in any order.
    classes: int `[n]`.

  Returns:
    The verdicts, int8 `[n]`, and the missed objects, bool `[m]`; difficult ones are never missed.
  """
  verdicts = np.full(len(found), WRONG, np.int8)
  missed = ~objects.difficult
  by_score = np.argsort(-found[:, 4], kind='stable')
  for number in np.intersect1d(classes, objects.classes):
    ours = by_score[classes[by_score] == number]
    theirs = np.flatnonzero(objects.classes == number)
    verdicts[ours], best = match(found[ours, :4], objects.boxes[theirs], objects.difficult[theirs])
    missed[theirs[best[best >= 0]]] = False
  return verdicts, missed


def judge_classes(
  detections: Sequence[Detections],
  objects: Sequence[voc_objects.Objects],
  class_names: Sequence[str],
) -> Scores:
  """Judges the detections of all classes, and averages over classes with a positive.

  Args:
    detections: those of each class.
    objects: those of each image of the test.

  Raises:
    ValueError: see `judge`; or the detections have other classes.
  """
  if len(detections) != len(class_names):
    raise ValueError(f'detections of {len(detections)} classes, {len(class_names)} class names')
  truths = gather_truths(objects, len(class_names))
  judged = tuple(
    judge(ours, theirs, images=len(objects)) for ours, theirs in zip(detections, truths)
  )
  named = dict(zip(class_names, judged))
  without = tuple(name for name, each in named.items() if not each.positives.any())
  known = [each for name, each in named.items() if name not in without]
  return Scores(
    mean_eleven_points=_mean([each.eleven_points for each in known]),
    mean_area=_mean([each.area for each in known]),
    eleven_points={name: each.eleven_points for name, each in named.items()},
    area={name: each.area for name, each in named.items()},
    positives={name: int(each.positives.sum()) for name, each in named.items()},
    without=without,
    judged=judged,
  )


def gather_truths(objects: Sequence[voc_objects.Objects], classes: int) -> list[Truths]:
  """Returns the objects of each class, by image and in the order of the files."""
  images = np.repeat(np.arange(len(objects)), [len(each.classes) for each in objects])
  ends = np.concatenate([np.empty((0, 4), np.float32), *(each.boxes for each in objects)])
  numbers = np.concatenate([np.empty(0, np.int32), *(each.classes for each in objects)])
  difficult = np.concatenate([np.empty(0, bool), *(each.difficult for each in objects)])
  chosen = [np.flatnonzero(numbers == number) for number in range(classes)]
  return [Truths(images[own], ends[own], difficult[own]) for own in chosen]


def gather_detections(found: np.ndarray, kept: np.ndarray) -> list[Detections]:
  """Returns the detections of each class, by image.

  Args:
    found: float `[N, K, n, 5]`, by image and class; boxes with their scores last.
    kept: bool `[N, K, n]`, see `suppression.suppress_groups`.
  """
  gathered = []
  for number in range(found.shape[1]):
    images, places = np.nonzero(kept[:, number])
    own = found[images, number, places]
    gathered.append(Detections(images, own[:, 4], own[:, :4]))
  return gathered


def eleven_points(right: np.ndarray, precision: np.ndarray, positives: np.ndarray) -> np.ndarray:
  """Returns the mean, over recalls 0, 0.1 .. 1, of the best precision at that recall or more.

  Recalls are compared as whole numbers: 3 of 10 are 0.3, which multiples of 0.1 in doubles miss.

  Args:
    right: int `[draws, n]`: the number of right ones so far, by falling score.
    precision: float `[draws, n]`.
    positives: int `[draws]`.

  Returns:
    float64 `[draws]`; nan without a positive.
  """
  best = _best_beyond(precision)
  total = np.zeros(len(right))
  for tenth in range(11):
    place = np.sum(10 * right < tenth * positives[:, None], axis=1)  # the first to reach it
    total += np.take_along_axis(best, place[:, None], axis=1)[:, 0]
  return np.where(positives > 0, total / 11, math.nan)


def area(right: np.ndarray, precision: np.ndarray, positives: np.ndarray) -> np.ndarray:
  """Returns the area `[draws]` under the best precision at each recall or more.

  Arguments as in `eleven_points`.
  """
  gained = np.diff(right, axis=1, prepend=0)
  total = np.sum(gained * _best_beyond(precision)[:, :-1], axis=1)
  return np.where(positives > 0, total / np.maximum(positives, 1), math.nan)


def _best_beyond(precision: np.ndarray) -> np.ndarray:
  """Returns the best precision from each place on, `[draws, n + 1]`; 0 at the end."""
  padded = np.pad(precision, ((0, 0), (0, 1)))
  best: np.ndarray = np.maximum.accumulate(padded[:, ::-1], axis=1)[:, ::-1]
  return best


def _by_image(numbers: np.ndarray, order: np.ndarray, images: int) -> list[np.ndarray]:
  """Returns the places in `numbers` of each image, in the order of `order`."""
  own = order[np.argsort(numbers[order], kind='stable')]
  return np.split(own, np.searchsorted(numbers[own], np.arange(1, images)))


def _check(detections: Detections, truths: Truths, images: int) -> None:
  n, m = len(detections.images), len(truths.images)
  shapes = [np.shape(each) for each in (*detections, *truths)]
  if shapes != [(n,), (n,), (n, 4), (m,), (m, 4), (m,)]:
    raise ValueError(f'detections and truths of the shapes {shapes} do not fit')
  for what, numbers in (('scores', detections.scores), ('boxes', detections.boxes)):
    if not np.isfinite(numbers).all():
      raise ValueError(f'{np.sum(~np.isfinite(numbers)):,} of the {what} are not finite')
  for what, numbers in (('detection', detections.images), ('truth', truths.images)):
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < images:
      raise ValueError(f'a {what} in image {numbers.min()} or {numbers.max()} of {images}')


def _mean(figures: list[float]) -> float:
  return float(np.mean(figures)) if figures else math.nan
