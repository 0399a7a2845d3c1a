"""VOC detection end to end at its smallest: files and figures, what may change them, bad input."""

import dataclasses
import json
import shutil

import detection_cases
import jax
import numpy as np
import pytest
import scipy.io
import test_main
from PIL import Image

from cfn_jax import convert, predict
from cfn_jax.data import pipeline, views
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import trunks, voc_detection
from cfn_jax.evaluation.detection import average_precision, detector, opened
from cfn_jax.evaluation.finetuning import magic_init
from cfn_jax.training import devices, loop, scoring, step_folders
from cfn_jax.transfer import checkpoints, files
from cfn_jax.transfer import weights as weights_lib

STEMS = [f'val{index}' for index in range(6)]


@pytest.fixture(scope='module')
def voc(tmp_path_factory):
  return detection_cases.make_voc(tmp_path_factory.mktemp('voc') / 'VOC2007')


@pytest.fixture(scope='module')
def weights(tmp_path_factory):
  return detection_cases.save_alexnet(tmp_path_factory.mktemp('weights') / 'alexnet.npz')


@pytest.fixture(scope='module')
def finished(voc, weights, tmp_path_factory):
  """A workdir and its config, by which both runs have the same shapes."""
  features = {'model.fc6_features': 12, 'model.fc7_features': 12}
  config = detection_cases.make_config(voc, weights=str(weights), schedule='step', **features)
  workdir = tmp_path_factory.mktemp('run')
  voc_detection.open_task(config)(workdir)
  return workdir, config


def change(config, **fields):
  other = config.copy_and_resolve_references()
  other.update_from_flattened_dict(fields)
  return other


def read_detections(folder):
  paths = sorted((folder / 'detections').iterdir())
  return {path.name: path.read_bytes() for path in paths}


# ---- what a run leaves behind


def test_results_hold_figures_of_each_class_the_papers_and_where_weights_come_from(finished):
  workdir, config = finished
  found = json.loads((workdir / 'results.json').read_text())
  assert found['task'] == 'voc_detection' and found['published']['CFN'] == 53.2
  assert found['config'] == json.loads(json.dumps(config.to_dict()))
  assert list(found['runs']) == ['pretrained', 'random']
  origins = list(found['weights'].values())
  assert origins[0]['path'] == config.weights and origins[0]['arrays_sha256']
  assert origins[1] == {'path': 'random', 'init': 'he', 'seed': 0}
  for figures in found['runs'].values():
    per_class = figures['per_class']
    assert per_class['positives'] == {'cat': 3, 'dog': 4}  # difficult ones do not count
    for figure, name in (
      ('val_map', 'average_precision'),
      ('val_map_11_point', 'average_precision_11_point'),
    ):
      assert list(per_class[name]) == ['cat', 'dog']
      assert figures[figure] == pytest.approx(np.mean(list(per_class[name].values())))
    low, high = figures['val_map_11_point_low'], figures['val_map_11_point_high']
    assert low <= figures['val_map_11_point'] <= high
    assert figures['val_count'] == 6 and figures['classes_without_figure'] == []
    assert 0 <= figures['val_recall'] <= 1


@pytest.mark.parametrize('run', ['pretrained', 'random'])
def test_the_devkits_files_say_the_same_figures(finished, voc, run):
  workdir, config = finished
  figures = json.loads((workdir / 'results.json').read_text())['runs'][run]
  names = detection_cases.CLASSES
  read = detection_cases.read_devkit(
    workdir / run / 'detections', split='val', class_names=names, stems=STEMS
  )
  objects = opened.open_data(config).testing.images.objects
  judged = average_precision.judge_classes(read, objects, names)
  assert judged.eleven_points == figures['per_class']['average_precision_11_point']
  assert judged.area == figures['per_class']['average_precision']
  assert sum(len(each.scores) for each in read) == figures['val_detections']
  for each in read:
    for image, box in zip(each.images, each.boxes):
      height, width = detection_cases.SIZES[image]
      assert (box[:2] <= box[2:]).all() and (box >= 0).all()
      assert box[2] <= width - 1 and box[3] <= height - 1
  lines = json.loads((workdir / run / 'detections' / 'detections.json').read_text())
  assert list(lines['images']) == STEMS
  assert sum(map(len, lines['images'].values())) == figures['val_detections']


