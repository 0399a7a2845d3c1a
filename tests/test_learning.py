"""That it learns: the README's first run, as it stands."""

import math

import pytest
import test_main

ADAMW = (
  *('--config.solver=adamw', '--config.learning_rate=0.001', '--config.weight_decay=0.05'),
  '--config.bias_rate=1',
)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('config', 'figure', 'least'),
  [
    ('relative_position:tiny', 'val_accuracy_low', 1 / 8),
    # Five photographs teach little of what is upright.
    pytest.param('rotation:tiny', 'val_accuracy', 0.26, marks=pytest.mark.long),
    pytest.param('cfn:plus_tiny', 'val_accuracy_low', 1 / 24, marks=pytest.mark.long),
    pytest.param(('cfn:tiny', *ADAMW), 'val_accuracy_low', 1 / 24, marks=pytest.mark.long),
  ],
)
def test_rivals_and_solvers_beat_a_guess_on_photographs_that_they_never_saw(
  config, figure, least, tmp_path
):
  config, *fields = [config] if isinstance(config, str) else config
  fields += ['--config.num_steps=100', f'--workdir={tmp_path}']
  result = test_main.run(f'--config={config}', *fields, timeout=1200)
  assert result.returncode == 0, result.stderr
  rows = [row for row in test_main.read_rows(tmp_path) if 'val_accuracy' in row]
  best = max(rows, key=lambda row: row['val_accuracy'])
  assert best[figure] > least, best


@pytest.mark.slow
def test_tiny_learns_to_solve_puzzles_of_photographs_that_it_never_saw(tmp_path):
  workdir = tmp_path / 'tiny'
  result = test_main.run('--config=configs/cfn.py:tiny', f'--workdir={workdir}', timeout=1200)
  assert result.returncode == 0, result.stderr
  rows = test_main.read_rows(workdir)
  evaluated = [row for row in rows if 'val_accuracy' in row]
  last, best = evaluated[-1], max(row['val_accuracy'] for row in evaluated)
  assert last['val_count'] >= 500
  assert last['val_accuracy'] >= max(3 / 24, best - 0.02)  # it ends before it overfits
  assert last['val_loss'] < math.log(24) - 0.05
  assert last['train_loss'] < math.log(24) - 0.05
