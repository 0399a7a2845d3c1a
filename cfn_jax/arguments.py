"""What the command lines without a config share: errors in one line, addresses refused."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from cfn_jax import places, terminal


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

  def error(self, message: str) -> NoReturn:
    """Ends the program with the message."""
    terminal.fail(message)

  def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses a command line, by default the program's own."""
    argv = list(sys.argv[1:] if argv is None else argv)
    arguments = self.parse_args(argv)
    for before, token in zip(['', *argv], argv):
      name, _, value = token.partition('=') if token.startswith('-') else (before, '', token)
      try:
        places.check({name: value})
      except places.PlaceError as error:
        self.error(str(error))
    return arguments
