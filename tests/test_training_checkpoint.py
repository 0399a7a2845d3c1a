"""Checkpoints: kept apart, checked on restore, damaged ones set aside, failed saves loud."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cfn_jax.training import checkpoint, digests, step_folders

FINGERPRINT = {'seed': 0, 'data': ['a', 3]}
META = {'fingerprint': FINGERPRINT, 'config': {'num_steps': 6}}


def make_state(number):
  rng = np.random.default_rng(number)
  return jax.device_put(
    {
      'params': {
        'conv1': {'kernel': rng.normal(size=(40, 60)).astype(np.float32)},
        'fc6': {'kernel': rng.normal(size=(300, 80)).astype(np.float32)},
      },
      'optimizer': (np.int32(number), rng.normal(size=5).astype(jnp.bfloat16)),
      'ema': (),
      'step': np.int32(number),
    }
  )


def open_checkpoints(workdir, keep_latest=2, keep_best=1):
  return checkpoint.Checkpoints(workdir, keep_latest=keep_latest, keep_best=keep_best, best='score')


def save_all(workdir, steps, **keep):
  with open_checkpoints(workdir, **keep) as saver:
    for step in steps:
      saver.save(step, make_state(step), META, {'score': step / 1000})
  return workdir / 'checkpoints'


def assert_equal(ours, theirs):
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def resume(workdir, target=None, fingerprint=FINGERPRINT, start_over=False, init_from=False):
  target = make_state(0) if target is None else target
  with open_checkpoints(workdir) as saver:
    return saver.resume(fingerprint, target, start_over=start_over, init_from=init_from)


def flip_a_bit(path, place=0.5):
  content = bytearray(path.read_bytes())
  content[int(len(content) * place)] ^= 4
  path.write_bytes(bytes(content))


def largest_file(folder):
  return max((path for path in folder.rglob('*') if path.is_file()), key=os.path.getsize)


def test_what_is_restored_is_what_was_saved(tmp_path):
  save_all(tmp_path, [3, 6])
  start = resume(tmp_path)
  assert (start.step, start.notes, start.meta['config']) == (6, [], {'num_steps': 6})
  assert_equal(start.state, make_state(6))


def test_a_new_workdir_starts_at_step_0_with_the_given_state(tmp_path):
  target = make_state(0)
  start = resume(tmp_path, target)
  assert (start.step, start.meta, start.notes) == (0, {}, [])
  assert start.state is target


def test_the_digests_are_sha256_of_the_arrays(tmp_path):
  import hashlib

  folder = save_all(tmp_path, [3])
  saved = json.loads((folder / '3' / 'meta' / 'metadata').read_text())['arrays']
  kernel = np.asarray(make_state(3)['params']['conv1']['kernel'])
  assert saved['params/conv1/kernel'] == {
    'shape': [40, 60],
    'dtype': 'float32',
    'sha256': hashlib.sha256(kernel.tobytes()).hexdigest(),
  }
  assert saved['optimizer/1']['dtype'] == 'bfloat16'
  assert len(saved) == 5


def test_a_donated_state_is_saved_as_it_was(tmp_path):
  """The next step overwrites the arrays while the save still runs."""
  step = jax.jit(lambda tree: jax.tree.map(lambda a: a + 1, tree), donate_argnums=0)
  state = make_state(3)
  with open_checkpoints(tmp_path) as saver:
    saver.save(3, state, META, {})
    for _ in range(3):
      state = step(state)
  assert_equal(resume(tmp_path).state, make_state(3))


# What is done to the newest step, and what the run says of it.
DAMAGE = {
  'empty': 'an empty folder',
  'truncated': 'damaged',
  'flipped': 'not the arrays that were saved: params/fc6/kernel',
  'without meta': 'without meta/metadata',
  'without array metadata': 'without state/_METADATA',
  'without step metadata': 'without _CHECKPOINT_METADATA',
  'meta changed': 'meta/metadata: not what was saved',
  'meta torn': 'meta/metadata',
  'state missing': 'without state/_METADATA',
  'array missing': 'damaged',
}


def damage(step, kind):
  if kind == 'empty':
    shutil.rmtree(step)
    step.mkdir()
  elif kind == 'truncated':
    path = largest_file(step / 'state')
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  elif kind == 'flipped':
    flip_a_bit(largest_file(step / 'state'))
  elif kind == 'without meta':
    shutil.rmtree(step / 'meta')
  elif kind == 'without array metadata':
    (step / 'state' / '_METADATA').unlink()
  elif kind == 'without step metadata':
    (step / '_CHECKPOINT_METADATA').unlink()
  elif kind == 'meta changed':
    path = step / 'meta' / 'metadata'
    path.write_text(path.read_text().replace('"num_steps": 6', '"num_steps": 7'))
  elif kind == 'meta torn':
    path = step / 'meta' / 'metadata'
    path.write_text(path.read_text()[:-20])
  elif kind == 'state missing':
    shutil.rmtree(step / 'state')
  else:
    largest_file(step / 'state').unlink()


@pytest.mark.parametrize('kind', DAMAGE)
def test_a_damaged_newest_step_is_named_kept_and_passed_over(kind, tmp_path, capfd):
  folder = save_all(tmp_path, [3, 6])
  damage(folder / '6', kind)
  before = sorted(str(path.relative_to(folder / '6')) for path in (folder / '6').rglob('*'))
  start = resume(tmp_path)
  assert start.step == 3
  assert_equal(start.state, make_state(3))
  (note,) = start.notes
  assert note.startswith(f'{folder / "6"} is damaged') and DAMAGE[kind] in note
  assert note.endswith('; it is kept as damaged_6')
  aside = folder / 'damaged_6'
  assert sorted(str(path.relative_to(aside)) for path in aside.rglob('*')) == before
  assert 'Traceback' not in capfd.readouterr().err  # no noise of tensorstore's threads
  save_all(tmp_path, [5, 6])  # a step of the same number is taken again
  assert resume(tmp_path).step == 6
  assert aside.exists()


@pytest.mark.slow
def test_no_flipped_bit_in_any_file_gives_other_arrays(tmp_path):
  """Every file of a step, at several places: refused, or of no consequence."""
  folder = save_all(tmp_path / 'run', [6])
  shutil.copytree(folder / '6', tmp_path / 'whole')
  files = sorted(p for p in (tmp_path / 'whole').rglob('*') if p.is_file() and p.stat().st_size)
  refused = 0
  for path in files:
    for place in (0.0, 0.3, 0.6, 0.95):
      shutil.rmtree(folder / '6')
      shutil.copytree(tmp_path / 'whole', folder / '6')
      flip_a_bit(folder / '6' / path.relative_to(tmp_path / 'whole'), place)
      with open_checkpoints(tmp_path / 'run') as saver:
        try:
          checkpoint.check_fingerprint(saver.meta(6)['fingerprint'], FINGERPRINT, where='')
          assert_equal(saver.restore(6, make_state(0)), make_state(6))
        except checkpoint.DamagedError:
          refused += 1
  assert refused > len(files) / 2


def test_a_second_damaged_step_of_one_number_keeps_the_first(tmp_path):
  folder = save_all(tmp_path, [3, 6])
  for name in ('damaged_6', 'damaged_6_2'):
    damage(folder / '6', 'empty')
    assert resume(tmp_path).step == 3
    assert (folder / name).is_dir()
    save_all(tmp_path, [6])


def test_all_damaged_stops_and_starts_over_only_when_told(tmp_path):
  folder = save_all(tmp_path, [3, 6])
  damage(folder / '3', 'empty')
  damage(folder / '6', 'without meta')
  with pytest.raises(checkpoint.CheckpointError, match='start_over') as caught:
    resume(tmp_path)
  assert str(folder / '3') in str(caught.value) and str(folder / '6') in str(caught.value)
  assert {'3', '6'} <= {path.name for path in folder.iterdir()}  # nothing was touched
  start = resume(tmp_path, start_over=True)
  assert (start.step, len(start.notes)) == (0, 2)
  assert {path.name for path in folder.iterdir()} == {'damaged_3', 'damaged_6'}


def test_start_over_goes_on_from_a_good_step(tmp_path):
  save_all(tmp_path, [3])
  assert resume(tmp_path, start_over=True).step == 3


def test_other_settings_are_refused_with_both_values_and_nothing_is_renamed(tmp_path):
  folder = save_all(tmp_path, [3, 6])
  with pytest.raises(checkpoint.CheckpointError, match='seed: 0 then, 1 now') as caught:
    resume(tmp_path, fingerprint=FINGERPRINT | {'seed': 1}, init_from=True)
  assert f'--config.init_from={folder}/6' in str(caught.value)
  with pytest.raises(checkpoint.CheckpointError) as caught:  # as of an evaluation
    resume(tmp_path, fingerprint=FINGERPRINT | {'seed': 1})
  assert 'another --workdir:' in str(caught.value) and 'init_from' not in str(caught.value)
  assert {path.name for path in folder.iterdir()} == {'3', '6'}


def test_every_difference_of_the_arrays_is_listed_at_once(tmp_path):
  folder = save_all(tmp_path, [6])
  target = make_state(0)
  target['params']['conv1']['kernel'] = jnp.zeros((60, 40))
  target['optimizer'] = (jnp.zeros((), jnp.int32), jnp.zeros(5, jnp.float32))
  target['ema'] = {'conv1': jnp.zeros(3)}
  del target['params']['fc6']
  with pytest.raises(checkpoint.CheckpointError) as caught:
    resume(tmp_path, target)
  assert not isinstance(caught.value, checkpoint.DamagedError)
  for text in (
    'params/conv1/kernel is float32 [40, 60], not float32 [60, 40]',
    'optimizer/1 is bfloat16 [5], not float32 [5]',
    'ema/conv1 is missing, not float32 [3]',
    'params/fc6/kernel is float32 [300, 80], not expected',
  ):
    assert text in str(caught.value)
  assert (folder / '6').exists()


def test_an_array_that_a_plain_restore_would_cast_is_refused(tmp_path):
  """Orbax makes 16777216 of the int32 16777217 where a float32 is asked for."""
  with open_checkpoints(tmp_path) as saver:
    saver.save(3, {'step': jnp.array(16777217, jnp.int32)}, META, {})
  with pytest.raises(checkpoint.CheckpointError, match=r'step is int32 \[\], not float32 \[\]'):
    resume(tmp_path, {'step': jnp.zeros((), jnp.float32)})


@pytest.mark.parametrize(
  ('lost', 'why'),
  [
    (digests.OWN, 'not what was saved'),
    *((name, f'it has no {name!r}') for name in (digests.ARRAYS, 'config', 'fingerprint')),
  ],
)
def test_a_step_without_digests_or_its_config_is_damaged(lost, why, tmp_path):
  folder = save_all(tmp_path, [3, 6])
  path = folder / '6' / 'meta' / 'metadata'
  meta = json.loads(path.read_text())
  del meta[lost]
  sealed = digests.seal({name: each for name, each in meta.items() if name != digests.OWN})
  path.write_text(json.dumps(meta if lost == digests.OWN else sealed))
  start = resume(tmp_path)
  assert_equal(start.state, make_state(3))
  [note] = start.notes
  assert note == f'{folder / "6"} is damaged: meta/metadata: {why}; it is kept as damaged_6'


def test_arrays_of_which_the_digests_are_gone_are_damage(tmp_path):
  folder = save_all(tmp_path, [6])
  path = folder / '6' / 'meta' / 'metadata'
  path.write_text(json.dumps(digests.seal(META | {digests.ARRAYS: {}})))
  with pytest.raises(checkpoint.CheckpointError, match='not the arrays that were saved'):
    resume(tmp_path)


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('fingerprint', ['seed']),
    ('config', 'x' * 500),
    ('unevaluated', [3]),
    ('unevaluated', {'step': 'x'}),
    ('skipped_steps', 'x'),
    ('arrays', [1]),
    ('arrays', {'params': 1}),
    ('arrays', {'params': {'shape': [1]}}),
  ],
)
def test_a_mapping_of_other_kinds_of_values_is_damage_even_where_its_digest_is_right(
  name, value, tmp_path
):
  folder = save_all(tmp_path, [6])
  path = folder / '6' / 'meta' / 'metadata'
  meta = {key: each for key, each in json.loads(path.read_text()).items() if key != digests.OWN}
  path.write_text(json.dumps(digests.seal(meta | {name: value})))
  with pytest.raises(checkpoint.CheckpointError, match='6 is damaged: meta/metadata') as caught:
    resume(tmp_path)
  assert len(str(caught.value)) < 800


def test_parts_that_hold_no_array_may_come_and_go(tmp_path):
  """A checkpoint of a state without such a part is as good as one with it."""
  bare = {name: part for name, part in make_state(6).items() if name != 'ema'}
  with open_checkpoints(tmp_path) as saver:
    saver.save(6, bare, META, {})
  start = resume(tmp_path)
  assert_equal(start.state, make_state(6))
  assert start.state['ema'] == ()
  assert_equal(resume(tmp_path, jax.tree.map(jnp.zeros_like, bare)).state, bare)


def test_a_step_saved_before_its_evaluation_takes_the_figures_later(tmp_path):
  with open_checkpoints(tmp_path) as saver:
    saver.save(3, make_state(3), META, {'score': 0.5})
    saver.save(4, make_state(4), META, {})
    saver.wait()
    assert (saver.latest(), saver.best()) == (4, 3)
    saver.save(4, make_state(4), META, {'score': 0.9})
    assert saver.best() == 4
    for step in (5, 6, 7):
      saver.save(step, make_state(step), META, {'score': 0.1})
  assert step_folders.find_steps(tmp_path / 'checkpoints') == [4, 6, 7]
  assert_equal(resume(tmp_path).state, make_state(7))


@pytest.mark.parametrize(
  ('latest', 'best', 'kept'), [(3, 1, [1, 8, 9, 10]), (1, 3, [1, 2, 3, 10]), (2, 0, [9, 10])]
)
def test_newest_and_best_are_kept_independently(latest, best, kept, tmp_path):
  """The figure falls at each evaluation: the best are the oldest."""
  with open_checkpoints(tmp_path, keep_latest=latest, keep_best=best) as saver:
    for step in range(1, 11):
      saver.save(step, {'a': jnp.zeros(2)}, META, {'score': 1 - step / 100})
      found = [path for path in (tmp_path / 'checkpoints').iterdir() if path.name.isdecimal()]
      assert len(found) <= latest + best + 1  # and one that is being written
  assert step_folders.find_steps(tmp_path / 'checkpoints') == kept


def test_with_a_minus_before_its_name_the_smallest_figure_is_the_best(tmp_path):
  saver = checkpoint.Checkpoints(tmp_path, keep_latest=1, keep_best=1, best='-loss')
  with saver:
    for step, loss in ((1, 0.9), (2, 0.2), (3, 0.5), (4, 0.7)):
      saver.save(step, {'a': jnp.zeros(2)}, META, {'loss': loss})
    saver.wait()
    assert saver.best() == 2
  assert step_folders.find_steps(tmp_path / 'checkpoints') == [2, 4]


def test_a_figure_that_is_not_a_number_is_never_the_best(tmp_path):
  with open_checkpoints(tmp_path) as saver:
    for step, score in ((1, 0.2), (2, float('nan')), (3, 0.1)):
      saver.save(step, {'a': jnp.zeros(2)}, META, {'score': score})
    saver.wait()
    assert saver.best() == 1


def test_a_damaged_best_step_gives_way_to_the_next_best(tmp_path):
  folder = save_all(tmp_path, [3, 4, 6])
  damage(folder / '6', 'flipped')
  with open_checkpoints(tmp_path) as saver:
    step, state, notes = saver.restore_best(make_state(0))
  assert step == 4 and 'damaged' in notes[0]
  assert_equal(state, make_state(4))


def test_leftovers_are_told_ignored_and_gone_once_a_later_step_is_saved(tmp_path):
  folder = save_all(tmp_path, [3])
  (folder / '5.orbax-checkpoint-tmp').mkdir()
  (folder / '5.orbax-checkpoint-tmp' / 'part').write_text('half')
  (folder / 'deleting_2').mkdir()
  (folder / 'notes').mkdir()
  start = resume(tmp_path)
  assert start.step == 3 and '5.orbax-checkpoint-tmp: an unfinished save' in start.notes[0]
  assert (folder / '5.orbax-checkpoint-tmp').exists()
  save_all(tmp_path, [5, 6])
  assert {path.name for path in folder.iterdir()} == {'5', '6', 'notes'}
  assert_equal(resume(tmp_path).state, make_state(6))


def test_a_save_that_cannot_begin_names_the_step_and_the_newest_whole_one(tmp_path):
  with open_checkpoints(tmp_path) as saver:
    saver.save(3, make_state(3), META, {})
    saver.wait()
    (tmp_path / 'checkpoints' / '4').write_text('a file in the way')
    with pytest.raises(checkpoint.CheckpointError, match='step 4 could not be saved') as caught:
      saver.save(4, make_state(4), META, {})
      saver.wait()
  assert 'step 3 is the newest whole one' in str(caught.value)


FULL = """
import pathlib, resource, sys
import numpy as np
from cfn_jax.training import checkpoint
with checkpoint.Checkpoints(
  pathlib.Path(sys.argv[1]), keep_latest=1, keep_best=0, best='score'
) as saver:
  meta = {'fingerprint': {}, 'config': {}}
  state = {'a': np.random.default_rng(0).normal(size=100_000).astype(np.float32)}
  saver.save(3, state, meta, {})
  saver.wait()
  resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
  saver.save(6, state, meta, {})
