"""ImageNet's own files in small: its tars by prepare and by TFDS, labels of the validation tar.

Every image has the colour of its class, so a label can be told from the picture.
"""

import importlib.util
import io
import pathlib
import re
import shlex
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import scipy.io
from PIL import Image

from cfn_jax import command
from cfn_jax.data import images, label_lists, prepare, sources
from cfn_jax.data.record import SourceError
from cfn_jax.evaluation import labelled

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
# In the order of their numbers, which is not the sorted one.
SYNSETS = ('n02119789', 'n01751748', 'n01440764')
CLASSES = tuple(sorted(SYNSETS))
SHOWN = (2, 3, 1, 1, 3, 2, 2)  # the numbers of the validation images
LEVELS = dict(zip(SYNSETS, (40, 120, 200)))


def picture(wnid):
  stream = io.BytesIO()
  Image.new('RGB', (150, 140), (LEVELS[wnid],) * 3).save(stream, 'JPEG')
  return stream.getvalue()


def pack(path, members):
  """Writes members, name to bytes, in the order given."""
  with tarfile.open(path, 'w') as tar:
    for name, data in members.items():
      info = tarfile.TarInfo(name)
      info.size = len(data)
      tar.addfile(info, io.BytesIO(data))
  return path.read_bytes()


@pytest.fixture(scope='module')
def tars(tmp_path_factory):
  """A training tar of class tars and a flat validation tar, named as the real ones."""
  root = tmp_path_factory.mktemp('imagenet')
  inner = {}
  for wnid in SYNSETS:
    members = {f'{wnid}_{index}.JPEG': picture(wnid) for index in range(4)}
    inner[f'{wnid}.tar'] = pack(root / 'inner.tar', members)
  (root / 'inner.tar').unlink()
  pack(root / 'ILSVRC2012_img_train.tar', inner)
  names = [f'ILSVRC2012_val_{number:08d}.JPEG' for number in range(1, len(SHOWN) + 1)]
  shown = {name: picture(SYNSETS[number - 1]) for name, number in zip(names, SHOWN)}
  pack(root / 'ILSVRC2012_img_val.tar', dict(reversed(shown.items())))
  return root


@pytest.fixture
def lists(tmp_path):
  """The lists that people have: the development kit's two files, and Kaggle's."""
  (tmp_path / 'truth.txt').write_text(''.join(f'{number}\n' for number in SHOWN))
  (tmp_path / 'synsets.txt').write_text(''.join(f'{wnid} a, b\n' for wnid in SYNSETS))
  kind = [('ILSVRC2012_ID', 'i4'), ('WNID', 'O'), ('words', 'O'), ('num_children', 'i4')]
  rows = [(4, 'n00001740', 'entity', 3)]  # an inner node: no class
  rows += [(number + 1, wnid, 'a, b', 0) for number, wnid in enumerate(SYNSETS)]
  scipy.io.savemat(tmp_path / 'meta.mat', {'synsets': np.array(rows[::-1], kind)[:, None]})
  stems = [f'ILSVRC2012_val_{number:08d}' for number in range(1, len(SHOWN) + 1)]
  lines = [
    f'{stem},{SYNSETS[n - 1]} 1 2 3 4 {SYNSETS[n - 1]} 5 6 7 8' for stem, n in zip(stems, SHOWN)
  ]
  (tmp_path / 'solution.csv').write_text('ImageId,PredictionString\r\n' + '\r\n'.join(lines[::-1]))
  tabs = [f'{stem}.JPEG\t{SYNSETS[n - 1]}\t0\t0\t9\t9\n' for stem, n in zip(stems, SHOWN)]
  (tmp_path / 'annotations.txt').write_text(''.join(tabs))
  return tmp_path


def run(source, out, **fields):
  fields = {'num_workers': 1, **fields}
  return prepare.prepare(source=str(source), out=str(out), **fields)


