"""The table of the methods' figures, with the rows of the paper's table 4 beside it.

docs/permutations.md shows it.
"""

import dataclasses
from typing import Any

from cfn_jax.jigsaw.permutation_sets import permutations


@dataclasses.dataclass(frozen=True)
class Row:
  """One set of the table, and the paper's row of that size, if it has one."""

  num: int
  options: dict[str, Any]
  paper_mean: float = 0.0
  paper_min: int = 0


ROWS = (
  Row(1000, {'method': 'max'}, 8.00, 2),
  Row(1000, {'method': 'max', 'ties': 'random'}, 8.00, 2),
  Row(1000, {'method': 'max', 'ties': 'first'}, 8.00, 2),
  Row(1000, {'method': 'max', 'min_distance': 5}),
  Row(1000, {'method': 'mid'}, 6.35, 2),
  Row(1000, {'method': 'target', 'mean': 6.35}, 6.35, 2),
  Row(1000, {'method': 'min'}, 3.99, 2),
  Row(1000, {'method': 'code'}, 8.00, 2),
  Row(100, {'method': 'max'}, 8.08, 2),
  Row(100, {'method': 'max', 'ties': 'random'}, 8.08, 2),
  Row(100, {'method': 'max', 'ties': 'first'}, 8.08, 2),
  Row(100, {'method': 'mid'}),
  Row(100, {'method': 'min'}),
  Row(100, {'method': 'code'}, 8.08, 2),
  Row(95, {'method': 'max', 'min_distance': 3}, 8.08, 3),
  Row(85, {'method': 'max', 'min_distance': 4}, 8.07, 4),
  Row(71, {'method': 'max', 'min_distance': 5}, 8.07, 5),
  Row(35, {'method': 'max', 'min_distance': 6}, 8.13, 6),
  Row(10, {'method': 'max', 'min_distance': 7}, 8.57, 7),
  Row(7, {'method': 'max', 'min_distance': 8}, 8.95, 8),
  Row(6, {'method': 'max', 'min_distance': 9}, 9.00, 9),
  *(Row(0, {'method': 'max', 'min_distance': d}) for d in range(4, 10)),
  Row(9, {'method': 'code'}),
  Row(72, {'method': 'code'}),
  Row(504, {'method': 'code'}),
  Row(1512, {'method': 'code'}),
  Row(24, {'method': 'max', 'grid': 2}),
  Row(1000, {'method': 'max', 'grid': 4}),
  Row(1000, {'method': 'min', 'grid': 4}),
  Row(1000, {'method': 'max', 'grid': 5}),
)


def make_table(seed: int = 0) -> str:
  """Makes every set of `ROWS` and returns the table as Markdown."""
  lines = [
    '| options | N | mean | min | largest mean | paper: mean | min |',
    '|---|---:|---:|---:|---:|---:|---:|',
  ]
  for row in ROWS:
    summary = permutations.summarize(
      permutations.make_permutations(row.num, seed=seed, **row.options)
    )
    options = {'num': row.num, **row.options} if row.num else row.options
    shown = ' '.join(f'--{name.replace("_", "-")}={value}' for name, value in options.items())
    paper = f'{row.paper_mean:.2f} | {row.paper_min}' if row.paper_min else ' | '
    lines.append(
      f'| `{shown}` | {summary.num} | {summary.mean_hamming:.3f} | {summary.min_hamming} '
      f'| {summary.largest_mean:.3f} | {paper} |'
    )
  return '\n'.join(lines)
