"""Fields of configs by their names, 'section.field', and the numbers that they may hold."""

from typing import Any

# The numbers of a config that no other check covers: the least and the largest legal value.
LIMITS = {
  'seed': (0, 2**63 - 1),
  'batch_size': (1, 2**20),
  'eval_batch_size': (1, 2**20),
  'num_steps': (1, 2**31 - 2),
  'log_every_steps': (1, 2**31 - 2),
  'eval_every_steps': (1, 2**31 - 2),
  'checkpoint_every_steps': (1, 2**31 - 2),
  'keep_latest': (1, 10**6),
  'keep_best': (0, 10**6),
  'plateau_warning_steps': (0, 2**31 - 2),
  'learning_rate': (1e-12, 1e30),
  'decay_factor': (0, 1),
  'warmup_steps': (0, 2**31 - 2),
  'momentum': (0, 0.99999),
  'weight_decay': (0, 1),
  'bias_rate': (0, 1e6),
  'bias_decay': (0, 1e6),
  'data.val_fraction': (0, 1),
  'data.val_max_images': (0, 2**62),
  'data.crops_per_photograph': (1, 10**7),
  'data.val_crops_per_photograph': (1, 10**7),
  'data.num_workers': (0, 1024),
  'data.puzzles_per_image': (1, 10**6),
  'model.stride': (1, 11),
  'model.width': (0.01, 16),
  'model.fc6_features': (0, 2**20),
  'model.fc7_features': (1, 2**20),
  'model.fc8_features': (0, 2**20),
  'model.dropout': (0, 0.99999),
  'model.permutations_per_pass': (1, 10**6),
  'puzzle.global_std': (1e-6, 1e6),
  'puzzle.tile_scale': (1e-6, 1e6),
  'test.draws': (1, 1000),
  'views.resize_px': (11, 4096),
  'views.view_px': (11, 4096),
}


def flatten(tree: Any, prefix: str = '') -> dict[str, Any]:
  """Returns the leaves of nested mappings, or of a ConfigDict, by their names.

  >>> flatten({'seed': 0, 'data': {'root': '', 'source': 'folder'}})
  {'seed': 0, 'data.root': '', 'data.source': 'folder'}
  """
  flat: dict[str, Any] = {}
  for name, value in tree.items():
    if hasattr(value, 'items'):
      flat |= flatten(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat


def check_numbers(config: Any) -> None:
  """Raises ValueError for a number that no run can have, naming its field and the limit."""
  values = flatten(config)
  for field, (least, largest) in LIMITS.items():
    value = values.get(field, least)
    if not least <= value <= largest:  # nan lies nowhere
      limit = f'at most {largest}' if value > largest else f'at least {least}'
      raise ValueError(f'{field} = {value}: {limit}')
