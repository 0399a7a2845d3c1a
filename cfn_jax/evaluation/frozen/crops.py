"""Opens queries and a gallery of a config, whole images or objects of VOC, with their features.

Between data/voc_crops.py, labelled.py and features.py below, and retrieval.py above.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import ml_collections
import numpy as np

from cfn_jax.data import feed, pipeline, splits, voc_crops, voc_objects
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import labelled
from cfn_jax.evaluation.frozen import feature_cache, features, probing, ranking


@dataclasses.dataclass(frozen=True)
class Side:
  """The queries, or the gallery.

  Attributes:
    counted: the word for its records.
    images: int `[n]` by record: the image of each.
    name: its name in folders and messages.
  """

  split: labelled.Split
  transform: voc_crops.MakeCrops
  images: np.ndarray
  counted: str
  name: str

  def show(self, record: int) -> np.ndarray:
    """Returns the visible part of a record, not warped: uint8 `[h, w, 3]`."""
    return self.transform.cut(self.split.reader.decode(record)[1], record)


@dataclasses.dataclass(frozen=True)
class Opened:
  """Both sides, of the same classes."""

  gallery: Side
  queries: Side
  class_names: tuple[str, ...]


def open_sides(config: ml_collections.ConfigDict) -> Opened:
  """Opens the objects of VOC images, or the whole images of other sources.

  Raises:
    CfnError: with the fault, its place and the remedy.
  """
  view_px = config.views.view_px
  if config.data.source == 'voc':
    opened = _open_objects(config, view_px)
  else:
    data = labelled.open_single(config, min_side_px=view_px)
    sides = [
      Side(
        split,
        voc_crops.MakeCrops(view_px),
        np.arange(len(split.reader.source)),
        'images',
        name,
      )
      for split, name in ((data.training, 'gallery'), (data.testing, 'queries'))
    ]
    opened = Opened(sides[0], sides[1], data.class_names)
  _check_apart(opened)
  _check_classes(opened, allow_empty=config.data.allow_empty_classes)
  return opened


def _open_objects(config: ml_collections.ConfigDict, view_px: int) -> Opened:
  d, o = config.data, config.objects
  gallery, queries, names = voc_objects.open_config(config, count_difficult=True)
  sides = []
  for split, name in ((gallery, 'gallery'), (queries, 'queries')):
    source = voc_crops.ObjectSource(split, names, least_px=o.min_area_px, difficult=o.difficult)
    reader = pipeline.Reader(source, seed=config.seed, on_bad_image=d.on_bad_image)
    sides.append(
      Side(
        labelled.Split(reader, np.empty((0, 0), np.uint8)),
        voc_crops.MakeCrops(view_px, source.boxes),
        source.images,
        'objects',
        name,
      )
    )
  return Opened(sides[0], sides[1], names)


def _check_apart(opened: Opened) -> None:
  """Refuses images on both sides: the nearest answer to a query would be itself."""
  gallery, queries = (side.split.reader.source for side in (opened.gallery, opened.queries))
  shared: list[str] = []
  if gallery.root and gallery.root == queries.root:
    shared = sorted({*getattr(gallery, 'names', ())} & {*getattr(queries, 'names', ())})
  if opened.gallery.counted == 'objects':  # names, boxes and classes: a copy has the same
    same = gallery.fingerprint == queries.fingerprint
  else:
    same = gallery.identify() == queries.identify()
  if shared or same:
    which = f'{len(shared):,} images, such as {shared[0]}' if shared else gallery.description
    raise CfnError(
      f'{which}: in the gallery and among the queries, and a query would find itself; name others '
      'in data.split and data.val_split, or data.root and data.val_root'
    )


def _check_classes(opened: Opened, *, allow_empty: bool) -> None:
  """Refuses sides that have too few records or classes."""
  gallery, queries = opened.gallery, opened.queries
  where = gallery.split.reader.source.description
  size = len(gallery.split.reader.source)
  if size < ranking.NEAREST:
    raise CfnError(f'{where}: the gallery has {size}; at least {ranking.NEAREST} are needed')
  counts = [
    labelled.count_classes(side.split, len(opened.class_names)) for side in (gallery, queries)
  ]
  ours, theirs = counts
  if ours is None or theirs is None:  # known only by reading all records
    return
  shown = [name for name, count in zip(opened.class_names, ours) if count]
  if len(shown) < 2:
    raise CfnError(
      f'{where}: all {size:,} in the gallery are of one class, {shown[0]}: there is nothing to '
      'tell apart'
    )
  told = []
  for what, counted in (('none in the gallery', ours), ('no query', theirs)):
    lacking = [name for name, count in zip(opened.class_names, counted) if not count]
    if lacking:
      told.append(f'{what}: {", ".join(lacking[: splits.NAMED])}')
  if told and not allow_empty:
    raise CfnError(
      f'classes without {gallery.counted}, {"; ".join(told)}; data.allow_empty_classes=True '
      'leaves out what cannot be scored, and counts it'
    )
  if not np.any((ours > 0) & (theirs > 0)):
    raise CfnError(f'{where}: no class is both in the gallery and among the queries')


def extract(
  side: Side,
  run: str,
  extractor: features.Extractor,
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  *,
  class_names: Sequence[str],
  limit: int,
) -> feature_cache.Features:
  """Extracts the features of one side with one run's weights, or opens existing ones.

  Their `labels` are int32 `[n, 2]`: the class and the record of each row.

  Args:
    limit: largest number of records, a random subset; 0: all.
  """
  reader = side.split.reader
  count = min(limit or len(reader.source), len(reader.source))
  content: dict[str, Any] = extractor.identity() | {
    'images fingerprint': side.split.fingerprint,
    'classes': list(class_names),
    'views': side.counted,
    'seed': config.seed,
    'on_bad_image': config.data.on_bad_image,
  }
  fed = feed.Feed(
    reader, side.transform, feed.make_loading(config), config.eval_batch_size, limit=count
  )
  fed.bad.open(workdir)
  return probing.fill_cache(
    config,
    extractor.measure,
    extractor.params(),
    fed.evaluate,
    workdir / 'features' / f'{run}-{side.name}',
    content,
    images=count,
    what=f'{run}: extracting the features of {count:,} {side.counted} ({side.name})',
  )
