"""The table of a study: a row for each declared run, figures with their spread, and the verdicts.

It is written as `results.json`, `table.md` and `table.csv`, to the terminal, and as a picture.
"""

import csv
import dataclasses
import io
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from cfn_jax import places, terminal
from cfn_jax.evaluation import runs
from cfn_jax.pictures import figures as figure_files
from cfn_jax.pictures import studies as pictures
from cfn_jax.studies import declaration, executions, records, verdicts
from cfn_jax.training import provenance

Cells = dict[str, dict[str, 'Cell']]  # by run, then by figure


@dataclasses.dataclass(frozen=True)
class Cell:
  """A figure of a row.

  Attributes:
    values: by seed, in units of the table.
    holes: by seed: why a value is missing.
    paper: the paper's figure.
    asked: the row has this figure.
    counted: the values are numbers of steps or images.
  """

  values: Mapping[int, verdicts.Value]
  holes: Mapping[int, str]
  paper: float | None
  asked: bool = True
  counted: bool = False

  @property
  def mean(self) -> float | None:
    """Returns the mean over seeds; a lower bound if a value is larger than the run shows."""
    return statistics.fmean(self._numbers()) if self.values else None

  @property
  def spread(self) -> float | None:
    """Returns the standard deviation over seeds; None for fewer than two."""
    return verdicts.find_spread(self._numbers()) if len(self.values) > 1 else None

  @property
  def beyond(self) -> bool:
    """Returns whether a value is larger than the run shows."""
    return any(value.beyond for value in self.values.values())

  def _numbers(self) -> list[float]:
    return [value.number for value in self.values.values()]

  def show(self) -> str:
    """Returns the cell as text: the mean, its spread, the number of seeds, the holes."""
    if not self.asked:
      return ''
    shown = []
    if self.mean is not None:
      shown.append(f'{"> " if self.beyond else ""}{show(self.mean, self.counted)}')
      if self.spread is not None:
        shown.append(f'± {show(self.spread, self.counted)}')
    words = dict.fromkeys(hole.partition(':')[0] for hole in self.holes.values())
    return ' '.join([*shown, *(f'({word})' if shown else word for word in words)])


def show(value: float, counted: bool = False) -> str:
  """Returns a number as text for the table; one of steps or images without decimals.

  >>> show(71.239), show(0.0123), show(22400.0), show(125.0, counted=True)
  ('71.24', '0.012', '22,400', '125')
  """
  size = abs(value)
  if counted or size >= 1000:
    return f'{value:,.0f}'
  return f'{value:.2f}' if size >= 1 else f'{value:.3f}'


def collect(
  study: declaration.Study, planned: Sequence[executions.Execution], workdir: pathlib.Path
) -> Cells:
  """Reads the figures of all rows from results.json of each execution."""
  states = {each.name: records.read_state(each, workdir) for each in planned}
  seeds: dict[str, list[int]] = {name: [] for name in study.runs}
  for each in planned:
    seeds[each.run] += [] if each.evaluation else [each.seed]
  return {
    run.name: {
      figure.name: _read_cell(study, run, figure, seeds[run.name], states, workdir)
      for figure in study.figures.values()
    }
    for run in study.runs.values()
  }


def _read_cell(
  study: declaration.Study,
  run: declaration.Run,
  figure: declaration.Figure,
  seeds: Sequence[int],
  states: Mapping[str, str],
  workdir: pathlib.Path,
) -> Cell:
  paper = run.paper.get(figure.name)
  needed = {reference[0] for reference in figure.references()} - {''}
  if not needed <= {*run.evaluations}:
    return Cell({}, {}, paper, asked=False)
  values, holes = {}, {}
  for seed in seeds:
    found = []
    for reference in figure.references():
      name = f'{run.name}_s{seed}' + (f'-{reference[0]}' if reference[0] else '')
      if states[name] != 'finished':
        why = records.read_failure(workdir / name)
        holes[seed] = f'failed: {why}' if states[name] == 'failed' else 'not run'
        break
      value = _read_value(study, workdir / name, reference)
      if value is None:
        holes[seed] = f'no figure: {"/".join(reference[1:])}'
        break
      found.append(value)
    else:
      value = _combine(figure, found)
      if value is None:
        holes[seed] = f'no figure: {figure.name} has no value for those of this run'
      else:
        values[seed] = value
  return Cell(values, holes, paper, counted=figure.unit in ('steps', 'images'))


def _read_value(
  study: declaration.Study, folder: pathlib.Path, reference: declaration.Reference
) -> verdicts.Value | None:
  evaluation, *path = reference
  if not evaluation or not study.evaluations[evaluation].config:
    path = [records.RUN, *path]
  number = records.read_figure(folder, path)
  beyond = number is None and path[-1].startswith('left_')
  if beyond:
    number = records.read_figure(folder, [*path[:-1], path[-1].replace('left_', 'budget_')])
  if isinstance(number, bool) or not isinstance(number, int | float):
    return None
  return verdicts.Value(float(number), beyond)


def _combine(figure: declaration.Figure, found: list[verdicts.Value]) -> verdicts.Value | None:
  """Returns a figure minus or over another; None by zero, or if the other is a bound alone."""
  first, rest = found[0], found[1:]
  if any(value.beyond for value in rest) or (figure.over and not rest[-1].number):
    return None
  number = first.number
  if figure.minus:
    number -= rest.pop(0).number
  if figure.over:
    number /= rest.pop(0).number
  return verdicts.Value(number * declaration.UNITS[figure.unit], first.beyond)


