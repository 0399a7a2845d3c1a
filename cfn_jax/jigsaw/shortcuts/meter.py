"""Measures how many puzzles of a config cues solve, with its measures and without.

Images -> puzzles by the config's own sampler, prepared as the network sees them -> tables of cues
(cues.py) -> the best row of the set. No network is trained. Cues of single tiles first learn on
other images where tiles lie: a logistic regression by scikit-learn (the extra `svm`), imported on
demand.
"""

import concurrent.futures
import copy
import dataclasses
import importlib.util
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np

from cfn_jax import terminal
from cfn_jax.data import pipeline, sources
from cfn_jax.errors import CfnError
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import solving
from cfn_jax.jigsaw import transform as transforms
from cfn_jax.jigsaw.permutation_sets import permutations as permutation_sets
from cfn_jax.jigsaw.shortcuts import cues
from cfn_jax.models import inputs
from cfn_jax.training import metrics

ON, OFF = 'on', 'all off'
FEWEST = 20  # images
MOST_ITERATIONS = 500  # of the regression


@dataclasses.dataclass(frozen=True)
class Setting:
  """Puzzles of a config with some of its measures off.

  Attributes:
    name: `on`, `no gap` and the like, `all off`.
    visits: cuts one puzzle per visit, tiles in the order of the row.
    input: prepares the tiles.
  """

  name: str
  visits: transforms.MakePuzzle
  input: inputs.InputRecord


@dataclasses.dataclass(frozen=True)
class Seen:
  """The cues of one puzzle by name: tables of neighbours, features of tiles; and its row."""

  cues: Mapping[str, np.ndarray]
  label: int


def find_measures(config: ml_collections.ConfigDict) -> dict[str, dict[str, Any]]:
  """Returns the measures of a config against shortcuts: names to the fields that turn each off."""
  z = config.puzzle
  every: dict[str, dict[str, Any]] = {
    'gap': {'cell_px': z.tile_px, 'cell_gap_px': 0},
    'normalisation': {'normalization': 'global'},
    'shift': {'channel_shift_px': 0},
    'grey': {'grey_fraction': 0.0, 'project_fraction': 0.0, 'drop_channels': False},
  }
  return {
    name: off
    for name, off in every.items()
    if any(z[field] != value for field, value in off.items())
  }


def make_settings(
  config: ml_collections.ConfigDict, pretext: pretexts.Pretext
) -> dict[str, Setting]:
  """Makes the puzzles of a config as it is, without each of its measures, and without any."""
  measures = find_measures(config)
  changes: dict[str, dict[str, Any]] = {ON: {}}
  if len(measures) > 1:
    changes |= {f'no {name}': fields for name, fields in measures.items()}
  changes[OFF] = {field: value for fields in measures.values() for field, value in fields.items()}
  settings = {}
  for name, fields in changes.items():
    other = ml_collections.ConfigDict(config.to_dict())
    other.puzzle.update(fields)
    geometry = transforms.make_geometry(other)
    visits = dataclasses.replace(pretext.transform, geometry=geometry, puzzles=1, occluders=0)
    settings[name] = Setting(name, visits, pretexts.make_input(other))
  return settings


def measure(
  config: ml_collections.ConfigDict, pretext: pretexts.Pretext, count: int
) -> dict[str, Any]:
  """Solves `count` puzzles, one per image, by each cue in each setting; learns on as many images.

  If there are fewer images, half of them are solved.

  Returns:
    plain values: the settings, and under `cues` the figures of each setting and the verdict.

  Raises:
    CfnError: scikit-learn or images are missing.
  """
  source = pretext.training.source
  check(source, len(source))
  settings = make_settings(config, pretext)
  rows = pretext.questions.rows
  places = range(min(2 * count, len(source)))
  seen = _see_all(pretext.training, list(settings.values()), places)
  check(source, len(seen))
  solved = len(seen) // 2
  summary = permutation_sets.summarize(rows)
  chance = 1 / len(rows)
  asked = {
    'neighbours': cues.ask_neighbours(rows, config.puzzle.grid),
    'cells': solving.make_positions(rows).reshape(len(rows), -1),
  }
  figures: dict[str, dict[str, Any]] = {cue: {} for cue in cues.CUES}
  for at, name in enumerate(settings):
    each = [puzzles[at] for puzzles in seen]
    for cue, answers in _solve(each[:solved], each[solved:], rows, asked, seed=config.seed).items():
      figures[cue][name] = _score(answers, [one.label for one in each[:solved]], rows)
  for found in figures.values():
    found['verdict'] = cues.judge(found[ON], found[OFF], chance)
    found['present'] = found[OFF]['low'] > chance
  return {
    'puzzles': solved,
    'learned_images': len(seen) - solved,
    'asked_puzzles': count,
    'permutations': len(rows),
    'chance_accuracy': chance,
    'chance_tile_accuracy': cues.expect_tiles(rows, summary.mean_hamming),
    'measures': [*find_measures(config)],
    'settings': [*settings],
    'cues': figures,
  }


