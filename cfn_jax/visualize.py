"""Draws pictures without training.

`python -m cfn_jax.visualize puzzles --config=FILE.py:VARIANT --out=FILE.png` draws the first
puzzles that a run with this config would train on, beside their images.
"""

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
from absl import app, flags

from cfn_jax import command, places, terminal
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.pictures import run as run_pictures
from cfn_jax.training import devices

CONFIG = command.define_config()
OUT = flags.DEFINE_string('out', 'puzzles.png', 'The picture to write.')
PICTURES = ('puzzles',)


@terminal.interruptible()
@terminal.short_errors()
def main(arguments: list[str]) -> None:
  """Reads the flags and draws."""
  command.quiet_libraries()
  picture = arguments[1] if len(arguments) == 2 else ''
  if picture not in PICTURES:
    given = ' '.join(arguments[1:]) or 'nothing'
    terminal.fail(f'asked to draw {given}: name one of {", ".join(PICTURES)}')
  out = places.local(OUT.value, '--out')
  if out.suffix.lower() not in ('.png', '.pdf', '.svg', '.jpg'):
    terminal.fail(f'--out={out}: the name must end in .png, .pdf, .svg or .jpg')
  command.check_task(CONFIG.value, command.config_text(CONFIG), command.PUZZLES)
  command.refuse_idle(CONFIG)
  devices.check_platform()
  pretext = pretexts.open_pretext(CONFIG.value, evaluated=False)
  places.make_folder(out.parent, '--out')
  try:
    run_pictures.draw_training_puzzles(out, pretext)
  except OSError as error:
    if error.filename != str(out):
      raise
    raise places.PlaceError(f'--out={out} cannot be written: {error.strerror}') from None
  terminal.say(f'{out}: {pretext.training.source.description}')


if __name__ == '__main__':
  app.run(main, flags_parser=command.parse_flags)
