"""Makes charts of the rows of runs: one per kind of figure, with all runs of a task."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cfn_jax.pictures import charts
from cfn_jax.report import gather

MOST_ROWS = 4_000  # for all runs of one workdir together; more are thinned
LAST = ('learning_rate', 'throughput', 'input_wait_fraction')  # of the charts, in this order
TITLES = {
  'learning_rate': 'learning rate',
  'throughput': 'throughput (per second)',
  'input_wait_fraction': 'share of time that waits for input',
}
BOUNDS = ('_low', '_high')

Points = list[tuple[dict[str, float], dict[str, float]]]  # figures, and their places


def thin(rows: Sequence[Mapping[str, Any]], most: int) -> list[int]:
  """Returns the numbers of every n-th row, and of the last one, if there are more than `most`.

  Rows of evaluations stay if they are at most half of `most`.

  >>> thin([{'step': step} for step in range(10)], 5), thin([{'step': 1}], 5)
  ([0, 3, 6, 9], [0])
  """
  if len(rows) <= most:
    return [*range(len(rows))]
  judged = {n for n, row in enumerate(rows) if any(name.startswith('val_') for name in row)}
  if len(judged) > most // 2:
    judged = set()
  every = math.ceil(len(rows) / max(1, most - len(judged) - 1))
  return sorted(judged | {*range(0, len(rows), every)} | {len(rows) - 1})


def place(figures: Sequence[Mapping[str, float]], batch_size: Any) -> list[dict[str, float]]:
  """Returns the place of each row: its step, the images visited, the hours of training.

  Hours follow from the throughput, so they leave out evaluations, saves, and the time between two
  starts. Unknown places are left out.

  Args:
    figures: those of rows in the order of their steps.
    batch_size: images of a step, if known.
  """
  known = isinstance(batch_size, int) and not isinstance(batch_size, bool) and batch_size > 0
  rates = [row.get('images_per_second', math.nan) for row in figures]
  good = [rate for rate in rates if rate > 0]  # false for nan
  usual = statistics.median(good) if good else math.nan
  hours, before, places = 0.0, 0.0, []
  for row, rate in zip(figures, rates):
    at = {'step': row['step']}
    if known:
      at['visits'] = row['step'] * batch_size
      if good:
        hours += (row['step'] - before) * batch_size / (rate if rate > 0 else usual) / 3600
        at['hours'] = hours
    before = row['step']
    places.append(at)
  return places


def make_charts(runs: Sequence[gather.Run], shown: Mapping[str, list[int]]) -> list[charts.Chart]:
  """Makes the charts of runs.

  Args:
    shown: by a run's name: the numbers of its drawn rows.
  """
  with_rows = [run for run in runs if run.rows]
  points: dict[str, Points] = {}
  for run in with_rows:
    places = place(run.figures, run.recipe.fields.get('batch_size'))
    points[run.name] = [(run.figures[n], places[n]) for n in shown[run.name]]
  made = []
  by_task = itertools.groupby(
    sorted(with_rows, key=lambda run: run.recipe.task), key=lambda run: run.recipe.task
  )
  for task, group in by_task:
    same = list(group)
    several = len({run.recipe.task for run in with_rows}) > 1
    kinds: dict[str, dict[str, None]] = {}
    for run in same:
      for name in dict.fromkeys(name for row in run.figures for name in row):
        if kind := _find_kind(name):
          kinds.setdefault(kind, {})[name] = None
    for kind in sorted(kinds, key=lambda kind: (LAST.index(kind) if kind in LAST else -1, kind)):
      lines = _make_lines(same, kind, list(kinds[kind]), points)
      if lines:
        title = TITLES.get(kind, kind.replace('_', ' '))
        made.append(charts.Chart(f'{task or "unknown task"}: {title}' if several else title, lines))
  return made


def _find_kind(name: str) -> str:
  """Returns the chart of a figure; '' for none."""
  if name == 'step' or name.endswith(('_count', *BOUNDS)):
    return ''
  if name.endswith('_per_second'):
    return 'throughput'
  plain = _strip(name)
  return next((kind for kind in ('loss', 'accuracy') if kind in plain), plain)


def _strip(name: str) -> str:
  return name.removeprefix('train_').removeprefix('val_')


def _make_lines(
  runs: Sequence[gather.Run], kind: str, names: list[str], points_of: Mapping[str, Points]
) -> list[charts.Line]:
  if len(runs) > 1:  # only the main figures, if there are others
    main = 'images_per_second' if kind == 'throughput' else kind
    names = [name for name in names if _strip(name) == main] or names
  plain = list(dict.fromkeys(_strip(name) for name in names))
  lines = []
  for number, run in enumerate(runs):
    for name in names:
      points = [(row, at) for row, at in points_of[run.name] if name in row]
      if not points:
        continue
      trained = name.startswith('train_')
      split = 'training' if trained else 'validation' if name.startswith('val_') else ''
      extra = _strip(name) if len(plain) > 1 else ''
      parts = [run.name if len(runs) > 1 else '', split, extra.replace('_', ' ')]
      bounds = [[row.get(f'{name}{end}', math.nan) for row, _ in points] for end in BOUNDS]
      lines.append(
        charts.Line(
          label=', '.join(filter(None, parts)) or TITLES.get(kind, kind),
          colour=number if len(runs) > 1 else plain.index(_strip(name)),
          dashed=trained,
          x={axis: [at[axis] for _, at in points] for axis in points[0][1]},
          y=[row[name] for row, _ in points],
          band=() if np.all(np.isnan(bounds)) else (bounds[0], bounds[1]),
        )
      )
  return lines
