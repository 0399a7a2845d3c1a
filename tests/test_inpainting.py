"""The context encoder: masks, the network against PyTorch, errors, runs, what evaluations take."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cfn_jax import command
from cfn_jax.data import feed, streams
from cfn_jax.errors import CfnError
from cfn_jax.inpainting import masks, task
from cfn_jax.models import alexnet, context_encoder, figures
from cfn_jax.models import trunk as trunks
from cfn_jax.training import checkpoint
from cfn_jax.transfer import export, files

SIZES = {
  'model.width': 0.1,
  'decoder.features': (8, 8, 8),
  'num_steps': 2,
  'schedule': 'step',
  'batch_size': 4,
  'eval_batch_size': 4,
  'eval_every_steps': 1,
  'log_every_steps': 1,
  'checkpoint_every_steps': 1,
  'num_devices': 1,
  'warmup_steps': 0,
  'data.crops_per_photograph': 4,
  'data.val_crops_per_photograph': 4,
}


def make_config(**changes):
  config = command.load_config('context_encoder:tiny')
  with config.unlocked():
    config.update_from_flattened_dict({**SIZES, **changes})
  return config


def open_made(**changes):
  config = make_config(**changes)
  return config, task.make_inpainting(config, lambda: feed.open_readers(config, min_side_px=80))


def make_mask(**changes):
  fields = {'kind': 'random_region', 'view_px': 60, 'side_px': 30, 'blob_px': 8.0}
  return masks.Mask(**(fields | {'smallest': 0.2, 'largest': 0.3} | changes))


# Masks.


def test_regions_hide_the_share_that_is_drawn_in_pieces_of_the_size_that_is_asked_for():
  shares, lengths = [], {}
  for blob_px in (3.0, 12.0):
    drawn = [make_mask(blob_px=blob_px).draw(streams.make_rng(0, i)) for i in range(200)]
    shares += [hidden.mean() for hidden in drawn]
    # Runs of hidden pixels in a row: their mean length grows with the size of the blobs.
    starts = sum(np.sum(np.diff(hidden.astype(int), axis=1) == 1) for hidden in drawn)
    lengths[blob_px] = sum(hidden.sum() for hidden in drawn) / starts
  assert 0.2 <= min(shares) < 0.21 and 0.29 < max(shares) <= 0.3
  assert np.mean(shares) == pytest.approx(0.25, abs=0.005)
  assert 3 < lengths[12.0] / lengths[3.0] < 5
  everywhere = np.mean(drawn, axis=0)
  assert everywhere.min() > 0.1 and everywhere.max() < 0.45  # no place is spared


def test_a_mask_is_a_function_of_seed_and_position():
  def draw(seed, position):
    return make_mask().draw(streams.make_rng(seed, position))

  np.testing.assert_array_equal(draw(1, 2), draw(1, 2))
  assert np.any(draw(1, 2) != draw(1, 3)) and np.any(draw(1, 2) != draw(2, 2))


def test_a_square_lies_in_the_middle():
  hidden = make_mask(kind='centre', view_px=7, side_px=3).draw(streams.make_rng(0, 0))
  assert hidden.sum() == 9 and hidden[2:5, 2:5].all()


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'kind': 'square'}, "mask.kind = 'square' is unknown: one of random_region, centre"),
    ({'kind': 'centre', 'side_px': 0}, 'mask.side_px = 0: from 1 to 59'),
    ({'kind': 'centre', 'side_px': 60}, 'mask.side_px = 60: from 1 to 59'),
    ({'smallest': 0.0}, r'smallest = 0.0, .* of 3600 pixels they hide 0 to 1080'),
    ({'smallest': 0.0001}, 'hide 0 to 1080'),
    ({'largest': 0.9999}, 'hide 720 to 3600'),
    ({'largest': 1.5}, 'less than 1'),
    ({'smallest': 0.4}, 'the first not above the second'),
    ({'blob_px': 0.0}, 'mask.blob_px = 0.0: from 1 to views.view_px = 60'),
  ],
)
def test_a_mask_that_hides_everything_or_nothing_is_refused(changes, words):
  with pytest.raises(CfnError, match=words):
    make_mask(**changes)


# The network.


def test_the_paper_s_sizes():
  """340,992 parameters of the channel-wise layer, 6 to 161 px: the source's own counts."""
  model = context_encoder.ContextEncoder(trunks.Trunk(), (128, 64, 64, 32))
  shapes = alexnet.parameter_shapes(model, (1, 227, 227, 3))
  assert alexnet.count_parameters(shapes['channelwise']) == 340_992
  assert shapes['channelwise']['kernel'].shape == (6, 6, 1, 9216)
  assert [shapes[f'up{i}']['kernel'].shape[-1] for i in range(1, 6)] == [128, 64, 64, 32, 3]
  views = jax.ShapeDtypeStruct((2, 227, 227, 3), jnp.float32)
  made, kept = jax.eval_shape(
    lambda p, x: model.apply({'params': p}, x, capture_intermediates=True), shapes, views
  )
  assert made.shape == (2, 227, 227, 3)
  assert kept['intermediates']['up5']['__call__'][0].shape == (2, 161, 161, 3)


