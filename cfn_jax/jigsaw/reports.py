"""The words of a pretraining run: before it starts, and when it ends."""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import ml_collections

from cfn_jax import terminal
from cfn_jax.buckets import addresses
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import puzzle, questions
from cfn_jax.jigsaw.permutation_sets import permutations as permutation_sets
from cfn_jax.models import alexnet
from cfn_jax.training import metrics

# For advice on a plateau, measured at the size of cfn.py:small: sets up to this size leave chance
# within some hundred steps at this rate.
EASY_SET = 100
USUAL_RATE = 0.01


def summarize(
  config: ml_collections.ConfigDict, pretext: pretexts.Pretext
) -> list[tuple[str, str]]:
  """Returns the task's rows of the start-up summary."""
  asked, images = pretext.questions, len(pretext.training.source)
  visits = config.num_steps * config.batch_size
  puzzles = pretext.transform.puzzles
  geometry = pretext.transform.geometry
  rows = [
    ('training', pretext.training.source.description),
    ('validation', pretext.validation.source.description),
    (
      'puzzle',
      f'{_describe_tiles(geometry)}, crop {geometry.crop_px} px ({geometry.crop_mode}), '
      f'{_describe_colours(geometry)}'
      + (f', up to {pretext.transform.occluders} occluders' if pretext.transform.occluders else ''),
    ),
    _describe_questions(asked),
    (
      'network',
      f'{config.model.name}, {alexnet.count_parameters(pretext.shapes()):,} parameters, '
      f'{config.compute_dtype}',
    ),
    _describe_chance('chance', asked),
    (
      'run',
      f'{config.num_steps:,} steps of {config.batch_size} images, {visits / images:,.1f} epochs, '
      f'{visits * puzzles / images:,.0f} {asked.plural} an image',
    ),
  ]
  if len(judged := pretext.judged().questions) > len(asked):
    rows.append(_describe_chance('chance, all pairs', judged))
  if images < config.batch_size:
    rows.append(
      ('note', f'{images} images fill no batch of {config.batch_size}: some show twice in it')
    )
  return rows


def _describe_tiles(geometry: puzzle.Geometry) -> str:
  """Returns the tiles of a crop in words."""
  if geometry.turned:
    return f'{geometry.tiles} rotations of a tile of {geometry.tile_px} px'
  gap = f', {geometry.cell_gap_px} px apart' if geometry.cell_gap_px else ''
  return (
    f'{geometry.grid} x {geometry.grid} tiles of {geometry.tile_px} px in cells of '
    f'{geometry.cell_px} px{gap}'
  )


def _describe_colours(geometry: puzzle.Geometry) -> str:
  """Returns the changes of a visit's colours in words."""
  told = [f'grey {geometry.grey_fraction:.0%}']
  if geometry.project_fraction:
    told.append(f'projected {geometry.project_fraction:.0%} of the others')
  if geometry.drop_channels:
    told.append('one channel of each tile')
  return ', '.join([*told, f'channel shift {geometry.largest_shift_px} px'])


def _describe_questions(asked: questions.Questions) -> tuple[str, str]:
  """Returns the row of the summary about the questions."""
  if asked.name != 'jigsaw':
    tiles = f'{asked.shown} tile{"s" if asked.shown > 1 else ""}'
    return 'questions', f'{len(asked)}, each of {tiles}, {asked.classes} answers'
  found = permutation_sets.summarize(asked.rows)
  return (
    'permutations',
    f'{len(asked)}, Hamming distance mean {found.mean_hamming:.3f} (at most '
    f'{found.largest_mean:.3f}), minimum {found.min_hamming}',
  )


def _describe_chance(name: str, asked: questions.Questions) -> tuple[str, str]:
  """Returns a row about a guess; its loss is a logarithm if all answers are equally likely."""
  equal = math.isclose(asked.chance_loss, math.log(asked.classes))
  loss = f'{f"ln {asked.classes} = " if equal else ""}{asked.chance_loss:.3f}'
  return name, f'accuracy {asked.chance_accuracy:.2%}, loss {loss}'


def advise(config: ml_collections.ConfigDict, asked: questions.Questions) -> str:
  """Returns why a run of this config may stay at chance, and what helps, the likeliest first."""
  m, count = config.model, len(asked)
  many = asked.name == 'jigsaw' and count > EASY_SET
  most = min(8, config.permutations.fixed_per_image or count) if asked.name == 'jigsaw' else 1
  started = 'init_from' in config and bool(config.init_from)  # a reference has no such field
  hidden = config.puzzle.cell_px > config.puzzle.tile_px or config.puzzle.cell_gap_px > 0
  causes = (
    (
      m.name == 'stacked' and hidden,
      "model.name = 'stacked' learns from borders, and gaps hide them: 'cfn' learns without",
    ),
    (
      m.name == 'cfn' and m.permutations_per_pass < most,
      f'model.permutations_per_pass = {m.permutations_per_pass} asks little of each image: {most} '
      'leaves chance earlier',
    ),
    (
      many and not started,
      f'{count} permutations are hard from random weights: train with permutations.num = 100 first '
      'and name that run as init_from',
    ),
    (
      m.init == 'caffe' and not started,
      "model.init = 'caffe' starts slowly: 'he' with puzzle.tile_scale = 1 leaves chance earlier",
    ),
    (
      config.learning_rate < USUAL_RATE,
      f'learning_rate = {config.learning_rate:g} is low: {USUAL_RATE:g} is usual',
    ),
    (
      config.warmup_steps > config.plateau_warning_steps,
      f'warmup_steps = {config.warmup_steps:,} still holds the rate down: fewer',
    ),
    (many and m.width < 0.5, f'model.width = {m.width:g} is narrow for that: 0.5 or more'),
  )
  found = [text for holds, text in causes if holds]
  if not found:
    return 'A larger learning_rate may start it.'
  return f'Likely: {"; ".join(found)}.'


def say_closing(figures: Mapping[str, Any], workdir: pathlib.Path, what: str) -> None:
  """Prints the last figures of a run, and those of its best evaluation, of `what`."""
  rows = [row for row in metrics.read_rows(workdir / 'metrics.jsonl') if 'val_accuracy' in row]
  if not figures:
    terminal.say(f'{addresses.show(workdir)}: the run is finished; more steps continue it')
  if not rows or 'train_loss' not in figures:
    return
  best = max(rows, key=lambda row: row['val_accuracy'])
  for name, row in (('finished', figures), ('best', best)):
    low, high = row['val_accuracy_low'], row['val_accuracy_high']
    terminal.say(
      f'{name} at step {row["step"]:,}: validation accuracy {row["val_accuracy"]:.2%} (95 % '
      f'interval {low:.2%} to {high:.2%}), loss {row["val_loss"]:.3f}, {row["val_count"]:,} {what}'
    )
  terminal.say(
    f'training loss {figures["train_loss"]:.3f}; everything is in {addresses.show(workdir)}'
  )
