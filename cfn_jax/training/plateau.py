"""When a training loss leaves that of chance: one rule, for the warning of a run and for studies.

A run has left chance with the first of two consecutive means of its training loss that both lie
`MARGIN` below the loss of a guess. A mean is taken over 25 steps; a run that logs less often, or at
other steps, has longer ones. A loss above chance, as large initial values give, has not left it.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

STEPS = 25  # of each mean, at least
MARGIN = 0.1 * math.log(2)  # 0.1 bit, in nats


class Leaving:
  """Takes logged rows in their turn, and tells when the loss has left chance.

  Args:
    chance_loss: the loss of a guess: ln N.
    margin: how far below it a mean must lie.
  """

  def __init__(self, chance_loss: float, margin: float = MARGIN) -> None:
    self._most = chance_loss - margin
    self._before = 0  # the last logged step
    self._steps = 0  # of the mean that is being taken
    self._sum = 0.0
    self._below = 0  # the step at which the mean before this one ended, if it was low enough

  def take(self, row: Mapping[str, Any]) -> int:
    """Returns the step at which the first of two low means ends, once the second does; else 0."""
    step, loss = int(row['step']), row.get('train_loss')
    if loss is None:
      return 0
    count, self._before = step - self._before, step
    self._steps += count
    # A loss that is no number is text in a row, and makes its mean none.
    self._sum += count * loss if isinstance(loss, int | float) else math.nan
    if self._steps < STEPS:
      return 0
    low = self._sum / self._steps <= self._most
    left = self._below if low else 0
    self._below = step if low else 0
    self._steps, self._sum = 0, 0.0
    return left


def find_left(rows: Iterable[Mapping[str, Any]], chance_loss: float, margin: float = MARGIN) -> int:
  """Returns the step at which a run left chance, see `Leaving`; 0 where it has not.

  >>> losses = (7.3, 2.1, 2.0, 1.9)
  >>> find_left([{'step': 25 * i + 25, 'train_loss': x} for i, x in enumerate(losses)], 2.08)
  75
  """
  leaving = Leaving(chance_loss, margin)
  return next((step for step in map(leaving.take, rows) if step), 0)


class Plateau:
  """Notices a training loss that does not leave that of chance, or falls back to it.

  Args:
    chance_loss: the loss of a guess.
    steps: how many may pass without a loss that has left it; 0: any number.
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
    """Takes a row in its turn; returns a warning once, else ''."""
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
