"""Checkpoints from elsewhere: whatever stands in them, a result or one clean error comes out."""

import json
import math
import shutil

import numpy as np
import pytest
import tensorstore
import test_transfer_files
import test_untrusted_files as untrusted
import transfer_cases as cases
from hypothesis import given, settings
from hypothesis import strategies as st

from cfn_jax.errors import CfnError
from cfn_jax.jigsaw.permutation_sets import files as permutation_files
from cfn_jax.training import digests, step_folders
from cfn_jax.transfer import cards, export, files
from cfn_jax.transfer import weights as weights_lib

SET = np.array([range(9), range(9)[::-1]], np.uint8)


def change(workdir, edit):
  test_transfer_files.change_meta(workdir / 'checkpoints' / '3', edit)


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """A workdir with one step, and the parameters in it."""
  workdir = tmp_path_factory.mktemp('run')
  weights = cases.draw(kind='cfn', stride=2, side=3, width=0.1, features=8)
  test_transfer_files.save_run(workdir, weights.params, steps=(3,))
  permutation_files.save_permutations(workdir / 'permutations.npy', SET)
  change(workdir, lambda told: told.update(network=cards.make_record(weights)))
  conv1 = weights.params['conv1']
  return workdir, weights.params | {'conv1': conv1 | {'bias': conv1['bias'] + np.float32(3)}}


@pytest.fixture
def run(saved, tmp_path):
  return shutil.copytree(saved[0], tmp_path / 'run')


@pytest.fixture
def quick(saved, monkeypatch):
  """Leaves Orbax out, where the arrays are not what is changed."""
  monkeypatch.setattr(step_folders, '_restore', lambda reader, folder, collection: saved[1])


def put(values, place, value):
  for name in place[:-1]:
    values = values[name]
  values[place[-1]] = value


def refusal(path, **more):
  with pytest.raises(CfnError) as caught:
    files.load_weights(path, **more)
  message = str(caught.value)
  assert '\n' not in message and len(message) < 800
  return message


@pytest.mark.parametrize(
  ('place', 'value', 'words'),
  [
    ('network', [], 'its meta cannot be read'),
    ('network', {}, "its meta cannot be read: it has no 'order'"),
    ('network.stride', 'x', 'its meta cannot be read'),
    ('network.stride', 1e999, 'its meta cannot be read'),
    ('network.padding', None, 'its meta cannot be read'),
    ('network.input', 'abc', 'input record cannot be read'),
    ('network.input.std', 10**400, 'input record cannot be read'),
    ('config', [1], "meta/metadata: 'config' is [1]"),
    ('network.input.mean', [1], 'input record cannot be read'),
    ('network.order', {}, "order = '{}' is unknown"),
    ('arrays', [1], "meta/metadata: 'arrays' is [1]"),
    ('arrays', {'params/conv1/bias': 3}, "'int' object is not iterable"),
  ],
)
def test_a_value_of_a_wrong_kind_in_the_meta_is_one_line(run, quick, place, value, words):
  change(run, lambda told: put(told, place.split('.'), value))
  message = refusal(run)
  assert words in message and message.startswith(str(run / 'checkpoints' / '3'))


def test_a_meta_of_endless_nesting_is_refused(run, quick):
  path = run / 'checkpoints' / '3' / 'meta' / 'metadata'
  path.write_text('[' * 200_000)
  assert 'meta/metadata: maximum recursion depth' in refusal(run)


@pytest.mark.parametrize('accuracy', ['"x"', '[]', 'null', 'NaN', '1e999'])
def test_the_best_step_is_one_whose_accuracy_is_a_number(run, quick, accuracy):
  shutil.copytree(run / 'checkpoints' / '3', run / 'checkpoints' / '9')
  (run / 'checkpoints' / '9' / 'metrics' / 'metrics').write_text(f'{{"val_accuracy": {accuracy}}}')
  assert files.load_weights(run, step='best').origin['step'] == 3
  assert files.load_weights(run).origin['step'] == 9


@pytest.mark.parametrize(('best', 'step'), [('val_map', 2), ('-val_map', 1)])
def test_the_best_step_is_the_best_by_the_figure_of_its_own_run(tmp_path, best, step):
  weights = cases.draw(width=0.1, features=8)
  figures = (0.2, 0.9, 0.4)
  test_transfer_files.save_run(
    tmp_path, weights.params, steps=(1, 2, 3), accuracies=figures, best=best
  )
  assert files.load_weights(tmp_path, step='best').origin['step'] == step
  for folder in (tmp_path / 'checkpoints').iterdir():
    shutil.rmtree(folder / 'metrics')
  with pytest.raises(weights_lib.WeightsError, match=r"no step was evaluated.*take 'latest'"):
    files.load_weights(tmp_path, step='best')


def test_weights_without_digests_or_origin_are_refused(run, quick):
  assert 'notes' not in files.load_weights(run).origin
  for lost in ('commit', 'network', digests.ARRAYS):
    change(run, lambda told: told.pop(lost))  # noqa: B023
    assert f"has no '{lost}'" in refusal(run)
  path = run / 'checkpoints' / '3' / 'meta' / 'metadata'
  told = json.loads(path.read_text())
  del told[digests.OWN]
  path.write_text(json.dumps(told))
  assert 'is damaged: meta/metadata: not what was saved' in refusal(run)


