"""How well a CFN solves puzzles, in figures that can be compared across permutation sets.

The figures are bits of information about the permutation; right tiles, after the best assignment of
tiles to cells; puzzles of permutations outside the set; and the score of the product of single
tiles' positions (paper, section 3.3, second equation; positions.py). The gap between that and the
network is its information from comparing tiles; the rest is absolute position. On request it also
scores a vote over the symmetries of the set (voting.py). It works on any checkpoint, with the
config and the permutation set of its training.
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
from cfn_jax.evaluation.puzzles import positions, trained_cfn, voting
from cfn_jax.jigsaw import solving
from cfn_jax.jigsaw.permutation_sets import permutations as permutation_sets
from cfn_jax.jigsaw.permutation_sets import symmetries
from cfn_jax.models import cfn
from cfn_jax.training import devices, loop, settings
from cfn_jax.training import task as tasks
from cfn_jax.transfer import networks
from cfn_jax.transfer import weights as weights_lib


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens the checkpoint and the images.

  Raises:
    CfnError: with the fault, its place and the remedy.
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
  members = find_members(config, trained)
  labels = {'pretrained': config.weights, 'random': 'random'}
  origin = weights_lib.json_ready(dict(trained.started['pretrained'].origin))
  origin.pop('permutations', None)

  def execute(workdir: pathlib.Path) -> dict[str, Any]:
    found = {
      name: run(config, trained, name, workdir / name, label=labels[name], members=members)
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
  members: symmetries.Symmetries | None,
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
    probe = runs.read_trained(folder / 'positions', config.num_steps)
    placed = devices.replicate({'network': weights.params, 'probe': probe}, mesh)
    passes = {'': make_evaluation(config, trained, weights, trained.permutations, members)}
    if len(trained.outside) > 1:
      passes['outside'] = make_evaluation(config, trained, weights, trained.outside)
    kept = 'the position probe is trained'
    figures = runs.score(passes, placed, mesh, kept=kept)
    single = runs.score({'': task.evaluations['val']}, placed['probe'], mesh, kept=kept)
    return figures | {'single_tile_accuracy': single['val_accuracy']}

  settings = {
    **task.fingerprint,
    'test features': extracted.testing.cache.content(),
    **identity.describe(config),
    'weights': identity.describe_weights(weights),
    'permutation set': permutation_sets.fingerprint(trained.permutations),
    'outside': permutation_sets.fingerprint(trained.outside) if len(trained.outside) else '',
  }
  return runs.remember(name, settings, folder, compute)


def find_members(
  config: ml_collections.ConfigDict, trained: trained_cfn.TrainedCfn
) -> symmetries.Symmetries | None:
  """Returns the symmetries of the network's set that vote; None without a vote.

  Raises:
    CfnError: there is only the identity.
  """
  if not config.solve.vote:
    return None
  members = symmetries.find_symmetries(trained.permutations)
  if len(members) == 1:
    raise CfnError(
      f"solve.vote = True: the network's {len(trained.permutations)} permutations have no symmetry "
      'that could vote, so the vote would be the network itself; leave it out',
      'Whole codes have them: a network trained with permutations.method=code and '
      'permutations.num of 9, 72, 504 or 1512.',
    )
  return members


def make_evaluation(
  config: ml_collections.ConfigDict,
  trained: trained_cfn.TrainedCfn,
  weights: weights_lib.Weights,
  shown: np.ndarray,
  members: symmetries.Symmetries | None = None,
) -> tasks.RowEvaluation:
  """Builds a pass over puzzles of permutations: the network's set, or others.

  Its parameters are `network` and `probe`. Other permutations have no label, so no loss and no
  bits.

  Args:
    shown: permutations `[n, T]`.
    members: the symmetries of the network's set that vote; None: no vote.
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
    label = batch['label']
    truth = jnp.asarray(shown, jnp.int32)[label]  # [B, k, T]
    found = features.see_tiles(weights, params['network'], batch['tiles'])  # in reading order

    def head(x: jax.Array) -> jax.Array:
      logits: Any = network.apply({'params': params['network']}, x, method='head')
      return jnp.asarray(logits)

    puzzles = cfn.take_tiles(found, truth)  # [B, k, T, D]
    single = positions.predict(params['probe'], found)  # [B, T, T]
    single = jax.vmap(lambda table, orders: table[orders])(single, truth)  # [B, k, T, T]
    scores = {
      'network': head(puzzles),  # [B, k, N]; fc8 may have more outputs
      'product': jnp.einsum('bkij,nij->bkn', single, every, precision='highest'),
    }
    rows = {'truth': truth, 'product': jnp.exp(single)}
    if members:
      voted = voting.hold(head, puzzles, members)
      scores['vote'] = voted.vote
      told = jnp.take_along_axis(voted.mean, label[..., None], axis=-1)[..., 0]
      rows |= {'vote_members_loss': -told, 'vote_distance': voted.distance}
    for name, logits in scores.items():
      if name != 'product':
        share = jax.nn.softmax(logits[..., : len(every)])
        rows[name] = jnp.einsum('bkn,nij->bkij', share, every, precision='highest')
      if inside:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, label)
        rows |= {f'{name}_loss': losses, f'{name}_right': jnp.argmax(logits, axis=-1) == label}
    return rows

  return tasks.RowEvaluation(
    images.evaluate,
    measure,
    lambda rows: report(rows, len(trained.permutations), len(members) if members else 0),
  )


