"""The README's commands are real: they run, and what they name exists."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest
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
