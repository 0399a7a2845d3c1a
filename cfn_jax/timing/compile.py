"""Compiles the training step for machines that are not here: does it fit, scale, what is slow?

    python -m cfn_jax.benchmark compile --dtype=bfloat16 --batch=2048 --target=h100:1,h100:8
    python -m cfn_jax.benchmark compile --dtype=bfloat16 --target=v5e:2x2 --top=10

Prints a line of JSON for each target, of one step on one device: memory, collectives, arithmetic of
products and convolutions, bytes that operations read and write, scatters, on a TPU the compiler's
estimate of cycles; and the least seconds that arithmetic and memory allow. The figures are the
compiler's, not times. Needs the extra `.[compile]`. See docs/clusters.md.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
import jax
import ml_collections

from cfn_jax import arguments as command_lines
from cfn_jax import places, terminal
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import tables
from cfn_jax.timing import hardware, steps
from cfn_jax.training import devices, settings

EXTRA = "pip install -e '.[compile]'"
COLUMNS = {  # for the table of several targets: the figure, and its unit
  'fits': ('fits', 1),
  'arguments, MB': ('argument_bytes', 1e6),
  'temporaries, MB': ('temporary_bytes', 1e6),
  'GFLOP': ('flops', 1e9),
  'moved, GB': ('bytes_moved', 1e9),
  'scatters': ('scatters', 1),
  'M cycles': ('estimated_cycles', 1e6),
}
LIMITS = {'top': (0, 1000)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options of this part."""
  add = parser.add_argument
  add(
    '--target',
    required=True,
    help=f'one, or several with commas between: {", ".join(hardware.TARGETS)}',
  )
  steps.add_arguments(parser)
  add('--top', type=int, default=0, help='number of costliest operations to print')
  add('--dump', action='place', default='', help='write the compiled program')


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
  """Compiles for each target in a process of its own; returns the figures of the JSON lines.

  Raises:
    CfnError: an option is impossible, or a compiler is missing.
  """
  jax.config.update('jax_platforms', 'cpu')  # no other device is used here
  devices.check_platform()
  targets = arguments.target.split(',')
  machines = [hardware.find_machine(target) for target in targets]
  command_lines.check_numbers(arguments, LIMITS)
  check_config(steps.read_config(arguments), targets)
  if arguments.dump and len(targets) > 1:
    raise CfnError(f'--dump={arguments.dump}: one target; --target names {len(targets)}')
  for platform in sorted({machine.platform for machine in machines}):
    check_compiler(platform)
  if arguments.dump:
    arguments.dump = str(places.local(arguments.dump))
    with pathlib.Path(arguments.dump).open('ab'):  # fails at once if it cannot be written
      pass
  found = []
  for target in targets:
    if len(targets) > 1:
      terminal.say(f'{target}: compiling')
    figures, top = compile_for(arguments, target)
    if note := figures.pop('note'):
      terminal.say(f'{target}: {note}')
    if top:
      show_top(target, top)
    found.append(figures)
  if len(found) > 1:
    show_targets(found)
  return found


def check_config(config: ml_collections.ConfigDict, targets: Sequence[str]) -> None:
  """Raises CfnError for an impossible step, before any compilation."""
  if config.num_devices:
    raise CfnError(f'num_devices = {config.num_devices}: --target says how many devices there are')
  for target in targets:
    count, parts = hardware.count_devices(target), config.accumulate_steps
    devices.check_batch(config.batch_size, count, field=f'{target}: --batch', parts=parts)
  with config.unlocked():
    config.num_devices = 1  # the devices of this machine compute nothing
  settings.check(config)
  steps.make(config)


def check_compiler(platform: str) -> None:
  """Raises CfnError if the compiler of a platform is missing, or made for another JAX."""
  pinned = re.compile(r'libtpu==([\d.]+\.)\*')
  required = (pinned.match(line) for line in importlib.metadata.requires('jax') or [])
  libtpu = next((match[1] for match in required if match), '')
  packages = {
    'tpu': {'libtpu': libtpu},
    'cuda': {
      'jax-cuda12-plugin': f'{jax.__version__}.',
      'jax-cuda12-pjrt': f'{jax.__version__}.',
      'nvidia-cuda-nvcc-cu12': '',
    },
  }
  for package, wanted in packages[platform].items():
    try:
      version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      raise CfnError(f'the compiler is not installed ({package}): {EXTRA} brings it') from None
    if not f'{version}.'.startswith(wanted):
      raise CfnError(
        f'{package} {version} is not made for jax {jax.__version__}, which needs {wanted[:-1]}: '
        f'{EXTRA} brings it'
      )


def make_environment() -> dict[str, str]:
  """Returns the environment of a compilation: on the CPU, without network and driver."""
  flags = os.environ.get('XLA_FLAGS', '').split()
  nvidia = importlib.util.find_spec('nvidia')
  for folder in (nvidia and nvidia.submodule_search_locations) or ():
    if (tools := pathlib.Path(folder) / 'cuda_nvcc').is_dir():
      flags += [f'--xla_gpu_cuda_data_dir={tools}', '--xla_gpu_autotune_level=0']
  return {
    **os.environ,
    'JAX_PLATFORMS': 'cpu',
    'JAX_ENABLE_COMPILATION_CACHE': 'false',  # each compilation is a real, timed one
    'XLA_FLAGS': ' '.join(flags),
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',  # it holds no device; others may compile beside it
  }


def compile_for(
  arguments: argparse.Namespace, target: str
) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
  """Compiles for one target; returns its figures and its costliest operations.

  Raises:
    CfnError: it fails, with the reason.
  """
  request = json.dumps({'target': target, 'options': vars(arguments), 'parent': os.getpid()})
  done = subprocess.run(
    [sys.executable, '-m', 'cfn_jax.timing.ahead'],
    input=request + '\n',
    capture_output=True,
    text=True,
    env=make_environment(),
  )
  lines = done.stdout.splitlines()
  if done.returncode or not lines:
    last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), '')
    killed = 'it was killed, as where memory runs out: a compilation takes some 3 GB'
    why = killed if done.returncode == -9 else last[:300] or f'exit code {done.returncode}'
    raise CfnError(f'{target}: the compiler failed: {why}')
  answer = json.loads(lines[-1])
  if 'error' in answer:
    first, *others = answer['error']
    raise CfnError(f'{target}: {first.strip()}', *others)
  return answer['figures'], answer['top']


def show_top(target: str, top: list[tuple[Any, ...]]) -> None:
  """Prints the costliest operations of a step on stderr."""
  rows = []
  for cycles, moved, flops, kind, name, source in top:
    cost = [f'{cycles / 1e6:.2f}' if cycles else '-', f'{moved / 1e6:,.1f}', f'{flops / 1e9:,.1f}']
    rows.append((name, [*cost, kind, source]))
  columns = ['M cycles', 'MB', 'GFLOP', 'kind', 'source']
  terminal.show_table(f'{target}: the costliest operations', columns, [rows], file=sys.stderr)


def show_targets(found: list[dict[str, Any]]) -> None:
  """Prints a row for each target on stderr."""
  rows = []
  for figures in found:
    values = [(figures[name], unit) for name, unit in COLUMNS.values()]
    written = [
      tables.write_figure(value if value is None or unit == 1 else value / unit)
      for value, unit in values
    ]
    rows.append((figures['target'], written))
  terminal.show_table('One step on one device', list(COLUMNS), [rows], file=sys.stderr)
