"""The pretext task: normalisation against float64, losses and counts that are exact."""

import collections
import math
import runpy

import conftest
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
import scipy.stats
from PIL import Image

from cfn_jax.data import pipeline, streams
from cfn_jax.jigsaw import network, puzzle, task
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.models import alexnet, figures, inputs
from cfn_jax.training import devices, metrics, scoring, stopping

MEAN, STD = (123.0, 117.0, 104.0), 58.0
CONFIG = runpy.run_path(str(conftest.REPOSITORY / 'configs' / 'cfn.py'))['get_config']


# Normalisation.


def make_record(kind, scale):
  fixed = kind == 'global'
  factor = scale / STD if fixed else scale
  return inputs.InputRecord('rgb', MEAN, (factor,) * 3, '' if fixed else kind, STD)


def plain_normalise(tiles, kind, scale):
  """The four kinds in float64, one tile after the other."""
  result = np.empty(tiles.shape)
  for index in np.ndindex(tiles.shape[:-3]):
    x = tiles[index].astype(np.float64)
    if kind == 'tile':
      y = (x - x.mean()) / (x.std() or 1)
    elif kind == 'channel':
      std = x.std((0, 1))
      y = (x - x.mean((0, 1))) / np.where(std == 0, 1, std)
    elif kind == 'mean':
      y = (x - x.mean((0, 1))) / STD
    else:
      y = (x - MEAN) / STD
    result[index] = y * scale
  return result


@pytest.mark.parametrize('kind', pretexts.NORMALIZATIONS)
@pytest.mark.parametrize('scale', [1.0, 50.0])
def test_normalisation_equals_its_formula_in_float64(kind, scale):
  rng = np.random.default_rng(0)
  tiles = rng.integers(0, 256, (2, 5, 16, 12, 3), dtype=np.uint8)
  tiles[0, 0] = 200 + tiles[0, 0] % 3  # little contrast
  tiles[0, 1, ..., 1] = 90  # one flat channel
  tiles[0, 2] = 0
  tiles[0, 3] = 255
  tiles[1, 3], tiles[1, 3, 5, 5] = 90, 91  # all but flat
  normalised = np.asarray(jax.jit(make_record(kind, scale).prepare)(tiles))
  assert normalised.dtype == np.float32 and normalised.shape == tiles.shape
  expected = plain_normalise(tiles, kind, scale)
  # A mean near 255 is off by some 1e-5, and the least contrast here has a std of 0.04.
  assert np.abs(normalised - expected).max() < 4e-4 * scale
  if kind == 'tile':
    flat = (tiles == tiles[..., :1, :1, :1]).all((2, 3, 4))
    assert np.allclose(normalised.mean((2, 3, 4)), 0, atol=4e-4 * scale)
    assert np.allclose(normalised.std((2, 3, 4)), np.where(flat, 0, scale), rtol=1e-4)


@pytest.mark.parametrize('kind', ['tile', 'channel', 'mean'])
@pytest.mark.parametrize('value', [0, 1, 77, 255])
def test_flat_tile_becomes_exact_zeros(kind, value):
  tiles = np.full((9, 64, 64, 3), value, np.uint8)
  normalised = np.asarray(jax.jit(make_record(kind, 50.0).prepare)(tiles))
  assert (normalised == 0).all()


def test_scale_multiplies_the_normalised_tile():
  tiles = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3), dtype=np.uint8)
  for kind in pretexts.NORMALIZATIONS:
    one, fifty = (make_record(kind, scale).prepare(tiles) for scale in (1.0, 50.0))
    assert np.allclose(50 * one, fifty, rtol=1e-5, atol=1e-4)


def test_tile_is_normalised_without_a_look_at_the_others():
  tiles = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3), dtype=np.uint8)
  for kind in pretexts.NORMALIZATIONS:
    normalise = make_record(kind, 1.0).prepare
    assert np.allclose(normalise(tiles)[4], normalise(tiles[4]), atol=1e-6)


@pytest.mark.parametrize(
  ('kind', 'scale', 'message'),
  [
    ('zca', 1.0, "puzzle.normalization = 'zca' is unknown: tile, channel, mean, global"),
    ('tile', 0.0, 'puzzle.tile_scale = 0.0: more than 0'),
    ('tile', -1.0, 'puzzle.tile_scale = -1.0: more than 0'),
  ],
)
def test_unknown_normalisations_are_refused(kind, scale, message):
  c = CONFIG('tiny')
  c.puzzle.normalization, c.puzzle.tile_scale = kind, scale
  with pytest.raises(ValueError, match=message):
    pretexts.make_input(c)