def judge(study: declaration.Study, cells: Cells) -> list[tuple[str, verdicts.Verdict]]:
  """Returns a verdict for each claim of a study."""
  return [
    (
      claim.says,
      verdicts.judge(
        cells[claim.higher][claim.figure].values, cells[claim.lower][claim.figure].values
      ),
    )
    for claim in study.claims
  ]


def write(
  study: declaration.Study,
  planned: Sequence[executions.Execution],
  workdir: pathlib.Path,
  command: str,
) -> Cells:
  """Writes the table to the workdir; returns its cells."""
  cells = collect(study, planned, workdir)
  judged, holes = judge(study, cells), list_holes(cells)
  results = {
    'task': 'study',
    'study': study.name,
    'commit': provenance.find_commit(),
    'command': command,
    'runs': {name: _describe(row) for name, row in cells.items()},
    'verdicts': {says: f'{verdict.word}: {verdict.why}' for says, verdict in judged},
  }
  places.write_json(workdir / runs.FILE, results, indent=2)
  _write(workdir / 'table.md', _make_markdown(study, cells, judged, holes))
  _write(workdir / 'table.csv', _make_csv(cells))
  return cells


def publish(
  study: declaration.Study,
  planned: Sequence[executions.Execution],
  workdir: pathlib.Path,
  command: str,
) -> None:
  """Writes the table, draws its picture, and prints it with the verdicts."""
  cells = write(study, planned, workdir, command)
  picture, heads = workdir / 'study.png', _make_heads(study)
  with figure_files.spared(picture):
    pictures.draw_study(picture, study.title, _make_panels(cells, heads))
  holes = [f'missing: {name}: {why}' for name, why in list_holes(cells)]
  terminal.show_table(study.title, heads, [[*_make_rows(cells).items()]])
  terminal.answer(*holes)
  for says, verdict in judge(study, cells):
    terminal.answer(f'{verdict.word}: {says} ({verdict.why})')


def _make_heads(study: declaration.Study) -> list[str]:
  return [
    each.name if each.unit in each.name else f'{each.name}, {each.unit}'
    for each in study.figures.values()
  ]


def _make_rows(cells: Cells) -> dict[str, list[str]]:
  return {name: [_show_both(cell) for cell in row.values()] for name, row in cells.items()}


def _show_both(cell: Cell) -> str:
  paper = '' if cell.paper is None else f' [{cell.paper:g}]'
  return f'{cell.show()}{paper}'.strip()


def _describe(row: Mapping[str, Cell]) -> dict[str, Any]:
  found: dict[str, Any] = {}
  for name, cell in row.items():
    if cell.asked:
      found[name] = cell.mean if not cell.beyond else cell.show()
      found[f'{name}, spread'] = cell.spread
      found[f'{name}, by seed'] = {
        str(seed): f'> {show(each.number, cell.counted)}' if each.beyond else each.number
        for seed, each in cell.values.items()
      }
    if cell.paper is not None:
      found[f'{name}, paper'] = cell.paper
  holes = {f'seed {seed}: {why}' for cell in row.values() for seed, why in cell.holes.items()}
  return found | ({'missing': '; '.join(sorted(holes))} if holes else {})


def list_holes(cells: Cells) -> list[tuple[str, str]]:
  """Returns the missing figures: (run and seed, why), each once."""
  found: dict[tuple[str, str], None] = {}
  for name, row in cells.items():
    for cell in row.values():
      found |= {(f'{name}_s{seed}', why): None for seed, why in cell.holes.items()}
  return [*found]


def _make_markdown(
  study: declaration.Study,
  cells: Cells,
  judged: Sequence[tuple[str, verdicts.Verdict]],
  holes: Sequence[tuple[str, str]],
) -> str:
  heads, rows = _make_heads(study), _make_rows(cells)
  lines = [f'# {study.title}', '', 'Mean ± standard deviation over seeds; [the paper].', '']
  lines.append(f'| run | {" | ".join(map(_escape, heads))} |')
  lines.append(f'|---|{"---:|" * len(heads)}')
  lines += [f'| {name} | {" | ".join(map(_escape, row))} |' for name, row in rows.items()]
  if judged:
    lines += ['', '| expected | verdict |', '|---|---|']
    lines += [f'| {_escape(says)} | {v.word}: {v.why} |' for says, v in judged]
  if holes:
    lines += ['', *(f'- missing: {name}: {_escape(why)}' for name, why in holes)]
  return '\n'.join(lines) + '\n'


def _escape(text: str) -> str:
  return ' '.join(text.replace('|', '\\|').split())


def _make_csv(cells: Cells) -> str:
  stream = io.StringIO()
  writer = csv.writer(stream, lineterminator='\n')
  writer.writerow(['run', 'figure', 'mean', 'spread', 'seeds', 'beyond', 'paper', 'missing'])
  for name, row in cells.items():
    for figure, cell in row.items():
      if cell.asked or cell.paper is not None:
        holes = '; '.join(f'seed {seed}: {why}' for seed, why in cell.holes.items())
        writer.writerow(
          [name, figure, cell.mean, cell.spread, len(cell.values), cell.beyond, cell.paper, holes]
        )
  return stream.getvalue()


def _make_panels(cells: Cells, heads: Sequence[str]) -> list[pictures.Panel]:
  panels = []
  for number, head in enumerate(heads):
    points = {}
    for name, row in cells.items():
      cell = [*row.values()][number]
      points[name] = pictures.Point(cell.mean, cell.spread or 0.0, cell.paper, cell.beyond)
    panels.append(pictures.Panel(head, points))
  return panels


def _write(path: pathlib.Path, text: str) -> None:
  with places.replacing(path) as temporary:
    temporary.write_text(text, encoding='utf8')
