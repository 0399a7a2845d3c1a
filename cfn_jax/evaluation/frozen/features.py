"""Frozen features: the outputs of a network's layers for images, extracted once to a cache.

Paper, section 4: simple classifiers judge features. Views (views.py) -> (here, on the devices) ->
feature_cache.py -> linear_probe.py, svm.py, knn.py, retrieval.py.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cfn_jax.errors import CfnError
from cfn_jax.evaluation import identity, trunks
from cfn_jax.evaluation.frozen import feature_cache, pooling
from cfn_jax.models import figures
from cfn_jax.training import devices, mirror, stopping
from cfn_jax.training import task as tasks
from cfn_jax.transfer import geometry, networks, surgery
from cfn_jax.transfer import weights as weights_lib

MAPS = (*weights_lib.CONVOLUTIONS, 'pool5')
CONNECTED = ('fc6', 'fc7')
LAYERS = MAPS + CONNECTED
DRAWN = weights_lib.CONVOLUTIONS + CONNECTED  # the layers of a random baseline
DTYPES = ('float32', 'float16')
Measure = Callable[[Any, tasks.Batch], dict[str, jax.Array]]


@dataclasses.dataclass(frozen=True)
class Extractor:
  """Computes features of views; `make_extractor` builds and checks it.

  conv1 .. conv5 (after ReLU) and pool5 are pooled to about `dimensions` values, in the order (y, x,
  channel). fc6 and fc7 (after ReLU) are an AlexNet's or a CFN's. A CFN sees the middle tile of each
  cell of the view, and its fc6 features are in reading order.

  Attributes:
    placed: the trunk with its stride for whole views.
    weights: the weights as read, for fc6 and fc7.
    unpooled: layers whose maps are not pooled.
  """

  placed: weights_lib.Weights
  weights: weights_lib.Weights
  layers: tuple[str, ...]
  view_px: int
  pooling: str
  dimensions: int
  unpooled: tuple[str, ...] = ()

  def params(self) -> dict[str, Any]:
    """Returns the parameters for `__call__`."""
    connected = {
      name: self.weights.params[name] for name in CONNECTED if name in self.weights.params
    }
    return {**self.placed.params, **connected}

  def __call__(self, params: Mapping[str, Any], views: jax.Array) -> dict[str, jax.Array]:
    """Returns features float32 `[B, D]` by layer, of views uint8 RGB `[B, px, px, 3]`."""
    found: dict[str, jax.Array] = {}
    tiled = self.weights.kind == 'cfn'
    if set(self.layers) - set(() if not tiled else CONNECTED):
      network = networks.make_network(self.placed)
      prepared = self.placed.input.prepare(views)
      trunk = {name: params[name] for name in weights_lib.CONVOLUTIONS}
      stages: Any = network.apply({'params': trunk}, prepared, method='stages')
      for name in MAPS:
        kind = 'none' if name in self.unpooled else self.pooling
        maps = pooling.pool(stages[name], name, kind=kind, dimensions=self.dimensions)
        found[name] = maps.reshape(len(maps), -1)  # [B, D]
      whole = stages['pool5'].reshape(len(views), -1)
    if set(self.layers) & set(CONNECTED):
      if tiled:
        found['fc6'] = self._see_tiles(params, views)
      else:
        found['fc6'] = _connect(params['fc6'], whole)
      if 'fc7' in self.layers:
        found['fc7'] = _connect(params['fc7'], found['fc6'])
    return {name: found[name] for name in self.layers}

  def measure(self, params: Any, batch: tasks.Batch) -> dict[str, jax.Array]:
    """Returns the rows for `extract` from `image` `[B, draws, px, px, 3]` and `label`."""
    images = batch['image']
    found = self(params, images.reshape(-1, *images.shape[2:]))  # [B * draws, D] each
    rows = {name: x.reshape(*images.shape[:2], -1) for name, x in found.items()}  # [B, draws, D]
    label = batch['label'][:, None]  # for all its views
    labels = jnp.broadcast_to(label, (*images.shape[:2], *label.shape[2:]))
    return {**rows, feature_cache.LABEL: labels}

  def _see_tiles(self, params: Mapping[str, Any], views: jax.Array) -> jax.Array:
    """Returns fc6 of the middle tile of each cell: `[B, T * D]`."""
    grid = geometry.choose_grid(self.weights)
    tile, cell = geometry.choose_input_px(self.weights), self.view_px // grid
    starts = [index * cell + (cell - tile) // 2 for index in range(grid)]
    tiles = jnp.stack(
      [views[:, top : top + tile, left : left + tile] for top in starts for left in starts], axis=1
    )  # [B, T, h, w, 3]
    return see_tiles(self.weights, params, tiles).reshape(len(views), -1)

  def identity(self) -> dict[str, Any]:
    """Returns plain values that identify the features."""
    return {
      'weights': identity.describe_weights(self.weights),
      'stride': self.placed.stride,
      'layers': list(self.layers),
      'pooling': self.pooling,
      'dimensions': self.dimensions,
      **({'unpooled': list(self.unpooled)} if self.unpooled else {}),
      'view_px': self.view_px,
      'channels': {
        name: self.placed.params['conv5' if name == 'pool5' else name]['kernel'].shape[-1]
        for name in self.layers
        if name in MAPS
      },
    }


def see_tiles(weights: weights_lib.Weights, params: Any, tiles: jax.Array) -> jax.Array:
  """Returns fc6 `[B, T, D]` of tiles uint8 `[B, T, h, w, 3]`, with parameters of the CFN."""
  network, prepared = networks.make_network(weights), weights.input.prepare(tiles)
  found: Any = network.apply({'params': params}, prepared, method='features')
  return jnp.asarray(found)


def _connect(layer: Mapping[str, Any], x: jax.Array) -> jax.Array:
  return jax.nn.relu(x @ layer['kernel'] + layer['bias'])


def make_extractor(
  trunk: trunks.Trunk,
  *,
  layers: tuple[str, ...],
  view_px: int,
  stride: int,
  kind: str,
  dimensions: int,
  unpooled: tuple[str, ...] = (),
) -> Extractor:
  """Builds an extractor; checks that the weights have the layers and that the views fit them.

  Args:
    stride: that of conv1 on whole views.
    kind: see `pooling.KINDS`.
    unpooled: see `Extractor`.

  Raises:
    CfnError: layers are unknown or repeated, the pooling is unknown, or the view is too small.
    WeightsError: the weights lack a layer, or fc6 is for images of another size.
  """
  pooling.check_kind(kind)
  if not layers or len(set(layers)) < len(layers) or not set(layers) <= set(LAYERS):
    raise CfnError(f'layers = {layers}: different ones of {", ".join(LAYERS)}')
  if dimensions < 1:
    raise CfnError(f'features.dimensions = {dimensions}: at least 1')
  placed = surgery.to_alexnet(trunk.weights, num_classes=0, stride=stride)
  figures.check_input_size(view_px + 2 * placed.padding, stride)
  weights = trunk.weights
  needed = CONNECTED[
    : max((CONNECTED.index(each) + 1 for each in layers if each in CONNECTED), default=0)
  ]
  missing = [name for name in needed if name not in weights.params]
  if missing:
    kept = tuple(each for each in layers if each not in CONNECTED) or ('pool5',)
    raise weights_lib.WeightsError(
      f'{trunk.name}: there is no {" and no ".join(missing)} in these weights '
      f'({", ".join(weights.layers())}); take layers = {kept}'
    )
  if needed and weights.kind == 'cfn':
    grid, tile = geometry.choose_grid(weights), geometry.choose_input_px(weights)
    if 'fc7' in needed and weights.tiles() != grid**2:
      raise weights_lib.WeightsError(
        f'{trunk.name}: fc7 sees {weights.tiles()} tiles, and a view has {grid**2}; leave fc7 out '
        'of the layers'
      )
    if view_px // grid < tile:
      raise CfnError(
        f'views.view_px = {view_px}: a view holds {grid} x {grid} tiles of {tile} px, at least '
        f'{grid * tile} px'
      )
  elif needed:
    side = figures.map_sides(view_px, stride=stride, padding=weights.padding)['pool5']
    if side != weights.pool5_side():
      raise weights_lib.WeightsError(
        f'{trunk.name}: fc6 is for a pool5 of side {weights.pool5_side()}, views of {view_px} px '
        f'at stride {stride} give one of side {side}; leave fc6 and fc7 out of the layers, or '
        f'take views.view_px = {geometry.choose_input_px(weights)} at that stride'
      )
  return Extractor(placed, weights, layers, view_px, kind, dimensions, unpooled)


def check_dtype(dtype: str) -> None:
  """Raises CfnError for an unknown dtype of a cache."""
  if dtype not in DTYPES:
    raise CfnError(f"features.dtype = '{dtype}' is unknown: one of {', '.join(DTYPES)}")


def extract(
  measure: Measure,
  params: Any,
  batches: Callable[[int], tasks.Batches],
  cache: feature_cache.Cache,
  *,
  mesh: Mesh,
  dtype: str,
) -> feature_cache.Features:
  """Completes a cache and opens it.

  Args:
    measure: compiled; (params, batch) to float `[B, draws, D]` for each layer, and `label`
      `[B, draws]` or `[B, draws, K]`.
    batches: starts a pass at an image; each batch has a `mask`, 0 for rows without an image.
    dtype: the written dtype, one of `DTYPES`.

  Raises:
    CacheError: the cache is damaged, or the features do not fit the dtype.
    Stopped: after a signal; the complete parts stay.
  """

  def run(params: Any, batch: tasks.Batch) -> tuple[dict[str, jax.Array], jax.Array]:
    return measure(params, batch), batch['mask']

  # All hosts count before one writes; each of a bucket's has parts of its own.
  whole = devices.find_least(feature_cache.count_parts(cache))
  if whole < cache.parts():
    # Replicated: the first host reads the rows of all hosts.
    compiled = jax.jit(run, out_shardings=NamedSharding(mesh, PartitionSpec()))
    placed = devices.replicate(params, mesh)
    with contextlib.closing(batches(whole * cache.part_images)) as made:
      rows = (compiled(placed, batch) for batch in devices.put_ahead(made, mesh))
      _write_parts(rows, cache, whole, dtype)
  stopping.any_host(False)  # the files exist
  feature_cache.await_parts(cache)
  return feature_cache.Features(cache)


def _write_parts(
  found: Iterator[tuple[dict[str, jax.Array], jax.Array]],
  cache: feature_cache.Cache,
  part: int,
  dtype: str,
) -> None:
  """Writes the rows of batches as the parts of a cache from `part` on."""
  image = part * cache.part_images
  held: list[dict[str, np.ndarray]] = []
  with stopping.Stopping() as stop:
    for batch in found:
      if stop():
        kept = f'{part} of {cache.parts()} parts of the features are kept'
        raise stop.make_error(f'{kept}; the same command resumes there')
      rows, mask = jax.device_get(batch)
      begin, count = 0, min(len(mask), cache.images - image)
      while begin < count:
        end = min((part + 1) * cache.part_images, cache.images)  # of the part
        taken = slice(begin, begin + min(count - begin, end - image))
        held.append({name: array[taken][mask[taken] > 0] for name, array in rows.items()})
        image, begin = image + taken.stop - taken.start, taken.stop
        if image == end:
          if not jax.process_index() or mirror.find(cache.folder):
            feature_cache.write_part(cache, part, _join(held, dtype))
          part, held = part + 1, []


def _join(held: list[dict[str, np.ndarray]], dtype: str) -> dict[str, np.ndarray]:
  """Joins batches `[B, draws, D]` to rows `[n, D]`, with a label for each."""
  joined = {name: np.concatenate([each[name] for each in held]) for name in held[0]}
  arrays = {name: values.reshape(-1, *values.shape[2:]) for name, values in joined.items()}
  labels = arrays.pop(feature_cache.LABEL)
  arrays = {
    name: convert(name, values, dtype, field='features.dtype') for name, values in arrays.items()
  }
  return {**arrays, feature_cache.LABEL: labels}


def convert(name: str, values: np.ndarray, dtype: str, *, field: str) -> np.ndarray:
  """Returns features `[n, D]` of a layer in one of `DTYPES`, which a field or flag names.

  Raises:
    CacheError: some are not finite, or too large.
  """
  with np.errstate(over='ignore'):
    converted = values.astype(dtype)
  if not np.all(np.isfinite(converted)):
    raise feature_cache.CacheError(
      f'{name}: features that are not finite, or too large for {dtype} ({field})'
    )
  return converted
