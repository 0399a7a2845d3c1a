"""What the command lines that take a config share: its flag, its help, errors in a few lines."""

import logging as python_logging
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
import ml_collections
from absl import flags, logging
from ml_collections import config_flags

from cfn_jax import arguments, config_files, idle, names, places, terminal

DEFAULT_CONFIG = 'cfn'
_ARGUMENTS: list[str] = []  # where ml_collections looks for fields to set
PRETEXTS = ('jigsaw', 'relative_position', 'rotation')
PUZZLES = (*PRETEXTS, 'alexnet_to_jigsaw')  # the tasks whose configs cut images into tiles


class _ConfigParser(flags.ArgumentParser[ml_collections.ConfigDict]):
  """Reads the value of `--config`."""

  def parse(self, argument: str) -> ml_collections.ConfigDict:
    return config_files.load(argument)

  def flag_type(self) -> str:
    return 'config'


def define_config() -> flags.FlagHolder[ml_collections.ConfigDict]:
  """Defines `--config=FILE.py[:VARIANT]`; `--config.FIELD=VALUE` sets a field.

  `parse_flags` fills in the default. Set here, it would be read, and might fail, at import.
  """
  holder = config_flags.DEFINE_config_file(
    'config',
    flag_values=flags.FLAGS,
    sys_argv=_ARGUMENTS,
    help_string=f'NAME or FILE.py, alone or with :VARIANT (default {DEFAULT_CONFIG})',
  )
  flags.FLAGS['config'].parser = _ConfigParser()
  return holder


def config_text(holder: flags.FlagHolder[ml_collections.ConfigDict]) -> str:
  """Returns what `--config` was given, or its default."""
  text: str = config_flags.get_config_filename(flags.FLAGS[holder.name])
  return text


def config_name(holder: flags.FlagHolder[ml_collections.ConfigDict]) -> str:
  """Returns a config's short name, file and variant: 'cfn-tiny' for configs/cfn.py:tiny."""
  path, variant = config_files.find(config_text(holder))
  return f'{path.stem}-{variant}' if variant else path.stem


def load_config(text: str, *, tasks: Sequence[str] = ()) -> ml_collections.ConfigDict:
  """Loads `FILE.py[:VARIANT]` or `NAME[:VARIANT]` without flags.

  Args:
    tasks: the tasks that the caller accepts; empty: all.

  Raises:
    ConfigError: there is no such file or variant, its fields are not right, or its task is another.
  """
  config = config_files.load(text)
  config_files.check(config)
  if tasks:
    check_task(config, text, tasks)
  return config


def check_task(config: ml_collections.ConfigDict, text: str, tasks: Sequence[str]) -> None:
  """Raises ConfigError if a config is made for another task than these."""
  if config.task not in tasks:
    ours = config_files.configs_by_task()
    raise config_files.ConfigError(
      f"--config={text} is made for the task '{config.task}': take "
      f'{" or ".join(ours[task] for task in tasks)}'
    )


def refuse_idle(holder: flags.FlagHolder[ml_collections.ConfigDict]) -> None:
  """Raises ValueError if a flag or a file sets a field that has no effect."""
  idle.check(holder.value, {*get_given(holder), *config_files.find_changed(holder.value)})


def get_given(holder: flags.FlagHolder[ml_collections.ConfigDict]) -> dict[str, Any]:
  """Returns the values of the fields that flags set, by name."""
  given: dict[str, Any] = config_flags.get_override_values(flags.FLAGS[holder.name])
  return given


