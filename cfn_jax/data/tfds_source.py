"""A split of a TensorFlow Datasets data set, read from its ArrayRecord files without TensorFlow.

The data set must have been prepared with `file_format=array_record`. Preparing some of them needs
TensorFlow, reading does not. Images stay encoded until images.py decodes them.
"""

import hashlib
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from cfn_jax import terminal
from cfn_jax.data import folder, listing, voc_labels
from cfn_jax.data.record import Record, Source, SourceError, check_index, renumber


class TfdsSource(Source):
  """Records of one split, all or a part of them."""

  def __init__(
    self,
    dataset: str,
    split: str,
    data_dir: str,
    *,
    positions: np.ndarray,
    image_key: str,
    label_key: str,
    class_names: tuple[str, ...],
    checksum: str,
  ) -> None:
    self.class_names = class_names
    self._numbers = renumber(class_names, class_names)
    self._where = (dataset, split, data_dir)
    self._positions = positions  # int64 [number of records here]: places in the split
    self._image_key = image_key
    self._label_key = label_key  # '' without labels
    self._opened: Any = None
    digest = hashlib.sha256(checksum.encode() + positions.tobytes())
    self.fingerprint = digest.hexdigest()[:32]
    self.description = f'TFDS {dataset}:{split}: {len(positions):,} images'

  def __repr__(self) -> str:
    return f'TfdsSource({self.fingerprint})'

  def __getstate__(self) -> dict[str, Any]:
    return {**self.__dict__, '_opened': None}  # each process opens its own

  def __len__(self) -> int:
    return len(self._positions)

  def __getitem__(self, index: int) -> Record:
    place = int(self._positions[check_index(index, len(self._positions))])
    if self._opened is None:
      from tensorflow_datasets import decode

      dataset, split, data_dir = self._where
      self._opened = _builder(dataset, data_dir).as_data_source(
        split=split, decoders={self._image_key: decode.SkipDecoding()}
      )
    example = self._opened[place]
    label = self._numbers[example[self._label_key]] if self._label_key else -1
    return Record(example[self._image_key], _name(*self._where[:2], place), int(label))

  def match_classes(self, known: tuple[str, ...]) -> None:
    """Renumbers the classes like the known ones; if one is unknown, images have no labels."""
    own, self._numbers = self.class_names, renumber(self.class_names, known)
    matched = self._numbers[0] >= 0
    self.class_names, self.foreign_classes = (known, ()) if matched else ((), own)

  def multi_labels(self, origin: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Reads the labels uint8 `[n, K]` of a data set that is made like `voc`, whatever their origin.

    Its feature `labels` lists the classes in an image, `labels_no_difficult` those with an object
    that is not difficult.

    Raises:
      SourceError: the data set has no such features.
    """
    features, examples = self.read_features(('labels', 'labels_no_difficult'))
    names = tuple(features['labels'].feature.names)
    labels = np.zeros((len(self), len(names)), np.uint8)
    for row, example in zip(labels, examples):
      row[np.asarray(example['labels'], int)] = voc_labels.IGNORED
      row[np.asarray(example['labels_no_difficult'], int)] = 1
    return labels, names

  def read_features(
    self, keys: tuple[str, ...]
  ) -> tuple[Mapping[str, Any], Generator[dict[str, Any], None, None]]:
    """Returns the descriptions of features, and their values for each record in order.

    Raises:
      SourceError: the data set has no such feature.
    """
    from tensorflow_datasets import decode

    dataset, split, data_dir = self._where
    builder = _builder(dataset, data_dir)
    missing = [key for key in keys if key not in builder.info.features]
    if missing:
      raise SourceError(
        f'TFDS data set {dataset} has no feature {missing[0]!r}; it has '
        f'{", ".join(builder.info.features)}'
      )
    opened = builder.as_data_source(split=split, decoders={self._image_key: decode.SkipDecoding()})
    examples = (opened[int(place)] for place in self._positions)
    return builder.info.features, ({key: each[key] for key in keys} for each in examples)


def open_tfds(
  root: str, *, split: str, val_root: str, val_split: str, val_fraction: float
) -> tuple[TfdsSource, TfdsSource]:
  """Opens `name:split`, and `name:split` or another split of the same data set for validation.

  Raises:
    SourceError: the data set or split is unknown, not prepared, or has no images.
  """
  dataset, part = _parse(split)
  if not dataset or not part:
    raise SourceError(
      f"data.split = {split!r}: with data.source = 'tfds' it is 'name:split', such as "
      "'imagenet2012:train' or 'voc/2007:train+validation'"
    )
  if val_root and not val_split:
    raise SourceError(
      f"data.val_split is empty: data.val_root = '{val_root}' needs the name of a split there"
    )
  if val_split:
    val_dataset, val_part = _parse(val_split)
    train = _open(dataset, part, root)
    val = _open(val_dataset or dataset, val_part, val_root or root)
    val.match_classes(train.class_names)
    return train, val
  everything = _open(dataset, part, root)
  names = listing.Names.of(_name(dataset, part, i) for i in range(len(everything)))
  held_out = folder.hash_split(names, val_fraction, where=split, instead='data.val_split')
  return (
    _open(dataset, part, root, np.flatnonzero(~held_out)),
    _open(dataset, part, root, np.flatnonzero(held_out)),
  )


def _parse(split: str) -> tuple[str, str]:
  """Splits 'name:split'; the split may be a slice, the name may have a version.

  >>> _parse('voc/2007:train'), _parse('imagenet2012:5.1.0:train[:90%]'), _parse('train')
  (('voc/2007', 'train'), ('imagenet2012:5.1.0', 'train[:90%]'), ('', 'train'))
  """
  dataset, _, part = split.partition('[')[0].rpartition(':')
  return dataset, part + split[len(split.partition('[')[0]) :]


def _open(
  dataset: str, split: str, data_dir: str, positions: np.ndarray | None = None
) -> TfdsSource:
  builder = _builder(dataset, data_dir)
  splits = builder.info.splits
  if not splits:
    raise SourceError(*_how_to_prepare(dataset, str(builder.data_dir), data_dir))
  if str(builder.info.file_format).rpartition('.')[2].lower() != 'array_record':
    raise SourceError(
      f'{builder.data_dir} is prepared as {builder.info.file_format.value}, which has no random '
      f'access. Convert it once: tfds build {dataset} --file_format=array_record --overwrite'
    )
  try:
    count = splits[split].num_examples
  except (KeyError, ValueError, AssertionError):
    known = ', '.join(sorted(splits))
    raise SourceError(f'TFDS data set {dataset} has no split {split!r}; it has {known}') from None
  image_key, label_key, class_names = _features(dataset, builder.info.features)
  stated = [(k, v.num_examples, int(v.num_bytes), v.shard_lengths) for k, v in splits.items()]
  return TfdsSource(
    dataset,
    split,
    data_dir,
    positions=np.arange(count) if positions is None else positions,
    image_key=image_key,
    label_key=label_key,
    class_names=class_names,
    checksum=f'{builder.info.full_name} {split} {sorted(stated)}',
  )


def _how_to_prepare(dataset: str, missing: str, data_dir: str) -> list[str]:
  """Returns how to obtain a data set, with TFDS and without, in at most five lines."""
  lines = [f'TFDS data set {dataset} is not prepared in {missing}. Do one of these once:']
  command = f'tfds build {dataset} --file_format=array_record'
  command += f' --data_dir={data_dir}' if data_dir else ''
  packages = 'and what the set itself asks for'
  if dataset.startswith('imagenet2012'):
    packages = '(tensorflow, apache_beam, mlcroissant, importlib_resources)'
    command += ' --manual_dir=FOLDER_OF_THE_TARS'
    lines.append(
      '- from the tar files, without TFDS: python -m cfn_jax.prepare (docs/data.md has the '
      'commands), then data.source=records'
    )
  return [
    *lines,
    '- from class folders: --config.data.source=folder --config.data.root=TRAIN '
    '--config.data.val_root=VAL --config.data.split= --config.data.val_split=',
    f"- {command}; it needs pip install -e '.[tfds-build]' {packages}",
  ]


def _features(dataset: str, features: Any) -> tuple[str, str, tuple[str, ...]]:
  """Finds the image feature, and a class label if there is one."""
  from tensorflow_datasets import features as kinds

  found = [key for key, feature in features.items() if type(feature) is kinds.Image]
  if not found:
    raise SourceError(f'TFDS data set {dataset} has no image feature, but {", ".join(features)}')
  image_key = 'image' if 'image' in found else found[0]
  labels = [key for key, feature in features.items() if type(feature) is kinds.ClassLabel]
  if not labels:
    return image_key, '', ()
  label_key = 'label' if 'label' in labels else labels[0]
  return image_key, label_key, tuple(features[label_key].names)


def _builder(dataset: str, data_dir: str) -> Any:
  import tensorflow_datasets as tfds

  try:
    return tfds.builder(dataset, data_dir=data_dir or None)
  except Exception as error:  # unknown names, missing modules of a builder, unreadable folders
    where = data_dir or "TFDS's default folder"
    raise SourceError(
      f'cannot open TFDS data set {dataset!r} in {where}: {terminal.first_line(error)}'
    ) from None


def _name(dataset: str, split: str, place: int) -> str:
  return f'{dataset}/{split}/{place:08d}'
