"""The main command end to end, as a user runs it: files, figures, resuming, bad input."""

import json
import os
import pathlib
import subprocess
import sys

import command_server
import labelled_cases
import numpy as np
import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = sorted((REPOSITORY / 'configs').glob('*.py'))
SMALL = (
  '--config=configs/cfn.py:tiny',
  '--config.num_steps=6',
  '--config.batch_size=8',
  '--config.eval_batch_size=16',
  '--config.log_every_steps=2',
  '--config.eval_every_steps=3',
  '--config.checkpoint_every_steps=3',
  '--config.schedule=step',
  '--config.warmup_steps=0',
  '--config.permutations.num=8',
  '--config.model.permutations_per_pass=8',
  '--config.data.crops_per_photograph=10',
  '--config.data.val_crops_per_photograph=10',
  '--config.report=False',
  '--config.model.width=0.1',
  '--config.model.fc6_features=16',
  '--config.model.fc7_features=32',
)
ROW = {
  'step',
  'train_loss',
  'train_accuracy',
  'learning_rate',
  'puzzles_per_second',
  'input_wait_fraction',
}


def without_idle(arguments):
  """Leaves out what SMALL sets and other arguments leave without effect: that is an error."""
  said = ' '.join(arguments)
  idle = ['crops_per_photograph'] if '--config.data.source=' in said else []
  idle += ['permutations.num='] if '--config.permutations.file=' in said else []
  return [each for each in arguments if each not in SMALL or not any(name in each for name in idle)]


def run(*arguments, module='cfn_jax.main', timeout=300, devices=1, cwd=REPOSITORY):
  """Runs a command line in a process of its own."""
  arguments = without_idle(arguments)
  environment = os.environ | {
    'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}',
    'PYTHONPATH': str(REPOSITORY),
  }
  return subprocess.run(
    [sys.executable, '-m', module, *arguments],
    cwd=cwd,
    env=environment,
    capture_output=True,
    text=True,
    timeout=timeout,
    check=False,
  )


def read_rows(workdir):
  return [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]


def without_timings(rows):
  return [
    {k: v for k, v in row.items() if 'per_second' not in k and k != 'input_wait_fraction'}
    for row in rows
  ]


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('run') / 'workdir'
  result = run(*SMALL, '--config.report=True', f'--workdir={workdir}')
  assert result.returncode == 0, result.stderr
  return workdir, result


def test_a_run_leaves_its_files(finished):
  workdir, _ = finished
  names = {path.name for path in workdir.iterdir()}
  pictures = {'puzzles.png', 'curves.png', 'answers.png', 'filters.png'}
  assert {'config.json', 'permutations.npy', 'metrics.jsonl', 'checkpoints'} | pictures <= names
  assert any(name.startswith('events.out.tfevents') for name in names)
  assert json.loads((workdir / 'config.json').read_text())['permutations']['num'] == 8
  assert np.load(workdir / 'permutations.npy').shape == (8, 9)
  for name in pictures:
    assert (workdir / name).read_bytes()[:4] == b'\x89PNG'
  begun, ended = map(json.loads, (workdir / 'starts.jsonl').read_text().splitlines())
  assert begun['command'].endswith(f'--workdir={workdir}') and ended['outcome'] == 'finished'
  report = (workdir / 'report.html').read_text()
  assert '>finished<' in report and begun['commit'] in report and report.count('<img') >= 4


def test_metrics_hold_each_logged_step_once(finished):
  workdir, _ = finished
  rows = read_rows(workdir)
  assert [row['step'] for row in rows] == [2, 3, 4, 6]
  for row in rows:
    if row['step'] != 3:
      assert set(row) >= ROW
    if row['step'] in (3, 6):
      assert set(row) >= {'val_loss', 'val_accuracy', 'val_accuracy_low', 'val_accuracy_high'}
      assert row['val_count'] == 20 * 8  # 8 puzzles of each image share a pass of the trunk
      assert row['val_accuracy_low'] <= row['val_accuracy'] <= row['val_accuracy_high']


