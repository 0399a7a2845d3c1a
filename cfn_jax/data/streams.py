"""The order of records, and the generator of each draw: functions of the seed alone."""

import functools

import numpy as np

from cfn_jax.data.record import Source

# The streams of draws of one seed; each new use has a new number.
VISIT, ORDER, EVALUATION, IMAGE, REPLACEMENT, SUBSET, SCALE, SHEET = range(8)


def make_rng(seed: int, position: int, stream: int = VISIT) -> np.random.Generator:
  """Returns the generator of one place in one stream; the same on every host and process."""
  return np.random.Generator(np.random.Philox(key=[seed, position], counter=[0, 0, 0, stream]))


def record_index(length: int, *, seed: int, position: int) -> int:
  """Returns the record at a place of the endless stream; each epoch shows every record once."""
  epoch, place = divmod(position, length)
  return int(_epoch_order(length, seed, epoch)[place])


@functools.lru_cache(maxsize=4)
def _epoch_order(length: int, seed: int, epoch: int) -> np.ndarray:
  return make_rng(seed, epoch, ORDER).permutation(length).astype(np.uint32)


def choose_records(source: Source, limit: int) -> np.ndarray:
  """Returns the records of an evaluation of at most `limit` images, in order; 0: all.

  A subset is random and the same for every seed. If the source knows the class of each image, all
  classes have equally many images in it, give or take one, until a class has no more. Otherwise all
  records are equally likely.

  Returns:
    int64 `[n]`, ascending.
  """
  count = len(source)
  if not limit or limit >= count:
    return np.arange(count)
  order = make_rng(0, 0, SUBSET).permutation(count)
  labels = source.labels()
  if labels is not None:
    order = take_turns(labels, order)
  return np.sort(order[:limit])


def take_turns(labels: np.ndarray, order: np.ndarray) -> np.ndarray:
  """Reorders records `[n]` so that classes take turns; those of a class keep their order.

  >>> take_turns(np.array([0, 0, 0, 1, 1]), np.array([4, 2, 1, 0, 3])).tolist()
  [4, 2, 1, 3, 0]
  """
  by_class = np.argsort(labels[order], kind='stable')
  sorted_labels = labels[order][by_class]
  turn = np.empty(len(order), np.int64)  # the place of each record in its class
  turn[by_class] = np.arange(len(order)) - np.searchsorted(sorted_labels, sorted_labels)
  return order[np.argsort(turn, kind='stable')]
