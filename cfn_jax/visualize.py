"""Draws pictures without training, and reports what runs have found.

    python -m cfn_jax.visualize puzzles --config=configs/cfn.py:tiny --out=puzzles.png
    python -m cfn_jax.visualize shortcuts --config=configs/cfn.py:small --config.data.root=DIR
    python -m cfn_jax.visualize filters --weights=runs/cfn,runs/other --out=filters.png
    python -m cfn_jax.visualize units --weights=runs/cfn --images=DIR --out=units.png
    python -m cfn_jax.visualize report --workdir=runs/photos
    python -m cfn_jax.visualize PART --help

`puzzles`: the first puzzles of a run with this config, beside their images; `shortcuts`: how many
puzzles of a config simple cues solve, with its measures and without; `filters`: conv1's filters;
`units`: the tiles that units of conv1 .. conv5 respond to; `report`: one page of runs and
evaluations, while they train too. See docs/pictures.md and docs/report.md.
"""

import argparse
import contextlib
import functools
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
import ml_collections
from absl import app, flags

from cfn_jax import arguments as command_lines
from cfn_jax import command, places, terminal
from cfn_jax.buckets import addresses, reading
from cfn_jax.data import feed, folder, listing, pipeline
from cfn_jax.errors import CfnError
from cfn_jax.evaluation.frozen import responses, units
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw.shortcuts import meter, report
from cfn_jax.pictures import figures, filters
from cfn_jax.pictures import run as run_pictures
from cfn_jax.pictures import shortcuts as shortcut_pictures
from cfn_jax.pictures import units as unit_pictures
from cfn_jax.report import folders, page
from cfn_jax.training import devices
from cfn_jax.transfer import checkpoints, files
from cfn_jax.transfer import weights as weights_lib

PUZZLES = """Draws the first puzzles that a run with a config would train on, beside their images.

    python -m cfn_jax.visualize puzzles --config=configs/cfn.py:tiny --out=puzzles.png
    python -m cfn_jax.visualize puzzles --config=cfn:small --config.data.root=DIR
"""
SHORTCUTS = """Measures how many puzzles of a config simple cues solve, without a network.

    python -m cfn_jax.visualize shortcuts --config=configs/cfn.py:small --config.data.root=DIR
    python -m cfn_jax.visualize shortcuts --config=cfn:tiny --count=500 --out=shortcuts.png

Needs `pip install -e '.[svm]'`. See docs/pictures.md.
"""
FILTERS = """Draws conv1's filters in colour, on one scale that is grey at 0.

    python -m cfn_jax.visualize filters --weights=runs/cfn,runs/other --out=filters.png

Each path names a workdir, a step, or a file of weights. The networks stand one below the other.
"""
UNITS = f"""Draws for units of conv1 .. conv5 the {responses.TOP} tiles that activate them most.

    python -m cfn_jax.visualize units --weights=runs/cfn --images=DIR --out=units.png

Random tiles of each image are shown to the network; a unit's response is the mean of its map.
Without --units six of each layer are picked: {responses.RULE}.
The names of the images and the places of the tiles are written beside the picture, as JSON.
"""
REPORT = """Writes one page of runs and evaluations: status, settings, curves, pictures, tables.

    python -m cfn_jax.visualize report --workdir=runs/photos
    python -m cfn_jax.visualize report --workdir=runs/photos,runs/no_grey --out=compared.html

Workdirs are only read, so a run may be training in them. See docs/report.md.
"""

Holder = flags.FlagHolder[ml_collections.ConfigDict]


