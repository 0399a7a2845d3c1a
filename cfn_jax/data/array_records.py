"""Images that `cfn_jax.prepare` resized once and packed into ArrayRecord shards.

A folder holds `index.json` (the format, the settings, the classes, the shards with their checksums,
the skipped files). Each shard has `shard-NNNNN.array_record` and `shard-NNNNN.json` (names, labels,
heights and widths of its records). A record is the bytes of one JPEG.
"""

import bisect
import dataclasses
import hashlib
import json
import pathlib
import resource
from typing import Any

import numpy as np

from cfn_jax import places, terminal
from cfn_jax.data import folder, listing
from cfn_jax.data.record import Record, Source, SourceError, check_index, renumber

FORMAT = 'cfn_jax records'
VERSION = 1
INDEX = 'index.json'
SETTINGS = 'settings.json'
# No read-ahead: records are read one at a time, in shuffled order.
_READER_OPTIONS = 'readahead_buffer_size:0'
_MEND = 'Run the same cfn_jax.prepare command again: it makes what is missing'
# Opening a shard takes as long as reading ten records, so shards stay open, up to a limit: each
# needs a file descriptor, and a process has few.
_MOST_READERS = min(512, max(32, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
_NUMBERS = ('number', 'records', 'bytes')


def shard_stem(number: int) -> str:
  """Returns the name of a shard's two files, without their suffixes.

  >>> shard_stem(7)
  'shard-00007'
  """
  return f'shard-{number:05d}'


class RecordsSource(Source):
  """Records of a prepared folder, all or a part of them."""

  def __init__(
    self,
    root: pathlib.Path,
    names: listing.Names,
    *,
    positions: np.ndarray,
    shard_starts: tuple[int, ...],
    labels: np.ndarray,
    class_names: tuple[str, ...],
    checksum: str,
  ) -> None:
    self.root = str(root.absolute())
    self.class_names = class_names
    self._names = names  # of every record of the folder
    self._positions = positions  # int64 [number of records here]: places among all
    self._labels = labels  # int32, of every record of the folder
    self._starts = shard_starts  # the first place of each shard
    self._readers: dict[int, Any] = {}
    digest = hashlib.sha256(checksum.encode() + positions.tobytes())
    self.fingerprint = digest.hexdigest()[:32]
    of_classes = f' in {len(class_names):,} folders' if class_names else ''
    self.description = (
      f'records {root}: {len(positions):,} images{of_classes}, {len(shard_starts)} shards'
    )

  def __repr__(self) -> str:
    return f'RecordsSource({self.fingerprint})'

  def __getstate__(self) -> dict[str, Any]:
    return {**self.__dict__, '_readers': {}}  # each process opens its own

  def __len__(self) -> int:
    return len(self._positions)

  def __getitem__(self, index: int) -> Record:
    place = int(self._positions[check_index(index, len(self._positions))])
    shard = bisect.bisect_right(self._starts, place) - 1
    name = self._names[place]
    try:
      data = self._reader(shard).read([place - self._starts[shard]])[0]
    except MemoryError:
      raise
    except Exception as error:  # riegeli's errors share no type
      # Never a bad image: the fault may be temporary, and a shard can be made again.
      raise SourceError(
        f'shard {shard} ({self.root}/{shard_stem(shard)}.array_record) cannot be read at {name}: '
        f'{terminal.first_line(error)}. If it is damaged, run the same cfn_jax.prepare command '
        'again with --verify: it makes that shard again'
      ) from None
    return Record(data, name, int(self._labels[place]))

  @property
  def names(self) -> list[str]:
    """Returns the name of each image."""
    return [self._names[place] for place in self._positions]

  def labels(self) -> np.ndarray:
    """Returns the class of each image: int32 `[n]`, -1 without one."""
    return self._labels[self._positions]

  def _reader(self, shard: int) -> Any:
    reader = self._readers.pop(shard, None)
    if reader is None:
      from array_record.python import array_record_module

      path = pathlib.Path(self.root, f'{shard_stem(shard)}.array_record')
      reader = array_record_module.ArrayRecordReader(
        str(path), options=_READER_OPTIONS, file_reader_buffer_size=1 << 15
      )
    self._readers[shard] = reader  # the last used one is last
    while len(self._readers) > _MOST_READERS:
      self._readers.pop(next(iter(self._readers)), None)
    return reader


@dataclasses.dataclass(frozen=True)
class Index:
  """The contents of the index files of a prepared folder, about all of its records."""

  root: pathlib.Path
  names: listing.Names
  labels: np.ndarray  # int32 [number of records]
  class_names: tuple[str, ...]
  shard_starts: tuple[int, ...]
  checksum: str

  def source(self, chosen: np.ndarray, class_names: tuple[str, ...]) -> RecordsSource:
    """Returns the records that `chosen`, bool `[n]`, selects, numbered by `class_names`.

    If `class_names` lack a class of the records, labels are -1.
    """
    numbers = renumber(self.class_names, class_names)
    known = numbers[0] >= 0
    source = RecordsSource(
      self.root,
      self.names,
      positions=np.flatnonzero(chosen),
      shard_starts=self.shard_starts,
      labels=numbers[self.labels],
      class_names=class_names if known else (),
      checksum=self.checksum,
    )
    source.foreign_classes = () if known else self.class_names
    return source


def open_records(
  root: pathlib.Path, *, val_root: str, val_fraction: float
) -> tuple[RecordsSource, RecordsSource]:
  """Opens a prepared folder; a second one, or a hash of the names, makes the validation set.

  A validation folder with a class that training lacks has no labels.

  Raises:
    SourceError: prepare did not write the folder or did not finish it, or a shard is damaged.
  """
  index = load_index(root)
  if val_root:
    val_index = load_index(places.local(val_root))
    train = index.source(np.ones(len(index.names), bool), index.class_names)
    return train, val_index.source(np.ones(len(val_index.names), bool), index.class_names)
  held_out = folder.hash_split(index.names, val_fraction, where=root, instead='data.val_root')
  return index.source(~held_out, index.class_names), index.source(held_out, index.class_names)


def load_index(root: pathlib.Path) -> Index:
  """Reads and checks the index files, and the lengths of the shards.

  Raises:
    SourceError: as `open_records`.
  """
  stated = _load_summary(root)
  names: list[str] = []
  labels: list[np.ndarray] = []
  starts, total = [], 0
  for number, shard in enumerate(stated['shards']):
    stem = shard_stem(number)
    starts.append(total)
    total += shard['records']
    try:
      columns = json.loads((root / f'{stem}.json').read_bytes())
      shard_names = listing.Names.of(columns['names'])
      shard_labels = _read_labels(columns['labels'])
      counts = len(shard_names), len(shard_labels)
      size = (root / f'{stem}.array_record').stat().st_size if shard['records'] else 0
    except OSError as error:
      raise SourceError(
        f'shard {number} of {root} is missing ({error.strerror}). {_MEND}'
      ) from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
      raise SourceError(f'the index of shard {number} of {root} is damaged. {_MEND}') from None
    if size != shard['bytes']:
      raise SourceError(
        f'shard {number} ({root / stem}.array_record) is cut short or changed: it has {size:,} '
        f'bytes, its index says {shard["bytes"]:,}. {_MEND}'
      )
    low, high = shard_labels.min(initial=-1), shard_labels.max(initial=-1)
    if low < -1 or high >= len(stated['class_names']):
      raise SourceError(
        f'the index of shard {number} of {root} is damaged: it has labels {low} to {high} of '
        f'{len(stated["class_names"])} classes. {_MEND}'
      )
    if counts != (shard['records'], shard['records']):
      raise SourceError(f'the index of shard {number} of {root} belongs to another run. {_MEND}')
    names.extend(shard_names)
    labels.append(shard_labels)
  if not names:
    raise SourceError(f'{root} holds no records. {_MEND}')
  return Index(
    root,
    listing.Names.of(names),
    np.concatenate([np.zeros(0, np.int32), *labels]),
    tuple(stated['class_names']),
    tuple(starts),
    stated['checksum'],
  )


def _read_labels(values: Any) -> np.ndarray:
  """Returns labels int32 `[N]`; raises TypeError or OverflowError for anything else."""
  if not isinstance(values, list) or not all(type(value) is int for value in values):
    raise TypeError('labels are whole numbers')
  return np.array(values, np.int32)


def _load_summary(root: pathlib.Path) -> dict[str, Any]:
  if not root.is_dir():
    what = 'is a file, not a folder' if root.exists() else 'does not exist'
    raise SourceError(f'{root} {what}; data.root names a folder that cfn_jax.prepare wrote')
  try:
    text = (root / INDEX).read_bytes()
  except OSError:
    text = b''
    if not (root / INDEX).exists() and (root / SETTINGS).is_file():
      done = len(list(root.glob('shard-*.json')))
      raise SourceError(
        f'{root} is not finished ({done} shards are): give cfn_jax.prepare the same command again'
      ) from None
  return check_summary(text, root)


def check_summary(text: bytes, root: object) -> dict[str, Any]:
  """Returns what an index file says.

  Args:
    root: the folder that holds it, for errors.

  Raises:
    SourceError: prepare did not write it, another version did, or it is damaged.
  """
  try:
    stated = json.loads(text)
    known = stated['format'] == FORMAT
  except (ValueError, KeyError, TypeError, RecursionError):
    known = False
  if not known:
    raise SourceError(
      f'{root} holds no {INDEX} that cfn_jax.prepare wrote; for the ArrayRecord files of TFDS use '
      "data.source = 'tfds', for image files 'folder'"
    )
  if isinstance(stated.get('version'), int) and stated['version'] != VERSION:
    raise SourceError(
      f'{root} has version {stated["version"]} of the format, this program reads {VERSION}: '
      'prepare it again'
    )
  wrong = _wrong_field(stated)
  if wrong:
    raise SourceError(f'{root}/{INDEX} is damaged: its {wrong} is missing or wrong. {_MEND}')
  return dict(stated)


def _wrong_field(stated: dict[str, Any]) -> str:
  """Returns the first field that a reader needs and cannot use; '' if all are usable."""
  for field, kind in (('version', int), ('shards', list), ('class_names', list), ('checksum', str)):
    if not isinstance(stated.get(field), kind):
      return field
  for number, shard in enumerate(stated['shards']):
    if not isinstance(shard, dict) or not all(isinstance(shard.get(k), int) for k in _NUMBERS):
      return f'entry {number} of shards'
    if shard['number'] != number:
      return f'entry {number} of shards'
  return '' if all(isinstance(name, str) for name in stated['class_names']) else 'class_names'
