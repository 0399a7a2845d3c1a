"""Measures the training step: all that a real step does on the device, on puzzles of noise.

Prints puzzles and images a second, the median seconds of a step, the time to compile it, the
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
import ml_collections
import numpy as np

from cfn_jax import command
from cfn_jax.data import pipeline, record
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import task as jigsaw_task
from cfn_jax.jigsaw import transform
from cfn_jax.models import figures
from cfn_jax.training import devices, host_memory, settings

LIMITS = {
  'steps': (1, 10**6),
  'warmup': (0, 10**6),
  'batch': (0, 2**20),
  'accumulate_steps': (0, 2**20),
  'permutations_per_pass': (0, 10**6),
}
# Dense peak, TFLOP/s: float32, tensorfloat32, bfloat16. Makers' data sheets; TPUs have one figure.
PEAKS = {
  'A100': (19.5, 156.0, 312.0),
  'H100': (67.0, 494.5, 989.0),
  'H200': (67.0, 494.5, 989.0),
  'TPU v4': (0.0, 0.0, 275.0),
  'TPU v5 lite': (0.0, 0.0, 197.0),
  'TPU v5p': (0.0, 0.0, 459.0),
  'TPU v6 lite': (0.0, 0.0, 918.0),
}


class Noise(record.Source):
  """A source of one image, for tasks that are never asked for a batch."""

  class_names: tuple[str, ...] = ()
  fingerprint = 'noise'
  description = 'noise'

  def __len__(self) -> int:
    return 1

  def __getitem__(self, index: int) -> record.Record:
    return record.Record(np.zeros((1, 1, 3), np.uint8), 'noise', -1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options of this part."""
  add = parser.add_argument
  add('--config', default='cfn', help='NAME or FILE.py, with :VARIANT (default: the paper)')
  add('--batch', type=int, default=0, help="images a step (default: the config's)")
  add('--steps', type=int, default=5, help='steps that are timed (default 5)')
  add('--warmup', type=int, default=5, help='steps before them (default 5: memory grows no more)')
  add('--dtype', default='', help="float32 or bfloat16 (default: the config's)")
  add('--precision', default='', help="default, tensorfloat32 or float32 (default: the config's)")
  add('--remat', action='store_true', help='compute the trunk again in the backward pass')
  add('--accumulate-steps', type=int, default=0, help="parts of a batch (default: the config's)")
  add('--permutations-per-pass', type=int, default=0, help="puzzles an image (default: config's)")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
  """Times the step; returns the figures of the JSON line.

  Raises:
    ValueError: options that no step can have.
  """
  config = command.load_config(arguments.config, tasks=command.PUZZLES)
  with config.unlocked():
    config.batch_size = arguments.batch or config.batch_size
    config.compute_dtype = arguments.dtype or config.compute_dtype
    config.matmul_precision = arguments.precision or config.matmul_precision
    config.remat = arguments.remat or config.remat
    config.accumulate_steps = arguments.accumulate_steps or config.accumulate_steps
    k = arguments.permutations_per_pass or config.model.permutations_per_pass
    config.model.permutations_per_pass = k
  for name, (least, largest) in LIMITS.items():
    value = getattr(arguments, name)
    if not least <= value <= largest:
      limit = f'at most {largest}' if value > largest else f'at least {least}'
      raise ValueError(f'--{name.replace("_", "-")}={value}: {limit}')
  host_memory.keep_freed()
  devices.check_platform()
  devices.set_precision(config.matmul_precision)
  pretext = make_pretext(config)
  mesh = devices.make_mesh()
  devices.check_batch(config.batch_size, mesh, field='--batch', parts=config.accumulate_steps)
  state, step = settings.start(jigsaw_task.make_task(config, pretext), config, mesh)
  batch = devices.put_batch(make_batch(config, pretext), mesh)

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
  flops = count_flops(pretext)
  images_per_second = config.batch_size / seconds
  peak = find_peak(jax.devices()[0].device_kind, config.compute_dtype, config.matmul_precision)
  share = flops * images_per_second / (peak * jax.device_count()) if peak else 0.0
  return {
    'puzzles_per_second': images_per_second * k,
    'images_per_second': images_per_second,
    'seconds_per_step': seconds,
    'compile_seconds': compile_seconds,
    'flops_per_puzzle': flops / k,
    'flops_per_second': flops * images_per_second,
    'share_of_peak': share,  # 0: the peak is not known
    'peak_memory_mb': peak_memory_mb(),
    'device': f'{jax.device_count()} x {jax.devices()[0].device_kind}',
    'batch': config.batch_size,
    'dtype': config.compute_dtype,
    'precision': config.matmul_precision,
    'remat': config.remat,
    'accumulate_steps': config.accumulate_steps,
    'config': arguments.config,
  }


