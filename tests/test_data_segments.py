"""Proposals that are made here: the search over segments, and the writer that keeps its parts."""

import functools
import os
import pathlib
import signal
import subprocess
import sys
import xml.etree.ElementTree

import cv2
import numpy as np
import pytest
from PIL import Image

from cfn_jax.data import boxes as geometry
from cfn_jax.data import grid, images, prepare_proposals, proposals, segments
from cfn_jax.data.images import BadImage
from cfn_jax.data.parts import PrepareError
from cfn_jax.data.record import SourceError
from cfn_jax.errors import CfnError

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PHOTOGRAPHS = 8  # of the shared ones


def scene(height=96, width=128, seed=0):
  """A grey picture with noise, a red and a green box on it; and where these are."""
  rng = np.random.default_rng(seed)
  image = np.full((height, width, 3), 128) + rng.integers(-3, 4, (height, width, 3))
  places = [[10, 12, 49, 60], [70, 30, 118, 79]]
  for (x1, y1, x2, y2), colour in zip(places, ([220, 30, 30], [30, 200, 40])):
    image[y1 : y2 + 1, x1 : x2 + 1] = colour
  return image.astype(np.uint8), np.array(places)


@pytest.fixture(scope='session')
def voc(shared_data, tmp_path_factory):
  """The first photographs of a VOC list with their objects: image, boxes from 0."""
  archive = shared_data('voc2008_160.tar')
  root = tmp_path_factory.mktemp('voc')
  stems = [f'2008_{n:06d}' for n in (2, 3, 7, 8, 9, 15, 16, 21, 23, 26)][:PHOTOGRAPHS]
  wanted = [f'JPEGImages/{stem}.jpg' for stem in stems]
  wanted += [f'Annotations/{stem}.xml' for stem in stems]
  paths = [f'voc2008_160/{each}' for each in wanted]
  subprocess.run(['tar', 'xf', str(archive), '-C', str(root), *paths], check=True)
  root = root / 'voc2008_160'
  lists = root / 'ImageSets' / 'Main'
  lists.mkdir(parents=True)
  (lists / 'some.txt').write_text(''.join(f'{stem}\n' for stem in stems))
  return root


def read(root):
  """Returns each image with the boxes of its objects, from 0."""
  for path in sorted((root / 'JPEGImages').iterdir()):
    tree = xml.etree.ElementTree.parse(root / 'Annotations' / f'{path.stem}.xml')
    ends = ('xmin', 'ymin', 'xmax', 'ymax')
    objects = [[float(box.findtext(end)) - 1 for end in ends] for box in tree.iter('bndbox')]
    yield images.decode_image(path.read_bytes()), np.array(objects)


def recall(find, photographs):
  best = [geometry.overlaps(objects, find(image)).max(axis=1) for image, objects in photographs]
  return float((np.concatenate(best) >= 0.5).mean())


def test_boxes_are_in_the_image_and_different_and_the_same_each_time():
  image, _ = scene()
  found = segments.find_boxes(image)
  np.testing.assert_array_equal(found, segments.find_boxes(image))
  assert found.dtype == np.float32 and len(np.unique(found, axis=0)) == len(found) > 5
  np.testing.assert_array_equal(found[0], [0, 0, 127, 95])
  np.testing.assert_array_equal(found, geometry.clip(found, 96, 128))
  assert (found[:, 2:] - found[:, :2] + 1 >= 96 / 20).all()


def test_objects_of_one_colour_are_found():
  image, places = scene()
  found = segments.find_boxes(image)
  assert geometry.overlaps(places, found).max(axis=1).min() > 0.9
  # A part of the picture's left half is not where the object is: the measure tells.
  assert geometry.overlaps(places[1:], found[found[:, 2] < 64]).max(initial=0) == 0