@terminal.interruptible()
def parse_flags(
  argv: Sequence[str], *, prog: str = '', about: str = '', configs: bool = False
) -> list[str]:
  """Parses the command line. An error in it ends the program with one short message.

  Args:
    prog: the module of the command, and its part.
    about: the docstring that `--help` shows.
    configs: `--help` lists the configs too.
  """
  if {'--help', '-help', '-h', '--helpshort'} & {*argv[1:]}:
    _show_help(prog, about, configs)
  try:
    argv = _join_config(flags.FLAGS.read_flags_from_files(list(argv)))
  except flags.Error as error:
    terminal.fail(_shorten(error, argv))
  named = [a for a in argv[1:] if re.match('--?config(=|$)', a)]
  others = [a for a in argv[1:] if a not in named]
  if len(named) > 1:
    terminal.fail(f'--config is given {len(named)} times: {" ".join(named)}')
  # The config comes first, wherever it stands: its fields can be set only once it is read.
  named = named or [f'--config={DEFAULT_CONFIG}']
  argv = [argv[0], *named, *others]
  sys.argv[:] = _ARGUMENTS[:] = argv
  with terminal.short_errors():
    text = named[0].partition('=')[2]
    _check_fields(config_files.load(text), text, others)
    try:
      with terminal.writing(sys.stdout):  # --helpfull is printed here
        left = flags.FLAGS(argv)
    except (flags.Error, ValueError, TypeError) as error:
      terminal.fail(_shorten(error, argv))
    config_files.check(flags.FLAGS['config'].value)
    # A field may be empty, and is checked with the config.
    given = [name for name in flags.FLAGS if flags.FLAGS[name].present and '.' not in name]
    values = {f'--{name}': flags.FLAGS[name].value for name in given}
    places.check(values, given=True, addresses=('--workdir',))
  return left


def _show_help(prog: str, about: str, configs: bool) -> NoReturn:
  """Prints the flags of this project, the configs and the examples; ends the program."""
  described = config_files.describe().items() if configs else ()
  lines = [f'  {name:20}  {first}' for name, first in described]
  title = 'configs (the head of each file lists its variants, such as cfn:tiny):'
  parser = arguments.Parser(prog, about, notes='\n'.join([title, *lines] if configs else []))
  by_module = flags.FLAGS.flags_by_module_dict()
  ours = [flag for module in by_module if 'cfn_jax' in module for flag in by_module[module]]
  for flag in sorted(ours, key=lambda flag: (flag.name != 'config', flag.name)):
    kind = {'int': int, 'float': float}.get(flag.flag_type())
    how: dict[str, Any] = {'action': 'store_true'} if flag.boolean else {'type': kind}
    parser.add_argument(f'--{flag.name}', help=flag.help, **how)
    if flag.name == 'config':
      parser.add_argument('--config.FIELD', metavar='VALUE', help='sets a field of the config')
  parser.print_help()
  sys.exit()


def _join_config(argv: Sequence[str]) -> list[str]:
  """Writes `--config FILE` as `--config=FILE`."""
  joined: list[str] = []
  for argument in argv:
    if joined[1:] and joined[-1] in ('--config', '-config'):
      joined[-1] += f'={argument}'
    else:
      joined.append(argument)
  return joined


def _check_fields(config: ml_collections.ConfigDict, text: str, arguments: Sequence[str]) -> None:
  """Raises ConfigError if `--config.NAME=VALUE` names no field that a command line may set."""
  for argument in arguments:
    match = re.match(r'--?(?:no)?config\.([^=]*)=?(.*)', argument, re.DOTALL)
    if not match:
      continue
    name, value = match[1], match[2]
    field = config_files.find_field(config, name)
    if isinstance(field, ml_collections.ConfigDict):
      first = 'source' if 'source' in field else next(iter(field), 'FIELD')
      raise config_files.ConfigError(
        f'--config.{name} is a section; did you mean --config.{name}.{first}={value or "VALUE"}?'
      )
    if name == 'task' and value != field:
      ours = config_files.configs_by_task()
      take = f'--config={ours[value]}' if value in ours else f'one of {", ".join(ours.values())}'
      raise config_files.ConfigError(
        f"--config.task={value}: --config={text} is made for the task '{field}'; take {take}"
      )


def _shorten(error: Exception, argv: Sequence[str]) -> str:
  """Returns the line of a flag error that says what is wrong; a value may contain line ends."""
  message = str(error) or type(error).__name__
  for value in (argument.partition('=')[2] for argument in argv):
    message = message.replace(value, names.printable(value)) if value else message
  line = next(line.strip() for line in message.splitlines() if line.strip())
  return line.removeprefix('ERROR:: ').removeprefix('flag ').strip('"')


def quiet_libraries() -> None:
  """Keeps the terminal for our own lines: libraries report warnings only."""
  logging.set_verbosity(logging.WARNING)
  python_logging.getLogger('matplotlib').setLevel('ERROR')  # it warns if there is no home folder
  # For the process that clears the batches that a stopped run did not use.
  sys.warnoptions.append('ignore:resource_tracker:UserWarning')


def make_deterministic() -> None:
  """Asks XLA for deterministic operations; call it before any backend starts."""
  asked = '--xla_gpu_deterministic_ops=true'
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {asked}'.strip()
