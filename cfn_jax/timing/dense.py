"""Measures a detection or a segmentation, by its config: a training step, and the test of an image.

    python -m cfn_jax.benchmark dense --config=voc07_detection:small
    python -m cfn_jax.benchmark dense --config=voc12_segmentation:small

Prints regions, or pixels, and images per second of both, the seconds of a step and of compiling,
and the peak memory. The images are noise of 500 x 375 px, at the largest scale.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
import jax
import numpy as np

from cfn_jax import arguments as command_lines
from cfn_jax.errors import CfnError
from cfn_jax.timing import step as step_timing
from cfn_jax.timing import steps
from cfn_jax.training import devices, host_memory, settings

LIMITS = {**step_timing.LIMITS, 'regions': (1, 10**6)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options of this part."""
  steps.add_arguments(parser)
  parser.set_defaults(config='voc07_detection')
  add = parser.add_argument
  add('--regions', type=int, help='detection: of a test image (default 2000)')
  add('--steps', type=int, default=5, help='steps, and images, that are timed (default 5)')
  add('--warmup', type=int, default=2, help='those before them (default 2)')


def run(arguments: argparse.Namespace) -> dict[str, Any]:
  """Times both; returns the figures of the JSON line.

  Raises:
    CfnError: an option is impossible.
  """
  command_lines.check_numbers(arguments, LIMITS)
  config = steps.read_config(arguments, steps.DENSE)
  host_memory.keep_freed()
  devices.check_platform()
  devices.set_precision(config.matmul_precision)
  if arguments.regions and config.task != 'voc_detection':
    raise CfnError(f'--regions={arguments.regions}: it is for a detection, not {config.task}')
  mesh = devices.make_mesh(config.num_devices)
  devices.check_batch(config.batch_size, mesh.size, field='--batch', parts=config.accumulate_steps)
  made = steps.make_dense(config, regions=arguments.regions or 2000)
  state, step = settings.start(made.run.task, config, mesh)
  rows, tested = (
    {name: np.repeat(value, count, axis=0) for name, value in row.items()}
    for row, count in ((made.train_row, config.batch_size), (made.test_row, mesh.size))
  )
  measure = jax.jit(made.run.passes[''].measure)

  def train(state: Any) -> Any:
    return step(state, devices.put_batch(rows, mesh))[0]

  def test(state: Any) -> Any:
    jax.block_until_ready(measure(state.params, devices.put_batch(tested, mesh)))
    return state

  with devices.explain_memory(config.to_dict()):
    state, compile_train, train_seconds = _time(train, state, arguments)
    _, compile_test, test_seconds = _time(test, state, arguments)
  images, tests = config.batch_size / train_seconds, mesh.size / test_seconds
  return {
    'train_images_per_second': images,
    f'train_{made.unit}_per_second': images * made.train_units,
    'seconds_per_step': train_seconds,
    'test_images_per_second': tests,
    f'test_{made.unit}_per_second': tests * made.test_units,
    'compile_seconds': {'train': compile_train, 'test': compile_test},
    'canvas': list(made.train_row['image'].shape[-3:-1]),
    'peak_memory_mb': step_timing.peak_memory_mb(),
    'device': f'{mesh.size} x {jax.devices()[0].device_kind}',
    'batch': config.batch_size,
    'dtype': config.compute_dtype,
    'config': arguments.config,
  }


def _time(
  call: Callable[[Any], Any], state: Any, arguments: argparse.Namespace
) -> tuple[Any, float, float]:
  """Returns the state, the seconds of the first call, and the median of the timed ones."""
  times = []
  for _ in range(1 + arguments.warmup + arguments.steps):
    began = time.perf_counter()
    state = jax.block_until_ready(call(state))
    times.append(time.perf_counter() - began)
  return state, times[0], float(np.median(times[1 + arguments.warmup :]))