def test_the_pictures_open(finished):
  workdir, _ = finished
  for name in ('average_precision.png', 'pretrained/detections.png', 'random/detections.png'):
    with Image.open(workdir / name) as image:
      assert min(image.size) > 200
      assert len(np.unique(np.asarray(image.convert('L')))) > 20


def test_given_layers_start_as_given_and_conv1_stays(finished, weights):
  workdir, config = finished
  given = files.load_weights(weights).params
  plan = voc_detection.make_plan(config)
  params = plan.runs[0].task.init(0)
  for layer in (*weights_lib.CONVOLUTIONS, 'fc6', 'fc7'):
    np.testing.assert_array_equal(params[layer]['kernel'], given[layer]['kernel'])
  assert params['cls_score']['kernel'].shape == (12, 3)
  assert params['bbox_pred']['kernel'].shape == (12, 12)
  random = plan.runs[1].task.init(0)
  assert not any(
    np.array_equal(random[n]['kernel'], given[n]['kernel']) for n in params if n in given
  )
  for run, start in (('pretrained', params), ('random', random)):
    trained = checkpoints.read_params(workdir / run, step='2')
    for layer, arrays in trained.items():
      for name, array in arrays.items():
        assert np.array_equal(array, start[layer][name]) == (layer == 'conv1'), (layer, name)


def test_a_checkpoint_says_by_which_moves_its_boxes_are_normalised(finished):
  workdir, config = finished
  folder = workdir / 'pretrained' / 'checkpoints' / '2'
  meta = step_folders.read_meta(folder)
  read = detector.rebuild(folder, config, meta)
  wanted = opened.measure_moves(config, opened.open_data(config))
  np.testing.assert_array_equal(read.moves.means, wanted.means)
  np.testing.assert_array_equal(read.moves.stds, wanted.stds)
  assert meta['class_names'] == list(detection_cases.CLASSES)


def test_fully_connected_layers_of_other_maps_are_drawn(voc, weights, tmp_path):
  whole = files.load_weights(weights)
  fc6 = whole.params['fc6']
  small = whole.params | {'fc6': fc6 | {'kernel': fc6['kernel'][: 25 * 16]}}  # of 5 x 5
  files.save_weights(whole.replace(params=small), tmp_path / 'w.npz')
  config = detection_cases.make_config(voc, weights=str(tmp_path / 'w.npz'), baseline=False)
  params = voc_detection.make_plan(config).runs[0].task.init(0)
  assert params['fc6']['kernel'].shape == (36 * 16, 16)  # features of the config
  assert params['fc7']['kernel'].shape == (16, 16)


def test_the_same_command_again_trains_nothing(finished, monkeypatch):
  workdir, config = finished
  before = json.loads((workdir / 'results.json').read_text())['runs']

  def refuse(*_):
    raise AssertionError('this run was done before')

  monkeypatch.setattr(loop, 'run', refuse)
  assert voc_detection.open_task(config)(workdir) == before


# ---- what may change detections, and what may not


@pytest.mark.slow
def test_detections_do_not_depend_on_where_the_test_objects_are(finished, voc, tmp_path):
  workdir, config = finished
  moved = detection_cases.move_boxes(voc, tmp_path / 'VOC2007')
  other = change(config, **{'data.root': str(moved), 'baseline': False})
  figures = voc_detection.open_task(other)(tmp_path / 'run')
  assert read_detections(tmp_path / 'run' / 'pretrained') == read_detections(workdir / 'pretrained')
  before = json.loads((workdir / 'results.json').read_text())['runs']['pretrained']
  assert figures['pretrained']['per_class'] != before['per_class']


@pytest.mark.slow
def test_a_stopped_run_resumes_as_if_it_had_not_been(finished, tmp_path):
  workdir, config = finished
  for steps in (1, 2):
    other = change(config, num_steps=steps, baseline=False)
    loop.fit(voc_detection.make_plan(other).runs[0].task, other, tmp_path)
  one, two = (
    checkpoints.read_params(folder, step='2') for folder in (tmp_path, workdir / 'pretrained')
  )
  jax.tree.map(np.testing.assert_array_equal, one, two)


