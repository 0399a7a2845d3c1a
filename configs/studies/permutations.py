"""The permutation set (the paper's table 4): how many, how far apart, and codes.

For cfn.py:small. Table 4 lists jigsaw accuracy and detection; here conv1..conv4 and conv1..conv5
locked on class folders replace detection. Sets of a hundred are made with random ties. Their
minimum distance is 2, and they prune to exactly the paper's sizes. Larger sets all start from the
run with a hundred: from random weights they take thousands of steps to leave chance. The paper's
accuracy is that of 224-px crops of ImageNet and a full run: the order of rows is compared, not
their values.
"""

import itertools
from typing import Any

from configs.studies import parts


def get_study() -> dict[str, Any]:
  """Declares the study."""
  return {
    'title': 'Permutation sets (table 4)',
    'fields': {
      'num_steps': 5_000,
      'eval_bits': True,
      'eval_every_steps': 1_000,
      'checkpoint_every_steps': 1_000,
      'permutations.ties': 'random',
    },
    'evaluations': {'frozen': parts.FROZEN},
    'figures': {
      **parts.SOLVED,
      'tiles of a guess': {'take': ('', 'guess_tile_accuracy'), 'unit': '%'},
      **parts.LOCKED,
    },
    'runs': _make_runs(),
    'claims': _make_claims(),
  }


def _make_runs() -> dict[str, Any]:
  """Builds the rows: a hundred and its prunings, then codes and large sets."""
  runs = {
    'n100': {
      'fields': {'permutations.num': 100},
      'seeds': parts.BOTH,
      'paper': {'accuracy': 88},
    }
  }
  for num, distance, accuracy in (
    (95, 3, 90),
    (85, 4, 91),
    (71, 5, 92),
    (35, 6, 94),
    (10, 7, 97),
    (7, 8, 98),
    (6, 9, 99),
  ):
    runs[f'n{num}'] = {
      'fields': {
        'permutations.num': num,
        'permutations.min_distance': distance,
        'model.permutations_per_pass': min(8, num),
      },
      'paper': {'accuracy': accuracy},
    }
  for num in (72, 504):
    start = 'n100' if num > 100 else ''
    # A code has no ties: the field keeps the config's own value.
    code = {'permutations.num': num, 'permutations.method': 'code', 'permutations.ties': 'spread'}
    runs[f'code{num}'] = {'fields': code, 'start': start}
    runs[f'greedy{num}'] = {'fields': {'permutations.num': num}, 'start': start}
  large = (('max', 'random', 71), ('mid', 'spread', 62), ('min', 'random', 54))
  for method, ties, accuracy in large:
    runs[f'n1000_{method}'] = {
      'fields': {
        'permutations.num': 1000,
        'permutations.method': method,
        'permutations.ties': ties,
      },
      'start': 'n100',
      'paper': {'accuracy': accuracy},
    }
  return {name: {**run, 'evaluations': ('frozen',)} for name, run in runs.items()}


def _make_claims() -> list[dict[str, str]]:
  """Builds the expected directions: the paper's, then our own about codes."""
  claims = [
    parts.claim(f'Table 4: {says}', 'accuracy', higher, lower)
    for says, higher, lower in (
      ('100 permutations are told apart better than 1000 (88 and 71 %)', 'n100', 'n1000_max'),
      ('of 1000, far ones better than middling ones (71 and 62 %)', 'n1000_max', 'n1000_mid'),
      ('of 1000, middling ones better than near ones (62 and 54 %)', 'n1000_mid', 'n1000_min'),
    )
  ]
  sizes = (100, 95, 85, 71, 35, 10, 7, 6)
  claims += [
    parts.claim(
      f'Table 4: the {fewer} permutations left at a larger minimum distance are told apart better '
      f'than {more}',
      'accuracy',
      f'n{fewer}',
      f'n{more}',
    )
    for more, fewer in itertools.pairwise(sizes)
  ]
  for figure in ('conv4 locked', 'conv5 locked'):
    claims += [
      parts.claim(
        f'Table 4, {figure}: 1000 permutations transfer better than 100 (detection 53.2 and 52.6)',
        figure,
        'n1000_max',
        'n100',
      ),
      parts.claim(
        f'Table 4, {figure}: of 1000, far ones transfer better than near ones (53.2 and 50.2)',
        figure,
        'n1000_max',
        'n1000_min',
      ),
      parts.claim(
        f'Table 4, {figure}: 35 permutations transfer better than 10 (52.6 and 49.2)',
        figure,
        'n35',
        'n10',
      ),
    ]
  return claims + [
    parts.claim(
      f'Ours: a code of {num} is told apart better than a greedy set of {num}',
      'accuracy',
      f'code{num}',
      f'greedy{num}',
    )
    for num in (72, 504)
  ]
