"""Measures the full training step on the device, on puzzles of noise.

    python -m cfn_jax.benchmark step --batch=16 --steps=5
    python -m cfn_jax.benchmark step --config=cfn:small --dtype=bfloat16

Prints puzzles and images per second, the median seconds of a step, the time to compile it, the
arithmetic of the network (convolutions and matmuls, forward and backward) and how fast it went, and
the peak memory.
"""

import argparse
import resource
import time
from typing import Any

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
import jax
import numpy as np

from cfn_jax import arguments as command_lines
from cfn_jax import command
from cfn_jax.jigsaw import task as jigsaw_task
from cfn_jax.timing import hardware, steps
from cfn_jax.training import devices, host_memory, settings

LIMITS = {
  'steps': (1, 10**6),
  'warmup': (0, 10**6),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options of this part."""
  steps.add_arguments(parser)
  add = parser.add_argument
  add('--steps', type=int, default=5, help='steps that are timed (default 5)')
  add('--warmup', type=int, default=5, help='steps before them (default 5: memory grows no more)')
  add('--precision', default='', help="default, tensorfloat32 or float32 (default: the config's)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
  """Times the step; returns the figures of the JSON line.

  Raises:
    ValueError: an option is impossible.
  """
  command_lines.check_numbers(arguments, LIMITS)
  config = steps.read_config(arguments, command.PUZZLES)
  with config.unlocked():
    config.matmul_precision = arguments.precision or config.matmul_precision
  k = config.model.permutations_per_pass
  host_memory.keep_freed()
  devices.check_platform()
  devices.set_precision(config.matmul_precision)
  pretext = steps.make_pretext(config)
  mesh = devices.make_mesh(config.num_devices)
  devices.check_batch(config.batch_size, mesh.size, field='--batch', parts=config.accumulate_steps)
  state, step = settings.start(jigsaw_task.make_task(config, pretext), config, mesh)
  batch = devices.put_batch(steps.make_batch(pretext, config.batch_size), mesh)

  with devices.explain_memory(config.to_dict()):
    began = time.perf_counter()
    compiled = step.lower(state, batch).compile()
    compile_seconds = time.perf_counter() - began
    times = []
    for _ in range(arguments.warmup + arguments.steps):
      began = time.perf_counter()
      state, report = compiled(state, batch)
      jax.block_until_ready((state, report))
      times.append(time.perf_counter() - began)
  seconds = float(np.median(times[arguments.warmup :]))
  flops = steps.count_flops(pretext)
  images_per_second = config.batch_size / seconds
  peak = hardware.find_peak(
    jax.devices()[0].device_kind, config.compute_dtype, config.matmul_precision
  )
  share = flops * images_per_second / (peak * mesh.size) if peak else 0.0
  return {
    'puzzles_per_second': images_per_second * k,
    'images_per_second': images_per_second,
    'seconds_per_step': seconds,
    'compile_seconds': compile_seconds,
    'flops_per_puzzle': flops / k,
    'flops_per_second': flops * images_per_second,
    'share_of_peak': share,  # 0: the peak is unknown
    'peak_memory_mb': peak_memory_mb(),
    'device': f'{mesh.size} x {jax.devices()[0].device_kind}',
    'batch': config.batch_size,
    'dtype': config.compute_dtype,
    'precision': config.matmul_precision,
    'remat': config.remat,
    'accumulate_steps': config.accumulate_steps,
    'config': arguments.config,
  }


def peak_memory_mb() -> float:
  """Returns the peak memory of the first device, or of the process if devices do not report it."""
  stats = jax.devices()[0].memory_stats() or {}
  if 'peak_bytes_in_use' in stats:
    return float(stats['peak_bytes_in_use'] / 2**20)
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