def test_the_decoder_equals_pytorch():
  torch = pytest.importorskip('torch')
  model = context_encoder.ContextEncoder(trunks.Trunk(stride=2, width=0.1), (8, 6, 5))
  params = context_encoder.draw_parameters(model, 96, seed=0)
  rng = np.random.default_rng(0)
  for layer in params.values():
    layer['bias'] = rng.normal(size=layer['bias'].shape).astype(np.float32)
  views = rng.normal(size=(2, 96, 96, 3)).astype(np.float32)
  ours = jax.jit(model.apply)({'params': params}, views)
  trunk = {name: params[name] for name in figures.CONVOLUTIONS}
  stages = jax.jit(lambda p, x: model.trunk.apply({'params': p}, x, method='stages')['pool5'])
  maps = stages(trunk, views)
  x = torch.tensor(np.array(maps)).permute(0, 3, 1, 2)
  _, channels, side, _ = x.shape

  def arrays(name, *order):
    kernel, bias = (torch.tensor(params[name][each]) for each in ('kernel', 'bias'))
    return kernel.permute(*order).contiguous(), bias

  functional = torch.nn.functional
  kernel, bias = arrays('channelwise', 3, 2, 0, 1)  # a grouped convolution over the whole map
  x = functional.conv2d(x, kernel, bias, groups=channels).reshape(2, channels, side, side).relu()
  x = functional.conv2d(x, *arrays('mix', 3, 2, 0, 1)).relu()
  for number in range(1, 5):
    kernel, bias = arrays(f'up{number}', 2, 3, 0, 1)
    # PyTorch's is the gradient of a convolution, so its taps are mirrored.
    x = functional.conv_transpose2d(x, kernel.flip(2, 3), bias, stride=2, padding=2)
    x = x.relu() if number < 4 else x
  assert x.shape[-1] == 65
  x = functional.interpolate(x, size=96, mode='bilinear').permute(0, 2, 3, 1).numpy()
  np.testing.assert_allclose(ours, x, rtol=1e-4, atol=1e-4 * np.abs(x).max())


def test_a_new_network_fills_in_nearly_the_mean_colour():
  _, made = open_made()
  batch = {name: rows[None] for name, rows in made.holes(made.training.train(0)).items()}
  params = context_encoder.draw_parameters(made.model, 64, seed=0)
  filling = np.asarray(jax.jit(made.fill)(params, batch))
  assert 0 < np.abs(filling).max() < 0.5
  assert float(made.errors(filling, batch)[0]) == pytest.approx(
    float(made.errors(0.0, batch)[0]), rel=0.2
  )


@pytest.mark.parametrize(
  ('view_px', 'stride', 'features', 'words'),
  [
    (227, 4, (), 'numbers of channels, at least 1 each'),
    (227, 4, (8, 0), 'at least 1 each'),
    (227, 4, (8, 8), 'pool5 of 6 px becomes 41 px, less than half of views.view_px = 227'),
    (67, 4, (8,) * 9, 'pool5 of 1 px becomes 1 px'),
    (227, 4, (8,) * 6, 'pool5 of 6 px becomes 641 px, more than twice views.view_px = 227'),
    (30, 4, (8, 8), 'no map after pool5'),
  ],
)
def test_a_decoder_that_does_not_reach_the_view_is_refused(view_px, stride, features, words):
  with pytest.raises(CfnError, match=words):
    context_encoder.check_sizes(view_px, stride, features)


# Errors.


def test_hidden_pixels_reach_neither_the_network_nor_visible_ones_the_error():
  _, made = open_made()
  batch = {name: rows[None] for name, rows in made.holes(made.training.train(0)).items()}
  params = context_encoder.draw_parameters(made.model, 64, seed=0)
  hidden = batch['hidden'][..., None]
  other = np.where(hidden, 255 - batch['image'], batch['image'])
  fill = jax.jit(made.fill)
  filling = np.asarray(fill(params, batch))
  np.testing.assert_array_equal(filling, fill(params, {**batch, 'image': other}))
  assert np.any(filling != fill(params, {**batch, 'image': 255 - batch['image']}))
  changed = np.where(hidden, filling, filling + 7)
  assert made.errors(changed, batch) == made.errors(filling, batch)


@pytest.mark.parametrize(('reconstruction', 'error'), [('l2', 2.5), ('l1', 1.5)])
def test_errors_equal_values_worked_by_hand(reconstruction, error):
  # Two of four pixels are hidden. In units of the target they are 1 and 2 in each channel.
  _, made = open_made(
    **{'reconstruction': reconstruction, 'input.mean': (100.0,) * 3, 'input.std': 50.0}
  )
  image = np.broadcast_to(np.array([[150, 200], [0, 255]], np.uint8)[..., None], (2, 2, 3))
  batch = {'image': image[None], 'hidden': np.array([[[True, True], [False, False]]])}
  assert made.errors(0.0, batch) == pytest.approx([error])
  on_device = jax.tree.map(jnp.asarray, batch)
  assert made.errors(0.0, on_device) == pytest.approx([error])
  # Visible are -2 and 3.1: their mean is 0.55.
  assert made.own_colour(on_device)[0, 0, 0] == pytest.approx([0.55] * 3)