def see_rows(config, params, count=1):
  """Returns the rows of the final pass."""
  evaluation = voc_detection.make_plan(config).runs[0].passes['']
  evaluation = dataclasses.replace(evaluation, report=dict)
  mesh = devices.make_mesh(count)
  return scoring.make_score(evaluation, mesh)(devices.replicate(params, mesh), lambda: False)


@pytest.mark.slow
def test_detections_depend_on_no_batch_no_canvas_and_no_number_of_devices(finished):
  workdir, config = finished
  params = checkpoints.read_params(workdir / 'pretrained', step='2')
  params['cls_score']['kernel'] = 30 * params['cls_score']['kernel']  # scores away from ties
  first, *others = (
    see_rows(
      change(config, eval_batch_size=size, baseline=False, **{'images.canvases': most}),
      params,
      count,
    )
    for size, count, most in ((2, 1, 1), (1, 1, 2), (4, 2, 1))
  )
  assert first['found'].shape == (6, 2, 10, 5) and first['record'].tolist() == list(range(6))
  for other in others:
    assert other['record'].tolist() == list(range(6))
    np.testing.assert_allclose(other['found'][..., 4], first['found'][..., 4], atol=1e-5)
    np.testing.assert_allclose(other['found'][..., :4], first['found'][..., :4], atol=1e-2)


def test_a_checkpoint_converts_to_the_trunk_and_starts_another_detection(
  finished, tmp_path, capsys
):
  workdir, config = finished
  convert.main([f'--checkpoint={workdir / "pretrained"}', '--to=safetensors', f'--out={tmp_path}'])
  assert 'conv1..conv5' in capsys.readouterr().out
  trained = checkpoints.read_params(workdir / 'pretrained', step='2')
  for source in (workdir / 'pretrained', tmp_path):
    other = change(config, weights=str(source), baseline=False)
    params = voc_detection.make_plan(other).runs[0].task.init(0)
    for layer in weights_lib.CONVOLUTIONS:
      for name in ('kernel', 'bias'):
        np.testing.assert_allclose(params[layer][name], trained[layer][name], rtol=1e-6)


@pytest.mark.slow
def test_fresh_layers_start_with_outputs_of_unit_variance(voc, weights):
  """Those of regions as large as the image; conv1 .. conv5 of the random one are fresh too."""
  config = detection_cases.make_config(voc, weights=str(weights), magic_init='fresh')
  data, plan = opened.open_data(config), voc_detection.make_plan(config)
  moves, started = opened.measure_moves(config, data), trunks.open_compared(config)
  for name, fresh in (('pretrained', ()), ('random', (*weights_lib.CONVOLUTIONS, 'fc6', 'fc7'))):
    drawn = name == 'random'
    plain = detector.make_detector(config, data.class_names, moves, started[name], drawn=drawn)
    made = magic_init.add(plain, 'fresh', data.training.reader, seed=0)
    (run,) = (each for each in plan.runs if each.name == name)
    params = run.task.init(0)
    whole = views.MakeViews('whole', made.view_px, 0, 'squash', mirror=False)
    images = np.stack([whole(data.training.reader.evaluate(each))['image'] for each in range(6)])
    for layer in plain.shapes():
      if layer in fresh:
        outputs = np.asarray(magic_init.see_layer(made, params, images, layer)[1], np.float64)
        outputs = outputs.reshape(-1, outputs.shape[-1])
        varies = outputs.std(0) > 1e-3
        assert varies.mean() > 0.5
        np.testing.assert_allclose(outputs.mean(0)[varies], 0.1, atol=1e-2)
        np.testing.assert_allclose(outputs.std(0)[varies], 1, atol=1e-2)
      elif layer in plain.loaded:
        np.testing.assert_array_equal(params[layer]['kernel'], plain.given[layer]['kernel'])