def test_the_summary_says_what_runs(finished):
  _, result = finished
  for word in ('devices', '50 crops', '20 crops', 'mean 9.000', 'minimum 9', 'parameters'):
    assert word in result.stderr, word
  assert 'accuracy 12.50%, loss ln 8 = 2.079' in result.stderr
  assert 'finished at step 6' in result.stderr
  assert len(result.stderr.splitlines()) < 30
  assert not result.stdout


def test_the_same_command_again_says_finished(finished):
  workdir, _ = finished
  before = (workdir / 'metrics.jsonl').read_bytes()
  result = run(*SMALL, f'--workdir={workdir}/')  # a trailing slash is the same folder
  assert result.returncode == 0
  assert 'the run is finished' in result.stderr
  assert (workdir / 'metrics.jsonl').read_bytes() == before


def test_another_setting_in_the_same_workdir_is_refused_with_both_values(finished):
  workdir, _ = finished
  changes = ('--config.num_steps=9', '--config.seed=1', '--config.permutations.seed=3')
  result = run(*SMALL, *changes, f'--workdir={workdir}')
  assert result.returncode == 2
  assert 'seed: 0 then, 1 now' in result.stderr
  assert 'permutation set' in result.stderr
  assert 'Traceback' not in result.stderr


def test_latest_and_best_checkpoints_are_kept_apart(tmp_path):
  from cfn_jax.training import checkpoint

  state = {'w': np.zeros(3, np.float32)}
  with checkpoint.Checkpoints(tmp_path, keep_latest=2, keep_best=1, best='score') as saver:
    for step, score in ((100, 0.9), (200, 0.8), (300, 0.7), (400, 0.6), (500, 0.5)):
      saver.save(step, state, {'fingerprint': {}, 'config': {}}, {'score': score})
  kept = sorted(int(path.name) for path in (tmp_path / 'checkpoints').iterdir())
  assert kept == [100, 400, 500]
  with checkpoint.Checkpoints(tmp_path, keep_latest=2, keep_best=1, best='score') as saver:
    assert (saver.latest(), saver.best()) == (500, 100)


BAD = {
  '--config.batch_siz=64': "did you mean 'batch_size'",
  '--config.puzzle.tyle_px=1': "did you mean 'puzzle.tile_px'",
  '--config.batch_size=many': 'many',
  '--config=configs/cfn.py:tinny': "variant 'tinny' is unknown: one of fast, release",
  '--config=configs/nothing.py': "there is no file 'configs/nothing.py'; name one of alexnet",
  '--config.data.source=folder --config.data.root=/does/not/exist': '/does/not/exist',
  '--config.data.source=folder --config.data.root=ROOT/EMPTY': 'ROOT/EMPTY',
  '--config.data.source=floder': 'folder',
  '--config.batch_size=6 DEVICES=4': 'batch_size = 6 cannot be split over 4 devices: take 4 or 8',
  '--config.puzzle.tile_px=60': 'puzzle.tile_px = 60 is larger than its cell: at most',
  '--config.puzzle.tile_px=8': '8 px at stride 2',
  '--config.puzzle.crop_px=100': 'puzzle.cell_px = 42 need a crop of 126 px',
  '--config.permutations.num=1': 'permutations.num=1: must be at least 2',
  '--config.permutations.file=/does/not/exist.npy': '/does/not/exist.npy',
  '--config.model.name=resnet': "model.name = 'resnet' is unknown: one of cfn, stacked",
  '--config.model.init=caffe': "puzzle.tile_scale = 1.0 does not go with model.init = 'caffe'",
  '--config.num_steps=0': 'num_steps = 0: at least 1',
  '--config.learning_rate=nan': 'learning_rate = nan',
  '--config.model.dropout=1.5': 'model.dropout = 1.5: at most 0.99999',
  '--config.model.stride=0': 'model.stride = 0: at least 1',
  '--config.data.val_max_images=-1': 'data.val_max_images = -1: at least 0',
  'config.batch_size=64': "'config.batch_size=64' is no flag",
  '--config.schedule=linear': "schedule = 'linear' is unknown: one of step, cosine",
  '--config.solver=adam': "solver = 'adam' is unknown: one of caffe, optax, adamw",
  '--config.compute_dtype=float16': "compute_dtype = 'float16': one of float32, bfloat16",
  '--config configs/cfn.py:tiny --config.num_steps=0': 'num_steps = 0: at least 1',
  '--workdir=ROOT/FILE': '--workdir=ROOT/FILE cannot be made a folder',
}


