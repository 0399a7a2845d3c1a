"""Opens a data set by the name of its kind: from a config's `data` fields to records.

file or record -> `Record` (its bytes or pixels, its name, its label) -> images.py -> the pipeline.
Kinds: 'bundled' (bundled.py), 'folder' and 'voc' (folder.py, voc.py), 'records' (array_records.py,
written by prepare.py), 'tfds' (tfds_source.py). Each kind is imported on demand.
"""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from cfn_jax import places
from cfn_jax.data.record import Record, Source, SourceError

__all__ = [
  'FIELDS',
  'KINDS',
  'Record',
  'Source',
  'SourceError',
  'clear_idle',
  'find_idle',
  'open_config',
  'open_sources',
]

# By kind: the module of data/ and its function that open it, and the fields that it reads.
_OPENERS: dict[str, tuple[str, tuple[str, ...]]] = {
  'bundled': ('bundled.open_bundled', ('crops_per_photograph', 'val_crops_per_photograph')),
  'folder': ('folder.open_folder', ('root', 'val_root', 'val_fraction')),
  'records': ('array_records.open_records', ('root', 'val_root', 'val_fraction', 'cache_dir')),
  'tfds': (
    'tfds_source.open_tfds',
    ('root', 'split', 'val_root', 'val_split', 'val_fraction'),
  ),
  'voc': ('voc.open_voc', ('root', 'split', 'val_root', 'val_split', 'val_fraction')),
}
KINDS = tuple(_OPENERS)
# Fields that are off if they are ''; numbers have defaults that are not off.
_TEXTS = ('root', 'split', 'val_root', 'val_split', 'cache_dir')


def find_idle(source: str, fields: Mapping[str, Any]) -> list[str]:
  """Returns the fields that are set and that a kind of source does not read; '': no kind does.

  >>> find_idle('folder', {'root': 'photos', 'split': 'train'})
  ['split']
  """
  read = {*_OPENERS.get(source, ('', ()))[1]}
  if not any(places.is_address(fields.get(root) or '') for root in ('root', 'val_root')):
    read -= {'cache_dir'}  # nothing is copied
  return [field for field in _TEXTS if field not in read and fields.get(field)]


def clear_idle(source: str, fields: Mapping[str, Any]) -> dict[str, Any]:
  """Turns off the fields that a kind of source does not read."""
  return {**fields, **dict.fromkeys(find_idle(source, fields), '')}


def _refuse_idle(source: str, fields: Mapping[str, Any]) -> None:
  idle = find_idle(source, fields)
  if not idle:
    return
  told = ', '.join(f'data.{field} = {fields[field]!r}' for field in idle)
  remedy = 'set ' + ' '.join(f'--config.data.{field}=' for field in idle)
  if 'val_split' in idle and 'val_root' in _OPENERS[source][1] and not fields['val_root']:
    remedy += (
      ' and name the validation images as data.val_root (without it, data.val_fraction of the '
      'training images is held out)'
    )
  copied = 'cache_dir' in idle and source == 'records'
  of_disk = ' and folders of this disk' if copied else ''
  raise SourceError(f'{told}: not read with data.source = {source!r}{of_disk}; {remedy}')


def _copy(source: str, field: str, address: str, cache_dir: str) -> str:
  """Copies records of a bucket to this host; returns their folder."""
  if source != 'records':
    raise SourceError(
      f'data.{field} = {address}: records alone are read there, and data.source is {source!r}: '
      'prepare the images (python -m cfn_jax.prepare --source=DIR --out=gs://BUCKET/PATH) and take '
      "'records', or mount the bucket (docs/data.md, 'A bucket mount')"
    )
  from cfn_jax.data import bucket_records

  return str(bucket_records.copy(address, f'data.{field}', cache_dir))


def open_sources(
  *,
  source: str,
  root: str = '',
  split: str = '',
  val_root: str = '',
  val_split: str = '',
  val_fraction: float = 0.1,
  crops_per_photograph: int = 800,
  val_crops_per_photograph: int = 320,
  cache_dir: str = '',
) -> tuple[Source, Source]:
  """Opens (training, validation). Only listings are read; '' and 0 mean off.

  Args:
    source: one of `KINDS`.
    root: 'folder': the folder; 'records': what prepare wrote; 'voc': a `VOCdevkit/VOC2007`;
      'tfds': TFDS's data folder ('' its default).
    split: 'voc': a list, `ImageSets/Main/<split>.txt`; 'tfds': `name:split`, e.g.
      `imagenet2012:train`.
    val_root: a second folder, of the same kind, for validation.
    val_split: as `split`, for validation.
    val_fraction: the share held out by a hash of the names if neither of these is set; 0 holds out
      nothing, and the validation source is empty.
    crops_per_photograph, val_crops_per_photograph: 'bundled' only.
    cache_dir: 'records': where those of a bucket are copied to; '': in the user's cache.

  Raises:
    SourceError: with the fault, its place and the remedy.
  """
  fields = dict(locals())
  if source not in KINDS:
    raise SourceError(f'data.source = {source!r}: it must be one of {", ".join(KINDS)}')
  _refuse_idle(source, fields)
  if not root and source not in ('bundled', 'tfds'):
    raise SourceError(f'data.root is empty: data.source = {source!r} needs a folder')
  opener, read = _OPENERS[source]
  arguments = {field: fields[field] for field in read}
  copies = arguments.pop('cache_dir', '')
  for field in ('root', 'val_root'):
    if places.is_address(arguments.get(field, '')):
      arguments[field] = _copy(source, field, arguments[field], copies)
  if root and source != 'tfds':
    arguments['root'] = places.local(arguments['root'])
  module, _, function = opener.partition('.')
  opened: tuple[Source, Source] = getattr(
    importlib.import_module(f'cfn_jax.data.{module}'), function
  )(**arguments)
  return opened


FIELDS = tuple(inspect.signature(open_sources).parameters)


def open_config(data: Mapping[str, Any]) -> tuple[Source, Source]:
  """Opens (training, validation) for the section `data` of a config, see `open_sources`."""
  return open_sources(**{field: data[field] for field in FIELDS if field in data})