def test_loader_processes_have_room_for_batches_on_the_largest_canvas(voc, monkeypatch):
  scales = {'images.scales_px': (20, 40, 64), 'images.canvases': 6, 'test.scales_px': (40, 64)}
  config = detection_cases.make_config(voc, **scales)
  sizes, rooms = [], []
  for workers in (0, 1):
    config.data.num_workers = workers
    run = voc_detection.make_plan(config).runs[0]
    for batches in (run.task.train_batches(0, 40), run.passes[''].batches()):
      sizes.append(max((batch['image'].nbytes for batch in batches), default=0))
    monkeypatch.setattr(  # no process is started, and no batch made
      pipeline, 'run_over', lambda *_, bytes_each: rooms.append(bytes_each) or (each for each in ())
    )
  assert rooms[0] >= sizes[0] > 0 and rooms[1] >= sizes[1] > 0


@pytest.mark.slow
def test_predict_finds_what_the_test_found_and_names_damaged_images(
  finished, voc, tmp_path, capsys
):
  workdir, _ = finished
  images, out = tmp_path / 'images', tmp_path / 'out'
  images.mkdir()
  for path in (voc / 'JPEGImages').glob('val*'):
    shutil.copy(path, images)
  options = [f'--workdir={workdir / "random"}', f'--images={images}', f'--out={out}', '--score=0']
  predict.main(options)
  before = json.loads((workdir / 'random/detections/detections.json').read_text())['images']
  after = json.loads((out / 'detections.json').read_text())['images']
  assert after == before
  assert len(list((out / 'pictures').iterdir())) == 6
  (images / 'broken.jpg').write_bytes(b'no picture')
  (images / 'cut.png').write_bytes((images / 'val3.png').read_bytes()[:-2000])
  capsys.readouterr()
  predict.main([*options, '--proposals=segments'])
  told = capsys.readouterr()
  assert 'in 6 images' in told.out and '2 could not be decoded' in told.out
  assert 'broken.jpg' in told.err


# ---- bad input


def test_other_boxes_and_other_proposals_are_another_run(voc, tmp_path):
  shutil.copytree(voc, tmp_path / 'x')

  def identify(**fields):
    config = detection_cases.make_config(tmp_path / 'x', **fields)
    return voc_detection.make_plan(config).runs[0].task.fingerprint

  before = identify()
  assert before == identify() != identify(**{'proposals.keep': 39})
  for stem in ('train0', 'val0'):
    shown = detection_cases.OBJECTS[0]
    moved = [(shown[0][0], (5, 6, 40, 50), False), *shown[1:]]
    detection_cases.write_annotation(tmp_path / 'x', stem, moved)
    after = identify()
    assert before != after
    before = after


def test_damaged_images_and_images_listed_twice_are_named_before_any_training(voc, tmp_path):
  shutil.copytree(voc, tmp_path / 'x')
  path = tmp_path / 'x/JPEGImages/val1.png'
  path.write_bytes(path.read_bytes()[:-40])
  with pytest.raises(CfnError, match=r'1 of 6 images cannot be decoded: \S*val1\.png: .*mend'):
    voc_detection.make_plan(detection_cases.make_config(tmp_path / 'x'))
  with (tmp_path / 'x/ImageSets/Main/val.txt').open('a') as file:
    file.write('\nval0\n')
  with pytest.raises(CfnError, match=r'val\.txt names 1 of its 6 images more than once'):
    voc_detection.make_plan(detection_cases.make_config(tmp_path / 'x'))


def write_proposals(folder, change):
  boxes = [np.array([[0, 0, 39, 39], [3, 4, 50, 60]], np.float32) for _ in range(6)]
  change(boxes)
  return {'proposals.test': str(detection_cases.save_proposals(folder / 'p.npz', boxes))}


