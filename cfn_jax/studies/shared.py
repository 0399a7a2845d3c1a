"""The workdir of a study that lives in a bucket: its small files here, shared with other parts.

Each run of the study is a process that lives at its own address below, under its own lock. The
study writes what it knows of them; several hosts may do its parts, as on one disk.
"""

import contextlib
import pathlib
import shutil
from collections.abc import Callable, Iterator

from cfn_jax import places
from cfn_jax.buckets import addresses, folders, objects, probe
from cfn_jax.training import mirror


@contextlib.contextmanager
def opened(text: str, name: str) -> Iterator[tuple[pathlib.Path, Callable[[], None]]]:
  """Yields the local folder of a study's workdir, and what makes it and the bucket alike.

  Raises:
    CfnError: a study cannot live there.
  """
  if not places.is_address(text):
    yield addresses.resolve(text, name), lambda: None
    return
  address = addresses.parse(text, name)
  owner = addresses.make_owner('study')
  folder = addresses.make_stage(address, owner)
  probe.check(address, name, shared=True)
  shared = _Shared(address, folder)
  shared.sync()
  try:
    yield folder, shared.sync
    shared.sync()
  finally:
    shutil.rmtree(addresses.find_root() / owner, ignore_errors=True)


def find_live(folder: pathlib.Path) -> pathlib.Path:
  """Returns where a run writes that this host is at, from its folder in the study's workdir."""
  address = addresses.find(folder)
  return addresses.stage(address, mirror.OWNER) if address else folder


class _Shared:
  """A local folder, and what of it is known to be in the bucket."""

  def __init__(self, address: addresses.Address, folder: pathlib.Path) -> None:
    self._address, self._folder = address, folder
    self._store = objects.Objects(address)
    self._here: dict[pathlib.Path, mirror.Stamp] = {}
    self._there: dict[str, objects.Found] = {}

  def sync(self) -> None:
    """Sends the files that changed here, and fetches those that changed there, but for steps."""
    for path in self._folder.rglob('*'):
      if path.is_file() and self._here.get(path) != mirror.stamp(path):
        name = path.relative_to(self._folder).as_posix()
        self._here[path] = mirror.stamp(path)
        self._store.write((self._address / name).path, path.read_bytes())
    found = self._store.find(f'{self._address.path}/')
    files = folders.make_listing(found, self._address).files
    changed = {path: each for path, each in files.items() if self._there.get(path) != each}
    folders.fetch(self._store, folders.Listing(changed, {}), self._folder)
    self._there |= changed
    fetched = [path for each in changed if (path := self._folder / each).is_file()]
    self._here |= {path: mirror.stamp(path) for path in fetched}
