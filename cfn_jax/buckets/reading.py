"""What a command reads at an address: fetched once, into a folder that goes with the process."""

import contextlib
import dataclasses
import functools
import pathlib
import re
from collections.abc import Iterator

from cfn_jax import places
from cfn_jax.buckets import addresses, folders, objects
from cfn_jax.errors import CfnError

OWNER = 'read_by'
CARD = 'model_card.json'  # what lies beside a file of weights and is read with it
# The folder of a run's steps, one of them, or its arrays.
STEP = re.compile(r'(?P<run>.+)/(?P<step>checkpoints(/[0-9]+(/state)?)?)')
WEIGHTS = ('.npz', '.safetensors', '.caffemodel', '.pth', '.pt', '.torch', '.pkl', '.tar')


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
  objects.Objects(address, patience=0.0).find(f'{address.path}/', limit=1)  # fails at once
  store = objects.Objects(address)
  if step := STEP.fullmatch(address.path):  # what lies beside it belongs to it
    return _fetch(dataclasses.replace(address, path=step['run'])) / step['step']
  path = addresses.stage(address, _make_owner(addresses.find_root()))
  found = store.find(f'{address.path}/', limit=folders.MOST)
  if not found:
    card = pathlib.PurePosixPath(address.path).with_name(CARD).as_posix()
    names = {address.path: path, card: path.with_name(CARD)}
    files = [each for name in names for each in store.find(name, limit=1) if each.name == name]
    if not files or files[0].name != address.path:
      raise objects.MissingError(f'{address}: there is nothing')
    folders.transfer(lambda each: store.download(each, names[each.name]), files)
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


@functools.cache
def _make_owner(_: pathlib.Path) -> str:
  """Returns the owner below a root that is this process."""
  return addresses.make_owner(OWNER)
