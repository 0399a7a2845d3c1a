"""How well a CFN solves puzzles, in figures that compare across permutation sets.

Bits of information about the permutation; tiles right, after the best assignment of tiles to cells;
puzzles of permutations that are not in the set; and what the product of single tiles' positions
solves (paper, section 3.3, second equation; positions.py): the gap between that and the network is
what it knows from comparing tiles, the rest is absolute position. On any checkpoint, with the
config and the permutation set that it was trained with.
"""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from cfn_jax import fields
from cfn_jax.data import feed
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import identity, runs, tables
from cfn_jax.evaluation.frozen import features, linear_task
from cfn_jax.evaluation.puzzles import positions, trained_cfn
from cfn_jax.jigsaw import solving
from cfn_jax.jigsaw.permutation_sets import permutations as permutation_sets
from cfn_jax.training import devices, loop, settings
from cfn_jax.training import task as tasks
from cfn_jax.transfer import checkpoints, networks
from cfn_jax.transfer import weights as weights_lib


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens the checkpoint and the images.

  Raises:
    CfnError: what is wrong, where, and what would be right.
  """
  c = config.solve
  fields.check_numbers(config, feed.LIMITS)
  linear_task.check_standard(config.probe.standardize)
  features.check_dtype(config.features.dtype)
  settings.check(config)
  if c.puzzles_per_image < 2:
    raise CfnError(f'solve.puzzles_per_image = {c.puzzles_per_image}: at least 2')
  if c.train_visits < 0 or c.outside_permutations < 2:
    raise CfnError('solve.train_visits: at least 0; solve.outside_permutations: at least 2')
  if config.features.part_images < 1 or config.features.part_images % config.eval_batch_size:
    raise CfnError(
      f'features.part_images = {config.features.part_images}: a multiple of eval_batch_size = '
      f'{config.eval_batch_size}'
    )
  trained = trained_cfn.open_trained(config)
  labels = {'pretrained': config.weights, 'random': 'random'}
  origin = weights_lib.json_ready(dict(trained.started['pretrained'].origin))
  origin.pop('permutations', None)

  def execute(workdir: pathlib.Path) -> dict[str, Any]:
    found = {
      name: run(config, trained, name, workdir / name, label=labels[name])
      for name in trained.started
    }
    runs.present(
      config,
      workdir,
      found,
      origins={config.weights: origin},
      show=lambda found: show(found, trained, labels),
    )
    return found

  return execute


def run(
  config: ml_collections.ConfigDict,
  trained: trained_cfn.TrainedCfn,
  name: str,
  folder: pathlib.Path,
  *,
  label: str,
) -> dict[str, Any]:
  """Trains the probe of positions, then scores the network and the product of positions."""
  weights = trained.started[name]
  visits = trained.make_transform(trained.permutations, config.solve.puzzles_per_image)
  extracted = positions.extract(config, weights, trained.readers, visits, folder / 'features')
  task = positions.make_task(config, extracted, trained.tiles, label)
  mesh = devices.make_mesh(config.num_devices)

  def compute() -> dict[str, Any]:
    if not jax.process_index():
      (folder / 'positions').mkdir(parents=True, exist_ok=True)
    loop.run(task, config, folder / 'positions')
    probe = checkpoints.read_params(folder / 'positions', step=str(config.num_steps))
    placed = devices.replicate({'network': weights.params, 'probe': probe}, mesh)
    sets = {'': trained.permutations}
    if len(trained.outside) > 1:
      sets['outside'] = trained.outside
    passes = {
      which: make_evaluation(config, trained, weights, shown) for which, shown in sets.items()
    }
    kept = 'the position probe is trained'
    figures = runs.score(passes, placed, mesh, kept=kept)
    single = runs.score({'': task.evaluations['val']}, placed['probe'], mesh, kept=kept)
    return figures | {'single_tile_accuracy': single['val_accuracy']}

  settings = {
    **task.fingerprint,
    **identity.describe(config),
    'weights': identity.describe_weights(weights),
    'permutation set': permutation_sets.fingerprint(trained.permutations),
    'outside': permutation_sets.fingerprint(trained.outside) if len(trained.outside) else '',
  }
  return runs.remember(name, settings, folder, compute)


def make_evaluation(
  config: ml_collections.ConfigDict,
  trained: trained_cfn.TrainedCfn,
  weights: weights_lib.Weights,
  shown: np.ndarray,
) -> tasks.RowEvaluation:
  """Builds a pass over puzzles of the permutations `shown`: the network's set, or others.

  Its parameters are `network` and `probe`. Of others there is no label, so no loss and no bits.
  """
  visits = trained.make_transform(shown, config.solve.puzzles_per_image)
  inside = shown is trained.permutations
  network = networks.make_network(weights, dropout=0.0)
  every = solving.make_positions(trained.permutations)  # [N, T, T]
  images = feed.Feed(
    trained.readers['validation'],
    visits,
    feed.make_loading(config),
    config.eval_batch_size,
    limit=config.data.val_max_images,
  )

  def measure(params: Any, batch: tasks.Batch) -> tasks.Totals:
    tiles, label = batch['tiles'], batch['label']
    truth = jnp.asarray(shown, jnp.int32)[label]  # [B, k, T]
    prepared = weights.input.prepare(tiles)
    logits: Any = network.apply({'params': params['network']}, prepared, truth)  # [B, k, N]
    share = jax.nn.softmax(logits[..., : len(every)])  # fc8 may have more outputs
    chances = jnp.einsum('bkn,nij->bkij', share, every, precision='highest')
    found = features.see_tiles(weights, params['network'], tiles)
    single = positions.predict(params['probe'], found)  # [B, T, T]: of tiles in reading order
    single = jax.vmap(lambda table, orders: table[orders])(single, truth)  # [B, k, T, T]
    product = jnp.einsum('bkij,nij->bkn', single, every, precision='highest')
    rows = {'truth': truth, 'network': chances, 'product': jnp.exp(single)}
    if inside:
      for name, scores in (('network', logits), ('product', product)):
        losses = optax.softmax_cross_entropy_with_integer_labels(scores, label)
        rows |= {f'{name}_loss': losses, f'{name}_right': jnp.argmax(scores, axis=-1) == label}
    return rows

  return tasks.RowEvaluation(
    images.evaluate, measure, lambda rows: report(rows, len(trained.permutations))
  )


def report(rows: Mapping[str, np.ndarray], count: int) -> dict[str, Any]:
  """Turns the rows of a pass, `[images, k, ...]`, into figures; `count` is N."""
  tiles = rows['truth'].shape[-1]
  truth = rows['truth'].reshape(-1, tiles)
  figures: dict[str, Any] = {'puzzles': len(truth), 'images': len(rows['truth'])}
  for name in ('network', 'product'):
    each, whole = solving.score_tiles(rows[name].reshape(-1, tiles, tiles), truth)
    figures[name] = {'tile_accuracy': each, 'whole_accuracy': whole}
    if f'{name}_loss' in rows:
      loss = float(np.mean(rows[f'{name}_loss'], dtype=np.float64))
      figures[name] |= {
        'loss': loss,
        'bits': solving.count_bits(count, loss),
        'accuracy': float(np.mean(rows[f'{name}_right'])),
      }
  if 'bits' in figures['network']:
    figures['gap_bits'] = figures['network']['bits'] - figures['product']['bits']
    figures['largest_bits'] = math.log2(count)
  return figures


def show(
  found: Mapping[str, Any], trained: trained_cfn.TrainedCfn, labels: Mapping[str, str]
) -> None:
  """Prints the table: figures down, runs across, chance beside them."""
  count, tiles = trained.permutations.shape
  least = 100 / math.factorial(tiles)

  def row(title: str, chance: float, *path: str, scale: float = 100.0) -> tables.Row:
    values: list[Any] = []
    for name in found:
      value: Any = found[name]
      for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
      values.append(None if value is None else f'{scale * value:.2f}')
    return title, [*values, f'{chance:.2g}']

  sections = []
  for name, title in (('network', 'the network'), ('product', 'product of positions')):
    sections.append(
      [
        row(f'{title}: bits, of {math.log2(count):.2f}', 0.0, name, 'bits', scale=1.0),
        row(f'{title}: permutations right, %', 100 / count, name, 'accuracy'),
        row(f'{title}: tiles right, %', 100 / tiles, name, 'tile_accuracy'),
        row(f'{title}: tiles outside the set, %', 100 / tiles, 'outside', name, 'tile_accuracy'),
        row(f'{title}: puzzles outside the set, %', least, 'outside', name, 'whole_accuracy'),
      ]
    )
  sections.append(
    [
      row('gap, bits', 0.0, 'gap_bits', scale=1.0),
      row('position of a single tile, %', 100 / tiles, 'single_tile_accuracy'),
    ]
  )
  first = next(iter(found.values()))
  tables.show(
    f'{first["puzzles"]:,} puzzles of {first["images"]:,} images, {count} permutations',
    [*(labels[name] for name in found), 'chance'],
    sections,
  )
