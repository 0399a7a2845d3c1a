"""`python -m cfn_jax.benchmark dense`, and dense steps compiled for a machine that is not here."""

import json

import pytest
from conftest import REPOSITORY

from cfn_jax import benchmark
from cfn_jax.timing import compile

# A small variant, smaller still, in a file of its own: the command line takes no other fields.
SMALL = """
import runpy
def get_config(variant=''):
  c = runpy.run_path({path!r})['get_config']('small').unlock()
  c.model.width, c.model.fc6_features, c.model.fc7_features = 0.1, 16, 16
  if 'regions' in c:
    c.images.scales_px = c.test.scales_px = (64,)
    c.images.longest_px = 107
  return c
"""
# Of each config: what is counted besides images, how much of it in training and test with 50
# regions, and the canvas: 375 x 500 px as they are, or with a short side of 64 px.
COUNTED = {
  'voc07_detection': ('regions', 64, 50, [64, 85]),
  'voc12_segmentation': ('pixels', 375 * 500, 375 * 500, [375, 500]),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', COUNTED)
def test_the_line_holds_figures_that_agree_with_each_other(name, tmp_path, capsys):
  path = tmp_path / 'small.py'
  path.write_text(SMALL.format(path=f'{REPOSITORY}/configs/{name}.py'))
  options = ['--batch=8', '--steps=1', '--warmup=0']
  if name == 'voc07_detection':
    options.append('--regions=50')
  else:
    with pytest.raises(SystemExit):
      benchmark.main(['dense', f'--config={path}', '--regions=50'])
    assert '--regions=50: it is for a detection' in capsys.readouterr().err
  benchmark.main(['dense', f'--config={path}', *options])
  (line,) = capsys.readouterr().out.splitlines()
  found = json.loads(line)
  unit, trained, tested, canvas = COUNTED[name]
  assert found['canvas'] == canvas and found['batch'] == 8 and found['config'] == str(path)
  images = found['train_images_per_second']
  assert images == pytest.approx(8 / found['seconds_per_step'])
  assert found[f'train_{unit}_per_second'] == pytest.approx(images * trained)
  per_image = found[f'test_{unit}_per_second'] / found['test_images_per_second']
  assert per_image == pytest.approx(tested)
  assert min(found['compile_seconds'].values()) > 0 and found['peak_memory_mb'] > 100


def test_a_config_that_is_not_dense_is_refused(capsys):
  with pytest.raises(SystemExit):
    benchmark.main(['dense', '--config=cfn:tiny'])
  assert 'voc07_detection or voc12_segmentation' in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize('name', COUNTED)
def test_the_small_steps_compile_for_a_gpu(name, capsys):
  try:
    compile.check_compiler('cuda')
  except ValueError as error:
    pytest.skip(str(error))
  benchmark.main(['compile', f'--config={name}:small', '--target=h100:1'])
  found = json.loads(capsys.readouterr().out)
  assert found['fits'] and not found['collectives']
  assert 0 < found['temporary_bytes'] < 1e9
