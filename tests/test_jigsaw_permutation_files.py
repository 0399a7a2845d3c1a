"""Laws of permutation files: what is read equals what was written, and nothing wrong is read."""

import io
import tracemalloc

import numpy as np
import pytest

from cfn_jax import permutations as permutations_command
from cfn_jax.jigsaw.permutation_sets.permutations import (
  PermutationError,
  load_permutations,
  make_permutations,
  save_permutations,
  summarize,
)


@pytest.fixture(scope='module')
def rows():
  return make_permutations(30, method='mid')


@pytest.mark.parametrize('suffix', ['.npy', '.bin', '.csv', '.txt'])
@pytest.mark.parametrize('grid', [2, 3, 4, 5])
def test_saved_sets_load_again(tmp_path, suffix, grid):
  rows = make_permutations(20, method='mid', grid=grid)
  path = tmp_path / f'set{suffix}'
  save_permutations(path, rows)
  loaded = load_permutations(path, grid=grid)
  np.testing.assert_array_equal(loaded.permutations, rows)
  assert loaded.permutations.dtype == np.uint8
  assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
  ('name', 'num', 'base', 'mean', 'minimum'),
  [
    ('permutations_100_max.bin', 100, 1, 8.0800, 2),
    ('permutations_701.bin', 701, 1, 7.9990, 3),
    ('bbrattoli_1000.npy', 1000, 0, 8.0054, 2),
  ],
)
def test_sets_from_others_have_their_known_figures(shared_data, name, num, base, mean, minimum):
  loaded = load_permutations(shared_data(f'permutations/{name}'), grid=3)
  summary = summarize(loaded.permutations)
  assert (summary.num, loaded.base, summary.min_hamming) == (num, base, minimum)
  assert summary.mean_hamming == pytest.approx(mean, abs=5e-5)
  assert ('1-based, converted' in loaded.note) == (base == 1)


def test_the_authors_binary_is_written_byte_for_byte(shared_data, tmp_path):
  original = shared_data('permutations/permutations_701.bin')
  save_permutations(tmp_path / 'set.bin', load_permutations(original).permutations)
  assert (tmp_path / 'set.bin').read_bytes() == original.read_bytes()


@pytest.mark.parametrize('encoding', ['utf-8-sig', 'utf-16', 'utf-16-le', 'utf-16-be'])
@pytest.mark.parametrize('tiles', [4, 9])
def test_text_with_a_mark_loads(tmp_path, encoding, tiles):
  text = '\r\n'.join(', '.join(map(str, row)) for row in (range(tiles), range(tiles)[::-1]))
  mark = '\ufeff' if encoding[-2:] in ('le', 'be') else ''
  (tmp_path / 'set.txt').write_bytes((mark + text).encode(encoding))
  loaded = load_permutations(tmp_path / 'set.txt')
  assert loaded.permutations.tolist() == [[*range(tiles)], [*range(tiles)[::-1]]]
  assert loaded.format == 'text'


@pytest.mark.parametrize('dtype', ['u1', 'i1', '<i4', '>i4', 'i8', 'u2'])
@pytest.mark.parametrize('order', ['C', 'F'])
@pytest.mark.parametrize('base', [0, 1])
def test_npy_of_any_integers_and_base_loads(tmp_path, rows, dtype, order, base):
  np.save(tmp_path / 'set.npy', np.asarray(rows + base, dtype, order=order))
  loaded = load_permutations(tmp_path / 'set.npy')
  np.testing.assert_array_equal(loaded.permutations, rows)
  assert loaded.base == base


@pytest.mark.parametrize(
  'text',
  [
    '0,1,2,3\n1,0,3,2\n',
    '0, 1, 2, 3\r\n1, 0, 3, 2\r\n',
    '# a comment\n\n0 1 2 3\n1\t0\t3\t2  # another\n',
    '\ufeff1;2;3;4\n2;1;4;3',
    '1,2,3,4,\n2,1,4,3,\n',
  ],
)
def test_text_with_usual_separators_loads(tmp_path, text):
  (tmp_path / 'set.dat').write_text(text, encoding='utf-8')
  loaded = load_permutations(tmp_path / 'set.dat', grid=2)
  assert loaded.permutations.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]