def check_labels(source):
  assert source.class_names == CLASSES
  for index in range(len(source)):
    level = int(images.decode_image(source[index].data)[70, 70, 0])
    assert abs(level - LEVELS[CLASSES[source[index].label]]) < 3, source[index].name


@pytest.mark.parametrize(
  ('labels', 'synsets'),
  [
    ('truth.txt', 'synsets.txt'),
    ('truth.txt', 'meta.mat'),
    ('solution.csv', ''),
    ('solution.csv', 'meta.mat'),
    ('annotations.txt', ''),
  ],
)
def test_the_flat_validation_tar_gets_the_labels_of_a_list(tars, lists, tmp_path, labels, synsets):
  out = tmp_path / 'val'
  fields = {'labels': str(lists / labels), 'synsets': str(lists / synsets) if synsets else ''}
  index = run(tars / 'ILSVRC2012_img_val.tar', out, **fields)
  assert index['num_records'] == len(SHOWN) and index['num_skipped'] == 0
  source, _ = sources.open_sources(source='records', root=str(out), val_fraction=0)
  check_labels(source)


def documented(tars, lists, tmp_path):
  """The commands of docs/data.md from tars to training, on the small files."""
  text = (REPOSITORY / 'docs' / 'data.md').read_text().replace('\\\n', ' ')
  block = text.partition('*From the tar files*')[2].partition('*From a folder*')[0]
  for real, ours in (
    ('ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt', lists / 'truth.txt'),
    ('ILSVRC2012_devkit_t12/data/meta.mat', lists / 'meta.mat'),
    ('LOC_val_solution.csv', lists / 'solution.csv'),
    ('ILSVRC2012_img_train.tar', tars / 'ILSVRC2012_img_train.tar'),
    ('ILSVRC2012_img_val.tar', tars / 'ILSVRC2012_img_val.tar'),
    ('imagenet_val_256', tmp_path / 'val'),
    ('imagenet_256', tmp_path / 'train'),
  ):
    block = block.replace(real, str(ours))
  return [shlex.split(line) for line in block.splitlines() if line.startswith('    python -m')]


def test_the_documented_commands_lead_from_the_tars_to_labelled_images(tars, lists, tmp_path):
  commands = documented(tars, lists, tmp_path)
  trained = set()
  for words in commands:
    if words[2] == 'cfn_jax.prepare':
      subprocess.run([sys.executable, *words[1:], '--workers=1'], check=True, cwd=REPOSITORY)
      continue
    assert words[2] == 'cfn_jax.main'
    fields = dict(word[2:].split('=', 1) for word in words[3:])
    name = fields.pop('config')
    config = command.load_config(f'{REPOSITORY}/{name}')
    for field, value in fields.items():
      if field.startswith('config.data.'):
        config.data[field.removeprefix('config.data.')] = value
    if name == 'configs/cfn.py':
      training, validation = sources.open_config(config.data)
    else:
      found = labelled.open_labelled(config, multilabel=False)
      training, validation = found.training.reader.source, found.testing.reader.source
    assert (len(training), len(validation)) == (4 * len(SYNSETS), len(SHOWN)), name
    check_labels(training)
    check_labels(validation)
    trained.add(name)
  assert {f'configs/{name}.py' for name in ('cfn', 'frozen_layers', 'linear_probe')} <= trained


