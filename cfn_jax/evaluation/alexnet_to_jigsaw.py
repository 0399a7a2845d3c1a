"""How well features of a network trained on labels solve puzzles: they are locked in the CFN.

Paper, section 4.1, table 3: conv1 .. convK of a supervised AlexNet move into the CFN (stride 2) and
are locked. The rest is trained on the jigsaw task with 100 permutations. The reference is the same
CFN with nothing loaded and nothing locked, whose accuracy is an upper bound.
"""

import dataclasses
from collections.abc import Mapping

import ml_collections
import numpy as np

from cfn_jax.errors import CfnError
from cfn_jax.evaluation import identity, runs, tables, trunks
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import task as jigsaw_task
from cfn_jax.models import figures, inputs
from cfn_jax.training import optimizer
from cfn_jax.training import task as tasks
from cfn_jax.transfer import cards, surgery
from cfn_jax.transfer import weights as weights_lib

PAPER = (88.0, 87.0, 86.0, 83.0, 74.0)
PAPER_REFERENCE = 88.0
REFERENCE = 'reference'
TILES = ('normalised', 'as_learned')
CONVOLUTIONS = weights_lib.CONVOLUTIONS


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens and checks the evaluation of a config; see `make_plan`."""
  return runs.open_plan(make_plan, config)


def make_plan(config: ml_collections.ConfigDict) -> runs.Plan:
  """Opens data and weights, and builds the run of each K and the reference.

  Raises:
    CfnError: with the fault, its place and the remedy.
  """
  layers = tuple(config.layers)
  if not layers or sorted(set(layers)) != sorted(layers) or not set(layers) <= {1, 2, 3, 4, 5}:
    raise CfnError(f'layers = {layers}: different numbers from 1 to 5')
  if config.model.name != 'cfn':
    raise CfnError(f"model.name = '{config.model.name}': the table is about 'cfn'")
  pretext = pretexts.open_pretext(config)
  trunk = trunks.open_trunk(config)
  weights = trunk.weights
  if config.locked_tiles == 'as_learned' and weights.input.normalization:
    raise CfnError(
      f"locked_tiles = 'as_learned' has no effect: {trunk.name} learned on normalised tiles, which "
      'its layers get in any case; leave it out'
    )
  own = pretext.model.trunk.clone(
    order=weights.order, groups=weights.groups, width=trunk.width, padding=weights.padding
  )
  pretext = dataclasses.replace(pretext, model=pretext.model.clone(trunk=own))
  made = [make_run(config, pretext, trunk, k) for k in layers]
  if config.baseline:
    made.append(make_reference(config, pretext))
  return runs.Plan(
    runs=made,
    origins={
      trunk.label(): {
        **trunk.origin,
        'fed': {run.name: run.task.meta['network']['input'] for run in made},
      }
    },
    show=lambda figures: show(figures, trunk.label(), layers),
    published={'AlexNet': PAPER, REFERENCE: PAPER_REFERENCE},
  )


def make_run(
  config: ml_collections.ConfigDict, pretext: pretexts.Pretext, trunk: trunks.Trunk, k: int
) -> runs.Run:
  """Builds the run that locks conv1 .. convK, on tiles of the scale of their training."""
  weights = surgery.to_cfn_trunk(trunk.weights, stride=config.model.stride)
  fed = find_record(weights.input, tiles=config.locked_tiles, std=config.puzzle.global_std)
  figures.check_contrast(
    config.model.init, fed.contrast(), field='model.init', layers='the layers above'
  )
  pretext = dataclasses.replace(pretext, input=fed)
  given = surgery.fold_input(weights, to=fed).params
  locked = CONVOLUTIONS[:k]
  surgery.merge(pretext.shapes(), given, locked)  # raises if something does not fit
  label = f'{trunk.label()}: {", ".join(locked)} locked, fed {cards.describe_input(fed)}'
  run = make_reference(config, pretext, name=f'conv{k}', label=label)
  loaded = {name: identity.hash_arrays({name: given[name]}) for name in locked}
  task = dataclasses.replace(
    run.task,
    init=lambda seed: surgery.merge(pretext.init(seed), given, locked)[0],
    labels=lambda params: optimizer.label_parameters(params, locked=locked),
    fingerprint={**run.task.fingerprint, 'loaded': loaded, 'locked': ', '.join(locked)},
  )
  return dataclasses.replace(run, task=task)


def make_reference(
  config: ml_collections.ConfigDict,
  pretext: pretexts.Pretext,
  *,
  name: str = REFERENCE,
  label: str = 'nothing loaded, nothing locked',
) -> runs.Run:
  """Builds the run of the same CFN with nothing loaded and nothing locked."""
  task, source = jigsaw_task.make_task(config, pretext), pretext.validation.source
  network, own = pretext.describe(), pretext.model.trunk
  task = dataclasses.replace(
    task,
    fingerprint={
      **task.fingerprint,
      **identity.describe_training(config),
      'training images': pretext.training.source.identify(),
      'validation images': source.identify(),
      'network': network | {'groups': list(own.groups), 'width': own.width},
    },
    summary=[('run', label), *task.summary],
  )
  shown = min(config.data.val_max_images or len(source), len(source))
  return runs.Run(name, task, {'': task.evaluations['val']}, {'test images shown': shown})


def find_record(learned: inputs.InputRecord, *, tiles: str, std: float) -> inputs.InputRecord:
  """Returns the preparation of tiles for locked layers: RGB, one scale for all channels.

  Layers that learned on normalised tiles get those. Others learned on whole images prepared by
  fixed figures. With `tiles` 'normalised' each tile gets mean 0 and the contrast of `std`, that of
  pixels of photographs, under their scale, so that the cue of low-level statistics is closed as in
  the reference. With 'as_learned' it gets the fixed figures. Differences between the channels are
  folded into conv1, which is exact.

  Raises:
    CfnError: `tiles` is unknown.
  """
  if tiles not in TILES:
    raise CfnError(f"locked_tiles = '{tiles}' is unknown: one of {', '.join(TILES)}")
  red, green, blue = learned.mean if learned.channels == 'rgb' else learned.mean[::-1]
  scale, kind, own_std = float(np.mean(learned.scale)), learned.normalization, learned.std
  if not kind and tiles == 'normalised':
    scale, kind, own_std = scale * std, 'tile', std
  return inputs.InputRecord('rgb', (red, green, blue), (scale,) * 3, kind, own_std)


def show(figures: Mapping[str, runs.Figures], label: str, layers: tuple[int, ...]) -> None:
  """Prints the table: a column for each K, and the reference."""
  row: list[float | None] = [100 * figures[f'conv{k}']['val_accuracy'] for k in layers]
  reference = figures.get(REFERENCE)
  row.append(100 * reference['val_accuracy'] if reference else None)
  count = figures[f'conv{layers[0]}']['val_count']
  tables.show(
    f'Accuracy of the jigsaw task in %, {count:,} puzzles',
    [*(f'K = {k}' for k in layers), 'nothing locked'],
    [
      [(label, row)],
      [('paper: AlexNet', [*(PAPER[k - 1] for k in layers), PAPER_REFERENCE])],
    ],
  )
