"""Configs: found by path or by name, read from any folder, their fields checked.

An installed package contains its configs; a clone has them beside the package. While a config is
read, `from configs import NAME` finds these first, whatever else is called `configs`, and then the
neighbours of the config file. In a copy of the folder, its own files come first.
"""

import contextlib
import difflib
import functools
import importlib
import importlib.util
import math
import os
import pathlib
import re
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any

import ml_collections

from cfn_jax import fields, names, places
from cfn_jax.errors import CfnError

LARGEST = 2**63 - 1  # the largest number that the arrays of a run can hold
IN_BUCKETS = ('weights', 'init_from', 'data.root', 'data.val_root')  # may be addresses of buckets


class ConfigError(CfnError):
  """A config that cannot be found or read, or a field with a wrong value."""


def find_folder() -> pathlib.Path:
  """Returns the folder of the configs that come with the package."""
  package = pathlib.Path(__file__).resolve().parent
  inside = package / 'configs'
  return inside if inside.is_dir() else package.parent / 'configs'


def list_names() -> list[str]:
  """Returns the names of the configs that come with the package."""
  files = sorted(find_folder().glob('*.py'))
  return [file.stem for file in files if '\ndef get_config(' in file.read_text(encoding='utf8')]


def describe() -> dict[str, str]:
  """Returns the configs that come with the package by name, with the first line of each file."""
  folder = find_folder()
  return {
    name: (folder / f'{name}.py').read_text(encoding='utf8').split('\n', 1)[0].strip('"')
    for name in list_names()
  }


def find(text: str) -> tuple[pathlib.Path, str]:
  """Splits `FILE.py[:VARIANT]` or `NAME[:VARIANT]` into the config's file and its variant.

  Raises:
    ConfigError: there is no such file or name; the message lists those that exist.
  """
  places.check({'--config': text})
  split = re.fullmatch(r'(.+\.py)(?::(.*))?', text, re.DOTALL)
  if split:
    name, variant = split[1], split[2] or ''
    path = pathlib.Path(name).expanduser()
  else:
    name, _, variant = text.partition(':')
    path = find_folder() / f'{name}.py' if name in list_names() else pathlib.Path(name)
  if path.suffix != '.py' or not os.path.isfile(path):  # noqa: PTH113  (never raises)
    what = f"there is no {'file' if split else 'config'} '{names.printable(name)}'"
    raise ConfigError(
      f'--config={names.printable(text)}: {what}; name one of {", ".join(list_names())}, or a '
      'file FILE.py, each alone or with :VARIANT'
    )
  return path, variant


def load(text: str) -> ml_collections.ConfigDict:
  """Reads a config, see `find`.

  Raises:
    ConfigError: it cannot be found, or it raises; the message has the file and the line.
  """
  return _load(text)[1]


def _load(text: str) -> tuple[types.ModuleType, ml_collections.ConfigDict]:
  path, variant = find(text)
  module, config = call(path, 'get_config', *([variant] if variant else []))
  if not isinstance(config, ml_collections.ConfigDict):
    raise ConfigError(f'{path}: get_config returns no ConfigDict but {type(config).__name__}')
  return module, config.lock()


def call(path: pathlib.Path, function: str, *arguments: str) -> tuple[types.ModuleType, Any]:
  """Executes a file, which may import configs; returns the module and a function's value.

  Raises:
    ConfigError: the file has no such function, or one of both raises, with the file and the line.
  """
  with _own_imports(path.resolve().parent):
    try:
      module = _execute(path)
      make = getattr(module, function, None)
      if not callable(make):
        kind = function.removeprefix('get_')
        raise ConfigError(f'{path} is no {kind}: it has no {function}')
      return module, make(*arguments)
    except ConfigError:
      raise
    except (Exception, SystemExit) as error:  # whatever the file does
      raise ConfigError(_locate(error, path)) from error


def _execute(path: pathlib.Path) -> types.ModuleType:
  spec = importlib.util.spec_from_file_location(path.stem, path)
  assert spec is not None and spec.loader is not None  # the name ends in .py
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@contextlib.contextmanager
def _own_imports(folder: pathlib.Path) -> Iterator[None]:
  """Makes `configs` the package's own while a config of a folder is read."""
  is_copy = all((folder / name).is_file() for name in ('cfn.py', 'training.py'))
  order = [folder, find_folder()] if is_copy else [find_folder(), folder]
  ours = types.ModuleType('configs')
  ours.__path__ = [str(each) for each in order]
  importlib.invalidate_caches()
  others = _take_out()
  sys.modules['configs'] = ours
  try:
    yield
  finally:
    _take_out()
    sys.modules.update(others)


