"""Retrieval: the objects or images nearest to a query, by frozen features.

Paper, section 4.2: each object of VOC2007's test is a query for those of trainval, by the inner
product of their normalised pool5. Objects of the query's class are relevant. Nothing is trained.
crops.py opens both sides, similarity.py compares them, ranking.py scores.
"""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections
import numpy as np

from cfn_jax import fields
from cfn_jax.data import streams
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import identity, labelled, runs, tables, trunks
from cfn_jax.evaluation.frozen import crops, feature_cache, features, probing, ranking, similarity
from cfn_jax.pictures import figures as drawing
from cfn_jax.pictures import retrievals
from cfn_jax.training import devices
from cfn_jax.training import task as tasks

UNPOOLED = ('pool5',)  # as in the paper
LIMITS = {
  **labelled.LIMITS,
  'features.part_images': (1, 2**62),
  'objects.min_area_px': (0, 2**62),
  'retrieval.block_rows': (1, 2**20),
  'retrieval.sheet_queries': (0, 200),
}
# The paper shows curves and neighbours of VOC2007, without a figure.
PAPER = {
  'queries': 'objects of VOC2007 test',
  'gallery': 'objects of VOC2007 trainval',
  'least_area_px': 10_000,
  'features': 'pool5, normalised',
  'shown': 'the nearest four, precision-recall curves; no figures',
  'found': 'CFN about as Doersch et al.',
}
TITLES = {
  'precision_at_1': 'precision at 1',
  f'precision_at_{ranking.NEAREST}': f'at {ranking.NEAREST}',
  'map': 'mAP',
  'map_macro': 'mAP by class',
}


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens data and weights.

  Raises:
    CfnError: with the fault, its place and the remedy.
  """
  fields.check_numbers(config, LIMITS)
  features.check_dtype(config.features.dtype)
  started = trunks.open_named(config, features.DRAWN)
  extractors = {
    name: probing.open_extractor(config, each, unpooled=UNPOOLED) for name, each in started.items()
  }
  return functools.partial(execute, config, started, extractors, crops.open_sides(config))


def execute(
  config: ml_collections.ConfigDict,
  started: Mapping[str, trunks.Trunk],
  extractors: Mapping[str, features.Extractor],
  data: crops.Opened,
  workdir: pathlib.Path,
) -> dict[str, runs.Figures]:
  """Extracts and scores the features of each run, and presents the figures."""
  labels = {name: each.label() for name, each in started.items()}
  found = {name: run_one(config, name, extractors[name], data, workdir) for name in extractors}
  layers = tuple(config.layers)
  charts: runs.Charts = {
    f'average_precision_{layer}.png': {
      label: found[name]['layers'][layer]['per_class'] for name, label in labels.items()
    }
    for layer in layers
  }
  runs.present(
    config,
    workdir,
    found,
    origins={each.label(): each.origin for each in started.values()},
    show=functools.partial(show, labels=labels, counted=data.gallery.counted),
    charts=charts,
    published=PAPER,
  )
  if not jax.process_index():
    draw(workdir, data, found, labels)
  return found


def run_one(
  config: ml_collections.ConfigDict,
  name: str,
  extractor: features.Extractor,
  data: crops.Opened,
  workdir: pathlib.Path,
) -> runs.Figures:
  """Extracts the features of both sides and scores them, or reads earlier results."""
  extract = functools.partial(
    crops.extract,
    run=name,
    extractor=extractor,
    config=config,
    workdir=workdir,
    class_names=data.class_names,
  )
  gallery = extract(data.gallery, limit=0)
  queries = extract(data.queries, limit=config.data.val_max_images)
  content = {
    'gallery features': gallery.cache.content(),
    'query features': queries.cache.content(),
  }
  compute = functools.partial(judge, config, data, gallery, queries)
  return runs.remember(name, identity.describe(config) | content, workdir / name, compute)


def judge(
  config: ml_collections.ConfigDict,
  data: crops.Opened,
  gallery: feature_cache.Features,
  queries: feature_cache.Features,
) -> runs.Figures:
  """Scores all queries, layer by layer."""
  if len(gallery) < ranking.NEAREST:
    raise CfnError(f'{len(gallery)} rows in the gallery; at least {ranking.NEAREST} are needed')
  labels, records = queries.labels.T
  gallery_labels, gallery_records = gallery.labels.T
  if not np.isin(labels, gallery_labels).any():
    raise CfnError('no query has the class of any row of the gallery')
  count = config.retrieval.sheet_queries
  shown = choose_queries(labels, gallery_labels, count, seed=config.seed)
  mesh, layers = devices.make_mesh(config.num_devices), {}
  for layer in config.layers:
    parts = []
    for rows, blocks in similarity.compare(
      queries, gallery, layer, block_rows=config.retrieval.block_rows, mesh=mesh
    ):
      fetched = [similarity.fetch(similar, mesh)[: len(rows)] for _, similar in blocks]
      similar = np.concatenate(fetched, axis=1)[:, : len(gallery)]
      parts.append(ranking.score_similar(similar, labels[rows], gallery_labels))
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    nearest = found.pop('nearest')
    images = data.queries.images[records]
    layers[layer] = {
      **ranking.summarize(found, labels, gallery_labels, images, data.class_names),
      'values': gallery.width(layer),
      'sheet': [
        {'query': int(records[row]), 'nearest': gallery_records[nearest[row]].tolist()}
        for row in shown
      ],
    }
  return {'layers': layers, 'queries': len(queries), 'gallery': len(gallery)}


def choose_queries(
  labels: np.ndarray, gallery_labels: np.ndarray, count: int, *, seed: int
) -> np.ndarray:
  """Draws queries class by class, one of each in turn; returns int64 `[count]`, sorted by class.

  Labels are `[n]` of the queries and `[m]` of the gallery. Queries without a right answer are
  skipped.
  """
  order = streams.make_rng(seed, 0, streams.SHEET).permutation(len(labels))
  order = order[np.isin(labels[order], gallery_labels)]
  chosen = streams.take_turns(labels, order)[:count]
  return chosen[np.lexsort((chosen, labels[chosen]))]


def show(found: Mapping[str, runs.Figures], *, labels: Mapping[str, str], counted: str) -> None:
  """Prints the table: a row for each run, and chance, layer by layer."""
  first = next(iter(found.values()))
  sections: list[list[tables.Row]] = []
  for layer, known in first['layers'].items():
    rows: list[tables.Row] = []
    for name, label in labels.items():
      figures = found[name]['layers'][layer]
      written = [
        tables.write_interval(figures, kind)
        if figures.get(f'{kind}_low') is not None
        else 100 * figures[kind]
        for kind in TITLES
      ]
      rows.append((f'{label}, {layer} ({figures["values"]:,} values)', written))
    chance, by_class = 100 * known['chance'], 100 * known['chance_macro']
    rows.append(('the share of the class', [chance, chance, chance, by_class]))
    sections.append(rows)
  left = next(iter(first['layers'].values()))['queries_without_answer']
  caption = f'{left:,} queries are of a class that the gallery lacks: left out; ' if left else ''
  tables.show(
    f"Retrieval: the share of a query's class in what is nearest to it, in %; {first['queries']:,} "
    f'queries in a gallery of {first["gallery"]:,} {counted} (±: 95 % interval over the images of '
    'the queries)',
    [*TITLES.values()],
    sections,
    caption=f'{caption}paper, VOC2007: {PAPER["shown"]}; {PAPER["found"]}',
  )


def draw(
  workdir: pathlib.Path,
  data: crops.Opened,
  found: Mapping[str, runs.Figures],
  labels: Mapping[str, str],
) -> None:
  """Draws the curves of all runs, and the sheet of each; a failed picture ends no run."""
  for layer, known in next(iter(found.values()))['layers'].items():
    path = workdir / f'precision_recall_{layer}.png'
    curves = {
      f'{label}: mAP {each["map"]:.1%}': each['precision_at_recall']
      for label, each in ((labels[name], found[name]['layers'][layer]) for name in found)
    }
    count = next(iter(found.values()))['queries'] - known['queries_without_answer']
    title = f'{layer}, mean over {count:,} queries'
    with drawing.spared(path):
      retrievals.draw_curves(path, curves, known['chance'], title=title)
    for name, label in labels.items():
      path = workdir / f'nearest_{layer}_{name}.png'
      sheet = found[name]['layers'][layer]['sheet']
      with drawing.spared(path):
        rows = [_show_row(data, row) for row in sheet]
        if rows:
          retrievals.draw_sheet(path, rows, title=f'{label}, {layer}: queries and their nearest')


def _show_row(data: crops.Opened, row: Mapping[str, Any]) -> retrievals.Row:
  """Reads the pictures of a query and of its nearest answers."""

  def read(side: crops.Side, record: int) -> retrievals.Shown:
    reader = side.split.reader
    label = reader.source[record].label
    return retrievals.Shown(side.show(record), data.class_names[label])

  return retrievals.Row(
    read(data.queries, row['query']), [read(data.gallery, each) for each in row['nearest']]
  )