def test_content_decides_the_format_not_the_name(tmp_path, rows):
  for suffix in ('.npy', '.bin', '.csv'):
    save_permutations(tmp_path / f'set{suffix}', rows)
    (tmp_path / 'set.data').write_bytes((tmp_path / f'set{suffix}').read_bytes())
    np.testing.assert_array_equal(load_permutations(tmp_path / 'set.data').permutations, rows)


def make_npy(values, **options):
  stream = io.BytesIO()
  np.save(stream, values, **options)
  return stream.getvalue()


def make_bin(values):
  return np.array(values.shape, '<i4').tobytes() + values.astype('<i4').tobytes()


def change(rows, row, values):
  rows = rows.astype(np.int64)
  rows[row] = values
  return rows


GOOD = make_permutations(12, method='mid')
REFUSED = {
  'repeat': (make_npy(change(GOOD, 7, GOOD[2])), 'row 8 repeats row 3'),
  'repeated value': (make_bin(change(GOOD + 1, 4, [1, 1, 2, 3, 4, 5, 6, 7, 8])), 'row 5 is 1 1 2'),
  'negative': (make_npy(change(GOOD, 0, -1)), 'row 1 is -1 -1'),
  'wraps to a permutation': (make_npy(GOOD.astype(np.int64) + 256), 'row 1 is .* no permutation'),
  'two bases': (make_npy(change(GOOD, 9, GOOD[9] + 1)), 'row 10 is 1-based, row 1 is 0-based'),
  'base 2': (make_npy(GOOD + 2), 'row 1 is .* no permutation of 0..8 or 1..9'),
  'floats': (make_npy(GOOD.astype(float)), 'dtype is float64: must be an integer'),
  'objects': (make_npy(np.array([{}, {}]), allow_pickle=True), 'dtype is object'),
  'one dimension': (make_npy(GOOD.ravel()), r'shape is \(108,\)'),
  'three dimensions': (make_npy(GOOD.reshape(12, 3, 3)), r'shape is \(12, 3, 3\)'),
  'cut npy': (make_npy(GOOD)[:-1], 'claims .* but 107 bytes follow'),
  'long npy': (make_npy(GOOD) + b'x', 'claims .* but 109 bytes follow'),
  'npy magic alone': (b'\x93NUMPY', 'damaged .npy header'),
  'npy of version 9': (b'\x93NUMPY\x09\x00' + b'\0' * 40, 'damaged .npy header'),
  'one row': (make_npy(GOOD[:1]), 'at least 2'),
  'no rows': (make_npy(GOOD[:0]), 'at least 2'),
  'three tiles': (b'0 1 2\n1 0 2\n', '3 values: must be 4'),
  'too many tiles': (make_npy(np.stack([np.arange(36), np.arange(36)[::-1]])), '36 values'),
  'cut binary': (make_bin(GOOD + 1)[:-4], 'claims 12 rows of 9 values .* 428 bytes follow'),
  'long binary': (make_bin(GOOD + 1) + b'\0', 'claims 12 rows'),
  'huge binary': (np.array([2**31 - 1, 9], '<i4').tobytes() + b'\0' * 72, 'claims 2147483647 rows'),
  'negative binary': (np.array([-2, 9], '<i4').tobytes() + b'\0' * 72, 'claims -2 rows'),
  'zeros': (b'\0' * 5, 'neither'),
  'empty': (b'', 'empty'),
  'spaces': (b' \n\n', 'holds no rows'),
  'words': (b'tile,one\n', "row 1 is 'tile,one'"),
  'fractions': (b'0 1 2 3\n0.0 1 2 3\n', 'row 2 is .* whole numbers'),
  'lengths': (b'0 1 2 3\n1 0 2\n', 'row 2 has 3 values, row 1 has 4'),
  'image': (b'\xff\xd8\xff\xe0JFIF', 'it is a JPEG image, not a set: save the rows as .npy'),
  'npz': (b'PK\x03\x04' + b'\0' * 60, r'a ZIP archive \(as .npz and .pt are\), not a set'),
  'mat': (b'MATLAB 5.0 MAT-file, Platform: GLNXA64' + b'\0' * 90, 'a MATLAB file, not a set'),
  'pickle': (b'\x80\x02}q\x00' + b'\0' * 30, 'a pickle, not a set'),
  'unmarked': ('0 1 2 3\n1 0 3 2\n'.encode('utf-16-le'), 'UTF-16 text without its mark: save it'),
  'unmarked big': ('0 1 2 3\n1 0 3 2\n'.encode('utf-16-be'), 'UTF-16 text without its mark'),
  'half': ('0 1 2 3\n1 0 3 2\n'.encode('utf-16')[:-1], 'damaged UTF-16 text .*; save it as UTF-8'),
  'lfs': (b'version https://git-lfs.github.com/spec/v1\noid sha256:0', 'a Git LFS pointer'),
}


