"""A setting that has no effect is refused, with the reason; the same setting elsewhere is not."""

import runpy

import labelled_cases
import pytest
import test_configs
import test_main

from cfn_jax import command, config_files, fields, idle

# The config, what makes the field idle, the field, and a word of the reason.
CASES = [
  ('cfn:small', {}, 'decay_steps', 'cosine'),
  ('cfn', {}, 'nonfinite_limit', 'stop'),
  ('cfn', {}, 'profile_start_step', 'profile_steps = 0'),
  ('cfn', {'distributed.mode': 'auto'}, 'distributed.num_processes', 'explicit'),
  ('cfn', {}, 'distributed.heartbeat_s', 'off'),
  ('cfn', {'permutations.file': 'set.npy'}, 'permutations.min_distance', 'permutations.file'),
  ('cfn', {'permutations.method': 'code'}, 'permutations.ties', 'permutations.method'),
  ('cfn', {'puzzle.crop_mode': 'whole'}, 'puzzle.resize_px', 'whole'),
  ('cfn', {}, 'puzzle.global_mean', 'global'),
  ('cfn', {}, 'puzzle.global_std', 'mean'),
  ('rotation', {}, 'puzzle.global_std', 'mean'),
  ('cfn:plus', {'puzzle.grey_fraction': 1.0}, 'puzzle.project_fraction', 'all visits are grey'),
  ('rotation', {}, 'puzzle.channel_shift_px', 'fills the crop'),
  ('cfn:small', {'data.val_root': 'v'}, 'data.val_fraction', 'data.val_root'),
  ('cfn', {}, 'data.val_fraction', 'data.val_split'),
  ('cfn', {}, 'data.crops_per_photograph', 'bundled'),
  ('cfn:tiny', {}, 'data.val_fraction', 'photographs of its own'),
  ('frozen_layers', {}, 'data.labels', 'voc'),
  ('knn', {'weights': 'w.npz'}, 'model.width', 'weights'),
  ('alexnet_to_jigsaw', {'weights': 'w.npz'}, 'model.order', 'weights'),
  ('frozen_layers', {'weights': 'random'}, 'baseline', 'random'),
  ('frozen_layers', {'weights': 'w.npz'}, 'weights_step', 'several steps'),
  ('frozen_layers', {'weights': 'w.npz'}, 'weights_collection', 'no checkpoint'),
  ('linear_probe', {'weights': 'w.npz', 'baseline': False}, 'model.init', 'baseline'),
  ('voc07_detection', {'weights': 'w.npz', 'baseline': False}, 'model.init', 'baseline'),
  ('voc07_classification', {'magic_init': 'fresh'}, 'model.fc_init', 'magic_init draws'),
  ('recognition', {}, 'test.average', 'draws'),
  ('recognition', {}, 'test.mirror', 'draws'),
  ('voc07_classification', {'trained': 'pool5'}, 'model.dropout', 'pool5'),
  ('alexnet_to_jigsaw', {'baseline': False}, 'puzzle.tile_scale', 'reference'),
  ('solve', {}, 'data.val_fraction', 'source'),
  ('recognition', {}, 'input.mean', 'global'),
  ('context_encoder', {}, 'mask.side_px', 'random_region'),
  ('context_encoder:centre', {}, 'mask.blob_px', 'centre'),
  ('knn', {'layers': ('fc6',)}, 'features.pooling', 'not pooled'),
  ('recognition', {'input.normalization': 'tile'}, 'input.std', 'own deviation'),
  ('linear_probe:voc07', {'svm.costs': (1.0,)}, 'svm.folds', 'one cost'),
  ('knn', {'features.pooling': 'none'}, 'features.dimensions', 'none'),
  ('retrieval', {}, 'features.dimensions', 'not pooled'),
  ('retrieval:small_folders', {}, 'objects.min_area_px', 'whole images'),
  ('linear_probe', {}, 'svm.folds', 'logistic'),
  ('linear_probe:voc07', {}, 'learning_rate', 'svm'),
  ('linear_probe:voc07', {}, 'probe.init_std', 'svm'),
  ('recognition', {}, 'views.resize_px', 'whole'),
  ('recognition:alexnet', {}, 'model.grid', 'alexnet'),
]


