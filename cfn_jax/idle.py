"""Fields that have no effect because of other fields of a config: setting one is an error.

A config holds every knob of its task. Some belong to an option that is not chosen, such as the
steps between two drops of a rate that follows a cosine. Such a field may keep its default. If it is
set, on the command line or in a user's config, to anything but off ('', 0 or False), it is refused.
data/sources.py refuses fields that a source of images does not read.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import ml_collections

from cfn_jax import fields, places
from cfn_jax.errors import CfnError

Values = Mapping[str, Any]  # of a config, flat: 'puzzle.tile_px' to 64


@dataclasses.dataclass(frozen=True)
class Rule:
  """Fields that have no effect if `holds` is true for a config.

  Attributes:
    fields: their names; the name of a section means all fields in it.
    because: why they are idle, the end of a message; `{field}` is the value of that field.
  """

  fields: tuple[str, ...]
  holds: Callable[[Values], bool]
  because: str


def _is(field: str, *values: Any) -> Callable[[Values], bool]:
  return lambda c: field in c and c[field] in values


def _is_not(field: str, *values: Any) -> Callable[[Values], bool]:
  return lambda c: field in c and c[field] not in values


def _is_for(task: str, holds: Callable[[Values], bool]) -> Callable[[Values], bool]:
  return lambda c: c['task'] == task and holds(c)


def _names_no_run(c: Values) -> bool:
  weights = _list_weights(c)
  return bool({*weights} - {'', 'random'}) and not _is_any_folder(weights, 'checkpoints')


def _holds_no_averages(c: Values) -> bool:
  return _names_no_run(c) and not _is_any_folder(_list_weights(c), 'state')


def _list_weights(c: Values) -> list[str]:
  """Returns the paths of the weights; only retrieval compares several."""
  weights = str(c.get('weights', ''))
  return (
    [*places.split_named(weights, 'weights').values()] if c['task'] == 'retrieval' else [weights]
  )


def _is_any_folder(weights: Iterable[str], name: str) -> bool:
  return any(_is_folder(each, name) for each in weights)


def _is_folder(weights: str, name: str) -> bool:
  """Returns whether the folder of the weights, or of each run in it, has a folder of this name."""
  if places.is_address(weights):
    return True  # it may hold one: nothing is asked of a bucket here
  path = pathlib.Path(os.path.expanduser(weights))  # noqa: PTH111  (never raises)
  return (path / name).is_dir() or (path.is_dir() and any(path.glob(f'*/{name}')))


# Read by the training loop alone.
_TRAINING = (
  *('accumulate_steps', 'batch_size', 'bias_decay', 'bias_rate', 'checkpoint_every_steps'),
  *('clip_gradients', 'decay_factor', 'decay_steps', 'ema_decay', 'eval_every_steps'),
  *('keep_best', 'keep_latest', 'learning_rate', 'log_every_steps', 'momentum', 'nonfinite_limit'),
  *('num_steps', 'on_nonfinite', 'plateau_warning_steps', 'profile_start_step', 'profile_steps'),
  *('schedule', 'solver', 'start_over', 'warmup_steps', 'weight_decay'),
)
_SET = ('permutations.num', 'permutations.method', 'permutations.seed', 'permutations.ties')
RULES = (
  Rule(('mask.side_px',), _is('mask.kind', 'random_region'), "mask.kind = 'random_region'"),
  Rule(
    ('mask.blob_px', 'mask.smallest', 'mask.largest'),
    _is('mask.kind', 'centre'),
    "mask.kind = 'centre'",
  ),
  Rule(('decay_steps', 'decay_factor'), _is('schedule', 'cosine'), "schedule = 'cosine'"),
  Rule(('nonfinite_limit',), _is('on_nonfinite', 'stop'), "on_nonfinite = 'stop'"),
  Rule(('profile_start_step',), _is('profile_steps', 0), 'profile_steps = 0'),
  Rule(
    ('distributed.coordinator', 'distributed.num_processes', 'distributed.process_id'),
    _is_not('distributed.mode', 'explicit'),
    "distributed.mode is not 'explicit'",
  ),
  Rule(('distributed.heartbeat_s',), _is('distributed.mode', 'off'), "distributed.mode = 'off'"),
  Rule(
    (*_SET, 'permutations.mean', 'permutations.min_distance'),
    _is_not('permutations.file', ''),
    'the set is read from permutations.file',
  ),
  Rule(('permutations.ties',), _is('permutations.method', 'mid', 'code'), 'of permutations.method'),
  Rule(('puzzle.resize_px',), _is('puzzle.crop_mode', 'whole'), "puzzle.crop_mode = 'whole'"),
  Rule(
    ('puzzle.global_mean',),
    _is_not('puzzle.normalization', 'global'),
    "it is for puzzle.normalization = 'global'",
  ),
  Rule(
    ('puzzle.global_std',),
    lambda c: (
      c['task'] != 'alexnet_to_jigsaw'  # it reads the field for layers that learned on images
      and c.get('puzzle.normalization') in ('tile', 'channel')
    ),
    "it is for puzzle.normalization = 'global' and 'mean'",
  ),
  Rule(
    ('puzzle.project_fraction', 'puzzle.channel_shift_px'),
    _is('puzzle.grey_fraction', 1.0),
    'all visits are grey',
  ),
  Rule(
    ('puzzle.channel_shift_px',),
    lambda c: c['task'] == 'rotation' and c['puzzle.crop_px'] == c['puzzle.tile_px'],
    'the tile fills the crop',
  ),
  Rule(('data.val_fraction',), _is_not('data.val_root', ''), 'data.val_root names the images'),
  Rule(('data.val_fraction',), _is_not('data.val_split', ''), 'data.val_split names the images'),
  Rule(
    ('data.val_fraction', 'data.on_bad_image'),
    _is('data.source', 'bundled'),
    "data.source = 'bundled' has photographs of its own for validation, none of them bad",
  ),
  Rule(
    ('data.crops_per_photograph', 'data.val_crops_per_photograph'),
    _is('data.source', 'folder', 'records', 'tfds', 'voc'),
    "it is for data.source = 'bundled'",
  ),
  Rule(
    ('data.labels',),
    _is('data.source', 'folder', 'records', 'tfds'),
    "it is for data.source = 'voc'",
  ),
  Rule(
    ('model.width', 'model.order'),
    lambda c: c.get('weights', 'random') not in ('', 'random'),
    'the weights decide it',
  ),
  Rule(
    ('weights_step', 'weights_collection', 'baseline'),
    lambda c: c.get('weights') == 'random' and c['task'] != 'alexnet_to_jigsaw',
    "weights = 'random'",
  ),
  Rule(('weights_step',), _names_no_run, 'weights name no run with several steps'),
  Rule(('weights_collection',), _holds_no_averages, 'weights name no checkpoint'),
  Rule(
    ('model.init',),
    lambda c: (
      (c['task'] in ('knn', 'linear_probe', 'retrieval') or c['task'].startswith('voc_'))
      and not c['baseline']
      and c['weights'] != 'random'
      and c.get('model.fc_init', 'its own')  # '': fully connected layers are drawn alike
    ),
    'it draws nothing with baseline = False',
  ),
  Rule(('model.fc_init',), _is('magic_init', 'fresh', 'calibrated'), 'magic_init draws'),
  Rule(('test.average',), _is('test.draws', 1), 'test.draws = 1'),
  Rule(('test.mirror',), _is_for('recognition', _is('test.draws', 1)), 'test.draws = 1'),
  Rule(
    ('model.fc6_features', 'model.fc7_features', 'model.dropout'),
    _is('trained', 'pool5'),
    "trained = 'pool5' has no fc6 and fc7",
  ),
  Rule(
    ('puzzle.normalization', 'puzzle.tile_scale'),
    _is_for('alexnet_to_jigsaw', _is('baseline', False)),
    'it is for the reference, baseline = True',
  ),
  Rule(('data.val_fraction',), _is_for('solve', _is('data.source', '')), 'data.source is empty'),
  Rule(
    ('input.mean',), _is_not('input.normalization', 'global'), "input.normalization is not 'global'"
  ),
  Rule(
    ('input.std',),
    _is('input.normalization', 'tile', 'channel'),
    'each tile is divided by its own deviation',
  ),
  Rule(('svm',), _is('classifier', 'logistic'), "classifier = 'logistic'"),
  Rule(
    (*_TRAINING, 'probe'), _is('classifier', 'svm'), "classifier = 'svm' takes no training steps"
  ),
  Rule(('svm.folds',), lambda c: len(c.get('svm.costs', ())) == 1, 'svm.costs holds one cost'),
  Rule(('features.dimensions',), _is('features.pooling', 'none'), "features.pooling = 'none'"),
  Rule(
    ('features.pooling', 'features.dimensions'),
    lambda c: c['task'] in ('knn', 'linear_probe') and set(c['layers']) <= {'fc6', 'fc7'},
    'fc6 and fc7 are not pooled',
  ),
  Rule(
    ('features.pooling', 'features.dimensions'),
    lambda c: c['task'] == 'retrieval' and set(c['layers']) <= {'pool5', 'fc6', 'fc7'},
    'pool5, fc6 and fc7 are not pooled',
  ),
  Rule(
    ('objects', 'data.on_bad_box'),
    _is('data.source', 'folder', 'records', 'tfds'),
    "whole images are compared; it is for data.source = 'voc'",
  ),
  Rule(
    ('views.resize_px', 'views.resize'),
    _is_for('recognition', _is('views.crop', 'whole')),
    "views.crop = 'whole'",
  ),
  Rule(
    ('model.grid',), _is_for('recognition', _is('model.name', 'alexnet')), "model.name = 'alexnet'"
  ),
)


def check(config: ml_collections.ConfigDict, set_fields: Iterable[str]) -> None:
  """Refuses fields that were set and have no effect.

  Args:
    set_fields: names of the fields that were set, 'section.field'.

  Raises:
    CfnError: with the field, its value and why it has no effect.
  """
  values = fields.flatten(config)
  for field, because in find(values, set_fields):
    raise CfnError(
      f'{field} = {values[field]!r} has no effect: {because}; leave it out, or change that'
    )


def find(
  values: Values, set_fields: Iterable[str], *, here: bool = True
) -> Iterator[tuple[str, str]]:
  """Yields those of some fields that have no effect, and why.

  Args:
    values: the flat config.
    here: it is for this host, whose disk says what the weights hold.
  """
  rules = [rule for rule in RULES if here or rule.holds not in (_names_no_run, _holds_no_averages)]
  for field in set_fields:
    for rule in rules if values.get(field) else ():
      if {field, field.partition('.')[0]} & set(rule.fields) and rule.holds(values):
        yield field, rule.because
