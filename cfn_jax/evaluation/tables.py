"""Prints tables of figures: a row for each run, the paper's rows below them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cfn_jax import terminal

Row = tuple[str, Sequence[float | int | str | None]]


def show(
  title: str, columns: Sequence[str], sections: Sequence[Sequence[Row]], *, caption: str = ''
) -> None:
  """Prints a table on stdout; rows may be shorter than the table; `None` and nan show as '-'.

  Args:
    sections: groups of rows, separated by a line.
  """
  written = [
    [(label, [write_figure(value) for value in values]) for label, values in rows]
    for rows in sections
  ]
  terminal.show_table(title, columns, written, caption=caption)


def write_interval(figures: Mapping[str, Any], name: str) -> str:
  """Returns a share in per cent with half the width of its interval, `name_low` to `name_high`.

  >>> write_interval({'map': 0.472, 'map_low': 0.413, 'map_high': 0.532}, 'map')
  '47.2 ±6.0'
  """
  half = (figures[f'{name}_high'] - figures[f'{name}_low']) / 2
  return f'{100 * figures[name]:.1f} ±{100 * half:.1f}'


def write_figure(value: float | int | str | None) -> str:
  """Returns a figure with one decimal.

  >>> write_figure(54.72), write_figure(math.nan), write_figure(12)
  ('54.7', '-', '12')
  """
  if isinstance(value, float):
    return '-' if math.isnan(value) else f'{value:.1f}'
  return '-' if value is None else str(value)
