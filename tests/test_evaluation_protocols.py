"""The evaluations end to end at their smallest: what they leave behind, resuming, bad input."""

import json
import os
import subprocess
import sys

import labelled_cases
import numpy as np
import pytest
import test_distributed
import test_main

from cfn_jax.evaluation import (
  alexnet_to_jigsaw,
  frozen_layers,
  labelled,
  recognition,
  runs,
  trunks,
  voc_classification,
)
from cfn_jax.models import alexnet, inputs
from cfn_jax.training import checkpoint, loop
from cfn_jax.transfer import checkpoints, files, surgery
from cfn_jax.transfer import weights as weights_lib

CONVOLUTIONS = weights_lib.CONVOLUTIONS


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  return labelled_cases.make_class_folders(tmp_path_factory.mktemp('folders'))


@pytest.fixture(scope='module')
def voc(tmp_path_factory):
  return labelled_cases.make_voc(tmp_path_factory.mktemp('voc') / 'VOC2008')


@pytest.fixture(scope='module')
def pretrained(tmp_path_factory):
  """A file of weights of a tenth of AlexNet's width, as a pretext run leaves them."""
  path = tmp_path_factory.mktemp('weights') / 'weights.npz'
  drawn = trunks.draw_trunk('he', seed=5, width=0.1, order='caffenet').weights
  record = inputs.InputRecord('rgb', (123.0, 117.0, 104.0), (1.0, 1.0, 1.0), 'tile', 58.0)
  files.save_weights(drawn.replace(input=record, stride=2), path)
  return path


def refuse(*_):
  raise AssertionError('this run was done before')


# ---- what the plans are made of


def test_each_k_locks_its_layers_and_draws_the_others(folders, pretrained):
  config = labelled_cases.make_config('frozen_layers', folders, weights=str(pretrained))
  plan = frozen_layers.make_plan(config)
  names = [f'{run}/conv{k}' for run in ('pretrained', 'random') for k in range(1, 6)]
  assert [run.name for run in plan.runs] == names
  given = files.load_weights(pretrained).params
  for k in (1, 4):
    params = plan.runs[k - 1].task.init(0)
    labels = plan.runs[k - 1].task.labels(params)
    for number, name in enumerate(CONVOLUTIONS, start=1):
      same = np.array_equal(params[name]['kernel'], given[name]['kernel'])
      assert same == (number <= k), name
      assert (labels[name]['kernel'] == 'locked') == (number <= k), name
    assert labels['fc8']['kernel'] == 'weight'


def test_whole_images_get_the_fixed_record_and_the_baseline_its_own(folders, pretrained):
  config = labelled_cases.make_config('frozen_layers', folders, weights=str(pretrained))
  plan = frozen_layers.make_plan(config)
  ours, random = (plan.runs[index].task.meta['network']['input'] for index in (0, 5))
  assert ours['normalization'] == '' and ours['scale'] == pytest.approx([1 / 58] * 3)
  assert random == inputs.RECORDS['unit'].to_json()


@pytest.mark.parametrize(
  ('trained', 'loaded', 'moving'),
  [
    ('all', CONVOLUTIONS, {*CONVOLUTIONS, 'fc6', 'fc7', 'fc8'}),
    ('fc6-8', CONVOLUTIONS, {'fc6', 'fc7', 'fc8'}),
    ('pool5', CONVOLUTIONS, {'fc8'}),
  ],
)
def test_what_trains_is_what_the_config_names(voc, pretrained, trained, loaded, moving):
  config = labelled_cases.make_config(
    'voc07_classification', voc, weights=str(pretrained), trained=trained
  )
  task = voc_classification.make_plan(config).runs[0].task
  params = task.init(0)
  labels = task.labels(params)
  assert {name for name in params if labels[name]['bias'] != 'locked'} == moving
  assert set(params) == {*CONVOLUTIONS, 'fc8'} if trained == 'pool5' else len(params) == 8
  given = files.load_weights(pretrained).params
  for name in loaded:
    np.testing.assert_array_equal(params[name]['kernel'], given[name]['kernel'])