# Runs.


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  config, workdir = make_config(), tmp_path_factory.mktemp('context_encoder')
  return config, workdir, task.open_task(config)(workdir)


def test_a_run_leaves_figures_and_pictures(trained):
  _, workdir, found = trained
  names = {'loss', 'mean_colour_loss', 'own_colour_loss'}
  assert {f'val_{name}' for name in names} <= set(found) and np.isfinite(found['train_loss'])
  assert found['val_own_colour_loss'] < found['val_mean_colour_loss']
  assert all((workdir / f'{name}.png').stat().st_size > 5000 for name in ('holes', 'fillings'))
  assert (workdir / 'curves.png').is_file()
  assert task.open_task(trained[0])(workdir) == {}  # it has ended


@pytest.mark.slow
def test_figures_do_not_depend_on_the_size_of_a_batch(trained, tmp_path):
  _, _, found = trained  # of two batches, the second half full
  again = task.open_task(make_config(eval_batch_size=6))(tmp_path)
  for name in task.COMPARED:
    assert again[name] == pytest.approx(found[name], rel=1e-5)


def test_a_finished_run_is_told_whatever_stands_in_its_log(trained, tmp_path, capsys):
  config, workdir, _ = trained
  copy = shutil.copytree(workdir, tmp_path / 'run')
  with (copy / 'metrics.jsonl').open('a') as log:
    log.write('{"step": 2, "val_loss": "nan"}\n{"step": 2, "val_loss": 0.1}\n')
  assert task.open_task(config)(copy) == {}
  assert 'best at step' in capsys.readouterr().err


def test_the_best_step_is_the_one_of_the_smallest_error(trained):
  _, workdir, _ = trained
  rows = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
  errors = {row['step']: row['val_loss'] for row in rows}
  loaded = files.load_weights(workdir, step='best')
  assert loaded.origin['step'] == min(errors, key=errors.get)


def test_evaluations_and_converters_take_the_trunk_and_name_what_they_leave(trained, tmp_path):
  _, workdir, _ = trained
  loaded = files.load_weights(workdir)
  assert loaded.layers() == figures.CONVOLUTIONS and loaded.kind == 'trunk'
  assert loaded.origin['notes'] == ['not read: channelwise, mix, up1, up2, up3, up4']
  export.save_folder(loaded, tmp_path / 'out', 'caffe', overwrite=True)
  again = files.load_weights(tmp_path / 'out')
  np.testing.assert_array_equal(again.params['conv3']['kernel'], loaded.params['conv3']['kernel'])


def test_a_run_is_what_its_fingerprint_holds():
  config = make_config()
  made = task.make_inpainting(
    config, lambda: feed.open_readers(config, min_side_px=config.views.resize_px)
  )
  found = task.make_fingerprint(config, made)
  sections = {
    f'{section}.{name}': value
    for section in ('views', 'input', 'mask', 'decoder', 'model')
    for name, value in config[section].to_dict().items()
  }
  assert {name: found[name] for name in sections} == sections
  assert set(found) - set(sections) == {
    *('task', 'seed', 'batch_size', 'training images', 'validation images', 'mask rules'),
    *('reconstruction', 'data.on_bad_image'),
  }


@pytest.mark.slow
def test_a_run_resumes_bit_for_bit_and_refuses_another_mask(trained, tmp_path):
  config, _, found = trained
  half = make_config(num_steps=1)
  task.open_task(half)(tmp_path)
  resumed = task.open_task(config)(tmp_path)
  assert resumed['val_loss'] == found['val_loss']
  with pytest.raises(checkpoint.CheckpointError, match=r'mask\.largest'):
    task.open_task(make_config(**{'mask.largest': 0.4}))(tmp_path)


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'reconstruction': 'l3'}, "reconstruction = 'l3' is unknown: one of l2, l1"),
    ({'input.scale': 58.0}, "model.init = 'he' draws the trunk for inputs of another scale"),
    ({'input.mean': (1.0, 2.0)}, 'three numbers'),
    ({'input.mean': (1.0, 2.0, 256.0)}, 'of 0 to 255'),
    ({'views.view_px': 32}, 'no map after pool5|pool5 of'),
    ({'views.resize_px': 50}, 'views.resize_px = 50: at least views.view_px = 64'),
    ({'data.source': 'folder'}, 'data.root is empty'),
    ({'data.val_crops_per_photograph': 0}, 'at least 1'),
  ],
)
def test_bad_input_is_refused_when_the_task_is_opened(changes, words):
  with pytest.raises(CfnError, match=words):
    task.open_task(make_config(**changes))


@pytest.mark.slow
def test_it_learns_to_fill_in_better_than_a_constant_of_each_image(tmp_path):
  config = command.load_config('context_encoder:tiny')
  found = task.open_task(config)(tmp_path)
  assert found['val_loss'] < found['val_own_colour_loss'] < found['val_mean_colour_loss']
