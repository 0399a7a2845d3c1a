"""Records in a bucket: copied once to each host before they are read, sent there once prepared.

A copy that was stopped is resumed: a shard counts once its SHA-256 is what `index.json` says, and
the copy of that file comes last. Processes of one host share a copy and wait for it.
"""

import contextlib
import fcntl
import pathlib
import shutil
import threading
from collections.abc import Iterator
from typing import Any

from cfn_jax import places, terminal
from cfn_jax.buckets import addresses, folders, objects, probe, reading
from cfn_jax.data import array_records, prepare_shard
from cfn_jax.data.parts import PrepareError
from cfn_jax.data.record import SourceError

COPIED = '.copied.json'  # the digests of the shards that are copied and checked
OWNER = 'prepared'


def copy(text: str, field: str, cache_dir: str) -> pathlib.Path:
  """Copies the records that a field names to this host; returns their folder, as prepare wrote it.

  Args:
    cache_dir: where copies lie; '': in a folder of the user's cache.

  Raises:
    SourceError: there are none, they are damaged, or the disk is too small.
  """
  address = addresses.parse(text, field)
  top = places.local(cache_dir) if cache_dir else addresses.find_root().parent / 'records'
  folder = top / address.scheme / address.bucket / address.path
  places.make_folder(folder, 'data.cache_dir')
  with (folder / '.lock').open('w') as lock:
    with contextlib.suppress(OSError):  # a file system without locks
      fcntl.flock(lock, fcntl.LOCK_EX)
    store = objects.Objects(address)
    try:
      index = objects.Objects(address, patience=0.0).read((address / array_records.INDEX).path)[0]
    except objects.MissingError:
      probe.check_bucket(address, field)
      raise SourceError(
        f'{field} = {address} holds no {array_records.INDEX} that cfn_jax.prepare wrote: prepare '
        'the images (--out may be an address), or mount the bucket to read others'
      ) from None
    _copy_shards(store, address, folder, array_records.check_summary(index, address))
    with places.replacing(folder / array_records.INDEX) as partial:
      partial.write_bytes(index)
  return folder


def _copy_shards(
  store: objects.Objects, address: addresses.Address, folder: pathlib.Path, stated: dict[str, Any]
) -> None:
  """Copies the shards that are missing or were made again, several at once."""
  copied = places.read_json(folder / COPIED)
  left = {
    array_records.shard_stem(shard['number']): shard
    for shard in stated['shards']
    if not _is_copied(folder, shard, copied)
  }
  if not left:
    return
  (folder / array_records.INDEX).unlink(missing_ok=True)
  needed, mutex = sum(shard['bytes'] for shard in left.values()), threading.Lock()
  folders.check_room(folder, needed, f'{address}', 'data.cache_dir')
  with terminal.make_bar(total=needed, desc=f'copying {address}', unit='B', unit_scale=True) as bar:

    def fetch(stem: str) -> None:
      for suffix in ('.json', '.array_record') if left[stem]['records'] else ('.json',):
        path = folder / f'{stem}{suffix}'
        partial = folder / f'.{path.name}.part'
        found = objects.Found((address / path.name).path, left[stem]['bytes'], 0.0)
        store.download(found, partial)
        named = 'columns_sha256' if suffix == '.json' else 'sha256'
        if named in left[stem] and prepare_shard.digest(partial) != left[stem][named]:
          partial.unlink()
          raise SourceError(
            f'{address / path.name} is not what {array_records.INDEX} says (its SHA-256 differs): '
            'run the same cfn_jax.prepare command again with --verify'
          )
        partial.replace(path)
      with mutex:
        copied[stem] = _identify(left[stem])
        places.write_json(folder / COPIED, copied)
        bar.update(left[stem]['bytes'])

    folders.transfer(fetch, [*left])


def _identify(shard: dict[str, Any]) -> list[Any]:
  """Returns the digests of a shard's two files, its images and their names and labels."""
  return [shard.get('sha256'), shard.get('columns_sha256')]


def _is_copied(folder: pathlib.Path, shard: dict[str, Any], copied: dict[str, Any]) -> bool:
  stem = array_records.shard_stem(shard['number'])
  if copied.get(stem) != _identify(shard) or not (folder / f'{stem}.json').is_file():
    return False
  path = folder / f'{stem}.array_record'
  return not shard['records'] or (path.is_file() and path.stat().st_size == shard['bytes'])


@contextlib.contextmanager
def sending(text: str, *, again: bool) -> Iterator[str]:
  """Yields the folder in which prepare writes; what an address is to get is sent there at the end.

  Args:
    again: send shards too that are there already.

  Raises:
    PrepareError: other things lie there.
  """
  if not places.is_address(text):
    yield text
    return
  address = addresses.parse(text, '--out')
  folder = addresses.make_stage(address, OWNER)
  probe.check_access(address, '--out')
  store = objects.Objects(address)
  there = _list(store, address)
  known = ('shard-', 'index.', 'settings.', '.')  # a dot: of a look that was killed
  strange = [name for name in there if name and not name.startswith(known)]
  if strange:
    raise PrepareError(f'--out={address} holds other objects, such as {strange[0]}; give a new one')
  index, settings = folder / array_records.INDEX, folder / array_records.SETTINGS
  if settings.name in there:  # prepare compares it with its own
    theirs = store.read((address / settings.name).path)[0]
    if settings.is_file() and settings.read_bytes() != theirs:
      raise PrepareError(
        f'--out={address} was prepared with other settings since this host began: delete {folder} '
        'and give the same command, or take another --out'
      )
    settings.write_bytes(theirs)
  with reading.named():
    yield str(folder)
  _send(store, address, [settings])  # first: it says whose shards these are
  paths = sorted(folder.glob('shard-*'))
  left = [path for path in paths if again or there.get(path.name) != path.stat().st_size]
  with terminal.make_bar(
    total=sum(path.stat().st_size for path in left), desc=f'sending to {address}', unit='B',
    unit_scale=True,
  ) as bar:  # fmt: skip

    def send(path: pathlib.Path) -> None:
      _send(store, address, [path])
      bar.update(path.stat().st_size)

    folders.transfer(send, left)
  _send(store, address, [index])  # last: now they can be read
  shutil.rmtree(folder)


def _list(store: objects.Objects, address: addresses.Address) -> dict[str, int]:
  """Returns the names of the objects at an address, and their sizes."""
  found = store.find(f'{address.path}/', limit=folders.MOST)
  return {each.name.removeprefix(f'{address.path}/'): each.size for each in found}


def _send(store: objects.Objects, address: addresses.Address, paths: list[pathlib.Path]) -> None:
  for path in paths:
    store.write((address / path.name).path, path)