VISUALIZE = {
  'puzzles --config=knn:small': "--config=knn:small is made for the task 'knn': take cfn or "
  'relative_position or rotation or alexnet_to_jigsaw',
  'puzzles --config=cfn:tiny --out=/proc/x.png': '--out=/proc: this folder cannot be written',
  'puzzles --config=cfn:tiny --out=': '--out is empty',
  'puzles --config=cfn:tiny': "invalid choice: 'puzles'",
  'shortcuts --config=rotation': "--config=rotation is made for the task 'rotation': take cfn",
  'shortcuts --config=cfn:tiny --count=0': '--count=0: from 1 to 1000000 puzzles',
}


@pytest.fixture(scope='module')
def refused(tmp_path_factory):
  """Returns how each command line of BAD and VISUALIZE ended, and the folder that stands in it."""
  root = tmp_path_factory.mktemp('refused')
  (root / 'EMPTY').mkdir()
  (root / 'FILE').write_text('')
  cases = []
  for arguments in BAD:
    given = arguments.replace('ROOT', str(root)).split()
    devices = next((each[8:] for each in given if each.startswith('DEVICES=')), 1)
    given = [each for each in given if not each.startswith('DEVICES=')]
    base = SMALL[1:] if given[0].partition('=')[0] == '--config' else SMALL
    environment = {'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}'}
    given = without_idle([*base, f'--workdir={root / "workdir"}', *given])
    cases.append({'module': 'main', 'arguments': given, 'environment': environment})
  cases += [{'module': 'visualize', 'arguments': arguments.split()} for arguments in VISUALIZE]
  cases = [case | {'cwd': str(REPOSITORY)} for case in cases]
  results = command_server.answer(cases, tmp_path_factory.mktemp('server'))
  assert not (root / 'workdir' / 'checkpoints').exists()
  return dict(zip([*BAD, *VISUALIZE], results, strict=True)), root


@pytest.mark.parametrize('arguments', [*BAD, *VISUALIZE])
def test_bad_input_ends_in_a_short_message(arguments, refused):
  results, root = refused
  found = results[arguments]
  assert found['code'] == 2, found
  assert found['seconds'] < 30
  message = [line for line in found['stderr'].splitlines() if 'error' in line][-1]
  assert (BAD | VISUALIZE)[arguments].replace('ROOT', str(root)) in message
  assert 'Traceback' not in found['stderr']
  assert len(found['stderr'].split('error: ')[-1].splitlines()) <= 5
  if arguments in VISUALIZE:
    assert len(found['stderr'].splitlines()) <= 2


@pytest.mark.parametrize('platform', ['cuda', 'gpuu'])
def test_a_platform_that_is_not_there_is_named_with_those_that_are(platform, tmp_path, monkeypatch):
  import jax.extend.backend

  if platform in jax.extend.backend.backends():
    pytest.skip('it is there')
  monkeypatch.setenv('JAX_PLATFORMS', platform)
  result = run(*SMALL, f'--workdir={tmp_path / "workdir"}')
  assert result.returncode == 2 and result.stderr.count('\n') == 1, result.stderr
  assert f"JAX_PLATFORMS='{platform}' cannot be had" in result.stderr
  assert 'there is cpu' in result.stderr
  assert ("pip install -e '.[cuda12]'" in result.stderr) == (platform == 'cuda')


