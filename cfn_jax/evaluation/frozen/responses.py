"""The responses of a layer's units to many tiles: running sums, and the best tiles of each.

Memory holds only sums and the best so far, for any number of images. NumPy; units.py feeds it.
"""

from typing import NamedTuple

import numpy as np

TOP = 16  # tiles to show for a unit, each from another image, as in the paper
PICKED = 6  # units to show for a layer, as in the paper
ALIKE = 0.9  # correlation above which two units count as one
RULE = (
  f'highest (mean of its best {TOP} - mean) / standard deviation over all tiles, not correlated '
  f'above {ALIKE} with a unit already picked'
)


class Best(NamedTuple):
  """The strongest responses of each unit so far, the first of equals: `[F, n]` with n <= 16.

  Attributes:
    value: float32, mean response of the tile.
    record, tile: int32: the image, and the number of its tile.
    place: int32: the place of the strongest response in the map, row by row.
  """

  value: np.ndarray
  record: np.ndarray
  tile: np.ndarray
  place: np.ndarray


class Responses:
  """The responses of one layer's units: sums over all tiles, and the best of each unit."""

  def __init__(self, features: int) -> None:
    self.count = 0
    self.total = np.zeros(features)
    self.products = np.zeros((features, features))
    empty = np.zeros((features, 0))
    self.best = Best(empty.astype(np.float32), *[empty.astype(np.int32)] * 3)

  def add(self, record: int, means: np.ndarray, places: np.ndarray) -> None:
    """Adds the tiles of one image: mean responses and places `[n, F]`."""
    exact = means.astype(np.float64)
    self.count += len(exact)
    self.total += exact.sum(0)
    self.products += exact.T @ exact
    tile = means.argmax(0)
    units = np.arange(means.shape[1])
    found = (means[tile, units], np.full(len(units), record), tile, places[tile, units])
    joined = [np.c_[old, new.astype(old.dtype)] for old, new in zip(self.best, found)]
    order = np.argsort(-joined[0], axis=1, kind='stable')[:, :TOP]
    self.best = Best(*(np.take_along_axis(each, order, axis=1) for each in joined))

  def mean(self) -> np.ndarray:
    """Returns the mean response of each unit over all tiles: float64 `[F]`."""
    return self.total / self.count

  def covariance(self) -> np.ndarray:
    """Returns the covariance of units over tiles: float64 `[F, F]`."""
    mean = self.mean()
    return self.products / self.count - mean[:, None] * mean

  def std(self) -> np.ndarray:
    """Returns the standard deviation `[U]` of the units over tiles; 0 where it is mere rounding."""
    variance = self.covariance().diagonal()
    return np.sqrt(np.where(variance > 1e-12 * self.products.diagonal() / self.count, variance, 0))

  def scores(self) -> np.ndarray:
    """Returns how much a unit's best tiles stand out, float64 `[F]`; -inf for a constant unit.

    It is (mean of the best 16 - mean) / standard deviation over all tiles.
    """
    std = self.std()
    above = self.best.value.mean(1, dtype=np.float64) - self.mean()
    return np.where(std > 0, above / np.where(std > 0, std, 1), -np.inf)

  def pick(self, count: int) -> list[int]:
    """Returns up to `count` units by `RULE`, the highest score first, the first of equals."""
    std, scores = self.std(), self.scores()
    scale = np.where(std > 0, std, 1)
    correlation = self.covariance() / (scale[:, None] * scale)
    picked: list[int] = []
    for unit in np.argsort(-scores, kind='stable').tolist():
      if len(picked) == count or scores[unit] == -np.inf:
        break
      if all(correlation[unit, other] <= ALIKE for other in picked):
        picked.append(unit)
    return picked
