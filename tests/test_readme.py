"""The README's commands are real: they run, and what they name exists."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import test_main

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PAGES = (
  'README.md',
  'docs/data.md',
  'docs/evaluation.md',
  'docs/permutations.md',
  'docs/retrieval.md',
  'docs/weights.md',
  'CONTRIBUTING.md',
)


def _commands(page):
  """Returns the commands of a page's indented and fenced blocks, continuation lines joined."""
  text = (REPOSITORY / page).read_text().replace('\\\n', ' ')
  return [
    re.sub(r'\s+', ' ', line.strip())
    for line in text.splitlines()
    if re.match(r'( {4})?(pip install|python -m|ruff|bash) ', line)
  ]


def test_the_first_two_commands_do_all_the_set_up():
  run, tests = _commands('README.md')[:2]
  assert run == (
    "pip install -e '.[demo]' && "
    'python -m cfn_jax.main --config=configs/cfn.py:tiny --workdir=runs/tiny'
  )
  assert tests == 'pip install -e \'.[test]\' && python -m pytest -m "not slow"'
  setup = (REPOSITORY / 'setup.py').read_text()
  for extra in ('demo', 'test', 'cuda12', 'cuda13', 'tpu', 'torch', 'compile'):
    assert f"'{extra}': " in setup


@pytest.mark.parametrize('page', PAGES)
def test_each_command_names_a_module_and_its_flags(page):
  for command in _commands(page):
    for part in command.split(' && '):
      words = shlex.split(part.replace('[', '').replace(']', ''))
      if words[:2] != ['python', '-m'] or not words[2].startswith('cfn_jax.'):
        continue
      source = REPOSITORY.joinpath(*words[2].split('.')).with_suffix('.py')
      assert source.exists(), command
      described = source.read_text() + (REPOSITORY / 'cfn_jax' / 'command.py').read_text()
      if words[2] == 'cfn_jax.benchmark':
        timing = REPOSITORY / 'cfn_jax' / 'timing'
        described = (timing / f'{words[3]}.py').read_text() + (timing / 'steps.py').read_text()
      for word in words[3:]:
        flag = re.match(r'--([\w-]+)', word)
        if flag:
          names = (f"'{flag[1]}'", f"'--{flag[1]}'")
          assert any(name in described for name in names), f'{command}: {word}'


def test_links_lead_somewhere():
  for page in ('README.md', 'CONTRIBUTING.md', *map(str, (REPOSITORY / 'docs').rglob('*.md'))):
    path = REPOSITORY / page
    for target in re.findall(r'\]\(([^)#:]+)\)', path.read_text()):
      assert (path.parent / target).exists(), f'{page}: {target}'


def test_the_main_command_runs(tmp_path):
  """The README's first command, its installation aside, on fewer steps and a smaller network."""
  words = shlex.split(_commands('README.md')[0].split(' && ')[1])
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
  command = next(c for c in _commands('README.md') if 'cfn_jax.permutations' in c)
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
