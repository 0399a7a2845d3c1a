"""Laws of preparing: each image once, resized and never enlarged; a run can end at any moment."""

import errno
import hashlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import time

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image

from cfn_jax.data import (
  array_records,
  folder,
  images,
  parts,
  prepare,
  prepare_shard,
  sources,
  tar_source,
)
from cfn_jax.data.prepare import PrepareError
from cfn_jax.data.record import SourceError


def scene(height, width, seed=0):
  rng = np.random.default_rng(seed)
  coarse = rng.integers(0, 256, (5, 6, 3)).astype(np.uint8)
  return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def write(path, image, **options):
  path.parent.mkdir(parents=True, exist_ok=True)
  Image.fromarray(image).save(path, **options)


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
  """Forty small images in two class folders, and two that are none."""
  root = tmp_path_factory.mktemp('photos')
  for i in range(40):
    write(root / 'ab'[i % 2] / f'{i:02d}.jpg', scene(60 + i, 80, seed=i), quality=90)
  (root / 'a' / 'broken.jpg').write_bytes(b'no image')
  (root / 'b' / 'cut.jpg').write_bytes((root / 'b' / '01.jpg').read_bytes()[:-200])
  return root


def run(source, out, **settings):
  settings = {'short_side_px': 50, 'num_shards': 5, 'num_workers': 1, **settings}
  return prepare.prepare(source=str(source), out=str(out), **settings)


def read(out):
  """All records of a prepared folder by name, as (bytes, label)."""
  train, _ = sources.open_sources(source='records', root=str(out), val_fraction=0)
  records = [train[i] for i in range(len(train))]
  assert len({r.name for r in records}) == len(records)
  return {r.name: (r.data, r.label) for r in records}


def digests(out):
  return {
    p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in out.iterdir() if p.name != '.lock'
  }


def test_every_image_is_resized_once_with_its_aspect_and_label(photos, tmp_path):
  index = run(photos, tmp_path / 'out')
  records = read(tmp_path / 'out')
  assert index['num_records'] == len(records) == 40 and index['class_names'] == ('a', 'b')
  for name, (data, label) in records.items():
    original = np.array(Image.open(photos / name).convert('RGB'))
    image = images.decode_image(data)
    height, width = original.shape[:2]
    assert min(image.shape[:2]) == 50 and label == 'ab'.index(name[0])
    assert abs(image.shape[0] / image.shape[1] - height / width) < 0.02
    area = cv2.resize(original, image.shape[1::-1], interpolation=cv2.INTER_AREA)
    assert np.abs(area.astype(int) - image).mean() < 4


def test_the_index_holds_what_was_left_out_and_how_to_check_the_rest(photos, tmp_path):
  out = tmp_path / 'out'
  run(photos, out)
  index = json.loads((out / 'index.json').read_text())
  left_out = {line['name']: line['reason'] for line in index['skipped']}
  assert set(left_out) == {'a/broken.jpg', 'b/cut.jpg'}
  assert 'cut short' in left_out['b/cut.jpg'] and index['num_skipped'] == 2
  assert index['settings'] == {
    'short_side_px': 50,
    'quality': 95,
    'upsample': False,
    'num_shards': 5,
  }
  for shard in index['shards']:
    path = out / f'{array_records.shard_stem(shard["number"])}.array_record'
    assert hashlib.sha256(path.read_bytes()).hexdigest() == shard['sha256']
    columns = json.loads(path.with_suffix('.json').read_text())
    assert len(columns['names']) == len(columns['heights']) == shard['records']
    assert set(np.minimum(columns['heights'], columns['widths'])) == {50}


