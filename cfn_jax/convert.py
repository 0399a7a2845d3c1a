"""Carries weights out of a run and in from other programs: PyTorch, Caffe, safetensors, NumPy.

    python -m cfn_jax.convert --checkpoint=runs/photos --to=pytorch --out=exported
    python -m cfn_jax.convert --from=bvlc_reference_caffenet.caffemodel --out=caffenet
    python -m cfn_jax.convert --from=model.pth --to=caffe --out=exported

`--checkpoint` names a run's workdir, a step of it, or a file of weights, here or in a bucket.
`--from` reads a foreign file. Without `--to` the output is a folder of weights that every tool here
accepts. See docs/weights.md.
"""

import argparse
import pathlib

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
import jax

from cfn_jax import arguments, command, places, terminal
from cfn_jax.buckets import reading
from cfn_jax.models import figures, inputs
from cfn_jax.transfer import cards, checkpoints, export, files, surgery
from cfn_jax.transfer import weights as weights_lib


def make_parser() -> arguments.Parser:
  """Defines the command line."""
  parser = arguments.Parser('cfn_jax.convert', __doc__)
  add = parser.add_argument
  source = parser.add_mutually_exclusive_group(required=True)
  source.add_argument(
    '--checkpoint', action='source', default='', help='workdir, step or file; this or --from'
  )
  source.add_argument(
    '--from',
    action='source',
    dest='source',
    default='',
    help='file of another program; this or --checkpoint',
  )
  add('--out', action='place', required=True, help='folder to write')
  add('--to', default='', choices=('', *export.FORMATS), help='format; needed with --checkpoint')
  add(
    '--model', default='', choices=('', 'alexnet', 'cfn'), help='default: alexnet, or as --from is'
  )
  add('--step', default='latest', help="of a workdir: a number, 'latest' or 'best'")
  add('--weights', default='params', choices=('params', 'ema'), help='which of a checkpoint')
  add('--input', default='', choices=('', 'keep', *inputs.RECORDS), help='fold it into conv1')
  add('--stride', type=int, default=0, help="conv1's; 0: 4 for AlexNet, 2 for a CFN, as --from is")
  add('--classes', type=int, default=0, help='outputs of fresh fc6..fc8; 0: trunk alone')
  add('--fc-init', default='', choices=('', *surgery.FC_INITS), help="how those start: 'bias'")
  add('--seed', type=int, default=0, help='draws them')
  add('--names', default='', choices=export.NAMES, help="'vissl': keys of VISSL's trunks")
  add('--from-input', default='', choices=('', *inputs.RECORDS), help='what the file expects')
  add('--from-order', default='', choices=('', *figures.ORDERS), help='where it does not say')
  add('--from-stride', type=int, default=0, help='where it does not say')
  add('--overwrite', action='store_true', help='replace a folder that this command wrote')
  return parser


@terminal.interruptible()
@terminal.short_errors()
def main(argv: list[str] | None = None) -> None:
  """Runs the command."""
  flags = make_parser().parse(argv)
  command.quiet_libraries()
  for flag in ('jax_platforms', 'jax_platform_name'):
    jax.config.update(flag, 'cpu')
  out = places.local(flags.out)
  if flags.checkpoint and not flags.to:
    raise weights_lib.WeightsError(f'--to is needed: one of {", ".join(export.FORMATS)}')
  largest = {'classes': 10**6, 'seed': 2**63 - 1, 'stride': 11, 'from_stride': 11}
  arguments.check_numbers(flags, {name: (0, most) for name, most in largest.items()})
  check_surgery(flags)
  to = flags.to or 'npz'
  export.check(out, to, names=flags.names, overwrite=flags.overwrite)
  check_source(flags)
  assumed = files.Assumed(flags.from_input, flags.from_order, flags.from_stride)
  loaded = files.load_weights(
    flags.checkpoint or flags.source,
    step=flags.step,
    collection=flags.weights,
    assumed=assumed,
  )
  weights = shape_network(loaded, flags)
  made = export.save_folder(weights, out, to, names=flags.names, overwrite=flags.overwrite)
  _report(loaded, weights, out, made)


