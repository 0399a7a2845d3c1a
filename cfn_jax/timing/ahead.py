"""Compiles the training step of a config for another machine, for `benchmark compile`.

Each target has its own process: `python -m cfn_jax.timing.ahead` reads its options from a line of
JSON on stdin and answers with one on stdout. compile.py sets the environment.
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
from cfn_jax.data import parent as parents
from cfn_jax.timing import hardware, program, steps
from cfn_jax.training import devices, settings

FIGURES = (
  'collectives',
  'flops',
  'bytes_moved',
  'scatters',
  'estimated_cycles',
  'bound_seconds_arithmetic',
  'bound_seconds_memory',
  'share_of_matrix_units',
)


def make_mesh(target: str) -> Mesh:
  """Makes the mesh of a target's devices."""
  machine = hardware.find_machine(target)
  if machine.platform == 'tpu':
    found = topologies.get_topology_desc(platform='tpu', topology_name=target)
  else:
    count = hardware.count_devices(target)
    a_host = min(count, hardware.GPUS_A_HOST)
    found = topologies.get_topology_desc(
      platform='cuda',
      topology_name='h100',
      target_config=hardware.H100,
      topology=f'1x{count // a_host}x{a_host}',  # slices, hosts, devices
    )
  return devices.make_mesh_of(found.devices)


def compile_step(
  arguments: argparse.Namespace, target: str
) -> tuple[dict[str, Any], program.Program | None]:
  """Compiles the step; returns the figures of the JSON line with a note, and the program.

  If the step does not fit, there is no program, and figures are None.
  """
  machine, mesh = hardware.find_machine(target), make_mesh(target)
  config = steps.read_config(arguments)
  devices.set_precision(config.matmul_precision)
  task, row = steps.make(config)
  host_state, step = settings.make_step(task, config)
  state = devices.describe(host_state, devices.whole(mesh))
  batch = {
    name: jax.ShapeDtypeStruct(
      (config.batch_size, *array.shape[1:]), array.dtype, sharding=devices.split(mesh)
    )
    for name, array in row.items()
  }
  fixed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
  began = time.perf_counter()
  found: tuple[int, int] | None = None
  read: program.Program | None = None
  needed, there = 0.0, float(machine.memory)
  try:
    compiled = step.lower(state, batch).compile()
    memory, read = compiled.memory_analysis(), program.Program(compiled.as_text())
    found = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    needed = sum(found)
  except jax.errors.JaxRuntimeError as error:
    needed, there = read_room(str(error))
    if not needed:
      raise
  figures = {
    'target': target,
    'devices': mesh.size,
    'compile_seconds': time.perf_counter() - began,
    'argument_bytes': found and found[0],
    'temporary_bytes': found and found[1],
    'fits': needed <= there,
    **measure(read, machine, dtype=config.compute_dtype, precision=config.matmul_precision),
    'batch': config.batch_size,
    'dtype': config.compute_dtype,
    'config': arguments.config,
    'note': '',
  }
  if not figures['fits']:
    unit = mesh.size * config.accumulate_steps
    figures['note'] = say_room(needed, there, fixed, config.batch_size, unit)
  return figures, read


def read_room(message: str) -> tuple[float, float]:
  """Reads the needed and the available bytes from a TPU compiler's error; 0: unknown.

  >>> read_room('Ran out of memory in memory space hbm. Used 31.50G of 15.75G hbm.')
  (33822867456.0, 16911433728.0)
  """
  used = re.search(r'Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm', message)
  if not used:
    return 0.0, 0.0
  unit = {'K': 2**10, 'M': 2**20, 'G': 2**30}
  return float(used[1]) * unit[used[2]], float(used[3]) * unit[used[4]]


def say_room(needed: float, there: float, fixed: float, batch: int, unit: int) -> str:
  """Returns how much memory a step lacks, and roughly what batch size would fit.

  Args:
    needed, there, fixed: bytes of a device: for the step, its memory, for the state.
    unit: a batch size must be a multiple of it.

  >>> say_room(40 * 2**30, 16 * 2**30, 2**30, 256, 4)
  'it takes 40.0 GiB a device, 24.0 too many: a batch of some 92, or --accumulate-steps'
  """
  room = max(0, 0.95 * there - fixed)  # temporaries shrink a little less than the batch
  fitting = int(batch * room / (needed - fixed)) // unit * unit
  smaller = f'a batch of some {fitting}, or ' if fitting else ''
  taken, missing = needed / 2**30, (needed - there) / 2**30
  return f'it takes {taken:.1f} GiB a device, {missing:.1f} too many: {smaller}--accumulate-steps'


def measure(
  read: program.Program | None, machine: hardware.Machine, *, dtype: str, precision: str
) -> dict[str, Any]:
  """Returns the figures of one run of a program on one device; None without a program."""
  if not read:
    return dict.fromkeys(FIGURES)
  cost = read.cost
  full = cost.cycles * machine.flops_a_cycle
  values = (
    read.count(*program.COLLECTIVES),
    cost.flops,
    cost.bytes,
    sum(read.count('scatter').values()),
    cost.cycles or None,
    cost.flops / hardware.find_peak(machine.kind, dtype, precision),
    cost.bytes / machine.bandwidth,
    cost.flops / full if full else None,
  )
  return dict(zip(FIGURES, values, strict=True))


def main() -> None:
  """Answers one request."""
  request = json.loads(sys.stdin.readline())
  parents.end_with(request['parent'])
  answer: dict[str, Any] = {}
  try:
    arguments = argparse.Namespace(**request['options'])
    answer['figures'], read = compile_step(arguments, request['target'])
    if arguments.dump and read:
      pathlib.Path(arguments.dump).write_text(read.text, encoding='utf-8')
    lines = read.costliest(arguments.top, 'cfn_jax') if read else []
    answer['top'] = [
      (line.cost.cycles, line.cost.bytes, line.cost.flops, line.kind, line.name, line.source)
      for line in lines
    ]
  except (ValueError, OSError, RuntimeError) as error:
    answer = {'error': terminal.describe(error)}
  terminal.answer(json.dumps(answer))


if __name__ == '__main__':
  main()