@pytest.mark.parametrize(
  ('variable', 'module', 'arguments'),
  [
    ('JAX_ENABLE_X64=maybe', 'main', SMALL),
    ('JAX_ENABLE_X64=1', 'main', SMALL),
    ('JAX_NUM_CPU_DEVICES=abc', 'visualize', ('puzzles', SMALL[0])),
    ('JAX_LOG_COMPILES=7', 'convert', ('--from=x.npz', '--out=OUT')),
    ('JAX_TRACEBACK_FILTERING=zz', 'benchmark', ('step',)),
    ('JAX_PLATFORM_NAME=gpuu', 'main', SMALL),
    ('MPLBACKEND=nosuch', 'visualize', ('puzzles', SMALL[0])),
    ('MPLBACKEND=nosuch', 'permutations', ('--num=9', '--plot=OUT/x.png')),
  ],
)
def test_a_wrong_variable_of_the_environment_is_named(
  variable, module, arguments, tmp_path, monkeypatch
):
  name, _, value = variable.partition('=')
  monkeypatch.setenv(name, value)
  given = [each.replace('OUT', str(tmp_path)) for each in arguments]
  given += [f'--workdir={tmp_path}'] if module == 'main' else []
  result = run(*given, module=f'cfn_jax.{module}')
  assert result.returncode == 2 and result.stderr.count('\n') == 1, result.stderr
  assert result.stderr.startswith(f"error: {name}='{value}'") and 'unset' in result.stderr
  assert not list(tmp_path.iterdir())


def test_a_full_disk_is_named_where_the_system_names_nothing(tmp_path, monkeypatch, capsys):
  from cfn_jax import command, main, terminal
  from cfn_jax.training import loop, settings

  def fill(*_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(loop, 'fit', fill)
  monkeypatch.setattr(settings, 'check', lambda config: None)
  with pytest.raises(SystemExit), terminal.short_errors():
    main.run(command.load_config('cfn:tiny'), tmp_path)
  assert capsys.readouterr().err.endswith(f'error: {tmp_path}: No space left on device\n')


LONG = (pytest.mark.slow, pytest.mark.long)
NAMES = ('price_$1_$x^{1', 'caf\udce9', 'a[b]:cat:', '猫', 'a\nb')


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(' '.join(NAMES), marks=pytest.mark.slow),
    *(pytest.param(name, marks=LONG) for name in NAMES),
  ],
)
def test_images_of_any_name_are_trained_on_and_drawn(name, tmp_path):
  from PIL import Image

  folder = tmp_path / 'photographs'
  folder.mkdir()
  rng = np.random.default_rng(0)
  for number in range(8):
    pixels = rng.integers(0, 256, (130, 130, 3), np.uint8)
    Image.fromarray(pixels).save(folder / f'{name}_{number}.png')
  fields = ('--config.data.source=folder', f'--config.data.root={folder}', '--config.num_steps=2')
  data = ('--config.data.val_fraction=0.5', '--config.batch_size=2', '--config.eval_batch_size=2')
  result = run(*SMALL, *fields, *data, f'--workdir={tmp_path / "workdir"}')
  assert result.returncode == 0, result.stderr
  assert 'warning' not in result.stderr.lower() and 'Traceback' not in result.stderr
  assert (tmp_path / 'workdir' / 'puzzles.png').exists()


@pytest.mark.slow
def test_pictures_that_a_finished_run_lacks_are_drawn(finished):
  workdir, _ = finished
  before = (workdir / 'answers.png').read_bytes()
  (workdir / 'answers.png').unlink()
  assert run(*SMALL, f'--workdir={workdir}').returncode == 0
  assert (workdir / 'answers.png').read_bytes() == before


def test_the_paper_config_says_where_its_data_set_is_missing(tmp_path):
  result = run(f'--workdir={tmp_path / "workdir"}', f'--config.data.root={tmp_path}')
  assert result.returncode == 2
  assert 'imagenet2012' in result.stderr and 'prepare' in result.stderr
  assert 'Traceback' not in result.stderr


