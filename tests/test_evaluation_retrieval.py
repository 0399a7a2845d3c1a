"""Retrieval: equal to brute force end to end, and never fed with features of something else."""

import json

import labelled_cases
import numpy as np
import probe_cases
import pytest
import sklearn.metrics
import test_main
import voc_cases
from PIL import Image

from cfn_jax import idle, places
from cfn_jax.data import prepare, streams
from cfn_jax.evaluation import retrieval, trunks
from cfn_jax.evaluation.frozen import crops, feature_cache, similarity
from cfn_jax.pictures import retrievals
from cfn_jax.transfer import files

SOME = {'layers': ('pool5',), 'objects.min_area_px': 600}


def make_config(root, **fields):
  return probe_cases.make_config('retrieval', root, **{**SOME, **fields})


@pytest.fixture(scope='module')
def objects(tmp_path_factory):
  root = tmp_path_factory.mktemp('retrieval')
  voc_cases.make_objects(root / 'voc')
  for seed in (3, 4):
    drawn = trunks.draw_trunk('he', seed=seed, width=0.1, order='caffenet').weights
    files.save_weights(drawn, root / f'w{seed}.npz')
  return root


def test_the_figures_are_those_of_brute_force_and_are_remembered(objects, tmp_path, monkeypatch):
  fields = {'baseline': False, 'retrieval.block_rows': 5}
  config = make_config(objects / 'voc', weights=f'one={objects / "w3.npz"}', **fields)
  found = retrieval.open_task(config)(tmp_path / 'run')
  figures = found['one']
  for name in config.layers:
    sides = []
    for side in ('queries', 'gallery'):
      (folder,) = (tmp_path / 'run' / 'features').glob(f'one-{side}-*')
      labels, rows = (
        np.concatenate([np.load(each) for each in sorted(folder.glob(f'{what}-*.npy'))])
        for what in ('label', name)
      )
      sides.append((labels[:, 0], rows / np.linalg.norm(rows, axis=1, keepdims=True)))
    (labels, x), (gallery_labels, y) = sides
    assert (figures['queries'], figures['gallery']) == (len(x), len(y)) == (12, 16)
    every = [
      sklearn.metrics.average_precision_score(gallery_labels == label, row @ y.T)
      for label, row in zip(labels, x)
    ]
    layer = figures['layers'][name]
    assert layer['map'] == pytest.approx(np.mean(every), abs=1e-6)
    means = [np.mean(np.array(every)[labels == k]) for k in range(3)]
    assert layer['map_macro'] == pytest.approx(np.mean(means), abs=1e-6)
    assert layer['values'] == x.shape[1]
    assert len(layer['sheet']) == 12 and layer['map_low'] < layer['map'] < layer['map_high']
  kept = json.loads((tmp_path / 'run' / 'results.json').read_text())
  assert kept['runs'] == found and kept['published'] == retrieval.PAPER
  pictures = {path.name for path in (tmp_path / 'run').glob('*.png')}
  assert pictures == {
    f'{what}.png'
    for layer in config.layers
    for what in (f'average_precision_{layer}', f'precision_recall_{layer}', f'nearest_{layer}_one')
  }
  monkeypatch.setattr(similarity, 'compare', None)
  assert retrieval.open_task(config)(tmp_path / 'run') == found


def test_class_folders_are_compared_as_whole_images(tmp_path):
  folders = labelled_cases.make_class_folders(tmp_path / 'images')
  (folders / 'train' / 'blue' / '3.png').write_bytes(b'no image')
  fields = {'data.source': 'folder', 'data.split': '', 'data.val_split': ''}
  fields['layers'] = ('pool5', 'conv1')
  fields |= {'data.root': str(folders / 'train'), 'data.val_root': str(folders / 'test')}
  fields |= {'data.val_max_images': 9, 'features.dimensions': 40}
  config = make_config(folders, **fields)
  config.data.on_bad_image = 'skip'
  (tmp_path / 'run').mkdir()
  figures = retrieval.open_task(config)(tmp_path / 'run')['random']
  assert (figures['queries'], figures['gallery']) == (9, 23)
  assert figures['layers']['conv1']['precision_at_1'] > 0.8  # knows colours
  assert figures['layers']['conv1']['values'] == 32  # pooled; pool5 is whole
  assert figures['layers']['pool5']['values'] == 9 * 24
  assert '3.png' in (tmp_path / 'run' / 'bad_images.tsv').read_text()
  opened, right = crops.open_sides(config), []
  gallery, queries = (each.split.reader.source for each in (opened.gallery, opened.queries))
  sheet = figures['layers']['conv1']['sheet']
  for row in sheet:  # records, not rows of the features
    right += [gallery[each].label == queries[row['query']].label for each in row['nearest']]
    assert opened.queries.show(row['query']).shape == (80, 96, 3)
  assert np.mean(right) == pytest.approx(figures['layers']['conv1']['precision_at_4'])
  assert {row['query'] for row in sheet} == {*streams.choose_records(queries, 9)}