BAD_FIELDS = [
  ({'proposals.train': ''}, "proposals.train is empty: it is 'grid', or names"),
  ({'proposals.test': ''}, "proposals.test is empty: it is 'grid', or names"),
  ({'proposals.test': 'nothing.mat'}, 'proposals.test=nothing.mat: there is no such file'),
  ({'data.val_split': ''}, "proposals.test = 'grid': the test is a part of the list"),
  ({'images.scales_px': ()}, r'images.scales_px = \(\): one to 16 short sides from 16 px'),
  ({'test.scales_px': ()}, r'test.scales_px = \(\): one to 16'),
  ({'test.scales_px': (64, 15)}, r'test.scales_px = \(64, 15\): one to 16 short sides from 16 px'),
  ({'images.scales_px': (108,)}, r'images.scales_px = \(108,\): .* to images.longest_px = 107'),
  ({'images.longest_px': 10}, 'images.longest_px = 10: at least 32'),
  ({'regions.background_low': 0.5}, 'regions.background_low = 0.5, background_high = 0.5'),
  ({'regions.background_high': 0.6}, 'background_high = 0.6, foreground_overlap = 0.5: 0 <= low'),
  ({'regions.per_image': 0}, 'regions.per_image = 0: at least 1'),
  ({'regions.foreground': 1.5}, 'regions.foreground = 1.5: at most 1'),
  ({'images.canvases': 0}, 'images.canvases = 0: at least 1'),
  ({'images.canvases': 7}, 'images.canvases = 7: at most 6'),
  ({'test.per_class': 0}, 'test.per_class = 0: at least 1'),
  ({'test.suppress_overlap': 0.0}, 'test.suppress_overlap = 0.0: at least 0.01'),
  ({'model.fc6_features': 0}, 'model.fc6_features = 0: at least 1'),
  ({'locked_convolutions': 6}, 'locked_convolutions = 6: at most 5'),
  ({'proposals.keep': -1}, 'proposals.keep = -1: at least 0'),
  ({'magic_init': 'lsuv'}, "magic_init = 'lsuv' is unknown"),
  ({'batch_size': 3, 'num_devices': 2}, 'batch_size'),
  ({'eval_batch_size': 3, 'num_devices': 2}, 'eval_batch_size'),
  ({'data.split': 'trainval'}, 'there is no list'),
  ({'data.val_split': 'test'}, 'there is no list'),
  ({'data.root': ''}, 'data.root is empty'),
  ({'data.on_bad_box': 'skip'}, "data.on_bad_box = 'skip'"),
  ({'weights': ''}, 'weights is empty'),
  ({'weights': 'nothing.npz'}, 'nothing.npz: there is no such file'),
  ({'model.init': 'caffe'}, "model.fc_init = 'he' draws"),
]


def check_refused(config, words):
  """Opening the task raises an error of few lines that holds the words."""
  with pytest.raises(CfnError, match=words) as raised:
    voc_detection.open_task(config)
  assert len(str(raised.value).splitlines()) <= 5


@pytest.mark.parametrize(('fields', 'words'), BAD_FIELDS)
def test_bad_fields_are_refused_before_any_training(voc, fields, words):
  check_refused(detection_cases.make_config(voc, **fields), words)


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    (lambda boxes: boxes[2].fill(np.nan), 'box 1 of val2 .* is not of finite numbers'),
    (lambda boxes: boxes.pop(), '1 of the 6 images have no proposals there: val5'),
    (lambda boxes: boxes.__setitem__(3, boxes[3][:0]), '1 of the 6 images have no box of 2 px'),
    (lambda boxes: boxes[4].__setitem__((1, 2), 60), 'box 2 of val4 .60 x 75 px. lies outside'),
  ],
)
def test_bad_proposals_are_refused_before_any_training(voc, tmp_path, change, words):
  config = detection_cases.make_config(voc, **write_proposals(tmp_path, change))
  check_refused(config, words)


def test_proposals_of_another_number_of_images_are_refused(voc, tmp_path):
  cells = np.empty((1, 5), object)
  cells[:] = [[np.array([[1.0, 1, 40, 40]])]]
  scipy.io.savemat(tmp_path / 'p.mat', {'boxes': cells})
  check_refused(
    detection_cases.make_config(voc, **{'proposals.train': str(tmp_path / 'p.mat')}),
    'proposals.train=.*: .*5.*6',
  )


