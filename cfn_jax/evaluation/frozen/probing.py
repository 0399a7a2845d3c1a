"""The shared part of the linear probe and kNN: data, weights and views of a config, then features.

Between labelled.py, trunks.py and features.py below, and linear_probe.py, svm.py and knn.py above.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections
import numpy as np

from cfn_jax import fields
from cfn_jax.data import feed, views
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import answers, labelled, runs, tables, trunks
from cfn_jax.evaluation.frozen import feature_cache, features
from cfn_jax.training import devices
from cfn_jax.training import task as tasks

Figures = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Extracted:
  """The features of both splits with one set of weights."""

  training: feature_cache.Features
  testing: feature_cache.Features

  def identity(self) -> dict[str, Any]:
    """Returns their identity, as plain values."""
    return {
      'training features': self.training.cache.content(),
      'test features': self.testing.cache.content(),
    }


@dataclasses.dataclass(frozen=True)
class Probe:
  """Data, weights and views.

  Attributes:
    started: the weights by run: `pretrained`, `random`.
    extractors: those of these weights.
    views: those of the training images; test views are single and from the centre.
  """

  data: labelled.Labelled
  started: Mapping[str, trunks.Trunk]
  extractors: Mapping[str, features.Extractor]
  views: views.MakeViews


def open_probe(config: ml_collections.ConfigDict, *, crop: str, mirror: bool, draws: int) -> Probe:
  """Opens data and weights.

  Args:
    crop, mirror, draws: for the views of training images; see `views.MakeViews`.

  Raises:
    CfnError: with the fault, its place and the remedy.
  """
  fields.check_numbers(config, labelled.LIMITS)
  view, made = config.views, config.features
  features.check_dtype(made.dtype)
  if made.part_images < 1:
    raise CfnError(f'features.part_images = {made.part_images}: at least 1')
  if draws < 1:
    raise CfnError(f'views.draws = {draws}: at least 1')
  if draws > 1 and crop == 'centre' and not mirror:
    raise CfnError(
      f"views.draws = {draws}: all views are alike with views.crop = 'centre'; take 1, "
      "views.mirror = True, or views.crop = 'random'"
    )
  started = trunks.open_compared(config, features.DRAWN)
  extractors = {name: open_extractor(config, each) for name, each in started.items()}
  # Deviation: views of training images are drawn once: they stay the same in every epoch.
  transform = views.MakeViews(crop, view.view_px, view.resize_px, view.resize, mirror, draws)
  data = labelled.open_labelled(config, multilabel=config.multilabel, min_side_px=view.resize_px)
  return Probe(data, started, extractors, transform)


def open_extractor(
  config: ml_collections.ConfigDict, trunk: trunks.Trunk, *, unpooled: tuple[str, ...] = ()
) -> features.Extractor:
  """Builds the extractor of a config's features for a trunk; see `features.make_extractor`."""
  model, made = config.model, config.features
  return features.make_extractor(
    trunk,
    layers=tuple(config.layers),
    view_px=config.views.view_px,
    stride=model.stride,
    kind=made.pooling,
    dimensions=made.dimensions,
    unpooled=unpooled,
  )


