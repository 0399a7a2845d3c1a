"""`init_from`: weights of a file or of a converted folder, as the start of a pretraining run."""

import types

import numpy as np
import pytest
import transfer_cases as cases

from cfn_jax import convert
from cfn_jax.jigsaw import initial
from cfn_jax.models import cfn, inputs
from cfn_jax.transfer import checkpoints, files
from cfn_jax.transfer import weights as weights_lib

SMALL = {'width': 0.1, 'features': 8}


def make_pretext(order='caffenet'):
  """The parts of a pretext task that the start depends on; a fixed normalisation."""
  fed = inputs.InputRecord('rgb', (120.0, 110.0, 100.0), (50.0 / 60,) * 3)
  return types.SimpleNamespace(
    model=types.SimpleNamespace(trunk=types.SimpleNamespace(order=order)), input_record=fed
  )


def same(one, other):
  return all(one[name].tobytes() == other[name].tobytes() for name in ('kernel', 'bias'))


@pytest.mark.parametrize('place', ['npz file', 'npz', 'safetensors', 'caffe'])
def test_a_file_and_a_converted_folder_give_the_run_every_layer(tmp_path, place):
  pretext = make_pretext()
  given = cases.draw(kind='cfn', side=3, stride=2, record=pretext.input_record, **SMALL)
  fresh = cases.draw(kind='cfn', side=3, stride=2, seed=1, **SMALL).params
  path = tmp_path / 'w.npz'
  files.save_weights(given, path)
  if place != 'npz file':
    out = tmp_path / 'folder'
    convert.main([f'--from={path}', f'--to={place}', f'--out={out}'])
    path = out
  params, report = initial.load_initial(str(path), fresh, pretext)
  assert list(params) == list(fresh) and all(same(params[n], given.params[n]) for n in params)
  assert report == 'conv1..conv5, fc6, fc7, fc8 loaded (16/16 arrays)'


def test_conv1_is_adapted_to_how_the_run_feeds_it_and_other_heads_stay_behind(tmp_path):
  pretext = make_pretext('alexnet')
  given = cases.draw(stride=2, record=inputs.RECORDS['caffe'], **SMALL)
  files.save_weights(given, tmp_path / 'w.npz')
  fresh = cases.draw(kind='cfn', side=3, stride=2, seed=1, **SMALL).params
  params, report = initial.load_initial(str(tmp_path / 'w.npz'), fresh, pretext)
  assert report.startswith('conv1..conv5, fc8 loaded (12/12 arrays), fc6, fc7 new')
  assert report.endswith('they were trained as caffenet, not alexnet')
  assert same(params['fc6'], fresh['fc6']) and same(params['fc8'], given.params['fc8'])
  images = cases.images(1, 67)
  taken = given.replace(params=params, kind='trunk', input=pretext.input_record)
  found, wanted = (cases.trunk_stages(each, images)['conv5'] for each in (taken, given))
  assert not np.array_equal(params['conv1']['kernel'], given.params['conv1']['kernel'])
  assert cases.difference(found, wanted) < cases.TOLERANCE


def test_nothing_loaded_is_an_error(tmp_path):
  given = cases.draw(kind='alexnet', **SMALL)
  heads = {name: given.params[name] for name in ('fc7', 'fc8')}
  files.save_weights(given.replace(params=heads), tmp_path / 'w.npz')
  fresh = cases.draw(kind='cfn', side=3, outputs=7, seed=1, **SMALL).params
  with pytest.raises(weights_lib.WeightsError, match=r'none of conv1 .. conv5 .* only fc7, fc8'):
    initial.load_initial(str(tmp_path / 'w.npz'), fresh, make_pretext())


def test_a_trunk_of_another_width_is_an_error_that_names_the_file(tmp_path):
  files.save_weights(cases.draw(kind='trunk', width=0.2), tmp_path / 'w.npz')
  fresh = cases.draw(kind='cfn', side=3, **SMALL).params
  with pytest.raises(weights_lib.WeightsError, match=r'init_from = .*w\.npz: .*conv1/kernel is'):
    initial.load_initial(str(tmp_path / 'w.npz'), fresh, make_pretext())


def load_from_run(monkeypatch, given, pretext):
  """Loads weights as if they were a run's, whose permutation set is known."""
  monkeypatch.setattr(files, 'load_weights', lambda path: given)
  fresh = cases.draw(kind='cfn', side=3, stride=2, seed=1, outputs=2, **SMALL).params
  return fresh, *initial.load_initial('runs/other', fresh, pretext)


@pytest.mark.parametrize('rows', [[[0, 1], [1, 0]], [[1, 0], [0, 1]]])
def test_fc8_is_taken_where_its_outputs_stand_for_the_same_permutations(monkeypatch, rows):
  pretext = make_pretext()
  pretext.questions = types.SimpleNamespace(rows=np.array(rows, np.uint8))
  given = cases.draw(kind='cfn', side=3, stride=2, outputs=2, record=pretext.input_record, **SMALL)
  given = given.replace(origin={'permutations': [[0, 1], [1, 0]]})
  fresh, params, report = load_from_run(monkeypatch, given, pretext)
  alike = rows[0] == [0, 1]
  assert same(params['fc8'], (given.params if alike else fresh)['fc8'])
  assert report.endswith('(16/16 arrays)' if alike else 'fc8 new')


@pytest.mark.parametrize(
  ('kind', 'std', 'kept'),
  [('tile', 61.0, True), ('channel', 61.0, True), ('mean', 58.0, True), ('mean', 61.0, False)],
)
def test_conv1_is_kept_where_tiles_are_prepared_by_their_own_figures(monkeypatch, kind, std, kept):
  pretext = make_pretext()
  theirs = inputs.InputRecord('rgb', (120.0, 110.0, 100.0), (1.0,) * 3, kind, 58.0)
  pretext.input_record = inputs.InputRecord('rgb', (99.0, 98.0, 97.0), (1.0,) * 3, kind, std)
  given = cases.draw(kind='cfn', side=3, stride=2, outputs=2, record=theirs, **SMALL)
  _, params, _ = load_from_run(monkeypatch, given, pretext)
  assert same(params['conv1'], given.params['conv1']) == kept


@pytest.mark.parametrize('alike', [True, False])
def test_a_stacked_network_starts_from_a_run_of_its_own_kind(monkeypatch, tmp_path, alike):
  (tmp_path / 'checkpoints' / '7' / 'state').mkdir(parents=True)
  (tmp_path / 'checkpoints' / '7' / 'meta').mkdir()
  np.save(tmp_path / 'permutations.npy', [[0, 1], [1, 0]] if alike else [[1, 0], [0, 1]])
  given = cases.draw(kind='cfn', side=3, stride=2, outputs=2, **SMALL).params
  monkeypatch.setattr(checkpoints, 'read_params', lambda path: given)
  questions = types.SimpleNamespace(rows=np.array([[0, 1], [1, 0]], np.uint8))
  pretext = types.SimpleNamespace(model=cfn.Stacked(num_classes=2), questions=questions)
  fresh = cases.draw(kind='cfn', side=3, stride=2, seed=1, outputs=2, **SMALL).params
  params, _ = initial.load_initial(str(tmp_path), fresh, pretext)
  for name in fresh:
    taken = alike or name != 'fc8'
    assert same(params[name], (given if taken else fresh)[name])