@pytest.mark.parametrize('name', REFUSED)
def test_wrong_files_are_refused_in_one_line_with_the_row(tmp_path, name):
  content, words = REFUSED[name]
  path = tmp_path / 'set.any'
  path.write_bytes(content)
  with pytest.raises(PermutationError, match=words) as caught:
    load_permutations(path)
  assert str(path) in str(caught.value)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
  'shape', ['(2000000000, 9)', '(10**9, 9)', '(-2, -6)', '(3, 3.0)', '(2, 9']
)
def test_a_header_is_not_believed(tmp_path, shape):
  header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + '\n'
  content = b'\x93NUMPY\x01\x00' + len(header).to_bytes(2, 'little') + header.encode()
  (tmp_path / 'set.npy').write_bytes(content + bytes(100))
  tracemalloc.start()
  with pytest.raises(PermutationError, match=r'header|shape'):
    load_permutations(tmp_path / 'set.npy')
  assert tracemalloc.get_traced_memory()[1] < 2**20
  tracemalloc.stop()


def test_damaged_files_never_end_in_another_error(tmp_path):
  rng = np.random.default_rng(0)
  path = tmp_path / 'set.any'
  for original in (make_npy(GOOD), make_bin(GOOD + 1), b'0 1 2 3\n1 0 3 2\n2 3 1 0\n'):
    for _ in range(300):
      damaged = bytearray(original)
      for place in rng.integers(len(damaged), size=rng.integers(1, 4)):
        damaged[place] = rng.integers(256)
      path.write_bytes(damaged[: rng.integers(len(damaged) + 1)] if rng.random() < 0.3 else damaged)
      try:
        rows = load_permutations(path).permutations
      except PermutationError as error:
        assert '\n' not in str(error)
      else:
        assert (np.sort(rows, axis=1) == np.arange(rows.shape[1])).all()
        assert len(np.unique(rows, axis=0)) == len(rows)


def test_a_file_for_another_grid_is_refused(tmp_path, rows):
  save_permutations(tmp_path / 'set.npy', rows)
  with pytest.raises(PermutationError, match=r'9 tiles; a 4x4 grid .* needs 16'):
    load_permutations(tmp_path / 'set.npy', grid=4)


def test_unreadable_and_unwritable_places_are_refused(tmp_path, rows):
  with pytest.raises(PermutationError, match='cannot be read: No such file'):
    load_permutations(tmp_path / 'none.npy')
  with pytest.raises(PermutationError, match='cannot be read: Is a directory'):
    load_permutations(tmp_path)
  with pytest.raises(PermutationError, match='cannot be written: No such file'):
    save_permutations(tmp_path / 'none' / 'set.npy', rows)
  with pytest.raises(PermutationError, match='suffix must be'):
    save_permutations(tmp_path / 'set.pt', rows)
  (tmp_path / 'folder.npy').mkdir()
  with pytest.raises(PermutationError, match='cannot be written: Is a directory'):
    save_permutations(tmp_path / 'folder.npy', rows)
  assert [path.name for path in tmp_path.iterdir()] == ['folder.npy']


def test_a_file_is_replaced_whole(tmp_path, rows):
  path = tmp_path / 'set.npy'
  path.write_text('old')
  save_permutations(path, rows)
  np.testing.assert_array_equal(np.load(path), rows)


def test_the_home_folder_is_found_whatever_the_shell_does(tmp_path, monkeypatch):
  monkeypatch.setenv('HOME', str(tmp_path))
  permutations_command.main(['--num=6', '--out=~/six.npy'])
  assert load_permutations('~/six.npy').permutations.shape == (6, 9)
  assert (tmp_path / 'six.npy').is_file()
