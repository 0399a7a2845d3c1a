"""Judges whether the figures of a study confirm its claims.

A claim is confirmed or refuted if the difference has the same sign in each pair of runs that share
a seed, and its mean is above twice the pooled spread of the two rows. Otherwise it is open. A
single seed has no spread and leaves everything open.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

WORDS = ('confirmed', 'refuted', 'open')


@dataclasses.dataclass(frozen=True)
class Value:
  """A figure of one run; `beyond`: it is larger than `number` by an unknown amount."""

  number: float
  beyond: bool = False


@dataclasses.dataclass(frozen=True)
class Verdict:
  """One of `WORDS`, and its numbers."""

  word: str
  why: str


def find_spread(numbers: Sequence[float]) -> float:
  """Returns the sample standard deviation over seeds; nan for a single one.

  >>> find_spread([1.0, 3.0]).__round__(4)
  1.4142
  """
  return statistics.stdev(numbers) if len(numbers) > 1 else math.nan


def judge(higher: Mapping[int, Value], lower: Mapping[int, Value]) -> Verdict:
  """Judges the claim that the figures of one row, by seed, are higher than another's."""
  seeds = sorted({*higher} & {*lower})
  if not seeds:
    return Verdict('open', 'a figure is missing')
  if len(seeds) == 1:
    return Verdict('open', 'one seed')
  found = [_subtract(higher[seed], lower[seed]) for seed in seeds]
  differences = [each for each in found if each is not None]
  if len(differences) < len(seeds):
    return Verdict('open', 'both are beyond what was run')
  rows = [[values[seed].number for seed in seeds] for values in (higher, lower)]
  pooled = math.sqrt(statistics.fmean(find_spread(row) ** 2 for row in rows))
  mean = statistics.fmean(differences)
  same = all(each > 0 for each in differences) or all(each < 0 for each in differences)
  why = f'difference {mean:+.4g}, pooled spread {pooled:.3g}, {len(seeds)} seeds'
  if not same or abs(mean) <= 2 * pooled:
    return Verdict('open', why)
  return Verdict('confirmed' if mean > 0 else 'refuted', why)


def _subtract(one: Value, other: Value) -> float | None:
  """Returns the difference, or its lower bound; None if its sign is unknown."""
  difference = one.number - other.number
  if one.beyond and other.beyond:
    return None
  if (one.beyond and difference < 0) or (other.beyond and difference > 0):
    return None
  return difference