def test_a_large_image_is_searched_smaller_and_told_in_its_own_pixels(monkeypatch):
  monkeypatch.setattr(segments, '_LONG_SIDE_PX', 160)
  image, places = scene()
  large = cv2.resize(image, (1280, 960), interpolation=cv2.INTER_NEAREST)
  found = segments.find_boxes(large)
  np.testing.assert_array_equal(found[0], [0, 0, 1279, 959])
  np.testing.assert_array_equal(found, geometry.clip(found, 960, 1280))
  wide = np.concatenate([places[:, :2] * 10, places[:, 2:] * 10 + 9], axis=1)
  assert geometry.overlaps(wide, found).max(axis=1).min() > 0.9


@pytest.mark.parametrize('sides', [(1, 1), (2, 3), (40, 40), (3, 200)])
def test_an_image_without_anything_has_one_box(sides):
  found = segments.find_boxes(np.full((*sides, 3), 90, np.uint8))
  np.testing.assert_array_equal(found, [[0, 0, sides[1] - 1, sides[0] - 1]])


def test_merging_gives_all_regions_and_ends_with_the_whole():
  labels = np.array([[0, 0, 1, 1], [2, 2, 1, 3], [2, 2, 4, 4]])
  rng = np.random.default_rng(0)
  pixels = rng.integers(0, 256, (3, 4, 3)).astype(np.uint8)
  regions = segments._describe(pixels, segments._measure_edges(pixels), labels)
  np.testing.assert_array_equal(regions.sizes, [2, 3, 4, 1, 2, 0, 0, 0, 0])
  own = [[0, 0, 1, 0], [2, 0, 3, 1], [0, 1, 1, 2], [3, 1, 3, 1], [2, 2, 3, 2]]
  np.testing.assert_array_equal(regions.boxes[:5], own)
  np.testing.assert_allclose(regions.colours[:5].sum(1), 1)
  np.testing.assert_allclose(regions.edges[:5].sum(1), 1)
  touching = segments._find_neighbours(labels)
  assert touching == [{1, 2}, {0, 2, 3, 4}, {0, 1, 4}, {1, 4}, {1, 2, 3}]
  found = segments._grow(regions, touching)
  assert found.shape == (9, 4)
  np.testing.assert_array_equal(found[0], [0, 0, 3, 2])
  np.testing.assert_array_equal(found[4:], own[::-1])
  np.testing.assert_array_equal(regions.sizes[8], 12)


def test_the_most_alike_neighbours_merge_first():
  image = np.zeros((12, 40, 3), np.uint8)
  image[:, :10], image[:, 10:20], image[:, 20:30], image[:, 30:] = 10, 200, 90, 92
  labels = np.repeat(np.arange(4), 10)[None].repeat(12, 0)
  flat = np.zeros((8, 12, 40, 3), np.uint8)
  found = segments._grow(segments._describe(image, flat, labels), segments._find_neighbours(labels))
  np.testing.assert_array_equal(found[2], [20, 0, 39, 11])  # the first to be made


def test_without_scikit_image_the_extra_is_named(monkeypatch, tmp_path):
  monkeypatch.setitem(sys.modules, 'skimage', None)
  with pytest.raises(CfnError, match=r'need scikit-image .*pip install -e "\.\[proposals\]"'):
    segments.find_boxes(scene()[0])
  with pytest.raises(CfnError, match='need scikit-image'):  # before anything is read or written
    prepare_proposals.prepare_proposals(
      method='segments', out=str(tmp_path / 'p.npz'), images=str(tmp_path)
    )
  assert not list(tmp_path.iterdir())


def test_objects_of_photographs_are_found(voc):
  photographs = list(read(voc))
  assert recall(lambda image: grid.make_windows(*image.shape[:2]), photographs) >= 0.8
  assert recall(segments.find_boxes, photographs[:4]) >= 0.8
  assert recall(lambda image: grid.make_windows(*image.shape[:2])[:20], photographs) < 0.7