def test_fc6_and_fc7_of_an_alexnet_are_taken_where_they_fit(voc, pretrained, tmp_path):
  whole = surgery.to_alexnet(
    files.load_weights(pretrained), num_classes=7, input_px=67, features=12, fc_init='he'
  )
  files.save_weights(whole, tmp_path / 'alexnet.npz')
  config = labelled_cases.make_config(
    'voc07_classification', voc, weights=str(tmp_path / 'alexnet.npz'), trained='fc8'
  )
  params = voc_classification.make_plan(config).runs[0].task.init(0)
  for name in ('fc6', 'fc7'):
    np.testing.assert_array_equal(params[name]['kernel'], whole.params[name]['kernel'])
  assert params['fc8']['kernel'].shape == (12, 3)  # of this data set, not the file's
  config.views.view_px = 99
  with pytest.raises(weights_lib.WeightsError, match=r'fc7, but .* holds none for views of 99 px'):
    voc_classification.make_plan(config)
  config.views.view_px, config.model.load_fc = 67, False
  with pytest.raises(weights_lib.WeightsError, match=r'fc7, but model\.load_fc = False draws them'):
    voc_classification.make_plan(config)
  config.trained = 'pool5'
  with pytest.raises(ValueError, match=r'model\.load_fc = False has no effect'):
    voc_classification.make_plan(config)


def test_a_supervised_conv1_sees_tiles_as_it_saw_images(tmp_path):
  rng = np.random.default_rng(0)
  for record in (
    *inputs.RECORDS.values(),
    inputs.InputRecord('bgr', (1, 2, 3), (2,) * 3),
  ):
    drawn = trunks.draw_trunk('he', seed=0, width=0.1, order='caffenet').weights
    drawn = drawn.replace(input=record)
    fed = alexnet_to_jigsaw.find_record(record, tiles='as_learned', std=58.0)
    tiles = rng.integers(0, 256, (1, 9, 11, 11, 3), np.uint8)  # one position of conv1
    folded = surgery.fold_input(drawn, to=fed)

    def conv1(weights, x):
      kernel, bias = weights.params['conv1']['kernel'], weights.params['conv1']['bias']
      return np.einsum('btyxc,yxco->bto', np.asarray(x, np.float64), kernel) + bias

    ours = conv1(folded, fed.prepare(tiles))
    theirs = conv1(drawn, record.prepare(tiles))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())


@pytest.mark.parametrize('record', inputs.RECORDS.values())
def test_locked_layers_get_normalised_tiles_of_their_own_input_scale(record):
  drawn = trunks.draw_trunk('he', seed=0, width=0.1, order='caffenet').weights
  fed = alexnet_to_jigsaw.find_record(record, tiles='normalised', std=58.0)
  folded = surgery.fold_input(drawn.replace(input=record), to=fed)
  rng = np.random.default_rng(0)
  tiles = rng.integers(0, 256, (5, 11, 11, 3)) * rng.uniform(0.1, 1, (5, 1, 1, 1))
  tiles = np.uint8(tiles)
  prepared = np.asarray(fed.prepare(tiles), np.float64)
  np.testing.assert_allclose(prepared.mean((1, 2, 3)), 0, atol=1e-4)
  np.testing.assert_allclose(prepared.std((1, 2, 3)), 58 * np.mean(record.scale), rtol=1e-5)
  # Contrast of 58 about the mean colour, prepared by the record, and through the same conv1.
  x = tiles - tiles.mean((1, 2, 3), keepdims=True)
  x = x / x.std((1, 2, 3), keepdims=True) * 58
  kernel = drawn.params['conv1']['kernel'].astype(np.float64)
  own = (x[..., ::-1] if record.channels == 'bgr' else x) * record.scale
  wanted = np.einsum('byxc,yxco->bo', own, kernel) + drawn.params['conv1']['bias']
  found = np.einsum('byxc,yxco->bo', prepared, folded.params['conv1']['kernel'].astype(np.float64))
  found += folded.params['conv1']['bias']
  np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())


def test_layers_that_learned_on_tiles_keep_their_normalisation():
  learned = inputs.InputRecord('rgb', (1.0, 2.0, 3.0), (50.0,) * 3, 'channel', 44.0)
  for tiles in alexnet_to_jigsaw.TILES:
    assert alexnet_to_jigsaw.find_record(learned, tiles=tiles, std=58.0) == learned
  with pytest.raises(ValueError, match="locked_tiles = 'raw' is unknown: one of normalised"):
    alexnet_to_jigsaw.find_record(learned, tiles='raw', std=58.0)