def identify(config, tmp_path, monkeypatch):
  """Returns the names of the folders of features that a config asks for."""
  asked = []

  def open_cache(root, name, identity, **counts):
    asked.append((name.rpartition('-')[2], json.dumps([identity, counts], sort_keys=True)))
    raise InterruptedError

  monkeypatch.setattr(feature_cache, 'open_cache', open_cache)
  execute = retrieval.open_task(config)
  with pytest.raises(InterruptedError):
    execute(tmp_path)
  return asked[0]


def test_other_boxes_lists_or_areas_are_other_features(objects, tmp_path, monkeypatch):
  base = identify(make_config(objects / 'voc'), tmp_path, monkeypatch)
  assert base == identify(make_config(objects / 'voc'), tmp_path, monkeypatch)
  for changed in (
    {'objects.min_area_px': 601},
    {'objects.difficult': False},
    {'data.split': 'val', 'data.val_split': 'train'},
    {'views.view_px': 68},
    {'layers': ('pool5', 'conv1')},
    {'features.dtype': 'float16'},
  ):
    other = identify(make_config(objects / 'voc', **changed), tmp_path, monkeypatch)
    assert other != base, changed
  path = objects / 'voc' / 'Annotations' / 'train0.xml'  # the images stay as they are
  text = path.read_text()
  for old, new in (('<xmax>45<', '<xmax>46<'), ('<name>cat<', '<name>cow<')):
    path.write_text(text.replace(old, new))
    assert identify(make_config(objects / 'voc'), tmp_path, monkeypatch) != base
  path.write_text(text)
  assert identify(make_config(objects / 'voc'), tmp_path, monkeypatch) == base


def test_the_same_images_in_other_sources_are_refused_and_the_same_names_are_not(tmp_path):
  images = labelled_cases.make_class_folders(tmp_path / 'images', train=6, test=6)
  fields = {'data.source': 'folder', 'data.split': '', 'data.val_split': '', 'layers': ('pool5',)}
  both = {'data.root': str(images / 'train'), 'data.val_root': str(images / 'test')}
  retrieval.open_task(make_config(images, **fields, **both))
  records = str(tmp_path / 'records')
  prepare.prepare(source=str(images / 'train'), out=records, num_shards=2, num_workers=1)
  both = {'data.source': 'records', 'data.root': records, 'data.val_root': records}
  config = make_config(images, **fields | both)
  with pytest.raises(ValueError, match=r'18 images, such as .*: in the gallery'):
    retrieval.open_task(config)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'objects.min_area_px': 5000}, r'none of the 16 objects has 5,000 px .* largest has 1,600'),
    ({'retrieval.block_rows': 0}, 'retrieval.block_rows = 0'),
    ({'data.val_split': 'train'}, '8 images, such as .*: in the gallery and among the queries'),
    ({'retrieval.sheet_queries': -1}, 'retrieval.sheet_queries = -1'),
    ({'layers': ('pool6',)}, 'different ones of conv1'),
    ({'layers': ('pool5', 'fc6')}, 'there is no fc6'),
    ({'weights': ''}, 'weights is empty'),
    ({'weights': 'a.npz,b.npz'}, 'NAME=PATH'),
    ({'weights': 'a=w.npz,a=v.npz'}, 'two have the same name'),
    ({'weights': 'random=w.npz,a=v.npz'}, 'by themselves'),
    ({'data.source': 'bundled', 'data.split': '', 'data.val_split': '', 'data.root': ''}, 'class'),
  ],
)
def test_bad_settings_are_refused(objects, fields, message):
  with pytest.raises(ValueError, match=message):
    retrieval.open_task(make_config(objects / 'voc', **fields))


def test_classes_that_cannot_be_scored_are_refused_or_counted(tmp_path):
  def say(kind):
    return voc_cases.write_object(kind, (1, 1, 60, 60))

  few = voc_cases.make_voc(tmp_path / 'few', {'a': [say('cat')]}, {'b': [say('cat')]})
  one = voc_cases.make_voc(
    tmp_path / 'one', {f't{each}': [say('cat')] for each in range(5)}, {'b': [say('cat')]}
  )
  some = {f't{each}': [say(('cat', 'dog')[each % 2])] for each in range(4)}
  small = voc_cases.write_object('cow', (1, 1, 20, 20))
  lost = voc_cases.make_voc(
    tmp_path / 'lost', {**some, 'c': [small]}, {'b': [say('cat'), say('dog'), say('cow')]}
  )
  for root, message in (
    (few, 'the gallery has 1; at least 4'),
    (one, 'all 5 in the gallery are of one class, cat: there is nothing to tell apart'),
    (lost, 'classes without objects, none in the gallery: cow; data.allow_empty_classes=True'),
  ):
    config = make_config(root, **{'data.val_split': 'test'})
    with pytest.raises(ValueError, match=message):
      retrieval.open_task(config)
  config.data.allow_empty_classes = True
  found = retrieval.open_task(config)(tmp_path / 'run')['random']['layers']['pool5']
  assert found['queries_without_answer'] == 1 and found['classes_without_figure'] == ['cow']


