"""A figure is used again only where all that could change it is the same.

Each field of each evaluation's config is changed in turn: the identity of the run changes with it,
or the config is refused, or the field is one that is known to change no figure.
"""

import dataclasses
import importlib
import json
import shutil

import detection_cases
import labelled_cases
import mask_cases
import numpy as np
import probe_cases
import pytest
import voc_cases

from cfn_jax import fields
from cfn_jax.evaluation import frozen_layers, identity, runs, trunks
from cfn_jax.evaluation.frozen import features
from cfn_jax.models import inputs
from cfn_jax.transfer import files

RECORD = inputs.InputRecord('rgb', (123.0, 117.0, 104.0), (1.0, 1.0, 1.0), 'tile', 58.0)
# A legal value for fields whose other values cannot be guessed from their type.
OTHER = {
  'classifier': 'svm',
  'compute_dtype': 'bfloat16',
  'features.dtype': 'float16',
  'features.pooling': 'max',
  'images.longest_px': 106,
  'images.scales_px': (65,),
  'input.mean': (120.0, 117.0, 104.0),
  'input.normalization': 'global',
  'magic_init': 'fresh',
  'matmul_precision': 'float32',
  'model.fc_init': 'caffe',
  'model.init': 'caffe',
  'model.order': 'alexnet',
  'data.on_bad_image': 'skip',
  'on_nonfinite': 'skip',
  'permutations.method': 'min',
  'permutations.ties': 'first',
  'probe.standardize': 'channel',
  'puzzle.crop_mode': 'random',
  'puzzle.normalization': 'channel',
  'schedule': 'step',
  'solver': 'optax',
  'test.average': 'logits',
  'test.scales_px': (65,),
  'trained': 'fc6-8',
  'views.crop': 'centre',
  'views.resize': 'squash',
}


class Seen(Exception):  # noqa: N818
  """Carries the identity of the first run of an evaluation."""


class Nothing:
  """Stands for the features of a cache that is not made."""

  def __init__(self, cache):
    self.cache, self.layers = cache, ('fc6',)
    self.labels = np.zeros((2, 3), np.uint8)

  def __len__(self):
    return 2

  def rows(self, layer, indices):
    return np.zeros((2, 4), np.float32)


@pytest.fixture(scope='module')
def images(tmp_path_factory):
  root = tmp_path_factory.mktemp('identity')
  labelled_cases.make_class_folders(root / 'folders')
  labelled_cases.make_class_folders(root / 'others', train=7)
  labelled_cases.make_voc(root / 'voc')
  voc_cases.make_objects(root / 'objects')
  detection_cases.make_voc(root / 'boxes')
  shown = {f'image{k}': (0, 1, 2) for k in range(5)}
  mask_cases.make_voc(
    root / 'masks', train=shown, val={f'val_{k}': each for k, each in shown.items()}
  )
  probe_cases.make_run(root / 'run', root / 'folders')
  drawn = trunks.draw_trunk('he', seed=5, width=0.1, order='caffenet').weights
  for name, changes in {
    'weights': {},
    'other_record': {'input': dataclasses.replace(RECORD, scale=(1.1,) * 3)},
    'other_order': {'order': 'alexnet'},
    'other_padding': {'padding': 2},
  }.items():
    changed = drawn.replace(**{'input': RECORD, 'stride': 2, **changes})
    files.save_weights(changed, root / f'{name}.npz')
  return root


