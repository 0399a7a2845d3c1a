"""The parts of a pretext task, read from a config: images, questions, network.

Paper, sections 3 and 4. Everything is checked here, before any long work.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from cfn_jax import fields
from cfn_jax.data import feed, pipeline
from cfn_jax.errors import CfnError
from cfn_jax.jigsaw import network, questions
from cfn_jax.jigsaw import transform as transforms
from cfn_jax.jigsaw.permutation_sets import permutations as permutation_sets
from cfn_jax.models import alexnet, cfn, figures, inputs
from cfn_jax.training import task as tasks

NORMALIZATIONS = ('tile', 'channel', 'mean', 'global')
# Limits of the numbers that pretext tasks read and nothing else checks.
LIMITS = {
  **feed.LIMITS,
  **alexnet.LIMITS,
  'data.puzzles_per_image': (1, 10**6),
  'model.permutations_per_pass': (1, 10**6),
  'puzzle.grid': (1, 5),
  'puzzle.global_std': (1e-6, 1e6),
  'puzzle.tile_scale': (1e-6, 1e6),
}


def make_input(config: ml_collections.ConfigDict) -> inputs.InputRecord:
  """Reads how tiles are prepared; the scale must fit the initial weights.

  Raises:
    CfnError: impossible figures, or a wrong scale. Caffe's initial weights see almost nothing at
      scale 1 (the loss stays at ln N); He's at scale 50 start at a loss of a hundred.
  """
  # Deviation: scale of normalised tiles: the paper names none; Caffe's initial weights and LRN
  # expect values of tens, so its variants multiply by 50 as the authors' later code does.
  z, init = config.puzzle, config.model.init
  kind, scale, std = z.normalization, z.tile_scale, z.global_std
  checks = (
    (kind in NORMALIZATIONS, f"normalization = '{kind}' is unknown: {', '.join(NORMALIZATIONS)}"),
    (len(z.global_mean) == 3, f'global_mean = {z.global_mean}: three numbers, R, G and B'),
    (std > 0, f'global_std = {std}: more than 0'),
    (scale > 0, f'tile_scale = {scale}: more than 0'),
  )
  for holds, message in checks:
    if not holds:
      raise CfnError(f'puzzle.{message}')
  if init in figures.INITS and not figures.fits(init, scale):
    wanted = 'near 50' if init == 'caffe' else 'near 1'
    raise CfnError(
      f"puzzle.tile_scale = {scale} does not go with model.init = '{init}': it needs one {wanted}"
    )
  if kind == 'global':
    return inputs.InputRecord('rgb', tuple(z.global_mean), (scale / std,) * 3)
  return inputs.InputRecord('rgb', tuple(z.global_mean), (scale,) * 3, kind, std)


def make_questions(config: ml_collections.ConfigDict) -> questions.Questions:
  """Makes the questions of a config's task.

  Raises:
    CfnError: they cannot be made, or there are fewer than an image needs.
  """
  fixed = 0
  if config.task == 'rotation':
    asked = questions.ask_rotation()
  elif config.task == 'relative_position':
    asked = questions.ask_relative_position(config.puzzle.grid, config.pairs)
  else:
    asked = questions.ask_jigsaw(make_permutation_set(config))
    fixed = config.permutations.fixed_per_image
  count, k = len(asked), config.model.permutations_per_pass
  if not 0 <= fixed <= count:
    raise CfnError(f'permutations.fixed_per_image = {fixed}: from 0 (all) to the {count} there are')
  together = k * config.data.puzzles_per_image
  if k < 1 or config.data.puzzles_per_image < 1 or together > (fixed or count):
    raise CfnError(
      f'model.permutations_per_pass = {k} times data.puzzles_per_image = '
      f'{config.data.puzzles_per_image}: from 1 to the {fixed or count} {asked.plural} of an image'
      + (f' (permutations.fixed_per_image = {fixed})' if fixed else '')
    )
  return asked


def make_permutation_set(config: ml_collections.ConfigDict) -> np.ndarray:
  """Makes or reads the permutation set, uint8 `[N, T]`.

  Raises:
    CfnError: it cannot be made or read.
  """
  c = config.permutations
  if c.file:
    return permutation_sets.load_permutations(c.file, grid=config.puzzle.grid).permutations
  return permutation_sets.make_permutations(
    c.num,
    method=c.method,
    seed=c.seed,
    grid=config.puzzle.grid,
    ties=c.ties,
    mean=c.mean,
    min_distance=c.min_distance,
  )


def check_occluders(config: ml_collections.ConfigDict, asked: questions.Questions) -> None:
  """Raises CfnError for occluders that the puzzle, network or batch cannot have."""
  most, tiles = config.puzzle.occluders, config.puzzle.grid**2
  if not most:
    return
  told = f'puzzle.occluders = {most}'
  if not 0 < most < tiles:
    room = f'from 0 to {tiles - 1} of the {tiles} tiles' if tiles > 1 else '0, there is one tile'
    raise CfnError(f'{told}: {room}')
  if config.model.name == 'stacked':
    raise CfnError(f"{told}: they replace features of single tiles: model.name = 'cfn'")
  if asked.shown < tiles and config.model.permutations_per_pass == 1:
    raise CfnError(f'{told}: all tiles are needed: model.permutations_per_pass of 2 or more')
  if config.batch_size % (2 * config.accumulate_steps):
    raise CfnError(
      f'{told}: examples lend each other tiles by twos: batch_size = {config.batch_size}, in '
      f'accumulate_steps = {config.accumulate_steps}, must be a multiple of '
      f'{2 * config.accumulate_steps}'
    )


@dataclasses.dataclass(frozen=True)
class Pretext:
  """The parts of a config's pretext task, opened and checked."""

  training: pipeline.Reader
  validation: pipeline.Reader
  questions: questions.Questions
  transform: transforms.MakePuzzle
  input: inputs.InputRecord
  model: alexnet.AlexNet
  group: int = 1  # consecutive steps that share the decoded images
  val_max_images: int = 0  # 0: all

  def init(self, seed: int) -> dict[str, Any]:
    """Draws the network's parameters on the host."""
    return alexnet.draw_parameters(self.shapes(), self.model.trunk.initial, seed=seed)

  def shapes(self) -> Any:
    """Returns the shapes of the parameters."""
    return alexnet.parameter_shapes(self.model, self.input_shape())

  def input_shape(self) -> tuple[int, ...]:
    """Returns the shape of the tiles of one question, as a batch of one."""
    side = self.transform.geometry.tile_px
    return (1, self.questions.shown, side, side, 3)

  @functools.cached_property
  def input_record(self) -> inputs.InputRecord:
    """Returns how tiles are prepared, for files of weights.

    If each tile is normalised by its own figures, `mean` and `std` of the record are their means
    over the tiles of the first training visits. They replace them when whole images are prepared.
    Unreadable images are skipped here; the run reports them. Without any contrast they are those of
    the config.
    """
    own = self.input
    if not own.normalization:
      return own
    found = transforms.measure_tiles(self.training, self.transform, own.normalization)
    mean, std = found or (own.mean, 0.0)
    keeps = own.normalization == 'mean' or not std
    return dataclasses.replace(own, mean=mean, std=own.std if keeps else std)

  def describe(self) -> dict[str, Any]:
    """Returns the description of the network in a checkpoint, for transfer/: plain values."""
    return self.model.trunk.describe() | {'input': self.input_record.to_json()}

  def logits(self, params: Any, batch: tasks.Batch, key: jax.Array | None = None) -> jax.Array:
    """Returns logits `[B, K]`, or `[B, k, K]`, of a batch; with a key, those of training.

    With `model.fc8_features` there may be more logits than classes; the rest are never right. In
    training, dropout is on and tiles are occluded.
    """
    return self.answer(params, self.input.prepare(batch['tiles']), batch, key)

  def answer(
    self, params: Any, tiles: jax.Array, batch: tasks.Batch, key: jax.Array | None = None
  ) -> jax.Array:
    """Returns the logits of a batch with prepared tiles, float32 `[B, T, h, w, C]`."""
    arguments: dict[str, Any] = {}
    if self.transform.puzzles > 1:
      arguments['rows'] = self._rows(batch)
    if key is not None:
      arguments |= {'train': True, 'rngs': {'dropout': key}}
      if self.transform.occluders:
        arguments['occluders'] = self._occluders(batch)
    logits: Any = self.model.apply({'params': params}, tiles, **arguments)
    return logits

  def _rows(self, batch: tasks.Batch) -> jax.Array:
    """Returns the tile numbers of each question, int32 `[B, S]` or `[B, k, S]`."""
    return jnp.asarray(self.questions.rows, jnp.int32)[batch['label']]

  def _occluders(self, batch: tasks.Batch) -> jax.Array:
    """Returns a batch's occluders by place: for k = 1, tiles are not in reading order."""
    occluders: jax.Array = batch['occluders']
    if self.transform.puzzles > 1:
      return occluders
    rows = self._rows(batch)
    # A place of a puzzle shows the tile of its row. Occluders belong to tiles and come from tiles.
    places = jnp.argsort(rows, axis=-1)  # [B, T]: where each tile stands
    others = places.reshape(-1, 2, places.shape[-1])[:, ::-1].reshape(places.shape)
    wanted = jnp.take_along_axis(occluders.astype(jnp.int32), rows, axis=1)  # by place
    found = jnp.take_along_axis(others, jnp.maximum(wanted, 0), axis=1)
    return jnp.where(wanted >= 0, found, -1)

  def judged(self) -> 'Pretext':
    """Returns the task of validation: without occluders, and with all pairs for the star.

    A network with one question per pass keeps the questions of its training.
    """
    visits, asked = dataclasses.replace(self.transform, occluders=0), self.questions
    if asked.name == 'relative_position' and isinstance(self.model, cfn.Cfn):
      asked = questions.ask_relative_position(visits.geometry.grid, 'all')
      visits = dataclasses.replace(visits, rows=asked.rows, puzzles=len(asked))
    return dataclasses.replace(self, questions=asked, transform=visits)

  def answers(self, label: jax.Array) -> jax.Array:
    """Returns the answers to questions, given their numbers `[B, ...]`."""
    return jnp.asarray(self.questions.answers)[label]