def test_one_list_takes_the_proposals_of_training_for_both(voc, tmp_path):
  boxes = [np.array([[0, 0, 39, 39], [3, 4, 50, 50]], np.float32)] * 6
  where = str(detection_cases.save_proposals(tmp_path / 'p.npz', boxes, split='train'))
  fields = {'data.val_split': '', 'proposals.train': where, 'proposals.test': ''}
  config = detection_cases.make_config(voc, **fields, **{'data.val_fraction': 0.5})
  config.data.allow_empty_classes = True
  data = opened.open_data(config)
  assert len(data.training.proposals) + len(data.testing.proposals) == 6
  for split in (data.training, data.testing):
    assert len(split.proposals) == len(split.images.objects) > 0


def test_a_second_folder_without_lists_has_proposals_of_its_own(voc, tmp_path):
  other = tmp_path / 'OTHER'
  shutil.copytree(voc, other, ignore=shutil.ignore_patterns('ImageSets', 'train*'))
  boxes = [np.array([[0, 0, 39, 39]], np.float32)] * 6
  paths = {
    f'proposals.{which}': str(
      detection_cases.save_proposals(tmp_path / f'{split}.npz', boxes, split)
    )
    for which, split in (('train', 'train'), ('test', 'val'))
  }
  fields = {'data.val_root': str(other), 'data.val_split': ''}
  data = opened.open_data(detection_cases.make_config(voc, **fields, **paths))
  assert data.testing.images.source.stems() == STEMS and len(data.testing.proposals) == 6


def copy_folder(voc, to, change):
  shutil.copytree(voc, to)
  path = to / 'Annotations' / 'val1.xml'
  path.write_text(change(path.read_text()))
  return detection_cases.make_config(to)


@pytest.mark.parametrize(
  ('change', 'words'),
  [
    (lambda text: text.replace('dog', 'cow'), r'the classes differ: .*1 only in test \(cow\)'),
    (
      lambda text: text.replace('<object>', '<filename>val9.png</filename><object>', 1),
      'val1.xml is of another image: its <filename> is val9.png',
    ),
    (lambda text: text.replace('<xmax>51<', '<xmax>99<'), r'val1.xml: dog \(9, 21, 99, 71\)'),
    (lambda text: text[:-20], 'val1.xml cannot be read'),
  ],
)
def test_bad_annotations_are_refused_before_any_training(voc, tmp_path, change, words):
  check_refused(copy_folder(voc, tmp_path / 'VOC2007', change), words)


@pytest.mark.parametrize('classes', [('dog',), ('cat', 'dog')])
def test_a_test_of_difficult_objects_alone_is_refused(voc, tmp_path, classes):
  shutil.copytree(voc, tmp_path / 'VOC2007')
  for index, shown in enumerate(detection_cases.OBJECTS):
    marked = [(name, box, mark or name in classes) for name, box, mark in shown]
    detection_cases.write_annotation(tmp_path / 'VOC2007', f'val{index}', marked)
  config = detection_cases.make_config(tmp_path / 'VOC2007')
  check_refused(config, f'all test objects of {len(classes)} of the 2 classes are .*difficult')
  config.data.allow_empty_classes = True
  if len(classes) == 1:
    voc_detection.open_task(config)
  else:
    check_refused(config, 'all test objects of 2 of the 2 classes are marked as difficult')


def test_weights_without_a_whole_trunk_are_refused(voc, weights, tmp_path):
  whole = files.load_weights(weights)
  params = {name: whole.params[name] for name in ('conv1', 'conv2')}
  files.save_weights(whole.replace(params=params, kind='trunk'), tmp_path / 'half.npz')
  check_refused(
    detection_cases.make_config(voc, weights=str(tmp_path / 'half.npz')),
    'conv3, conv4, conv5 missing',
  )


def test_the_command_line_says_it_in_one_line_with_code_2(voc, tmp_path):
  done = test_main.run(
    f'--config={detection_cases.REPOSITORY}/configs/voc07_detection.py:small',
    *(f'--config.data.root={voc}', '--config.weights=random', '--config.proposals.test='),
    f'--workdir={tmp_path}',
  )
  assert done.returncode == 2
  assert done.stderr.splitlines()[-1].startswith("error: proposals.test is empty: it is 'grid'")
  assert 'Traceback' not in done.stderr and not (tmp_path / 'random').exists()