def make_pretext(config: ml_collections.ConfigDict) -> pretexts.Pretext:
  """Builds the pretext task of a config without its data."""
  noise = pipeline.Reader(Noise(), seed=config.seed)
  return pretexts.make_pretext(config, lambda: (noise, noise))


def make_batch(
  config: ml_collections.ConfigDict, pretext: pretexts.Pretext
) -> dict[str, np.ndarray]:
  """Makes a batch of noise with labels."""
  rng = np.random.default_rng(0)
  geometry, k = pretext.visits.geometry, pretext.visits.puzzles
  shown = geometry.tiles if k > 1 else pretext.questions.shown
  shape = (config.batch_size, shown, geometry.tile_px, geometry.tile_px, 3)
  labels = rng.integers(len(pretext.questions), size=(config.batch_size, k), dtype=np.int32)
  tiles = rng.integers(256, size=shape, dtype=np.uint8)
  batch: dict[str, np.ndarray] = {'tiles': tiles}
  batch['label'] = labels[:, 0] if k == 1 else labels
  if most := pretext.visits.occluders:
    drawn = [transform.draw_occluders(geometry.tiles, most, rng) for _ in range(config.batch_size)]
    batch['occluders'] = np.stack(drawn)
  return batch


def count_flops(pretext: pretexts.Pretext) -> float:
  """Counts the operations of a step per image: two for each multiply-add, forward and backward.

  The backward pass costs twice the forward one, except in conv1, which needs no gradient of its
  input.
  """
  shapes = pretext.shapes()
  geometry, model, k = pretext.visits.geometry, pretext.model, pretext.visits.puzzles
  sides = figures.map_sides(geometry.tile_px, model.trunk.stride)
  passes = 1
  if hasattr(model, 'features'):
    passes = geometry.tiles if k > 1 else pretext.questions.shown
  total = 0.0
  for name, layer in shapes.items():
    weights = float(np.prod(layer['kernel'].shape))
    if name in sides:
      forward = 2 * weights * sides[name] ** 2 * passes
      total += forward * (2 if name == 'conv1' else 3)
    else:
      total += 3 * 2 * weights * (passes if name == 'fc6' else k)
  return total


def find_peak(kind: str, dtype: str, precision: str) -> float:
  """Returns the FLOP/s that one device of a kind can reach at most; 0 where it is not known.

  A TPU multiplies in bfloat16 passes, whatever the type.

  >>> find_peak('NVIDIA H100 80GB HBM3', 'bfloat16', 'default') / 1e12
  989.0
  """
  for name, peaks in PEAKS.items():
    if name in kind:
      if dtype == 'bfloat16' or not peaks[0]:
        return peaks[2] * 1e12
      return peaks[0 if precision == 'float32' else 1] * 1e12
  return 0.0


def peak_memory_mb() -> float:
  """Returns the peak memory of the first device, or of the process where devices do not tell."""
  stats = jax.devices()[0].memory_stats() or {}
  if 'peak_bytes_in_use' in stats:
    return float(stats['peak_bytes_in_use'] / 2**20)
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
