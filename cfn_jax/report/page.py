"""The report of runs: one self-contained file, `WORKDIR/report.html`.

Everything from a workdir is text: the template escapes it, as HTML and as JSON.
"""

import json
import math
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import jinja2
import markupsafe

from cfn_jax import names, places, terminal
from cfn_jax.pictures import charts
from cfn_jax.report import curves, folders, gather, images, interactive, tables

TEMPLATES = pathlib.Path(__file__).resolve().parent / 'templates'
MOST_TILES = 3  # runs of a workdir with tiles of figures; more become rows of a table
MOST_RESULTS = 500_000  # characters of the figures of a workdir's evaluations, as JSON


def write(workdirs: Sequence[pathlib.Path], out: pathlib.Path) -> None:
  """Writes the report of workdirs.

  Raises:
    CfnError: see `gather.read`.
    PlaceError: the file cannot be written.
  """
  text = render(gather.read(workdirs))
  places.make_folder(out.parent, '--out')
  try:
    with places.replacing(out) as temporary:
      temporary.write_text(text, encoding='utf8')
  except OSError as error:
    raise places.PlaceError(f'--out={out} cannot be written: {error.strerror}') from None


def write_at_end(workdir: pathlib.Path) -> None:
  """Writes the report of a run at its end; only warns if that fails."""
  out = workdir / folders.PAGE
  try:
    write([workdir], out)
  except Exception as error:  # drawing libraries raise anything
    terminal.say(f'warning: {out} is not written ({terminal.first_line(error)})')


def render(workdirs: Sequence[gather.Workdir]) -> str:
  """Returns the page of the workdirs."""
  runs = [run for workdir in workdirs for run in workdir.runs]
  shown = _choose_rows(workdirs)
  drawn = curves.make_charts(runs, shown)
  script = interactive.load_script()
  recipes = {name: recipe for workdir in workdirs for name, recipe in workdir.recipes().items()}
  figures = _collect_figures(workdirs, shown)
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(TEMPLATES),
    autoescape=True,
    finalize=_show_safely,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
  )
  environment.filters |= {'show': tables.show, 'field': tables.show_field}
  environment.policies['json.dumps_kwargs'] = {}  # keys keep their order, which Bokeh's JSON needs
  return environment.get_template('report.html').render(
    title=', '.join(workdir.name for workdir in workdirs),
    written=time.strftime('%Y-%m-%d %H:%M'),
    workdirs=[_view(workdir) for workdir in workdirs],
    recipes=len(recipes),
    compared=tables.compare_fields(recipes),
    charts=[
      {'title': chart.title, 'stills': _draw(chart, script), 'lines': chart.lines}
      for chart in drawn
    ],
    pick_colour=charts.pick_colour,
    axes={axis: charts.AXES[axis] for axis in _find_axes(drawn)},
    items=[interactive.encode_chart(chart) for chart in drawn] if script else [],
    bokeh=markupsafe.Markup(script),
    thinned={run.name: len(run.rows) for run in runs if len(shown[run.name]) < len(run.rows)},
    figures=figures,
  )


def _show_safely(value: Any) -> Any:
  return value if isinstance(value, markupsafe.Markup) else names.printable(value)


def _choose_rows(workdirs: Sequence[gather.Workdir]) -> dict[str, list[int]]:
  """Returns the numbers of the shown rows of each run, by the run's name."""
  shown: dict[str, list[int]] = {}
  for workdir in workdirs:
    most = curves.MOST_ROWS // max(1, sum(bool(run.rows) for run in workdir.runs))
    shown |= {run.name: curves.thin(run.rows, most) for run in workdir.runs}
  return shown


def _find_axes(drawn: Sequence[charts.Chart]) -> list[str]:
  return [axis for axis in charts.AXES if all(axis in chart.axes() for chart in drawn)]


def _draw(chart: charts.Chart, script: str) -> dict[str, str]:
  """Returns still pictures of a chart by axis, if nothing draws it in the page."""
  if script:
    return {}
  return {
    axis: images.make_address('image/svg+xml', charts.encode_chart(chart, axis))
    for axis in chart.axes()
  }


def _view(workdir: gather.Workdir) -> dict[str, Any]:
  """Returns the template's values for a workdir."""
  held: list[gather.Run | gather.Evaluation] = [*workdir.runs]
  held += [each for each in workdir.evaluations if not _is_run(each, workdir)]
  pictures = _embed_pictures(workdir, held)
  runs = [_describe(run) for run in workdir.runs]
  many = len(runs) > MOST_TILES
  return {
    'name': workdir.name,
    'folder': workdir.folder,
    'status': workdir.status,
    'tiles': [] if many else runs,
    'listed': _list_runs(runs if many else []),
    'recipes': [
      {
        'name': name,
        'facts': tables.describe_recipe(recipe),
        'changed': tables.tabulate_changed(recipe),
        'fields': recipe.fields,
        'papers': recipe.changed,
      }
      for name, recipe in workdir.recipes().items()
    ],
    'pictures': {name: found for name, found in pictures.items() if found},
    'evaluations': _view_evaluations(workdir.evaluations),
    'notes': [(workdir.name, note) for note in workdir.notes]
    + [(each.name, note) for each in workdir.runs for note in each.notes]
    + [(each.name, note) for each in workdir.evaluations for note in each.notes],
  }