@pytest.fixture
def pictures(tmp_path):
  """A folder of 35 small pictures: three parts."""
  root = tmp_path / 'pictures'
  (root / 'below').mkdir(parents=True)
  for number in range(35):
    image, _ = scene(96, 120 + number % 3, seed=number)
    Image.fromarray(image).save(root / ('below' if number % 2 else '') / f'{number:02d}.png')
  return root


def make(folder, out, **settings):
  settings = {'method': 'grid', 'images': str(folder), 'num_workers': 1} | settings
  return prepare_proposals.prepare_proposals(out=str(out), **settings)


def test_any_number_of_workers_writes_the_same_bytes(pictures, tmp_path):
  for workers in (1, 2):
    make(pictures, tmp_path / f'{workers}.npz', num_workers=workers)
  assert (tmp_path / '1.npz').read_bytes() == (tmp_path / '2.npz').read_bytes()
  names = [f'{number:02d}' for number in range(35)]
  sizes = [(96, 120 + number % 3) for number in range(35)]
  opened = proposals.open_proposals(
    str(tmp_path / '2.npz'), field='p', listed=names, names=names, sizes=sizes
  )
  for place in (0, 17, 34):
    np.testing.assert_array_equal(opened[place], grid.make_windows(*sizes[place]))
  assert '2.npz (cfn_jax.prepare, grid): 35 images' in opened.description


KILLED = """
import os, signal, sys
from cfn_jax import prepare
from cfn_jax.data import prepare_proposals
windows, made = prepare_proposals.METHODS['grid'], []
def find(image):
  made.append(image)
  if len(made) > 20: os.kill(os.getpid(), signal.{signal})
  return windows(image)
prepare_proposals.METHODS['grid'] = find
prepare.main(['proposals', '--method=grid', *sys.argv[1:], '--workers=1'])
"""


@pytest.mark.parametrize('name', ['SIGKILL', 'SIGINT'])
def test_a_run_that_was_ended_resumes_with_the_next_part(name, pictures, tmp_path, monkeypatch):
  out = tmp_path / 'p.npz'
  program = [sys.executable, '-c', KILLED.replace('{signal}', name)]
  ended = subprocess.run(
    [*program, f'--images={pictures}', f'--out={out}'],
    cwd=REPOSITORY,
    env=os.environ | {'PYTHONPATH': str(REPOSITORY)},
    capture_output=True,
    text=True,
  )
  if name == 'SIGINT':
    assert ended.returncode == 130 and 'Traceback' not in ended.stderr
    assert 'prepare: interrupted; the same command resumes with the next part' in ended.stderr
  else:
    assert ended.returncode == -signal.SIGKILL
  assert not out.exists() and (tmp_path / 'p.npz.parts' / 'part-00000.npz').exists()
  made = []
  windows = prepare_proposals.METHODS['grid']
  monkeypatch.setitem(
    prepare_proposals.METHODS, 'grid', lambda image: made.append(image) or windows(image)
  )
  make(pictures, out)
  assert len(made) == 35 - 16
  make(pictures, tmp_path / 'whole.npz')
  assert out.read_bytes() == (tmp_path / 'whole.npz').read_bytes()
  assert sorted(path.name for path in tmp_path.iterdir()) == ['p.npz', 'pictures', 'whole.npz']


def interrupt(monkeypatch, pictures, out, after=20):
  """Leaves the parts of a run that ended early."""
  count = iter(range(100))

  def find(image):
    if next(count) >= after:
      raise KeyboardInterrupt
    return grid.make_windows(*image.shape[:2])

  with monkeypatch.context() as patch:
    patch.setitem(prepare_proposals.METHODS, 'grid', find)
    with pytest.raises(KeyboardInterrupt):
      make(pictures, out)


