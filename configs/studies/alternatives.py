"""Alternatives: the 27-channel network, one fixed puzzle per image, and puzzles per pass.

For cfn.py:small, with 24 permutations, so that each row can leave chance in these steps. All rows
train with gaps of 5 px on average, so that a test with twice the gap keeps the scale of the images.
The 27-channel network has the width at which its multiply-adds are those of the CFN. Rows with
several puzzles per image have fewer steps, in proportion to the multiply-adds of a pass.
"""

from typing import Any

from configs.studies import parts

GAP = {'puzzle.crop_px': 111, 'puzzle.cell_px': 37}  # 37 - 32 px
TWICE = {'puzzle.crop_px': 126, 'puzzle.cell_px': 42}  # 42 - 32 px
WIDTH = 0.875  # of the 27-channel network
# Millions of multiply-adds of a pass with 1, 2, 8 and 24 puzzles of an image.
COSTS = {1: 56.3, 2: 58.7, 8: 73.0, 24: 111.2}
STEPS = 1_500  # with one puzzle


def get_study() -> dict[str, Any]:
  """Declares the study."""
  return {
    'title': 'Alternatives to the context-free network and to its puzzles',
    'fields': {
      'permutations.num': 24,
      'eval_bits': True,
      'log_every_steps': 25,
      'eval_every_steps': 500,
      **GAP,
    },
    'evaluations': {
      # The same network again, for one step at rate 0, to test it on other gaps.
      'twice_gap': {'fields': {**TWICE, 'num_steps': 1, 'learning_rate': 1e-12, 'warmup_steps': 0}},
      'solve': {'config': 'solve:small', 'fields': {'baseline': False}},
    },
    'figures': {
      **parts.SOLVED,
      'left chance': {'take': ('', 'left_images'), 'unit': 'images'},
      'training less validation': {
        'take': ('', 'train_accuracy'),
        'minus': ('', 'val_accuracy'),
        'unit': '%',
      },
      'drop with twice the gap': {
        'take': ('', 'val_accuracy'),
        'minus': ('twice_gap', 'val_accuracy'),
        'unit': '%',
      },
      'share of position': {
        'take': ('solve', 'pretrained', 'product', 'bits'),
        'over': ('solve', 'pretrained', 'network', 'bits'),
        'unit': '%',
      },
    },
    'runs': {
      'k1': {'fields': _pass(1), 'evaluations': ('twice_gap', 'solve')},
      'stacked': {
        'fields': {**_pass(1), 'model.name': 'stacked', 'model.width': WIDTH},
        'evaluations': ('twice_gap',),
      },
      'fixed1': {
        'fields': {**_pass(1), 'permutations.fixed_per_image': 1},
        'evaluations': ('solve',),
      },
      **{f'k{k}': {'fields': _pass(k)} for k in (2, 8, 24)},
    },
    'claims': _make_claims(),
  }


def _make_claims() -> list[dict[str, Any]]:
  """Builds the expected directions: the paper's, then our own."""
  return [
    parts.claim(
      'Section 3: the network over stacked tiles relies on what depends on the gap: with twice the '
      'gap it loses more than the CFN',
      'drop with twice the gap',
      'stacked',
      'k1',
    ),
    parts.claim(
      'Section 4: one permutation an image lets the network learn absolute position',
      'share of position',
      'fixed1',
      'k1',
    ),
    parts.claim(
      'Ours: with one fixed puzzle an image training runs ahead of validation',
      'training less validation',
      'fixed1',
      'k1',
    ),
    *(
      parts.claim(
        f'Ours: at equal cost {k} puzzles an image solve more than one', 'bits', f'k{k}', 'k1'
      )
      for k in (2, 8, 24)
    ),
  ]


def _pass(k: int) -> dict[str, Any]:
  return {
    'model.permutations_per_pass': k,
    'num_steps': round(STEPS * COSTS[1] / COSTS[k]),
  }