@pytest.mark.long
@pytest.mark.slow
def test_fewer_images_than_a_batch_train_with_a_note(tmp_path):
  arguments = ('--config.data.crops_per_photograph=1', '--config.num_steps=2')
  result = run(*SMALL, *arguments, f'--workdir={tmp_path / "workdir"}')
  assert result.returncode == 0, result.stderr
  assert '5 images fill no batch of 8' in result.stderr


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(('grid', 'cells'), [(2, 63), (4, 31)])
def test_other_grids_train_and_draw(grid, cells, tmp_path):
  workdir = tmp_path / 'workdir'
  arguments = (f'--config.puzzle.grid={grid}', f'--config.puzzle.cell_px={cells}')
  tile = ('--config.puzzle.tile_px=28', '--config.num_steps=2')
  result = run(*SMALL, *arguments, *tile, f'--workdir={workdir}')
  assert result.returncode == 0, result.stderr
  assert f'{grid} x {grid} tiles of 28 px' in result.stderr
  assert np.load(workdir / 'permutations.npy').shape == (8, grid**2)
  assert (workdir / 'answers.png').exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_set_from_a_file_is_the_one_that_trains(tmp_path):
  from cfn_jax.jigsaw.permutation_sets import permutations

  given = permutations.make_permutations(8, method='code')
  permutations.save_permutations(tmp_path / 'set.csv', given)
  workdir = tmp_path / 'workdir'
  file = f'--config.permutations.file={tmp_path / "set.csv"}'
  result = run(*SMALL, file, '--config.num_steps=2', f'--workdir={workdir}')
  assert result.returncode == 0, result.stderr
  assert np.array_equal(np.load(workdir / 'permutations.npy'), given)


@pytest.mark.slow
def test_a_diverging_run_stops_with_step_records_and_picture(tmp_path):
  workdir = tmp_path / 'workdir'
  result = run(*SMALL, '--config.learning_rate=1e20', f'--workdir={workdir}')
  assert result.returncode == 2
  assert 'not finite at step' in result.stderr and '8 records' in result.stderr
  assert (workdir / 'bad_batch.png').exists()
  listed = (workdir / 'bad_batch.txt').read_text().splitlines()
  assert [line.partition('\t')[0] for line in listed] == [str(row) for row in range(8)]
  assert all(line.partition('\t')[2] for line in listed)
  assert not list((workdir / 'checkpoints').glob('3*'))


def test_visualize_draws_a_configs_puzzles_without_training(tmp_path):
  out = tmp_path / 'sheet.png'
  arguments = ('puzzles', '--config=configs/cfn.py:tiny', f'--out={out}')
  assert run(*arguments, module='cfn_jax.visualize').returncode == 0
  assert out.read_bytes()[:4] == b'\x89PNG'


@pytest.mark.slow
def test_shortcuts_are_a_table_a_picture_and_its_figures(tmp_path):
  out = tmp_path / 'cues.png'
  fields = ('--config.data.crops_per_photograph=10', '--config.permutations.num=4')
  fields += ('--config.model.permutations_per_pass=4', '--count=60', f'--out={out}')
  result = run('shortcuts', '--config=cfn:tiny', *fields, module='cfn_jax.visualize')
  assert result.returncode == 0, result.stderr
  assert 'edges' in result.stdout and f'{out} and cues.json' in result.stdout
  assert out.read_bytes()[:4] == b'\x89PNG'
  found = json.loads(out.with_suffix('.json').read_text())
  assert found['config'] == 'cfn:tiny' and found['asked_puzzles'] == 60
  assert found['chance_accuracy'] == 0.25 and 0 < found['puzzles'] <= 60
  assert {each['verdict'] for each in found['cues'].values()} <= {'closed', 'narrowed', 'open'}
  # The same puzzles, drawn the same, are solved the same.
  again = run('shortcuts', '--config=cfn:tiny', *fields, module='cfn_jax.visualize')
  assert again.stdout == result.stdout


