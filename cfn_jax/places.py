"""Paths that a user names; addresses and other values that are not local paths are refused."""

import contextlib
import json
import math
import os
import pathlib
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from cfn_jax.errors import CfnError

_NAMED = re.compile(r'([\w-]+)=(.+)')
_ADDRESS = re.compile(r'\s*[A-Za-z][A-Za-z0-9+.-]*://')
_BUCKET = re.compile(r'\s*(gs|s3)://')


class PlaceError(CfnError):
  """A value that is no local path, with its flag or field and the remedy."""


def is_address(text: str | pathlib.Path) -> bool:
  """Returns whether a text is an address such as gs://bucket/run, not a place on the disk."""
  return isinstance(text, str) and bool(_ADDRESS.match(text))


def check(
  values: Mapping[str, Any], *, given: bool = False, addresses: Collection[str] = ()
) -> None:
  """Refuses addresses such as gs://bucket/run, and `~` without a home folder.

  Args:
    values: by flag or field; only text is checked.
    given: they come from a command line; an empty one, which would mean the current folder, is
      refused.
    addresses: the names of those that may be addresses of buckets.

  Raises:
    PlaceError: with the flag or field.
  """
  for name, value in values.items():
    if given and value == '':
      raise PlaceError(f"{name} is empty: name a file or a folder ('.' is the current folder)")
    if isinstance(value, pathlib.Path | str):
      _check_one(name, str(value), address=name in addresses)


def _check_one(name: str, value: str, *, address: bool) -> None:
  if address and is_address(value):
    if not _BUCKET.match(value):
      raise PlaceError(
        f'{name}={value} is an address of a kind that is not read: gs://BUCKET/PATH and '
        "s3://BUCKET/PATH are; mount others as folders (docs/data.md, 'A bucket mount')"
      )
    return
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
    PlaceError: it is no local path.
  """
  check({name: text})
  return pathlib.Path(text).expanduser()


def split(text: str, name: str) -> list[str]:
  """Splits `PATH,PATH`; if the whole text is an existing path, it is one path."""
  return text.split(',') if is_address(text) or not local(text, name).exists() else [text]


def split_named(text: str, name: str) -> dict[str, str]:
  """Splits `NAME=PATH,NAME=PATH` into paths by name; one path alone has the name ''.

  If the whole text is an existing path, it is one path.

  Raises:
    PlaceError: one of several has no name, or two have the same.

  >>> split_named('a=runs/a,b=b.npz', 'weights'), split_named('runs/a', 'weights')
  ({'a': 'runs/a', 'b': 'b.npz'}, {'': 'runs/a'})
  """
  is_one = ',' not in text if is_address(text) else local(text, name).exists()
  if is_one or not {',', '='} & {*text}:
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
    PlaceError: there is none, for example because links form a loop.
  """
  try:
    return local(text, name).resolve()
  except PlaceError:
    raise
  except (OSError, RuntimeError, ValueError) as error:
    raise PlaceError(f'{name}={text}: {error}') from None


def make_folder(path: pathlib.Path, name: str) -> None:
  """Makes the folder that a flag or field names if it is missing, and checks that it is writable.

  Raises:
    PlaceError: it cannot be made or written.
  """
  try:
    path.mkdir(parents=True, exist_ok=True)
  except (OSError, ValueError) as error:
    reason = getattr(error, 'strerror', None) or error
    raise PlaceError(f'{name}={path} cannot be made a folder: {reason}') from None
  if not os.access(path, os.W_OK | os.X_OK):
    raise PlaceError(f'{name}={path}: this folder cannot be written')


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Returns the object in a JSON file; `{}` if the file is missing or holds something else."""
  try:
    values = json.loads(path.read_text(encoding='utf8'))
  except (OSError, ValueError, RecursionError):
    return {}
  return values if isinstance(values, dict) else {}


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a temporary path, whose file is then renamed to `path`, or deleted after an error.

  Readers see the old file or the new one. Each process of each host has its own temporary name, so
  that one that outlives its killed parent writes to no other's file.
  """
  temporary = path.with_name(f'{path.name}.{socket.gethostname()[-16:]}.{os.getpid()}.tmp')
  try:
    yield temporary
    with temporary.open('rb+') as file:
      os.fsync(file.fileno())
    temporary.replace(path)
  finally:
    temporary.unlink(missing_ok=True)


def make_plain(value: Any) -> Any:
  """Returns figures as JSON can hold them: NaN becomes null."""
  if isinstance(value, Mapping):
    return {str(name): make_plain(each) for name, each in value.items()}
  if isinstance(value, list | tuple):
    return [make_plain(each) for each in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: pathlib.Path, value: Any, *, indent: int | None = None) -> None:
  """Writes a JSON file completely or not at all."""
  with replacing(path) as temporary:
    temporary.write_text(json.dumps(value, indent=indent) + '\n', encoding='utf8')


@contextlib.contextmanager
def naming(path: pathlib.Path) -> Iterator[None]:
  """Adds a path to system errors that have none, such as those of a full disk."""
  try:
    yield
  except OSError as error:
    if error.errno is not None and error.filename is None:
      error.filename = str(path)
    raise
