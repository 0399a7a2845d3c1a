"""Reads single files of a workdir; a missing or damaged part becomes a note."""

import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from cfn_jax import config_files, places
from cfn_jax.errors import CfnError
from cfn_jax.training import metrics, step_folders

DEEPEST = 30  # nested mappings and lists; those of a run have a few levels


def figures(row: Mapping[str, Any]) -> dict[str, float]:
  """Returns the numbers of a row by name: nan if not finite; text is left out.

  >>> figures({'step': 3, 'train_loss': 'nan', 'note': 'x', 'rate': None})
  {'step': 3.0, 'train_loss': nan}
  """
  found = {}
  for name, value in row.items():
    if isinstance(value, bool) or not isinstance(value, int | float | str):
      continue
    if isinstance(value, str) and value not in ('nan', 'inf', '-inf'):
      continue
    try:
      number = float(value)
    except OverflowError:
      continue
    found[str(name)] = number if math.isfinite(number) else math.nan
  return found


def read_json(path: pathlib.Path, notes: list[str], without: str) -> dict[str, Any]:
  if not path.is_file():
    notes.append(f'{path.name} is missing: {without}')
    return {}
  values = places.read_json(path)
  if values and _is_shallow(values):
    return values
  notes.append(f'{path.name} is damaged or empty: {without}')
  return {}


def _is_shallow(value: Any, left: int = DEEPEST) -> bool:
  inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
  return left > 0 and all(_is_shallow(each, left - 1) for each in inner)


def read_lines(path: pathlib.Path, notes: list[str]) -> list[dict[str, Any]]:
  """Reads a file of JSON objects, one per line; other lines are skipped with a note."""
  lines: list[dict[str, Any]] = []
  try:
    texts = path.read_text(encoding='utf8', errors='replace').splitlines()
  except FileNotFoundError:
    return []
  except OSError as error:
    notes.append(f'{path.name} cannot be read: {error.strerror}')
    return []
  for text in texts:
    try:
      line = json.loads(text)
    except (ValueError, RecursionError):
      continue
    lines += [line] if isinstance(line, dict) and _is_shallow(line) else []
  if len(lines) < len(texts):
    notes.append(f'{path.name}: {len(texts) - len(lines):,} lines are torn or damaged: left out')
  return lines


def read_rows(path: pathlib.Path, notes: list[str]) -> list[metrics.Row]:
  lines = read_lines(path, notes)
  rows = [
    line
    for line in lines
    if type(line.get('step')) is int and 0 <= line['step'] <= config_files.LARGEST
  ]
  if not lines:
    notes.append(f'{path.name} is missing or empty: no curves')
  elif len(rows) < len(lines):
    notes.append(f'{path.name}: {len(lines) - len(rows):,} lines without a step are left out')
  return sorted(rows, key=lambda row: row['step'])


def find_steps(folder: pathlib.Path) -> list[int]:
  try:
    return step_folders.find_steps(folder / 'checkpoints')
  except OSError:
    return []


def read_meta(folder: pathlib.Path, notes: list[str]) -> dict[str, Any]:
  """Reads the JSON of the newest checkpoint; the run may delete one at the same time."""
  steps = find_steps(folder.parent)
  for step in reversed(steps):
    try:
      return step_folders.read_meta(folder / str(step))
    except (CfnError, OSError) as error:
      notes.append(f'checkpoint {step} cannot be read: {error}')
  if not steps:
    notes.append('no checkpoint yet: commit and data are not known from one')
  return {}
