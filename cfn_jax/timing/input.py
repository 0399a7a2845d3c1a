"""Measures the loader: from files or records to batches of puzzles, as a training run makes them.

    python -m cfn_jax.benchmark input --images=DIR --workers=0
    python -m cfn_jax.benchmark input --images=DIR --workers=2 --puzzles-per-image=4

Prints puzzles per second. With `--workers=0` it also prints puzzles per second of CPU time, the
images that could be read and decoded alone in that time, and the share of each stage: reading,
decoding, making the puzzle (crop, grey, tiles, shuffle) and stacking the batch.
"""

import argparse
import dataclasses
import time
from typing import Any

import ml_collections
import numpy as np

from cfn_jax import arguments as command_lines
from cfn_jax import command, places
from cfn_jax.data import array_records, pipeline, sources, streams
from cfn_jax.errors import CfnError
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import transform

LIMITS = {'batch': (1, 2**16), 'seconds': (1e-3, 86_400), 'puzzles_per_image': (1, 10**6)}
STAGES = ('read', 'decode', 'puzzle', 'stack')


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options of this part."""
  add = parser.add_argument
  add('--images', action='place', required=True, help='folder of images, or of prepared records')
  add('--workers', type=int, default=0, help='loader processes (default 0: this one)')
  add('--seconds', type=float, default=10, help='how long to measure (default 10)')
  add('--batch', type=int, default=64, help='images per batch (default 64)')
  add('--config', default='cfn', help="whose puzzle to make (default: the paper's)")
  add('--puzzles-per-image', type=int, default=1, help='puzzles of each decoded image (default 1)')


def run(arguments: argparse.Namespace) -> dict[str, Any]:
  """Times the loader; returns the figures of the JSON line.

  Raises:
    CfnError: an option or the images are impossible.
  """
  command_lines.check_numbers(arguments, LIMITS)
  config = command.load_config(arguments.config, tasks=command.PUZZLES)
  reader, make = open_input(arguments.images, config)
  if arguments.puzzles_per_image > len(make.rows):
    raise CfnError(
      f'--puzzles-per-image={arguments.puzzles_per_image}: at most the {len(make.rows)} questions '
      'of the config'
    )
  loading = pipeline.Loading(num_workers=arguments.workers)
  figures: dict[str, Any] = {
    'images': len(reader.source),
    'workers': arguments.workers,
    'batch': arguments.batch,
    'puzzles_per_image': arguments.puzzles_per_image,
  }
  batches = pipeline.make_training_batches(
    reader,
    make,
    batch_size=arguments.batch,
    start_step=0,
    stop_step=1 << 40,
    group=arguments.puzzles_per_image,
    loading=loading,
  )
  for _ in range(2 * arguments.puzzles_per_image):
    next(batches)
  wall, cpu, count = time.perf_counter(), time.process_time(), 0
  while time.perf_counter() - wall < arguments.seconds:
    count += len(next(batches)['label'])
  wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
  batches.close()
  figures['puzzles_per_second'] = count / wall
  if not arguments.workers:
    figures['puzzles_per_cpu_second'] = count / cpu
    figures |= time_stages(reader, make, batch_size=arguments.batch, seconds=arguments.seconds / 2)
  return figures


def open_input(
  folder: str, config: ml_collections.ConfigDict
) -> tuple[pipeline.Reader, transform.MakePuzzle]:
  """Opens a folder of images or records with a config's puzzle."""
  is_prepared = (places.local(folder) / array_records.INDEX).is_file()
  kind = 'records' if is_prepared else 'folder'
  source, _ = sources.open_sources(source=kind, root=folder, val_fraction=0)
  reader = pipeline.Reader(source, seed=config.seed, min_side_px=config.puzzle.resize_px)
  pretext = pretexts.make_pretext(config, lambda: (reader, reader))
  return reader, dataclasses.replace(pretext.transform, puzzles=1, fixed_per_image=0)


def time_stages(
  reader: pipeline.Reader, make: transform.MakePuzzle, *, batch_size: int, seconds: float
) -> dict[str, float]:
  """Times the stages one by one in this thread, and reading and decoding alone."""
  spent = dict.fromkeys(STAGES, 0.0)
  done, began = 0, time.perf_counter()
  while time.perf_counter() - began < seconds:
    marks = [time.process_time()]
    places = range(done, done + batch_size)
    length = len(reader.source)
    indices = [streams.record_index(length, seed=reader.seed, position=p) for p in places]
    for index in indices:
      reader.source[index]
    marks.append(time.process_time())
    visits = [reader.train(place) for place in places]  # reads again, which is subtracted
    marks.append(time.process_time())
    examples = [make(visit) for visit in visits]
    marks.append(time.process_time())
    for name in examples[0]:
      np.stack([example[name] for example in examples])
    marks.append(time.process_time())
    steps = np.diff(marks)
    steps[1] = max(0.0, steps[1] - steps[0])
    for stage, step in zip(STAGES, steps):
      spent[stage] += float(step)
    done += batch_size
  total = sum(spent.values())
  shares = {f'{stage}_share': spent[stage] / total for stage in STAGES}
  return {'decode_per_cpu_second': done / (spent['read'] + spent['decode']), **shares}
