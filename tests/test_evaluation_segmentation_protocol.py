"""A whole segmentation on a tiny folder: its loss, its solver, its files, its guards."""

import dataclasses
import io
import json
import pathlib
import shutil

import detection_cases
import jax
import jax.numpy as jnp
import mask_cases
import numpy as np
import pytest
from PIL import Image

from cfn_jax import command, predict
from cfn_jax.data import mask_files, streams
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import trunks, voc_segmentation
from cfn_jax.evaluation.finetuning import magic_init
from cfn_jax.evaluation.segmentation import confusion, segmenter
from cfn_jax.models import inputs
from cfn_jax.training import devices, loop, scoring
from cfn_jax.transfer import files

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CLASSES = ('background', 'square', 'strange thing')
SIZES = ((40, 56), (56, 40), (48, 48), (33, 56))
STEPS = 120


def write_mask(root, stem, mask):
  picture = Image.fromarray(mask)
  picture.putpalette(mask_files.COLOURS.tobytes())
  picture.save(root / 'SegmentationClass' / f'{stem}.png')


def draw_mask(rng, height, width):
  """Draws a square, as large as a wide image: scores are 32 px apart."""
  mask = np.zeros((height, width), np.uint8)
  top, left = rng.integers(0, 4 if width > 50 else 16, 2)
  side = 99 if width > 50 else 16
  mask[top : top + side, left : left + side] = 1
  mask[-12:, -12:] = 2
  mask[0] = 255
  return mask


@pytest.fixture(scope='module')
def voc(tmp_path_factory):
  root = tmp_path_factory.mktemp('voc') / 'MINE'
  for name in ('JPEGImages', 'SegmentationClass', 'ImageSets/Segmentation'):
    (root / name).mkdir(parents=True)
  rng = np.random.default_rng(0)
  for split in ('train', 'val'):
    stems = [f'{split}{index}' for index in range(len(SIZES))]
    (root / 'ImageSets/Segmentation' / f'{split}.txt').write_text('\n'.join(stems))
    for stem, (height, width) in zip(stems, SIZES):
      mask = draw_mask(rng, height, width)
      image = rng.integers(0, 60, (height, width, 3), dtype=np.uint8) + 90 * (mask[..., None] % 3)
      Image.fromarray(image.astype(np.uint8)).save(root / 'JPEGImages' / f'{stem}.png')
      write_mask(root, stem, mask)
  (root / 'classes.txt').write_text('\n'.join(CLASSES))
  return root


@pytest.fixture(scope='module')
def finished(voc, tmp_path_factory):
  """Trains until the classes are told apart, so that a mask that is turned or mixed up shows."""
  config = mask_cases.make_config(
    voc, num_steps=STEPS, learning_rate=0.02, **{'model.dropout': 0.0}
  )
  workdir = tmp_path_factory.mktemp('run')
  return workdir, config, voc_segmentation.open_task(config)(workdir)


def read_masks(workdir):
  paths = sorted((workdir / 'random/predictions/comp5_val_cls').iterdir())
  return {path.stem: np.asarray(Image.open(path)) for path in paths}


def test_figures_are_those_of_the_masks_that_were_written(finished, voc):
  workdir, _, figures = finished
  written = read_masks(workdir)
  assert sorted(written) == [f'val{index}' for index in range(4)]
  total = np.zeros((3, 3), np.int64)
  for stem, answer in written.items():
    truth = np.asarray(Image.open(voc / 'SegmentationClass' / f'{stem}.png'))
    assert answer.shape == truth.shape
    total += confusion.count(truth, answer, 3)
  scores = confusion.measure(total)
  found = figures['random']
  assert found['pixels'] == total.tolist()
  assert found['val_mean_iou'] == pytest.approx(scores.mean_iou)
  assert found['val_pixel_accuracy'] == pytest.approx(scores.pixel_accuracy)
  assert found['per_class']['iou'] == pytest.approx(dict(zip(CLASSES, scores.iou)), nan_ok=True)
  background = total.sum(1)[0] / total.sum()
  assert found['all_background']['val_pixel_accuracy'] == pytest.approx(background)
  results = json.loads((workdir / 'results.json').read_text())
  assert results['published']['CFN'] == 37.6 and results['task'] == 'voc_segmentation'
  for name in ('iou.png', 'random/segmentations.png'):
    assert Image.open(workdir / name).size[0] > 300


def test_it_learns(finished):
  found = finished[2]['random']
  assert found['val_mean_iou'] > found['all_background']['val_mean_iou'] + 0.1
  answered = np.sum(found['pixels'], axis=0)
  assert (answered > 100).sum() >= 2, answered


