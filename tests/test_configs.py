"""Configs: every field is documented and read, every variant builds."""

import ast
import functools
import importlib.util
import pathlib
import re

import ml_collections
import pytest

from cfn_jax import command, fields, main
from cfn_jax.data import sources
from cfn_jax.jigsaw import network
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw.permutation_sets import permutations
from cfn_jax.models import alexnet

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / 'cfn_jax'
METHODS = {'to_dict', 'lock', 'unlocked', 'update_from_flattened_dict'}  # of a config
CONFIGS = {
  'cfn': (
    *('', 'fast', 'release', 'text', 'unblocked', 'plus', 'small', 'plus_small', 'tiny'),
    'plus_tiny',
  ),
  'relative_position': ('', 'doersch', 'small', 'tiny'),
  'rotation': ('', 'small', 'tiny'),
  'context_encoder': ('', 'centre', 'small', 'tiny'),
  'frozen_layers': ('', 'small'),
  'voc07_classification': ('', 'small'),
  'voc07_detection': ('', 'single_scale', 'small'),
  'voc12_segmentation': ('', 'small'),
  'recognition': ('', 'alexnet', 'small', 'small_alexnet'),
  'alexnet_to_jigsaw': ('', 'small'),
  'linear_probe': ('', 'zhang', 'goyal', 'voc07', 'small', 'small_voc'),
  'knn': ('', 'voc', 'small', 'small_voc'),
  'retrieval': ('', 'small', 'small_folders'),
  'solve': ('', 'small'),
}
SHARED = 'training'  # no config of its own
# What sources.open_config reads, as far as the section has it.
OPENED = {f'data.{field}' for field in sources.FIELDS}
PRETEXTS = ('cfn', 'relative_position', 'rotation')
# Pretext tasks share the code that reads their configs; solve reads that of a training.
ALSO_READS = dict.fromkeys((*PRETEXTS, 'alexnet_to_jigsaw', 'solve'), PRETEXTS)


