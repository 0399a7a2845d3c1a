"""Runs the task that a config names: pretraining or an evaluation.

    python -m cfn_jax.main --config=configs/cfn.py:tiny --workdir=runs/tiny
    python -m cfn_jax.main --config=configs/cfn.py:small --config.data.root=DIR
    python -m cfn_jax.main --config=linear_probe:small --config.weights=runs/cfn-small \
        --config.data.root=flowers/train --config.data.val_root=flowers/test

The same command resumes a run that was stopped. Every field of a config can be set.
"""

import functools
import importlib
import pathlib

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
import jax
import ml_collections
from absl import app, flags

from cfn_jax import command, places, terminal
from cfn_jax.data import images
from cfn_jax.training import (
  devices,
  distributed,
  host_memory,
  mirror,
  provenance,
  stopping,
  store,
  task,
)

CONFIG = command.define_config()
WORKDIR = flags.DEFINE_string(
  'workdir',
  '',
  'folder of the run, or gs://BUCKET/PATH; it resumes if it holds one (default runs/<config>)',
)


EVALUATIONS = (
  'frozen_layers',
  'voc_classification',
  'voc_detection',
  'voc_segmentation',
  'recognition',
  'alexnet_to_jigsaw',
  'linear_probe',
  'knn',
  'retrieval',
  'solve',
)
# The module of each task, with `open_task`. It is imported on demand, because loader processes
# import this file.
TASKS = {
  **dict.fromkeys(command.PRETEXTS, 'cfn_jax.jigsaw.task'),
  'context_encoder': 'cfn_jax.inpainting.task',
  **{name: f'cfn_jax.evaluation.{name}' for name in EVALUATIONS},
}


def run(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  """Opens the task that a config names, executes it in a workdir, and writes the report."""
  module = importlib.import_module(TASKS[config.task])
  execute: task.Execute = module.open_task(config)
  with places.naming(workdir), devices.explain_memory(config.to_dict()):
    try:
      with provenance.recorded(workdir):
        execute(workdir)
    except images.BadImage as error:
      if 'on_bad_image' not in config.data:
        raise
      hint = '--config.data.on_bad_image=skip lists such files and leaves them out'
      raise images.BadImage(error.name, f'{error.reason}; {hint}') from error
  if config.report and not jax.process_index():
    from cfn_jax.report import page

    page.write_at_end(workdir)


def start_devices(config: ml_collections.ConfigDict) -> None:
  """Joins the hosts and finds the devices, before anything else uses one."""
  host_memory.keep_freed()
  if config.compilation_cache_dir:
    folder = places.resolve(config.compilation_cache_dir, 'compilation_cache_dir')
    if not str(folder).isprintable():
      raise places.PlaceError(f'compilation_cache_dir={folder}: JAX cannot write such a name')
    places.make_folder(folder, 'compilation_cache_dir')
    jax.config.update('jax_compilation_cache_dir', str(folder))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
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
@terminal.short_errors()
def main(arguments: list[str]) -> None:
  """Reads the flags and runs the task."""
  config = CONFIG.value
  if arguments[1:]:
    terminal.fail(f"'{arguments[1]}' is no flag: flags begin with --")
  command.quiet_libraries()
  command.refuse_idle(CONFIG)
  folder = WORKDIR.value or f'runs/{command.config_name(CONFIG)}'
  if config.deterministic:
    command.make_deterministic()
  workdir = mirror.resolve(folder, '--workdir')
  store.check_path(workdir)
  places.make_folder(workdir, '--workdir')
  start_devices(config)
  with (
    # Before a run began, or between two runs of an evaluation.
    stopping.ending('stopped while no run was training'),
    stopping.interrupted_by_sigterm(enabled=config.distributed.mode == 'off'),
    distributed.watch_peers(config.distributed.heartbeat_s),
    mirror.opened(workdir) as held,
  ):
    store.check(held)
    run(config, held)


if __name__ == '__main__':
  parse = functools.partial(command.parse_flags, prog='cfn_jax.main', about=__doc__, configs=True)
  app.run(main, flags_parser=parse)