# Configs.


@pytest.fixture
def config(tmp_path):
  """A config of a tiny run on 23 + 5 generated images."""
  c = CONFIG('tiny')
  rng = np.random.default_rng(0)
  for folder, count in (('train', 5), ('val', 23)):
    (tmp_path / folder).mkdir()
    for i in range(count):
      size = rng.integers(50, 90, size=2)
      coarse = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
      coarse.resize(size, Image.Resampling.BICUBIC).save(tmp_path / folder / f'{i:02d}.png')
  c.data.source = 'folder'
  c.data.root, c.data.val_root = str(tmp_path / 'train'), str(tmp_path / 'val')
  c.data.num_workers = 0
  c.permutations.num = 10
  c.puzzle.resize_px, c.puzzle.crop_px, c.puzzle.cell_px, c.puzzle.tile_px = 90, 90, 30, 25
  c.data.puzzles_per_image = c.model.permutations_per_pass = 1
  c.model.width, c.model.fc6_features, c.model.fc7_features = 1 / 6, 16, 32
  return c


def test_scale_and_initial_weights_go_together():
  c = CONFIG()
  for init, scale, fits in (
    *(('caffe', 50.0, True), ('caffe', 58.0, True), ('caffe', 1.0, False)),
    *(('he', 1.0, True), ('he', 2.5, True), ('he', 50.0, False)),
  ):
    c.model.init, c.puzzle.tile_scale = init, scale
    if fits:
      assert pretexts.make_input(c).scale == (scale,) * 3
      continue
    wanted = 'near 50' if init == 'caffe' else 'near 1'
    message = f"puzzle.tile_scale = {scale} does not go with model.init = '{init}'.*{wanted}$"
    with pytest.raises(ValueError, match=message):
      pretexts.make_input(c)


@pytest.mark.parametrize(
  ('field', 'value', 'message'),
  [
    ('seed', -1, 'seed = -1: at least 0'),
    ('batch_size', 0, 'batch_size = 0: at least 1'),
    ('learning_rate', 0.0, 'learning_rate = 0.0: at least 1e-12'),
    ('clip_gradients', -1.0, 'clip_gradients = -1.0: at least 0'),
    ('compute_dtype', 'int8', "compute_dtype = 'int8': one of float32, bfloat16"),
    ('model.name', 'vgg', "model.name = 'vgg' is unknown: one of cfn, stacked"),
    ('model.init', 'xavier', "model.init = 'xavier' is unknown"),
    ('model.permutations_per_pass', 11, 'permutations_per_pass = 11 .*from 1 to the 10'),
    ('data.puzzles_per_image', 11, 'puzzles_per_image = 11: from 1 to the 10'),
    ('permutations.fixed_per_image', 11, 'fixed_per_image = 11: from 0 .all. to the 10'),
    ('puzzle.tile_px', 24, '24 px at stride 2 leaves no map'),
    ('puzzle.tile_px', 31, 'puzzle.tile_px = 31 is larger than its cell'),
    ('puzzle.normalization', 'zca', "puzzle.normalization = 'zca'"),
  ],
)
def test_values_that_no_run_can_have_are_refused_with_their_field(config, field, value, message):
  with config.unlocked():
    config.update_from_flattened_dict({field: value})
  with pytest.raises(ValueError, match=message):
    task.open_task(config)


