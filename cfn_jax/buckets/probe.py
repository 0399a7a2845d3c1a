"""Sees at once, without patience, that a run can live at an address and none is in its way."""

import contextlib
import uuid
from collections.abc import Iterator

from cfn_jax.buckets import addresses, folders, lease, objects

LOOKED_AT = 1000  # objects


def check(address: addresses.Address, name: str, *, shared: bool = False) -> None:
  """Writes and deletes a small object, and looks at what is there.

  Args:
    name: of the flag that names the address.
    shared: other workdirs may lie below it, and it below none.

  Raises:
    BucketError: the server is not reached, the bucket is not there, its objects may not be listed,
      written or deleted, or the address is that of something else.
  """
  told = f'{name}={address}'
  with _told(address, told):
    store = objects.Objects(address, patience=0.0)
    found = store.find(f'{address.path}/', limit=LOOKED_AT)
    if len(found) == LOOKED_AT:  # what says whose these are may come after them
      found += [each for name in folders.OWN for each in store.find((address / name).path, limit=1)]
    _check_place(address, told, found, _look(store, address.path), shared=shared)
    if not shared:
      _check_parents(store, address, told)
  check_access(address, name, locks=True)


def check_access(address: addresses.Address, name: str, *, locks: bool = False) -> None:
  """Sees that objects can be listed, written and deleted; see `check`.

  Args:
    locks: the server must keep the condition that an object is absent, by which runs are locked.
  """
  told = f'{name}={address}'
  check_bucket(address, name)
  store = objects.Objects(address, patience=0.0)
  probe = (address / f'.probe_{uuid.uuid4().hex}').path
  try:
    store.write(probe, b'cfn_jax looks whether it may write here', objects.ABSENT)
  except objects.BucketError as error:
    raise type(error)(f'{told}: nothing can be written there: {error}') from None
  kept = not locks
  if locks:
    try:
      store.write(probe, b'and whether it can be locked', objects.ABSENT)
    except (objects.ChangedError, objects.PassingError):  # the latter: two writes in a second
      kept = True
  try:
    store.delete(probe)
  except objects.BucketError as error:
    raise type(error)(
      f'{told}: what is written there cannot be deleted, as old checkpoints must be: {error}'
    ) from None
  if not kept:
    raise objects.BucketError(
      f'{told}: this server writes over what is there although it is asked not to, so nothing can '
      'lock a run: take a store that keeps conditions, or a disk'
    )


def _look(store: objects.Objects, prefix: str) -> list[str]:
  """Returns the first name that begins so; none where one may list the address alone."""
  try:
    return [each.name for each in store.find(prefix, limit=1)]
  except objects.DeniedError:
    return []


def check_bucket(address: addresses.Address, name: str) -> None:
  """Sees that there is such a bucket, and that its objects can be listed."""
  with _told(address, f'{name}={address}'):
    objects.Objects(address, patience=0.0).find(f'{address.path}/', limit=1)


@contextlib.contextmanager
def _told(address: addresses.Address, told: str) -> Iterator[None]:
  """Says in an error of listing which flag names what cannot be listed."""
  try:
    yield
  except objects.MissingError:
    bucket = f'{address.scheme}://{address.bucket}'
    raise objects.MissingError(f'{told}: there is no bucket {bucket}') from None
  except objects.DeniedError as error:
    raise objects.DeniedError(f'{told}: its objects cannot be listed: {error}') from None
  except objects.PassingError as error:
    raise objects.PassingError(f'{told}: {error}') from None


def _check_place(
  address: addresses.Address,
  told: str,
  found: list[objects.Found],
  same: list[str],
  *,
  shared: bool,
) -> None:
  """Refuses an object, a folder of something else, and one in which other workdirs lie."""
  if address.path in same:
    raise objects.BucketError(f'{told} is an object: name a folder of its own')
  held = {each.name.removeprefix(f'{address.path}/'): each.size for each in found}
  locks = [each for each, size in held.items() if each.endswith(f'/{lease.NAME}') and size]
  inner = next(iter(locks), '')  # an empty one is of a part of an evaluation, on a disk
  if inner and not shared:
    raise objects.BucketError(
      f'{told}: another run lies in it, {address / inner.removesuffix(f"/{lease.NAME}")}: name a '
      'folder of its own'
    )
  paths = [each for each in held if each and not each.startswith('.probe_')]
  if paths and not any(each.partition('/')[0] in folders.OWN for each in paths) and not inner:
    raise objects.BucketError(
      f'{told} holds other objects, such as {paths[0]}, and no run: name a folder of its own'
    )


def _check_parents(store: objects.Objects, address: addresses.Address, told: str) -> None:
  """Refuses a folder that lies in another run."""
  parts = address.path.split('/')
  for count in range(1, len(parts)):
    parent = addresses.Address(address.scheme, address.bucket, '/'.join(parts[:count]))
    if _look(store, (parent / lease.NAME).path):
      raise objects.BucketError(f'{told} lies in another run, {parent}: name a folder of its own')