def test_layers_above_locked_ones_must_be_drawn_for_what_those_pass_on(folders, tmp_path):
  drawn = trunks.draw_trunk('he', seed=0, width=0.1, order='caffenet').weights
  files.save_weights(drawn.replace(input=inputs.RECORDS['caffe']), tmp_path / 'w.npz')
  config = labelled_cases.make_config(
    'alexnet_to_jigsaw', folders, weights=str(tmp_path / 'w.npz'), baseline=False
  )
  config.data.root = str(folders / 'train')
  config.model.init, config.locked_tiles = 'he', 'as_learned'
  message = "model.init = 'he' draws the layers above .* deviation of 58, which goes with 'caffe'"
  with pytest.raises(ValueError, match=message):
    alexnet_to_jigsaw.make_plan(config)


def test_recognition_is_the_papers_network():
  config = labelled_cases.command.load_config(f'{labelled_cases.REPOSITORY}/configs/recognition.py')
  names = tuple(map(str, range(1000)))
  made = recognition.make_classifier(config, names)
  assert alexnet.count_parameters(made.shapes()) == 27_407_208
  config = labelled_cases.command.load_config(
    f'{labelled_cases.REPOSITORY}/configs/recognition.py:alexnet'
  )
  made = recognition.make_classifier(config, names)
  assert alexnet.count_parameters(made.shapes()) == 60_965_224


def test_recognition_cuts_tiles_in_reading_order(folders):
  config = labelled_cases.make_config('recognition', folders)
  config.views.view_px, config.input.normalization = 99, 'global'
  made = recognition.make_classifier(config, ('a', 'b', 'c'))
  image = np.arange(99 * 99).reshape(1, 99, 99, 1) // (33 * 99) * 3 + np.arange(99)[:, None] // 33
  views = np.broadcast_to(image, (1, 99, 99, 3)).astype(np.uint8)
  tiles = np.asarray(made.prepare(views)) / made.input_record.scale + np.array(
    made.input_record.mean
  )
  assert tiles.shape == (1, 9, 33, 33, 3)
  for number in range(9):
    np.testing.assert_allclose(tiles[0, number], number, atol=1e-3)


# ---- end to end


@pytest.mark.slow
def test_the_frozen_layer_table_end_to_end_and_again(
  folders, pretrained, tmp_path, capsys, monkeypatch
):
  config = labelled_cases.make_config(
    'frozen_layers', folders, weights=str(pretrained), layers=(1, 5)
  )
  first = runs.execute(frozen_layers.make_plan(config), config, tmp_path)
  assert set(first) == {f'{run}/conv{k}' for run in ('pretrained', 'random') for k in (1, 5)}
  found = json.loads((tmp_path / 'results.json').read_text())
  assert found['runs'] == first and found['config']['seed'] == 0
  label = next(iter(found['weights']))
  assert label.startswith(f'{pretrained} (width 0.')
  assert found['weights'][label]['arrays_sha256']
  for figures in first.values():
    assert figures['val_count'] == 15 and set(figures['per_class']['accuracy']) == {
      'blue',
      'green',
      'red',
    }
  printed = capsys.readouterr().out
  for text in ('K = 1', 'K = 5', 'random', 'Wang and Gupta', '54.7', '57.4', '15 test images'):
    assert text in printed, text
  monkeypatch.setattr(loop, 'fit', refuse)
  again = runs.execute(frozen_layers.make_plan(config), config, tmp_path)
  assert again == first


