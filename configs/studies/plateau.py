"""The plateau: when a run leaves chance, and how to make that earlier.

For cfn.py:small. A run leaves chance at the first of two consecutive means of its training loss
over 25 steps that lie 0.1 bit below ln N. Then it ends, except for the first row, whose checkpoint
another one starts from. The rate is constant after its warm-up, so the number of steps does not
change the beginning of a run.
"""

from typing import Any

from configs.studies import parts

BUDGET = 4_000  # steps that a run has to leave chance


def get_study() -> dict[str, Any]:
  """Declares the study."""
  return {
    'title': 'When a run leaves chance',
    'fields': {
      'num_steps': BUDGET,
      'schedule': 'step',
      'log_every_steps': 25,
      'eval_bits': True,
      'eval_every_steps': 1_000,
      'checkpoint_every_steps': 1_000,
    },
    'figures': {
      'left, steps': {'take': ('', 'left_step'), 'unit': 'steps'},
      'left, images': {'take': ('', 'left_images'), 'unit': 'images'},
      'left, seconds': {'take': ('', 'left_seconds'), 'unit': 'seconds'},
    },
    'runs': {
      'n100': {},
      **{
        name: {'fields': fields, 'stop_when_left': True}
        for name, fields in {
          'n24': {'permutations.num': 24},
          'n1000': {'permutations.num': 1000},
          'k1': {'model.permutations_per_pass': 1},
          'k24': {'model.permutations_per_pass': 24},
          'caffe': {'model.init': 'caffe', 'puzzle.tile_scale': 50.0},
          'rate_005': {'learning_rate': 0.005},
          'rate_05': {'learning_rate': 0.05},
          'no_warmup': {'warmup_steps': 0},
          'warmup_1000': {'warmup_steps': 1_000},
          'width_025': {'model.width': 0.25},
          'width_1': {'model.width': 1.0},
        }.items()
      },
      'n1000_warm': {
        'fields': {'permutations.num': 1000},
        'start': 'n100',
        'stop_when_left': True,
      },
    },
    'claims': [
      _claim('more permutations leave chance later', 'n1000', 'n100'),
      _claim('fewer permutations leave chance earlier', 'n100', 'n24'),
      _claim('one puzzle an image leaves chance later than eight', 'k1', 'n100'),
      _claim('a warm start from 100 permutations lets 1000 leave earlier', 'n1000', 'n1000_warm'),
      _claim("Caffe's initial values leave chance later than He's", 'caffe', 'n100'),
      _claim('a rate four times lower leaves chance later', 'rate_005', 'n100'),
      _claim('a longer warm-up leaves chance later', 'warmup_1000', 'n100'),
      _claim('a narrower network leaves chance later', 'width_025', 'n100'),
    ],
  }


def _claim(says: str, higher: str, lower: str) -> dict[str, Any]:
  return parts.claim(f'Ours: {says}', 'left, images', higher, lower)
