"""Places on the disk that a user names: refused at once where they are none, or lie elsewhere."""

import contextlib
import json
import math
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cfn_jax.errors import CfnError

_NAMED = re.compile(r'([\w-]+)=(.+)')
_ADDRESS = re.compile(r'\s*[A-Za-z][A-Za-z0-9+.-]*://')


class PlaceError(CfnError):
  """A value that names no place on the disk: which flag or field, and what to do."""


def check(values: Mapping[str, Any], *, given: bool = False) -> None:
  """Refuses addresses such as gs://bucket/run, and `~` where there is no home folder.

  Args:
    values: by flag or field; what is no text is passed over.
    given: they stand on a command line: an empty one is refused, it would be the current folder.

  Raises:
    PlaceError: names the flag or field.
  """
  for name, value in values.items():
    if given and value == '':
      raise PlaceError(f"{name} is empty: name a file or a folder ('.' is the current folder)")
    if isinstance(value, pathlib.Path | str):
      _check_one(name, str(value))


def _check_one(name: str, value: str) -> None:
  if _ADDRESS.match(value):
    raise PlaceError(
      f'{name}={value} is an address, not a place on the disk: mount it as a folder and name that '
      "(docs/data.md, 'A bucket mount')"
    )
  if '\0' in value:
    raise PlaceError(f'{name}={value}: no name on a disk holds a null character')
  if value.startswith('~'):
    try:
      pathlib.Path(value).expanduser()
    except RuntimeError:
      raise PlaceError(
        f'{name}={value}: there is no such home folder; write the path out'
      ) from None


def local(text: str | pathlib.Path, name: str = 'the path') -> pathlib.Path:
  """Returns the path that a flag or field names, `~` replaced by the home folder.

  Raises:
    PlaceError: it names no place on the disk.
  """
  check({name: text})
  return pathlib.Path(text).expanduser()


def split(text: str, name: str) -> list[str]:
  """Splits `PATH,PATH`; what is there under the whole text is one path, whatever its name holds."""
  return [text] if local(text, name).exists() else text.split(',')


def split_named(text: str, name: str) -> dict[str, str]:
  """Splits `NAME=PATH,NAME=PATH` into paths by name; one path alone has the name ''.

  What is there under the whole text is one path, whatever its name holds.

  Raises:
    PlaceError: one of several has no name, or two have the same.

  >>> split_named('a=runs/a,b=b.npz', 'weights'), split_named('runs/a', 'weights')
  ({'a': 'runs/a', 'b': 'b.npz'}, {'': 'runs/a'})
  """
  if not ({',', '='} & {*text}) or local(text, name).exists():
    return {'': text}
  parts = split(text, name)
  found = [_NAMED.fullmatch(part.strip()) for part in parts]
  for part, match in zip(parts, found):
    if not match:
      raise PlaceError(
        f'{name}={text}: no path that is there, and {part!r} is not NAME=PATH, as each of several '
        'is (a name of letters, digits, _ and -)'
      )
  named = {match[1]: match[2] for match in found if match}
  if len(named) < len(parts):
    raise PlaceError(f'{name}={text}: two have the same name')
  return named


def resolve(text: str, name: str) -> pathlib.Path:
  """Returns the absolute path, without links, that a flag or field names.

  Raises:
    PlaceError: there is none, such as where links lead in a circle.
  """
  try:
    return local(text, name).resolve()
  except PlaceError:
    raise
  except (OSError, RuntimeError, ValueError) as error:
    raise PlaceError(f'{name}={text}: {error}') from None


def make_folder(path: pathlib.Path, name: str) -> None:
  """Makes a folder that a flag or field names, where there is none, and sees that it is open.

  Raises:
    PlaceError: it cannot be made, or not be written.
  """
  try:
    path.mkdir(parents=True, exist_ok=True)
  except (OSError, ValueError) as error:
    reason = getattr(error, 'strerror', None) or error
    raise PlaceError(f'{name}={path} cannot be made a folder: {reason}') from None
  if not os.access(path, os.W_OK | os.X_OK):
    raise PlaceError(f'{name}={path}: this folder cannot be written')


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Returns the object in a JSON file; `{}` where there is none, or something else."""
  try:
    values = json.loads(path.read_text(encoding='utf8'))
  except (OSError, ValueError, RecursionError):
    return {}
  return values if isinstance(values, dict) else {}


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a temporary name; what is written there gets the name `path`, or is dropped.

  Readers see the old file or the new one. It is a name of this process alone: one that outlives its
  killed parent writes to no other's file.
  """
  temporary = path.with_name(f'{path.name}.{os.getpid()}.tmp')
  try:
    yield temporary
    with temporary.open('rb+') as file:
      os.fsync(file.fileno())
    temporary.replace(path)
  finally:
    temporary.unlink(missing_ok=True)


def make_plain(value: Any) -> Any:
  """Returns figures as JSON holds them: one that is not a number becomes null."""
  if isinstance(value, Mapping):
    return {str(name): make_plain(each) for name, each in value.items()}
  if isinstance(value, list | tuple):
    return [make_plain(each) for each in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: pathlib.Path, value: Any, *, indent: int | None = None) -> None:
  """Writes a JSON file that is there whole or not at all."""
  with replacing(path) as temporary:
    temporary.write_text(json.dumps(value, indent=indent) + '\n', encoding='utf8')


@contextlib.contextmanager
def naming(path: pathlib.Path) -> Iterator[None]:
  """Adds a path to errors of the system that name none, such as those of a full disk."""
  try:
    yield
  except OSError as error:
    if error.errno is not None and error.filename is None:
      error.filename = str(path)
    raise