def test_a_part_that_is_damaged_is_made_again(pictures, tmp_path, monkeypatch):
  interrupt(monkeypatch, pictures, tmp_path / 'p.npz')
  part = tmp_path / 'p.npz.parts' / 'part-00000.npz'
  part.write_bytes(part.read_bytes()[:-100])
  make(pictures, tmp_path / 'p.npz')
  make(pictures, tmp_path / 'whole.npz')
  assert (tmp_path / 'p.npz').read_bytes() == (tmp_path / 'whole.npz').read_bytes()


def test_parts_of_other_settings_or_images_are_not_mixed(pictures, tmp_path, monkeypatch):
  out = tmp_path / 'p.npz'
  interrupt(monkeypatch, pictures, out)
  with pytest.raises(PrepareError, match=r'parts was begun with method = grid\. Give the same'):
    make(pictures, out, method='segments')
  image, _ = scene(97)
  Image.fromarray(image).save(pictures / '00.png')
  with pytest.raises(PrepareError, match='was begun with files of other sizes or modification'):
    make(pictures, out)
  (pictures / '00.png').rename(pictures / 'x.png')
  with pytest.raises(PrepareError, match='was begun with images of other names'):
    make(pictures, out)


def test_an_image_that_cannot_be_decoded_ends_the_run_with_its_name(pictures, tmp_path):
  (pictures / 'below' / '33.png').write_bytes(b'no picture')
  with pytest.raises(BadImage, match=r'below/33\.png: '):
    make(pictures, tmp_path / 'p.npz')
  assert not (tmp_path / 'p.npz').exists()


def test_the_command_makes_the_proposals_of_a_list(voc, tmp_path):
  out = tmp_path / 'p.npz'
  command = [sys.executable, '-m', 'cfn_jax.prepare', 'proposals', '--method=segments']
  run = functools.partial(
    subprocess.run, cwd=REPOSITORY, capture_output=True, text=True, check=False
  )
  (voc / 'ImageSets' / 'Main' / 'two.txt').write_text('2008_000007\n2008_000002\n')
  made = run([*command, f'--root={voc}', '--split=two', f'--out={out}', '--workers=1'])
  assert made.returncode == 0, made.stderr
  assert made.stdout.startswith('2 images, ') and made.stdout.endswith(f' at most, in {out}\n')
  with np.load(out) as stored:
    assert stored['names'].tolist() == ['2008_000007', '2008_000002']
  again = run([*command, f'--root={voc}', '--split=two', f'--out={out}'])
  assert again.returncode == 2 and again.stderr == (
    f'error: --out={out} exists already; delete it, or give another name\n'
  )


@pytest.mark.parametrize(
  ('settings', 'reason'),
  [
    ({'out': 'p.mat'}, r'--out=\S*p\.mat: the name has to end in \.npz'),
    ({'num_workers': -1}, '--workers=-1: at least 0'),
    ({'root': 'x'}, 'give either --images, or --root and --split'),
    ({'images': '', 'root': '/no'}, '/no is no VOC folder'),
    ({'images': ''}, 'give either --images, or --root and --split'),
    ({'images': '', 'root': '/no', 'split': 'train'}, '/no is no VOC folder'),
    ({'images': '/no'}, 'there is no folder /no'),
    ({'out': 'pictures/00.png/p.npz'}, 'cannot write .*: Not a directory; finished parts are'),
  ],
)
def test_bad_input_is_refused_before_anything_is_written(settings, reason, pictures, tmp_path):
  out = tmp_path / settings.pop('out', 'p.npz')
  with pytest.raises(CfnError, match=reason) as error:
    make(pictures, out, **settings)
  assert '\n' not in str(error.value)
  assert [path.name for path in tmp_path.iterdir()] == ['pictures']


def test_two_images_of_one_name_are_refused(pictures, tmp_path):
  (pictures / '01.png').write_bytes((pictures / '00.png').read_bytes())
  with pytest.raises(SourceError, match=r'01\.png and below/01\.png have the same name'):
    make(pictures, tmp_path / 'p.npz')
