"""Draws pictures without training, and reports what runs have found.

`python -m cfn_jax.visualize puzzles --config=FILE.py:VARIANT --out=FILE.png` draws the first
puzzles that a run with this config would train on, beside their images.

`python -m cfn_jax.visualize report --workdir=A[,B] [--out=FILE.html]` writes one page of runs and
evaluations, while they train too. `python -m cfn_jax.visualize PART --help` lists the options of a
part.
"""

import functools
import sys
from collections.abc import Callable, Sequence

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
import ml_collections
from absl import app, flags

from cfn_jax import arguments as command_lines
from cfn_jax import command, places, terminal
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.pictures import run as run_pictures
from cfn_jax.report import folders, page
from cfn_jax.training import devices


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
  """Draws the puzzles of a config; its flags are read by absl, as `--config.FIELD` needs."""
  holder = command.define_config()
  flags.DEFINE_string('out', 'puzzles.png', 'The picture to write.')
  draw = functools.partial(_draw_puzzles, holder)
  app.run(draw, [sys.argv[0], *argv], flags_parser=command.parse_flags)


def _draw_puzzles(
  holder: flags.FlagHolder[ml_collections.ConfigDict], arguments: list[str]
) -> None:
  command.quiet_libraries()
  if arguments[1:]:
    terminal.fail(f"'{arguments[1]}' is no flag: flags begin with --")
  out = places.local(flags.FLAGS.out, '--out')
  if out.suffix.lower() not in ('.png', '.pdf', '.svg', '.jpg'):
    terminal.fail(f'--out={out}: the name must end in .png, .pdf, .svg or .jpg')
  command.check_task(holder.value, command.config_text(holder), command.PUZZLES)
  command.refuse_idle(holder)
  devices.check_platform()
  pretext = pretexts.open_pretext(holder.value, evaluated=False)
  places.make_folder(out.parent, '--out')
  try:
    run_pictures.draw_training_puzzles(out, pretext)
  except OSError as error:
    if error.filename != str(out):
      raise
    raise places.PlaceError(f'--out={out} cannot be written: {error.strerror}') from None
  terminal.say(f'{out}: {pretext.training.source.description}')


_REPORT = """Writes one page of runs and evaluations: status, settings, curves, pictures, tables.

    python -m cfn_jax.visualize report --workdir=A[,B] [--out=FILE.html]

Workdirs are only read, so a run may be training in them. See docs/report.md.
"""


def write_report(argv: list[str]) -> None:
  """Writes the report of workdirs."""
  parser = command_lines.Parser('cfn_jax.visualize report', _REPORT)
  add = parser.add_argument
  add('--workdir', action='place', required=True, help='folders of runs, separated by commas')
  add('--out', action='place', help=f'page to write (of one workdir: WORKDIR/{folders.PAGE})')
  given = parser.parse(argv)
  # A name that holds a comma is one folder where it is there.
  parts = [given.workdir] if places.local(given.workdir).is_dir() else given.workdir.split(',')
  for part in parts:
    places.check({'--workdir': part}, given=True)
  named = {places.resolve(part, '--workdir'): places.local(part, '--workdir') for part in parts}
  workdirs = list(named.values())
  if not given.out and len(workdirs) > 1:
    terminal.fail('--out is needed with several workdirs: name the page to write, FILE.html')
  out = places.local(given.out or workdirs[0] / folders.PAGE, '--out')
  if out.suffix.lower() not in ('.html', '.htm'):
    terminal.fail(f'--out={out}: the name must end in .html')
  page.write(workdirs, out)
  terminal.say(f'{out}: {out.stat().st_size / 1e6:.1f} MB')


# Each reads its own arguments; the name of the part is not among them.
PARTS: dict[str, Callable[[list[str]], None]] = {'puzzles': draw_puzzles, 'report': write_report}


if __name__ == '__main__':
  main()
