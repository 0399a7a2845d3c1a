"""The objects of a bucket: listed, read, written and deleted, with patience where a server fails.

A store has no folders, no renaming and no locks; an object is written whole or not at all, and may
be written only if it is absent or still what was read (`version`). Every failure is one short
error that names the object.
"""

import math
import os
import pathlib
import random
import time
from collections.abc import Callable
from typing import TypeVar

from cfn_jax import terminal
from cfn_jax.buckets import addresses
from cfn_jax.buckets.answers import (
  ABSENT,
  BucketError,
  ChangedError,
  DeniedError,
  Found,
  MissingError,
  PassingError,
  Store,
)

__all__ = [
  'ABSENT',
  'BucketError',
  'ChangedError',
  'DeniedError',
  'Found',
  'MissingError',
  'Objects',
  'PassingError',
]

PATIENCE_SECONDS = 600.0  # a server that fails for so long is given up
TOLD_AFTER = 5.0  # pauses that are longer are told of
PROBE_TIMEOUT = (3.0, 4.0)

Done = TypeVar('Done')


class Objects:
  """The objects of an address's bucket.

  Args:
    address: any in the bucket.
    patience: seconds for which a request is repeated while the server fails; 0: never.
    guard: is called before each attempt to write or delete, and raises where that may not be.
  """

  def __init__(
    self,
    address: addresses.Address,
    *,
    patience: float | None = None,
    guard: Callable[[], None] = lambda: None,
  ) -> None:
    self.patience = PATIENCE_SECONDS if patience is None else patience
    self._where = f'{address.scheme}://{address.bucket}'
    self._store = _open(address)
    self._told = False
    self._guard = guard
    if not self.patience:
      self.hurry()

  def hurry(self) -> None:
    """Has requests be tried once from now on, and end within seconds."""
    self.patience = 0.0
    self._store.set_timeout(PROBE_TIMEOUT)

  def find(self, prefix: str, *, limit: int | None = None) -> list[Found]:
    """Returns the objects whose names begin so, in the order of their names; at most `limit`."""
    return self._try(prefix, lambda: self._store.find(prefix, limit))[:limit]

  def read(self, name: str) -> tuple[bytes, str]:
    """Returns what an object holds, and its version."""
    return self._try(name, lambda: self._store.read(name))

  def download(self, found: Found, path: pathlib.Path) -> None:
    """Writes an object into a file of the same age, which is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f'.{path.name}.part')
    try:
      self._try(found.name, lambda: self._store.download(found.name, partial))
      os.utime(partial, (found.time, found.time))
      partial.replace(path)
    finally:
      partial.unlink(missing_ok=True)

  def write(self, name: str, data: bytes | pathlib.Path, version: str | None = None) -> str:
    """Writes an object whole, and returns its version.

    Args:
      version: replace only this one; `ABSENT`: only where there is none; None: whatever is there.

    Raises:
      ChangedError: another version is there, and it holds something else.
    """

    def write() -> str:
      self._guard()
      return self._store.write(name, data, version)

    try:
      return self._try(name, write)
    except ChangedError:  # an answer may be lost after the object was written
      try:
        held, found = self.read(name)
      except (MissingError, ChangedError):
        held, found = b'', ABSENT
      if found == ABSENT or held != (data if isinstance(data, bytes) else data.read_bytes()):
        raise
      return found

  def delete(self, name: str) -> None:
    """Deletes an object; one that is not there is deleted already."""

    def delete() -> None:
      self._guard()
      try:
        self._store.delete(name)
      except MissingError:
        return

    self._try(name, delete)

  def _try(self, name: str, act: Callable[[], Done]) -> Done:
    """Repeats a request while the server fails, ever more slowly."""
    until, pause = math.inf, 0.5
    while True:
      try:
        done = act()
        self._told = self._told and pause == 0.5  # a later failure is told again
        return done
      except PassingError as error:
        until = min(until, time.monotonic() + self.patience)  # from the first failure
        if time.monotonic() + pause > until:
          told = f', tried for {self.patience:,.0f} seconds' if self.patience else ''
          raise PassingError(f'{self._where}/{name}: {error}{told}') from error
        if pause > TOLD_AFTER and not self._told:
          self._told = True
          terminal.say(f'{self._where}/{name}: {error}; trying for {self.patience:,.0f} seconds')
      except BucketError as error:
        raise type(error)(f'{self._where}/{name}: {error}') from error
      time.sleep(pause * random.uniform(0.5, 1))
      pause = min(2 * pause, 30.0)


def _open(address: addresses.Address) -> Store:
  """Opens a bucket by the library of its scheme; nothing is asked of the server yet."""
  try:
    if address.scheme == 'gs':
      from cfn_jax.buckets import google_store

      return google_store.GoogleStore(address.bucket)
    from cfn_jax.buckets import s3_store

    return s3_store.S3Store(address.bucket)
  except ImportError as error:
    extra = addresses.EXTRAS[address.scheme]
    raise BucketError(
      f"{address} needs the extra '{extra}' ({error}): pip install 'cfn_jax[{extra}]'"
    ) from None
