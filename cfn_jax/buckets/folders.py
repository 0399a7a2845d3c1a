"""Folders of runs between a bucket and this host: small files whole, the arrays of steps on demand.

In the bucket a step's folder `checkpoints/<name>/` counts once it holds `commit_success.txt`, which
is written last, as Orbax marks its steps there. One without is unfinished. What is set aside keeps
its name and gets an object `set_aside.json`; a later save of the same step is called `<step>.1`.
"""

import contextlib
import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any

from cfn_jax.buckets import addresses, objects

CHECKPOINTS = 'checkpoints'
COMMIT = 'commit_success.txt'
SENT = '.sent'  # in the local folder of a step: the name of the one in the bucket
ASIDE = 'set_aside.json'
UNFINISHED, DAMAGED = '.orbax-checkpoint-tmp', 'damaged_'  # in local names, as of other runs
THREADS = 8
# What a workdir holds, whichever command wrote it.
OWN = (
  *('run.lock', 'starts.jsonl', 'config.json', 'metrics.jsonl', CHECKPOINTS, 'results.json'),
  *('study.json', 'execution.json', 'report.html'),
)
MOST = 100_000  # objects that are looked at, at one address
# How names of files begin that no start of a run reads.
_UNREAD = ('events.out.', 'profile', 'run.lock', '.')


@dataclasses.dataclass(frozen=True)
class Listing:
  """What lies at an address.

  Attributes:
    files: by path below the address, what is no part of a step.
    steps: by folder of checkpoints and name of a step there, its objects by path below it.
  """

  files: Mapping[str, objects.Found]
  steps: Mapping[tuple[str, str], Mapping[str, objects.Found]]


def make_listing(found: Iterable[objects.Found], address: addresses.Address) -> Listing:
  """Sorts the objects below an address."""
  files: dict[str, objects.Found] = {}
  steps: dict[tuple[str, str], dict[str, objects.Found]] = {}
  for each in found:
    path = each.name.removeprefix(f'{address.path}/')
    parts = path.split('/')
    at = parts.index(CHECKPOINTS) if CHECKPOINTS in parts else len(parts)
    if not all(part not in ('', '.', '..') for part in parts):
      continue  # such as the empty objects by which consoles make folders
    if len(parts) > at + 2:
      key = '/'.join(parts[: at + 1]), parts[at + 1]
      steps.setdefault(key, {})['/'.join(parts[at + 2 :])] = each
    else:
      files[path] = each
  return Listing(files, steps)


def name_locally(name: str, held: Iterable[str], state: Mapping[str, Any]) -> str:
  """Returns the local name of a step's folder in a bucket.

  Args:
    held: the paths of its objects.
    state: what its `set_aside.json` says.

  >>> name_locally('300', [COMMIT], {}), name_locally('300', ['meta/metadata'], {})
  ('300', '300.orbax-checkpoint-tmp')
  >>> name_locally('300.1', [COMMIT], {}), name_locally('9', [COMMIT], {'state': 'damaged'})
  ('300', 'damaged_9')
  """
  if state.get('state') == 'damaged':
    return f'{DAMAGED}{name}'
  if COMMIT not in held or state:
    return f'{name}{UNFINISHED}'
  return name.partition('.')[0]


def transfer(act: Callable[[Any], object], items: Sequence[Any]) -> None:
  """Does something for several files at once; raises what the first of them raises."""
  with futures.ThreadPoolExecutor(THREADS) as pool:
    running = [pool.submit(act, each) for each in items]
    try:
      for each in running:
        each.result()
    except BaseException:
      pool.shutdown(cancel_futures=True)
      raise


def check_room(
  folder: pathlib.Path, needed: int, what: str, setting: str = 'XDG_CACHE_HOME'
) -> None:
  """Raises BucketError where a disk has too little room; the setting names another."""
  there = next(path for path in (folder, *folder.parents) if path.is_dir())
  free = shutil.disk_usage(there).free
  if needed > free:
    raise objects.BucketError(
      f'{what} takes {needed / 1e6:,.0f} MB, and {there} has {free / 1e6:,.0f} MB free: set '
      f'{setting} to a folder on a disk with room'
    )


