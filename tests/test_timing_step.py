"""`python -m cfn_jax.benchmark step`: its line of JSON, and the arithmetic it counts."""

import json

import jax
import pytest
from conftest import REPOSITORY

from cfn_jax import benchmark, command
from cfn_jax.timing import step as timing_step
from cfn_jax.timing import steps

# The tiny network, smaller still, in a file of its own: the command line takes no other fields.
SMALL = """
import runpy
def get_config(variant=''):
  c = runpy.run_path({path!r})['get_config']('tiny').unlock()
  c.permutations.num, c.model.permutations_per_pass = 8, 2
  c.model.width, c.model.fc6_features, c.model.fc7_features = 0.1, 16, 32
  c.puzzle.crop_px, c.puzzle.cell_px, c.puzzle.tile_px = 75, 25, 25
  return c
"""


@pytest.fixture
def small(tmp_path):
  path = tmp_path / 'small.py'
  path.write_text(SMALL.format(path=f'{REPOSITORY}/configs/cfn.py'))
  return path


@pytest.mark.slow
def test_the_line_holds_figures_that_agree_with_each_other(small, capsys):
  options = ('--batch=8', '--steps=2', '--warmup=1', '--dtype=bfloat16', '--remat')
  benchmark.main(['step', f'--config={small}', *options])
  (line,) = capsys.readouterr().out.splitlines()
  found = json.loads(line)
  assert set(found) == {
    'puzzles_per_second',
    'images_per_second',
    'seconds_per_step',
    'compile_seconds',
    'flops_per_puzzle',
    'flops_per_second',
    'share_of_peak',
    'peak_memory_mb',
    'device',
    'batch',
    'dtype',
    'precision',
    'remat',
    'accumulate_steps',
    'config',
  }
  told = [found[name] for name in ('batch', 'dtype', 'remat', 'accumulate_steps', 'config')]
  assert told == [8, 'bfloat16', True, 1, str(small)]
  images, puzzles = found['images_per_second'], found['puzzles_per_second']
  assert images == pytest.approx(8 / found['seconds_per_step'])
  assert puzzles == pytest.approx(2 * images)  # two puzzles share a pass of the trunk
  assert found['flops_per_second'] == pytest.approx(found['flops_per_puzzle'] * puzzles)
  assert min(found['compile_seconds'], found['peak_memory_mb'], images) > 0
  assert found['share_of_peak'] == 0  # of a CPU it is not known
  assert found['device'] == f'8 x {jax.devices()[0].device_kind}'


def count(puzzles):
  config = command.load_config(f'{REPOSITORY}/configs/cfn.py')
  with config.unlocked():
    config.model.permutations_per_pass = puzzles
  return steps.count_flops(steps.make_pretext(config))


@pytest.fixture(scope='module')
def counted():
  return {puzzles: count(puzzles) for puzzles in (1, 8)}


def test_the_arithmetic_of_the_papers_network_is_what_its_layers_take_by_hand(counted):
  """Tiles of 64 px at stride 2: maps of 27, 13 and 6 px a side; two groups in conv2, 4 and 5."""
  conv1 = 27**2 * 11 * 11 * 3 * 96
  others = 13**2 * 5 * 5 * 48 * 256 + 6**2 * 9 * (256 * 384 + 192 * 384 + 192 * 256)
  fc6, fc7, fc8 = 3 * 3 * 256 * 512, 9 * 512 * 4096, 4096 * 1000
  # Forward, and twice that backward: to the input, which conv1 does not need, and to the kernel.
  by_hand = {k: 2 * (9 * (2 * conv1 + 3 * (others + fc6)) + 3 * k * (fc7 + fc8)) for k in (1, 8)}
  assert counted == by_hand
  assert counted[1] == pytest.approx(7.79e9, rel=1e-3)


def test_eight_puzzles_a_pass_cost_an_eighth_more_than_one(counted):
  assert counted[8] / counted[1] == pytest.approx(1.124, abs=5e-4)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    (('--steps=0',), '--steps=0: at least 1'),
    (('--batch=12',), '--batch = 12 cannot be split over 8 devices: take 8 or 16'),
    (('--precision=half',), "matmul_precision = 'half' is unknown"),
  ],
)
def test_options_that_no_step_can_have_are_refused(options, message, small, capsys):
  with pytest.raises(SystemExit, match='2'):
    benchmark.main(['step', f'--config={small}', *options])
  assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_step_that_runs_out_of_memory_names_the_ways_out(small, capsys, monkeypatch):
  def refuse(*_):
    raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: no room')

  monkeypatch.setattr(timing_step.jax, 'block_until_ready', refuse)
  with pytest.raises(SystemExit, match='2'):
    benchmark.main(['step', f'--config={small}', '--batch=8'])
  said = capsys.readouterr().err
  assert said.startswith('error: a device ran out of memory') and 'batch_size (now 8)' in said