def test_a_part_of_the_classes_is_numbered_as_in_training(tars, tmp_path):
  run(tars / 'ILSVRC2012_img_train.tar', tmp_path / 'train')
  pack(tmp_path / 'part.tar', {'x_1.JPEG': picture(SYNSETS[0]), 'x_2.JPEG': picture(SYNSETS[1])})
  (tmp_path / 'part.csv').write_text(f'x_1,{SYNSETS[0]}\nx_2,{SYNSETS[1]}\n')
  run(tmp_path / 'part.tar', tmp_path / 'val', labels=str(tmp_path / 'part.csv'))
  fields = {'source': 'records', 'root': str(tmp_path / 'train'), 'val_root': str(tmp_path / 'val')}
  _, val = sources.open_sources(**fields)
  check_labels(val)
  (tmp_path / 'part.csv').write_text(f'x_1,{SYNSETS[0]}\nx_2,n09999999\n')
  with pytest.raises(prepare.PrepareError, match='images of other names, labels or sizes'):
    run(tmp_path / 'part.tar', tmp_path / 'val', labels=str(tmp_path / 'part.csv'))
  run(tmp_path / 'part.tar', tmp_path / 'other', labels=str(tmp_path / 'part.csv'))
  _, foreign = sources.open_sources(**{**fields, 'val_root': str(tmp_path / 'other')})
  assert foreign.class_names == () and foreign[0].label == -1
  assert 'n09999999' in foreign.foreign_classes and val.foreign_classes == ()


NAMES = [f'ILSVRC2012_val_{number:08d}.JPEG' for number in range(1, 4)]
WNIDS = 'n02119789\nn01751748\nn01440764\n'
THOUSAND = ''.join(f'n{number:08d}\n' for number in range(1000))


@pytest.mark.parametrize(
  ('names', 'labels', 'synsets', 'reason'),
  [
    (NAMES, '1\n2\n', WNIDS, 'has 2 labels, there are 3 images'),
    (NAMES, '1\n2\n3\n1\n', WNIDS, 'has 4 labels, there are 3 images'),
    (NAMES, '1\n2\n4\n', WNIDS, r'line 3: 4 is no number of 1\.\.3'),
    (NAMES, '0\n1\n2\n', WNIDS, r'line 1: 0 is no number of 1\.\.3'),
    (NAMES, '1\n2\n3\n', '', 'give --synsets: meta.mat'),
    (NAMES, '1\n2\n3\n', THOUSAND, 'in sorted order, which is not that of the numbers'),
    (NAMES, '1\n2\n3\n', 'n1\nn2\nn1\n', 'n1 twice'),
    (NAMES, '1\n2\n3\n', '\n', 'names no class'),
    (NAMES, '', WNIDS, 'is empty: it should hold the labels of 3 images'),
    (['a.jpg', *NAMES[1:]], '1\n2\n3\n', WNIDS, r'a\.jpg: its name must end in the line'),
    (['x_2.jpg', *NAMES[1:]], '1\n2\n3\n', WNIDS, 'another image has its number'),
    (['x_7.jpg', *NAMES[1:]], '1\n2\n3\n', WNIDS, r'no number of 1\.\.3'),
    (['a', 'b'], 'a n1\nb n2\nc n1\n', '', r"line 3: 'c' is none of the 2 images"),
    (['a', 'b'], 'c n1\na n1\nb n2\n', '', r"line 1: 'c' is none of the 2 images"),
    (['a', 'b', 'c'], 'a n1\nb n2\n', '', 'says nothing of 1 of the 3 images, such as c'),
    (['a', 'b'], 'a n01440764\nb n9\n', WNIDS, "line 2: the class 'n9' is not in the list"),
    (['a', 'b'], 'a n1\nb\n', '', 'a name and a class'),
    (
      ['a', 'b'],
      'a;n1\nb;n2\n',
      '',
      "line 1: 'a;n1' is none of the 2 images; a comma or blanks part",
    ),
    (['a', 'b'], 'a.jpg;n1\nb.jpg;n2\n', '', 'are expected; a comma or blanks part a name'),
    (['a', 'b'], 'a; n1\nb; n2\n', '', 'is none of the 2 images; a comma or blanks part'),
    (['a', 'b'], 'a.JPEG 0\nb.JPEG 65\n', '', 'a name and a class'),
    (['a', 'b'], 'a n1\nb n2\na n2\n', '', "line 3: 'a' is n2 here and n1 before"),
    (['x/a.jpg', 'y/a.jpg'], 'a n1\n', '', 'have one name'),
    (['a', 'b'], b'\xff\xd8\xff\x00', '', 'it holds zero bytes'),
  ],
)
def test_a_list_that_does_not_fit_is_refused(tmp_path, names, labels, synsets, reason):
  data = labels if isinstance(labels, bytes) else labels.encode()
  (tmp_path / 'labels').write_bytes(data)
  (tmp_path / 'synsets').write_text(synsets)
  with pytest.raises(SourceError, match=reason) as caught:
    label_lists.read_labels(names, tmp_path / 'labels', tmp_path / 'synsets' if synsets else None)
  assert '\n' not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_flags_of_labels_that_mean_nothing_are_refused(tars, lists, tmp_path):
  val, train = tars / 'ILSVRC2012_img_val.tar', tars / 'ILSVRC2012_img_train.tar'
  for source, fields, reason in (
    (val, {'synsets': 'meta.mat'}, '--synsets=meta.mat'),
    (val, {'labels': 'nothing.txt'}, 'nothing.txt cannot be read: No such file'),
    (
      val,
      {'labels': 'truth.txt', 'synsets': 'solution.csv.mat'},
      'solution.csv.mat cannot be read',
    ),
    (val, {'labels': 'truth.txt', 'synsets': 'truth.mat'}, "not the development kit's meta.mat"),
    (train, {'labels': 'truth.txt'}, 'have classes already, their folders, such as n01440764'),
  ):
    (lists / 'truth.mat').write_text('1\n')
    paths = {name: str(lists / file) for name, file in fields.items()}
    with pytest.raises(SourceError, match=re.escape(reason).replace('=meta', '=.*meta')):
      run(source, tmp_path / 'out', **paths)
  assert not (tmp_path / 'out').exists()


