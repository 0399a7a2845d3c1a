"""What a run may not change between two starts: compared with what its checkpoint was made with."""

import json
from collections.abc import Mapping
from typing import Any

from cfn_jax import fields
from cfn_jax.training.step_folders import CheckpointError


def say_changes(meta: Mapping[str, Any], config: Mapping[str, Any]) -> str:
  """Says which fields of a config differ from those that a step was made with."""
  changed = _compare(meta['config'], config)
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
  differences = _compare(saved, wanted)
  if differences:
    more = [f'and {len(differences) - 2} more'] if len(differences) > 3 else []
    listed = differences[: 2 if more else 3] + more
    start = f' (with --config.init_from={where} it starts from these weights)' if init_from else ''
    raise CheckpointError(
      f'{where} was made with other settings; take the old ones, or another --workdir{start}:',
      *(f'  {line}' for line in listed),
    )


def _compare(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
  """Says of each field that differs from what was saved, as JSON keeps it, both values."""
  then, now = fields.flatten(saved), fields.flatten(json.loads(json.dumps(dict(wanted))))
  return [
    f'{name}: {then.get(name)!r} then, {now.get(name)!r} now'
    for name in {**then, **now}
    if then.get(name) != now.get(name)
  ]