"""


def test_a_background_save_that_fails_is_an_error_and_the_step_before_is_whole(tmp_path):
  """A limit on the size of files stands in for a full disk."""
  result = subprocess.run(
    [sys.executable, '-c', FULL, str(tmp_path)],
    cwd=pathlib.Path(__file__).resolve().parent.parent,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert result.returncode == 1
  assert 'step 6 could not be saved' in result.stderr.splitlines()[-1]
  assert 'step 3 is the newest whole one' in result.stderr.splitlines()[-1]
  assert 'Event loop is closed' not in result.stderr
  assert step_folders.find_steps(tmp_path / 'checkpoints') == [3]
  target = {'a': np.zeros(100_000, np.float32)}
  restored = step_folders.read_state(tmp_path / 'checkpoints' / '3', jax.device_put(target))
  expected = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
  np.testing.assert_array_equal(np.asarray(restored['a']), expected)


def test_a_checkpoint_moves_to_another_place(tmp_path):
  folder = save_all(tmp_path / 'here', [6])
  shutil.move(folder.parent, tmp_path / 'there')
  assert_equal(resume(tmp_path / 'there').state, make_state(6))


def test_arrays_of_eight_devices_restore_on_one_and_back(tmp_path):
  from jax.sharding import NamedSharding, PartitionSpec

  mesh = jax.make_mesh((8,), ('data',))
  spread = jax.device_put(make_state(6), NamedSharding(mesh, PartitionSpec()))
  with open_checkpoints(tmp_path) as saver:
    saver.save(6, spread, META, {})
  assert_equal(resume(tmp_path).state, make_state(6))
  back = resume(tmp_path, jax.device_put(make_state(0), NamedSharding(mesh, PartitionSpec())))
  assert len(back.state['step'].devices()) == 8
  assert_equal(back.state, make_state(6))


def test_a_sealed_mapping_tells_any_change():
  sealed = json.loads(json.dumps(digests.seal({'a': (1, 2), 'b': {'c': 0.1}})))
  assert digests.is_sealed(sealed)
  assert not digests.is_sealed(sealed | {'a': [1, 3]})
  assert not digests.is_sealed(sealed | {'d': 1})
  assert not digests.is_sealed({'a': 1})


@pytest.mark.parametrize(('hosts', 'waits'), [(1, True), (2, False)])
def test_a_run_that_lost_a_host_does_not_wait_for_its_save(hosts, waits, tmp_path, monkeypatch):
  saver, waited = open_checkpoints(tmp_path), []
  with saver, monkeypatch.context() as patch:
    patch.setattr(jax, 'process_count', lambda: hosts)
    patch.setattr(saver, 'wait', lambda: waited.append(True))
    patch.setattr(saver._writer, 'close', lambda: None)
    saver.__exit__(jax.errors.JaxRuntimeError)
  assert bool(waited) == waits