def test_missing_imagenet_is_explained_with_all_that_it_takes(tmp_path):
  config = command.load_config(f'{REPOSITORY}/configs/cfn.py')
  config.data.root = str(tmp_path)
  with pytest.raises(SourceError) as caught:
    sources.open_config(config.data)
  lines = str(caught.value).splitlines()
  assert len(lines) <= 5 and str(tmp_path) in lines[0]
  for part in (
    f'tfds build imagenet2012 --file_format=array_record --data_dir={tmp_path} --manual_dir=',
    'python -m cfn_jax.prepare',
    'data.source=folder',
    '.[tfds-build]',
    *('tensorflow', 'apache_beam', 'mlcroissant', 'importlib_resources'),
  ):
    assert part in str(caught.value), part
  assert "'tfds-build': " in (REPOSITORY / 'setup.py').read_text()


@pytest.mark.slow
def test_tfds_builds_imagenet_from_the_same_tars(tars, tmp_path):
  """`tfds build` as documented; its labels are an independent reading of the same files."""
  needed = ('tensorflow', 'apache_beam', 'mlcroissant', 'importlib_resources')
  missing = [name for name in needed if importlib.util.find_spec(name) is None]
  if missing:
    pytest.skip(f"not installed: {', '.join(missing)} (pip install -e '.[tfds-build]')")
  flags = ('--file_format=array_record', f'--manual_dir={tars}', f'--data_dir={tmp_path / "tfds"}')
  tfds = [sys.executable, '-m', 'tensorflow_datasets.scripts.cli.main']
  done = subprocess.run([*tfds, 'build', 'imagenet2012', *flags], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-2000:]
  built, val = sources.open_sources(
    source='tfds',
    root=str(tmp_path / 'tfds'),
    split='imagenet2012:train',
    val_split='imagenet2012:validation',
  )
  assert (len(built), len(val)) == (4 * len(SYNSETS), len(SHOWN))
  assert built.class_names == tuple(sorted(built.class_names)) and len(built.class_names) == 1000
  for index in range(len(built)):
    level = int(images.decode_image(built[index].data)[70, 70, 0])
    assert abs(level - LEVELS[built.class_names[built[index].label]]) < 3