def test_the_same_command_trains_nothing_again(finished, monkeypatch):
  workdir, config, figures = finished
  monkeypatch.setattr(loop, 'fit', None)
  again = voc_segmentation.open_task(config)(workdir)
  assert again['random']['pixels'] == figures['random']['pixels']


def test_the_full_config_has_the_published_figures():
  config = command.load_config(f'{REPOSITORY}/configs/voc12_segmentation.py')
  published = {
    'learning_rate': 1e-4,
    'decay_factor': 1.0,
    'momentum': 0.9,
    'weight_decay': 5e-4,
    'batch_size': 20,
    'accumulate_steps': 20,
    'num_steps': 100_000,
    'bias_rate': 2.0,
    'bias_decay': 0.0,
    'locked_convolutions': 0,
    'magic_init': '',
    'images.mirror': False,
    'data.split': 'train',
    'data.val_split': 'val',
  }
  held = config.to_dict() | {
    f'{section}.{name}': value
    for section in ('images', 'data')
    for name, value in config[section].to_dict().items()
  }
  assert {name: held[name] for name in published} == published


@pytest.mark.slow
def test_masks_of_the_test_reach_no_answer(finished, voc, tmp_path):
  workdir, config, _ = finished
  other = tmp_path / 'other'
  shutil.copytree(voc, other)
  rng = np.random.default_rng(7)
  for index, (height, width) in enumerate(SIZES):
    write_mask(other, f'val{index}', draw_mask(rng, height, width)[::-1].copy())
  config = config.copy_and_resolve_references()
  config.data.root = str(other)
  voc_segmentation.open_task(config)(tmp_path / 'run')
  before, after = read_masks(workdir), read_masks(tmp_path / 'run')
  for stem, answer in before.items():
    np.testing.assert_array_equal(after[stem], answer)


@pytest.mark.slow
def test_figures_depend_on_no_batch_size_and_no_number_of_devices(finished, voc):
  config = finished[1]
  for fields in ({'eval_batch_size': 3}, {'eval_batch_size': 2, 'num_devices': 2}):
    other = mask_cases.make_config(voc, **fields)
    run = voc_segmentation.make_plan(other).runs[0]
    params = run.task.init(0)
    kernel = params['score_fr']['kernel']
    params['score_fr']['kernel'] = np.random.default_rng(0).normal(size=kernel.shape).astype('f4')
    plain = voc_segmentation.make_plan(config).runs[0]
    found = []
    for each, count in ((run, other.num_devices), (plain, 1)):
      mesh = devices.make_mesh(count)
      placed = devices.replicate(params, mesh)
      found.append(scoring.make_score(each.passes[''], mesh)(placed, lambda: False))
    assert found[0] == found[1]
    assert found[0]['val_pixel_accuracy'] > 0


def make_given(scores):
  """A segmenter whose scores are given."""

  class Given(segmenter.Segmenter):
    def see(self, params, batch, key=None):
      return jnp.asarray(scores)

  record = inputs.RECORDS['unit']
  return Given(network=None, view_px=8, input_record=record, class_names=CLASSES, initial=None)


def test_the_loss_is_the_mean_over_images_of_their_means_over_known_pixels():
  rng = np.random.default_rng(0)
  scores = rng.standard_normal((3, 4, 5, 3)).astype(np.float32)
  label = rng.integers(0, 3, (3, 4, 5)).astype(np.uint8)
  label[0, :2] = 255
  label[2] = 255  # nothing is known of it
  odds = np.exp(scores)
  own = np.take_along_axis(
    np.log(odds / odds.sum(-1, keepdims=True)), np.where(label == 255, 0, label)[..., None], -1
  )[..., 0]
  means = [-own[index][label[index] != 255].mean() for index in (0, 1)]
  made = make_given(scores)
  loss, sums = made.loss({}, {'label': jnp.asarray(label)}, None)
  assert float(loss) == pytest.approx(sum(means) / 3, rel=1e-5)
  assert float(sums['count']) == 2  # the log leaves out the third
  right = [(scores[i].argmax(-1) == label[i])[label[i] != 255].mean() for i in (0, 1)]
  assert float(sums['correct']) == pytest.approx(sum(right), rel=1e-5)


def test_pixels_are_counted_exactly():
  rng = np.random.default_rng(0)
  label, answer = rng.choice([0, 1, 2, 255], (2, 30, 40)), rng.integers(0, 3, (2, 30, 40))
  found = make_given(None).count(
    jnp.asarray(answer.astype(np.uint8)), jnp.asarray(label.astype(np.uint8))
  )
  for index in range(2):
    np.testing.assert_array_equal(found[index], confusion.count(label[index], answer[index], 3))


def test_pixels_of_a_class_are_counted_exactly_beyond_what_a_float_counts():
  one = dataclasses.replace(make_given(None), class_names=('nothing',))
  label = np.zeros((1, 4097, 4097), np.uint8)
  assert one.count(label, label).tolist() == [[[label.size]]]


