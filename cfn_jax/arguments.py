"""What the command lines share: errors in one line, help in 80 columns, addresses refused."""

import argparse
import functools
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from cfn_jax import places, terminal
from cfn_jax.errors import CfnError

WIDTH = 80  # columns of the help


class _Place(argparse.Action):
  """Takes the name of a place on the disk: `add('--out', action='place')`."""

  in_buckets = False

  def __call__(
    self,
    parser: argparse.ArgumentParser,
    namespace: argparse.Namespace,
    values: Any,
    option_string: str | None = None,
  ) -> None:
    """Stores the name; ends the program where it names no place."""
    try:
      name = str(option_string)
      places.check({name: values}, given=True, addresses=(name,) if self.in_buckets else ())
    except places.PlaceError as error:
      parser.error(str(error))
    setattr(namespace, self.dest, values)


class _Source(_Place):
  """Takes a place on the disk, or an address to read: `add('--weights', action='source')`."""

  in_buckets = True


class _Formatter(argparse.RawDescriptionHelpFormatter):
  """Writes options as `--name=VALUE`, and says which are required."""

  def _format_action_invocation(self, action: argparse.Action) -> str:
    if not action.option_strings or action.nargs == 0:
      return super()._format_action_invocation(action)
    kind = 'N' if action.type in (int, float) else 'PATH' if isinstance(action, _Place) else 'TEXT'
    one_of = '{' + ','.join(filter(None, action.choices or ())) + '}'
    return f'{action.option_strings[-1]}={one_of if action.choices else action.metavar or kind}'

  def _get_help_string(self, action: argparse.Action) -> str:
    return f'{action.help or ""}{" (required)" * action.required}'


class Parser(argparse.ArgumentParser):
  """A parser whose errors are one line, without the usage; options are written out.

  Args:
    prog: the module, and the part of it that is parsed.
    about: a docstring. Its paragraphs of commands become the examples of the help; a comment behind
      a command stands above it.
    notes: paragraphs of the help between the options and the examples.
    usage: the arguments, in short.
  """

  def __init__(
    self, prog: str, about: str | None, *, notes: str = '', usage: str = '[options]'
  ) -> None:
    prose, examples = _lay_out(about or '')
    super().__init__(
      prog=f'python -m {prog}',
      usage=f'python -m {prog} {usage}',
      description=prose,
      epilog='\n\n'.join(filter(None, (notes, examples))),
      allow_abbrev=False,
      formatter_class=functools.partial(_Formatter, width=WIDTH),
    )
    self.register('action', 'place', _Place)
    self.register('action', 'source', _Source)

  def error(self, message: str) -> NoReturn:
    """Ends the program with the message."""
    terminal.fail(message)

  def _print_message(self, message: str, file: Any = None) -> None:
    terminal.say(*message.rstrip().splitlines(), file=file)

  def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses a command line, by default the program's own."""
    return self.parse_args(argv)


def _lay_out(about: str) -> tuple[str, str]:
  """Splits a docstring into its prose, wrapped, and the examples of the help."""
  prose, examples = [], ['examples:']
  for block in about.strip().replace('\\\n', ' ').split('\n\n'):
    if not block.lstrip().startswith('python -m '):
      prose.append(textwrap.fill(' '.join(block.split()), WIDTH))
      continue
    for line in block.splitlines():
      command, _, comment = line.partition('  # ')
      examples += [f'  # {comment}'] * bool(comment) + _wrap_command(' '.join(command.split()))
  return '\n\n'.join(prose), '\n'.join(examples) if examples[1:] else ''


def _wrap_command(command: str) -> list[str]:
  """Wraps a command between its words, with a backslash at the end of each line but the last."""
  lines = textwrap.wrap(
    command,
    WIDTH - 2,
    initial_indent='  ',
    subsequent_indent='      ',
    break_long_words=False,
    break_on_hyphens=False,
  )
  return [f'{line} \\' for line in lines[:-1]] + lines[-1:]


def check_numbers(arguments: argparse.Namespace, limits: Mapping[str, tuple[float, float]]) -> None:
  """Raises CfnError for an option outside its limits, by its name in the code; None passes."""
  for name, (least, largest) in limits.items():
    value = getattr(arguments, name)
    if value is not None and not least <= value <= largest:  # not so for nan
      limit = f'at most {largest}' if value > largest else f'at least {least}'
      raise CfnError(f'--{name.replace("_", "-")}={value}: {limit}')
