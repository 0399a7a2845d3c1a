"""Proposals: three forms of files and the grid, read by name, checked box by box."""

import pickle
import zipfile

import numpy as np
import pytest
import scipy.io

from cfn_jax.data import boxes as geometry
from cfn_jax.data import grid, proposal_files, proposals
from cfn_jax.data.record import SourceError

LISTED = ['000005', '000007', '000009', '000012']
SIZES = {'000005': (375, 500), '000007': (333, 500), '000009': (500, 375), '000012': (60, 80)}


def draw(name, count, seed=0):
  """Boxes in whole pixels from 0, all inside the image, x1, y1, x2, y2."""
  rng = np.random.default_rng([seed, LISTED.index(name)])
  height, width = SIZES[name]
  x1, y1 = rng.integers(0, width - 2, count), rng.integers(0, height - 2, count)
  x2 = x1 + 1 + (rng.random(count) * (width - 1 - x1)).astype(int).clip(0, width - 2 - x1)
  y2 = y1 + 1 + (rng.random(count) * (height - 1 - y1)).astype(int).clip(0, height - 2 - y1)
  return np.stack([x1, y1, x2, y2], axis=1).astype(np.float64)


def make_boxes():
  return {name: draw(name, 5 + place) for place, name in enumerate(LISTED)}


def write_cells(path, made, names=LISTED, with_images=True, **others):
  """The layout of fast-rcnn's selective_search_data: y1, x1, y2, x2 from 1, a cell an image."""
  cells = np.empty((1, len(made)), object)
  for place, each in enumerate(made):
    cells[0, place] = each[:, [1, 0, 3, 2]] + 1 if len(each) else np.zeros((0, 0))
  images = np.array([[name] for name in names], object)
  scipy.io.savemat(path, {'boxes': cells, **({'images': images} if with_images else {}), **others})


def write_folder(path, made, names=LISTED):
  """The layout of fast-rcnn's variant IJCV: a file an image, x1, y1, x2, y2 from 1."""
  path.mkdir()
  for name, each in zip(names, made):
    scipy.io.savemat(path / f'{name}.mat', {'boxes': each + 1})


def write_npz(path, made, names=LISTED, **others):
  arrays = {
    'names': np.array(names),
    'starts': np.cumsum([0, *map(len, made)]),
    'boxes': np.concatenate(made).astype(np.float32),
    'source': np.array('by hand'),
  }
  np.savez(path, **(arrays | others))


WRITERS = {'p.mat': write_cells, 'p.npz': write_npz, 'folder': write_folder}


def open_all(where, names=LISTED, **more):
  return proposals.open_proposals(
    str(where),
    field='proposals.train',
    listed=LISTED,
    names=names,
    sizes=[SIZES[name] for name in names],
    **more,
  )


@pytest.mark.parametrize('form', WRITERS)
def test_every_form_gives_the_boxes_that_were_written(form, tmp_path):
  made = make_boxes()
  WRITERS[form](tmp_path / form, list(made.values()))
  opened = open_all(tmp_path / form)
  assert len(opened) == 4 and opened.most == 8
  for found, wanted in zip((opened[i] for i in range(4)), made.values()):
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, wanted)
  assert '4 images, 6 boxes each' in opened.description and str(tmp_path) in opened.description


@pytest.mark.parametrize('form', WRITERS)
def test_a_part_of_the_list_is_found_by_name(form, tmp_path):
  made = make_boxes()
  WRITERS[form](tmp_path / form, list(made.values()))
  opened = open_all(tmp_path / form, ['000012', '000007'])
  np.testing.assert_array_equal(opened[0], made['000012'])
  np.testing.assert_array_equal(opened[1], made['000007'])
  with pytest.raises(IndexError):
    opened[2]
  with pytest.raises(IndexError):
    opened[-1]


def test_cells_without_names_and_names_with_suffixes_or_as_a_matrix_are_read(tmp_path):
  made = list(make_boxes().values())
  write_cells(tmp_path / 'a.mat', made, with_images=False)
  write_cells(tmp_path / 'b.mat', made, [f'{name}.jpg' for name in LISTED])
  write_cells(tmp_path / 'c.mat', made, with_images=False, images=np.array(LISTED))
  found = {open_all(tmp_path / f'{name}.mat').fingerprint for name in 'abc'}
  assert len(found) == 1


