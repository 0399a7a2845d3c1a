"""The README's commands are real: they run, and what they name exists."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

import detection_cases
import labelled_cases
import mask_cases
import numpy as np
import pytest
import scipy.io
import test_main

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
README = (REPOSITORY / 'README.md').read_text()


def _commands():
  """Returns the commands of the README's blocks, continuation lines joined."""
  text = README.replace('\\\n', ' ')
  return [
    re.sub(r'\s+', ' ', line.strip())
    for line in text.splitlines()
    if re.match(r'( {4})?(pip install|python -m|ruff|bash) ', line)
  ]


def test_the_first_two_commands_do_all_the_set_up():
  run, tests = _commands()[:2]
  assert run == (
    "pip install -e '.[demo]' && "
    'python -m cfn_jax.main --config=configs/cfn.py:tiny --workdir=runs/tiny'
  )
  assert tests == 'pip install -e \'.[test]\' && python -m pytest -m "not slow"'
  setup = (REPOSITORY / 'setup.py').read_text()
  for extra in ('demo', 'test', 'cuda12', 'cuda13', 'tpu', 'torch', 'compile'):
    assert f"'{extra}': " in setup


def test_the_main_command_runs(tmp_path):
  """The README's first command, its installation aside, on fewer steps and a smaller network."""
  words = shlex.split(_commands()[0].split(' && ')[1])
  overrides = [word for word in test_main.SMALL if not word.startswith('--config=')]
  result = test_main.run(*words[3:-1], *overrides, f'--workdir={tmp_path / "run"}')
  assert result.returncode == 0, result.stderr
  assert 'finished at step 6' in result.stderr


@pytest.mark.slow
def test_the_default_workdir_is_named_after_the_config(tmp_path):
  (tmp_path / 'configs').symlink_to(REPOSITORY / 'configs')
  overrides = [word for word in test_main.SMALL if not word.startswith('--config=')]
  arguments = ('--config=configs/cfn.py:tiny', '--config.num_steps=2')
  result = test_main.run(*overrides, *arguments, cwd=tmp_path)
  assert result.returncode == 0, result.stderr
  assert (tmp_path / 'runs' / 'cfn-tiny' / 'metrics.jsonl').exists()


@pytest.mark.slow
def test_the_permutations_command_of_the_readme_runs(tmp_path):
  shown = re.findall(r'`(python -m cfn_jax\.permutations [^`]*)`', README.replace('\n', ' '))
  command = next(each for each in (*shown, *_commands()) if 'cfn_jax.permutations' in each)
  words = [word.replace('perms', str(tmp_path / 'perms')) for word in shlex.split(command)[3:]]
  done = subprocess.run(
    [sys.executable, '-m', 'cfn_jax.permutations', *words],
    cwd=REPOSITORY,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  assert (tmp_path / 'perms.npy').exists() and (tmp_path / 'perms.png').exists()


def _small(*fields):
  return [f'--config.{field}' for field in fields]


STEPS = ('num_steps=2', 'batch_size=8', 'eval_batch_size=8', 'schedule=step', 'warmup_steps=0')
NARROW = ('model.fc6_features=16', 'model.fc7_features=16')
CUT = ('model.width=0.1', *NARROW)
FLOWERS = ('data.source=folder', 'data.root=flowers/train', 'data.val_root=flowers/test')
# What makes each of the README's commands small; the study only prints its plan.
SMALLER = {
  'main --config=configs/cfn.py:small': _small(*STEPS, *CUT),
  'main --config=configs/frozen_layers.py': _small(
    *(*STEPS, *NARROW, *FLOWERS, 'data.split=', 'data.val_split=', 'layers=(3,)', 'test.draws=2')
  ),
  'main --config=configs/voc07_detection.py': _small(
    *(*STEPS, *NARROW, 'images.scales_px=(64,)', 'test.scales_px=(64,)', 'images.canvases=1')
  ),
  'main --config=configs/voc12_segmentation.py': _small(
    *(*STEPS, *NARROW, 'accumulate_steps=2', 'images.canvases=1')
  ),
  'study': ['--dry-run', '--images-per-second=100'],
  'visualize report': [],
  'features': [],
  'convert': [],
}


def _make_folders(folder):
  """Makes what the commands name: photographs, flowers, VOC's years, SBD, boxes, a run."""
  for name in ('configs', 'launch'):
    (folder / name).symlink_to(REPOSITORY / name)
  flowers = labelled_cases.make_class_folders(folder / 'flowers', train=20)
  for name in ('DIR', 'DIR2'):
    (folder / name).symlink_to(flowers / 'train')
  voc = detection_cases.make_voc(folder / 'VOCdevkit' / 'VOC2007')
  main_lists = voc / 'ImageSets' / 'Main'
  for given, wanted, file in (('train', 'trainval', 'A.mat'), ('val', 'test', 'B.mat')):
    (main_lists / f'{wanted}.txt').write_text((main_lists / f'{given}.txt').read_text())
    boxes = np.empty((len(detection_cases.SIZES), 1), object)
    for row in boxes:  # y1, x1, y2, x2 from 1
      row[0] = np.array([[1.0, 1, 50, 50], [5, 10, 60, 60], [20, 2, 55, 30]])
    scipy.io.savemat(folder / file, {'boxes': boxes})
  every = {'a': range(21), 'b': range(21)}
  mask_cases.make_sbd(folder / 'benchmark_RELEASE', train=every)
  mask_cases.make_voc(folder / 'VOCdevkit' / 'VOC2011', classes=(), val={'c': range(21)})
  run = _small(*STEPS, *CUT, 'data.source=bundled', 'data.split=', 'data.val_split=')
  cuts = _small('data.crops_per_photograph=10', 'data.val_crops_per_photograph=10')
  _run(folder, 'main', '--config=configs/cfn.py', '--workdir=runs/cfn', *run, *cuts)


def _run(folder, module, *arguments):
  done = subprocess.run(
    [sys.executable, '-m', f'cfn_jax.{module}', *arguments],
    cwd=folder,
    env=os.environ | {'PYTHONPATH': str(REPOSITORY), 'XLA_FLAGS': ''},
    capture_output=True,
    text=True,
    check=False,
    timeout=300,
  )
  assert done.returncode == 0, f'{module} {shlex.join(arguments)}\n{done.stderr}'


@pytest.mark.long
@pytest.mark.slow
def test_the_commands_of_the_tasks_run_as_they_stand(tmp_path):
  """All on networks of a few channels, for two steps."""
  pytest.importorskip('torch', reason="needs the extra 'torch'")
  _make_folders(tmp_path)
  used = set()
  for command in _commands():
    found = re.fullmatch(r'python -m cfn_jax\.(.*)', command)
    if not found:
      continue
    key = next(key for key in SMALLER if found[1].startswith(f'{key} '))
    module, *arguments = shlex.split(found[1])
    _run(tmp_path, module, *arguments, *SMALLER[key])
    used.add(key)
  assert used == SMALLER.keys()
  for made in (
    'runs/photos/report.html',
    'runs/frozen_layers/results.json',
    'runs/voc07_detection/results.json',
    'runs/voc12_segmentation/results.json',
    'features.npz',
    'exported/model.pth',
  ):
    assert (tmp_path / made).exists(), made
