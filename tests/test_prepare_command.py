"""The prepare command: what it prints, and how it refuses bad input."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image


def prepare(*arguments, **environment):
  return subprocess.run(
    [sys.executable, '-m', 'cfn_jax.prepare', *map(str, arguments)],
    capture_output=True,
    text=True,
    cwd=pathlib.Path(__file__).resolve().parent.parent,
    env={**os.environ, **environment},
  )


@pytest.fixture
def photos(tmp_path):
  root = tmp_path / 'photos'
  root.mkdir()
  rng = np.random.default_rng(0)
  for i in range(6):
    Image.fromarray(rng.integers(0, 256, (90, 70, 3)).astype(np.uint8)).save(root / f'{i}.jpg')
  (root / 'text.jpg').write_text('this is no picture')
  return root


def test_it_prepares_a_folder_and_says_what_it_did(photos, tmp_path):
  result = prepare(f'--source={photos}', f'--out={tmp_path / "out"}/', '--short-side=32')
  assert result.returncode == 0, result.stderr
  first, last = result.stdout.splitlines()
  assert first.startswith('left out: text.jpg: ')
  assert last.startswith('6 images, ') and last.endswith('1 files left out')
  assert '7/7' in result.stderr  # the progress bar
  again = prepare(f'--source={photos}', f'--out={tmp_path / "out"}', '--short-side=32')
  assert again.returncode == 0 and again.stdout.splitlines()[-1].startswith('6 images, ')


@pytest.mark.parametrize('encoding', ['utf-8:strict', 'ascii:strict'])
def test_a_name_that_the_output_cannot_show_is_printed_with_escapes(photos, tmp_path, encoding):
  (photos / os.fsdecode(b'\xff.jpg')).write_text('this is no picture')
  out = f'--out={tmp_path / "out"}'
  result = prepare(f'--source={photos}', out, PYTHONIOENCODING=encoding)
  assert result.returncode == 0, result.stderr
  assert r'left out: \udcff.jpg: ' in result.stdout and 'Traceback' not in result.stderr


def test_verify_makes_a_damaged_shard_again_and_names_it(photos, tmp_path):
  arguments = (f'--source={photos}', f'--out={tmp_path / "out"}', '--verify')
  assert prepare(*arguments).returncode == 0
  path = tmp_path / 'out' / 'shard-00000.array_record'
  whole = path.read_bytes()
  path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
  result = prepare(*arguments)
  assert result.returncode == 0 and path.read_bytes() == whole
  assert 'shard 0 (' in result.stderr and 'made again' in result.stderr


@pytest.mark.parametrize(
  ('arguments', 'reason'),
  [
    (('--source=/no/such/folder', '--out=OUT'), 'there is no folder /no/such/folder'),
    (('--source=PHOTOS/0.jpg', '--out=OUT'), 'not a readable tar file'),
    (('--source=EMPTY', '--out=OUT'), 'is empty'),
    (('--source=PHOTOS', '--out=PHOTOS'), 'holds other files'),
    (('--source=PHOTOS', '--out=PHOTOS/0.jpg'), 'is a file'),
    (('--source=PHOTOS', '--out=PHOTOS/0.jpg/x'), 'cannot write'),
    (('--source=PHOTOS', '--out=OUT', '--quality=0'), 'quality is 1..100'),
    (('--source=PHOTOS', '--out=OUT', '--quality=high'), 'invalid int value'),
    (('--source=PHOTOS',), '--out'),
    (('--source=PHOTOS', '--out=OUT', '--short-sid=9'), 'unrecognized'),
  ],
)
def test_bad_input_ends_in_one_clear_line_and_status_2(photos, tmp_path, arguments, reason):
  (tmp_path / 'empty').mkdir()
  places = {'PHOTOS': photos, 'OUT': tmp_path / 'out', 'EMPTY': tmp_path / 'empty'}
  for name, path in places.items():
    arguments = [argument.replace(name, str(path)) for argument in arguments]
  result = prepare(*arguments)
  assert result.returncode == 2 and result.stdout == ''
  assert reason in result.stderr.splitlines()[-1] and 'Traceback' not in result.stderr
  assert not (tmp_path / 'out').exists()
