"""The context encoder as a task for the training loop: it fills in hidden pixels of a view.

Pathak et al., 2016: a rival of the jigsaw in the paper's table 1. It needs no label: a network sees
a view whose hidden pixels have the mean colour, and is scored by its filling. It has no adversarial
loss, like the features in their tables.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from cfn_jax import fields, terminal
from cfn_jax.buckets import addresses
from cfn_jax.data import feed, images, pipeline, views
from cfn_jax.errors import CfnError
from cfn_jax.inpainting import masks, transform
from cfn_jax.jigsaw import network
from cfn_jax.models import alexnet, context_encoder, figures, inputs
from cfn_jax.pictures import fillings
from cfn_jax.training import loop, metrics, optimizer, settings
from cfn_jax.training import task as tasks

LOSSES = ('l2', 'l1')
LIMITS = {
  **feed.LIMITS,
  **alexnet.LIMITS,
  **views.LIMITS,
  'input.scale': (1e-6, 1e6),
  'input.std': (1e-6, 1e6),
}
COMPARED = ('val_loss', 'val_mean_colour_loss', 'val_own_colour_loss')
MEASURED = 64  # number of views to measure the loss of chance on


@dataclasses.dataclass(frozen=True)
class Inpainting:
  """The parts of a config's task, opened and checked.

  Attributes:
    input: preparation of views; hidden pixels become 0, the mean colour.
    target: the target of a filling: pixels minus the mean, over their standard deviation.
    power: power of the error: 2 (L2) or 1 (L1).
  """

  training: pipeline.Reader
  validation: pipeline.Reader
  holes: transform.MakeHole
  input: inputs.InputRecord
  target: inputs.InputRecord
  model: context_encoder.ContextEncoder
  power: int
  val_max_images: int

  def judged(self) -> transform.MakeHole:
    """Returns the transform of validation: the middle of each image, not mirrored."""
    once = dataclasses.replace(self.holes.views, crop='centre', mirror=False)
    return dataclasses.replace(self.holes, views=once)

  def fill(self, params: Any, batch: tasks.Batch) -> jax.Array:
    """Returns the network's fillings `[B, px, px, 3]`, in units of the target."""
    seen = ~batch['hidden'][..., None]
    filled: Any = self.model.apply({'params': params}, self.input.prepare(batch['image']) * seen)
    return filled

  def errors(self, filling: Any, batch: tasks.Batch) -> Any:
    """Returns the mean error of each example over its hidden pixels, `[B]`; of NumPy or JAX."""
    xp = np if isinstance(batch['image'], np.ndarray) else jnp
    hidden = batch['hidden'][..., None]
    error = xp.abs(filling - self.target.prepare(batch['image'])) ** self.power
    # A row that fills up a batch hides nothing.
    return (error * hidden).sum((1, 2, 3)) / xp.maximum(3 * hidden.sum((1, 2, 3)), 1)

  def own_colour(self, batch: tasks.Batch) -> jax.Array:
    """Returns the mean colour of each example's visible pixels, `[B, 1, 1, 3]`."""
    seen = ~batch['hidden'][..., None]
    visible = self.target.prepare(batch['image']) * seen
    colour: jax.Array = visible.sum((1, 2), keepdims=True) / seen.sum((1, 2), keepdims=True)
    return colour

  @functools.cached_property
  def chance(self) -> float:
    """Returns the error of filling in the mean colour, over the first views of training."""
    found = []
    for position in range(min(MEASURED, len(self.training.source))):
      try:
        one = self.holes(self.training.train(position))
      except images.BadImage:  # the run reports it
        continue
      found.append(float(self.errors(0.0, {name: value[None] for name, value in one.items()})[0]))
    return sum(found) / len(found) if found else math.nan


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens the data and builds the task.

  Raises:
    CfnError: with the fault, its place and the remedy.
  """
  settings.check(config)
  made = make_inpainting(
    config, lambda: feed.open_readers(config, min_side_px=config.views.resize_px)
  )
  return functools.partial(execute, config, made, make_task(config, made))


def execute(
  config: ml_collections.ConfigDict, made: Inpainting, task: tasks.Task, workdir: pathlib.Path
) -> dict[str, Any]:
  """Pretrains a network; returns the last figures, empty if the run had finished before."""
  found = loop.run(task, config, workdir)
  if jax.process_index():
    return found
  if not found:
    terminal.say(f'{addresses.show(workdir)}: the run is finished; more steps continue it')
  rows = [
    [row.get(name) for name in (*COMPARED, 'step')]
    for row in metrics.read_rows(workdir / 'metrics.jsonl')
  ]
  whole = [row for row in rows if all(isinstance(figure, float) for figure in row[:-1])]
  if whole:  # none of them is nan, which is written as text
    error, mean, own, step = min(whole)
    terminal.say(
      f'best at step {step:,}: validation error {error:.3f}; filling in the mean colour '
      f'{mean:.3f}, the mean of what is visible {own:.3f}'
    )
  terminal.say(f'everything is in {addresses.show(workdir)}')
  return found


def make_inpainting(
  config: ml_collections.ConfigDict,
  open_readers: Callable[[], tuple[pipeline.Reader, pipeline.Reader]],
) -> Inpainting:
  """Checks the fields and builds the network, then opens the images.

  Raises:
    CfnError: with the fault in the config or the data.
  """
  fields.check_numbers(config, LIMITS)
  v, m, i = config.views, config.mask, config.input
  if config.reconstruction not in LOSSES:
    raise CfnError(
      f"reconstruction = '{config.reconstruction}' is unknown: one of {', '.join(LOSSES)}"
    )
  if len(i.mean) != 3 or not all(0 <= value <= 255 for value in i.mean):
    raise CfnError(f'input.mean = {i.mean}: three numbers of 0 to 255, R, G and B')
  figures.Initial(config.model.init, config.model.order)
  figures.check_contrast(
    config.model.init, i.scale * inputs.PIXEL_STD / i.std, field='model.init', layers='the trunk'
  )
  features = tuple(config.decoder.features)
  context_encoder.check_sizes(v.view_px, config.model.stride, features)
  mask = masks.Mask(m.kind, v.view_px, m.side_px, m.blob_px, m.smallest, m.largest)
  cut = views.MakeViews('random', v.view_px, v.resize_px, v.resize, v.mirror)
  training, validation = open_readers()
  return Inpainting(
    training=training,
    validation=validation,
    holes=transform.MakeHole(cut, mask),
    input=inputs.InputRecord('rgb', tuple(i.mean), (i.scale / i.std,) * 3),
    target=inputs.InputRecord('rgb', tuple(i.mean), (1 / i.std,) * 3),
    model=context_encoder.ContextEncoder(network.make_trunk(config), features),
    power=2 if config.reconstruction == 'l2' else 1,
    val_max_images=config.data.val_max_images,
  )


def make_task(config: ml_collections.ConfigDict, made: Inpainting) -> tasks.Task:
  """Builds the task for the training loop."""
  loading, view_px = feed.make_loading(config), config.views.view_px
  training = feed.Feed(made.training, made.holes, loading, config.batch_size)
  validation = feed.Feed(
    made.validation, made.judged(), loading, config.eval_batch_size, limit=made.val_max_images
  )

  def loss(params: Any, batch: tasks.Batch, key: jax.Array) -> tuple[jax.Array, tasks.Totals]:
    errors = made.errors(made.fill(params, batch), batch)
    return jnp.mean(errors), {
      'loss': jnp.sum(errors),
      'mean_colour_loss': jnp.sum(made.errors(0.0, batch)),
      'count': jnp.float32(len(errors)),
    }

  def measure(params: Any, batch: tasks.Batch) -> tasks.Totals:
    mask = batch['mask']
    fillings_of = {
      'loss': made.fill(params, batch),
      'mean_colour_loss': 0.0,
      'own_colour_loss': made.own_colour(batch),
    }
    sums = {name: jnp.sum(made.errors(x, batch) * mask) for name, x in fillings_of.items()}
    return sums | {'count': jnp.sum(mask)}

  def write_files(workdir: pathlib.Path) -> None:
    training.bad.open(workdir)
    validation.bad.open(workdir)

  return tasks.Task(
    name='context_encoder',
    init=lambda seed: context_encoder.draw_parameters(made.model, view_px, seed=seed),
    loss=loss,
    totals=('loss', 'mean_colour_loss', 'count'),
    report=lambda sums: _report('train', sums) | {'learning_rate': sums['learning_rate']},
    train_batches=training.train,
    records=training.names,
    evaluations={
      'val': tasks.Evaluation(validation.evaluate, measure, functools.partial(_report, 'val'))
    },
    best='-val_loss',
    labels=optimizer.label_parameters,
    examples={'images': config.batch_size},
    fingerprint=make_fingerprint(config, made),
    summary=summarize(config, made),
    chance_loss=made.chance,
    chance_margin=0.01 * made.chance,  # an error, no cross-entropy
    write_files=write_files,
    pictures=fillings.make_pictures(
      made.training,
      made.holes,
      made.validation,
      made.judged(),
      made.fill,
      made.target,
      made.chance,
      made.input,
      made.model.trunk,
    ),
    end_pictures=fillings.END,
    meta={'network': made.model.trunk.describe() | {'input': made.input.to_json()}},
  )


def _report(split: str, sums: Mapping[str, float]) -> dict[str, float]:
  """Returns the means from sums over examples."""
  if split != 'train':
    metrics.check_seen(sums['count'], 'validation')
  count = sums['count'] or math.nan  # no step of the interval was finite
  return {f'{split}_{name}': value / count for name, value in sums.items() if 'loss' in name}


def make_fingerprint(config: ml_collections.ConfigDict, made: Inpainting) -> dict[str, Any]:
  """Returns the fingerprint of a run: its masks and images, the network, the error."""
  return {
    'task': 'context_encoder',
    'seed': config.seed,
    'batch_size': config.batch_size,
    'training images': made.training.source.fingerprint,
    'validation images': made.validation.source.fingerprint,
    'mask rules': masks.RULES,
    'reconstruction': config.reconstruction,
    'data.on_bad_image': config.data.on_bad_image,
    **{
      f'{section}.{name}': value
      for section in ('views', 'input', 'mask', 'decoder', 'model')
      for name, value in config[section].to_dict().items()
    },
  }


def summarize(config: ml_collections.ConfigDict, made: Inpainting) -> list[tuple[str, str]]:
  """Returns the task's rows of the start-up summary."""
  mask, count = made.holes.mask, len(made.training.source)
  if mask.kind == 'centre':
    hidden = f'a square of {mask.side_px} px in the middle'
  else:
    hidden = f'{mask.smallest:.0%} to {mask.largest:.0%}, regions of random form'
  side = mask.view_px
  shapes = alexnet.parameter_shapes(made.model, (1, side, side, 3))
  visits = config.num_steps * config.batch_size
  return [
    ('training', made.training.source.description),
    ('validation', made.validation.source.description),
    ('hidden', f'{hidden}, of views of {side} px'),
    ('network', f'{alexnet.count_parameters(shapes):,} parameters, {config.compute_dtype}'),
    ('chance', f'{config.reconstruction} error {made.chance:.3f}: the mean colour filled in'),
    (
      'run',
      f'{config.num_steps:,} steps of {config.batch_size} images, {visits / count:,.1f} epochs',
    ),
  ]