def test_small_images_are_never_enlarged_unless_asked(tmp_path):
  write(tmp_path / 'in' / 'small.png', scene(20, 30))
  write(tmp_path / 'in' / 'large.png', scene(80, 120))
  run(tmp_path / 'in', tmp_path / 'out')
  sizes = {n: images.decode_image(d).shape[:2] for n, (d, _) in read(tmp_path / 'out').items()}
  assert sizes == {'small.png': (20, 30), 'large.png': (50, 75)}
  run(tmp_path / 'in', tmp_path / 'up', upsample=True)
  sizes = {n: images.decode_image(d).shape[:2] for n, (d, _) in read(tmp_path / 'up').items()}
  assert sizes == {'small.png': (50, 75), 'large.png': (50, 75)}
  run(tmp_path / 'in', tmp_path / 'as_is', short_side_px=0)
  sizes = {n: images.decode_image(d).shape[:2] for n, (d, _) in read(tmp_path / 'as_is').items()}
  assert sizes == {'small.png': (20, 30), 'large.png': (80, 120)}


def test_a_jpeg_that_is_small_enough_keeps_its_bytes_unless_it_lies_on_its_side(tmp_path):
  exif = Image.Exif()
  exif[274] = 6
  write(tmp_path / 'in' / 'plain.jpg', scene(40, 60), quality=80)
  write(tmp_path / 'in' / 'turned.jpg', scene(40, 60), quality=80, exif=exif)
  cmyk = Image.fromarray(scene(40, 60)).convert('CMYK')
  cmyk.save(tmp_path / 'in' / 'cmyk.jpg')
  run(tmp_path / 'in', tmp_path / 'out')
  records = read(tmp_path / 'out')
  assert records['plain.jpg'][0] == (tmp_path / 'in' / 'plain.jpg').read_bytes()
  assert simplejpeg.decode_jpeg(records['turned.jpg'][0]).shape == (60, 40, 3)
  for name in ('turned.jpg', 'cmyk.jpg'):
    image = images.decode_image((tmp_path / 'in' / name).read_bytes())
    assert simplejpeg.decode_jpeg_header(records[name][0])[2] == 'YCbCr'
    assert np.abs(simplejpeg.decode_jpeg(records[name][0]).astype(int) - image).mean() < 3


def test_grey_images_stay_exactly_grey(tmp_path):
  write(tmp_path / 'in' / 'grey.png', scene(80, 90)[:, :, 0])
  write(tmp_path / 'in' / 'grey_in_colour.png', scene(80, 90)[:, :, :1].repeat(3, axis=2))
  run(tmp_path / 'in', tmp_path / 'out')
  for data, _ in read(tmp_path / 'out').values():
    image = images.decode_image(data)
    assert (image == image[:, :, :1]).all() and simplejpeg.decode_jpeg_header(data)[2] == 'Gray'


def test_extreme_shapes_are_packed_or_left_out_with_a_reason(tmp_path):
  write(tmp_path / 'in' / 'wide.png', scene(3, 4000))
  write(tmp_path / 'in' / 'normal.png', scene(60, 60))
  run(tmp_path / 'in', tmp_path / 'out')
  assert images.decode_image(read(tmp_path / 'out')['wide.png'][0]).shape == (3, 4000, 3)
  index = run(tmp_path / 'in', tmp_path / 'up', short_side_px=100, upsample=True)
  assert [line['name'] for line in index['skipped']] == ['wide.png']
  assert 'too long for a JPEG' in index['skipped'][0]['reason']


def test_an_image_that_would_grow_too_long_is_refused_before_it_does(tmp_path, monkeypatch):
  def grow(*_):
    raise AssertionError('resized')

  monkeypatch.setattr(images.Image.Image, 'resize', grow)
  write(tmp_path / 'in' / 'wide.png', scene(3, 4000))
  write(tmp_path / 'in' / 'normal.png', scene(60, 60))
  index = run(tmp_path / 'in', tmp_path / 'up', short_side_px=60, upsample=True)
  assert [line['name'] for line in index['skipped']] == ['wide.png']
  assert '80000 x 60 px is too long for a JPEG' in index['skipped'][0]['reason']


def test_the_result_does_not_depend_on_the_number_of_processes(photos, tmp_path):
  run(photos, tmp_path / 'one', num_workers=1)
  run(photos, tmp_path / 'two', num_workers=2)
  assert digests(tmp_path / 'one') == digests(tmp_path / 'two')


