"""What the checkpoint store cannot keep is refused before a run, and seen at its first save."""

import pathlib

import numpy as np
import pytest
import test_main

from cfn_jax.training import checkpoint, step_folders, store, store_errors

KEPT = (
  'plain',
  'a{b}',
  'a*b?',
  'a b',
  "it's",
  '50%',
  '#1',
  'a[b',
  'a]b[',
  '日本',
  'lr=0.1,x:y',
  'x\ny',
)
LOST = ('run[lr=0.1]', 'a[]b]', '[!]]', r'a\b', '**', 'gs:', 'caf\udce9', 'x[y]/z')
STATE = {'w': np.arange(6, dtype=np.float32)}


@pytest.mark.parametrize('name', KEPT)
def test_what_the_store_keeps_is_not_refused(name, tmp_path):
  store.check_path(tmp_path / name)
  store.check(tmp_path / name)
  assert not list((tmp_path / name).iterdir())


@pytest.mark.parametrize('name', LOST)
def test_a_workdir_that_the_store_cannot_keep_is_refused(name, tmp_path):
  with pytest.raises(checkpoint.CheckpointError, match='take another --workdir'):
    store.check_path(tmp_path / name)
  with pytest.raises(checkpoint.CheckpointError, match='keeps no checkpoint'):
    store.check(tmp_path / name)  # it is lost indeed


def test_a_path_that_is_too_long_is_refused(tmp_path):
  folder = tmp_path
  while len(str(folder)) < 3_965:
    folder = folder / ('d' * min(200, 3_970 - len(str(folder))))
  folder.mkdir(parents=True)
  with pytest.raises(checkpoint.CheckpointError, match='keeps no checkpoint'):
    store.check(folder)


@pytest.mark.parametrize('through', ['name', 'link', 'relative'])
def test_a_run_refuses_such_a_workdir_before_its_data(through, tmp_path):
  real = tmp_path / 'run[lr=0.1]'
  real.mkdir()
  (tmp_path / 'link').symlink_to(real)
  workdir = {'name': real, 'link': tmp_path / 'link', 'relative': '.'}[through]
  arguments = ('--config=cfn:tiny', '--config.data.source=folder', '--config.data.root=/none')
  result = test_main.run(*arguments, f'--workdir={workdir}', cwd=real)
  assert result.returncode == 2 and result.stderr.count('\n') == 1
  assert str(real) in result.stderr and 'a pair of [ ]' in result.stderr
  assert not list(real.iterdir())


def _save(folder: pathlib.Path) -> list[int]:
  with checkpoint.Checkpoints(folder, keep_latest=3, keep_best=0, best='score') as saver:
    for step in (1, 2):
      saver.save(step, STATE, {'fingerprint': {}, 'config': {}}, {})
  return step_folders.find_steps(folder / 'checkpoints')


@pytest.mark.parametrize('lost', ['state/manifest.ocdbt', 'meta/metadata', 'state/d'])
def test_a_store_that_loses_data_is_seen_at_the_first_save(lost, tmp_path, monkeypatch):
  real = checkpoint.Checkpoints.wait

  def wait(self):
    real(self)
    for path in self.folder.glob(f'*/{lost}*'):
      path.unlink() if path.is_file() else [each.write_bytes(b'') for each in path.iterdir()]

  monkeypatch.setattr(checkpoint.Checkpoints, 'wait', wait)
  with pytest.raises(checkpoint.CheckpointError, match='what was saved does not read back'):
    _save(tmp_path)
  assert len(step_folders.find_steps(tmp_path / 'checkpoints')) == 1


def test_only_the_first_save_of_a_process_is_read_back(tmp_path, monkeypatch):
  read, real = [], step_folders.read_back
  monkeypatch.setattr(step_folders, 'read_back', lambda *args: read.append(args) or real(*args))
  assert _save(tmp_path) == [1, 2]
  assert [path.name for path, _ in read] == ['1']


def test_the_reason_of_tensorstore_ends_before_its_details():
  error = ValueError('cannot read x. See full TensorStore details: <bound method Status of y>')
  assert store_errors.shorten(error) == 'cannot read x.'
