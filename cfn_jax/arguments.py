"""What the command lines without a config share: errors in one line, addresses refused."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from cfn_jax import places, terminal
from cfn_jax.errors import CfnError


class _Place(argparse.Action):
  """Takes the name of a place on the disk: `add('--out', action='place')`."""

  def __call__(
    self,
    parser: argparse.ArgumentParser,
    namespace: argparse.Namespace,
    values: Any,
    option_string: str | None = None,
  ) -> None:
    """Stores the name; ends the program where it names no place."""
    try:
      places.check({str(option_string): values}, given=True)
    except places.PlaceError as error:
      parser.error(str(error))
    setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
  """A parser whose errors are one line, without the usage; options are written out."""

  def __init__(self, prog: str, description: str | None, epilog: str | None = None) -> None:
    super().__init__(
      prog=f'python -m {prog}',
      description=description,
      epilog=epilog,
      allow_abbrev=False,
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    self.register('action', 'place', _Place)

  def error(self, message: str) -> NoReturn:
    """Ends the program with the message."""
    terminal.fail(message)

  def _print_message(self, message: str, file: Any = None) -> None:
    terminal.say(*message.rstrip().splitlines(), file=file)

  def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses a command line, by default the program's own."""
    return self.parse_args(argv)


def check_numbers(arguments: argparse.Namespace, limits: Mapping[str, tuple[float, float]]) -> None:
  """Raises CfnError for an option outside its limits, given by its name in the code."""
  for name, (least, largest) in limits.items():
    value = getattr(arguments, name)
    if not least <= value <= largest:  # nan lies nowhere
      limit = f'at most {largest}' if value > largest else f'at least {least}'
      raise CfnError(f'--{name.replace("_", "-")}={value}: {limit}')
