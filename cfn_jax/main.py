"""Runs the task that a config names: `python -m cfn_jax.main --config=configs/cfn.py:tiny`.

Flags, devices, the workdir, and one call; what a task does stands elsewhere.
"""

import dataclasses
import pathlib
import sys
from typing import Any

import jax
import ml_collections
import rich.console
import rich.table
from absl import app, flags

from cfn_jax import command
from cfn_jax.data import images, loading, sources
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import task as jigsaw_task
from cfn_jax.pictures import run as run_pictures
from cfn_jax.training import checkpoint, devices, loop, metrics, task

CONFIG = command.define_config()
EXPECTED = (
  OSError,
  checkpoint.CheckpointError,
  devices.BatchError,
  images.BadImage,
  loading.LoadingError,
  loop.NonFiniteError,
  sources.SourceError,
)
WORKDIR = flags.DEFINE_string(
  'workdir', '', 'Folder of the run; runs/<config> by default. A run in it is continued.'
)


def run_jigsaw(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> dict[str, Any]:
  """Pretrains a network; returns the last figures, empty where the run had finished before."""
  with command.short_errors(ValueError, OSError):
    pretext = pretexts.open_pretext(config)
    made = jigsaw_task.make_task(config, pretext)
  pictures = run_pictures.make_pictures(pretext, chance_loss=made.chance_loss)
  made = dataclasses.replace(made, pictures=pictures, end_pictures=run_pictures.END)
  return run(made, config, workdir)


def run(
  made: task.Task, config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> dict[str, Any]:
  """Hands a task to the loop."""
  with command.short_errors(ValueError):
    loop.check(config)
  print_summary(made, workdir)
  with command.short_errors(*EXPECTED):
    try:
      return loop.fit(made, config, workdir)
    except images.BadImage as error:
      hint = '--config.data.on_bad_image=skip lists such files and goes on without them'
      raise images.BadImage(error.name, f'{error.reason}; {hint}') from error


TASKS = {'jigsaw': run_jigsaw}


def print_summary(made: task.Task, workdir: pathlib.Path) -> None:
  """Prints what is about to run."""
  if jax.process_index():
    return
  table = rich.table.Table(show_header=False, box=None, pad_edge=False)
  table.add_row('workdir', str(workdir))
  kinds = {device.device_kind for device in jax.devices()}
  hosts = f' on {jax.process_count()} hosts' if jax.process_count() > 1 else ''
  table.add_row('devices', f'{jax.device_count()} x {", ".join(sorted(kinds))}{hosts}')
  for what, value in made.summary:
    table.add_row(what, value)
  rich.console.Console(stderr=True, soft_wrap=True, highlight=False).print(table)


def print_closing(figures: dict[str, Any], workdir: pathlib.Path) -> None:
  """Prints the figures with which a run ended, and those of its best evaluation."""
  rows = [row for row in metrics.read_rows(workdir / 'metrics.jsonl') if 'val_accuracy' in row]
  if not rows or 'train_loss' not in figures:
    return
  best = max(rows, key=lambda row: row['val_accuracy'])
  for name, row in (('finished', figures), ('best', best)):
    low, high = row['val_accuracy_low'], row['val_accuracy_high']
    accuracy = f'{row["val_accuracy"]:.2%} (95 % interval {low:.2%} to {high:.2%})'
    puzzles = f'{row["val_count"]:,} puzzles'
    print(
      f'{name} at step {row["step"]:,}: validation accuracy {accuracy}, loss '
      f'{row["val_loss"]:.3f}, {puzzles}',
      file=sys.stderr,
    )
  print(f'training loss {figures["train_loss"]:.3f}; everything is in {workdir}', file=sys.stderr)


def main(arguments: list[str]) -> None:
  """Reads the flags and runs the task."""
  config = CONFIG.value
  if arguments[1:]:
    command.fail(f"'{arguments[1]}' is no flag: flags begin with --")
  command.quiet_libraries()
  if config.task not in TASKS:
    command.fail(f"task = '{config.task}' is unknown: one of {', '.join(TASKS)}")
  folder = WORKDIR.value or f'runs/{command.config_name(CONFIG)}'
  workdir = pathlib.Path(folder).expanduser().resolve()
  if config.deterministic:
    command.make_deterministic()
  try:
    workdir.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    command.fail(f'--workdir={workdir} cannot be made a folder: {error.strerror}')
  try:
    figures = TASKS[config.task](config, workdir)
  except KeyboardInterrupt:
    print(
      f'stopped; the same command continues from the last checkpoint in {workdir}', file=sys.stderr
    )
    sys.exit(130)
  if figures:
    print_closing(figures, workdir)
  else:
    print(f'{workdir}: the run is finished; more steps continue it', file=sys.stderr)


if __name__ == '__main__':
  app.run(main, flags_parser=command.parse_flags)