def test_difficult_objects_may_be_all_that_there_are_of_a_class(objects, tmp_path):
  """A detection refuses such a test: they do not count there."""
  root = voc_cases.make_objects(tmp_path / 'voc')
  for path in (root / 'Annotations').glob('val*.xml'):
    path.write_text(path.read_text().replace('<difficult>0<', '<difficult>1<'))
  retrieval.open_task(make_config(root))
  with pytest.raises(ValueError, match='difficult'):
    retrieval.open_task(make_config(root, **{'objects.difficult': False}))


def test_weights_by_name_are_split_and_a_path_that_is_there_is_one(tmp_path):
  assert places.split_named('a=x,b=y=z', 'weights') == {'a': 'x', 'b': 'y=z'}
  odd = tmp_path / 'a=1,b.npz'
  odd.touch()
  assert places.split_named(str(odd), 'weights') == {'': str(odd)}
  for text in ('a=x,y', 'a=,b=y', '=x', 'a b=x', '../a=x'):
    with pytest.raises(places.PlaceError, match='NAME=PATH'):
      places.split_named(text, 'weights')


def test_several_runs_may_be_asked_for_a_step(objects, tmp_path):
  (tmp_path / 'run' / 'checkpoints').mkdir(parents=True)
  config = make_config(objects / 'voc', weights=f'a={tmp_path / "run"},b=w.npz')
  idle.check(config, ['weights_step', 'weights_collection'])
  config.weights = 'a=v.npz,b=w.npz'
  with pytest.raises(ValueError, match='weights_step'):
    idle.check(config, ['weights_step'])


def test_a_sheet_shows_right_and_wrong_apart_without_colour(tmp_path):
  grey = np.full((20, 30, 3), 128, np.uint8)
  for name, kinds in (('right', 'cccc'), ('wrong', 'dddd')):
    row = retrievals.Row(
      retrievals.Shown(grey, 'c'), [retrievals.Shown(grey, kind) for kind in kinds]
    )
    retrievals.draw_sheet(tmp_path / f'{name}.png', [row], title='$x$')
  seen = [
    np.array(Image.open(tmp_path / f'{name}.png').convert('L')) for name in ('right', 'wrong')
  ]
  dark = [np.mean(each < 200) for each in seen]  # a dashed frame has less of a line
  assert seen[0].shape == seen[1].shape and dark[0] > dark[1]


def test_the_sheet_shows_classes_in_turn_by_the_seed():
  labels, gallery = np.repeat([3, 0, 1, 2], 5), np.array([0, 1, 3])  # nothing is relevant to 2
  shown = [retrieval.choose_queries(labels, gallery, 4, seed=seed) for seed in (0, 0, 1)]
  assert shown[0].tolist() == shown[1].tolist() != shown[2].tolist()
  for each in shown:
    assert labels[each].tolist() == sorted(labels[each])
    assert sorted(np.bincount(labels[each], minlength=4).tolist()) == [0, 1, 1, 2]
    assert len(set(each)) == 4 and 2 not in labels[each]
  assert len(retrieval.choose_queries(labels, gallery, 50, seed=0)) == 15


def test_random_weights_stand_beside_the_others(objects):
  named = f'one={objects / "w3.npz"},two={objects / "w4.npz"}'
  config = make_config(objects / 'voc', weights=named)
  assert [*trunks.open_named(config)] == ['one', 'two', 'random']
  config.baseline = False
  found = trunks.open_named(config)
  assert {name: each.label() for name, each in found.items()} == {
    'one': 'one (width 0.104)',
    'two': 'two (width 0.104)',
  }
  config.update({'weights': str(objects / 'w3.npz'), 'baseline': True})
  assert [*trunks.open_named(config)] == ['pretrained', 'random']


@pytest.mark.slow
def test_the_command_prints_a_table(objects, tmp_path):
  done = test_main.run(
    '--config=configs/retrieval.py:small',
    f'--config.weights=a={objects / "w3.npz"},b={objects / "w4.npz"}',
    f'--config.data.root={objects / "voc"}',
    '--config.objects.min_area_px=600',
    '--config.views.view_px=67',
    f'--workdir={tmp_path / "run"}',
  )
  assert done.returncode == 0, done.stderr
  for told in (
    'a (width 0.1',
    'b (width 0.1',
    'random (width 0.1',
    'share of the class',
    '216 values',
  ):
    assert told in done.stdout
