"""Measures the CPU seconds that making a permutation set takes, from a cold start.

python -m cfn_jax.benchmark permutations --num=1000
"""

import argparse
import time
from typing import Any

from cfn_jax.jigsaw.permutation_sets import permutations


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options of this measurement."""
  parser.add_argument('--num', type=int, default=1000, help='permutations (default 1000)')
  parser.add_argument('--method', default='max', help=', '.join(permutations.METHODS))
  parser.add_argument('--ties', default='spread', help=', '.join(permutations.TIES))
  parser.add_argument('--mean', type=float, default=0.0, help='for --method=target')
  parser.add_argument('--min-distance', type=int, default=0, help='smallest distance allowed')
  parser.add_argument('--grid', type=int, default=3, help='tiles along a side (default 3)')
  parser.add_argument('--seed', type=int, default=0, help='of the draws (default 0)')


def run(arguments: argparse.Namespace) -> dict[str, Any]:
  """Makes the set once in this process, from a cold start.

  `seconds` is the CPU time of all threads, from the table of all permutations to the finished set.
  `process_seconds` counts from the start of the interpreter, with imports and summary.
  """
  start = time.process_time()
  made = permutations.make_permutations(
    arguments.num,
    method=arguments.method,
    seed=arguments.seed,
    grid=arguments.grid,
    ties=arguments.ties,
    mean=arguments.mean,
    min_distance=arguments.min_distance,
  )
  seconds = time.process_time() - start
  summary = permutations.summarize(made)
  return {
    'seconds': round(seconds, 4),
    'process_seconds': round(time.process_time(), 4),
    'num': summary.num,
    'method': arguments.method,
    'ties': arguments.ties,
    'grid': arguments.grid,
    'seed': arguments.seed,
    'mean_hamming': summary.mean_hamming,
    'min_hamming': summary.min_hamming,
    'largest_mean': summary.largest_mean,
  }