def make_config(name, images):
  weights = str(images / 'weights.npz')
  if name in ('linear_probe', 'svm', 'knn', 'solve'):
    voc = name == 'svm'
    file = 'linear_probe' if voc else name
    root = images / ('voc' if voc else 'folders')
    config = probe_cases.make_config(file, root, voc=voc, weights=weights)
    if voc:
      config.classifier = 'svm'
    if name == 'knn':
      config.layers = ('pool5',)
    if name == 'solve':
      config.weights = str(images / 'run')
    return config
  if name == 'retrieval':
    root, objects = images / 'objects', {'objects.min_area_px': 1600, 'layers': ('pool5', 'conv4')}
    return probe_cases.make_config(name, root, weights=weights, **objects)
  dense = {'weights': weights, 'baseline': False}
  if name == 'voc07_detection':
    return detection_cases.make_config(images / 'boxes', **dense)
  if name == 'voc12_segmentation':
    return mask_cases.make_config(images / 'masks', **dense)
  root = images / ('voc' if name == 'voc07_classification' else 'folders')
  config = labelled_cases.make_config(name, root)
  if name == 'alexnet_to_jigsaw':
    config.data.root, config.data.val_root = str(root / 'train'), str(root / 'test')
    config.permutations.num, config.model.permutations_per_pass = 6, 2
    config.model.update({'fc6_features': 16, 'fc7_features': 16})
  if name in ('frozen_layers', 'alexnet_to_jigsaw'):
    config.layers = (1,)
  if name == 'recognition':
    config.views.update({'view_px': 99, 'resize_px': 102})
  else:
    config.update({'weights': weights, 'baseline': False})
  return config


def identify(config, monkeypatch, tmp_path):
  """Returns the identity of the first run of an evaluation; trains and extracts nothing."""

  def seen(name, settings, folder, compute):
    raise Seen(json.dumps(dict(settings), sort_keys=True))

  monkeypatch.setattr(runs, 'remember', seen)
  monkeypatch.setattr(features, 'extract', lambda m, p, b, cache, **_: Nothing(cache))
  module = importlib.import_module(f'cfn_jax.evaluation.{config.task}')
  opened = module.open_task(config)
  with pytest.raises(Seen) as caught:
    opened(tmp_path)
  return json.loads(str(caught.value))


def change(name, value):
  if name in OTHER and OTHER[name] != value:
    return OTHER[name]
  if isinstance(value, bool):
    return not value
  if isinstance(value, int):
    return value + 1
  if isinstance(value, float):
    return value / 2 if value else 0.25
  if isinstance(value, tuple):
    return value[:-1]
  return 'other'


EVALUATIONS = (
  'frozen_layers',
  'voc07_classification',
  'voc07_detection',
  'voc12_segmentation',
  'recognition',
  'alexnet_to_jigsaw',
  'linear_probe',
  'svm',
  'knn',
  'retrieval',
  'solve',
)


@pytest.mark.parametrize('name', EVALUATIONS)
def test_each_field_changes_the_identity_of_a_run_or_is_refused(
  name, images, monkeypatch, tmp_path
):
  before = identify(make_config(name, images), monkeypatch, tmp_path)
  assert before == identify(make_config(name, images), monkeypatch, tmp_path)
  silent, refused = [], []
  for field, value in fields.flatten(make_config(name, images)).items():
    config = make_config(name, images)
    config.update_from_flattened_dict({field: change(field, value)})
    spread = field in identity.SPREAD or field.partition('.')[0] in identity.SPREAD
    if spread or field in identity.NAMED or field == 'task':
      continue
    try:
      if identify(config, monkeypatch, tmp_path) == before:
        silent.append(field)
    except ValueError:
      refused.append(field)
  assert not silent
  assert len(refused) < 15, refused  # the others were compared