def test_a_gradient_reaches_each_layer_though_scores_start_at_zero(voc):
  """By it magic_init calibrates layers."""
  config = mask_cases.make_config(voc)
  trunk = trunks.draw_trunk('he', seed=0, width=0.05, order='caffenet')
  made = segmenter.make_segmenter(config, CLASSES, trunk, drawn=True)
  images = np.random.default_rng(0).integers(0, 255, (2, 32, 32, 3), dtype=np.uint8)
  ratios, deviation = magic_init.measure_ratios(made, made.init(0), images, seed=0)
  assert (ratios > 0).all() and deviation > 0


def test_only_the_scores_biases_are_biases_to_the_solver(voc):
  task = voc_segmentation.make_plan(mask_cases.make_config(voc, locked_convolutions=2)).runs[0].task
  params = task.init(0)
  assert not np.any(params['score_fr']['kernel']) and not np.any(params['score_fr']['bias'])
  labels = task.labels(params)
  assert labels['score_fr'] == {'kernel': 'weight', 'bias': 'bias'}
  assert labels['fc6'] == labels['conv3'] == {'kernel': 'weight', 'bias': 'weight'}
  assert labels['conv2'] == {'kernel': 'locked', 'bias': 'locked'}


def test_a_batch_is_a_function_of_the_seed_and_its_step(voc):
  task = voc_segmentation.make_plan(mask_cases.make_config(voc)).runs[0].task
  batches = list(task.train_batches(0, 5))
  (fourth,) = task.train_batches(3, 4)
  for name, rows in fourth.items():
    np.testing.assert_array_equal(rows, batches[3][name])
  # Two epochs show each image as it is and mirrored; labels turn with their image.
  shown = [(b['record'][i], b['image'][i], b['label'][i]) for b in batches[:4] for i in range(2)]
  assert sorted(int(record) for record, _, _ in shown) == [0, 0, 1, 1, 2, 2, 3, 3]
  for record in range(4):
    (first, truth), (second, mask) = ((i, m) for r, i, m in shown if r == record)
    height, width = SIZES[record]
    np.testing.assert_array_equal(first[:height, :width], second[:height, :width][:, ::-1])
    np.testing.assert_array_equal(truth[:height, :width], mask[:height, :width][:, ::-1])
    assert (truth[height:] == 255).all() and (truth[:, width:] == 255).all()


def test_predict_writes_the_masks_of_the_test_again(finished, voc, tmp_path, capsys):
  workdir, _, _ = finished
  images = tmp_path / 'images'
  images.mkdir()
  for path in (voc / 'JPEGImages').glob('val*'):
    shutil.copy(path, images)
  (images / 'broken.jpg').write_bytes(b'no picture')
  whole = io.BytesIO()
  noise = np.random.default_rng(0).integers(0, 255, (24, 24, 3), dtype=np.uint8)
  Image.fromarray(noise).save(whole, 'JPEG')
  (images / 'cut.jpg').write_bytes(whole.getvalue()[:-400])
  out = tmp_path / 'out'
  options = [f'--workdir={workdir / "random"}', f'--images={images}', f'--out={out}']
  predict.main(options)
  told = capsys.readouterr()
  assert '4 images' in told.out and '2 could not be decoded' in told.out
  assert 'left out: ' in told.err and 'broken.jpg: ' in told.err and 'object at 0x' not in told.err
  for stem, answer in read_masks(workdir).items():
    np.testing.assert_array_equal(np.asarray(Image.open(out / 'masks' / f'{stem}.png')), answer)
    assert Image.open(out / 'pictures' / f'{stem}.png').size[0] >= answer.shape[1]
  with pytest.raises(SystemExit):
    predict.main([*options, '--score=0.3'])
  assert '--score: of no effect' in capsys.readouterr().err


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'images.canvases': 7}, 'images.canvases = 7: at most 6'),
    ({'data.val_split': 'tset'}, 'tset'),
    ({'data.shared_images': 'both'}, 'data.shared_images'),
    ({'weights': 'nowhere.npz'}, 'nowhere.npz'),
    ({'locked_convolutions': 6}, 'locked_convolutions = 6: at most 5'),
    ({'model.fc_init': 'xavier'}, 'xavier'),
    ({'model.load_fc': False}, 'model.load_fc = False has no effect: random holds no fc6'),
  ],
)
def test_bad_input_is_named_before_any_training(voc, fields, message):
  with pytest.raises(CfnError) as error:
    voc_segmentation.make_plan(mask_cases.make_config(voc, **fields))
  assert message in str(error.value)
  assert len(str(error.value).splitlines()) <= 5


