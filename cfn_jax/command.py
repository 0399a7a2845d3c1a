"""What the command lines that take a config share: its flag, and errors in a few lines."""

import contextlib
import importlib.util
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

import ml_collections
from absl import flags, logging
from ml_collections import config_flags

BAD_INPUT = 2  # exit code


DEFAULT_CONFIG = 'configs/cfn.py'


def define_config() -> flags.FlagHolder[ml_collections.ConfigDict]:
  """Defines `--config=FILE.py[:VARIANT]`; `--config.FIELD=VALUE` sets a field.

  The default is filled in by `parse_flags`: here it would be read, and fail, at import.
  """
  return config_flags.DEFINE_config_file(
    'config',
    help_string=f'FILE.py or FILE.py:VARIANT, {DEFAULT_CONFIG} by default; '
    '--config.FIELD=VALUE sets a field of it.',
  )


def config_name(holder: flags.FlagHolder[ml_collections.ConfigDict]) -> str:
  """Gives a config's short name, file and variant: 'cfn-tiny' for configs/cfn.py:tiny."""
  path = pathlib.Path(config_flags.get_config_filename(flags.FLAGS[holder.name]))
  variant = path.name.partition(':')[2]
  stem = path.name.partition(':')[0].removesuffix('.py')
  return f'{stem}-{variant}' if variant else stem


def load_config(text: str) -> ml_collections.ConfigDict:
  """Loads `FILE.py` or `FILE.py:VARIANT` without flags.

  Raises:
    ValueError: there is no such file or variant.
  """
  file, _, variant = text.partition(':')
  path = pathlib.Path(file)
  if not path.is_file():
    raise ValueError(f"there is no config file '{file}'")
  spec = importlib.util.spec_from_file_location(path.stem, path)
  if spec is None or spec.loader is None:
    raise ValueError(f"'{file}' is no Python file")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  config: ml_collections.ConfigDict = module.get_config(variant)
  return config


def parse_flags(argv: Sequence[str]) -> list[str]:
  """Parses the command line; what is wrong in it ends the program in one short message."""
  argv = _join_config(argv)
  named = [a for a in argv[1:] if a.lstrip('-').partition('=')[0] == 'config']
  others = [a for a in argv[1:] if a not in named]
  # The config comes first, wherever it stands: its fields can be set only once it is read.
  argv = [argv[0], *(named or [f'--config={DEFAULT_CONFIG}']), *others]
  sys.argv[:] = argv  # ml_collections looks for the fields there
  for argument in argv[1:]:
    flag, _, value = argument.partition('=')
    path = pathlib.Path(value.partition(':')[0])
    if flag.lstrip('-') == 'config' and not path.is_file():
      known = ', '.join(sorted(str(found) for found in pathlib.Path('configs').glob('*.py')))
      fail(
        f"{argument}: there is no file '{path}'"
        + (f'; configs here: {known}' if known else '; run it in the clone')
      )
  try:
    return flags.FLAGS(argv)
  except (AttributeError, KeyError) as error:  # ml_collections: no such field
    guess = re.search('Did you mean "(.+)" instead of "(.+)"', str(error))
    if guess:
      fail(f"the config has no field '{guess[2]}'; did you mean '{guess[1]}'?")
    name = str(error).strip('\'"')
    fail(f"the config has no field '{name}'")
  except Exception as error:  # the flags' own errors, and any that a config file raises
    fail(_shorten(str(error) or type(error).__name__))


def _join_config(argv: Sequence[str]) -> list[str]:
  """Writes `--config FILE` as `--config=FILE`."""
  joined: list[str] = []
  for argument in argv:
    if joined[1:] and joined[-1] in ('--config', '-config'):
      joined[-1] += f'={argument}'
    else:
      joined.append(argument)
  return joined


def _shorten(message: str) -> str:
  """Keeps the line that says what is wrong: a message may carry a traceback of the config file."""
  lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
  traced = any(line.startswith('Traceback') for line in lines)
  line = lines[-1] if traced else lines[0]
  return line.removeprefix('ValueError: ').removeprefix('flag ').strip('"')


@contextlib.contextmanager
def short_errors(*kinds: type[Exception]) -> Iterator[None]:
  """Ends the program with a message, not a traceback, where one of these errors is raised."""
  try:
    yield
  except kinds as error:
    fail(str(error))


def fail(message: str) -> NoReturn:
  """Prints `error: message` and exits with the code for bad input."""
  print(f'error: {message}', file=sys.stderr)
  sys.stderr.flush()
  sys.exit(BAD_INPUT)


def quiet_libraries() -> None:
  """Leaves the terminal to our own lines: libraries report warnings only."""
  logging.set_verbosity(logging.WARNING)
  # Passed on to the process that clears away the batches that a stopped run did not use.
  sys.warnoptions.append('ignore:resource_tracker:UserWarning')


def make_deterministic() -> None:
  """Asks XLA for operations that give the same bits each time; before any backend is started."""
  asked = '--xla_gpu_deterministic_ops=true'
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {asked}'.strip()
