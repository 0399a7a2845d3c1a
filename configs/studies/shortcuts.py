"""Shortcuts (the paper's table 5): the effect of each measure against them.

For cfn.py:small, which has the hundred permutations of that table. All rows have grey images.
Without gaps the tiles keep their size and the crop shrinks to them; channels still shift within the
crop. 'mean and std of all' is the normalisation that keeps each tile's brightness. Table 5 lists
jigsaw accuracy and detection; here conv1..conv5 locked on class folders replace detection.
"""

from typing import Any

from configs.studies import parts

NO_GAP = {'puzzle.crop_px': 96, 'puzzle.cell_px': 32}
NO_NORMALIZATION = {'puzzle.normalization': 'global'}
NO_SHIFT = {'puzzle.channel_shift_px': 0}


def get_study() -> dict[str, Any]:
  """Declares the study."""
  return {
    'title': 'Measures against shortcuts (table 5)',
    'fields': {
      'num_steps': 3_000,
      'eval_bits': True,
      'eval_every_steps': 1_000,
      'checkpoint_every_steps': 1_000,
    },
    'evaluations': {'frozen': parts.FROZEN},
    'figures': {**parts.SOLVED, **parts.LOCKED},
    'runs': {
      'all_on': _run({}, 88, parts.BOTH),
      'no_gap': _run(NO_GAP, 98, parts.BOTH),
      'no_normalization': _run(NO_NORMALIZATION, 90),
      'no_shift': _run(NO_SHIFT, 89),
      'none': _run({**NO_GAP, **NO_NORMALIZATION, **NO_SHIFT}),
    },
    'claims': [
      *_claims('no_gap', 'gaps', '98', '47.7'),
      *_claims('no_normalization', 'normalisation', '90', '43.5'),
      *_claims('no_shift', 'shifted channels', '89', '51.1'),
      parts.claim(
        'Ours: without all three measures puzzles are solved more often than with them',
        'accuracy',
        'none',
        'all_on',
      ),
    ],
  }


def _run(fields: dict[str, Any], paper: float = 0, seeds: tuple[int, ...] = (0,)) -> dict[str, Any]:
  known = {'paper': {'accuracy': paper}} if paper else {}
  return {'fields': fields, 'seeds': seeds, 'evaluations': ('frozen',), **known}


def _claims(run: str, measure: str, accuracy: str, detection: str) -> list[dict[str, str]]:
  return [
    parts.claim(
      f'Table 5: without {measure} puzzles are solved more often ({accuracy} and 88 %)',
      'accuracy',
      run,
      'all_on',
    ),
    parts.claim(
      f'Table 5: without {measure} features transfer less (detection {detection} and 52.6)',
      'conv5 locked',
      'all_on',
      run,
    ),
  ]
