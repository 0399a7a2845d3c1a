"""Makes a permutation set, or reads one, and prints how far apart its permutations are.

    python -m cfn_jax.permutations --num=1000 --out=perms.npy  # Algorithm 1 of the paper
    python -m cfn_jax.permutations --num=1000 --method=code  # the same mean distance, minimum 6
    python -m cfn_jax.permutations --num=1000 --method=target --mean=6.35  # a chosen mean distance
    python -m cfn_jax.permutations --min-distance=6 --plot=perms.png  # no similar permutations
    python -m cfn_jax.permutations --input=permutations_100.bin --out=perms.npy  # convert a file

The paper: section 4.2 and table 4. See docs/permutations.md.
"""

import argparse
import math
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from cfn_jax import arguments as command_lines
from cfn_jax import places, terminal
from cfn_jax.jigsaw.permutation_sets import files, permutations


def _parse_grid(text: str) -> tuple[int, int]:
  match = re.fullmatch(r'(\d{1,3})(?:x(\d{1,3}))?', text)
  if not match:
    raise argparse.ArgumentTypeError(f'{text!r}: must be like 3 or 3x3 (rows x columns)')
  return int(match[1]), int(match[2] or match[1])


def make_parser() -> command_lines.Parser:
  """Makes the parser of the command line."""
  parser = command_lines.Parser('cfn_jax.permutations', __doc__)
  add = parser.add_argument
  add('--num', type=int, help='permutations in the set (default 1000; all that --min-distance,'
      ' --method=code or --input leaves where one of these is given)')  # fmt: skip
  add('--method', help=f'{", ".join(permutations.METHODS)} (default max)')
  add('--ties', help=f'choice among equally good ones: {", ".join(permutations.TIES)}'
      ' (default spread)')  # fmt: skip
  add('--mean', type=float, help='mean distance of --method=target')
  add('--min-distance', type=int, default=0, help='smallest distance allowed')
  add('--seed', type=int, help='the same seed gives the same bytes (default 0)')
  add('--grid', type=_parse_grid, help='tiles along a side, 2 to 5, or rows x columns (default 3)')
  add('--input', action='place',
      help='take the set from a .npy, binary or text file instead')  # fmt: skip
  add('--out', action='place', help='write the set: .npy, .bin, .csv or .txt')
  add('--plot', action='place', help='draw distances, counts and examples')
  add('--table', action='store_true', help='print the table of all methods and nothing else')
  return parser


def _make(arguments: argparse.Namespace) -> tuple[np.ndarray, list[str]]:
  """Makes or reads the set; returns it with lines that describe its origin."""
  seed, prunes = arguments.seed or 0, arguments.num is not None or bool(arguments.min_distance)
  if arguments.input is not None:
    for name in ('method', 'ties', 'mean', *(() if prunes else ('seed',))):
      if getattr(arguments, name) is not None:
        raise permutations.PermutationError(f'--{name} does not go with --input')
    loaded = permutations.load_permutations(arguments.input)
    tiles = loaded.permutations.shape[1]
    if arguments.grid and math.prod(arguments.grid) != tiles:
      rows, columns = arguments.grid
      raise permutations.PermutationError(
        f'{arguments.input}: permutations of {tiles} tiles; --grid={rows}x{columns} has '
        f'{rows * columns}'
      )
    made = loaded.permutations
    if prunes:
      made = permutations.prune_permutations(
        made,
        num=-1 if arguments.num == 0 else arguments.num or 0,
        min_distance=arguments.min_distance,
        seed=seed,
      )
    return made, [f'read {arguments.input}: {loaded.note}']
  method = arguments.method or 'max'
  ties = arguments.ties or 'spread'
  if arguments.ties and method in ('mid', 'code'):
    raise permutations.PermutationError(f'--ties does not go with --method={method}')
  open_ended = arguments.min_distance or method == 'code'
  num = (0 if open_ended else 1000) if arguments.num is None else arguments.num
  if arguments.num == 0:
    raise permutations.PermutationError('permutations.num=0: must be at least 2')
  rows, columns = arguments.grid or (3, 3)
  made = permutations.make_permutations(
    num,
    method=method,
    ties=ties,
    mean=arguments.mean or 0.0,
    min_distance=arguments.min_distance,
    seed=seed,
    grid=rows,
    columns=columns,
  )
  note = f'method {method}, seed {seed}, {rows}x{columns} tiles'
  if method in ('max', 'min', 'target'):
    note += f', ties {ties}'
  notes = []
  if method == 'target':
    low, high = permutations.find_mean_range(
      num, grid=rows, columns=columns, ties=ties, seed=arguments.seed or 0
    )
    notes = [f'reachable mean distance with {num}: {low:.3f} to {high:.3f}']
  return made, [note, *notes]


def _get_shape(arguments: argparse.Namespace, tiles: int) -> tuple[int, int]:
  if arguments.grid:
    return arguments.grid
  rows = next(rows for rows in range(math.isqrt(tiles), 0, -1) if tiles % rows == 0)
  return rows, tiles // rows


def run(arguments: argparse.Namespace) -> None:
  """Runs the command; raises `PermutationError` before it writes anything."""
  if arguments.table:
    others = ('num', 'method', 'ties', 'mean', 'min_distance', 'grid', 'input', 'out', 'plot')
    given = [name.replace('_', '-') for name in others if getattr(arguments, name)]
    if given:
      raise permutations.PermutationError(
        f'--{given[0]} does not go with --table, which prints all methods; --seed does'
      )
    from cfn_jax.jigsaw.permutation_sets import table

    terminal.answer(*table.make_table(arguments.seed or 0).splitlines())
    return
  made, notes = _make(arguments)
  summary = permutations.summarize(made)
  contents: dict[pathlib.Path, bytes] = {}
  if arguments.out is not None:
    contents[places.local(arguments.out)] = files.encode_permutations(arguments.out, made)
  if arguments.plot is not None:
    from cfn_jax.pictures import permutations as pictures

    contents[places.local(arguments.plot)] = pictures.encode_picture(
      arguments.plot, made, grid=_get_shape(arguments, summary.tiles)
    )
  files.write_files(contents)
  terminal.answer(*notes)
  share = 100 * summary.mean_hamming / summary.largest_mean
  pairs = math.comb(summary.num, 2)
  terminal.answer(f'{summary.num} permutations of {summary.tiles} tiles')
  terminal.answer(f'mean distance    {summary.mean_hamming:.4f} over {pairs} distinct pairs')
  terminal.answer(f'largest possible {summary.largest_mean:.4f} ({share:.2f} % reached)')
  terminal.answer(f'minimum distance {summary.min_hamming}')
  terminal.answer(f'fingerprint      {permutations.fingerprint(made)}')
  for path in contents:
    terminal.answer(f'wrote {path}')


@terminal.interruptible()
@terminal.short_errors()
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  run(make_parser().parse(argv))


if __name__ == '__main__':
  main()
