"""Writes features of a user's images to one file; see the command `features`.

Views and network are those of the probes (probing.py): centre views of a folder's images ->
features.py -> feature_files.py.
"""

import contextlib
import pathlib
from typing import Any

import jax
import ml_collections
import numpy as np

from cfn_jax import fields, terminal
from cfn_jax.data import feed, folder, listing, pipeline, views
from cfn_jax.evaluation import labelled, trunks
from cfn_jax.evaluation.frozen import feature_cache, feature_files, features, probing
from cfn_jax.training import devices, stopping


def write(config: ml_collections.ConfigDict, images: pathlib.Path, out: pathlib.Path) -> str:
  """Writes the features of the images in a folder; returns a summary line.

  An image that cannot be decoded is skipped and listed beside the file.

  Args:
    config: that of nearest neighbours, with one layer; its data are not read.

  Raises:
    CfnError: with the fault, its place and the remedy.
  """
  feature_files.check_path(out)
  fields.check_numbers(config, labelled.LIMITS)
  features.check_dtype(config.features.dtype)
  view, (layer,) = config.views, config.layers
  trunk = trunks.open_trunk(config)
  extractor = probing.open_extractor(config, trunk)
  transform = views.MakeViews('centre', view.view_px, view.resize_px, view.resize, False, draws=1)
  found = listing.list_images(images)
  source = folder.labelled(images, found, folder.class_folders(found.names))
  reader = pipeline.Reader(
    source, seed=config.seed, min_side_px=view.resize_px, on_bad_image='skip'
  )
  mesh = devices.make_mesh()
  batch_size = -(-config.eval_batch_size // mesh.size) * mesh.size
  fed = feed.Feed(reader, transform, pipeline.Loading(), batch_size)
  fed.bad.open(out.parent, out.stem)
  about = _describe(config, trunk, extractor)
  compute = jax.jit(extractor.measure, out_shardings=devices.whole(mesh))
  params = devices.replicate(extractor.params(), mesh)
  shown = width = 0
  with (
    feature_files.writing(out, about) as add,
    stopping.Stopping() as stop,
    contextlib.closing(fed.evaluate()) as batches,
    terminal.make_bar(total=len(source), desc=layer, unit='image') as bar,
  ):
    for batch in devices.put_ahead(batches, mesh):
      if stop():
        raise stop.make_error('nothing is written; the same command begins again')
      rows, mask = jax.device_get((compute(params, batch), batch['mask']))
      kept = np.flatnonzero(mask)
      records = [shown + int(row) for row in kept]
      labels = rows[feature_cache.LABEL][kept, 0]
      vectors = features.convert(
        layer, rows[layer][kept, 0], config.features.dtype, field='--dtype'
      )
      names = [source.names[record] for record in records]
      classes = [source.class_names[label] for label in labels] if source.class_names else None
      add(feature_files.Rows(names, classes, vectors))
      bar.update(min(batch_size, len(source) - shown))
      shown, width = shown + batch_size, vectors.shape[1]
  count = len(source) - len(fed.bad)
  return f'{count:,} images, {width:,} values each, in {out}{fed.bad.describe()}'


def _describe(
  config: ml_collections.ConfigDict, trunk: trunks.Trunk, extractor: features.Extractor
) -> dict[str, Any]:
  """Returns the facts in the file beside the vectors: the weights, views and layer."""
  return {
    'weights': trunk.origin['path'],
    'arrays_sha256': trunk.origin.get('arrays_sha256', ''),
    'stride': extractor.placed.stride,
    'views': config.views.to_dict(),
    'layer': config.layers[0],
    'pooling': config.features.pooling,
    'dimensions': config.features.dimensions,
  }
