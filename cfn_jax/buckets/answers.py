"""What a store of objects is asked, and what it answers: the same for every kind of store."""

import dataclasses
import pathlib
from typing import Protocol

from cfn_jax.errors import CfnError

TIMEOUT = (5.0, 60.0)  # seconds to connect, and to wait for an answer
ABSENT = ''  # the version of an object that is not there


class BucketError(CfnError):
  """What cannot be done in a bucket: where, why, and what would help."""


class MissingError(BucketError):
  """There is no such object, or no such bucket."""


class ChangedError(BucketError):
  """An object is not the version that was to be replaced."""


class DeniedError(BucketError):
  """The credentials do not allow it."""


class PassingError(BucketError):
  """The server cannot be reached, or asks to try again."""


@dataclasses.dataclass(frozen=True)
class Found:
  """An object in a listing: its whole name, its size in bytes, when it was written (seconds)."""

  name: str
  size: int
  time: float


class Store(Protocol):
  """One bucket of one kind of store: each call is a single request, and raises BucketError."""

  def set_timeout(self, timeout: tuple[float, float]) -> None:
    """Says how many seconds to wait for a connection, and for an answer."""

  def find(self, prefix: str, limit: int | None) -> list[Found]:
    """Lists the objects whose names begin so, in the order of their names; at most some."""

  def read(self, name: str) -> tuple[bytes, str]:
    """Returns what an object holds, and its version."""

  def download(self, name: str, path: pathlib.Path) -> None:
    """Writes an object into a file, and sees that it is whole."""

  def write(self, name: str, data: bytes | pathlib.Path, version: str | None) -> str:
    """Writes bytes, or a file; returns the new version. With a version, replaces only that one."""

  def delete(self, name: str) -> None:
    """Deletes an object."""