@pytest.mark.parametrize('name', EVALUATIONS)
def test_what_a_name_stands_for_changes_the_identity(name, images, monkeypatch, tmp_path):
  before = identify(make_config(name, images), monkeypatch, tmp_path)
  folders = not name.startswith('voc') and name not in ('svm', 'solve', 'retrieval')
  weights = name not in ('recognition', 'solve')
  others = [str(images / f'other_{what}.npz') for what in ('record', 'order', 'padding')]
  changes = [
    {'data.val_max_images': 4},
    *([{'data.root': str(images / 'others' / 'train')}] if folders else []),
    *({'weights': each} for each in others if weights),
  ]
  for changed in changes:
    config = make_config(name, images)
    config.update_from_flattened_dict(changed)
    assert identify(config, monkeypatch, tmp_path) != before, changed
  (tmp_path / 'copy.npz').write_bytes((images / 'weights.npz').read_bytes())
  same = [{'weights': str(tmp_path / 'copy.npz')}] if weights else []
  same += [{'data.val_max_images': 15}] if folders else []
  for changed in same:  # the same content under another name; all images, said otherwise
    config = make_config(name, images)
    config.update_from_flattened_dict(changed)
    assert identify(config, monkeypatch, tmp_path) == before, changed


@pytest.mark.parametrize('name', ['frozen_layers', 'alexnet_to_jigsaw', 'knn', 'solve'])
def test_other_images_of_the_same_names_change_the_identity(name, images, monkeypatch, tmp_path):
  from PIL import Image, ImageOps

  shutil.copytree(images / 'folders', tmp_path / 'a')
  for path in (tmp_path / 'a').rglob('*.png'):
    Image.open(path).save(path.with_suffix('.bmp'))
    path.unlink()
  found = []
  for root in ('a', 'copied', 'changed'):
    if root != 'a':
      shutil.copytree(tmp_path / 'a', tmp_path / root)
    if root == 'changed':  # one picture, of the same size in bytes
      path = max((tmp_path / root / 'train').rglob('*.bmp'))
      ImageOps.invert(Image.open(path)).save(path)
    config = make_config(name, images)
    if name == 'solve':
      config.data.source = 'folder'
    config.data.root = str(tmp_path / root / 'train')
    config.data.val_root = str(tmp_path / root / 'test')
    found.append(identify(config, monkeypatch, tmp_path))
  assert found[0] == found[1] != found[2]


def test_nothing_that_a_network_or_a_solver_is_made_of_is_left_out():
  sections = {'model', 'puzzle', 'views', 'input', 'test', 'probe', 'solve', 'svm.costs'}
  left = identity.SPREAD | identity.NAMED
  left -= {'test.watched_images'}  # of evaluations during training
  assert not {field for field in left if sections & {field, field.partition('.')[0]}}
  for field in ('seed', 'learning_rate', 'batch_size', 'matmul_precision', 'data.on_bad_image'):
    assert field not in left


def test_fields_that_spread_the_work_change_no_identity(images, monkeypatch, tmp_path):
  before = identify(make_config('linear_probe', images), monkeypatch, tmp_path)
  config = make_config('linear_probe', images)
  config.update({'log_every_steps': 3, 'keep_latest': 5})
  config.data.num_workers = 1
  assert identify(config, monkeypatch, tmp_path) == before
  before = identify(make_config('voc07_detection', images), monkeypatch, tmp_path)
  config = make_config('voc07_detection', images)
  config.test.watched_images += 1  # of evaluations during training
  assert identify(config, monkeypatch, tmp_path) == before


def test_a_longer_run_continues_a_shorter_one_unless_the_schedule_spans_all_steps(images):
  for schedule, same in (('step', True), ('cosine', False)):
    config = make_config('frozen_layers', images)
    config.schedule = schedule
    shorter = identity.describe_training(config)
    config.num_steps *= 2
    assert (identity.describe_training(config) == shorter) is same


def test_the_identity_names_shapes_and_the_layers_that_are_loaded(images):
  config = make_config('frozen_layers', images)
  config.layers = (1, 2)
  found = [run.task.fingerprint for run in frozen_layers.make_plan(config).runs]
  assert found[0]['loaded'].keys() == {'conv1'} and found[1]['loaded'].keys() == {'conv1', 'conv2'}
  assert found[0]['loaded']['conv1'] == found[1]['loaded']['conv1']
  assert isinstance(found[0]['shapes'], dict) and 'fc6.kernel' in found[0]['shapes']