@pytest.mark.parametrize('kind', ['tile', 'channel', 'mean', 'global'])
def test_the_input_record_holds_the_figures_of_the_tiles_that_training_sees(config, kind):
  config.puzzle.normalization = kind
  config.puzzle.grey_fraction = 0.5
  pretext = pretexts.open_pretext(config)
  record = pretext.input_record
  made = task.make_task(config, pretext).meta['network']
  assert made == {'order': 'caffenet', 'stride': 2, 'padding': 0, 'input': record.to_json()}
  if kind == 'global':
    assert (record.mean, record.scale) == (MEAN, (1 / STD,) * 3)
    return
  visits = [pretext.training.train(position) for position in range(5)]  # each image once
  tiles = np.concatenate([pretext.transform.sample(visit).tiles for visit in visits]).astype(float)
  axes = (1, 2, 3) if kind == 'tile' else (1, 2)
  mean = np.mean([tile.mean(axis=None if kind == 'tile' else (0, 1)) for tile in tiles], axis=0)
  np.testing.assert_allclose(record.mean, np.broadcast_to(mean, 3), rtol=1e-6)
  assert record.std == (STD if kind == 'mean' else pytest.approx(tiles.std(axes).mean(), rel=1e-6))
  # Whole images prepared by the stand-in have the contrast that tiles have in training.
  stand_in = record.fixed()
  prepared = (tiles - np.array(stand_in.mean)) * stand_in.scale
  own = np.asarray(pretext.input.prepare(np.uint8(tiles)), np.float64)
  if kind != 'mean':
    assert prepared.std(axes).mean() == pytest.approx(own.std(axes).mean(), rel=1e-3)


def test_images_that_cannot_be_read_are_left_out_of_the_measured_record(config, tmp_path):
  (tmp_path / 'train' / '03.png').write_bytes(b'no image')
  record = pretexts.open_pretext(config).input_record
  assert record.std not in (STD, 0) and np.isfinite(record.std)
  for path in (tmp_path / 'train').iterdir():
    path.write_bytes(b'no image')
  record = pretexts.open_pretext(config).input_record
  assert (record.mean, record.std) == (MEAN, STD)


def test_outputs_beyond_the_set_take_part_in_the_loss_and_name_no_permutation(config):
  config.model.fc8_features = 17
  pretext = pretexts.open_pretext(config)
  params = pretext.init(0)
  assert params['fc8']['kernel'].shape == (32, 17)
  params['fc8']['bias'] = np.where(np.arange(17) < 10, 0, 50).astype(np.float32)  # dead ones win
  found = evaluate(config, 4, params)
  assert found['val_accuracy'] == 0 and found['val_loss'] > 40
  config.eval_bits = True
  evaluation = task.make_task(config, pretext).evaluations['val']
  mesh = devices.make_mesh(1)
  with stopping.Stopping() as stop:
    found = scoring.make_score(evaluation, mesh)(devices.replicate(params, mesh), stop)
  assert found['val_accuracy'] == 0 and 0 <= found['val_tile_accuracy'] <= 1


def test_stacked_network_takes_one_permutation_a_pass(config):
  config.model.name, config.model.permutations_per_pass = 'stacked', 2
  with pytest.raises(ValueError, match='permutations_per_pass = 2: the stacked network'):
    task.open_task(config)


def test_fixed_permutations_are_few_and_always_the_same_for_an_image(config):
  config.permutations.fixed_per_image = 2
  visits = pretexts.open_pretext(config).transform
  images = np.random.default_rng(0).integers(0, 256, (6, 90, 90, 3), dtype=np.uint8)
  seen = []
  for index, image in enumerate(images):
    drawn = (
      pipeline.Visit(image, -1, index, '', streams.make_rng(0, 100 * index + i), -1)
      for i in range(30)
    )
    seen.append({int(visits(visit)['label']) for visit in drawn})
  assert all(len(labels) == 2 for labels in seen)
  assert len(set().union(*seen)) > 2


def test_transform_gives_tiles_and_labels_of_their_stated_shapes(config):
  for k, shape in ((1, ()), (3, (3,))):
    config.model.permutations_per_pass = k
    pretext = pretexts.open_pretext(config)
    example = pretext.transform(pretext.validation.evaluate(0))
    assert example['tiles'].shape == (9, 25, 25, 3) and example['tiles'].dtype == np.uint8
    assert example['label'].shape == shape and example['label'].dtype == np.int32
    assert pretext.input_shape() == (1, 9, 25, 25, 3)


# Loss.


