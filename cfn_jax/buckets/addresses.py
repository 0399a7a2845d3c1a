"""Addresses in object stores, gs://BUCKET/PATH and s3://BUCKET/PATH, and their folders here.

What a run writes or reads at an address lies in a local folder meanwhile. Its path tells the
address: `<cache>/cfn_jax/buckets/<owner>/<scheme>/<bucket>/<path>`.
"""

import atexit
import contextlib
import dataclasses
import fcntl
import glob
import os
import pathlib
import re
import shutil
import socket
import uuid
from typing import IO, Any

from cfn_jax import places

HELD = '.held'  # in the folder of an owner that is a process: locked while that lives
_held: list[IO[str]] = []
EXTRAS = {'gs': 'gcs', 's3': 's3'}  # what reads addresses of a scheme


@dataclasses.dataclass(frozen=True)
class Address:
  """A folder or an object in a bucket.

  >>> str(Address('gs', 'bucket', 'runs/a') / 'checkpoints')
  'gs://bucket/runs/a/checkpoints'
  """

  scheme: str
  bucket: str
  path: str

  def __str__(self) -> str:
    return f'{self.scheme}://{self.bucket}/{self.path}'

  def __truediv__(self, name: str) -> 'Address':
    return dataclasses.replace(self, path=f'{self.path}/{name}')


def parse(text: str, name: str) -> Address:
  """Reads the address that a flag or field names.

  Raises:
    PlaceError: it is none, or no folder of a local disk could stand for it.
  """
  places.check({name: text}, addresses=(name,))
  scheme, _, rest = text.strip().partition('://')
  bucket, _, path = rest.rstrip('/').partition('/')
  if not re.fullmatch(r'[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]', bucket):
    raise places.PlaceError(f'{name}={text}: {bucket!r} is no name of a bucket')
  parts = path.split('/')
  if not path:
    raise places.PlaceError(f'{name}={text}: name a folder in the bucket, {scheme}://{bucket}/runs')
  wrong = next((each for each in parts if each in ('', '.', '..')), None)
  if wrong is not None or not path.isprintable():
    fault = f'the part {wrong!r}' if wrong is not None else 'a character that cannot be printed'
    raise places.PlaceError(f'{name}={text}: {fault} cannot stand in it')
  return Address(scheme.lower(), bucket, path)


def find_root() -> pathlib.Path:
  """Returns the folder of this host below which all of those lie.

  Raises:
    PlaceError: there is no home folder, and no other is named.
  """
  named = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
  try:
    cache = pathlib.Path(named).expanduser()
  except RuntimeError:
    raise places.PlaceError(
      'what lies in a bucket needs a folder on this host, and there is no home folder: set '
      'XDG_CACHE_HOME to a folder on a disk with room'
    ) from None
  return cache.absolute() / 'cfn_jax' / 'buckets'


def stage(address: Address, owner: str) -> pathlib.Path:
  """Returns the local folder that stands for an address, for one owner.

  Args:
    owner: runs and readers each have their own.
  """
  return find_root() / owner / address.scheme / address.bucket / address.path


def make_stage(address: Address, owner: str) -> pathlib.Path:
  """Makes that folder.

  Raises:
    PlaceError: this host has no disk for it.
  """
  folder = stage(address, owner)
  try:
    places.make_folder(folder, 'the local folder')
  except places.PlaceError as error:
    raise places.PlaceError(
      f'{address}: {error}; what lies in a bucket needs one on this host: set XDG_CACHE_HOME to a '
      'folder on a disk with room'
    ) from None
  return folder


def make_owner(kind: str) -> str:
  """Returns an owner that is this process alone, whose folder goes with it.

  What processes of this host left that were killed goes too: its lock is free. Other hosts may
  share the folder; theirs stays.
  """
  root, prefix = find_root(), f'{kind}_{socket.gethostname()}_'
  for left in root.glob(f'{glob.escape(prefix)}*'):
    with contextlib.suppress(OSError), (left / HELD).open('r+') as lock:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      if lock.read():  # else its owner has not locked it yet
        shutil.rmtree(left, ignore_errors=True)
  folder = root / f'{prefix}{uuid.uuid4().hex}'
  places.make_folder(folder, 'the local folder')
  atexit.register(shutil.rmtree, folder, ignore_errors=True)
  with contextlib.suppress(OSError):  # a file system without locks: nobody removes it
    lock = (folder / HELD).open('w')
    _held.append(lock)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.write(str(os.getpid()))
    lock.flush()
  return folder.name


def find(path: pathlib.Path) -> Address | None:
  """Returns the address that a local path stands for; None for a place of its own."""
  with contextlib.suppress(places.PlaceError):
    root = find_root()
    if path.is_relative_to(root):
      parts = path.relative_to(root).parts
      if len(parts) > 3:
        return Address(parts[1], parts[2], '/'.join(parts[3:]))
  return None


def resolve(text: str, name: str) -> pathlib.Path:
  """Returns the folder of a disk that a flag names, see `places.resolve`.

  Raises:
    PlaceError: there is none, or it stands for an address, and would be taken for that.
  """
  path = places.resolve(text, name)
  if there := find(path):
    raise places.PlaceError(f'{name}={text} is the local folder of {there}: name that, or another')
  return path


def show(path: pathlib.Path) -> str:
  """Returns the address that a path stands for, else the path: what a user calls it."""
  return str(find(path) or path)


def rename(text: Any) -> Any:
  """Replaces in a text what stands for an address by it."""
  with contextlib.suppress(places.PlaceError):
    if isinstance(text, str):
      return re.sub(rf'{re.escape(str(find_root()))}/[^/]+/(gs|s3)/', r'\1://', text)
  return text