def check_surgery(flags: argparse.Namespace) -> None:
  """Raises WeightsError for flags of fresh layers if none are drawn."""
  if flags.classes and _choose_model(flags) != 'alexnet':
    raise weights_lib.WeightsError(
      f"--classes={flags.classes}: fresh layers are AlexNet's alone: they come with --model=alexnet"
    )
  for name in ('fc_init', 'seed'):
    value = getattr(flags, name)
    if value and not flags.classes:
      raise weights_lib.WeightsError(
        f'--{name.replace("_", "-")}={value}: it is about fresh layers, which come with '
        '--model=alexnet --classes=N'
      )


def check_source(flags: argparse.Namespace) -> None:
  """Raises WeightsError for flags that the given source does not use."""
  path = reading.local(flags.checkpoint or flags.source)
  if not path.exists():
    return  # the reader reports it
  file = files.find_file(path)
  if file.is_dir():
    given = {
      '--from-input': flags.from_input,
      '--from-order': flags.from_order,
      '--from-stride': flags.from_stride,
    }
    reason = f'{path} holds checkpoints, which say it themselves'
    if checkpoints.is_step(path) and flags.step != 'latest':
      raise weights_lib.WeightsError(f'--step={flags.step}: {path} is one step already')
  else:
    given = {
      '--step': '' if flags.step == 'latest' else flags.step,
      '--weights': '' if flags.weights == 'params' else flags.weights,
    }
    reason = f'{file} is one file of weights, without steps or averages'
  for name, value in given.items():
    if value:
      raise weights_lib.WeightsError(f'{name}={value}: {reason}')


def _choose_model(flags: argparse.Namespace) -> str:
  """Returns the requested network; '': that of the source."""
  return flags.model or ('alexnet' if flags.checkpoint else '')


def shape_network(weights: weights_lib.Weights, flags: argparse.Namespace) -> weights_lib.Weights:
  """Applies the surgery that the flags ask for."""
  model = _choose_model(flags)
  if model == 'alexnet' and (weights.kind != 'alexnet' or flags.classes):
    weights = surgery.to_alexnet(
      weights,
      num_classes=flags.classes,
      fc_init=flags.fc_init or 'bias',
      seed=flags.seed,
      stride=flags.stride or 4,
    )
  elif model == 'cfn' and weights.kind != 'cfn':
    weights = surgery.to_cfn_trunk(weights, stride=flags.stride or 2)
  elif flags.stride and flags.stride != weights.stride:
    if 'fc6' in weights.params:
      raise weights_lib.WeightsError(
        f'--stride={flags.stride}: fc6 was made for stride {weights.stride}; fresh layers come '
        'with --model=alexnet --classes=N'
      )
    weights = weights.replace(stride=flags.stride)
  # Caffe's tools feed BGR 0..255 minus a mean, whatever a model card says.
  asked = flags.input or ('caffe' if flags.to == 'caffe' and weights.kind != 'cfn' else 'keep')
  return weights if asked == 'keep' else surgery.fold_input(weights, asked)


def _report(
  loaded: weights_lib.Weights,
  weights: weights_lib.Weights,
  out: pathlib.Path,
  made: list[str],
) -> None:
  terminal.answer(f'{out}: {", ".join(made)}')
  groups = ', '.join(map(str, weights.groups))
  terminal.answer(
    f'{weights.kind}: {weights.order}, conv1 stride {weights.stride}, groups {groups}; '
    f'{surgery.compare(loaded, weights)}'
  )
  terminal.answer(f'input: {cards.describe_input(weights.input)}')
  for note in weights.origin.get('notes', []):
    terminal.answer(f'note: {note}')


if __name__ == '__main__':
  main()
