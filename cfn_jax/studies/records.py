"""Reads an execution's folder: whether it is done, and its figures.

`execution.json` has the settings of a folder, and how the execution ended. `results.json` has the
figures. Evaluations write it themselves; for a training run it is written here from
`metrics.jsonl`. Figures are read only from `results.json`.
"""

import pathlib
import shlex
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cfn_jax import places
from cfn_jax.evaluation import runs
from cfn_jax.report import curves, files
from cfn_jax.studies import declaration, executions
from cfn_jax.training import metrics, plateau, provenance

FILE = 'execution.json'
RUN = 'run'  # the name of a training run's figures in its results.json
LEFT_OUT = ('learning_rate', 'input_wait_fraction')  # values of a row that are no results


def read_state(execution: executions.Execution, workdir: pathlib.Path) -> str:
  """Returns '' for a new execution, else 'started', 'finished' or 'failed'.

  Raises:
    StudyError: the folder holds another run than the declared one.
  """
  folder = workdir / execution.name
  held = places.read_json(folder / FILE)
  if not held:
    if (folder / 'config.json').exists() or (folder / runs.FILE).exists():
      raise declaration.StudyError(
        f'{folder} holds a run that no study began: take another --workdir'
      )
    return ''
  before, now = held.get('settings'), execution.identity
  before = before if isinstance(before, dict) else {}
  if before != now:
    differ = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    shown = [f'{name}: {before.get(name)!r:.60} then, {now.get(name)!r:.60} now' for name in differ]
    raise declaration.StudyError(
      f'{folder} holds a run with other settings: take another --workdir, or remove that folder;',
      *(f'  {each}' for each in shown[:3]),
      *([f'  and {len(shown) - 3} fields more'] if len(shown) > 3 else []),
    )
  state = str(held.get('state', ''))
  return 'started' if state == 'finished' and not (folder / runs.FILE).is_file() else state


def write_state(
  execution: executions.Execution, workdir: pathlib.Path, state: str, message: str = ''
) -> None:
  """Writes the state of an execution to its folder."""
  folder = workdir / execution.name
  folder.mkdir(parents=True, exist_ok=True)
  value = {
    'state': state,
    'message': message,
    'time': time.time(),
    'settings': dict(execution.identity),
  }
  places.write_json(folder / FILE, value, indent=2)


def read_failure(folder: pathlib.Path) -> str:
  """Returns why an execution failed; '' if it did not."""
  held = places.read_json(folder / FILE)
  return str(held.get('message')) if held.get('state') == 'failed' else ''


def count_visits(execution: executions.Execution, workdir: pathlib.Path) -> int:
  """Returns the images that an execution still trains on, after what it has logged."""
  if not execution.visits:
    return 0
  rows = metrics.read_rows(workdir / execution.name / 'metrics.jsonl')
  share = 1 - (rows[-1]['step'] if rows else 0) / execution.config.num_steps
  return round(execution.visits * max(0.0, share))


def write_figures(execution: executions.Execution, workdir: pathlib.Path) -> None:
  """Writes the results.json of a training run that has ended."""
  folder = workdir / execution.name
  rows = metrics.read_rows(folder / 'metrics.jsonl')
  found = {**measure(rows, execution), **execution.facts}
  places.write_json(
    folder / runs.FILE,
    {
      'task': execution.config.task,
      'commit': provenance.find_commit(),
      'command': shlex.join(['python', '-m', 'cfn_jax.main', *execution.command(workdir)]),
      'seed': execution.seed,
      'runs': {RUN: places.make_plain(found)},
      'config': execution.config.to_dict(),
    },
    indent=2,
  )


def measure(rows: Sequence[metrics.Row], execution: executions.Execution) -> dict[str, Any]:
  """Returns the last figures of a run, and when it left chance: null if it has not."""
  found: dict[str, Any] = {}
  for row in rows:
    found |= {
      name: value
      for name, value in row.items()
      if name not in LEFT_OUT and not name.endswith('_per_second')
    }
  images, budget = execution.config.batch_size, execution.config.num_steps
  left = has_left(rows, execution)
  seconds = _count_seconds(rows, images)
  found['left_step'] = left or None
  found['left_images'] = left * images if left else None
  found['left_seconds'] = seconds(left) if left else None
  found['budget_step'], found['budget_images'] = budget, budget * images
  found['budget_seconds'] = seconds(found.get('step', 0))
  rates = list_rates(rows)
  found['images_per_second'] = statistics.median_high(rates) if rates else None
  return found


def list_rates(rows: Sequence[metrics.Row]) -> list[float]:
  """Returns the images per second of the rows that have a timed step."""
  return [row['images_per_second'] for row in rows if 'images_per_second' in row]


def has_left(rows: Sequence[metrics.Row], execution: executions.Execution) -> int:
  """Returns the step at which a run left chance; 0: not yet."""
  return plateau.find_left(rows, execution.facts['chance_loss'])


def _count_seconds(rows: Sequence[metrics.Row], images: int) -> Callable[[int], float]:
  """Returns a function from a step to the seconds of training before it, see `curves.place`."""
  course = curves.place([files.figures(row) for row in rows], images)
  return lambda step: max(
    (3600 * at.get('hours', 0.0) for at in course if at['step'] <= step), default=0.0
  )


def read_figure(folder: pathlib.Path, path: Sequence[str]) -> Any:
  """Returns the value at a path in the `runs` of a results.json; None if missing."""
  value: Any = places.read_json(folder / runs.FILE).get('runs')
  for name in path:
    value = value.get(name) if isinstance(value, Mapping) else None
  return value


def read_rate(folder: pathlib.Path) -> float:
  """Returns the images per second of a finished run; 0 without one."""
  rate = read_figure(folder, (RUN, 'images_per_second'))
  return float(rate) if isinstance(rate, int | float) else 0.0