def test_the_fingerprint_changes_with_a_box_an_image_or_the_number_kept(tmp_path):
  made = make_boxes()
  write_npz(tmp_path / 'a.npz', list(made.values()))
  made['000009'][0, 0] += made['000009'][0, 0] < made['000009'][0, 2] or -1
  write_npz(tmp_path / 'b.npz', list(made.values()))
  opened = [
    open_all(tmp_path / 'a.npz'),
    open_all(tmp_path / 'b.npz'),
    open_all(tmp_path / 'a.npz', LISTED[:3]),
    open_all(tmp_path / 'a.npz', keep=4),
    open_all('grid'),
    open_all('grid', keep=4),
  ]
  assert len({each.fingerprint for each in opened}) == 6
  assert open_all(tmp_path / 'a.npz').fingerprint == opened[0].fingerprint


def test_the_first_boxes_are_kept_without_those_under_two_pixels_and_with_doubles(tmp_path):
  made = make_boxes()
  thin = np.array([[10, 10, 10, 30], [10, 10, 30, 10]])
  made['000005'] = np.concatenate([thin, made['000005'][[0, 0]], made['000005']])
  write_npz(tmp_path / 'p.npz', list(made.values()))
  opened = open_all(tmp_path / 'p.npz', keep=3)
  np.testing.assert_array_equal(opened[0], made['000005'][2:5])
  assert [len(opened[i]) for i in range(4)] == [3, 3, 3, 3] == [opened.most] * 4
  assert '; 2 boxes under 2 px left out' in opened.description


def test_loader_processes_receive_one_array(tmp_path):
  made = [draw(name, 2000) for name in LISTED]
  write_npz(tmp_path / 'p.npz', made)
  opened = open_all(tmp_path / 'p.npz')
  sent = pickle.dumps(opened)
  assert len(sent) < 4 * 2000 * 16 + 2000
  np.testing.assert_array_equal(pickle.loads(sent)[2], made[2])
  assert repr(pickle.loads(sent)) == repr(opened)
  windows = pickle.loads(pickle.dumps(open_all('grid')))
  np.testing.assert_array_equal(windows[3], grid.make_windows(60, 80))


def change(place, name='000007'):
  """Boxes of which one number of one image is another."""

  def make(value):
    made = make_boxes()
    made[name][3, place] = value
    return list(made.values())

  return make


def swapped():
  return [each[:, [1, 0, 3, 2]] for each in make_boxes().values()]


FAULTS = [  # what is written, and what the error says
  (lambda: change(0)(np.nan), r'box 4 of 000007 \(500 x 333 px\) is not of finite numbers: nan, '),
  (lambda: change(2)(np.inf), 'is not of finite numbers'),
  (lambda: change(1)(-1), r'box 4 of 000007 \(500 x 333 px\) lies outside: .* 1 of 26 boxes have'),
  (lambda: change(2)(500), r'lies outside: \d+, \d+, 500, \d+ \(x1, y1, x2, y2 from 0\)'),
  (lambda: change(3)(333), 'lies outside'),
  (lambda: change(slice(None))([30, 20, 10, 40]), 'ends before it begins: 30, 20, 10, 40'),
  (swapped, r'lies outside.*; all would lie inside with x and y exchanged'),
  (
    lambda: [*list(make_boxes().values())[:3], np.zeros((0, 4))],
    '1 of the 4 images have no box of 2 px and more there, such as 000012',
  ),
]


@pytest.mark.parametrize('form', WRITERS)
@pytest.mark.parametrize(('make', 'reason'), FAULTS)
def test_boxes_that_are_none_in_their_image_are_refused(form, make, reason, tmp_path):
  WRITERS[form](tmp_path / form, make())
  with pytest.raises(SourceError, match=reason) as error:
    open_all(tmp_path / form)
  message = str(error.value)
  assert message.startswith(f'proposals.train={tmp_path / form}: ') and '\n' not in message
  assert ('exchanged' in message) == (make is swapped)
  if 'outside' in reason:
    order = 'y1, x1, y2, x2' if form == 'p.mat' else 'x1, y1, x2, y2'
    start = 0 if form == 'p.npz' else 1
    assert f'columns of such a file are {order} in pixels from {start}, ends included' in message


