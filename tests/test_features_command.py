"""`features`: each image's vector is what the probes extract; the file is whole or not there."""

import json
import pathlib

import labelled_cases
import numpy as np
import probe_cases
import pyarrow.parquet
import pytest
import test_main

from cfn_jax import features as command
from cfn_jax.evaluation import trunks
from cfn_jax.evaluation.frozen import feature_files, probing
from cfn_jax.training import stopping
from cfn_jax.transfer import files

VIEW = (f'--view={probe_cases.PX}', '--resize-px=72', '--stride=2', '--batch=7')


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
  """Class folders with one damaged image, and weights."""
  root = tmp_path_factory.mktemp('features')
  labelled_cases.make_class_folders(root, test=1)
  (root / 'train' / 'green' / '2.png').write_bytes(b'damaged')
  weights = trunks.draw_trunk('he', seed=3, width=0.1, order='caffenet').weights
  files.save_weights(weights, root / 'w.npz')
  return root


def run(folders, out, *options):
  given = [f'--weights={folders / "w.npz"}', f'--images={folders / "train"}', f'--out={out}']
  command.main([*given, *VIEW, *options])


def list_names(folder):
  return sorted(path.name for path in folder.iterdir())


def test_vectors_are_those_of_the_probes(folders, tmp_path, capsys):
  run(folders, tmp_path / 'out' / 'x.npz', '--layer=conv4', '--dimensions=400')
  told = capsys.readouterr().out
  assert told.startswith('23 images, 360 values each') and '1 could not be decoded' in told
  assert list_names(tmp_path / 'out') == ['x.bad_images.tsv', 'x.npz']
  assert 'green/2.png' in (tmp_path / 'out' / 'x.bad_images.tsv').read_text()
  config = probe_cases.make_config('knn', folders, weights=str(folders / 'w.npz'), baseline=False)
  config.layers, config.features.dimensions = ('conv4',), 400
  (tmp_path / 'run').mkdir()
  config.data.on_bad_image, config.features.dtype = 'skip', 'float16'
  probe = probing.open_probe(config, crop='centre', mirror=False, draws=1)
  theirs = probing.extract(probe, 'pretrained', config, tmp_path / 'run').training
  with np.load(tmp_path / 'out' / 'x.npz', allow_pickle=False) as ours:
    expected = [name for name in probe.data.training.reader.source.names if name != 'green/2.png']
    assert ours['name'].tolist() == expected
    assert ours['label'].tolist() == [name.partition('/')[0] for name in expected]
    assert ours['vector'].dtype == np.float16 and ours['vector'].shape == (23, 360)
    np.testing.assert_allclose(ours['vector'], theirs.rows('conv4', range(23)), atol=2e-3)
    about = json.loads(ours['about'].item())
  assert (about['layer'], about['stride'], about['views']['view_px']) == ('conv4', 2, 67)


def make_rows(count, width=5, dtype='float32'):
  rng = np.random.default_rng(0)
  names = [f'd{index % 2}/{index}.jpg' for index in range(count)]
  return feature_files.Rows(
    names, [name[:2] for name in names], rng.normal(size=(count, width)).astype(dtype)
  )


def cut(rows, start, stop, *, labelled):
  return feature_files.Rows(
    rows.names[start:stop], rows.labels[start:stop] if labelled else None, rows.vectors[start:stop]
  )


@pytest.mark.parametrize('suffix', feature_files.SUFFIXES)
@pytest.mark.parametrize('dtype', ['float32', 'float16'])
@pytest.mark.parametrize('labelled', [True, False])
def test_what_is_written_is_read(tmp_path, monkeypatch, suffix, dtype, labelled):
  monkeypatch.setattr(feature_files, 'GROUP_BYTES', 100)
  rows, path = make_rows(23, dtype=dtype), tmp_path / f'x{suffix}'
  rows.names[3] = 'd1/caf\udce9.jpg'  # a byte that is no UTF-8
  with feature_files.writing(path, {'layer': 'pool5'}) as add:
    for start, stop in ((0, 4), (4, 4), (4, 20), (20, 23)):
      add(cut(rows, start, stop, labelled=labelled))
  if suffix == '.npz':
    with np.load(path, allow_pickle=False) as read:
      found = {name: read[name] for name in read}
    about = found.pop('about').item()
    found = {name: array.tolist() for name, array in found.items()}
  else:
    table = pyarrow.parquet.read_table(path)
    assert pyarrow.parquet.ParquetFile(path).num_row_groups > 1
    assert str(table.schema.field('vector').type.value_type) in (dtype, 'float', 'halffloat')
    about, found = table.schema.metadata[b'about'], table.to_pydict()
  assert json.loads(about) == {'layer': 'pool5'}
  assert found.pop('name') == [*rows.names[:3], 'd1/caf\\xe9.jpg', *rows.names[4:]]
  assert found.pop('vector') == rows.vectors.tolist()
  assert found == ({'label': rows.labels} if labelled else {})
  assert list_names(tmp_path) == [path.name]


