"""Applies a trained detection or segmentation to a folder of images.

    python -m cfn_jax.predict --workdir=runs/voc07_detection-small/pretrained --images=DIR --out=out
    python -m cfn_jax.predict --workdir=runs/voc12_segmentation/pretrained --images=DIR --out=masks

`--workdir` is the folder of one run. A detection writes the boxes of all images as JSON and in
VOC's text format, a segmentation a mask of each image as a palette PNG. Both write a picture of
each image. See docs/detection.md and docs/segmentation.md.
"""

import importlib

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
import ml_collections

from cfn_jax import arguments, command, places, terminal
from cfn_jax.buckets import reading
from cfn_jax.errors import CfnError
from cfn_jax.training import devices, step_folders, stopping
from cfn_jax.transfer import checkpoints

# The module with `predict` for each task whose networks apply to single images.
TASKS = {
  'voc_detection': 'cfn_jax.evaluation.detection.predict',
  'voc_segmentation': 'cfn_jax.evaluation.segmentation.predict',
}


@terminal.interruptible()
@terminal.short_errors()
def main(argv: list[str] | None = None) -> None:
  """Runs the command."""
  parser = arguments.Parser('cfn_jax.predict', __doc__)
  add = parser.add_argument
  add('--workdir', action='source', required=True, help='folder of the run that trained')
  add('--images', action='place', required=True, help='folder of images, read with its folders')
  add('--out', action='place', required=True, help='folder to write')
  add('--step', default='latest', help="'latest', 'best' or a number (default latest)")
  add('--proposals', help="detection: 'grid', 'segments' or a file (default: the run's, if grid)")
  add('--score', type=float, help='detection: least score of a box (default 0.5)')
  add('--batch', type=int, default=1, help='images at once (default 1)')
  flags = parser.parse(argv)
  arguments.check_numbers(flags, {'batch': (1, 2**20)})
  command.quiet_libraries()
  with reading.named():
    workdir = reading.local(flags.workdir, '--workdir')
    if flags.step != 'latest' and checkpoints.is_step(workdir):
      raise CfnError(f'--step={flags.step}: {flags.workdir} is one step already')
    folder = checkpoints.find_step(workdir, flags.step)
    meta = step_folders.read_meta(folder)
  config = ml_collections.ConfigDict(meta['config'])
  if config.task not in TASKS:
    raise CfnError(
      f'--workdir={flags.workdir} holds a run of {config.task}, which has no answer for an image; '
      f'one of {", ".join(TASKS)} is needed'
    )
  given = {
    name: value
    for name, value in (('proposals', flags.proposals), ('score', flags.score))
    if value is not None
  }
  if given and config.task != 'voc_detection':
    named = ', '.join(f'--{name}' for name in given)
    raise CfnError(f'{named}: of no effect for a run of {config.task}; leave it out')
  out = places.resolve(flags.out, '--out')
  places.make_folder(out, '--out')
  devices.check_platform()
  config.eval_batch_size = flags.batch
  module = importlib.import_module(TASKS[config.task])
  with stopping.ending(), reading.named():
    told = module.predict(
      folder,
      config,
      meta,
      images=places.local(flags.images, '--images'),
      out=out,
      **given,
    )
  terminal.answer(told)


if __name__ == '__main__':
  main()
