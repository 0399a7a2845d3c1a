"""The workdir of a run that lives in a bucket: a local folder, which is sent there.

All code works in the local folder. It is sent at each save and at the end: small files whole, then
the steps that are new, each marked as whole by its last object; what another run left is fetched at
the start. The first host alone writes, under a lease; the others fetch.
"""

import contextlib
import json
import pathlib
import shutil
import threading
from collections.abc import Iterator

import jax
from jax.experimental import multihost_utils

from cfn_jax import places, terminal
from cfn_jax.buckets import addresses, folders, lease, objects, probe
from cfn_jax.training import stopping

OWNER = 'run'
TOKEN = '.lease'  # in the local folder: the holder of the lock that wrote it last
UNSENT = '.unsent'  # in it while something may not be in the bucket
FEATURES = 'features'
# Names that are sent nowhere: a cache that is made again, and what counts on this host alone.
KEPT_HERE = (FEATURES, 'run.lock')
Stamp = tuple[int, int]  # the size of a file, and when it was written
_open: list['Mirror'] = []


class Mirror:
  """The local folder of an address, while a command holds it."""

  def __init__(
    self, address: addresses.Address, folder: pathlib.Path, lock: lease.Lease | None
  ) -> None:
    self.address, self.folder = address, folder
    self._lock = lock
    self._store = objects.Objects(address, guard=lock.check if lock else lambda: None)
    self._sent: dict[pathlib.Path, Stamp] = {}  # of the files as they are in the bucket
    self._versions: dict[pathlib.Path, str] = {}  # of those that this process wrote there
    self._doomed: list[str] = []
    self._mutex = threading.Lock()

  def begin(self) -> None:
    """Makes the local folder what the bucket holds; all hosts together.

    What the last command could not send is still here, and newer than the bucket, where no other
    has held the address since; otherwise it is moved out of the way.
    """
    if self._lock:
      token = self.folder / TOKEN
      last = token.read_text() if token.is_file() else ''
      unsent = bool(last) and (
        (self.folder / UNSENT).exists() or not all(map(_is_sent, self._walk()[1]))
      )
      kept = unsent and last == self._lock.before.get('token')
      if unsent and not kept:
        left = addresses.stage(self.address, f'left_{last}')
        left.parent.mkdir(parents=True, exist_ok=True)
        self.folder.rename(left)
        terminal.say(f'{self.address}: another has written there since; not sent, and kept: {left}')
      elif not kept:
        _clear(self.folder)
      self.folder.mkdir(parents=True, exist_ok=True)
      token.write_text(self._lock.token)
      self.fetch(files=not kept)
      if kept:
        terminal.say(f'{self.address}: sending what the last start could not: {self.say_sent()}')
        self.push()
    if jax.process_count() > 1:
      multihost_utils.sync_global_devices('the first host has read the bucket')
    if not self._lock:
      _clear(self.folder)
      self.folder.mkdir(parents=True, exist_ok=True)
      self.fetch()

  def fetch(self, *, files: bool = True) -> None:
    """Fetches what the bucket holds and the folder does not; marks what saves left unfinished."""
    found = self._store.find(f'{self.address.path}/')
    listing = folders.make_listing(found, self.address)
    folders.fetch(self._store, listing, self.folder, files=files)
    self._sent |= {path: stamp(path) for path in self._walk()[0] if files}
    for (checkpoints, name), held in listing.steps.items():
      if self._lock and not {folders.COMMIT, folders.ASIDE} & {*held}:
        self._mark(self.address / checkpoints / name, 'unfinished')

  def push(self) -> None:
    """Sends what the bucket does not hold, and deletes there what was dropped here.

    Raises:
      BucketError: says which steps are whole in the bucket, and where the others are.
    """
    with self._mutex:
      if not self._lock:
        return
      try:
        (self.folder / UNSENT).touch()
        self._lock.doubt()
        files, steps = self._walk()
        folders.transfer(self._send, files)
        for step in steps:
          if not _is_sent(step):
            self._send_step(step)
        while self._doomed:
          self._delete(self._doomed.pop())
        (self.folder / UNSENT).unlink(missing_ok=True)
      except lease.LeaseError as error:
        raise lease.LeaseError(f'{error}; what was not sent is in {self.folder}') from error
      except objects.BucketError as error:
        self._store.patience = 0.0  # what comes now ends the command
        raise type(error)(f'{error}; {self.say_sent()}') from error

  def finish(self, *, fails: bool) -> None:
    """Sends what is left, and removes the local folder, of which nothing is lost then.

    Args:
      fails: the command ends with an error, which is what it says last; features are kept for the
        next start on this host.
    """
    told = not self._store.patience
    try:
      self.push()
      if fails:
        _clear(self.folder)
      else:
        shutil.rmtree(self.folder, ignore_errors=True)
    except objects.BucketError as error:
      if not fails:
        raise
      if not told:
        terminal.say(f'warning: {error}')

  def say_sent(self) -> str:
    """Says which steps are in the bucket, and what is on this host alone."""
    steps = self._walk()[1]
    newest = max((int(each.name) for each in steps if _is_sent(each)), default=-1)
    told = f'step {newest} is the newest there' if newest >= 0 else 'no step is there'
    left = [each for each in steps if not _is_sent(each)] or [self.folder]
    kept = f'kept on this host, and sent by the same command: {", ".join(map(str, left))}'
    return f'{told}; {kept}' if steps else kept

  def drop(self, step: pathlib.Path) -> None:
    """Has the next push delete in the bucket what a local folder of a step stands for."""
    if self._lock and _is_sent(step):
      self._doomed.append(f'{self._find(step).path}/')

  def set_aside(self, step: pathlib.Path) -> None:
    """Marks a damaged step in the bucket: it keeps its name there, and counts no more."""
    if self._lock and _is_sent(step):
      self._mark(self._find(step), 'damaged')

  def _mark(self, step: addresses.Address, state: str) -> None:
    self._store.write((step / folders.ASIDE).path, json.dumps({'state': state}).encode())

  def _find(self, step: pathlib.Path) -> addresses.Address:
    """Returns the address of a step that the bucket holds, which its local folder knows."""
    parent = step.parent.relative_to(self.folder).as_posix()
    return self.address / parent / (step / folders.SENT).read_text()

  def _walk(self) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Returns the files that are sent whole when they change, and the folders of steps."""
    files, steps, left = [], [], [self.folder]
    while left:
      for path in sorted(left.pop().iterdir()):
        if path.name in KEPT_HERE or path.name.startswith('.'):
          continue
        if path.name == folders.CHECKPOINTS:
          steps += [each for each in sorted(path.iterdir()) if each.name.isdecimal()]
        elif path.is_dir():
          left.append(path)
        elif path.suffix not in ('.tmp', '.partial'):
          files.append(path)
    figures = [each / 'metrics' / 'metrics' for each in steps if _is_sent(each)]
    return files + [each for each in figures if each.is_file()], steps

  def _send(self, path: pathlib.Path) -> None:
    """Sends a file that has changed since it was sent."""
    try:
      now = stamp(path)
      if self._sent.get(path) == now:
        return
      data = path.read_bytes()
    except FileNotFoundError:  # it has gone meanwhile
      return
    if path.parent.name == 'metrics' and _is_sent(path.parents[1]):
      target = self._find(path.parents[1]) / 'metrics' / 'metrics'
    else:
      target = self.address / path.relative_to(self.folder).as_posix()
    try:
      version = self._store.write(target.path, data, self._versions.get(path))
    except (objects.ChangedError, objects.MissingError):  # by hand, if the lock is held still
      if self._lock:
        self._lock.doubt()
      version = self._store.write(target.path, data)
    self._sent[path], self._versions[path] = now, version

  def _send_step(self, step: pathlib.Path) -> None:
    """Sends the folder of a step under a name that is free there, and then marks it as whole."""
    parent = self.address / step.parent.relative_to(self.folder).as_posix()
    listed = [each.name for each in self._store.find(f'{parent.path}/{step.name}')]
    taken = {each.removeprefix(f'{parent.path}/').partition('/')[0] for each in listed}
    names = [step.name, *(f'{step.name}.{number}' for number in range(1, len(taken) + 1))]
    name = next(each for each in names if each not in taken)
    files = [path for path in step.rglob('*') if path.is_file() and path.name != folders.COMMIT]
    paths = {path: stamp(path) for path in files}

    def send(path: pathlib.Path) -> None:
      target = parent / name / path.relative_to(step).as_posix()
      self._store.write(target.path, path, objects.ABSENT)

    folders.transfer(send, [*paths])
    text = f'Checkpoint commit was successful to {parent / name}'
    self._store.write((parent / name / folders.COMMIT).path, text.encode(), objects.ABSENT)
    self._sent |= paths
    with places.replacing(step / folders.SENT) as partial:
      partial.write_text(name)

  def _delete(self, prefix: str) -> None:
    """Deletes a step; what marks it as whole goes first."""
    found = sorted(
      self._store.find(prefix), key=lambda each: not each.name.endswith(folders.COMMIT)
    )
    for each in found[:1]:
      self._store.delete(each.name)
    folders.transfer(lambda each: self._store.delete(each.name), found[1:])


def _clear(folder: pathlib.Path) -> None:
  """Deletes what lies in a folder, but for features: those are sent nowhere, and know what of."""
  for path in folder.iterdir() if folder.is_dir() else ():
    if path.name == FEATURES:
      continue
    with contextlib.suppress(OSError):  # as of a folder that holds features
      if path.is_symlink() or not path.is_dir():
        path.unlink()
      else:
        _clear(path)
        path.rmdir()


def _is_sent(step: pathlib.Path) -> bool:
  """Returns whether a local folder of a step stands for one in the bucket."""
  return (step / folders.SENT).is_file()


def stamp(path: pathlib.Path) -> Stamp:
  """Returns what changes when a file is written."""
  found = path.stat()
  return found.st_size, found.st_mtime_ns


def find(folder: pathlib.Path) -> Mirror | None:
  """Returns the open mirror that a folder lies in; None for a folder of its own."""
  return next((each for each in _open if folder.is_relative_to(each.folder)), None)


def push(folder: pathlib.Path) -> None:
  """Sends what has changed where a folder lies in a mirror."""
  if mirror := find(folder):
    mirror.push()


def resolve(text: str, name: str) -> pathlib.Path:
  """Returns the local folder of a workdir; for an address, once the bucket has been tried.

  Raises:
    CfnError: there is none, or a run cannot live there.
  """
  if not places.is_address(text):
    return addresses.resolve(text, name)
  address = addresses.parse(text, name)
  folder = addresses.make_stage(address, OWNER)
  probe.check(address, name)
  return folder


@contextlib.contextmanager
def opened(workdir: pathlib.Path) -> Iterator[pathlib.Path]:
  """Holds the address that a workdir stands for, and yields the local folder of this host.

  All hosts enter it together. A folder that stands for none is yielded as it is.

  Raises:
    CfnError: another run holds it, or the bucket cannot be used.
  """
  address = addresses.find(workdir)
  if not address:
    yield workdir
    return
  number, lock, refused = jax.process_index(), None, ''
  if number == 0:
    lock = lease.Lease(address, objects.Objects(address))
    try:
      lock.take(terminal.say)
    except objects.BucketError as error:
      refused = str(error)
  if stopping.any_host(bool(refused)):
    raise lease.LeaseError(refused or f'{address} is not free: see what the first host says')
  folder = addresses.make_stage(address, f'{OWNER}_{number}') if number else workdir
  mirror = Mirror(address, folder, lock)
  try:
    mirror.begin()
    _open.append(mirror)
    try:
      yield folder
    except BaseException:
      mirror.finish(fails=True)
      raise
    mirror.finish(fails=False)
  finally:
    _open[:] = [each for each in _open if each is not mirror]
    if lock:
      lock.release()
