"""Draws pictures without training.

    python -m cfn_jax.visualize puzzles --config=FILE.py:VARIANT --out=FILE.png
    python -m cfn_jax.visualize shortcuts --config=FILE.py:VARIANT --out=FILE.png
    python -m cfn_jax.visualize filters --weights=PATH[,PATH] --out=FILE.png
    python -m cfn_jax.visualize units --weights=PATH --images=DIR --out=FILE.png

`puzzles`: the first puzzles that a run with this config would train on, beside their images;
`shortcuts`: how many puzzles of a config cues such as edges solve, with its measures and without;
`filters`: conv1's filters; `units`: the tiles that units of conv1 .. conv5 respond to. Each has
`--help`. See docs/pictures.md.
"""

import contextlib
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
from absl import app, flags

from cfn_jax import arguments as command_lines
from cfn_jax import command, places, terminal
from cfn_jax.data import own_images, pipeline
from cfn_jax.errors import CfnError
from cfn_jax.evaluation.frozen import responses, units
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw.shortcuts import meter, report
from cfn_jax.pictures import figures, filters
from cfn_jax.pictures import run as run_pictures
from cfn_jax.pictures import shortcuts as shortcut_pictures
from cfn_jax.pictures import units as unit_pictures
from cfn_jax.training import devices
from cfn_jax.transfer import files, surgery
from cfn_jax.transfer import weights as weights_lib

FILTERS = """Draws conv1's filters in colour, on one scale that is grey at 0.

    python -m cfn_jax.visualize filters --weights=runs/cfn,runs/other --out=filters.png

Each path names a workdir, a step, or a file of weights; the networks stand one below the other.
"""
UNITS = f"""Draws for units of conv1 .. conv5 the {responses.TOP} tiles that move them most.

    python -m cfn_jax.visualize units --weights=runs/cfn --images=DIR --out=units.png

Random tiles of each image are shown to the network; a unit's response is the mean of its map.
Without --units six of each layer are picked: {responses.RULE}.
The names of the images and the places of the tiles are written beside the picture, as JSON.
"""
CONFIG = command.define_config()
OUT = flags.DEFINE_string('out', '', 'The picture to write; puzzles.png or shortcuts.png.')
COUNT = flags.DEFINE_integer('count', 2000, 'shortcuts: puzzles, each of an image of its own.')


@terminal.interruptible()
@terminal.short_errors()
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the part of the command line that is named, with the other arguments."""
  argv = list(sys.argv[1:] if argv is None else argv)
  at = next((number for number, each in enumerate(argv) if each in PARTS), 0)
  parser = command_lines.Parser('cfn_jax.visualize', __doc__)
  parser.add_argument('part', choices=PARTS)
  part = parser.parse(argv[at : at + 1]).part
  PARTS[part](argv[:at] + argv[at + 1 :])


def draw_puzzles(argv: list[str]) -> None:
  """Draws the puzzles of a config; `--config.FIELD` is read by absl."""
  app.run(_draw_puzzles, [sys.argv[0], *argv], flags_parser=command.parse_flags)


def _draw_puzzles(arguments: list[str]) -> None:
  if flags.FLAGS['count'].present:
    terminal.fail(f'--count={COUNT.value}: it is for shortcuts')
  out = _open_config(arguments, 'puzzles.png', command.PUZZLES)
  pretext = pretexts.open_pretext(CONFIG.value, evaluated=False)
  with _writing(out):
    run_pictures.draw_training_puzzles(out, pretext)
  terminal.say(f'{out}: {pretext.training.source.description}')


def draw_shortcuts(argv: list[str]) -> None:
  """Measures what cues solve of a config's puzzles; `--config.FIELD` is read by absl."""
  app.run(_draw_shortcuts, [sys.argv[0], *argv], flags_parser=command.parse_flags)


def _draw_shortcuts(arguments: list[str]) -> None:
  out = _open_config(arguments, 'shortcuts.png', ('jigsaw',))
  if not 1 <= COUNT.value <= 10**6:
    terminal.fail(f'--count={COUNT.value}: from 1 to 1000000 puzzles')
  figures.make(1, 1)  # a backend that there is not is told before the work
  pretext = pretexts.open_pretext(CONFIG.value, evaluated=False)
  found = meter.measure(CONFIG.value, pretext, COUNT.value)
  with _writing(out):
    shortcut_pictures.draw_shortcuts(out, found)
  named = {'config': command.config_text(CONFIG), 'images': pretext.training.source.description}
  places.write_json(out.with_suffix('.json'), named | found, indent=1)
  report.show(found)
  terminal.answer(f'{out} and {out.with_suffix(".json").name}: {named["images"]}')