def test_finished_shards_are_not_made_again_and_missing_ones_are(photos, tmp_path, monkeypatch):
  out = tmp_path / 'out'
  run(photos, out)
  whole = digests(out)
  made = []
  real = prepare_shard.make_shard

  def spy(*arguments):
    made.append(arguments[-2])
    return real(*arguments)

  monkeypatch.setattr(prepare_shard, 'make_shard', spy)
  run(photos, out)
  assert made == []
  (out / 'shard-00001.json').unlink()
  path = out / 'shard-00003.array_record'
  path.write_bytes(path.read_bytes()[:-1])
  run(photos, out)
  assert made == [1, 3] and digests(out) == whole


def test_a_shard_of_the_right_length_but_other_content_is_found_and_made_again(
  photos, tmp_path, capsys
):
  out = tmp_path / 'out'
  run(photos, out)
  whole = digests(out)
  path = out / 'shard-00002.array_record'
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)
  run(photos, out)
  assert digests(out) != whole and 'warning' not in capsys.readouterr().err
  run(photos, out, verify=True)
  assert digests(out) == whole
  (line,) = [each for each in capsys.readouterr().err.splitlines() if 'warning' in each]
  assert line.startswith('warning: shard 2 (') and 'SHA-256 differs' in line
  run(photos, out, verify=True)
  assert 'warning' not in capsys.readouterr().err


@pytest.mark.parametrize('kind', ['folder', 'tar'])
def test_a_fault_that_may_pass_ends_the_run_and_leaves_nothing_out(tmp_path, monkeypatch, kind):
  files = {f'{i}.jpg': jpeg(i) for i in range(6)}
  source = tmp_path / 'in'
  if kind == 'tar':
    source.write_bytes(make_tar(files))
  else:
    source.mkdir()
    for name, data in files.items():
      (source / name).write_bytes(data)
  count = 0

  def fail(*arguments):
    nonlocal count
    count += 1
    if count == 4:
      raise OSError(errno.EIO, 'Input/output error')
    return open(*arguments)  # noqa: PTH123

  module = {'folder': folder, 'tar': tar_source}[kind]
  monkeypatch.setattr(module, 'open', fail, raising=False)
  with pytest.raises(SourceError, match=r'in.*3\.jpg.*Input/output error') as caught:
    run(source, tmp_path / 'out', num_shards=3)
  assert 'cannot write' not in str(caught.value)
  assert run(source, tmp_path / 'out', num_shards=3)['num_records'] == 6


def test_running_out_of_memory_ends_the_run_and_leaves_nothing_out(photos, tmp_path, monkeypatch):
  def exhaust(*_, **__):
    raise MemoryError

  with monkeypatch.context() as patch:
    patch.setattr(images, '_decode_jpeg', exhaust)
    with pytest.raises(PrepareError, match='not enough memory'):
      run(photos, tmp_path / 'out')
  assert run(photos, tmp_path / 'out')['num_records'] == 40


@pytest.mark.parametrize('kind', ['folder', 'tar'])
def test_other_pictures_of_the_same_names_are_not_mixed_in(tmp_path, kind):
  places = []
  for which in range(2):
    files = {f'{i}.jpg': jpeg(10 * which + i) for i in range(6)}
    path = tmp_path / f'in{which}'
    if kind == 'tar':
      path.write_bytes(make_tar(files))
    else:
      path.mkdir()
      for name, data in files.items():
        (path / name).write_bytes(data)
        os.utime(path / name, (1000 + which, 1000 + which))
    places.append(path)
  run(places[0], tmp_path / 'out', num_shards=3)
  (tmp_path / 'out' / 'shard-00001.json').unlink()
  # A tar's sizes are part of what its images are; a folder's are compared beside its names.
  reason = {
    'folder': 'other sizes or modification times',
    'tar': 'images of other names, labels or sizes',
  }
  with pytest.raises(PrepareError, match=reason[kind]):
    run(places[1], tmp_path / 'out', num_shards=3)
  assert run(places[0], tmp_path / 'out', num_shards=3)['num_records'] == 6