def extract(
  probe: Probe, name: str, config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> Extracted:
  """Extracts the features of both splits for one run, or opens existing ones."""
  centre = dataclasses.replace(probe.views, crop='centre', mirror=False, draws=1)
  extractor, data, found = probe.extractors[name], probe.data, []
  for which, split, view, limit in (
    ('training', data.training, probe.views, 0),
    ('test', data.testing, centre, config.data.val_max_images),
  ):
    transform = dataclasses.replace(view, labels=split.labels)
    count = min(limit or len(split.reader.source), len(split.reader.source))
    content = extractor.identity() | {
      'images fingerprint': split.fingerprint,
      'classes': list(data.class_names),
      'views': [transform.crop, transform.resize, transform.resize_px, transform.mirror],
      'draws': transform.draws,
      'seed': config.seed,
      'on_bad_image': config.data.on_bad_image,
    }
    images = feed.Feed(
      split.reader, transform, feed.make_loading(config), config.eval_batch_size, limit=count
    )
    images.bad.open(workdir)
    filled = fill_cache(
      config,
      extractor.measure,
      extractor.params(),
      images.evaluate,
      workdir / 'features' / f'{name}-{which}',
      content,
      images=count,
      what=f'{name}: extracting the features of {count:,} {which} images',
    )
    found.append(filled)
  return Extracted(*found)


def fill_cache(
  config: ml_collections.ConfigDict,
  measure: features.Measure,
  params: Any,
  batches: Callable[[int], tasks.Batches],
  path: pathlib.Path,
  content: Mapping[str, Any],
  *,
  images: int,
  what: str,
) -> feature_cache.Features:
  """Extracts features to a cache, or opens existing ones; see `features.extract`.

  Args:
    path: the folder of the cache, without the digest in its name.
    content: the identity of their images.
    what: a message if there is something to do.
  """
  mesh, made = devices.make_mesh(config.num_devices), config.features
  devices.check_batch(config.eval_batch_size, mesh.size, field='eval_batch_size')
  computed = {'dtype': made.dtype, 'matmul_precision': config.matmul_precision}
  cache = feature_cache.open_cache(
    path.parent, path.name, {**content, **computed}, images=images, part_images=made.part_images
  )
  if feature_cache.count_parts(cache) < cache.parts():
    runs.say(f'{what} into {cache.folder}')
  return features.extract(measure, params, batches, cache, mesh=mesh, dtype=made.dtype)


def execute(
  probe: Probe,
  config: ml_collections.ConfigDict,
  judge: Callable[[str, Extracted, pathlib.Path], Figures],
  what: str,
  workdir: pathlib.Path,
) -> dict[str, Figures]:
  """Judges the features of each run, and presents the figures.

  Args:
    judge: (run's name, its features, its folder) to `layers`, figures by layer, and `val_count`.
    what: the title of the table.
  """
  layers, labels = tuple(config.layers), {n: each.label() for n, each in probe.started.items()}
  found = {
    name: judge(name, extract(probe, name, config, workdir), workdir / name)
    for name in probe.extractors
  }

  def show(found: Mapping[str, Figures]) -> None:
    count = next(iter(found.values()))['val_count']
    rows = make_rows(found, labels, layers, multilabel=config.multilabel)
    tables.show(f'{what}, in %, {count:,} test images', layers, [rows])

  charts: runs.Charts = {}
  if config.multilabel:
    for layer in layers:
      rows = {label: found[name]['layers'][layer]['per_class'] for name, label in labels.items()}
      charts[f'average_precision_{layer}.png'] = rows
  origins = {each.label(): each.origin for each in probe.started.values()}
  runs.present(config, workdir, found, origins=origins, show=show, charts=charts)
  return found


def detail(
  rows: Mapping[str, np.ndarray], *, names: tuple[str, ...], multilabel: bool, interval: bool = True
) -> Figures:
  """Scores labels against class scores `[n, K]`, or ranks `[n]` for one class, layer by layer."""
  labels = rows[feature_cache.LABEL]
  judge = (
    functools.partial(answers.judge_scores, interval=interval)
    if multilabel
    else answers.judge_ranks
  )
  layers = {
    layer: judge(found, labels, names)
    for layer, found in rows.items()
    if layer != feature_cache.LABEL
  }
  return {'layers': layers, 'val_count': len(labels)}


def make_rows(
  found: Mapping[str, Any], labels: Mapping[str, str], layers: tuple[str, ...], *, multilabel: bool
) -> list[tables.Row]:
  """Returns the rows of a table: the figures of each run by layer, in per cent."""
  kinds = (
    {'map': 'mAP', 'map_11_point': 'mAP, 11-point'}
    if multilabel
    else {'accuracy': 'top-1', 'top5_accuracy': 'top-5'}
  )
  rows: list[tables.Row] = []
  for name, label in labels.items():
    for kind, title in kinds.items():
      each = [found[name]['layers'][layer] for layer in layers]
      if any(figures.get(kind) is not None for figures in each):
        rows.append((f'{label}, {title}', [_write(figures, kind) for figures in each]))
  return rows


def _write(figures: Figures, kind: str) -> str | float | None:
  if figures.get(f'{kind}_low') is not None:
    return tables.write_interval(figures, kind)
  return None if figures.get(kind) is None else 100 * figures[kind]