def spoil(root, folder):
  """Copies a folder; cuts one of its test images short."""
  shutil.copytree(root, folder)
  path = folder / 'JPEGImages' / 'val1.png'
  path.write_bytes(path.read_bytes()[:-40])
  return folder


def test_an_image_that_cannot_be_decoded_is_named_before_any_training(voc, tmp_path):
  with pytest.raises(CfnError, match=r'1 of 4 images cannot be decoded: \S*val1\.png: .*mend'):
    voc_segmentation.make_plan(mask_cases.make_config(spoil(voc, tmp_path / 'x')))


@pytest.mark.parametrize('stem', ['train0', 'val0'])
def test_another_mask_is_another_run(voc, tmp_path, stem):
  shutil.copytree(voc, tmp_path / 'x')
  config = mask_cases.make_config(tmp_path / 'x')
  before = voc_segmentation.make_plan(config).runs[0].task.fingerprint
  assert before == voc_segmentation.make_plan(config).runs[0].task.fingerprint
  write_mask(tmp_path / 'x', stem, draw_mask(np.random.default_rng(5), *SIZES[0]))
  assert before != voc_segmentation.make_plan(config).runs[0].task.fingerprint


def test_a_list_that_names_an_image_twice_is_refused(voc, tmp_path):
  shutil.copytree(voc, tmp_path / 'x')
  with (tmp_path / 'x/ImageSets/Segmentation/val.txt').open('a') as file:
    file.write('\nval0\n')
  with pytest.raises(CfnError, match=r'val\.txt names 1 of its 4 images more than once'):
    voc_segmentation.make_plan(mask_cases.make_config(tmp_path / 'x'))


def test_a_field_that_does_not_fit_is_named_before_masks_are_read(voc, monkeypatch):
  monkeypatch.setattr(voc_segmentation, 'open_data', None)
  for field in ('model.fc_init', 'model.init', 'compute_dtype'):
    with pytest.raises(CfnError, match='xavier'):
      voc_segmentation.make_plan(mask_cases.make_config(voc, **{field: 'xavier'}))


def test_a_test_of_void_alone_is_refused_before_training(voc, tmp_path):
  shutil.copytree(voc, tmp_path / 'x')
  config = mask_cases.make_config(tmp_path / 'x', **{'data.val_max_images': 1})
  testing = voc_segmentation.open_data(config).testing
  (chosen,) = streams.choose_records(testing.source, 1)
  write_mask(tmp_path / 'x', testing.stems()[chosen], np.full(SIZES[chosen], 255, np.uint8))
  with pytest.raises(CfnError, match='no pixel of the 1 tested masks is known'):
    voc_segmentation.make_plan(config)


def test_an_alexnet_that_ends_at_fc6_gets_drawn_layers(voc, tmp_path):
  path = detection_cases.save_alexnet(tmp_path / 'alexnet.npz')
  weights = files.load_weights(str(path))
  kept = {name: layer for name, layer in weights.params.items() if name < 'fc7'}
  files.save_weights(weights.replace(params=kept), tmp_path / 'short.npz')
  config = mask_cases.make_config(voc, weights=str(tmp_path / 'short.npz'))
  given = voc_segmentation.make_plan(config).runs[0].task.init(0)
  assert not np.array_equal(given['fc6']['kernel'], kept['fc6']['kernel'])


@pytest.mark.parametrize('load', [True, False])
def test_the_random_network_has_the_shapes_of_the_one_beside_it(voc, tmp_path, load):
  path = detection_cases.save_alexnet(tmp_path / 'alexnet.npz')
  fields = {'weights': str(path), 'model.fc6_features': 20, 'model.load_fc': load}
  given, drawn = (
    run.task.init(0)
    for run in voc_segmentation.make_plan(mask_cases.make_config(voc, **fields)).runs
  )
  assert jax.tree.map(np.shape, given) == jax.tree.map(np.shape, drawn)
  assert given['fc6']['kernel'].shape[1] == (12 if load else 20)


def test_fc6_and_fc7_of_an_alexnet_are_taken_as_they_are(voc, tmp_path):
  path = detection_cases.save_alexnet(tmp_path / 'alexnet.npz')
  plan = voc_segmentation.make_plan(mask_cases.make_config(voc, weights=str(path)))
  given, drawn = (run.task.init(0) for run in plan.runs)
  with np.load(path, allow_pickle=False) as held:
    names = [name for name in held.files if 'fc6' in name and 'kernel' in name]
    assert names
    np.testing.assert_array_equal(given['fc6']['kernel'], held[names[0]])
  assert given['fc6']['kernel'].shape[1] == 12
  assert not np.array_equal(given['conv1']['kernel'], drawn['conv1']['kernel'])
  assert jax.tree.map(np.shape, given) == jax.tree.map(np.shape, drawn)
