"""What a run may not change between two starts: compared with what its checkpoint was made with."""

import json
from collections.abc import Mapping
from typing import Any

from cfn_jax.training.step_folders import CheckpointError


def say_changes(meta: Mapping[str, Any], config: Mapping[str, Any]) -> str:
  """Says which fields of a config differ from those that a step was made with."""
  if 'config' not in meta:
    return ' (what changed is not known: it was saved without its config)'
  before, now = flatten(meta['config']), flatten(json.loads(json.dumps(config)))
  changed = [
    f'{name}: {before.get(name)!r}, now {now.get(name)!r}'
    for name in sorted({*before, *now})
    if before.get(name) != now.get(name)
  ]
  return f' (changed: {"; ".join(changed)})' if changed else ''


def check_fingerprint(
  saved: Mapping[str, Any], wanted: Mapping[str, Any], *, where: str, init_from: bool = False
) -> None:
  """Refuses to continue a run with something else than what it began with.

  Args:
    where: the step that was saved.
    init_from: the config has this field, which is then a way out.

  Raises:
    CheckpointError: names each difference with both values.
  """
  then, now = flatten(saved), flatten(json.loads(json.dumps(dict(wanted))))
  differences = [
    f'{name}: {then.get(name)!r} then, {now.get(name)!r} now'
    for name in sorted({*then, *now})
    if then.get(name) != now.get(name)
  ]
  if differences:
    more = [f'and {len(differences) - 2} more'] if len(differences) > 3 else []
    listed = differences[: 2 if more else 3] + more
    start = f' (with --config.init_from={where} it starts from these weights)' if init_from else ''
    raise CheckpointError(
      f'{where} was made with other settings; take the old ones, or another --workdir{start}:',
      *(f'  {line}' for line in listed),
    )


def flatten(tree: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Returns the leaves of nested mappings, 'section.field' to its value."""
  flat: dict[str, Any] = {}
  for name, value in tree.items():
    if isinstance(value, Mapping):
      flat |= flatten(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat
