"""Configs are found from any folder, by path or by name; what is wrong in one is said in a line."""

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

from cfn_jax import command, config_files

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
NAMES = config_files.list_names()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
  """A working folder with a foreign package `configs`, which no config of ours may meet."""
  (tmp_path / 'configs').mkdir()
  for name in ('__init__', 'training'):
    (tmp_path / 'configs' / f'{name}.py').write_text("raise RuntimeError('a foreign package')\n")
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  return tmp_path


def write(path, text):
  path.write_text(textwrap.dedent(text))
  return path


@pytest.mark.parametrize('name', NAMES)
def test_each_config_is_found_by_name_and_by_path_from_any_folder(name, elsewhere):
  by_name = config_files.load(f'{name}:small')
  by_path = config_files.load(f'{REPOSITORY}/configs/{name}.py:small')
  assert by_name.to_dict() == by_path.to_dict()
  assert by_name.to_dict() != config_files.load(name).to_dict()
  config_files.check(by_name)


def test_a_config_of_a_user_imports_ours_and_its_own_neighbours(elsewhere):
  write(elsewhere / 'mine.py', 'STEPS = 7\n')
  path = write(
    elsewhere / 'cfn.py',
    """
    from configs import cfn, knn, mine

    def get_config():
      c = cfn.get_config('tiny')
      assert knn.get_config('small').task == 'knn'
      with c.unlocked():
        c.num_steps = mine.STEPS
      return c
    """,
  )
  assert config_files.load('cfn.py').num_steps == 7
  assert config_files.load(str(path)).num_steps == 7
  assert 'configs' not in sys.modules or 'mine' not in dir(sys.modules['configs'])


def test_a_copy_of_the_folder_imports_its_own_files(tmp_path):
  shutil.copytree(REPOSITORY / 'configs', tmp_path / 'mine')
  path = tmp_path / 'mine' / 'training.py'
  path.write_text(path.read_text().replace('c.momentum = 0.9 ', 'c.momentum = 0.5 '))
  assert config_files.load(f'{tmp_path}/mine/solve.py').momentum == 0.5
  assert config_files.load('solve').momentum == 0.9


def test_a_folder_with_a_colon_is_no_variant(tmp_path):
  folder = tmp_path / 'a:b'
  folder.mkdir()
  shutil.copy(REPOSITORY / 'configs' / 'cfn.py', folder)
  assert config_files.load(f'{folder}/cfn.py:tiny').permutations.num == 24


RAISES = {
  'x = 1\nx / 0\n': ':2: ZeroDivisionError: division by zero',
  'def get_config(:\n': ':1: SyntaxError: invalid syntax',
  'def get_config():\n  return missing\n': ":2: NameError: name 'missing' is not defined",
  'import no_such\n': ":1: ModuleNotFoundError: No module named 'no_such'",
  "raise SystemExit('no')\n": ':1: SystemExit: no',
  "def get_config():\n  raise ValueError('one\\ntwo')\n": ':2: one',
  '': ' is no config: it has no get_config',
  'get_config = dict\n': ': get_config returns no ConfigDict but dict',
  'x = "\0"\n': ': ',
}


@pytest.mark.parametrize('text', RAISES)
def test_a_config_that_fails_names_its_file_and_line(text, tmp_path):
  path = tmp_path / 'bad.py'
  path.write_text(text)
  with pytest.raises(config_files.ConfigError) as error:
    config_files.load(str(path))
  assert f'{path}{RAISES[text]}' in str(error.value)
  assert '\n' not in str(error.value)


def test_a_fault_in_what_a_config_imports_is_located_there(tmp_path):
  write(tmp_path / 'base.py', '\n1 / 0\n')
  path = write(tmp_path / 'top.py', 'from configs import base\n')
  with pytest.raises(config_files.ConfigError, match=r'base\.py:2: ZeroDivisionError'):
    config_files.load(str(path))


def test_an_unknown_name_lists_those_that_exist():
  for text in ('nothing', 'training', '', 'configs/nothing.py', 'cfn.py/', '/', 'a\nb'):
    with pytest.raises(config_files.ConfigError) as error:
      config_files.load(text)
    assert ', '.join(NAMES) in str(error.value) and '\n' not in str(error.value)
  assert 'training' not in NAMES and 'cfn' in NAMES


FIELDS = {
  'c.learning_rat = 0.1': "field 'learning_rat' has no effect",
  'del c.momentum': "no field 'momentum'",
  'del c.task': "task = '' is unknown",
  "c.task = 'knn'": "knn.py",
  "c.batch_size = '64'": "batch_size = '64': a whole number is needed",
  'c.batch_size = True': 'batch_size = True: a whole number is needed',
  'c.batch_size = 64.0': 'batch_size = 64.0: a whole number is needed',
  'c.momentum = None': 'momentum = None: a number is needed',
  "c.momentum = float('inf')": 'momentum = inf: a finite number is needed',
  'c.seed = 10**30': 'seed = 1000000',
  'c.remat = 1': 'remat = 1: True or False is needed',
  'c.data = 5': "'data' is a section",
  'c.puzzle.global_mean = (1.0, "x", 2.0)': "puzzle.global_mean = 'x': a number is needed",
  'c.puzzle.global_mean = ()': 'puzzle.global_mean = (): at least one value',
  "c.data.root = 'hdfs://host/photos'": 'data.root=hdfs://host/photos is an address',
  "c.init_from = 'hdfs://host/run'": 'init_from=hdfs://host/run is an address',
  "c.permutations.file = 'gs://bucket/x.npy'": 'permutations.file=gs://bucket/x.npy is an address',
}  # fmt: skip


@pytest.mark.parametrize('change', FIELDS)
def test_a_field_that_is_not_what_it_must_be_is_named(change):
  c = config_files.load('cfn').copy_and_resolve_references().unlock()
  with c.ignore_type():
    exec(change, {'c': c})
  with pytest.raises(ValueError) as error:
    config_files.check(c)
  assert FIELDS[change] in str(error.value)


def test_a_whole_number_stands_for_a_float():
  c = config_files.load('cfn').copy_and_resolve_references().unlock()
  with c.ignore_type():
    c.momentum = 1
  config_files.check(c)


LINES = {
  '--config.data=folder': 'did you mean --config.data.source=folder?',
  '--config.model=4': '--config.model is a section',
  '--config.data.source.x=1': "no field 'data.source.x'",
  '--config.=1': "no field ''",
  '--noconfig.data': '--config.data is a section',
  '--config.task=knn': "made for the task 'jigsaw'; take --config=knn",
  '--config.task=sing': "made for the task 'jigsaw'; take one of",
  '--config=cfn:tiny': '--config is given 2 times',
  '--config.permutations.num': 'permutations.num',
  '--config.num_steps=1e400': 'num_steps',
  '--config.puzzle.tile_scale=inf': 'puzzle.tile_scale = inf: a finite number',
  '--unknown=3': 'unknown',
  '--flagfile=/none': '/none',
  '--config.compilation_cache_dir=gs://x': 'compilation_cache_dir=gs://x is an address',
  '--workdir=hdfs://x/y': '--workdir=hdfs://x/y is an address',
  '--workdir=': '--workdir is empty',
  '--config.batch_size=a\nb': r'--config.batch_size=a\nb: ',
  '--config.weights=5': "no field 'weights'",
}


@pytest.mark.parametrize('argument', LINES)
def test_a_command_line_is_refused_in_one_line(argument, tmp_path, capsys, monkeypatch):
  from absl import flags

  values = flags.FlagValues()
  monkeypatch.setattr(command.flags, 'FLAGS', values)
  monkeypatch.setattr(sys, 'argv', ['main'])
  monkeypatch.chdir(tmp_path)
  command.define_config()
  flags.DEFINE_string('workdir', '', '', flag_values=values)
  with pytest.raises(SystemExit) as ended:
    command.parse_flags(['main', '--config=cfn', argument])
  said = capsys.readouterr().err
  assert ended.value.code == 2 and LINES[argument] in said
  assert said.count('\n') == 1
  assert not list(tmp_path.iterdir())


def test_ctrl_c_while_a_config_is_read_ends_in_one_line(tmp_path, capsys):
  from cfn_jax import benchmark

  path = write(tmp_path / 'mine.py', 'raise KeyboardInterrupt\n')
  for start in (
    lambda: command.parse_flags(['main', f'--config={path}']),
    lambda: benchmark.main(['step', f'--config={path}']),
  ):
    with pytest.raises(SystemExit) as ended:
      start()
    assert ended.value.code == 130 and capsys.readouterr().err == 'SIGINT: stopped\n'


@pytest.mark.parametrize('name', ['y' * 300 + '.py', 'file.py/x.py'])
def test_a_config_file_that_cannot_be_looked_at_is_said_not_to_be_there(name, tmp_path):
  (tmp_path / 'file.py').write_text('')
  with pytest.raises(config_files.ConfigError, match='there is no file'):
    config_files.load(str(tmp_path / name))


def test_what_draws_puzzles_names_the_configs_that_make_some(capsys):
  from cfn_jax import benchmark

  for part in (['step'], ['input', '--images=.']):
    with pytest.raises(SystemExit, match='2'):
      benchmark.main([*part, '--config=knn:small'])
    said = capsys.readouterr().err
    assert said == (
      "error: --config=knn:small is made for the task 'knn': take cfn or relative_position or "
      'rotation or alexnet_to_jigsaw\n'
    )


@pytest.mark.slow
def test_an_installed_wheel_brings_its_configs_and_templates(tmp_path):
  source, target = tmp_path / 'source', tmp_path / 'target'
  source.mkdir()
  for name in ('cfn_jax', 'configs'):
    ignored = shutil.ignore_patterns('__pycache__')
    shutil.copytree(REPOSITORY / name, source / name, ignore=ignored)
  for name in ('setup.py', 'pyproject.toml', 'README.md'):
    shutil.copy(REPOSITORY / name, source)
  pip = [sys.executable, '-m', 'pip', 'install', '-q', '--no-deps', '--no-build-isolation']
  subprocess.run([*pip, '--target', target, source], check=True, cwd=tmp_path)
  shutil.rmtree(source)
  mine = write(tmp_path / 'mine.py', 'from configs import solve\nget_config = solve.get_config\n')
  for config in ('linear_probe:small', f'{target}/cfn_jax/configs/knn.py:voc', f'{mine}:small', ''):
    arguments = [f'--config={config}'] * bool(config) + ['--config.seed=-1', '--workdir=w']
    done = subprocess.run(
      [sys.executable, '-m', 'cfn_jax.main', *arguments],
      cwd=tmp_path,
      env=os.environ | {'PYTHONPATH': str(target)},
      capture_output=True,
      text=True,
      check=False,
    )
    assert done.returncode == 2 and done.stderr.count('\n') == 1, done.stderr
    assert 'config' not in done.stderr, done.stderr  # it is read; what it asks for is refused
  (tmp_path / 'empty').mkdir()
  subprocess.run(
    [sys.executable, '-m', 'cfn_jax.visualize', 'report', '--workdir=empty'],
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': str(target)},
    check=True,
  )
  assert '</html>' in (tmp_path / 'empty' / 'report.html').read_text()