@terminal.interruptible()
@terminal.short_errors()
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the part of the command line that is named, with the other arguments."""
  argv = list(sys.argv[1:] if argv is None else argv)
  at = next((number for number, each in enumerate(argv) if each in PARTS), 0)
  parser = command_lines.Parser('cfn_jax.visualize', __doc__, usage='PART [options]')
  parser.add_argument('part', choices=PARTS)
  part = parser.parse(argv[at : at + 1]).part
  PARTS[part](argv[:at] + argv[at + 1 :])


def draw_puzzles(argv: list[str]) -> None:
  """Draws the puzzles of a config."""
  _read_config('puzzles', PUZZLES, _draw_puzzles, argv)


def _draw_puzzles(holder: Holder, arguments: list[str]) -> None:
  out = _open_config(holder, arguments, command.PUZZLES)
  pretext = pretexts.open_pretext(holder.value, evaluated=False)
  with _writing(out):
    run_pictures.draw_training_puzzles(out, pretext)
  terminal.say(f'{out}: {pretext.training.source.description}')


def draw_shortcuts(argv: list[str]) -> None:
  """Measures how many puzzles of a config the cues solve."""
  flags.DEFINE_integer('count', 2000, 'puzzles, one per image (default 2000)')
  _read_config('shortcuts', SHORTCUTS, _draw_shortcuts, argv)


def _draw_shortcuts(holder: Holder, arguments: list[str]) -> None:
  out, count = _open_config(holder, arguments, ('jigsaw',)), flags.FLAGS.count
  if not 1 <= count <= 10**6:
    terminal.fail(f'--count={count}: from 1 to 1000000 puzzles')
  figures.make(1, 1)  # fails before the work if there is no backend
  pretext = pretexts.open_pretext(holder.value, evaluated=False)
  found = meter.measure(holder.value, pretext, count)
  with _writing(out):
    shortcut_pictures.draw_shortcuts(out, found)
  named = {'config': command.config_text(holder), 'images': pretext.training.source.description}
  places.write_json(out.with_suffix('.json'), named | found, indent=1)
  report.show(found)
  terminal.answer(f'{out} and {out.with_suffix(".json").name}: {named["images"]}')


def _read_config(
  part: str, about: str, draw: Callable[[Holder, list[str]], None], argv: list[str]
) -> None:
  """Reads the flags of a part that takes a config by absl, as `--config.FIELD` needs."""
  holder = command.define_config()
  out = f'{part}.png'
  flags.DEFINE_string('out', out, f'picture to write (default {out})')
  parse = functools.partial(command.parse_flags, prog=f'cfn_jax.visualize {part}', about=about)
  app.run(functools.partial(draw, holder), [sys.argv[0], *argv], flags_parser=parse)


def _open_config(holder: Holder, arguments: list[str], tasks: Sequence[str]) -> pathlib.Path:
  """Checks the command line of a part that takes a config; returns the picture to write."""
  command.quiet_libraries()
  if arguments[1:]:
    terminal.fail(f"'{arguments[1]}' is no flag: flags begin with --")
  out = _check_out(flags.FLAGS.out)
  command.check_task(holder.value, command.config_text(holder), tasks)
  command.refuse_idle(holder)
  devices.check_platform()
  return out


def draw_filters(argv: list[str]) -> None:
  """Draws conv1's filters of one network or several."""
  parser = _make_parser('filters', FILTERS, 'filters.png')
  given = parser.parse(argv)
  out = _check_out(given.out)
  shown = []
  for path in places.split(given.weights, '--weights'):
    weights = _load_weights(path, given)
    seen = weights.input.see(weights.params['conv1']['kernel'])
    shown.append(filters.Filters(path, seen, weights.groups[1]))
  with _writing(out):
    filters.draw_filters(out, shown)
  terminal.answer(*(f'{one.name}: {one.describe()}' for one in shown), str(out))


def _load_weights(path: str, given: argparse.Namespace) -> weights_lib.Weights:
  """Reads the weights that the flags choose; refuses a choice among those of a single file."""
  file = files.find_file(reading.local(path))
  for flag, value in (('step', given.step), ('collection', given.collection)):
    if value not in ('latest', 'params') and file.is_file():
      raise CfnError(f'--{flag}={value}: {path} is one file of weights, without steps or averages')
  if given.step != 'latest' and checkpoints.is_step(file):
    raise CfnError(f'--step={given.step}: {path} is one step already')
  return files.load_weights(path, step=given.step, collection=given.collection)