def fetch(
  store: objects.Objects,
  listing: Listing,
  folder: pathlib.Path,
  *,
  files: bool = True,
  skipped: tuple[str, ...] = _UNREAD,
) -> None:
  """Fetches what a run needs to start: small files, and of each step all but its arrays.

  Local steps that are no longer in the bucket go, as do those that are deleted there meanwhile.

  Args:
    folder: stands for the address of the listing.
    files: fetch those beside the steps too.
    skipped: how the names of files and folders begin that are left there.
  """
  wanted = {
    folder / path: each
    for path, each in listing.files.items()
    if files and not any(part.startswith(skipped) for part in path.split('/'))
  }
  known: dict[pathlib.Path, str] = {}
  newest_first = sorted(listing.steps, key=lambda each: (each[0], *_count(each[1])), reverse=True)
  for checkpoints, name in newest_first:
    held = listing.steps[checkpoints, name]
    state = _read_state(store, held[ASIDE].name) if ASIDE in held else {}
    step = folder / checkpoints / name_locally(name, held, state)
    if step in known:
      continue  # an older save of the same step
    known[step] = name
    step.mkdir(parents=True, exist_ok=True)
    (step / SENT).write_text(name)  # first: a part of a step that was fetched is none of our own
    if step.name.isdecimal():
      small = {step / path: each for path, each in held.items() if not _is_array(path)}
      wanted |= {path: each for path, each in small.items() if not path.is_file()}
  check_room(folder, sum(each.size for each in wanted.values()), f'what lies at {folder}')
  gone = {parent for path in _download(store, wanted) for parent in path.parents}
  for step in folder.rglob(f'{CHECKPOINTS}/*'):
    if (step / SENT).is_file() and (step not in known or step in gone):
      shutil.rmtree(step)


def _count(name: str) -> tuple[int, int]:
  """Returns what sorts the names of steps, and of the saves of one step.

  >>> _count('300.10') > _count('300.9') > _count('300') > _count('60')
  True
  """
  step, _, save = name.partition('.')
  return (int(step) if step.isdecimal() else -1), (int(save) if save.isdecimal() else 0)


def _read_state(store: objects.Objects, name: str) -> dict[str, Any]:
  """Reads what an object says of a step that was set aside; what says nothing means damaged."""
  state: Any = None
  with contextlib.suppress(ValueError, RecursionError, objects.MissingError):
    state = json.loads(store.read(name)[0])
  return state if isinstance(state, dict) and state else {'state': 'damaged'}


def _download(
  store: objects.Objects, wanted: Mapping[pathlib.Path, objects.Found]
) -> list[pathlib.Path]:
  """Fetches objects into files; returns those whose objects have gone since they were listed."""
  gone: list[pathlib.Path] = []

  def fetch(path: pathlib.Path) -> None:
    try:
      store.download(wanted[path], path)
    except objects.MissingError:
      gone.append(path)

  transfer(fetch, [*wanted])
  return gone


def _is_array(path: str) -> bool:
  """Tells the large objects of a step, which Orbax keeps in folders `d`."""
  return path.startswith('state/') and '/d/' in path


def bring(step: pathlib.Path) -> None:
  """Fetches the arrays of a step that stands for one in a bucket; others are there already.

  A checkpoint that the bucket holds in part comes in part, and then shows as damaged.
  """
  address = addresses.find(step)
  if not address or not (step / SENT).is_file():
    return
  there = dataclasses.replace(address, path=address.path.rpartition('/')[0])
  prefix = f'{there.path}/{(step / SENT).read_text()}/'
  store = objects.Objects(address)
  wanted = {
    path: each
    for each in store.find(prefix)
    if not (path := step / each.name.removeprefix(prefix)).is_file()
    or path.stat().st_size != each.size
  }
  check_room(step, sum(each.size for each in wanted.values()), f'{address}')
  _download(store, wanted)
