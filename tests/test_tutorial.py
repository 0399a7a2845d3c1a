"""The tutorial's commands run in its order, on a few small images and for a few steps."""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PAGE = (REPOSITORY / 'docs' / 'tutorial.md').read_text()
STEPS = ('num_steps=4', 'batch_size=4', 'eval_batch_size=4', 'log_every_steps=2', 'warmup_steps=0')
EVERY = ('eval_every_steps=2', 'checkpoint_every_steps=2')
NARROW = ('model.width=0.1', 'model.fc6_features=16', 'model.fc7_features=16')
# What makes each config tiny.
TINY = {
  'cfn:small': (*STEPS, *EVERY, *NARROW),
  'linear_probe:small': (*STEPS, *EVERY),
  'knn:small': ('eval_batch_size=4', 'knn.k=2'),
  'voc07_detection:small': (
    *(*STEPS, *EVERY, *NARROW[1:], 'regions.per_image=8', 'proposals.keep=40'),
    *('images.scales_px=(64,)', 'test.scales_px=(64,)', 'images.longest_px=107'),
  ),
}


def _blocks(language):
  return re.findall(rf'^```{language}\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)


def _run(words, folder):
  environment = os.environ | {'PYTHONPATH': str(REPOSITORY), 'XLA_FLAGS': ''}
  done = subprocess.run(
    words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
  )
  assert done.returncode == 0, f'{shlex.join(words)}\n{done.stderr}'
  return done.stdout


def _make_images(folder):
  """Makes the three folders of the tutorial; all annotations are that of the page."""
  rng = np.random.default_rng(0)
  places = [f'photos/{number}.jpg' for number in range(20)]
  for name in ('train/red', 'train/blue', 'test/red', 'test/blue'):
    places += [f'classes/{name}/{number}.jpg' for number in range(3)]
  places += [f'objects/JPEGImages/{number}.jpg' for number in range(16)]
  (folder / 'objects' / 'Annotations').mkdir(parents=True)
  for place in places:
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.kron(rng.integers(0, 255, (12, 15, 3)), np.ones((10, 10, 1)))  # [120, 150, 3]
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    if 'objects' in place:
      annotation = folder / 'objects' / 'Annotations' / f'{path.stem}.xml'
      annotation.write_text(_blocks('xml')[0])


def _commands():
  lines = re.findall(r'^    (python -m .*)$', PAGE.replace('\\\n', ' '), re.MULTILINE)
  return [shlex.split(line) for line in lines]


@pytest.mark.slow
def test_the_commands_of_the_tutorial_run_one_after_the_other(tmp_path):
  _make_images(tmp_path)
  commands = _commands()
  assert {words[2] for words in commands} == {
    f'cfn_jax.{name}' for name in ('visualize', 'main', 'predict', 'features', 'convert')
  }
  used = set()
  for words in commands:
    named = next((word for word in words if word.startswith('--config=')), '').partition('=')[2]
    overrides = TINY.get(named, ()) if words[2] == 'cfn_jax.main' else ()
    used |= {named} if overrides else set()
    _run([sys.executable, *words[1:], *(f'--config.{field}' for field in overrides)], tmp_path)
  assert used == set(TINY)
  for made in (
    'puzzles.png',
    'runs/photos/report.html',
    'runs/probe/results.json',
    'runs/neighbours/results.json',
    'runs/objects/pretrained/detections.png',
    'found/detections.json',
    'photos.npz',
    'exported/model.pth',
  ):
    assert (tmp_path / made).exists(), made
  _run_other_pages(tmp_path / 'exported')
  vectors, network = (_run([sys.executable, '-c', code], tmp_path) for code in _blocks('python'))
  assert re.match(r'0\.jpg \(20, \d+\)', vectors)
  assert "'conv5': (1, " in network


def _run_other_pages(folder):
  """Runs what the README and docs/weights.md show about the exported folder, in it."""
  readme, weights = ((REPOSITORY / page).read_text() for page in ('README.md', 'docs/weights.md'))
  block = re.search(r'^    import alexnet.*\n(?:    .*\n)*', readme, re.MULTILINE)[0]
  for name in ('a.jpg', 'photo.jpg'):
    Image.new('RGB', (90, 70)).save(folder / name)
  for code in (textwrap.dedent(block), re.search(r'```python\n(.*?)```', weights, re.DOTALL)[1]):
    assert _run([sys.executable, '-c', f'{code}\nprint(tuple(features.shape))'], folder)[0] == '('