@pytest.mark.parametrize('moment', [0, 3, 11, 25, 41])
def test_a_run_that_ends_anywhere_goes_on_to_the_same_result(photos, tmp_path, monkeypatch, moment):
  run(photos, tmp_path / 'whole')
  seen = []
  real = prepare_shard.shrink

  def interrupt(*arguments):
    seen.append(arguments)
    if len(seen) == moment + 1:
      raise KeyboardInterrupt
    return real(*arguments)

  with monkeypatch.context() as patch:
    patch.setattr(prepare_shard, 'shrink', interrupt)
    with pytest.raises(KeyboardInterrupt):
      run(photos, tmp_path / 'out')
  assert not (tmp_path / 'out' / 'index.json').exists()
  assert not list((tmp_path / 'out').glob('*.tmp'))
  with pytest.raises(SourceError, match='is not finished'):
    read(tmp_path / 'out')
  run(photos, tmp_path / 'out')
  assert digests(tmp_path / 'out') == digests(tmp_path / 'whole')


def start(source, out, *more):
  command = [sys.executable, '-m', 'cfn_jax.prepare', f'--source={source}', f'--out={out}', *more]
  return subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
  )


def many_photos(root, count=400):
  data = simplejpeg.encode_jpeg(scene(400, 500), quality=95)
  root.mkdir(parents=True, exist_ok=True)
  for i in range(count):
    (root / f'{i:04d}.jpg').write_bytes(data)


def children_of(pid):
  found = []
  for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
    try:
      if int(path.read_text().rpartition(')')[2].split()[1]) == pid:
        found.append(int(path.parent.name))
    except OSError:
      pass
  return found


def alive(pid):
  try:
    return pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
  except OSError:
    return False


def holds_back_interrupts(pid):
  """Whether Ctrl-C, which reaches every process of a terminal, is left to the parent."""
  status = pathlib.Path(f'/proc/{pid}/status').read_text().splitlines()
  blocked = next(line.split()[1] for line in status if line.startswith('SigBlk'))
  return bool(int(blocked, 16) >> (signal.SIGINT - 1) & 1)


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path('/proc/self/stat').exists(), reason='looks into /proc')
@pytest.mark.parametrize('end', ['Ctrl-C', 'killed', 'worker killed'])
def test_a_command_that_ends_early_leaves_no_process_and_can_be_given_again(tmp_path, end):
  many_photos(tmp_path / 'in')
  options = ('--shards=40', '--workers=2', '--short-side=64')
  process = start(tmp_path / 'in', tmp_path / 'out', *options)
  deadline = time.time() + 60
  while not list((tmp_path / 'out').glob('shard-*.json')) and time.time() < deadline:
    time.sleep(0.01)
  process.send_signal(signal.SIGSTOP)  # or it may be done before this test gets its turn again
  children = children_of(process.pid)
  workers = [
    c for c in children if b'spawn_main' in pathlib.Path(f'/proc/{c}/cmdline').read_bytes()
  ]
  assert len(workers) == 2 and all(map(holds_back_interrupts, workers))
  if end == 'worker killed':
    os.kill(workers[0], signal.SIGKILL)
  process.send_signal(signal.SIGCONT)
  if end == 'Ctrl-C':
    os.killpg(process.pid, signal.SIGINT)  # a terminal's reaches the workers too
  elif end == 'killed':
    process.kill()
  _, err = process.communicate(timeout=30)
  code, told = {
    'Ctrl-C': (130, 'prepare: interrupted; the same command resumes'),
    'killed': (-signal.SIGKILL, ''),
    'worker killed': (2, 'error: there is not enough memory, or a worker process was killed;'),
  }[end]
  assert process.returncode == code and 'Traceback' not in err
  assert err.splitlines()[-1].startswith(told)
  while any(map(alive, children)) and time.time() < deadline:
    time.sleep(0.05)
  assert not any(map(alive, children))
  assert end == 'killed' or not list((tmp_path / 'out').glob('*.tmp'))
  done = len(list((tmp_path / 'out').glob('shard-*.json')))
  assert 0 < done < 40
  again = start(tmp_path / 'in', tmp_path / 'out', *options)
  out, err = again.communicate(timeout=60)
  assert again.returncode == 0 and out.startswith('400 images'), err
  assert len(read(tmp_path / 'out')) == 400 and not list((tmp_path / 'out').glob('*.tmp'))