def test_score_sums_what_the_mask_leaves():
  rng = np.random.default_rng(0)
  logits = rng.standard_normal((6, 4)).astype(np.float32)
  labels = np.array([0, 1, 2, 3, 0, 1], np.int32)
  logits[[0, 2, 3], labels[[0, 2, 3]]] = 9  # right, the third masked; the others are made wrong
  logits[[1, 4, 5], labels[[1, 4, 5]]] = -9
  mask = np.array([1, 1, 0, 1, 0, 1], np.float32)
  losses = scipy.special.logsumexp(logits.astype(np.float64), axis=-1) - logits[range(6), labels]
  sums = task._score(jnp.asarray(logits), jnp.asarray(labels), jnp.asarray(mask))
  assert np.isclose(sums['loss'], losses[mask == 1].sum(), rtol=1e-6)
  assert sums['correct'] == 2 and sums['count'] == 4
  whole = task._score(jnp.asarray(logits), jnp.asarray(labels), jnp.ones(()))
  assert np.isclose(whole['loss'], losses.sum(), rtol=1e-6) and whole['count'] == 6


def test_score_counts_each_puzzle_of_an_image_and_what_is_masked_may_be_nan():
  logits = np.zeros((2, 3, 5), np.float32)
  logits[0, 1, 4] = 20
  logits[1] = np.nan
  labels = np.full((2, 3), 4, np.int32)
  sums = task._score(logits, labels, jnp.array([[1.0], [0.0]]))
  assert np.isclose(sums['loss'], 2 * math.log(5), rtol=1e-5)
  assert sums['correct'] == 1 and sums['count'] == 3


def test_untrained_he_network_starts_near_the_loss_of_chance(config):
  for k in (1, 3):
    config.model.permutations_per_pass = k
    config.data.val_max_images = 8
    pretext = pretexts.open_pretext(config)
    made = task.make_task(config, pretext)
    assert made.chance_loss == pytest.approx(math.log(10))
    batch = next(iter(made.evaluations['val'].batches()))
    batch = {name: rows[:8] for name, rows in batch.items()}
    params = made.init(0)
    loss, sums = jax.jit(made.loss)(params, batch, jax.random.key(0))
    assert sums['count'] == 8 * k and np.isclose(loss, sums['loss'] / (8 * k))
    assert abs(float(loss) - math.log(10)) < 0.1


@pytest.mark.slow
def test_caffes_network_starts_a_little_above_the_loss_of_chance():
  c = CONFIG()
  model = network.make_model(c, 1000)
  rng = np.random.default_rng(0)
  coarse = rng.integers(0, 256, (8 * 9, 6, 6, 3), dtype=np.uint8)
  tiles = [Image.fromarray(tile).resize((64, 64), Image.Resampling.BICUBIC) for tile in coarse]
  tiles = np.stack([np.asarray(tile) for tile in tiles]).reshape(8, 9, 64, 64, 3)
  initial = figures.Initial(c.model.init, c.model.order)
  shapes = alexnet.parameter_shapes(model, (1, 9, 64, 64, 3))
  params = alexnet.draw_parameters(shapes, initial, seed=0)
  normalise = pretexts.make_input(c).prepare
  logits = jax.jit(lambda p, x: model.apply({'params': p}, normalise(x)))(params, tiles)
  labels = rng.integers(0, 1000, 8)
  loss = float(optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean())
  assert math.log(1000) - 0.3 < loss < 8.5


# Figures.


@pytest.mark.parametrize(
  ('correct', 'count'), [(0, 10), (1, 10), (5, 10), (10, 10), (137, 640), (50_000, 50_000)]
)
def test_confidence_interval_is_wilsons(correct, count):
  low, high = metrics.confidence_interval(count, correct, correct)
  expected = scipy.stats.binomtest(correct, count).proportion_ci(method='wilson')
  assert np.isclose(low, expected.low, atol=1e-7) and np.isclose(high, expected.high, atol=1e-7)


def test_interval_of_shares_is_that_of_as_many_answers_as_vary_so_much():
  # Three puzzles an image, right or wrong together: as wide as one puzzle an image.
  together = metrics.confidence_interval(100, 40, 40)
  # Independent ones: shares of 0, 1/3, 2/3, 1 as a binomial of three gives them, a third as varied.
  shares = scipy.stats.binom.pmf(range(4), 3, 0.4) @ [[0], [1 / 3], [2 / 3], [1]]
  squares = scipy.stats.binom.pmf(range(4), 3, 0.4) @ [[0], [1 / 9], [4 / 9], [1]]
  apart = metrics.confidence_interval(100, 100 * shares[0], 100 * squares[0])
  expected = scipy.stats.binomtest(120, 300).proportion_ci(method='wilson')
  assert np.allclose(apart, expected, atol=1e-6)
  assert together[0] < apart[0] < 0.4 < apart[1] < together[1]