def test_images_that_are_missing_are_named_up_to_ten(tmp_path):
  names = [f'{number:06d}' for number in range(15)]  # four of them are there
  write_npz(tmp_path / 'p.npz', list(make_boxes().values()))
  write_folder(tmp_path / 'folder', list(make_boxes().values()))
  for form, suffix in (('p.npz', ''), ('folder', '.mat')):
    with pytest.raises(
      SourceError, match='11 of the 15 images have no proposals there: 0'
    ) as error:
      proposals.open_proposals(
        str(tmp_path / form), field='f', listed=names, names=names, sizes=[(9, 9)] * 15
      )
    named = ', '.join(f'{name}{suffix}' for name in names if name not in LISTED and name < '000014')
    assert str(error.value).endswith(f': {named}, ...')
  with pytest.raises(SourceError, match='the list has 15, and such a file holds a matrix for each'):
    write_cells(tmp_path / 'p.mat', list(make_boxes().values()))
    proposals.open_proposals(
      str(tmp_path / 'p.mat'), field='f', listed=names, names=names[:1], sizes=[(9, 9)]
    )


def as_npz(**others):
  return lambda path: write_npz(path, list(make_boxes().values()), **others)


def as_cells(*names, **others):
  return lambda path: write_cells(path, list(make_boxes().values()), *names, **others)


def as_mat(**variables):
  return lambda path: scipy.io.savemat(path, variables)


def cells(*contents):
  made = np.empty((1, len(contents)), object)
  made[0] = contents
  return made


WIDE = [np.ones((3, 5)), *[np.zeros((0, 0))] * 3]
FILES = [  # a file, what writes it, what the error says
  ('p.mat', as_cells(LISTED[::-1]), 'image 1 is 000012, in the list 000005'),
  ('p.mat', as_cells(LISTED[:3]), 'of other images: 3 images'),
  ('p.mat', as_mat(boxes=draw('000005', 3)), r'one matrix, \[3, 4\]'),
  ('p.mat', as_mat(rois=[1], a=2), 'no variable boxes; it holds rois, a'),
  ('p.mat', as_mat(boxes=cells()), 'boxes of 0 images; the list has 4'),
  ('p.mat', as_mat(boxes=cells('abcd', 'b', 'c', 'd')), 'boxes of 000005 are <U4'),
  (
    'p.mat',
    as_mat(boxes=cells(*WIDE)),
    r'boxes of 000005 are float64 \[3, 5\]; a matrix of numbers is needed, \[m, 4\]',
  ),
  ('p.mat', lambda p: p.write_bytes(b'MATLAB 7.3 MAT-file' + b' ' * 200), "version 7.3.*'-v7'"),
  ('p.mat', lambda p: p.write_bytes(b'\x89HDF\r\n\x1a\n' + b' ' * 200), "HDF5.*'-v7'"),
  ('p.mat', lambda p: p.write_bytes(b''), 'it is an empty file'),
  ('p.mat', lambda p: p.write_text('version https://git-lfs'), 'Git LFS pointer; git lfs pull'),
  ('p.npz', lambda p: p.write_bytes(b'\x80\x04.'), 'should be an .npz file; it is a pickle'),
  ('p.npz', lambda p: np.savez(p, names=LISTED), 'it needs names text'),
  ('p.npz', as_npz(names=np.array([*LISTED[:3], LISTED[0]])), 'proposals of 000005 twice'),
  ('p.npz', as_npz(names=np.arange(4)), r'names int64 \[4\].*; it needs names text'),
  ('p.npz', as_npz(boxes=np.ones((26, 5))), r'boxes float64 \[26, 5\]'),
  ('p.npz', as_npz(boxes=np.ones((25, 4), np.float32)), 'starts has 5 numbers for 4 images and 25'),
  ('p.npz', as_npz(starts=np.array([0, 9, 5, 18, 26])), 'rising from 0'),
  ('p.npz', as_npz(starts=np.array([0, 5, 11, 26])), 'starts has 4 numbers'),
  ('p.npz', as_npz(starts=np.array([1, 5, 11, 18, 26])), 'rising from 0'),
  ('p.pkl', lambda p: p.write_bytes(pickle.dumps({})), r'ends in .pkl is not read; name a .mat'),
  ('p', lambda p: p.write_bytes(b''), 'ends in nothing is not read'),
]


@pytest.mark.parametrize(('name', 'write', 'reason'), FILES)
def test_other_files_are_refused_with_what_would_be_right(name, write, reason, tmp_path):
  write(tmp_path / name)
  with pytest.raises(SourceError, match=reason) as error:
    open_all(tmp_path / name)
  assert str(error.value).startswith(f'proposals.train={tmp_path / name}: ')
  assert '\n' not in str(error.value)


