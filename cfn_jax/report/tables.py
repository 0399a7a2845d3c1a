"""Tables of a report: figures of evaluations, fields of configs, recipes of runs."""

import dataclasses
import math
import shlex
from collections.abc import Mapping
from typing import Any

from cfn_jax import config_files, fields, idle
from cfn_jax.report import gather, status

MOST_COLUMNS = 24  # largest number of columns; another table has the rest
MOST_CELLS = 15_000  # of the evaluations of a workdir


@dataclasses.dataclass(frozen=True)
class Table:
  """Rows of text or numbers under columns. The page rounds numbers."""

  title: str
  columns: list[str]
  rows: list[list[Any]]


def tabulate(results: Mapping[str, Any]) -> list[Table]:
  """Makes tables of results.json: single figures of each run, then figures by class.

  If a run has figures of several layers, these are rows of their own.
  """
  runs = results.get('runs')
  rows: dict[str, Mapping[str, Any]] = {}
  for name, found in (runs if isinstance(runs, Mapping) else {}).items():
    if not isinstance(found, Mapping):
      continue
    layers = found.get('layers')
    if isinstance(layers, Mapping):
      whole = {key: value for key, value in found.items() if key != 'layers'}
      rows |= {
        f'{name}, {layer}': {**each, **whole}
        for layer, each in layers.items()
        if isinstance(each, Mapping)
      }
    else:
      rows[str(name)] = found
  if not rows:
    return []
  tables = [_tabulate_single(rows), *_tabulate_nested(rows)]
  published = results.get('published')
  if isinstance(published, Mapping) and published:
    tables.append(_tabulate_published(published))
  verdicts = results.get('verdicts')
  if isinstance(verdicts, Mapping):
    rows_of = [[says, str(verdict)] for says, verdict in verdicts.items()]
    tables.append(Table('What was expected', ['expected', 'verdict'], rows_of))
  return [table for table in tables if table.rows and len(table.columns) > 1]


