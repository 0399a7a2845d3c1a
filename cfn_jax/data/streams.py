"""Which record comes where, and the generator of each draw: functions of the seed alone."""

import functools

import numpy as np

from cfn_jax.data.record import Source

# The streams of draws that one seed feeds; a new use takes a new number.
VISIT, ORDER, EVALUATION, IMAGE, REPLACEMENT, SUBSET, SCALE, SHEET = range(8)


def make_rng(seed: int, position: int, stream: int = VISIT) -> np.random.Generator:
  """Builds the generator of one place in one stream; the same on every host and process."""
  return np.random.Generator(np.random.Philox(key=[seed, position], counter=[0, 0, 0, stream]))


def record_index(length: int, *, seed: int, position: int) -> int:
  """Returns the record at a place of the endless stream: each epoch shows every record once."""
  epoch, place = divmod(position, length)
  return int(_epoch_order(length, seed, epoch)[place])


@functools.lru_cache(maxsize=4)
def _epoch_order(length: int, seed: int, epoch: int) -> np.ndarray:
  return make_rng(seed, epoch, ORDER).permutation(length).astype(np.uint32)


def choose_records(source: Source, limit: int) -> np.ndarray:
  """Returns the records that an evaluation of at most `limit` images shows, in order; 0: all.

  A subset is random and always the same: no seed decides it. Where the source knows the class of
  each image, each class has as many images in it as any other, give or take one, until it has no
  more; else all records are equally likely.

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
  turn = np.empty(len(order), np.int64)  # of each record in its class
  turn[by_class] = np.arange(len(order)) - np.searchsorted(sorted_labels, sorted_labels)
  return order[np.argsort(turn, kind='stable')]