@pytest.mark.parametrize('suffix', feature_files.SUFFIXES)
def test_a_file_is_there_whole_or_not_at_all(tmp_path, monkeypatch, suffix):
  """Ended between two parts, and while the end of the file is written."""
  path = tmp_path / f'x{suffix}'
  path.write_bytes(b'before')

  def write():
    with feature_files.writing(path, {}) as add:
      add(make_rows(9))
      add(make_rows(9))

  def end(*_, **__):
    raise stopping.Stopped('', 130)

  monkeypatch.setattr(feature_files, 'GROUP_BYTES', 1)
  monkeypatch.setattr(np.lib.format, 'write_array', end)
  monkeypatch.setattr(pyarrow.parquet.ParquetWriter, 'write_table', end)
  with pytest.raises(stopping.Stopped):
    write()
  assert list_names(tmp_path) == [path.name] and path.read_bytes() == b'before'


@pytest.mark.parametrize('suffix', feature_files.SUFFIXES)
def test_no_more_than_a_group_of_vectors_is_held(tmp_path, monkeypatch, suffix):
  import tracemalloc

  monkeypatch.setattr(feature_files, 'GROUP_BYTES', 2**20)
  rows = make_rows(256, width=512)
  tracemalloc.start()
  with feature_files.writing(tmp_path / f'x{suffix}', {}) as add:
    for _ in range(128):  # 64 MiB
      add(rows)
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 24 * 2**20  # NumPy copies 16 MiB at once


def test_images_beside_class_folders_have_no_labels(folders, tmp_path):
  (tmp_path / 'images').mkdir()
  (tmp_path / 'images' / 'test').symlink_to(folders / 'test')
  labelled_cases.draw_image(np.random.default_rng(0), 1).save(tmp_path / 'images' / 'loose.png')
  run(folders, tmp_path / 'x.npz', f'--images={tmp_path / "images"}')
  with np.load(tmp_path / 'x.npz') as found:
    assert {*found} == {'name', 'vector', 'about'}
    assert {*found['name']} == {
      'loose.png',
      *(f'test/{name}/0.png' for name in labelled_cases.CLASSES),
    }


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    (['--layer=fc6'], 'there is no fc6 in these weights'),
    (['--layer=pool6'], 'invalid choice'),
    (['--view=300'], 'views.resize_px = 72: at least views.view_px = 300'),
    (['--view=5'], 'views.view_px = 5: at least 11'),
    (['--batch=0'], 'eval_batch_size = 0: at least 1'),
    (['--dimensions=0'], 'features.dimensions = 0: at least 1'),
    (['--pooling=none', '--dimensions=9'], 'features.dimensions = 9 has no effect'),
    (['--layer=fc7', '--pooling=max'], 'not pooled'),
    (['--step=7'], "weights_step = '7' has no effect"),
    (['--out=x.csv'], 'ends in .npz or .parquet'),
    (['--images=nowhere'], 'there is no folder'),
    (['--weights=nowhere'], 'nowhere'),
  ],
)
def test_bad_input_is_refused_in_a_line(folders, tmp_path, capsys, options, message):
  with pytest.raises(SystemExit) as ended:
    run(folders, tmp_path / 'x.npz', *options)
  said = capsys.readouterr().err
  assert ended.value.code == 2 and message in said and len(said.splitlines()) <= 5
  assert not (tmp_path / 'x.npz').exists()


def test_parquet_without_its_library_says_what_to_install(folders, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(feature_files.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(SystemExit):
    run(folders, tmp_path / 'x.parquet')
  assert "needs pyarrow: pip install -e '.[parquet]'" in capsys.readouterr().err


def test_a_folder_of_damaged_images_alone_is_refused(folders, tmp_path, capsys):
  (tmp_path / 'a.png').write_bytes(b'damaged')
  with pytest.raises(SystemExit):
    run(folders, tmp_path / 'x.npz', f'--images={tmp_path}')
  assert 'look at the data set' in capsys.readouterr().err
  assert not (tmp_path / 'x.npz').exists()


@pytest.mark.slow
def test_the_command_writes_a_table_from_any_folder(folders, tmp_path):
  names = [path.relative_to(folders / 'train') for path in (folders / 'train').rglob('*.png')]
  done = test_main.run(
    *(f'--weights={folders / "w.npz"}', f'--images={folders / "train"}', *VIEW),
    *('--dtype=float32', f'--out={tmp_path / "x.parquet"}'),
    module='cfn_jax.features',
  )
  assert done.returncode == 0, done.stderr
  read = pyarrow.parquet.read_table(tmp_path / 'x.parquet').to_pydict()
  assert {*read['name']} == {str(name) for name in names} - {'green/2.png'}
  assert pathlib.PurePath(read['name'][0]).parts[0] == read['label'][0]