def _load(name='cfn'):
  spec = importlib.util.spec_from_file_location(name, REPOSITORY / 'configs' / f'{name}.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def _leaves(config, prefix=''):
  for name, value in config.items():
    if isinstance(value, ml_collections.ConfigDict):
      yield from _leaves(value, f'{prefix}{name}.')
    else:
      yield prefix + name


def _chain(node):
  """Returns ['config', 'puzzle', 'tile_px'] for the expression config.puzzle.tile_px."""
  names = []
  while isinstance(node, ast.Attribute):
    names.insert(0, node.attr)
    node = node.value
  return [node.id, *names] if isinstance(node, ast.Name) else []


def _fields_read(tree):
  """Returns the fields that code reads off a config, by local names of sections too."""
  read = set()
  for function in ast.walk(tree):
    if not isinstance(function, ast.FunctionDef):
      continue
    sections = {'config': ''}
    for node in ast.walk(function):
      if isinstance(node, ast.Assign):
        targets, values = [node.targets[0]], [node.value]
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
          targets, values = node.targets[0].elts, node.value.elts
        for target, value in zip(targets, values):
          chain = _chain(value)
          if isinstance(target, ast.Name) and chain[:1] == ['config'] and len(chain) == 2:
            sections[target.id] = f'{chain[1]}.'
    for node in ast.walk(function):
      if isinstance(node, ast.Call) and ast.unparse(node.func) == 'sources.open_config':
        read |= OPENED
      chain = _chain(node)
      if chain and chain[0] in sections:
        read.add(sections[chain[0]] + '.'.join(chain[1:]))
  return read


def _find_unknown(read, known):
  """Returns what is read off a config, and is no field, no section and no method of it."""
  known = {'', *known, *(field.split('.')[0] for field in known)}
  fields = {field.removesuffix('.') for field in read}
  return {field for field in fields - known if not METHODS & {*field.split('.')}}


@functools.cache
def _parse(name):
  """Returns the modules that 'room/module' imports, by local name, and what it defines, by name."""
  tree = ast.parse((PACKAGE / f'{name}.py').read_text())
  modules, defined = {}, {}
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and (node.module or '').startswith('cfn_jax'):
      folder = '/'.join(node.module.split('.')[1:])
      names = {each.asname or each.name: f'{folder}/{each.name}'.lstrip('/') for each in node.names}
      modules |= {name: path for name, path in names.items() if (PACKAGE / f'{path}.py').exists()}
  for node in tree.body:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
      defined[node.name] = node
    elif isinstance(node, ast.Assign):
      defined |= {each.id: node for each in node.targets if isinstance(each, ast.Name)}
  return modules, defined


def _reachable(task):
  """Returns what a task can reach, as pairs of a module and what is defined there.

  Followed are names and attributes of modules, in functions and classes as a whole.
  """
  start = main.TASKS[task].removeprefix('cfn_jax.').replace('.', '/')
  found, left = set(), [('main', 'main'), (start, 'open_task')]
  while left:
    module, name = here = left.pop()
    modules, defined = _parse(module)
    if name not in defined or here in found:
      continue
    found.add(here)
    for node in ast.walk(defined[name]):
      if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if node.value.id in modules:
          left.append((modules[node.value.id], node.attr))
      elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        left.append((module, node.id))
  return found


def test_every_config_is_tested():
  files = {path.stem for path in (REPOSITORY / 'configs').glob('*.py')}
  assert files == {*CONFIGS, SHARED}


@pytest.mark.parametrize('name', CONFIGS)
def test_a_task_reads_each_field_of_its_config_and_no_other(name):
  config = _load(name).get_config()
  known, read = set(_leaves(config)), set()
  for module, defined in _reachable(config.task):
    read |= _fields_read(_parse(module)[1][defined])
  unread = known - read
  assert not unread
  others = (_leaves(_load(other).get_config()) for other in ALSO_READS.get(name, ()))
  unknown = _find_unknown(read, known.union(OPENED, *others))
  assert not unknown


def test_only_fields_of_the_config_are_read():
  known = set().union(*(_leaves(_load(name).get_config()) for name in CONFIGS))
  for path in PACKAGE.rglob('*.py'):
    unknown = _find_unknown(_fields_read(ast.parse(path.read_text())), known)
    assert not unknown, path


@pytest.mark.parametrize('name', [*CONFIGS, SHARED])
def test_each_field_has_a_comment(name):
  text = (REPOSITORY / 'configs' / f'{name}.py').read_text()
  # The figures of a variant need none: their fields stand with their meaning above.
  parts = [part for part in text.split('\ndef ') if not part.startswith(('_', 'use_'))]
  parts += [part for part in text.split('\ndef ') if part.startswith('_paper')]
  for line in '\n'.join(parts).splitlines():
    if re.match(r'  \w\.\w+ = ', line):
      assert '  # ' in line, line


@pytest.mark.parametrize('name', CONFIGS)
def test_each_field_has_one_plain_type(name):
  config = _load(name).get_config()
  for field in _leaves(config):
    value = config
    for part in field.split('.'):
      value = value[part]
    assert isinstance(value, bool | int | float | str | tuple), field


@pytest.mark.parametrize(
  ('name', 'variant'),
  [(name, variant) for name, variants in CONFIGS.items() for variant in variants],
)
def test_each_variant_builds_with_the_same_fields_and_types(name, variant):
  paper, config = _load(name).get_config(), _load(name).get_config(variant)
  assert list(_leaves(config)) == list(_leaves(paper))
  for field in _leaves(paper):
    ours, theirs = config, paper
    for part in field.split('.'):
      ours, theirs = ours[part], theirs[part]
    assert type(ours) is type(theirs), field


def test_an_unknown_variant_names_the_known_ones():
  for name in CONFIGS:
    with pytest.raises(ValueError, match=r"variant 'huge' is unknown: .*small"):
      _load(name).get_config('huge')


def test_the_default_is_the_papers_run():
  config = _load().get_config()
  assert (config.num_steps, config.batch_size, config.permutations.num) == (350_000, 256, 1000)
  assert (config.learning_rate, config.decay_steps, config.decay_factor) == (0.01, 100_000, 0.1)
  assert (config.momentum, config.weight_decay) == (0.9, 5e-4)
  assert (config.bias_rate, config.bias_decay) == (2.0, 0.0)
  assert (config.solver, config.schedule, config.warmup_steps) == ('caffe', 'step', 0)
  assert (config.permutations.method, config.permutations.min_distance) == ('max', 0)
  z, m = config.puzzle, config.model
  assert (z.resize_px, z.crop_mode, z.crop_px, z.cell_px, z.tile_px) == (256, 'centre', 255, 85, 64)
  assert (z.grey_fraction, z.channel_shift_px, z.tile_scale) == (0.3, 2, 50.0)
  assert (z.normalization, z.grid, z.cell_gap_px) == ('tile', 3, 0)
  assert (m.name, m.stride, m.dropout, m.fc7_features) == ('cfn', 2, 0.5, 4096)


# Of the paper, its authors' code, or the code that it names: see the docstring of each config.
SOLVER = {'momentum': 0.9, 'weight_decay': 5e-4, 'bias_rate': 2.0, 'bias_decay': 0.0}
IMAGENET = SOLVER | {'learning_rate': 0.01, 'decay_steps': 100_000, 'decay_factor': 0.1}
PUBLISHED = {
  'frozen_layers': IMAGENET
  | {'num_steps': 450_000, 'batch_size': 256, 'model.stride': 4, 'layers': (1, 2, 3, 4, 5)}
  | {'views.view_px': 227, 'test.draws': 10, 'test.mirror': False},
  'recognition': IMAGENET | {'num_steps': 350_000, 'batch_size': 256, 'views.view_px': 225},
  'recognition:alexnet': IMAGENET | {'num_steps': 450_000, 'views.view_px': 227, 'test.draws': 10},
  'alexnet_to_jigsaw': IMAGENET | {'num_steps': 350_000, 'permutations.num': 100},
  'voc07_classification': SOLVER
  | {'num_steps': 80_000, 'batch_size': 16, 'learning_rate': 1e-3, 'decay_steps': 10_000}
  | {'decay_factor': 0.5, 'weight_decay': 1e-6, 'bias_decay': 1.0, 'clip_gradients': 10.0}
  | {'test.draws': 10, 'trained': 'all', 'magic_init': '', 'views.view_px': 227},
  'voc07_detection': SOLVER
  | {'num_steps': 150_000, 'batch_size': 2, 'learning_rate': 1e-3, 'decay_steps': 50_000}
  | {'decay_factor': 0.1, 'locked_convolutions': 1, 'magic_init': ''}
  | dict.fromkeys(('images.scales_px', 'test.scales_px'), (480, 576, 688, 864, 1200))
  | {'images.longest_px': 2000, 'test.suppress_overlap': 0.3, 'test.mean_per_image': 40}
  | {'regions.per_image': 64, 'regions.foreground': 0.25, 'regions.foreground_overlap': 0.5}
  | {'regions.background_low': 0.1, 'regions.background_high': 0.5},
  'context_encoder': {'solver': 'adamw', 'learning_rate': 2e-4, 'momentum': 0.5, 'batch_size': 64},
}


@pytest.mark.parametrize('name', PUBLISHED)
def test_evaluations_have_the_published_settings(name):
  values = fields.flatten(command.load_config(name))
  wanted = PUBLISHED[name]
  assert {field: values[field] for field in wanted} == wanted


def test_the_papers_figures_stand_beside_ours():
  """As they are printed in its tables 1 to 5."""
  from cfn_jax.evaluation import (
    alexnet_to_jigsaw,
    frozen_layers,
    recognition,
    voc_classification,
    voc_detection,
    voc_segmentation,
  )
  from cfn_jax.studies import declaration

  assert frozen_layers.PAPER == {
    'CFN': (54.7, 52.8, 49.7, 45.3, 34.6),
    'Doersch et al.': (53.1, 47.6, 48.7, 45.6, 30.4),
    'Wang and Gupta': (51.8, 46.9, 42.8, 38.8, 29.8),
    'Random': (48.5, 41.0, 34.8, 27.1, 12.0),
  }
  tables = [each.PAPER for each in (voc_classification, voc_detection, voc_segmentation)]
  for who, row in {
    'CFN': (67.6, 53.2, 37.6),
    'Wang and Gupta': (58.4, 44.0, None),
    'Doersch et al.': (55.3, 46.6, None),
    'Pathak et al.': (56.5, 44.5, 29.7),
    'ImageNet labels': (78.2, 56.8, 48.0),
  }.items():
    assert tuple(table.get(who) for table in tables) == row
  assert alexnet_to_jigsaw.PAPER == (88, 87, 86, 83, 74)
  assert (alexnet_to_jigsaw.PAPER_REFERENCE, frozen_layers.PAPER_ALEXNET) == (88, 57.4)
  assert recognition.PAPER == {'cfn': 57.1, 'alexnet': 57.4}
  for study, paper in {
    'permutations': {
      'n100': 88,
      'n95': 90,
      'n85': 91,
      'n71': 92,
      'n35': 94,
      'n10': 97,
      'n7': 98,
      'n6': 99,
      'n1000_max': 71,
      'n1000_mid': 62,
      'n1000_min': 54,
    },
    'shortcuts': {'all_on': 88, 'no_gap': 98, 'no_normalization': 90, 'no_shift': 89},
  }.items():
    runs = declaration.load(study).runs.values()
    assert {run.name: run.paper['accuracy'] for run in runs if run.paper} == paper


def _count_parameters(config):
  permutations = pretexts.make_permutation_set(config)
  model = network.make_model(config, len(permutations))
  px, tiles = config.puzzle.tile_px, config.puzzle.grid**2
  return alexnet.count_parameters(alexnet.parameter_shapes(model, (1, tiles, px, px, 3)))


def test_parameters_are_those_of_the_paper_the_released_prototxt_and_the_stacked_alexnet():
  config = _load().get_config()
  assert _count_parameters(config) == 26_489_704
  config.model.name = 'stacked'  # AlexNet's fully connected layers, unless told otherwise
  assert _count_parameters(config) == 32_932_456
  config.model.fc6_features = 512
  assert _count_parameters(config) == 9_991_272
  released = _load().get_config('release')
  assert _count_parameters(released) == 46_544_232  # fc8 has 1000 outputs for 100 permutations
  released.model.fc8_features = 99
  with pytest.raises(ValueError, match='fc8_features = 99: at least the 100 classes'):
    _count_parameters(released)


@pytest.mark.parametrize('name', ['cfn:release', 'alexnet_to_jigsaw'])
def test_the_set_of_the_88_percent_has_the_papers_distances_and_prunes_to_its_sizes(name):
  file, _, variant = name.partition(':')
  whole = pretexts.make_permutation_set(_load(file).get_config(variant))
  found = permutations.summarize(whole)
  assert (found.num, round(found.mean_hamming, 2), found.min_hamming) == (100, 8.08, 2)
  for distance, size in zip(range(3, 10), (95, 85, 71, 35, 10, 7, 6)):  # the paper's table 4
    pruned = permutations.prune_permutations(whole, num=size, min_distance=distance)
    assert len(pruned) == size and permutations.summarize(pruned).min_hamming >= distance
  assert len(permutations.prune_permutations(whole, min_distance=3)) < 100  # some are similar
  others = permutations.make_permutations(100, method='max', ties='first')
  with pytest.raises(permutations.PermutationError):  # too many of these are
    permutations.prune_permutations(others, num=95, min_distance=3)


def test_linear_probes_are_those_of_their_sources():
  zhang, goyal, svm = (
    _load('linear_probe').get_config(name) for name in ('zhang', 'goyal', 'voc07')
  )
  assert zhang.to_dict() == _load('linear_probe').get_config().to_dict()
  for c, stride, resize, crop, pooling, std, biases in (
    (zhang, 4, 'squash', 'random', 'bilinear', 0, (2, 0)),
    (goyal, 2, 'short_side', 'centre', 'average', 0.01, (1, 1)),
  ):
    assert (c.model.stride, c.views.resize, c.views.crop) == (stride, resize, crop)
    assert (c.features.pooling, c.probe.init_std) == (pooling, std)
    assert (c.bias_rate, c.bias_decay) == biases
    assert c.views.mirror and (c.views.resize_px, c.views.view_px) == (256, 227)
    assert (c.num_steps, c.decay_steps, c.batch_size) == (140_000, 40_000, 256)
    assert (c.learning_rate, c.weight_decay, c.momentum) == (0.01, 5e-4, 0.9)
  assert (svm.model.stride, svm.views.resize, svm.views.resize_px) == (2, 'squash', 227)
  assert svm.svm.costs == tuple(10.0**power for power in range(-7, 3))


def test_unblocked_differs_from_the_papers_run_in_what_blocks_chromatic_aberration_alone():
  ours, papers = (fields.flatten(_load().get_config(variant)) for variant in ('unblocked', ''))
  assert {name: ours[name] for name in ours if ours[name] != papers[name]} == {
    'puzzle.crop_mode': 'random',
    'puzzle.grey_fraction': 0.0,
    'puzzle.channel_shift_px': 0,
  }
