"""Runs the task that a config names: `python -m cfn_jax.main --config=configs/cfn.py:tiny`.

Flags, devices, the workdir, and one call; what a task does stands elsewhere.
"""

import dataclasses
import importlib
import pathlib
import signal
import sys
from typing import Any

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
import jax
import ml_collections
from absl import app, flags
from ml_collections import config_flags

from cfn_jax import command, config_files, idle, places, terminal
from cfn_jax.data import images, loading, sources
from cfn_jax.evaluation import feature_cache
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import task as jigsaw_task
from cfn_jax.pictures import class_scores
from cfn_jax.pictures import figures as pictures
from cfn_jax.pictures import run as run_pictures
from cfn_jax.training import (
  checkpoint,
  devices,
  distributed,
  finite,
  host_memory,
  lock,
  loop,
  metrics,
  step_folders,
  stopping,
  store,
  task,
)
from cfn_jax.transfer import weights

CONFIG = command.define_config()
EXPECTED = (
  OSError,
  checkpoint.CheckpointError,
  devices.BatchError,
  devices.OutOfMemoryError,
  feature_cache.CacheError,
  finite.NonFiniteError,
  images.BadImage,
  loading.LoadingError,
  lock.LockedError,
  sources.SourceError,
  weights.WeightsError,
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
  if config.init_from:
    made = start_from(config, pretext, made, workdir)
  return run(made, config, workdir)


def start_from(
  config: ml_collections.ConfigDict,
  pretext: pretexts.Pretext,
  made: task.Task,
  workdir: pathlib.Path,
) -> task.Task:
  """Lets step 0 take the weights that the config names; a resumed run needs them no more."""
  from cfn_jax.jigsaw import initial  # brings in the readers of all formats

  path = str(pathlib.Path(config.init_from))
  made = dataclasses.replace(made, fingerprint={**made.fingerprint, 'init_from': path})
  if step_folders.find_steps(workdir / 'checkpoints') and not config.start_over:
    return made
  with command.short_errors(ValueError, OSError):
    params, loaded = initial.load_initial(path, made.init(config.seed), pretext)
  summary = [*made.summary, ('init_from', f'{path}: {loaded}')]
  return dataclasses.replace(made, init=lambda _: params, summary=summary)


def run(
  made: task.Task, config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> dict[str, Any]:
  """Hands a task to the loop."""
  with command.short_errors(ValueError):
    loop.check(config)
  print_summary(made, workdir)
  with command.short_errors(*EXPECTED), places.naming(workdir):
    try:
      with devices.explain_memory(config.to_dict()):
        return loop.fit(made, config, workdir)
    except images.BadImage as error:
      hint = '--config.data.on_bad_image=skip lists such files and trains without them'
      raise images.BadImage(error.name, f'{error.reason}; {hint}') from error


def run_evaluation(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> dict[str, Any]:
  """Runs the evaluation that the config names; returns the figures of its runs."""
  module = importlib.import_module(f'cfn_jax.evaluation.{config.task}')
  with command.short_errors(ValueError, OSError):
    opened = module.open_evaluation(config)
  memory = devices.explain_memory(config.to_dict())
  with command.short_errors(*EXPECTED), places.naming(workdir), memory:
    figures: dict[str, Any] = opened.execute(workdir, run)
  if not jax.process_index():
    for name, rows in opened.charts(figures).items():
      with pictures.spared(workdir / name):
        class_scores.draw_class_scores(workdir / name, rows)
    terminal.say(f'everything is in {workdir}')
  return figures


# Modules of evaluation/, imported when they are asked for: each loader process imports this file.
EVALUATIONS = (
  'frozen_layers',
  'voc_classification',
  'recognition',
  'alexnet_to_jigsaw',
  'linear_probe',
  'knn',
  'solve',
)
TASKS = {'jigsaw': run_jigsaw} | dict.fromkeys(EVALUATIONS, run_evaluation)


def print_summary(made: task.Task, workdir: pathlib.Path) -> None:
  """Prints what is about to run."""
  if jax.process_index():
    return
  kinds = {device.device_kind for device in jax.devices()}
  hosts = f' on {jax.process_count()} hosts' if jax.process_count() > 1 else ''
  found = f'{jax.device_count()} x {", ".join(sorted(kinds))}{hosts}'
  terminal.show_pairs([('workdir', str(workdir)), ('devices', found), *made.summary])


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
    terminal.say(
      f'{name} at step {row["step"]:,}: validation accuracy {accuracy}, loss '
      f'{row["val_loss"]:.3f}, {puzzles}'
    )
  terminal.say(f'training loss {figures["train_loss"]:.3f}; everything is in {workdir}')


def start_devices(config: ml_collections.ConfigDict) -> None:
  """Joins the hosts and finds the devices, before anything else asks for one."""
  host_memory.keep_freed()
  if config.compilation_cache_dir:
    with command.short_errors(places.PlaceError):
      folder = places.resolve(config.compilation_cache_dir, 'compilation_cache_dir')
      if not str(folder).isprintable():
        raise places.PlaceError(f'compilation_cache_dir={folder}: JAX cannot write such a name')
      places.make_folder(folder, 'compilation_cache_dir')
    jax.config.update('jax_compilation_cache_dir', str(folder))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
  with command.short_errors(ValueError):
    devices.set_precision(config.matmul_precision)
    distributed.start(
      config.distributed.mode,
      coordinator=config.distributed.coordinator,
      num_processes=config.distributed.num_processes,
      process_id=config.distributed.process_id,
      heartbeat_s=config.distributed.heartbeat_s,
    )
    devices.check_platform()


@terminal.interruptible()
def main(arguments: list[str]) -> None:
  """Reads the flags and runs the task."""
  config = CONFIG.value
  if arguments[1:]:
    terminal.fail(f"'{arguments[1]}' is no flag: flags begin with --")
  command.quiet_libraries()
  with command.short_errors(ValueError):
    given = config_flags.get_override_values(flags.FLAGS[CONFIG.name])
    idle.check(config, {*given, *config_files.find_changed(config)})
  folder = WORKDIR.value or f'runs/{command.config_name(CONFIG)}'
  if config.deterministic:
    command.make_deterministic()
  with command.short_errors(checkpoint.CheckpointError, places.PlaceError):
    workdir = places.resolve(folder, '--workdir')
    store.check_path(workdir)
    places.make_folder(workdir, '--workdir')
  start_devices(config)
  try:
    with (
      stopping.interrupted_by_sigterm(enabled=config.distributed.mode == 'off'),
      distributed.watch_peers(config.distributed.heartbeat_s),
    ):
      with command.short_errors(*EXPECTED):
        store.check(workdir)
      figures = TASKS[config.task](config, workdir)
  except KeyboardInterrupt as error:  # before a run began, or between two runs of an evaluation
    number = signal.SIGTERM if isinstance(error, stopping.Terminated) else signal.SIGINT
    terminal.say(f'{number.name}: stopped while no run was training; the same command resumes')
    sys.exit(128 + number)
  except stopping.Stopped as stopped:
    terminal.say(str(stopped))
    sys.exit(stopped.code)
  if jax.process_index():
    return
  if figures:
    print_closing(figures, workdir)
  else:
    terminal.say(f'{workdir}: the run is finished; more steps continue it')


if __name__ == '__main__':
  app.run(main, flags_parser=command.parse_flags)