@pytest.mark.slow
def test_a_storm_of_kills_at_any_moment_changes_nothing_and_leaves_no_process(tmp_path):
  """Some of them fall into the start of the workers, whose parent is then gone before they look."""
  many_photos(tmp_path / 'in', 200)
  options = ('--shards=25', '--workers=2', '--short-side=64')
  assert start(tmp_path / 'in', tmp_path / 'calm', *options).wait(60) == 0
  rng = np.random.default_rng(7)
  for _ in range(12):
    process = start(tmp_path / 'in', tmp_path / 'storm', *options)
    time.sleep(rng.uniform(0.1, 1.0))
    children = children_of(process.pid)
    process.send_signal(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
    process.communicate(timeout=30)  # ends when no process holds its output any more
    deadline = time.time() + 10
    while any(map(alive, children)) and time.time() < deadline:
      time.sleep(0.05)
    assert not any(map(alive, children))
  process = start(tmp_path / 'in', tmp_path / 'storm', *options)
  assert process.wait(60) == 0
  assert digests(tmp_path / 'storm') == digests(tmp_path / 'calm')


def test_other_settings_or_another_source_are_refused(photos, tmp_path):
  run(photos, tmp_path / 'out')
  with pytest.raises(PrepareError, match=r'begun with short_side_px = 50\. Give'):
    run(photos, tmp_path / 'out', short_side_px=64)
  with pytest.raises(PrepareError, match=r'begun with quality = 95\.'):
    run(photos, tmp_path / 'out', quality=80)
  with pytest.raises(PrepareError, match='num_images'):
    run(photos / 'a', tmp_path / 'out')
  for i in range(42):
    write(tmp_path / 'others' / f'{i}.jpg', scene(9, 9))
  with pytest.raises(PrepareError, match='images of other names'):
    run(tmp_path / 'others', tmp_path / 'out')
  assert len(read(tmp_path / 'out')) == 40


def test_a_folder_with_other_files_is_left_alone(photos, tmp_path):
  (tmp_path / 'thesis.txt').write_text('years of work')
  with pytest.raises(PrepareError, match=r'holds other files \(such as thesis\.txt\)'):
    run(photos, tmp_path)
  with pytest.raises(PrepareError, match='is a file'):
    run(photos, tmp_path / 'thesis.txt')
  assert sorted(p.name for p in tmp_path.iterdir()) == ['thesis.txt']


def test_two_runs_do_not_write_to_one_folder(photos, tmp_path):
  (tmp_path / 'out').mkdir()
  with parts.lock(tmp_path / 'out'), pytest.raises(PrepareError, match='another run'):
    run(photos, tmp_path / 'out')


@pytest.mark.parametrize(
  'settings', [{'quality': 0}, {'quality': 101}, {'short_side_px': -1}, {'num_workers': -1}]
)
def test_settings_out_of_range_are_refused(photos, tmp_path, settings):
  with pytest.raises(PrepareError, match=r'quality is 1\.\.100'):
    run(photos, tmp_path / 'out', **settings)
  assert not (tmp_path / 'out').exists()


def test_images_that_can_all_not_be_decoded_are_an_error(tmp_path):
  (tmp_path / 'in').mkdir()
  (tmp_path / 'in' / 'a.jpg').write_bytes(b'nothing')
  with pytest.raises(PrepareError, match=r'none of the 1 files .*a\.jpg'):
    run(tmp_path / 'in', tmp_path / 'out')


def test_a_shard_without_one_good_image_is_no_obstacle(tmp_path):
  for i in range(8):
    (tmp_path / 'in').mkdir(exist_ok=True)
    write(tmp_path / 'in' / f'{i}.png', scene(60, 60)) if i < 6 else (
      tmp_path / 'in' / f'{i}.png'
    ).write_bytes(b'x')
  index = run(tmp_path / 'in', tmp_path / 'out', num_shards=4)
  assert [s['records'] for s in index['shards']] == [2, 2, 2, 0]
  assert len(read(tmp_path / 'out')) == 6


@pytest.mark.parametrize('workers', [1, 2])
def test_a_full_disk_is_a_short_error_and_keeps_what_is_finished(photos, tmp_path, workers):
  """A file size limit stands in for the full disk: both end a write half way."""
  many_photos(tmp_path / 'in', 40)
  noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3)).astype(np.uint8)
  for i in range(30, 40):
    (tmp_path / 'in' / f'{i:04d}.jpg').write_bytes(simplejpeg.encode_jpeg(noise, quality=100))
  code = (
    'import resource, signal, sys\n'
    'from cfn_jax import prepare\n'
    'if __name__ == "__main__":\n'
    '  signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n'
    '  resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000))\n'
    '  sys.exit(prepare.main(sys.argv[1:]))\n'
  )
  (tmp_path / 'small_disk.py').write_text(code)
  arguments = [f'--source={tmp_path / "in"}', f'--out={tmp_path / "out"}', '--shards=4']
  arguments += ['--short-side=0', f'--workers={workers}']
  result = subprocess.run(
    [sys.executable, str(tmp_path / 'small_disk.py'), *arguments],
    capture_output=True,
    text=True,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
  )
  assert result.returncode == 2, result.stderr
  assert result.stderr.splitlines()[-1] == (
    f'error: cannot write {tmp_path / "out"}: File too large; finished shards are valid; '
    'when that is mended, the same command resumes'
  )
  assert 'Traceback' not in result.stderr
  finished = len(list((tmp_path / 'out').glob('shard-*.json')))
  assert finished == 3 if workers == 1 else finished in (1, 2, 3)  # another may be under way
  assert not list((tmp_path / 'out').glob('*.tmp'))
  assert run(tmp_path / 'in', tmp_path / 'out', short_side_px=0, num_shards=4)['num_records'] == 40