@pytest.mark.slow
def test_a_longer_run_and_another_test_are_done_again_another_rate_is_refused(
  folders, tmp_path, monkeypatch
):
  config = labelled_cases.make_config('frozen_layers', folders, layers=(3,), schedule='step')
  runs.execute(frozen_layers.make_plan(config), config, tmp_path)
  config.test.average = 'logits'
  steps = []

  fit = loop.fit

  def watched(task, config, folder):
    steps.append(config.num_steps)
    return fit(task, config, folder)

  monkeypatch.setattr(loop, 'fit', watched)

  runs.execute(frozen_layers.make_plan(config), config, tmp_path)
  config.num_steps = 4
  runs.execute(frozen_layers.make_plan(config), config, tmp_path)
  assert steps == [3, 4]
  for field, value, message in (
    ('learning_rate', 0.5, r'learning_rate: 0.01 then, 0.5 now'),
    ('compute_dtype', 'bfloat16', r"compute_dtype: 'float32' then, 'bfloat16' now"),
    ('model.fc6_features', 8, r'model.fc6_features: 16 then, 8 now'),
  ):
    other = config.copy_and_resolve_references()
    other.update_from_flattened_dict({field: value})
    with pytest.raises(checkpoint.CheckpointError, match=message):
      runs.execute(frozen_layers.make_plan(other), other, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('trained', ['all', 'pool5'])
def test_voc_classification_end_to_end(voc, pretrained, tmp_path, trained):
  overrides = [
    f'--config={labelled_cases.REPOSITORY}/configs/voc07_classification.py:small',
    f'--config.data.root={voc}',
    f'--config.weights={pretrained}',
    f'--config.trained={trained}',
    *('--config.num_steps=2', '--config.batch_size=4', '--config.eval_batch_size=4'),
    *('--config.views.view_px=67', '--config.test.draws=2', '--config.warmup_steps=0'),
    f'--config.magic_init={"fresh" if trained == "all" else ""}',
    f'--workdir={tmp_path}',
  ]
  if trained == 'all':  # 'pool5' has none of them
    overrides += ['--config.model.fc6_features=8', '--config.model.fc7_features=8']
  done = test_main.run(*overrides)
  assert done.returncode == 0, done.stderr
  assert 'mean over 3 classes' in done.stdout and '67.6' in done.stdout
  found = json.loads((tmp_path / 'results.json').read_text())
  for name in ('pretrained', 'random'):
    per_class = found['runs'][name]['per_class']
    assert per_class['positives'] == {'cat': 3, 'dog': 3, 'person': 3}
    mean = np.mean(list(per_class['average_precision'].values()))
    assert found['runs'][name]['val_map'] == pytest.approx(mean)
  assert (tmp_path / 'average_precision.png').read_bytes()[:4] == b'\x89PNG'


@pytest.mark.slow
def test_an_alexnet_trained_on_labels_goes_to_the_jigsaw_task(folders, tmp_path):
  config = labelled_cases.make_config('recognition', folders)
  config.update({'warmup_steps': 0, 'eval_every_steps': 100, 'checkpoint_every_steps': 100})
  config.input.normalization, config.input.scale = 'global', 1.0
  config.model.name, config.model.stride = 'alexnet', 4
  first = runs.execute(recognition.make_plan(config), config, tmp_path / 'alexnet')
  assert first['alexnet']['several_views']['val_count'] == 15
  weights = tmp_path / 'alexnet' / 'alexnet'
  assert files.load_weights(weights).input.scale == pytest.approx((1 / 58,) * 3)

  config = labelled_cases.make_config(
    'alexnet_to_jigsaw', folders, weights=str(weights), layers=(2,)
  )
  config.data.root, config.data.val_root = str(folders / 'train'), str(folders / 'test')
  config.permutations.num, config.model.permutations_per_pass = 4, 2
  config.model.update({'fc6_features': 8, 'fc7_features': 8, 'width': 0.1})
  config.puzzle.update({'resize_px': 72, 'crop_px': 72, 'cell_px': 24, 'tile_px': 22})
  config.model.stride = 1
  found = runs.execute(alexnet_to_jigsaw.make_plan(config), config, tmp_path / 'to')
  assert set(found) == {'conv2', 'reference'}
  trained = checkpoints.read_checkpoint(tmp_path / 'to' / 'conv2')
  given = files.load_weights(weights).params
  for name in ('conv1', 'conv2'):
    np.testing.assert_array_equal(trained.params[name]['kernel'], given[name]['kernel'])
  assert not np.array_equal(trained.params['conv3']['kernel'], given['conv3']['kernel'])


@pytest.mark.slow
def test_the_cfn_is_trained_on_labels_and_read_back_as_one(folders, tmp_path):
  config = labelled_cases.make_config('recognition', folders)
  config.update({'warmup_steps': 0, 'eval_every_steps': 100, 'checkpoint_every_steps': 100})
  config.views.view_px, config.views.resize_px = 99, 100
  runs.execute(recognition.make_plan(config), config, tmp_path)
  found = files.load_weights(tmp_path / 'cfn')
  assert found.kind == 'cfn' and found.tiles() == 9 and found.input.normalization == 'mean'


@pytest.mark.slow
def test_two_processes_find_what_one_finds(folders, tmp_path):
  arguments = [
    f'--config={labelled_cases.REPOSITORY}/configs/frozen_layers.py:small',
    f'--config.data.root={folders}/train',
    f'--config.data.val_root={folders}/test',
    *('--config.weights=random', '--config.layers=(4,)', '--config.num_steps=2'),
    *('--config.batch_size=4', '--config.eval_batch_size=4', '--config.model.width=0.1'),
    *('--config.views.view_px=67', '--config.views.resize_px=72', '--config.test.draws=2'),
    *('--config.model.fc6_features=8', '--config.model.fc7_features=8'),
  ]
  done = test_main.run(*arguments, f'--workdir={tmp_path / "one"}')
  assert done.returncode == 0, done.stderr
  joined = [
    '--config.distributed.mode=explicit',
    f'--config.distributed.coordinator=127.0.0.1:{test_distributed.free_port()}',
    '--config.distributed.num_processes=2',
  ]
  environment = os.environ | {
    'XLA_FLAGS': '--xla_force_host_platform_device_count=1',
    'PYTHONPATH': str(labelled_cases.REPOSITORY),
  }
  processes = [
    subprocess.Popen(
      [
        *(sys.executable, '-m', 'cfn_jax.main', *arguments, *joined),
        *(f'--config.distributed.process_id={index}', f'--workdir={tmp_path / "two"}'),
      ],
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for index in range(2)
  ]
  with test_distributed.ended(processes):
    printed = [process.communicate(timeout=240)[0] for process in processes]
  assert [process.returncode for process in processes] == [0, 0], printed
  one, two = (
    json.loads((tmp_path / name / 'results.json').read_text())['runs']['random/conv4']
    for name in ('one', 'two')
  )
  assert two['val_count'] == 15 and two['per_class'] == one['per_class']
  assert 'K = 4' in printed[0] and 'K = 4' not in printed[1]  # the first host prints


# ---- bad input


@pytest.mark.parametrize(
  ('name', 'fields', 'reason'),
  [
    ('frozen_layers', {'weights': ''}, 'weights is empty'),
    ('frozen_layers', {'weights': '/nowhere/w.npz'}, 'no such file'),
    ('frozen_layers', {'layers': (0,)}, r'layers = \(0,\)'),
    ('frozen_layers', {'layers': (2, 2)}, r'layers = \(2, 2\)'),
    ('frozen_layers', {'test.draws': 0}, 'test.draws = 0: at least 1'),
    ('frozen_layers', {'test.average': 'max'}, "test.average = 'max'"),
    ('frozen_layers', {'views.view_px': 20, 'views.resize_px': 24}, 'leaves no map after pool5'),
    ('frozen_layers', {'model.init': 'xavier'}, "model.init = 'xavier'"),
    (
      'frozen_layers',
      {'data.source': 'bundled', 'data.root': '', 'data.val_root': ''},
      'have no classes',
    ),
    ('frozen_layers', {'data.split': 'train'}, "data.split = 'train': not read with"),
    ('voc07_classification', {'trained': 'fc7'}, "trained = 'fc7'"),
    ('voc07_classification', {'magic_init': 'yes'}, "magic_init = 'yes'"),
    (
      'voc07_classification',
      {'data.source': 'folder', 'data.split': '', 'data.val_split': ''},
      "come from data.source = 'voc' or 'tfds'",
    ),
    ('voc07_classification', {'data.val_split': 'test'}, 'there is no list'),
    ('recognition', {'views.view_px': 100, 'model.grid': 3}, 'no grid of model.grid = 3'),
    ('recognition', {'model.grid': 0}, 'no grid of model.grid = 0'),
    ('recognition', {'model.fc6_features': 0}, 'model.fc6_features = 0: at least 1'),
    ('recognition', {'model.name': 'vgg'}, "model.name = 'vgg'"),
    ('recognition', {'input.normalization': 'none'}, "input.normalization = 'none'"),
  ],
)
def test_bad_input_is_refused_before_any_training(folders, voc, name, fields, reason):
  module = {
    'frozen_layers': frozen_layers,
    'voc07_classification': voc_classification,
    'recognition': recognition,
  }[name]
  root = voc if name.startswith('voc') else folders
  config = labelled_cases.make_config(name, root)
  if name == 'recognition':
    config.views.view_px, config.views.resize_px = 99, 100
  config.update_from_flattened_dict(fields)
  with pytest.raises(ValueError, match=reason):
    module.make_plan(config)


def test_weights_without_a_whole_trunk_are_refused(folders, pretrained, tmp_path):
  weights = files.load_weights(pretrained)
  params = {name: weights.params[name] for name in ('conv1', 'conv2')}
  files.save_weights(weights.replace(params=params), tmp_path / 'half.npz')
  config = labelled_cases.make_config('frozen_layers', folders, weights=str(tmp_path / 'half.npz'))
  with pytest.raises(weights_lib.WeightsError, match=r'not whole: conv3, conv4, conv5 missing'):
    frozen_layers.make_plan(config)


def test_other_classes_in_the_test_are_named(folders, tmp_path):
  other = labelled_cases.make_class_folders(
    tmp_path / 'other', train=1, test=1, classes=('blue', 'green', 'violet')
  )
  config = labelled_cases.make_config('frozen_layers', folders)
  config.data.val_root = str(other / 'test')
  with pytest.raises(
    labelled.sources.SourceError,
    match=r'1 only in training \(red\); 1 only in test \(violet\)',
  ):
    frozen_layers.make_plan(config)


def test_a_class_without_test_images_is_named_unless_it_may_be_empty(folders, tmp_path):
  fewer = labelled_cases.make_class_folders(
    tmp_path / 'fewer', train=1, test=1, classes=('blue', 'green')
  )
  config = labelled_cases.make_config('frozen_layers', folders)
  config.data.val_root = str(fewer / 'test')
  with pytest.raises(labelled.sources.SourceError, match=r'no test image of 1 of the 3 .*: red'):
    frozen_layers.make_plan(config)
  config.data.allow_empty_classes = True
  frozen_layers.make_plan(config)


def test_a_voc_class_without_positives_is_named(tmp_path):
  root = labelled_cases.make_voc(tmp_path / 'voc', val=2)  # a cat and a dog
  config = labelled_cases.make_config('voc07_classification', root)
  with pytest.raises(
    labelled.sources.SourceError, match=r'no test image of 1 of the 3 classes: person'
  ):
    voc_classification.make_plan(config)


def test_the_command_line_says_it_in_one_line_with_code_2(folders, tmp_path):
  done = test_main.run(
    f'--config={labelled_cases.REPOSITORY}/configs/frozen_layers.py:small',
    f'--config.data.root={folders}/train',
    f'--config.data.val_root={folders}/test',
    '--config.weights=nothing.npz',
    f'--workdir={tmp_path}',
  )
  assert done.returncode == 2
  assert done.stderr.splitlines()[-1].startswith('error: nothing.npz: there is no such file')
  assert 'Traceback' not in done.stderr


def test_layers_above_locked_ones_are_not_drawn_for_another_scale(folders, pretrained):
  config = labelled_cases.make_config(
    'alexnet_to_jigsaw', folders, weights=str(pretrained), layers=(1,)
  )
  config.data.root, config.data.val_root = str(folders / 'train'), str(folders / 'test')
  config.permutations.num, config.model.permutations_per_pass = 6, 2
  alexnet_to_jigsaw.make_plan(config)
  config.model.init, config.puzzle.tile_scale = 'caffe', 50.0
  with pytest.raises(ValueError, match=r"model.init = 'caffe' draws .* deviation of 1, .*'he'"):
    alexnet_to_jigsaw.make_plan(config)