def draw_units(argv: list[str]) -> None:
  """Draws the tiles that units respond to."""
  parser = _make_parser('units', UNITS, 'units.png')
  add = parser.add_argument
  add('--images', action='place', required=True, help='folder of images, read with its folders')
  add('--tiles', type=int, default=20, help='random tiles of each image (default 20)')
  add('--tile-px', type=int, default=0, help="side of a tile (default: pretraining's, else 64)")
  add('--short-side', type=int, default=0, help="of an image, px (default: pretraining's)")
  add('--units', action='append', default=[], help='LAYER:N,N instead of six of each; repeatable')
  add('--seed', type=int, default=0, help='draws the tiles')
  add('--batch', type=int, default=16, help='images at once (default 16)')
  given = parser.parse(argv)
  limits = {'tiles': (1, 10_000), 'tile_px': (0, 5000), 'short_side': (0, 65_500)}
  command_lines.check_numbers(given, limits | {'seed': (0, 2**63 - 1), 'batch': (1, 2**20)})
  out = _check_out(given.out)
  devices.check_platform()
  weights = _load_weights(given.weights, given)
  with weights_lib.named_errors(given.weights):
    cut = units.make_cut(weights, given.tiles, tile_px=given.tile_px, resize_px=given.short_side)
    chosen = units.read_choice(given.units, weights)
  images = places.local(given.images, '--images')
  source = folder.labelled(images, listing.list_images(images), ())
  reader = pipeline.Reader(source, seed=given.seed, on_bad_image='skip')
  fed = feed.Feed(reader, cut, pipeline.Loading(), given.batch)
  fed.bad.open(out.parent, out.stem)
  found = units.find_units(weights, fed, chosen)
  with _writing(out):
    unit_pictures.draw_units(out, found.layers, title=f'{given.weights}: {found.describe()}')
  places.write_json(
    out.with_suffix('.json'), found.to_json() | {'weights': given.weights}, indent=1
  )
  told = fed.bad.describe()
  terminal.answer(f'{out} and {out.with_suffix(".json").name}: {found.describe()}{told}')


def _make_parser(part: str, about: str, out: str) -> command_lines.Parser:
  """Makes the parser of a part that draws from weights."""
  parser = command_lines.Parser(f'cfn_jax.visualize {part}', about)
  add = parser.add_argument
  add('--weights', action='source', required=True, help='workdir, step or file')
  add('--step', default='latest', help="of a workdir: 'latest', 'best' or a number")
  add('--collection', default='params', choices=('params', 'ema'), help='which of a checkpoint')
  add('--out', action='place', default=out, help=f'picture to write (default {out})')
  return parser


def _check_out(text: str) -> pathlib.Path:
  """Returns the picture to write, and makes its folder.

  Raises:
    CfnError: the name of no picture, or a folder that cannot be made.
  """
  out = places.local(text, '--out')
  if out.suffix.lower() not in ('.png', '.pdf', '.svg', '.jpg'):
    raise CfnError(f'--out={out}: the name must end in .png, .pdf, .svg or .jpg')
  places.make_folder(out.parent, '--out')
  return out


@contextlib.contextmanager
def _writing(out: pathlib.Path) -> Iterator[None]:
  """Adds the picture to an error of the disk."""
  try:
    yield
  except OSError as error:
    if error.filename != str(out):
      raise
    raise places.PlaceError(f'--out={out} cannot be written: {error.strerror}') from None


def write_report(argv: list[str]) -> None:
  """Writes the report of workdirs."""
  parser = command_lines.Parser('cfn_jax.visualize report', REPORT)
  add = parser.add_argument
  add('--workdir', action='source', required=True, help='folders of runs, separated by commas')
  add('--out', action='place', help=f'page to write (of one workdir: WORKDIR/{folders.PAGE})')
  given = parser.parse(argv)
  parts = places.split(given.workdir, '--workdir')
  for part in parts:
    places.check({'--workdir': part}, given=True, addresses=('--workdir',))
  found = [reading.local(part, '--workdir') for part in parts]
  workdirs = list({places.resolve(str(path), '--workdir'): path for path in found}.values())
  if not given.out and len(workdirs) > 1:
    terminal.fail('--out is needed with several workdirs: name the page to write, FILE.html')
  out = places.local(given.out or workdirs[0] / folders.PAGE, '--out')
  if out.suffix.lower() not in ('.html', '.htm'):
    terminal.fail(f'--out={out}: the name must end in .html')
  with reading.named():
    page.write(workdirs, out)
  if not given.out and places.is_address(parts[0]):
    reading.send(out)
  terminal.say(f'{addresses.show(out)}: {out.stat().st_size / 1e6:.1f} MB')


# Each reads its own arguments; the name of the part is not among them.
PARTS: dict[str, Callable[[list[str]], None]] = {
  'filters': draw_filters,
  'puzzles': draw_puzzles,
  'report': write_report,
  'shortcuts': draw_shortcuts,
  'units': draw_units,
}


if __name__ == '__main__':
  main()
