"""Compiles the training step of a config for a machine that is not here, for `benchmark compile`.

A process of its own for each target: `python -m cfn_jax.timing.ahead` reads its options from a line
of JSON on stdin, and answers in one on stdout. The environment is what compile.py makes it.
"""

import argparse
import json
import pathlib
import re
import sys
import time
from typing import Any

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from cfn_jax import terminal
from cfn_jax.timing import hardware, program, steps
from cfn_jax.training import devices, settings


def make_mesh(target: str) -> Mesh:
  """Makes the mesh of a target's devices."""
  machine = hardware.find_machine(target)
  if machine.platform == 'tpu':
    found = topologies.get_topology_desc(platform='tpu', topology_name=target)
  else:
    count = int(target.partition(':')[2])
    a_host = min(count, hardware.GPUS_A_HOST)
    found = topologies.get_topology_desc(
      platform='cuda',
      topology_name='h100',
      target_config=hardware.H100,
      topology=f'1x{count // a_host}x{a_host}',  # slices, hosts, devices
    )
  return devices.make_mesh_of(found.devices)


def compile_step(arguments: argparse.Namespace, target: str) -> tuple[dict[str, Any], str]:
  """Compiles the step; returns the figures of the JSON line, and the program's text.

  Raises:
    ValueError: a batch that the devices cannot share, or whose step the compiler finds no room for.
  """
  machine, mesh = hardware.find_machine(target), make_mesh(target)
  config = steps.read_config(arguments)
  batch_size, parts = config.batch_size, config.accumulate_steps
  devices.check_batch(batch_size, mesh, field='--batch', parts=parts)
  devices.set_precision(config.matmul_precision)
  task, batch = steps.make(config)
  state, step = settings.make_step(task, config)
  state = devices.describe(state, devices.whole(mesh))
  batch = devices.describe(batch, devices.split(mesh))
  fixed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
  began = time.perf_counter()
  try:
    compiled = step.lower(state, batch).compile()
  except jax.errors.JaxRuntimeError as error:
    used = re.search(r'Used ([\d.]+)([MG]) of ([\d.]+)([MG]) hbm', str(error))
    if not used:
      raise
    unit = {'M': 2**20, 'G': 2**30}
    needed, there = (float(used[i]) * unit[used[i + 1]] for i in (1, 3))
    hint = say_room(needed, there, fixed, batch_size, mesh.size * parts)
    raise ValueError(f'{target}: {hint}') from None
  seconds = time.perf_counter() - began
  memory, text = compiled.memory_analysis(), compiled.as_text()
  needed = memory.argument_size_in_bytes + memory.temp_size_in_bytes
  fits = needed <= machine.memory
  figures = {
    'target': target,
    'devices': mesh.size,
    'compile_seconds': seconds,
    'argument_bytes': memory.argument_size_in_bytes,
    'temporary_bytes': memory.temp_size_in_bytes,
    'fits': fits,
    **measure(text, machine, dtype=config.compute_dtype, precision=config.matmul_precision),
    'batch': batch_size,
    'dtype': config.compute_dtype,
    'config': arguments.config,
    'note': '' if fits else say_room(needed, machine.memory, fixed, batch_size, mesh.size * parts),
  }
  return figures, text


def say_room(needed: float, there: float, fixed: float, batch: int, unit: int) -> str:
  """Says how much a step takes beyond a device's memory, and what batch would fit.

  Args:
    needed, there, fixed: bytes of a device: of the step, of its memory, of the state.
    unit: what a batch must be a multiple of.

  >>> say_room(40 * 2**30, 16 * 2**30, 2**30, 256, 4)
  'the step takes 40.0 GiB a device, 24.0 more than there are: a batch of 96, or --accumulate-steps'
  """
  fitting = int(batch * max(0, there - fixed) / (needed - fixed)) // unit * unit
  smaller = f'a batch of {fitting}, or ' if fitting else ''
  return (
    f'the step takes {needed / 2**30:.1f} GiB a device, {(needed - there) / 2**30:.1f} more than '
    f'there are: {smaller}--accumulate-steps'
  )


def measure(text: str, machine: hardware.Machine, *, dtype: str, precision: str) -> dict[str, Any]:
  """Returns what a program's text says of one run on one device.

  Raises:
    ProgramError: it is no program.
  """
  read = program.Program(text)
  cost = read.cost
  full = cost.cycles * machine.flops_a_cycle
  return {
    'collectives': read.count(*program.COLLECTIVES),
    'flops': cost.flops,
    'bytes_moved': cost.bytes,
    'scatters': sum(read.count('scatter').values()),
    'estimated_cycles': cost.cycles or None,
    'bound_seconds_arithmetic': cost.flops / hardware.find_peak(machine.kind, dtype, precision),
    'bound_seconds_memory': cost.bytes / machine.bandwidth,
    'share_of_matrix_units': cost.flops / full if full else None,
  }


def main() -> None:
  """Answers one request."""
  request = json.loads(sys.stdin.readline())
  answer: dict[str, Any] = {}
  try:
    arguments = argparse.Namespace(**request['options'])
    answer['figures'], text = compile_step(arguments, request['target'])
    if arguments.dump:
      pathlib.Path(arguments.dump).write_text(text, encoding='utf-8')
    lines = program.Program(text).costliest(arguments.top, 'cfn_jax')
    answer['top'] = [
      (line.cost.cycles, line.cost.bytes, line.cost.flops, line.kind, line.name, line.source)
      for line in lines
    ]
  except (ValueError, OSError, RuntimeError) as error:
    answer = {'error': terminal.describe(error)}
  terminal.answer(json.dumps(answer))


if __name__ == '__main__':
  main()