def test_no_pickle_is_loaded(tmp_path):
  class Trap:
    def __reduce__(self):
      return open, (str(tmp_path / 'sprung'), 'w')

  write_npz(tmp_path / 'p.npz', list(make_boxes().values()), source=np.array(Trap(), object))
  with pytest.raises(SourceError, match='allow_pickle=False'):
    open_all(tmp_path / 'p.npz')
  assert not (tmp_path / 'sprung').exists()


def test_what_is_not_there_is_named(tmp_path):
  with pytest.raises(SourceError, match=r'proposals.train=\S*/no.mat: there is no such file'):
    open_all(tmp_path / 'no.mat')
  with pytest.raises(SourceError, match=r"proposals.train is empty: it is 'grid', or names a .mat"):
    open_all('')
  (tmp_path / 'empty').mkdir()
  with pytest.raises(SourceError, match=r'4 of the 4 images have no proposals there: 000005.mat'):
    open_all(tmp_path / 'empty')


@pytest.mark.parametrize(('form', 'more'), [('p.mat', {'with_images': False}), ('p.npz', {})])
def test_a_file_that_was_cut_anywhere_is_refused(form, more, tmp_path):
  whole = tmp_path / form
  WRITERS[form](whole, list(make_boxes().values()), **more)
  data = whole.read_bytes()
  for length in range(0, len(data), max(1, len(data) // 60)):
    whole.write_bytes(data[:length])
    with pytest.raises(SourceError, match=r'^proposals\.train='):
      open_all(whole)


def test_damage_within_a_file_of_ours_is_found(tmp_path):
  path = tmp_path / 'p.npz'
  write_npz(path, list(make_boxes().values()))
  with zipfile.ZipFile(path) as archive:
    place = archive.getinfo('boxes.npy').header_offset + 220
  data = bytearray(path.read_bytes())
  data[place] ^= 4
  path.write_bytes(data)
  with pytest.raises(SourceError, match=r'cut short or damaged \(Bad CRC'):
    open_all(path)


def test_what_is_saved_is_read_and_the_same_bytes_each_time(tmp_path):
  made = make_boxes()
  matrices = [each.astype(np.float32) for each in made.values()]
  stored = proposal_files.join(LISTED, matrices, source='by a test')
  for name in ('a.npz', 'b.npz'):
    proposal_files.save(tmp_path / name, stored)
  assert (tmp_path / 'a.npz').read_bytes() == (tmp_path / 'b.npz').read_bytes()
  assert sorted(path.name for path in tmp_path.iterdir()) == ['a.npz', 'b.npz']
  opened = open_all(tmp_path / 'a.npz')
  np.testing.assert_array_equal(opened[1], made['000007'])
  assert 'a.npz (by a test): 4 images' in opened.description


@pytest.mark.parametrize(
  'sides', [(375, 500), (500, 333), (160, 213), (20, 20), (7, 3), (2, 2), (40, 4000), (3000, 4000)]
)
def test_the_grid_is_a_function_of_the_sides_and_lies_inside(sides):
  windows = grid.make_windows(*sides)
  np.testing.assert_array_equal(windows, grid.make_windows(*sides))
  height, width = sides
  np.testing.assert_array_equal(windows[0], [0, 0, width - 1, height - 1])
  np.testing.assert_array_equal(windows, geometry.clip(windows, height, width))
  assert (windows[:, 2:] - windows[:, :2] >= 1).all() and (windows == np.rint(windows)).all()
  assert len(np.unique(windows, axis=0)) == len(windows) <= 2100
  assert len(windows) > 1800 or min(sides) < 100
  turned = grid.make_windows(width, height)[:, [1, 0, 3, 2]]
  assert set(map(tuple, turned)) == set(map(tuple, windows))


def test_grid_proposals_are_those_of_each_image_and_the_first_are_kept():
  opened = open_all('grid')
  assert [len(opened[i]) for i in range(4)] == [
    len(grid.make_windows(*SIZES[name])) for name in LISTED
  ]
  assert opened.most == max(len(opened[i]) for i in range(4))
  assert opened.description.startswith('a grid of windows: 4 images, 1,9')
  first = open_all('grid', keep=7)
  np.testing.assert_array_equal(first[1], opened[1][:7])
  assert first.most == 7
  with pytest.raises(SourceError, match=r'grid: b is 9 x 1 px; a box in it needs 2 px'):
    proposals.open_proposals(
      'grid', field='proposals.train', listed='ab', names='ab', sizes=[(9, 9), (1, 9)]
    )