def report(rows: Mapping[str, np.ndarray], count: int, members: int = 0) -> dict[str, Any]:
  """Returns the figures of the rows of a pass, `[images, k, ...]`; `count` is N, `members` vote."""
  tiles = rows['truth'].shape[-1]
  truth = rows['truth'].reshape(-1, tiles)
  figures: dict[str, Any] = {'puzzles': len(truth), 'images': len(rows['truth'])}
  for name in ('network', 'product', 'vote')[: 3 if members else 2]:
    each, whole = solving.score_tiles(rows[name].reshape(-1, tiles, tiles), truth)
    figures[name] = {'tile_accuracy': each, 'whole_accuracy': whole}
    if f'{name}_loss' in rows:
      loss = _mean(rows[f'{name}_loss'])
      figures[name] |= {
        'loss': loss,
        'bits': solving.count_bits(count, loss),
        'accuracy': _mean(rows[f'{name}_right']),
      }
  if members:
    figures['vote'] |= {
      'members': members,
      'members_bits': solving.count_bits(count, _mean(rows['vote_members_loss'])),
      'distance_bits': _mean(rows['vote_distance']) / math.log(2),
    }
  if 'bits' in figures['network']:
    figures['gap_bits'] = figures['network']['bits'] - figures['product']['bits']
    figures['largest_bits'] = math.log2(count)
  return figures


def _mean(values: np.ndarray) -> float:
  return float(np.mean(values, dtype=np.float64))


def show(
  found: Mapping[str, Any], trained: trained_cfn.TrainedCfn, labels: Mapping[str, str]
) -> None:
  """Prints the table: a row per figure, a column per run, and chance."""
  count, tiles = trained.permutations.shape
  least = 100 / math.factorial(tiles)
  guess = 100 * solving.guess_tiles(trained.permutations)
  first = next(iter(found.values()))

  def row(title: str, chance: float, *path: str, scale: float = 100.0) -> tables.Row:
    values: list[Any] = []
    for name in found:
      value: Any = found[name]
      for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
      values.append(None if value is None else f'{scale * value:.2f}')
    return title, [*values, f'{chance:.2g}']

  def describe(name: str, title: str) -> list[tables.Row]:
    return [
      row(f'{title}: bits, of {math.log2(count):.2f}', 0.0, name, 'bits', scale=1.0),
      row(f'{title}: permutations right, %', 100 / count, name, 'accuracy'),
      row(f'{title}: tiles right, %', guess, name, 'tile_accuracy'),
    ]

  sections = []
  for name, title in (('network', 'the network'), ('product', 'product of positions')):
    sections.append(
      [
        *describe(name, title),
        row(f'{title}: tiles outside the set, %', 100 / tiles, 'outside', name, 'tile_accuracy'),
        row(f'{title}: puzzles outside the set, %', least, 'outside', name, 'whole_accuracy'),
      ]
    )
  if 'vote' in first:
    sections.append(
      [
        *describe('vote', f'a vote of {first["vote"]["members"]}'),
        row('its members, mean bits', 0.0, 'vote', 'members_bits', scale=1.0),
        row('distance from equivariance, bits', 0.0, 'vote', 'distance_bits', scale=1.0),
      ]
    )
  sections.append(
    [
      row('gap, bits', 0.0, 'gap_bits', scale=1.0),
      row('position of a single tile, %', 100 / tiles, 'single_tile_accuracy'),
    ]
  )
  tables.show(
    f'{first["puzzles"]:,} puzzles of {first["images"]:,} images, {count} permutations',
    [*(labels[name] for name in found), 'chance'],
    sections,
  )