def open_pretext(config: ml_collections.ConfigDict, *, evaluated: bool = True) -> Pretext:
  """Opens the data, makes the questions and the network; reads no image.

  Args:
    evaluated: there must be validation images.

  Raises:
    CfnError: with the fault in the config or the data, and the remedy.
  """
  z = config.puzzle
  least = z.crop_px if z.crop_mode == 'whole' else z.resize_px
  return make_pretext(
    config, lambda: feed.open_readers(config, min_side_px=least, evaluated=evaluated)
  )


def make_pretext(
  config: ml_collections.ConfigDict,
  open_readers: Callable[[], tuple[pipeline.Reader, pipeline.Reader]],
) -> Pretext:
  """Makes the questions and the network of a config, then opens its images; see `open_pretext`."""
  fields.check_numbers(config, LIMITS)
  geometry = transforms.make_geometry(config)
  record = make_input(config)
  asked = make_questions(config)
  check_occluders(config, asked)
  model = network.make_model(config, asked.classes)
  training, validation = open_readers()
  visits = transforms.MakePuzzle(
    geometry=geometry,
    rows=asked.rows,
    puzzles=config.model.permutations_per_pass,
    fixed_per_image=config.permutations.fixed_per_image if asked.name == 'jigsaw' else 0,
    seed=config.seed,
    occluders=config.puzzle.occluders,
  )
  return Pretext(
    training=training,
    validation=validation,
    questions=asked,
    transform=visits,
    input=record,
    model=model,
    group=config.data.puzzles_per_image,
    val_max_images=config.data.val_max_images,
  )
