"""One run at a time at an address: an object, `run.lock`, says which process has it.

A store has no locks, but an object can be written only if it is absent, or still as it was read.
The owner writes it again every RENEW_SECONDS. Whoever finds it watches it for WATCH_SECONDS: one
that stays as it is was left behind, and is taken over. No clock is compared with another's. An
owner whose last renewal is older than TRUSTED_SECONDS renews it before it changes anything else.
"""

import contextlib
import json
import math
import os
import pathlib
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from cfn_jax.buckets import addresses, objects

NAME = 'run.lock'
RENEW_SECONDS = 10.0
WATCH_SECONDS = 60.0  # one that is not renewed for so long is left behind
TRUSTED_SECONDS = 45.0  # an owner knows for so long after a renewal that it holds the lock
PAUSE = 2.0  # seconds between two looks
SLOW_SECONDS = 5.0  # a look that takes longer met an outage, in which no owner could renew


class LeaseError(objects.BucketError):
  """Another run is at work at the address: which process, on which host."""


class Lease:
  """The lock of an address, held from `take` to `release`.

  Attributes:
    before: who held it last, as its object said: plain values; empty where nobody did.
  """

  def __init__(self, address: addresses.Address, store: objects.Objects) -> None:
    self._address, self._store = address, store
    self._name = (address / NAME).path
    self._owner = {
      'host': socket.gethostname(),
      'pid': os.getpid(),
      'since': time.ctime(),
      'machine': find_machine(),
      'token': uuid.uuid4().hex,
    }
    self._version = objects.ABSENT
    self._count = 0
    self._renewed = -math.inf  # when the last renewal that succeeded was sent
    self._lost = ''
    self._mutex = threading.Lock()
    self._ended = threading.Event()
    self._renewing = threading.Thread(target=self._keep, daemon=True)
    self.before: dict[str, Any] = {}

  @property
  def token(self) -> str:
    """Tells this holder from every other."""
    return str(self._owner['token'])

  def take(self, say: Callable[[str], None]) -> None:
    """Takes the lock.

    Args:
      say: is told where it is waited for, or taken over.

    Raises:
      LeaseError: another process has it.
    """
    for _ in range(3):  # others may take it at the same moment
      try:
        data, version = self._store.read(self._name)
      except objects.MissingError:
        data, version = b'', objects.ABSENT
      except objects.ChangedError:
        continue
      self.before = read_owner(data)
      if 'pid' in self.before:
        self._watch(data, say)
      if self._write(version):
        self._store.hurry()  # one that fails is written again in time
        self._renewing.start()
        return
    raise LeaseError(self._refuse(self.before))

  def check(self) -> None:
    """Sees that this process holds the lock still; renews it where that is not certain.

    Raises:
      LeaseError: another process has taken it over.
      PassingError: the server does not answer now.
    """
    if not self._lost and not self._is_trusted():
      self._renew(trusting=True)
    if self._lost:
      raise LeaseError(
        f'{self._lost} has taken over the lock of {self._address}, since this process was not '
        f'heard of for {WATCH_SECONDS:.0f} seconds; this run ends, and writes nothing more there'
      )

  def doubt(self) -> None:
    """Has the next check renew the lock."""
    self._renewed = -math.inf

  def release(self) -> None:
    """Returns the lock; what cannot be written now is left behind."""
    self._ended.set()
    self._renewing.join()
    if not self._lost:
      with contextlib.suppress(objects.BucketError):
        text = json.dumps({'token': self.token}).encode()
        self._store.write(self._name, text, self._version)

  def _watch(self, data: bytes, say: Callable[[str], None]) -> None:
    """Returns once a lock was left behind; raises LeaseError where its owner renews it."""
    who = _name(self.before)
    if not is_dead(self.before):
      say(f'{self._address} is locked by {who}: watching for {WATCH_SECONDS:.0f} seconds')
      deadline = time.monotonic() + WATCH_SECONDS
      while time.monotonic() < deadline:
        time.sleep(PAUSE)
        began = time.monotonic()
        try:
          if self._store.read(self._name)[0] != data:
            raise LeaseError(self._refuse(self.before))
        except objects.ChangedError:
          raise LeaseError(self._refuse(self.before)) from None
        except objects.MissingError:
          return
        if time.monotonic() - began > SLOW_SECONDS:
          deadline = time.monotonic() + WATCH_SECONDS
    say(f'{self._address}: {who} is gone; its lock is taken over')

  def _write(self, version: str) -> bool:
    """Writes who has the lock in the place of a version; returns whether that was possible."""
    self._count += 1
    text = json.dumps(self._owner | {'renewed': self._count}).encode()
    began = time.monotonic()
    try:
      self._version = self._store.write(self._name, text, version)
      self._renewed = began
      return True
    except objects.ChangedError:
      pass
    try:  # an answer may be lost after the object was written
      held, found = self._store.read(self._name)
    except (objects.MissingError, objects.ChangedError):
      return False
    ours = read_owner(held).get('token') == self.token
    if ours:
      self._version, self._renewed = found, began
    return ours

  def _is_trusted(self) -> bool:
    return time.monotonic() - self._renewed < TRUSTED_SECONDS

  def _renew(self, *, trusting: bool = False) -> None:
    """Writes the lock again; when trusting, only where the last time is long ago."""
    with self._mutex:
      if self._lost or (trusting and self._is_trusted()):
        return
      if not self._write(self._version):
        self._lost = 'another run'
        with contextlib.suppress(objects.BucketError):
          self._lost = _name(read_owner(self._store.read(self._name)[0]))

  def _keep(self) -> None:
    while not self._ended.wait(RENEW_SECONDS):
      with contextlib.suppress(Exception):  # whatever it is, the next one may succeed
        self._renew()

  def _refuse(self, owner: dict[str, Any]) -> str:
    return f'{self._address} is in use by {_name(owner)}: take another --workdir, or end that run'


def find_machine() -> str:
  """Names the system that numbers this host's processes: its boot, and their name space."""
  try:
    boot = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()
    return f'{boot} {os.readlink("/proc/self/ns/pid")}'  # noqa: PTH115  (no path)
  except OSError:
    return ''


def is_dead(owner: dict[str, Any]) -> bool:
  """Returns whether a holder was a process of this system and is gone."""
  machine = find_machine()
  here = bool(machine) and owner.get('machine') == machine
  return here and not pathlib.Path(f'/proc/{owner["pid"]}').exists()


def read_owner(data: bytes) -> dict[str, Any]:
  """Returns who holds or held a lock; empty where the object says nothing."""
  try:
    owner = json.loads(data[:2000])
  except ValueError:
    return {}
  return owner if isinstance(owner, dict) else {}


def _name(owner: dict[str, Any]) -> str:
  if 'pid' not in owner:
    return 'another run'
  return f'process {owner["pid"]} on {owner.get("host")}, since {owner.get("since")}'