# Tar files.


def jpeg(seed):
  return simplejpeg.encode_jpeg(scene(60, 70, seed))


def make_tar(files):
  return pack(files.items())


def pack(members):
  """Packs pairs of a name and its data; a name may come twice."""
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode='w') as tar:
    for name, data in members:
      member = tarfile.TarInfo(name)
      member.size = len(data)
      tar.addfile(member, io.BytesIO(data))
  return buffer.getvalue()


def test_a_tar_of_class_tars_is_read_without_unpacking(tmp_path):
  classes = {
    f'{name}.tar': make_tar({f'{name}_{i}.JPEG': jpeg(i + n) for i in range(3)})
    for n, name in enumerate(('n02', 'n01'))
  }
  path = tmp_path / 'train.tar'
  path.write_bytes(make_tar(classes))
  index = run(path, tmp_path / 'out', short_side_px=0)
  records = read(tmp_path / 'out')
  assert index['class_names'] == ('n01', 'n02') and len(records) == 6
  assert records['n02/n02_2.JPEG'] == (jpeg(2), 1) and records['n01/n01_0.JPEG'] == (jpeg(1), 0)
  assert sorted(p.name for p in tmp_path.iterdir()) == ['out', 'train.tar']


def test_a_tar_gives_what_its_unpacked_folder_gives(photos, tmp_path):
  with tarfile.open(tmp_path / 'photos.tar', 'w') as tar:
    tar.add(photos, arcname='some/top')
  run(photos, tmp_path / 'from_folder')
  run(tmp_path / 'photos.tar', tmp_path / 'from_tar')
  assert read(tmp_path / 'from_tar') == read(tmp_path / 'from_folder')


