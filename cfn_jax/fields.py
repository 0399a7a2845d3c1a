"""Fields of configs by their names, 'section.field', and the numbers that they may hold."""

from collections.abc import Mapping
from typing import Any

from cfn_jax.errors import CfnError

Limits = Mapping[str, tuple[float, float]]  # a field's name to its least and largest legal value


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


def check_numbers(config: Any, limits: Limits) -> None:
  """Raises CfnError for a number outside its limits, with its field and the limit.

  Fields that the config lacks are skipped. Limits stand in the modules that read the fields.
  """
  values = flatten(config)
  for field, (least, largest) in limits.items():
    value = values.get(field, least)
    if not least <= value <= largest:  # False for nan
      limit = f'at most {largest}' if value > largest else f'at least {least}'
      raise CfnError(f'{field} = {value}: {limit}')