@pytest.mark.slow
def test_too_little_memory_is_told_with_the_ways_out(tmp_path):
  # The maps of the step ask for blocks of many GB, which the limit refuses.
  fields = ('--config.model.width=4', '--config.batch_size=2048', '--config.num_steps=1')
  command = [
    'bash',
    '-c',
    'ulimit -v 9000000; exec "$@"',
    '-',
    sys.executable,
    '-m',
    'cfn_jax.main',
  ]
  result = subprocess.run(
    [*command, *SMALL, *fields, f'--workdir={tmp_path / "workdir"}'],
    cwd=REPOSITORY,
    env=os.environ | {'XLA_FLAGS': '', 'PYTHONPATH': str(REPOSITORY)},
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert result.returncode == 2, result.stderr
  assert 'ran out of memory' in result.stderr and 'batch_size (now 2048)' in result.stderr
  assert 'accumulate_steps' in result.stderr and 'remat (now False): True' in result.stderr


@pytest.mark.parametrize('task', ['knn', 'frozen_layers'])
def test_evaluations_that_run_out_of_memory_tell_the_ways_out_too(
  task, tmp_path, monkeypatch, capsys
):
  import importlib

  import jax

  from cfn_jax import command, main, terminal

  def execute(workdir):
    raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: no room for features')

  config = command.load_config(f'{REPOSITORY}/configs/{task}.py')
  module = importlib.import_module(f'cfn_jax.evaluation.{task}')
  monkeypatch.setattr(module, 'open_task', lambda config: execute)
  with pytest.raises(SystemExit) as ended, terminal.short_errors():
    main.run(config, tmp_path)
  assert ended.value.code == 2
  said = capsys.readouterr().err
  assert 'ran out of memory (RESOURCE_EXHAUSTED: no room for features)' in said
  assert f'eval_batch_size (now {config.eval_batch_size}): smaller' in said


@pytest.mark.slow
def test_a_trace_of_some_steps_is_written_on_demand(tmp_path):
  workdir = tmp_path / 'workdir'
  fields = ('--config.profile_steps=2', '--config.profile_start_step=1')
  result = run(*SMALL, *fields, f'--workdir={workdir}')
  assert result.returncode == 0, result.stderr
  (trace,) = (workdir / 'profile').glob('plugins/profile/*/*.xplane.pb')
  assert trace.stat().st_size > 10_000


@pytest.mark.slow
def test_a_second_run_takes_its_programs_from_the_compilation_cache(tmp_path):
  cache = tmp_path / 'programs'
  for name in ('first', 'second'):
    fields = (f'--config.compilation_cache_dir={cache}', '--config.num_steps=1')
    result = run(*SMALL, *fields, f'--workdir={tmp_path / name}')
    assert result.returncode == 0, result.stderr
    entries = {path.name for path in cache.iterdir() if not path.name.endswith('-atime')}
    if name == 'first':
      first = entries
  assert any('step' in name for name in first) and entries == first


def test_every_task_of_a_config_is_known_and_its_module_opens_it():
  import importlib

  from cfn_jax import command, main

  named = {command.load_config(str(path)).task for path in CONFIGS if path.stem != 'training'}
  assert named == set(main.TASKS)
  for module in main.TASKS.values():
    assert callable(importlib.import_module(module).open_task)


@pytest.mark.parametrize('variant', ['', ':small'])
@pytest.mark.parametrize('name', [path.stem for path in CONFIGS if path.stem != 'training'])
def test_the_devices_start_for_every_config(name, variant, monkeypatch):
  import jax

  from cfn_jax import command, main

  monkeypatch.setattr(main.host_memory, 'keep_freed', lambda: True)  # for this process, for good
  config, before = command.load_config(f'{name}{variant}'), jax.config.jax_default_matmul_precision
  try:
    main.start_devices(config)
    asked = config.matmul_precision
    assert jax.config.jax_default_matmul_precision == (None if asked == 'default' else asked)
  finally:
    jax.config.update('jax_default_matmul_precision', before)


@pytest.mark.slow
def test_a_config_that_trains_nothing_prints_its_table(tmp_path):
  root = labelled_cases.make_class_folders(tmp_path / 'images')
  data = (f'--config.data.root={root}/train', f'--config.data.val_root={root}/test')
  config = ('--config=configs/knn.py:small', '--config.weights=random')
  layers = "--config.layers=('pool5',)"  # random weights have no fc6
  result = run(*config, layers, *data, f'--workdir={tmp_path / "workdir"}')
  assert result.returncode == 0, result.stderr
  assert '15 test images' in result.stdout and 'pool5' in result.stdout
  (row,) = (line.split() for line in result.stdout.splitlines() if 'top-1' in line)
  assert row[:2] == ['random,', 'top-1'] and 0 <= float(row[2]) <= 100


def test_pretraining_imports_no_evaluation_and_no_solver_of_assignments():
  code = (
    'import sys, cfn_jax.main; '
    'print([n for n in sys.modules if "linear_probe" in n or n == "scipy.optimize"])'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], cwd=REPOSITORY, capture_output=True, text=True, check=True
  )
  assert done.stdout == '[]\n'