def _take_out() -> dict[str, types.ModuleType]:
  """Removes `configs` and its modules from the imported ones, and returns them."""
  found = [name for name in sys.modules if name.partition('.')[0] == 'configs']
  return {name: sys.modules.pop(name) for name in found}


def _locate(error: BaseException, path: pathlib.Path) -> str:
  """Returns a line that says where a config fails, and why."""
  file, line = str(path), 0
  folders = (path.resolve().parent, find_folder())
  for frame in traceback.extract_tb(error.__traceback__):
    if pathlib.Path(frame.filename).resolve().parent in folders:
      file, line = frame.filename, frame.lineno or 0
  text = str(error).partition('\n')[0]
  if isinstance(error, SyntaxError):
    file, line, text = error.filename or file, error.lineno or line, error.msg
  kind = '' if type(error) is ValueError else f'{type(error).__name__}: '
  return f'{file}:{line}: {kind}{text[:400]}' if line else f'{file}: {kind}{text[:400]}'


def find_field(config: ml_collections.ConfigDict, name: str) -> Any:
  """Returns the value of a field, such as 'data.root', or a section.

  Raises:
    ConfigError: there is no such field; the message names a similar one.
  """
  value: Any = config
  for part in name.split('.'):
    if not isinstance(value, ml_collections.ConfigDict) or part not in value:
      known = fields.flatten(config)
      last = {field.rpartition('.')[2]: field for field in known}
      like = difflib.get_close_matches(name, [*known], 1) or [
        last[each] for each in difflib.get_close_matches(name.rpartition('.')[2], [*last], 1)
      ]
      guess = f"; did you mean '{like[0]}'?" if like else ''
      raise ConfigError(f"the config has no field '{name}'{guess}")
    value = value[part]
  return value


def check(config: ml_collections.ConfigDict) -> None:
  """Checks that a config has the fields of its task, with the right types and possible numbers.

  Raises:
    ConfigError: with the field, its value, and what would be right.
  """
  ours = configs_by_task()
  task = getattr(config, 'task', '')
  if task not in ours:
    raise ConfigError(f'task = {task!r} is unknown: one of {", ".join(ours)}')
  wanted, found = fields.flatten(load(ours[task])), fields.flatten(config)
  for name in sorted({*wanted, *found}):
    if name not in found:
      raise ConfigError(f"the config has no field '{name}', which {ours[task]}.py has")
    if any(other.startswith(f'{name}.') for other in wanted):
      raise ConfigError(f"the config's field '{name}' is a section in {ours[task]}.py")
    if name not in wanted:
      raise ConfigError(f"the config's field '{name}' has no effect: {ours[task]}.py has none")
    _check_value(name, found[name], like=wanted[name])
  places.check({name: value for name, value in found.items() if value}, addresses=IN_BUCKETS)


def find_changed(config: ml_collections.ConfigDict) -> list[str]:
  """Returns the fields whose values differ from every variant of the config of its task."""
  name = configs_by_task()[config.task]
  module, paper = _load(name)
  made = [fields.flatten(each) for each in (paper, *(load(f'{name}:{v}') for v in module.VARIANTS))]
  values = fields.flatten(config).items()
  return [field for field, value in values if all(value != each[field] for each in made)]


@functools.cache
def configs_by_task() -> dict[str, str]:
  """Returns the name of the config of each task."""
  return {load(name).task: name for name in list_names()}


def _check_value(name: str, value: Any, *, like: Any) -> None:
  """Raises ConfigError if a value has another type than a correct one."""
  if isinstance(like, tuple) and isinstance(value, tuple):
    if not value:
      raise ConfigError(f'{name} = (): at least one value')
    for each in value:
      _check_value(name, each, like=like[0])
    return
  shown = names.printable(repr(value))[:100]
  numbers = isinstance(like, float) and isinstance(value, int) and not isinstance(value, bool)
  if not numbers and type(value) is not type(like):
    raise ConfigError(f'{name} = {shown}: {_KINDS[type(like)]} is needed, such as {like!r}')
  if isinstance(value, float) and not math.isfinite(value):
    raise ConfigError(f'{name} = {shown}: a finite number is needed')
  if isinstance(value, int) and abs(value) > LARGEST:
    raise ConfigError(f'{name} = {shown}: at most {LARGEST}')


_KINDS = {
  bool: 'True or False',
  int: 'a whole number',
  float: 'a number',
  str: 'text',
  tuple: 'a tuple',
  dict: 'a section',
}