def test_tar_members_that_are_no_images_are_left_alone(tmp_path):
  long_name = 'd/' + 'x' * 150 + '.jpg'
  files = {
    './d/1.jpg': jpeg(0),
    'd/._1.jpg': b'fork',
    '__MACOSX/d/1.jpg': b'fork',
    'd/readme.txt': b'text',
    long_name: jpeg(2),
    'd/2.jpg': b'older',
  }
  path = tmp_path / 'x.tar'
  path.write_bytes(make_tar(files))
  with tarfile.open(path, 'a') as tar:  # a later member replaces one of its name
    member = tarfile.TarInfo('d/2.jpg')
    member.size = len(jpeg(3))
    tar.addfile(member, io.BytesIO(jpeg(3)))
    link = tarfile.TarInfo('d/3.jpg')
    link.type, link.linkname = tarfile.LNKTYPE, 'd/2.jpg'
    tar.addfile(link)
  source = tar_source.open_tar(path)
  assert contents(source) == {
    '1.jpg': jpeg(0),
    '2.jpg': jpeg(3),
    '3.jpg': jpeg(3),
    long_name.removeprefix('d/'): jpeg(2),
  }
  reason = f'a later one of this name in {path} replaces it'
  assert source.left_out == [{'name': 'd/2.jpg', 'reason': reason}]


def contents(source):
  return {r.name: r.data for r in map(source.__getitem__, range(len(source)))}


B_TAR = ('b.tar', {'0.jpg': 1})
DOUBLES = {
  'a folder and a tar': ([('b/0.jpg', 0), ('c/0.jpg', 2), B_TAR], {'b/0.jpg': 0, 'c/0.jpg': 2}),
  'a tar and a folder': ([B_TAR, ('b/0.jpg', 0), ('c/0.jpg', 2)], {'b/0.jpg': 1, 'c/0.jpg': 2}),
  'two tars': ([B_TAR, ('b.TAR', {'0.jpg': 2, '1.jpg': 3})], {'0.jpg': 1, '1.jpg': 3}),
  'in two spellings': ([('./a/0.jpg', 0), ('a//0.jpg', 1), ('c/0.jpg', 2)],
                       {'a/0.jpg': 1, 'c/0.jpg': 2}),
  'a tar twice': ([('b.tar', {'1.jpg': 0}), B_TAR], {'0.jpg': 1}),
  'a tar of tars twice': ([('o.tar', {'b.tar': {'1.jpg': 0}}), ('o.tar', {'b.tar': {'0.jpg': 1}})],
                          {'0.jpg': 1}),
}  # fmt: skip


@pytest.mark.parametrize('case', DOUBLES)
def test_of_two_images_of_one_name_the_other_is_listed(tmp_path, case):
  def fill(held):
    return (
      jpeg(held) if isinstance(held, int) else pack((n, fill(each)) for n, each in held.items())
    )

  members, kept = DOUBLES[case]
  (tmp_path / 'x.tar').write_bytes(pack((name, fill(held)) for name, held in members))
  source = tar_source.open_tar(tmp_path / 'x.tar')
  assert contents(source) == {name: jpeg(level) for name, level in kept.items()}
  [line] = source.left_out
  assert str(tmp_path / 'x.tar') in line['reason'] and line['name'].endswith('.jpg')
  assert run(tmp_path / 'x.tar', tmp_path / 'out')['num_skipped'] == 1


def test_a_link_in_an_inner_tar_hides_no_image_of_its_name(tmp_path):
  stream = io.BytesIO()
  with tarfile.open(fileobj=stream, mode='w') as tar:
    link = tarfile.TarInfo('0.jpg')
    link.type, link.linkname = tarfile.SYMTYPE, 'x'
    tar.addfile(link)
  (tmp_path / 'x.tar').write_bytes(pack([('b/0.jpg', jpeg(0)), ('b.tar', stream.getvalue())]))
  source = tar_source.open_tar(tmp_path / 'x.tar')
  assert contents(source) == {'0.jpg': jpeg(0)}
  assert [line['name'] for line in source.left_out] == ['b/0.jpg']


