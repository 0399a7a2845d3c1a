"""Features on the disk: extracted once, in parts, read through memory maps.

A cache is a folder of parts, each of `part_images` images: `conv1-00003.npy` `[rows, D]` for each
layer, `label-00003.npy`, and `part-00003.json`, which is written last and has their sha256. A part
without it does not count, so a stopped extraction resumes there. `index.json` has the identity of
the features. NumPy only, no pickles. features.py writes it, the probes read it.
"""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from cfn_jax import places, terminal
from cfn_jax.errors import CfnError

LABEL = 'label'
CHUNK_ROWS = 256  # rows to read at once when all are read


class CacheError(CfnError):
  """A folder of features that cannot be used, with the fault, its place and the remedy."""


@dataclasses.dataclass(frozen=True)
class Cache:
  """The place of features, and their identity.

  Attributes:
    identity: plain values: weights, images, settings. Another identity is another folder.
    images: number of images.
    part_images: number of images per part; the last one may have fewer.
  """

  folder: pathlib.Path
  identity: Mapping[str, Any]
  images: int
  part_images: int

  def content(self) -> dict[str, Any]:
    """Returns the identity without the size of a part, which changes no feature."""
    return {name: value for name, value in self.identity.items() if name != 'part_images'}

  def parts(self) -> int:
    """Returns the number of parts of a complete cache."""
    return -(-self.images // self.part_images)

  def path(self, name: str, part: int) -> pathlib.Path:
    """Returns the file of an array of a part."""
    return self.folder / f'{name}-{part:05d}.npy'

  def part_path(self, part: int) -> pathlib.Path:
    """Returns the file that marks a part as complete."""
    return self.folder / f'part-{part:05d}.json'


def open_cache(
  root: pathlib.Path, name: str, identity: Mapping[str, Any], *, images: int, part_images: int
) -> Cache:
  """Returns the cache in the folder `<root>/<name>-<digest of the identity>`.

  Raises:
    CacheError: the folder exists and holds other features.
  """
  whole = json.loads(json.dumps({**identity, 'images': images, 'part_images': part_images}))
  digest = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:12]
  cache = Cache(root / f'{name}-{digest}', whole, images, part_images)
  index = cache.folder / 'index.json'
  if index.exists() and places.read_json(index) != whole:
    raise CacheError(f'{index} is damaged, or of other features; delete {cache.folder}')
  return cache


def count_parts(cache: Cache) -> int:
  """Returns the number of complete parts, from the first on."""
  part = 0
  while part < cache.parts() and cache.part_path(part).exists():
    part += 1
  return part


def await_parts(cache: Cache, seconds: float = 90.0) -> None:
  """Waits for parts that another host has written; on NFS they may show later."""
  until = time.monotonic() + seconds
  if count_parts(cache) < cache.parts():
    terminal.say(f'waiting up to {seconds:.0f} s for features of another host: {cache.folder}')
  while count_parts(cache) < cache.parts() and time.monotonic() < until:
    with contextlib.suppress(OSError):
      list(cache.folder.iterdir())  # asks the server again
    time.sleep(0.5)


def write_part(cache: Cache, part: int, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes a part: its arrays `[n, ...]`, then the file that makes it count."""
  cache.folder.mkdir(parents=True, exist_ok=True)
  if not (cache.folder / 'index.json').exists():
    places.write_json(cache.folder / 'index.json', cache.identity, indent=2)
  digests = {}
  for name, array in arrays.items():
    _write_array(cache.path(name, part), array)
    digests[name] = _digest(cache.path(name, part))
  rows = len(arrays[LABEL])
  places.write_json(cache.part_path(part), {'rows': rows, 'sha256': digests})


class Features:
  """The rows of a complete cache: one per view of each decoded image, in their order."""

  def __init__(self, cache: Cache) -> None:
    """Opens all parts and compares them with their digests.

    Raises:
      CacheError: with the missing or damaged file.
    """
    self.cache = cache
    self._arrays: dict[str, list[np.ndarray]] = {}
    counts = []
    for part in range(cache.parts()):
      record = places.read_json(cache.part_path(part))
      if not isinstance(record.get('rows'), int) or not isinstance(record.get('sha256'), dict):
        raise CacheError(f'{cache.part_path(part)} is missing or damaged; delete {cache.folder}')
      counts.append(record['rows'])
      for name, digest in record['sha256'].items():
        self._arrays.setdefault(name, []).append(_open_array(cache, name, part, digest, counts[-1]))
    self._starts = np.concatenate([[0], np.cumsum(counts)])
    if not len(self):
      raise CacheError(f'{cache.folder}: none of the images gave features')
    self.labels = np.concatenate(self._arrays.pop(LABEL))

  def __len__(self) -> int:
    return int(self._starts[-1])

  @property
  def layers(self) -> tuple[str, ...]:
    """Returns the names of the layers."""
    return tuple(self._arrays)

  def width(self, layer: str) -> int:
    """Returns D, the values of a row."""
    return int(self._arrays[layer][0].shape[1])

  def rows(self, layer: str, indices: np.ndarray | range) -> np.ndarray:
    """Reads rows by number: float32 `[n, D]`."""
    wanted = np.asarray(indices)
    parts = np.searchsorted(self._starts, wanted, side='right') - 1
    found = np.empty((len(wanted), self.width(layer)), np.float32)
    for part in np.unique(parts):
      own = parts == part
      found[own] = self._arrays[layer][part][wanted[own] - self._starts[part]]
    return found

  def take(self, indices: np.ndarray) -> dict[str, np.ndarray]:
    """Reads rows `[n]` of all layers, `[n, D]` each, and their labels."""
    rows = {layer: self.rows(layer, indices) for layer in self.layers}
    return {**rows, LABEL: self.labels[indices]}

  def moments(self, layer: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean and the variance of each value over all rows, float64 `[D]` each.

    They are saved in the folder.
    """
    path = self.cache.folder / f'moments-{layer}.npy'
    if path.exists():
      known = np.load(path, allow_pickle=False)
      if known.shape == (2, self.width(layer)) and np.all(np.isfinite(known)):
        return known[0], known[1]
    chunks = [
      range(start, min(start + CHUNK_ROWS, len(self))) for start in range(0, len(self), CHUNK_ROWS)
    ]
    mean = sum(self.rows(layer, chunk).sum(0, dtype=np.float64) for chunk in chunks) / len(self)
    variance = sum(np.square(self.rows(layer, chunk) - mean).sum(0) for chunk in chunks) / len(self)
    _write_array(path, np.stack([mean, variance]))
    return mean, variance


def _open_array(cache: Cache, name: str, part: int, digest: str, rows: int) -> np.ndarray:
  path = cache.path(name, part)
  try:
    if _digest(path) == digest:
      array: np.ndarray = np.load(path, mmap_mode='r', allow_pickle=False)
      if len(array) == rows:
        return array
  except (OSError, ValueError) as error:
    raise CacheError(f'{path} cannot be read ({error}); delete {cache.folder}') from None
  raise CacheError(
    f'{path} is damaged: it is not what was written (sha256 or rows differ); delete {cache.folder}'
  )


def _digest(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _write_array(path: pathlib.Path, array: np.ndarray) -> None:
  with places.replacing(path) as temporary, temporary.open('wb') as file:
    np.save(file, array, allow_pickle=False)