def evaluate(config, batch_size, params):
  """Runs the validation pass; gives its report."""
  config.eval_batch_size = batch_size
  made = task.make_task(config, pretexts.open_pretext(config))
  evaluation = made.evaluations['val']
  measure = jax.jit(evaluation.measure)
  sums = collections.Counter()
  for batch in evaluation.batches():
    assert len(batch['tiles']) == batch_size
    for name, value in measure(params, batch).items():
      sums[name] += float(value)
  return evaluation.report(sums)


@pytest.mark.parametrize('k', [pytest.param(1, marks=pytest.mark.slow), 3])
def test_evaluation_counts_each_puzzle_once_for_any_batch_size(config, k):
  config.model.permutations_per_pass = k
  pretext = pretexts.open_pretext(config)
  params = pretext.init(0)
  # An untrained network guesses one class: a stronger classifier spreads its answers.
  params['fc8']['kernel'] *= 30
  reports = [evaluate(config, batch_size, params) for batch_size in (1, 7, 64)]

  examples = [pretext.transform(pretext.validation.evaluate(i)) for i in range(23)]
  batch = {name: np.stack([example[name] for example in examples]) for name in examples[0]}
  logits = np.asarray(jax.jit(pretext.logits)(params, batch), np.float64)
  labels = batch['label'].reshape(-1)
  logits = logits.reshape(-1, 10)
  losses = scipy.special.logsumexp(logits, axis=-1) - logits[range(len(labels)), labels]
  right = logits.argmax(-1) == labels
  accuracy, shares = right.mean(), right.reshape(23, k).mean(1)
  assert losses.std() > 0.1
  for report in reports:
    assert report['val_count'] == 23 * k
    assert report['val_accuracy'] == pytest.approx(accuracy, abs=1e-12)
    assert report['val_loss'] == pytest.approx(losses.mean(), rel=1e-5)
    low, high = metrics.confidence_interval(23, shares.sum(), np.square(shares).sum())
    assert report['val_accuracy_low'] == pytest.approx(low)
    assert report['val_accuracy_high'] == pytest.approx(high)


def test_k_puzzles_score_as_k_puzzles_shuffled_by_hand(config):
  config.model.permutations_per_pass = 3
  pretext = pretexts.open_pretext(config)
  params = pretext.init(0)
  example = pretext.transform(pretext.validation.evaluate(2))
  together = jax.jit(pretext.logits)(params, {name: rows[None] for name, rows in example.items()})
  permutations = pretext.questions.rows[example['label']]
  shuffled = np.stack([example['tiles'][permutation] for permutation in permutations])
  restored = puzzle.unshuffle(shuffled[1], permutations[1])
  assert (restored == example['tiles']).all()

  config.model.permutations_per_pass = 1
  single = pretexts.open_pretext(config)
  apart = jax.jit(single.logits)(params, {'tiles': shuffled})
  assert np.allclose(together[0], apart, atol=1e-6)


def test_training_report_divides_by_the_puzzles_seen():
  report = metrics.report_training(
    {'loss': 30.0, 'correct': 4.0, 'count': 16.0, 'learning_rate': 0.01}
  )
  assert report == {'train_loss': 1.875, 'train_accuracy': 0.25, 'learning_rate': 0.01}


def test_a_validation_without_one_good_image_is_an_error():
  sums = dict.fromkeys((f'val_{each}' for each in ('images', 'shares', 'squares', 'count')), 0.0)
  with pytest.raises(ValueError, match=r'no validation image can be read, see bad_images\.tsv'):
    task._report_validation('val', sums)


def test_a_run_is_what_its_fingerprint_holds(config):
  """All else may change between two starts: rates, periods, precision, workers."""
  pretext = pretexts.open_pretext(config)
  found = task.make_fingerprint(config, pretext)
  sections = {f'{s}.{n}': v for s in ('puzzle', 'model') for n, v in config[s].to_dict().items()}
  assert {name: found[name] for name in sections} == sections
  assert set(found) - set(sections) == {
    *('task', 'seed', 'batch_size', 'training images', 'validation images', 'puzzle rules'),
    *('data.puzzles_per_image', 'data.on_bad_image', 'permutation set'),
    'permutations.fixed_per_image',
  }
