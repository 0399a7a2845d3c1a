"""A study from its plan to its table: says what is left, runs it, and publishes what is there."""

import json
import pathlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from cfn_jax import places, terminal
from cfn_jax.buckets import addresses
from cfn_jax.report import page
from cfn_jax.studies import declaration, disk, executions, records, runner, table
from cfn_jax.training import provenance

FILE = 'study.json'  # the declaration, as it was before the first run


def conduct(
  study: declaration.Study,
  planned: Sequence[executions.Execution],
  workdir: pathlib.Path,
  *,
  chosen: Sequence[str] = (),
  part: tuple[int, int] = (1, 1),
  images_per_second: float = 0.0,
  dry_run: bool = False,
  report: bool = True,
  command: str = '',
  run_one: runner.RunOne = runner.run_process,
  sync: Callable[[], object] = lambda: None,
) -> list[str]:
  """Does what is left of a part of a study, and writes the table of all of it.

  Args:
    chosen: the runs that are wanted, with those that they start from; empty: all.

  Returns the names of the executions of the part that failed.

  Raises:
    StudyError: a folder holds another run; the disk is too small.
  """
  states = {each.name: records.read_state(each, workdir) for each in planned}
  mine = executions.split(executions.choose(planned, chosen or [*study.runs]), *part)
  names = {each.name for each in mine}
  left = _find_left(planned, states, names)
  told = disk.check(left, workdir)
  rate, source = _find_rate(planned, workdir, images_per_second)
  visits = {each.name: records.count_visits(each, workdir) for each in left}
  _show_plan(study, planned, mine, left, visits, part=part, disk_use=told, rate=rate, source=source)
  if dry_run:
    return []
  places.make_folder(workdir, '--workdir')
  _keep_declaration(study, workdir)
  for each in left:
    if states[each.name] == 'finished':
      records.write_state(each, workdir, 'started')  # if this is stopped, the next start does it
  begun = time.monotonic()

  def measured(found: float) -> None:
    if not rate:
      terminal.say(
        f'{found:,.0f} images a second: about {_clock(sum(visits.values()) / found)} for what was '
        'left, '
        'by the first run; evaluations come on top'
      )

  if left:
    runner.execute(
      left,
      workdir,
      run_one=run_one,
      measured=measured,
      ended=lambda: table.write(study, planned, workdir, command),
      sync=sync,
    )
    terminal.say('', f'done in {_clock(time.monotonic() - begun)}')
  sync()
  table.publish(study, planned, workdir, command)
  sync()
  table.write(study, planned, workdir, command)  # with what another part ended meanwhile
  if report:
    page.write_at_end(workdir)
  terminal.say(f'everything is in {addresses.show(workdir)}')
  names |= {each.name for each in left}
  return [n for n in (e.name for e in planned) if n in names and records.read_failure(workdir / n)]


def _find_left(
  planned: Sequence[executions.Execution], states: Mapping[str, str], names: Collection[str]
) -> list[executions.Execution]:
  """Returns what is to be done of the named executions, and what tests a run that is made again."""
  left: list[executions.Execution] = []
  for each in planned:
    wanted = each.name in names and states[each.name] != 'finished'
    if states[each.name] and not each.trains:  # an evaluation of the same weights ends at once
      again = any(each.start == other.name for other in left)
      wanted |= again or (states[each.name] != 'finished' and each.start in names)
    if wanted:
      left.append(each)
  return left


def _find_rate(
  planned: Sequence[executions.Execution], workdir: pathlib.Path, given: float
) -> tuple[float, str]:
  """Returns images a second and what says so; 0 where nothing does yet."""
  if given:
    return given, '--images-per-second'
  for each in planned:
    rate = records.read_rate(workdir / each.name) if each.trains else 0.0
    if rate:
      return rate, f'as {each.name} had'
  return 0.0, 'measured in the first run'


def _show_plan(
  study: declaration.Study,
  planned: Sequence[executions.Execution],
  mine: Sequence[executions.Execution],
  left: Sequence[executions.Execution],
  visits: Mapping[str, int],
  *,
  part: tuple[int, int],
  disk_use: str,
  rate: float,
  source: str,
) -> None:
  trained = [each for each in left if not each.evaluation]
  steps = sum(visits[each.name] // each.config.batch_size for each in trained)
  images = sum(visits.values())
  time_left = f'about {_clock(images / rate)}, {rate:,.0f} images a second ' if rate else ''
  early = sum(each.stop_when_left for each in trained)
  terminal.show_pairs(
    [
      ('study', study.title),
      ('declared', f'{len(study.runs)} rows, {len(planned)} runs and evaluations'),
      *([('part', f'{part[0]} of {part[1]}: {len(mine)} of them')] if part[1] > 1 else []),
      ('left', f'{len(trained)} runs, {len(left) - len(trained)} evaluations'),
      (
        'steps',
        f'{steps:,}, {images:,} image visits'
        + (f'; {early} runs end as soon as they leave chance' if early else ''),
      ),
      ('time', f'{time_left}({source}); evaluations come on top' if left else 'none'),
      ('disk', disk_use),
    ]
  )
  for each in left:
    shown = f'{visits[each.name]:,} images' if each.visits else 'labelled or solved images'
    terminal.say(f'  {each.name}: {shown}' + (f', from {each.start}' if each.start else ''))


def _keep_declaration(study: declaration.Study, workdir: pathlib.Path) -> None:
  """Writes what is declared before the first run; says so where it was changed since."""
  told = json.loads(json.dumps(study.describe()))
  held = places.read_json(workdir / FILE).get('study')
  if held is None:
    begun = {'begun': time.time(), 'commit': provenance.find_commit(), 'study': told}
    places.write_json(workdir / FILE, begun, indent=2)
  elif held != told:
    terminal.say(f'note: the study was changed since it began: {workdir / FILE} has it as it was')


def _clock(seconds: float) -> str:
  minutes = round(seconds / 60)
  return f'{minutes // 60} h {minutes % 60:02d} min' if minutes >= 60 else f'{max(1, minutes)} min'
