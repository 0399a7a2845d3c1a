"""Loader processes: what is refused before they start, and bad images from end to end."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import test_main
from PIL import Image

from cfn_jax.data import bad_images, images, loading, pipeline, sources

UNGUARDED = """
from cfn_jax.data import loading

def make(number):
  return number

print(list(loading.run_over(range(4), make, loading.Loading(num_workers=1), bytes_each=8)))
"""


@pytest.mark.slow
def test_a_program_without_a_main_guard_is_told_so(tmp_path):
  script = tmp_path / 'script.py'
  script.write_text(UNGUARDED)
  done = subprocess.run(
    [sys.executable, script],
    env=os.environ | {'PYTHONPATH': str(test_main.REPOSITORY)},
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert done.returncode
  assert "put what it does under  if __name__ == '__main__':" in done.stderr


def test_batches_that_do_not_fit_into_shared_memory_are_refused_with_the_way_out(monkeypatch):
  usage = loading.shutil.disk_usage('/')
  monkeypatch.setattr(loading.shutil, 'disk_usage', lambda _: usage._replace(free=64 << 20))
  loading.check_shared_memory(2, 2, 7 << 20)  # (2 * 4 + 1) * 7 = 63 MB
  with pytest.raises(loading.LoadingError) as refused:
    loading.check_shared_memory(2, 2, 8 << 20)
  for part in ('64 MB free', '72 MB', 'data.num_workers', '--shm-size'):
    assert part in str(refused.value)


LOADING = """
import sys
from cfn_jax.data import loading
import numpy as np

def make(number):
  return np.full(1 << 20, number, np.uint8)

if __name__ == '__main__':
  made = loading.run_over(range(10**6), make, loading.Loading(num_workers=2), bytes_each=1 << 20)
  for array in made:
    print(array[0], flush=True)
"""


def _processes(mark):
  """Returns the processes that were started with this mark in their environment."""
  found = set()
  for folder in pathlib.Path('/proc').iterdir():
    try:
      if folder.name.isdigit() and mark.encode() in (folder / 'environ').read_bytes():
        found.add(int(folder.name))
    except OSError:
      continue
  return found


@pytest.mark.slow
def test_a_parent_killed_at_any_moment_leaves_no_process_and_no_shared_memory(tmp_path):
  script = tmp_path / 'script.py'
  script.write_text(LOADING)
  before = set(loading.SHARED_MEMORY.iterdir())
  rng = np.random.default_rng(0)
  for attempt, wait in enumerate(rng.uniform(0.3, 4.0, size=16)):
    mark = f'CFN_TEST_LOADING={tmp_path.name}-{attempt}.'
    name, value = mark.split('=')
    process = subprocess.Popen(
      [sys.executable, script],
      env=os.environ | {'PYTHONPATH': str(test_main.REPOSITORY), name: value},
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    time.sleep(wait)
    process.send_signal(signal.SIGKILL if attempt % 2 else signal.SIGTERM)
    process.wait()
    deadline = time.monotonic() + 10
    while _processes(mark):
      assert time.monotonic() < deadline, f'{_processes(mark)} outlived their parent'
      time.sleep(0.1)
  deadline = time.monotonic() + 10
  while left := set(loading.SHARED_MEMORY.iterdir()) - before:
    assert time.monotonic() < deadline, f'{left} are left in shared memory'
    time.sleep(0.1)


@pytest.mark.parametrize(
  ('field', 'value'), [('num_workers', -1), ('num_threads', 0), ('read_ahead_batches', 0)]
)
def test_numbers_of_workers_that_cannot_be_are_refused(field, value):
  with pytest.raises(ValueError, match=f'data.{field} = {value}: at least'):
    loading.Loading(**{field: value})


@pytest.fixture
def photographs(tmp_path):
  folder = tmp_path / 'photographs'
  folder.mkdir()
  rng = np.random.default_rng(0)
  for number in range(40):
    pixels = rng.integers(256, size=(140, 150, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / f'{number:02d}.jpg', quality=80)
  whole = (folder / '07.jpg').read_bytes()
  (folder / '07.jpg').write_bytes(whole[: len(whole) // 2])
  (folder / '21.jpg').write_bytes(b'')
  return folder


@pytest.mark.slow
@pytest.mark.parametrize('workers', [0, 2])
def test_bad_images_stop_the_run_with_name_and_reason(photographs, tmp_path, workers):
  result = _run(photographs, tmp_path, f'--config.data.num_workers={workers}')
  assert result.returncode == 2
  assert 'Traceback' not in result.stderr
  message = result.stderr.split('error: ')[-1]
  assert '07.jpg: the JPEG is cut short' in message or '21.jpg' in message


@pytest.mark.slow
def test_bad_images_are_skipped_and_listed_once(photographs, tmp_path):
  result = _run(photographs, tmp_path, '--config.data.on_bad_image=skip', '--config.num_steps=12')
  assert result.returncode == 0, result.stderr
  lines = (tmp_path / 'workdir' / 'bad_images.tsv').read_text().splitlines()
  named = [str(photographs / name) for name in ('07.jpg', '21.jpg')]
  assert sorted(line.split('\t')[0] for line in lines) == named
  assert 'cut short' in ''.join(lines)
  rows = test_main.read_rows(tmp_path / 'workdir')
  counted = {row['val_count'] for row in rows if 'val_count' in row}
  held_out = [name for name in ('07.jpg', '21.jpg') if name in result.stderr]
  assert len(counted) == 1 and held_out


def test_bad_images_of_one_name_in_two_folders_are_told_apart(tmp_path, caplog):
  readers = []
  for folder in ('train', 'val'):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / '1.jpg').write_bytes(b'no image')
  for source in sources.open_sources(
    source='folder', root=str(tmp_path / 'train'), val_root=str(tmp_path / 'val')
  ):
    readers.append(pipeline.Reader(source, 0))
    with pytest.raises(images.BadImage) as caught:
      readers[-1].evaluate(0)
    assert str(caught.value).startswith(f'{source.root}/1.jpg: it is damaged')
  for reader in readers:
    listing = bad_images.BadImages(reader)
    listing.open(tmp_path)
    listing(0)
  lines = (tmp_path / 'bad_images.tsv').read_text().splitlines()
  assert [line.split('\t')[0] for line in lines] == [
    str(tmp_path / folder / '1.jpg') for folder in ('train', 'val')
  ]
  assert caplog.text.count('1 so far of its set') == 2


def test_a_name_of_any_bytes_is_listed_once_in_one_line(tmp_path):
  class OneBad(sources.Source):
    class_names, fingerprint, description = (), '', ''

    def __len__(self):
      return 1

    def __getitem__(self, index):
      raise images.BadImage('odd\tname\n\udcff.jpg', 'it is empty')

  for _ in range(2):  # the second start finds it listed
    listing = bad_images.BadImages(pipeline.Reader(OneBad(), 0))
    listing.open(tmp_path)
    listing(0)
    listing = bad_images.BadImages(pipeline.Reader(OneBad(), 0), host=2)
    listing.open(tmp_path)
    listing(0)
  line = b'odd\\tname\\n\\udcff.jpg\tit is empty\n'
  assert (tmp_path / 'bad_images.tsv').read_bytes() == line
  assert (tmp_path / 'bad_images.host2.tsv').read_bytes() == line  # each host lists its own


def _run(photographs, tmp_path, *arguments):
  return test_main.run(
    *test_main.SMALL,
    '--config.data.source=folder',
    f'--config.data.root={photographs}',
    f'--workdir={tmp_path / "workdir"}',
    *arguments,
  )