def fit(tables: list[Table], cells: int) -> tuple[list[Table], int]:
  """Cuts tables to a number of cells; returns them and how many cells are left.

  >>> fit([Table('a', ['x', 'y'], [[1, 2], [3, 4]])], 3)
  ([Table(title='a', columns=['x', 'y'], rows=[[1, 2]])], 1)
  """
  found = []
  for table in tables:
    rows = table.rows[: cells // len(table.columns)]
    cells -= len(rows) * len(table.columns)
    found += [dataclasses.replace(table, rows=rows)] if rows else []
  return found, cells


def _is_single(value: Any) -> bool:
  return value is None or isinstance(value, str | int | float)


def _tabulate_single(rows: Mapping[str, Mapping[str, Any]]) -> Table:
  columns = list(
    dict.fromkeys(
      key for found in rows.values() for key, value in found.items() if _is_single(value)
    )
  )
  body = [
    [
      name,
      *(found.get(column, '') if _is_single(found.get(column, '')) else '' for column in columns),
    ]
    for name, found in rows.items()
  ]
  return Table('Figures', ['run', *columns], body)


def _tabulate_nested(rows: Mapping[str, Mapping[str, Any]]) -> list[Table]:
  """Makes a table of each group of figures, such as those by class, with a column per run."""
  groups: dict[str, dict[str, Mapping[str, Any]]] = {}
  for run, found in rows.items():
    for key, value in found.items():
      if not isinstance(value, Mapping):
        continue
      inner = {name: each for name, each in value.items() if isinstance(each, Mapping)}
      single = {name: each for name, each in value.items() if _is_single(each)}
      for name, each in inner.items():
        alone = {what: figure for what, figure in each.items() if _is_single(figure)}
        if alone:
          groups.setdefault(f'{key}: {name}', {})[run] = alone
      if single:
        groups.setdefault(str(key), {})[run] = single
  tables = []
  for title, by_run in groups.items():
    for first in range(0, len(by_run), MOST_COLUMNS):
      some = dict(list(by_run.items())[first : first + MOST_COLUMNS])
      names = dict.fromkeys(name for found in some.values() for name in found)
      body = [[name, *(found.get(name, '') for found in some.values())] for name in names]
      tables.append(Table(title.replace('_', ' '), ['', *some], body))
  return tables


def _tabulate_published(published: Mapping[str, Any]) -> Table:
  body = [
    [name, ', '.join(map(show, value)) if isinstance(value, list) else value]
    for name, value in fields.flatten(published).items()
  ]
  return Table("The paper's figures", ['network', 'figure'], body)


def show(value: Any) -> str:
  """Returns a value for a table: few digits, 'n/a' for None.

  >>> show(0.123456), show(None), show(4500), show(1e-9), show(True), show(100.0)
  ('0.1235', 'n/a', '4,500', '1e-09', 'True', '100')
  """
  if value is None or (isinstance(value, float) and math.isnan(value)):
    return 'n/a'
  if isinstance(value, bool) or not isinstance(value, int | float):
    return str(value)
  if isinstance(value, int):
    return f'{value:,}'
  return f'{value:,.4g}' if abs(value) < 1e4 else f'{value:,.0f}'


def tabulate_changed(recipe: gather.Recipe) -> Table:
  """Makes the table of the fields that differ from the paper's config."""
  body = [
    [name, show_field(recipe.fields[name]), show_field(papers)]
    for name, papers in recipe.changed.items()
  ]
  return Table("Fields that differ from the paper's config", ['field', 'here', 'paper'], body)


def compare_fields(recipes: Mapping[str, gather.Recipe]) -> list[Table]:
  """Makes a table of the fields that differ among recipes, for each task with several."""
  tables = []
  known = {name: recipe for name, recipe in recipes.items() if recipe.fields}
  for task in dict.fromkeys(recipe.task for recipe in known.values()):
    same = {name: recipe.fields for name, recipe in known.items() if recipe.task == task}
    names = dict.fromkeys(name for values in same.values() for name in values)
    shown = {
      name: [show_field(values.get(name, gather.NO_FIELD)) for values in same.values()]
      for name in names
    }
    body = [[name, *values] for name, values in shown.items() if len({*values}) > 1]
    if len(same) > 1:
      tables.append(Table(f'Fields in which runs of {task} differ', ['field', *same], body))
  return tables


def describe_recipe(recipe: gather.Recipe) -> list[tuple[str, str]]:
  """Returns the rows of a recipe: (what, value)."""
  last = next(reversed(status.leave_refused(recipe.starts)), {})
  versions = last.get('versions')
  if isinstance(versions, Mapping):
    versions = ', '.join(f'{name} {version}' for name, version in versions.items())
  data = recipe.meta.get('fingerprint', {})
  made = (last, recipe.meta, recipe.results)
  rows = [
    ('command', last.get('command') or recipe.results.get('command')),
    ('the same, by fields', _write_command(recipe)),
    ('in the folder', last.get('folder')),
    ('commit', next(filter(None, (each.get('commit') for each in made)), '')),
    ('devices', last.get('devices') or recipe.results.get('devices')),
    ('versions', versions),
    *((f'{name}: fingerprint', data[name]) for name in data if 'images' in name or 'set' in name),
    ('starts', '; '.join(map(_describe_end, recipe.starts))),
  ]
  return [(what, str(value) if value else 'not recorded') for what, value in rows]


def show_field(value: Any) -> str:
  """Returns the value of a field; an empty text has its quotes."""
  return "''" if value == '' else str(value)


def _write_command(recipe: gather.Recipe) -> str:
  """Returns the command that sets the fields that differ from the paper's config."""
  try:
    name = config_files.configs_by_task()[recipe.task]
  except KeyError:
    return ''
  words = ['python', '-m', 'cfn_jax.main', f'--config={name}']
  try:
    silent = {field for field, _ in idle.find(recipe.fields, recipe.changed, here=False)}
  except (KeyError, TypeError, ValueError):  # a config of another version, or a damaged one
    silent = set()
  for field, papers in recipe.changed.items():
    value = recipe.fields[field]
    if papers != gather.NO_FIELD and field not in silent:
      value = tuple(value) if isinstance(value, list) else value
      words.append(f'--config.{field}={value}')
  return shlex.join([*words, '--workdir=RUN'])


def _describe_end(start: Mapping[str, Any]) -> str:
  begun, ended = status.clock(start.get('begun')), status.clock(start.get('ended'))
  return f'{begun}, {start.get("outcome", "no end recorded")} {ended}'.strip()