def check(source: sources.Source, count: int) -> None:
  """Raises CfnError if nothing can be measured: without scikit-learn, or with too few images."""
  if importlib.util.find_spec('sklearn') is None:
    raise CfnError("shortcuts need scikit-learn: pip install -e '.[svm]'")
  if count < FEWEST:
    raise CfnError(
      f'{source.description}: {count} training images: shortcuts need {FEWEST} or more, half of '
      'them to learn where tiles lie'
    )


def _see_all(
  reader: pipeline.Reader, settings: Sequence[Setting], places: range
) -> list[list[Seen]]:
  """Returns the cues of each image's puzzles, one per setting, in the order of visits.

  Replacements of bad images are left out, so each image occurs once.
  """

  def see(place: int) -> list[Seen]:
    visit = reader.train(place)
    return [] if visit.bad >= 0 else [_see(visit, setting) for setting in settings]

  with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    found = pool.map(see, places)
    bar = terminal.make_bar(found, total=len(places), desc='images', unit='image', delay=3)
    return [puzzles for puzzles in bar if puzzles]


def _see(visit: pipeline.Visit, setting: Setting) -> Seen:
  made = setting.visits.sample(visit._replace(rng=copy.deepcopy(visit.rng)))
  tiles = cues.arrange(setting.input.prepare(made.tiles))
  return Seen(
    {name: look(tiles) for name, look in {**cues.COMPARED, **cues.DESCRIBED}.items()},
    int(made.labels[0]),
  )


def _solve(
  solved: Sequence[Seen],
  learned: Sequence[Seen],
  rows: np.ndarray,
  asked: Mapping[str, np.ndarray],
  *,
  seed: int,
) -> dict[str, np.ndarray]:
  """Returns each cue's answers to the solved puzzles, int `[P]`."""
  found = {}
  for cue in cues.CUES:
    rng = np.random.default_rng(seed)
    seen = np.stack([one.cues[cue] for one in solved])
    if cue in cues.COMPARED:
      tables, by = -seen.reshape(len(seen), -1), asked['neighbours']
    else:
      known = np.stack([one.cues[cue] for one in learned])
      cells = np.stack([rows[one.label] for one in learned])
      tables, by = learn_cells(known, cells, seen).reshape(len(seen), -1), asked['cells']
    found[cue] = cues.choose_rows(tables, by, rng)
  return found


def learn_cells(known: np.ndarray, cells: np.ndarray, seen: np.ndarray) -> np.ndarray:
  """Learns the cells of tiles; returns log p(cell) of other tiles, float `[P, T, T]`.

  Args:
    known: `[M, T, F]`: features of tiles with known cells.
    cells: `[M, T]`.
    seen: `[P, T, F]`: features of the others.
  """
  from sklearn import exceptions, linear_model, pipeline, preprocessing

  model = pipeline.make_pipeline(
    preprocessing.StandardScaler(), linear_model.LogisticRegression(max_iter=MOST_ITERATIONS)
  )
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', exceptions.ConvergenceWarning)
    model.fit(known.reshape(-1, known.shape[-1]), cells.ravel())
  log_shares = model.predict_log_proba(seen.reshape(-1, seen.shape[-1]))
  found: np.ndarray = np.maximum(log_shares, -100).reshape(*seen.shape[:2], -1)  # never -inf
  return found


def _score(answers: np.ndarray, labels: Sequence[int], rows: np.ndarray) -> dict[str, float]:
  right = answers == np.array(labels)
  count = float(right.sum())
  low, high = metrics.confidence_interval(len(right), count, count)
  return {
    'accuracy': float(right.mean()),
    'low': low,
    'high': high,
    'tile_accuracy': float((rows[answers] == rows[np.array(labels)]).mean()),
  }