def _view_evaluations(evaluations: Sequence[gather.Evaluation]) -> list[dict[str, Any]]:
  """Returns the template's values for evaluations; their tables have a limit."""
  found, left = [], tables.MOST_CELLS
  for each in evaluations:
    made = tables.tabulate(each.recipe.results)
    shown, left = tables.fit(made, left)
    rows, most = (sum(len(table.rows) for table in some) for some in (shown, made))
    if rows < most:
      each.notes.append(f'{rows:,} of {most:,} rows of its tables are shown; results.json has all')
    found.append({'name': each.name, 'task': each.recipe.task, 'tables': shown})
  return found


def _embed_pictures(
  workdir: gather.Workdir, held: Sequence[gather.Run | gather.Evaluation]
) -> dict[str, list[images.Picture]]:
  """Returns the pictures of a workdir by their owner; together they have a limit."""
  found = {each.name: images.find(each.folder) for each in held}
  count = sum(map(len, found.values()))
  left = min(count, images.MOST)
  if count > left:
    workdir.notes.append(f'{count - left:,} pictures more than {left} are not shown')
  share = images.MOST_BYTES // max(1, left)
  pictures = {}
  for each in held:
    chosen = found[each.name][:left]
    left -= len(chosen)
    pictures[each.name] = images.embed(chosen, each.notes, share=share)
    if isinstance(each, gather.Run):
      grid, rows = each.recipe.fields.get('puzzle.grid'), each.folder / 'permutations.npy'
      pictures[each.name] += images.draw_permutations(rows, grid, each.notes)
  return pictures


def _is_run(evaluation: gather.Evaluation, workdir: gather.Workdir) -> bool:
  return any(run.folder == evaluation.folder for run in workdir.runs)


def _describe(run: gather.Run) -> dict[str, Any]:
  """Returns the main figures of a run."""
  last = run.recipe.fields.get('num_steps')
  found = {'name': run.name, 'task': run.recipe.task, 'status': run.status}
  found['step'] = f'{run.step:,}' + (f' of {last:,}' if isinstance(last, int) else '')
  best = _find_best(run)
  course = curves.place(run.figures, run.recipe.fields.get('batch_size'))
  hours = course[-1].get('hours') if course else None
  return found | {'best': best, 'time': _clock(hours) if hours else ''}


def _list_runs(runs: Sequence[dict[str, Any]]) -> tables.Table:
  """Returns a table in place of tiles."""
  columns = ['run', 'task', 'status', 'step', 'best', 'figure', 'at step', 'time of training']
  rows = []
  for run in runs:
    best = run['best']
    figures = [best['value'], best['name'], int(best['step'])] if best else ['', '', '']
    rows.append([run['name'], run['task'], run['status'].word, run['step'], *figures, run['time']])
  return tables.Table('Runs', columns, rows)


def _clock(hours: float) -> str:
  """Returns a time as hours, minutes and seconds: '12:05:00'."""
  minutes, seconds = divmod(round(hours * 3600), 60)
  return f'{minutes // 60}:{minutes % 60:02d}:{seconds:02d}'


def _find_best(run: gather.Run) -> dict[str, Any]:
  """Returns the best value of the figure that ranks a run's checkpoints; empty without one."""
  by = str(run.recipe.meta.get('best', ''))
  name, sign = by.removeprefix('-'), -1 if by.startswith('-') else 1
  scored = [row for row in run.figures if math.isfinite(row.get(name, math.nan))]
  if not scored:
    return {}
  row = max(scored, key=lambda row: sign * row[name])
  bounds = [row.get(f'{name}{end}') for end in curves.BOUNDS]
  return {'name': name, 'value': row[name], 'step': row['step'], 'bounds': bounds}


def _collect_figures(
  workdirs: Sequence[gather.Workdir], shown: dict[str, list[int]]
) -> dict[str, Any]:
  """Returns the figures that the page offers as files: plain JSON, without draws of bootstraps.

  What does not fit is left out, with a note.
  """
  runs = {run.name: run for workdir in workdirs for run in workdir.runs if run.rows}
  found: dict[str, Any] = {
    'runs': {
      name: [places.make_plain(run.rows[n]) for n in shown[name]] for name, run in runs.items()
    }
  }
  found['evaluations'] = {}
  for workdir in workdirs:
    left = MOST_RESULTS
    for each in workdir.evaluations:
      figures = _leave_draws_out(places.make_plain(each.recipe.results.get('runs')))
      size = len(json.dumps(figures))
      if size <= left:
        left -= size
        found['evaluations'][each.name] = figures
      else:
        each.notes.append('"All figures" leaves its figures out for their size; see results.json')
  return found


def _leave_draws_out(figures: Any) -> Any:
  if not isinstance(figures, dict):
    return figures
  return {
    name: _leave_draws_out(value)
    for name, value in figures.items()
    if not str(name).endswith('_draws')
  }