def load(name):
  file, _, variant = name.partition(':')
  return command.load_config(f'{labelled_cases.REPOSITORY}/configs/{file}.py:{variant}')


@pytest.mark.parametrize(('name', 'given', 'field', 'reason'), CASES)
def test_a_field_without_effect_is_refused_if_it_was_set(name, given, field, reason):
  config = load(name)
  config.update_from_flattened_dict(given)
  values = fields.flatten(config)
  if not values[field]:
    config.update_from_flattened_dict({field: type(values[field])('1')})
  with pytest.raises(ValueError, match=rf'^{field} = .* has no effect: .*{reason}.*; leave it out'):
    idle.check(config, [field])
  idle.check(config, ['seed'])


def test_every_rule_has_a_case():
  met = set()
  for name, given, field, _ in CASES:
    config = load(name)
    config.update_from_flattened_dict(given)
    values = fields.flatten(config)
    names = {field, field.partition('.')[0]}
    met |= {rule for rule in idle.RULES if names & set(rule.fields) and rule.holds(values)}
  assert met == set(idle.RULES)


def test_fields_that_act_or_are_switched_off_pass():
  for name, field in (
    ('cfn', 'decay_steps'),
    ('cfn:tiny', 'data.crops_per_photograph'),
    ('frozen_layers', 'model.init'),
    ('frozen_layers', 'test.mirror'),  # of the one random crop
    ('voc07_classification', 'model.fc_init'),
    ('linear_probe', 'probe.init_std'),
    ('linear_probe:voc07', 'svm.folds'),
    ('cfn:release', 'puzzle.global_std'),
  ):
    idle.check(load(name), [field])
  config = load('voc07_classification')
  config.trained = 'pool5'
  idle.check(config, ['model.fc_init'])  # of fc8
  config = load('frozen_layers')
  config.weights, config.baseline = 'random', False
  idle.check(config, ['weights', 'baseline'])


def test_a_run_may_be_asked_for_a_step_and_its_averages_a_file_may_not(tmp_path):
  config = load('frozen_layers')
  (tmp_path / 'run' / 'checkpoints').mkdir(parents=True)
  (tmp_path / 'several' / 'cfn' / 'checkpoints').mkdir(parents=True)
  (tmp_path / '3' / 'state').mkdir(parents=True)
  for name in ('run', 'several'):
    config.weights = str(tmp_path / name)
    idle.check(config, ['weights_step', 'weights_collection'])
  config.weights = str(tmp_path / '3')
  idle.check(config, ['weights_collection'])
  with pytest.raises(ValueError, match='weights_step'):
    idle.check(config, ['weights_step'])


@pytest.mark.parametrize('name', config_files.list_names())
def test_a_variant_is_a_choice_of_its_own(name):
  for variant in test_configs.CONFIGS[name]:
    assert not config_files.find_changed(load(f'{name}:{variant}'))


def test_a_config_of_ones_own_may_not_set_it_either(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(
    'from configs import cfn\n\n'
    "def get_config(variant=''):\n"
    "  c = cfn.get_config('small').unlock()\n"
    '  c.decay_steps = 7\n'
    '  return c\n'
  )
  config = command.load_config(str(path))
  with pytest.raises(ValueError, match='decay_steps = 7 has no effect'):
    idle.check(config, config_files.find_changed(config))


def test_training_fields_are_those_of_the_configs():
  made = runpy.run_path(str(config_files.find_folder() / 'training.py'))
  frozen, untrained = made['make_frozen']('svm'), made['make_untrained']('svm')
  assert {*idle._TRAINING} == {*frozen} - {*untrained}


def test_rules_name_fields_that_there_are():
  known = set()
  for name in test_configs.CONFIGS:
    flat = fields.flatten(load(name))
    known |= {*flat, *(field.partition('.')[0] for field in flat)}
  assert {field for rule in idle.RULES for field in rule.fields} <= known


def test_the_command_line_refuses_it_in_one_line(tmp_path):
  done = test_main.run(
    '--config=configs/cfn.py:tiny', '--config.decay_steps=5', f'--workdir={tmp_path / "w"}'
  )
  assert done.returncode == 2 and not (tmp_path / 'w').exists()
  assert done.stderr == (
    "error: decay_steps = 5 has no effect: schedule = 'cosine'; leave it out, or change that\n"
  )
