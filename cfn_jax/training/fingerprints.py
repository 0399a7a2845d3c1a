"""Compares a run with its checkpoint: what may not change between two starts."""

import json
from collections.abc import Mapping
from typing import Any

from cfn_jax import fields
from cfn_jax.training.store_errors import OtherRunError


def say_changes(meta: Mapping[str, Any], config: Mapping[str, Any]) -> str:
  """Returns the fields of a config that differ from those of a saved step, in words."""
  changed = _compare(meta['config'], config)
  return f' (changed: {"; ".join(changed)})' if changed else ''


def check_fingerprint(
  saved: Mapping[str, Any], wanted: Mapping[str, Any], *, where: str, init_from: bool = False
) -> None:
  """Refuses to resume a run with another fingerprint.

  Args:
    where: the saved step.
    init_from: the config has this field, which is then a remedy.

  Raises:
    OtherRunError: with each difference and both values.
  """
  differences = _compare(saved, wanted)
  if differences:
    more = [f'and {len(differences) - 2} more'] if len(differences) > 3 else []
    listed = differences[: 2 if more else 3] + more
    start = f' (with --config.init_from={where} it starts from these weights)' if init_from else ''
    raise OtherRunError(
      f'{where} was made with other settings; take the old ones, or another --workdir{start}:',
      *(f'  {line}' for line in listed),
    )


def _compare(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
  """Returns both values, as JSON keeps them, of each field that differs from the saved one."""
  then, now = fields.flatten(saved), fields.flatten(json.loads(json.dumps(dict(wanted))))
  return [
    f'{name}: {then.get(name)!r} then, {now.get(name)!r} now'
    for name in {**then, **now}
    if then.get(name) != now.get(name)
  ]
