"""Runs a study: training runs that differ in a few fields, with claims about them.

    python -m cfn_jax.study --study=shortcuts --config=configs/cfn.py:small --config.data.root=DIR
    python -m cfn_jax.study --study=permutations --config=cfn:small --config.data.root=DIR --dry-run
    python -m cfn_jax.study --study=shortcuts --config=cfn:small --config.data.root=DIR --part=1/4

A study is one of configs/studies/, or your own file; see docs/studies.md. The same command resumes
it, between runs and inside them.
"""

import functools
import math
import pathlib
import re
import shlex
import sys

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
import jax
import ml_collections
from absl import app, flags

from cfn_jax import command, places, terminal
from cfn_jax.errors import CfnError
from cfn_jax.studies import conduct, declaration, plan, shared
from cfn_jax.training import stopping, store


def define_flags() -> flags.FlagHolder[ml_collections.ConfigDict]:
  """Defines the flags; not at import, since `main` has some of the same names."""
  holder = command.define_config()
  text = flags.DEFINE_string
  text('study', None, 'name of a study that comes with the package, or FILE.py (required)')
  text('workdir', None, 'folder of the study, or gs://BUCKET/PATH (default studies/<study>)')
  text('part', '1/1', 'i/n: runs the i-th of n parts, from 1; all parts share the workdir')
  flags.DEFINE_list('runs', [], 'runs by name, with those that they start from (default: all)')
  text('seeds', None, 'seeds of all runs, such as 0,1 (default: those declared)')
  labelled = 'class folders for evaluations that need labels (default: the images of the runs)'
  text('labelled', None, labelled)
  flags.DEFINE_list('without', [], 'evaluations that are left out, by name')
  rate = 'throughput for the estimate (default: measured)'
  flags.DEFINE_float('images-per-second', None, rate, lower_bound=1e-3)
  flags.DEFINE_bool('dry-run', False, 'prints the plan and runs nothing')
  return holder


def main(holder: flags.FlagHolder[ml_collections.ConfigDict], arguments: list[str]) -> None:
  """Reads the flags, plans the study, and runs its unfinished parts."""
  with terminal.interruptible(), terminal.short_errors():
    if arguments[1:]:
      terminal.fail(f"'{arguments[1]}' is no flag: flags begin with --")
    command.quiet_libraries()
    if not flags.FLAGS.study:
      terminal.fail(
        f'--study is needed: one of {", ".join(declaration.list_names())}, or a file FILE.py'
      )
    # The runs need the devices: this process, which only plans, must not hold them.
    jax.config.update('jax_platforms', 'cpu')
    idle = 'stopped while no run was at work'  # before, between or after runs
    with stopping.ending(idle), stopping.interrupted_by_sigterm(enabled=True):
      failed = run(holder)
    if failed:
      terminal.say(f'failed: {", ".join(failed)}; the same command tries them again')
      sys.exit(1)


def run(holder: flags.FlagHolder[ml_collections.ConfigDict]) -> list[str]:
  """Plans the study and runs its unfinished parts; returns the failed ones."""
  given = flags.FLAGS
  study = declaration.leave_out(declaration.load(str(given.study)), given.without)
  declaration.check_runs(study, given.runs)
  if given.seeds is not None:
    study = declaration.replace_seeds(study, _read_seeds(given.seeds))
  config, text, rate = holder.value, command.config_text(holder), given['images-per-second'].value
  command.check_task(config, text, command.PRETEXTS)
  if config.distributed.mode != 'off':
    raise CfnError("distributed.mode: each run of a study has one host: 'off'; --part splits it")
  labelled = str(places.resolve(given.labelled, '--labelled')) if given.labelled else ''
  if labelled and not pathlib.Path(labelled).is_dir():
    raise CfnError(f'--labelled={labelled}: there is no such folder')
  part = _read_part(given.part)
  if rate is not None and not math.isfinite(rate):
    raise CfnError(f'--images-per-second={rate}: a finite number is needed')
  with shared.opened(given.workdir or f'studies/{study.name}', '--workdir') as (workdir, sync):
    store.check_path(workdir)
    planner = plan.Planner(
      study,
      config_text=text,
      given=command.get_given(holder),
      workdir=workdir,
      labelled_root=labelled,
    )
    return conduct.conduct(
      study,
      planner.plan(),
      workdir,
      chosen=given.runs,
      part=part,
      images_per_second=rate or 0.0,
      dry_run=bool(given['dry-run'].value),
      report=config.report,
      command=shlex.join(['python', '-m', 'cfn_jax.study', *sys.argv[1:]]),
      sync=sync,
    )


def _read_part(text: str) -> tuple[int, int]:
  found = re.fullmatch(r'(\d{1,6})/(\d{1,6})', text, re.ASCII)
  part, parts = map(int, found.groups()) if found else (0, 0)
  if not 1 <= part <= parts:
    raise CfnError(f'--part={text}: i/n is needed, i from 1 to n, such as 1/4')
  return part, parts


def _read_seeds(text: str) -> tuple[int, ...]:
  if not re.fullmatch(r'\d{1,18}(,\d{1,18})*', text, re.ASCII):
    raise CfnError(f'--seeds={text}: whole numbers are needed, such as 0,1')
  seeds = tuple(map(int, text.split(',')))
  declaration.check_seeds('--seeds', seeds)
  return seeds


if __name__ == '__main__':
  parse = functools.partial(command.parse_flags, prog='cfn_jax.study', about=__doc__)
  app.run(functools.partial(main, define_flags()), flags_parser=parse)