def test_a_hidden_tar_beside_class_tars_is_passed_over(tmp_path):
  files = {'._n01.tar': b'a fork', 'n01.tar': make_tar({'1.jpg': jpeg(0), '._1.jpg': b'a fork'})}
  (tmp_path / 'x.tar').write_bytes(make_tar({**files, '__MACOSX/n01.tar': b'a fork'}))
  source = tar_source.open_tar(tmp_path / 'x.tar')
  assert list(source.names) == ['1.jpg'] and source.left_out == []


def test_tar_members_that_are_not_read_are_listed_with_a_reason(tmp_path):
  inner = make_tar({'1.jpg': jpeg(0), '../2.jpg': jpeg(1)})
  files = {'a/1.jpg': jpeg(2), '../../3.jpg': jpeg(3), '../read.me': b'x', 'n01.tar': inner}
  (tmp_path / 'x.tar').write_bytes(make_tar(files))
  with tarfile.open(tmp_path / 'x.tar', 'a') as tar:
    for name in ('a/4.jpg', 'folder', 'n02.tar', 'read.me', '._5.jpg'):
      link = tarfile.TarInfo(name)
      link.type, link.linkname = tarfile.SYMTYPE, 'a/1.jpg'
      tar.addfile(link)
  index = run(tmp_path / 'x.tar', tmp_path / 'out')
  assert index['num_records'] == 2 and index['num_skipped'] == 5
  reasons = {line['name']: line['reason'] for line in index['skipped']}
  assert reasons == {
    **{name: 'its name leads out of the tar file' for name in ('../../3.jpg', 'n01/../2.jpg')},
    **{n: 'it is a symbolic link (to a/1.jpg)' for n in ('a/4.jpg', 'folder', 'n02.tar')},
  }


def test_tars_that_are_cut_compressed_or_none_are_explained(tmp_path):
  whole = make_tar({f'{i}.jpg': jpeg(i) for i in range(4)})
  end = len(whole.rstrip(b'\0')) // 512 * 512 + 512
  cases = [
    (whole[: end // 2], 'cut short'),
    (whole[:end], 'cut short'),
    (make_tar({'inner.tar': whole[: end // 2]}), r'inner\.tar is cut short'),
    (b'\x1f\x8b\x08' + bytes(600), 'is gzip-compressed data; decompress it first'),
    (b'no tar at all' * 100, 'not a readable tar file'),
    (make_tar({'a.txt': b'x'}), 'no images in'),
  ]
  for data, reason in cases:
    (tmp_path / 'x.tar').write_bytes(data)
    with pytest.raises(SourceError, match=reason):
      run(tmp_path / 'x.tar', tmp_path / 'out')


def test_a_real_tar_is_read(shared_data, tmp_path):
  source = tar_source.open_tar(shared_data('flowers17.tar'))
  assert len(source) == 1292 and source.class_names == ('test', 'train')
  assert images.decode_image(source[1291].data).shape[2] == 3


def test_an_out_that_cannot_be_looked_at_is_refused_in_a_line(photos):
  with pytest.raises(prepare.PrepareError, match=r'cannot write y+: File name too long'):
    prepare.prepare(source=str(photos), out='y' * 300)


def test_enlarging_to_no_size_is_refused(photos):
  with pytest.raises(prepare.PrepareError, match='--upsample has no effect with --short-side=0'):
    prepare.prepare(source=str(photos), out='x', short_side_px=0, upsample=True)


def test_shards_are_small_enough_for_a_bar_and_few_enough_to_stay_open(tmp_path, monkeypatch):
  def stop(source, out, settings, *_):
    raise KeyError(settings['num_shards'])

  monkeypatch.setattr(prepare, '_run', stop)
  assert prepare._IMAGES_PER_SHARD == 256
  for count, each, shards in ((1, 256, 1), (256, 256, 1), (257, 256, 2), (300, 1, 256)):
    monkeypatch.setattr(prepare, '_IMAGES_PER_SHARD', each)
    root = tmp_path / f'{count}'
    root.mkdir()
    for i in range(count):
      (root / f'{i}.jpg').touch()
    with pytest.raises(KeyError, match=f'^{shards}$'):
      run(root, tmp_path / f'out{count}', num_shards=0)