def test_arrays_of_which_the_digests_are_gone_are_damage(run, quick):
  change(run, lambda told: told.update({digests.ARRAYS: {}}))
  assert 'is damaged: not the arrays that were saved' in refusal(run)


def _npy(shape, data=b''):
  return test_transfer_files._npy({'descr': '|u1', 'fortran_order': False, 'shape': shape}) + data


@pytest.mark.parametrize(
  ('content', 'words'),
  [
    (_npy((2**40, 9)), 'the file has'),
    (_npy((9,), bytes(range(9))), 'not integers [permutations, tiles]'),
    (_npy((1, 9), bytes(9)), 'no permutations, counted from 0'),
    (_npy((1, 4), bytes(range(1, 5))), 'no permutations, counted from 0'),
    (_npy((2, 9), bytes(9)), 'another length'),
    (b'\x93NUMPY', 'damaged'),
    (b'', 'damaged'),
  ],
)
def test_a_permutation_file_that_is_none_is_refused_without_memory(run, quick, content, words):
  (run / 'permutations.npy').write_bytes(content)
  message = refusal(run)
  assert words in message and 'permutations.npy' in message and 'move it away' in message
  (run / 'permutations.npy').unlink()
  assert files.load_weights(run).origin['permutations'] == []


def test_a_size_that_the_files_do_not_have_is_refused_before_it_is_allocated(run, monkeypatch):
  """Orbax takes shapes from each array's own metadata: here 23 GiB of the 1.5 kB of conv1."""
  step = run / 'checkpoints' / '3'
  store = tensorstore.KvStore.open({'driver': 'ocdbt', 'base': f'file://{step}/state'}).result()
  place = b'params.conv1.kernel/.zarray'
  told = json.loads(store.read(place).result().value)
  told['shape'] = told['chunks'] = [11, 11, 3, 2**24]
  store.write(place, json.dumps(told).encode()).result()
  allocate = np.empty

  def watched(shape, *more, **named):
    assert math.prod(np.atleast_1d(shape).tolist()) < 2**24
    return allocate(shape, *more, **named)

  monkeypatch.setattr(step_folders.np, 'empty', watched)
  assert 'its metadata states 24,3' in refusal(run)


def _places(values, before=()):
  """Lists the places of all values in nested dicts and lists."""
  found = [before] if before else []
  items = values.items() if isinstance(values, dict) else enumerate(values)
  for name, value in items:
    if isinstance(value, dict | list):
      found += _places(value, (*before, name))
    else:
      found.append((*before, name))
  return found


def _read(run, counts):
  """Reads a run and writes it anew, as the converter does."""
  try:
    loaded = files.load_weights(run)
    export.save_folder(loaded, run.parent / 'out', 'npz', overwrite=True)
  except CfnError as error:
    counts['refused'] += 1
    assert '\n' not in str(error) and len(str(error)) < 1200
    return
  counts['read'] += 1


@pytest.mark.slow
def test_other_values_in_a_meta_are_read_or_refused(run, quick):
  path = run / 'checkpoints' / '3' / 'meta' / 'metadata'
  stated = json.loads(path.read_text())
  counts = {'read': 0, 'refused': 0}

  @settings(untrusted.FEWER, max_examples=150)
  @given(st.sampled_from(_places(stated)), untrusted.VALUES)
  def check(place, value):
    path.write_text(json.dumps(stated))
    change(run, lambda told: put(told, place, value))
    _read(run, counts)

  check()
  assert min(counts.values()) > 30, counts


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', ['checkpoints/3/meta/metadata', 'checkpoints/3/metrics/metrics', 'permutations.npy']
)
def test_a_mutated_file_of_a_run_is_read_or_refused(run, quick, name):
  content = (run / name).read_bytes()
  counts = {'read': 0, 'refused': 0}

  @settings(untrusted.FEWER, max_examples=150)
  @given(untrusted.edits())
  def check(changes):
    (run / name).write_bytes(untrusted.mutate(content, changes))
    _read(run, counts)

  check()
  assert counts['read'] > 3 or 'meta/' in name, counts
  assert counts['refused'] > 30 or 'metrics' in name, counts


@pytest.mark.slow
def test_a_mutated_tree_of_arrays_is_read_or_refused(run):
  path = run / 'checkpoints' / '3' / 'state' / '_METADATA'
  content = path.read_bytes()
  stated = json.loads(content)
  counts = {'read': 0, 'refused': 0}
  values = st.tuples(st.sampled_from(_places(stated)), untrusted.VALUES)

  @settings(untrusted.FEWER, max_examples=30)
  @given(st.one_of(untrusted.edits(), values))
  def check(change):
    if isinstance(change, tuple):
      told = json.loads(content)
      put(told, *change)
      path.write_text(json.dumps(told))
    else:
      path.write_bytes(untrusted.mutate(content, change))
    _read(run, counts)

  check()
  assert counts['refused'] > 10, counts


@pytest.mark.parametrize('name', ['c\\d', 'caf\udce9'])
def test_a_run_whose_new_name_the_store_cannot_read_says_so(run, tmp_path, name):
  shutil.copytree(run, tmp_path / name)
  with pytest.raises(CfnError, match='rename the folder'):
    files.load_weights(tmp_path / name)
