"""What --help says of each command: the flags that exist, for tests of pages and of the help."""

import concurrent.futures
import contextlib
import functools
import importlib
import io
import pathlib
import re
import shlex
import subprocess
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
COMMANDS = (
  'main',
  'study',
  'visualize',
  *(f'visualize {part}' for part in ('filters', 'puzzles', 'report', 'shortcuts', 'units')),
  'benchmark',
  *(f'benchmark {part}' for part in ('permutations', 'input', 'step', 'compile', 'precision')),
  'benchmark dense',
  'benchmark saving',
  'prepare',
  'prepare proposals',
  'convert',
  'predict',
  'features',
  'permutations',
)


# Those that take their flags by absl, which knows one set of them in a process.
_ALONE = ('main', 'study', 'visualize puzzles', 'visualize shortcuts')


def run_help(*words: str) -> str:
  """Returns what `python -m cfn_jax.WORDS` prints, in a process of its own."""
  done = subprocess.run(
    [sys.executable, '-m', f'cfn_jax.{words[0]}', *words[1:]],
    capture_output=True,
    text=True,
    check=True,
    cwd=REPOSITORY,
  )
  return done.stdout


@functools.cache
def _alone() -> dict[str, str]:
  with concurrent.futures.ThreadPoolExecutor() as pool:
    said = pool.map(lambda command: run_help(*command.split(), '--help'), _ALONE)
    return dict(zip(_ALONE, said))


@functools.cache
def help_of(command: str) -> str:
  """Returns what `python -m cfn_jax.COMMAND --help` prints."""
  if command in _ALONE:
    return _alone()[command]
  name, *part = command.split()
  said = io.StringIO()
  with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
    importlib.import_module(f'cfn_jax.{name}').main([*part, '--help'])
  return said.getvalue()


def flags_of(command: str) -> set[str]:
  """Returns the flags of a command, without dashes."""
  return {*re.findall(r'^ +(?:-h, )?--([\w-]+)', help_of(command), re.MULTILINE), 'config.FIELD'}


def find_command(words: list[str]) -> str:
  """Returns the command of `python -m cfn_jax.X [PART] ...`, as COMMANDS has it."""
  name = words[2].removeprefix('cfn_jax.')
  parts = [f'{name} {word}' for word in words[3:4]]
  return next((part for part in parts if part in COMMANDS), name)


def check_command(line: str) -> None:
  """Asserts that a command line names a command that exists, and its flags."""
  words = shlex.split(line, comments=True)
  command = find_command(words)
  assert command in COMMANDS, line
  for word in words[3:]:
    flag = re.match(r'--(config\.|[\w-]+)', word)
    if flag:
      assert flag[1].rstrip('.') in {*flags_of(command), 'help'}, f'{line}: {word}'
