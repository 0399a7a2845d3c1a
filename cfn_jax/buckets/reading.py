"""What a command reads at an address: fetched once, into a folder that goes with the process."""

import atexit
import contextlib
import functools
import os
import pathlib
import shutil
from collections.abc import Iterator

from cfn_jax import places
from cfn_jax.buckets import addresses, folders, objects
from cfn_jax.errors import CfnError

OWNER = 'read_by_'  # and the number of the process
WEIGHTS = ('.npz', '.safetensors', '.caffemodel', '.pth', '.pt', '.torch', '.pkl', '.tar')
SMALL_BYTES = 2**20  # of what is fetched beside a file, such as its card


def local(text: str | pathlib.Path, name: str = 'the path') -> pathlib.Path:
  """Returns the path that a flag or field names; of an address, a local folder or file of the same.

  The arrays of checkpoints are fetched when they are read, see `folders.bring`.

  Raises:
    CfnError: there is nothing, or it cannot be fetched.
  """
  if not places.is_address(text):
    return places.local(text, name)
  with named():
    return _fetch(addresses.parse(str(text), name))


@contextlib.contextmanager
def named() -> Iterator[None]:
  """Calls what lies at an address by it, in errors that name its local folder."""
  try:
    yield
  except CfnError as error:
    error.args = tuple(addresses.rename(each) for each in error.args)
    raise


def send(path: pathlib.Path) -> None:
  """Writes a file that stands for an address to it."""
  if address := addresses.find(path):
    objects.Objects(address).write(address.path, path)


@functools.cache
def _fetch(address: addresses.Address) -> pathlib.Path:
  owner = f'{OWNER}{os.getpid()}'
  _tidy(owner)
  objects.Objects(address, patience=0.0).find(f'{address.path}/', limit=1)  # fails at once
  store = objects.Objects(address)
  parts = address.path.split('/')
  if folders.CHECKPOINTS in parts[1:]:  # a step, or their folder: what lies beside belongs to it
    above = parts[: parts.index(folders.CHECKPOINTS, 1)]
    return _fetch(addresses.Address(address.scheme, address.bucket, '/'.join(above))).joinpath(
      *parts[len(above) :]
    )
  path = addresses.stage(address, owner)
  found = store.find(f'{address.path}/', limit=folders.MOST)
  if not found:
    beside = f'{address.path.rpartition("/")[0]}/'
    files = [
      each
      for each in store.find(beside if beside != '/' else '', limit=folders.MOST)
      if each.name == address.path
      or (each.size < SMALL_BYTES and '/' not in each.name.removeprefix(beside))
    ]
    if all(each.name != address.path for each in files):
      raise objects.MissingError(f'{address}: there is nothing')
    folders.transfer(
      lambda each: store.download(each, path.parent / each.name.rpartition('/')[2]), files
    )
    return path
  listing = folders.make_listing(found, address)
  if len(found) == folders.MOST:
    raise objects.BucketError(f'{address} holds {folders.MOST:,} objects or more: no run does')
  if not listing.steps and not any(_is_ours(each) for each in listing.files):
    raise objects.BucketError(
      f'{address} holds no run and no weights, but other objects, such as {found[0].name}'
    )
  folders.fetch(store, listing, path, skipped=('events.out.', 'profile', '.'))
  return path


def _is_ours(path: str) -> bool:
  name = path.rpartition('/')[2]
  return name in folders.OWN or name.endswith(WEIGHTS)


def _tidy(owner: str) -> None:
  """Has this process's folder removed at its end, and removes those of processes that are gone."""
  root = addresses.find_root()
  atexit.register(shutil.rmtree, root / owner, ignore_errors=True)
  for folder in root.glob(f'{OWNER}*'):
    number = folder.name.removeprefix(OWNER)
    if not pathlib.Path(f'/proc/{number}').exists() and pathlib.Path('/proc/self').exists():
      shutil.rmtree(folder, ignore_errors=True)