def _open_config(arguments: list[str], default: str, tasks: Sequence[str]) -> pathlib.Path:
  """Checks the command line of a part that takes a config; returns the picture to write."""
  command.quiet_libraries()
  if arguments[1:]:
    terminal.fail(f"'{arguments[1]}' is no flag: flags begin with --")
  out = _check_out(OUT.value or default)
  command.check_task(CONFIG.value, command.config_text(CONFIG), tasks)
  command.refuse_idle(CONFIG)
  devices.check_platform()
  return out


def draw_filters(argv: list[str]) -> None:
  """Draws conv1's filters of one network or several."""
  parser = _make_parser('filters', FILTERS, 'filters.png')
  flags = parser.parse(argv)
  out = _check_out(flags.out)
  shown = []
  for path in flags.weights.split(','):
    weights = files.load_weights(path, step=flags.step, collection=flags.collection)
    shown.append(filters.Filters(path, surgery.see_filters(weights), weights.groups[1]))
  with _writing(out):
    filters.draw_filters(out, shown)
  terminal.answer(*(f'{one.name}: {one.describe()}' for one in shown), str(out))


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
  flags = parser.parse(argv)
  limits = {'tiles': (1, 10_000), 'tile_px': (0, 5000), 'short_side': (0, 65_500)}
  command_lines.check_numbers(flags, limits | {'seed': (0, 2**63 - 1), 'batch': (1, 2**20)})
  out = _check_out(flags.out)
  devices.check_platform()
  weights = files.load_weights(flags.weights, step=flags.step, collection=flags.collection)
  with weights_lib.named_errors(flags.weights):
    cut = units.make_cut(weights, flags.tiles, tile_px=flags.tile_px, resize_px=flags.short_side)
    chosen = units.read_choice(flags.units, weights)
  source, bad = own_images.open_decodable(places.local(flags.images, '--images'))
  reader = pipeline.Reader(source, seed=flags.seed)
  found = units.find_units(weights, reader, cut, chosen, batch_size=flags.batch)
  with _writing(out):
    unit_pictures.draw_units(out, found.layers, title=f'{flags.weights}: {found.describe()}')
  places.write_json(
    out.with_suffix('.json'), found.to_json() | {'weights': flags.weights}, indent=1
  )
  told = f'; {bad:,} could not be decoded' if bad else ''
  terminal.answer(f'{out} and {out.with_suffix(".json").name}: {found.describe()}{told}')


def _make_parser(part: str, about: str, out: str) -> command_lines.Parser:
  """Makes the parser of a part that draws from weights."""
  parser = command_lines.Parser(f'cfn_jax.visualize {part}', about)
  add = parser.add_argument
  add('--weights', action='place', required=True, help='workdir, step or file')
  add('--step', default='latest', help="of a workdir: 'latest', 'best' or a number")
  add('--collection', default='params', choices=('params', 'ema'), help='which of a checkpoint')
  add('--out', action='place', default=out, help=f'picture to write (default {out})')
  return parser


def _check_out(text: str) -> pathlib.Path:
  """Returns the picture to write, in a folder that there is.

  Raises:
    CfnError: no picture's name, or a folder that cannot be made.
  """
  out = places.local(text, '--out')
  if out.suffix.lower() not in ('.png', '.pdf', '.svg', '.jpg'):
    raise CfnError(f'--out={out}: the name must end in .png, .pdf, .svg or .jpg')
  places.make_folder(out.parent, '--out')
  return out


@contextlib.contextmanager
def _writing(out: pathlib.Path) -> Iterator[None]:
  """Names the picture in the error of a disk."""
  try:
    yield
  except OSError as error:
    if error.filename != str(out):
      raise
    raise places.PlaceError(f'--out={out} cannot be written: {error.strerror}') from None


# Each reads its own arguments; the name of the part is not among them.
PARTS: dict[str, Callable[[list[str]], None]] = {
  'filters': draw_filters,
  'puzzles': draw_puzzles,
  'shortcuts': draw_shortcuts,
  'units': draw_units,
}


if __name__ == '__main__':
  main()
