"""When a training loss leaves chance: one rule, for a run's warning and for studies.

A run leaves chance at the first of two consecutive means of its training loss that both lie
`MARGIN` below the loss of a guess. A mean covers 25 steps, or more in a run that logs less often or
at other steps. A loss above chance, as with large initial values, has not left it.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

STEPS = 25  # the least steps of a mean
MARGIN = 0.1 * math.log(2)  # 0.1 bit, in nats


class Leaving:
  """Follows logged rows in order, and reports when the loss has left chance.

  Args:
    chance_loss: the loss of a guess: ln N.
    margin: distance below it that a mean must reach.
  """

  def __init__(self, chance_loss: float, margin: float = MARGIN) -> None:
    self._most = chance_loss - margin
    self._before = 0  # the last logged step
    self._steps = 0  # of the current mean
    self._sum = 0.0
    self._below = 0  # the last step of the previous mean, if it was low enough

  def take(self, row: Mapping[str, Any]) -> int:
    """Returns the last step of the first of two low means, once the second ends; else 0."""
    step, loss = int(row['step']), row.get('train_loss')
    if loss is None:
      return 0
    count, self._before = step - self._before, step
    self._steps += count
    # A loss that is not finite is text in a row, and its mean does not count.
    self._sum += count * loss if isinstance(loss, int | float) else math.nan
    if self._steps < STEPS:
      return 0
    low = self._sum / self._steps <= self._most
    left = self._below if low else 0
    self._below = step if low else 0
    self._steps, self._sum = 0, 0.0
    return left


def find_left(rows: Iterable[Mapping[str, Any]], chance_loss: float, margin: float = MARGIN) -> int:
  """Returns the step at which a run left chance, see `Leaving`; 0 if it has not.

  >>> losses = (7.3, 2.1, 2.0, 1.9)
  >>> find_left([{'step': 25 * i + 25, 'train_loss': x} for i, x in enumerate(losses)], 2.08)
  75
  """
  leaving = Leaving(chance_loss, margin)
  return next((step for step in map(leaving.take, rows) if step), 0)


class Plateau:
  """Notices a training loss that does not leave chance, or returns to it.

  Args:
    chance_loss: the loss of a guess.
    steps: number of steps that may pass without leaving it; 0: any number.
    margin: see `Leaving`.
    advice: the likely cause and its remedy, in a sentence.
  """

  def __init__(
    self, chance_loss: float, steps: int, *, margin: float = MARGIN, advice: str = ''
  ) -> None:
    self._chance, self._steps, self._advice = chance_loss, steps, advice
    self._leaving = Leaving(chance_loss, margin)
    self._since = 0
    self._warned = False

  def check(self, row: Mapping[str, Any]) -> str:
    """Follows a row; returns a warning once, else ''."""
    if self._leaving.take(row):
      self._since, self._warned = int(row['step']), False
      return ''
    waited = row['step'] - self._since
    if 'train_loss' not in row or not self._steps or self._warned or waited < self._steps:
      return ''
    self._warned = True
    loss = row['train_loss']
    shown = f'{loss:.3f}' if isinstance(loss, int | float) else str(loss)
    warning = (
      f'warning: from step {self._since} to {row["step"]} the training loss did not leave chance '
      f'({self._chance:.3f}), it is {shown}: the network learns nothing yet.'
    )
    return f'{warning} {self._advice}'.rstrip()
