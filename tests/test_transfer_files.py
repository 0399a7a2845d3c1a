"""Weights from the disk: every format, checkpoints, and files that are not what they say."""

import io
import json
import pathlib
import pickle
import shutil
import subprocess
import sys
import zipfile

import jax
import numpy as np
import pytest
import transfer_cases as cases
from safetensors import numpy as reference

from cfn_jax import places
from cfn_jax.errors import CfnError
from cfn_jax.models import inputs
from cfn_jax.training import checkpoint, devices, digests, step_folders
from cfn_jax.transfer import arrays, cards, export, files, layouts
from cfn_jax.transfer import weights as weights_lib

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CONFIG = {'puzzle': {'tile_px': 64}, 'model': {'name': 'cfn'}}
NETWORK = {
  'order': 'alexnet',
  'stride': 2,
  'padding': 0,
  'input': {
    'channels': 'rgb',
    'mean': [123.0, 117.0, 104.0],
    'scale': [50.0] * 3,
    'normalization': 'tile',
    'std': 58.0,
  },
}


def save_run(
  workdir,
  params,
  *,
  steps=(3, 5),
  config=CONFIG,
  accuracies=(0.9, 0.2),
  best='val_accuracy',
  **more,
):
  """Saves checkpoints as the loop does, from all (eight) devices."""
  state = {'params': params, 'optimizer': jax.tree.map(np.zeros_like, params), **more}
  state = devices.replicate(state, devices.make_mesh())
  told = {'task': 'jigsaw', 'best': best, 'network': NETWORK, 'config': config, 'commit': ''}
  with checkpoint.Checkpoints(workdir, keep_latest=9, keep_best=1, best=best) as saver:
    for step, accuracy in zip(steps, accuracies):
      conv1 = state['params']['conv1']
      moved = state['params'] | {'conv1': conv1 | {'bias': conv1['bias'] + step}}
      meta = {**told, 'fingerprint': {'seed': 0}}
      saver.save(step, state | {'params': moved}, meta, {best.removeprefix('-'): accuracy})


def change_meta(step, edit):
  """Edits the meta of a step and seals it anew."""
  path = step / 'meta' / 'metadata'
  told = json.loads(path.read_text())
  edit(told)
  told.pop(digests.OWN, None)
  path.write_text(json.dumps(digests.seal(told)))


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """A workdir with two steps, and the weights that it was made of."""
  workdir = tmp_path_factory.mktemp('run')
  assert jax.device_count() == 8
  weights = cases.draw(kind='cfn', stride=2, side=3, width=0.1, features=8)
  save_run(workdir, weights.params)
  np.save(workdir / 'permutations.npy', np.array([range(9), range(9)[::-1]], np.uint8))
  return workdir, weights


def test_a_checkpoint_of_eight_devices_is_read_on_one(run, tmp_path):
  workdir, weights = run
  program = (
    'import jax; from cfn_jax.transfer import files; import pathlib; '
    f'w = files.load_weights({str(workdir)!r}); assert jax.device_count() == 1; '
    f'files.save_weights(w, pathlib.Path({str(tmp_path / "w.npz")!r}))'
  )
  environment = {'XLA_FLAGS': '', 'JAX_PLATFORMS': 'cpu', 'PATH': '/usr/bin:/bin'}
  subprocess.run(
    [sys.executable, '-c', program], check=True, cwd=REPOSITORY, env=environment, timeout=120
  )
  loaded = files.load_weights(tmp_path / 'w.npz')
  assert np.array_equal(
    loaded.params['conv1']['bias'], weights.params['conv1']['bias'] + np.float32(5)
  )
  loaded.params['conv1']['bias'] = weights.params['conv1']['bias']
  cases.assert_same_arrays(loaded, weights)


def test_a_checkpoint_says_how_its_network_is_fed(run):
  loaded = files.load_weights(run[0])
  assert (loaded.kind, loaded.order, loaded.stride, loaded.tiles()) == ('cfn', 'alexnet', 2, 9)
  record = inputs.InputRecord('rgb', (123.0, 117.0, 104.0), (50.0,) * 3, 'tile', 58.0)
  assert loaded.input == record
  assert loaded.origin['metrics'] == {'val_accuracy': 0.2}
  assert loaded.origin['fingerprint'] == {'seed': 0}
  assert loaded.origin['config'] == CONFIG
  assert loaded.origin['permutations'][1] == [8, 7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
  ('inside', 'step', 'found'),
  [
    ('', 'latest', 5),
    ('', 'best', 3),
    ('', '3', 3),
    ('checkpoints', 'latest', 5),
    ('checkpoints/3', 'latest', 3),
    ('checkpoints/3/state', 'latest', 3),
  ],
)
def test_a_workdir_its_checkpoints_a_step_and_its_state_all_lead_to_the_step(
  run, inside, step, found
):
  assert files.load_weights(run[0] / inside, step=step).origin['step'] == found


def test_an_unfinished_step_is_passed_over(run, tmp_path):
  folder = tmp_path / 'checkpoints'
  folder.mkdir()
  (folder / '3').symlink_to(run[0] / 'checkpoints' / '3')
  (folder / '9').mkdir()
  (folder / '8' / 'state').mkdir(parents=True)
  assert files.load_weights(tmp_path).origin['step'] == 3
  with pytest.raises(CfnError, match='is damaged: without'):
    files.load_weights(folder / '8')
  with pytest.raises(weights_lib.WeightsError, match="no step '9'; there are 3"):
    files.load_weights(tmp_path, step='9')
  with pytest.raises(weights_lib.WeightsError, match='no checkpoint in it'):
    files.load_weights(folder / '9')


def test_a_folder_of_runs_names_those_that_have_checkpoints(tmp_path):
  for name in ('alexnet', 'cfn'):
    (tmp_path / name / 'checkpoints').mkdir(parents=True)
  with pytest.raises(weights_lib.WeightsError, match=r'\(its runs have: alexnet, cfn\)'):
    files.load_weights(tmp_path)


def test_a_run_without_averaged_parameters_has_no_ema(run):
  with pytest.raises(CfnError, match='the run kept no ema'):
    files.load_weights(run[0], collection='ema')


def test_averaged_parameters_are_read_where_they_are_asked_for(tmp_path):
  weights, other = (cases.draw(width=0.1, features=8, seed=seed) for seed in (0, 1))
  save_run(tmp_path, weights.params, steps=(1,), ema=other.params)
  cases.assert_same_arrays(files.load_weights(tmp_path, collection='ema'), other)


def test_a_checkpoint_of_any_task_says_how_its_network_is_fed(run, tmp_path):
  weights = cases.draw(width=0.1, features=8)
  save_run(tmp_path, weights.params, steps=(1,))
  step = tmp_path / 'checkpoints' / '1'
  change_meta(step, lambda told: told.update(config={}, network=cards.make_record(weights)))
  loaded = files.load_weights(tmp_path)
  assert (loaded.kind, loaded.order, loaded.stride) == ('alexnet', 'caffenet', 4)
  assert loaded.input == weights.input
  change_meta(step, lambda told: told['network'].update(input={}))
  with pytest.raises(weights_lib.WeightsError, match='input record cannot be read'):
    files.load_weights(tmp_path)


def test_a_stacked_network_has_no_trunk(tmp_path):
  params = {name: dict(named) for name, named in cases.draw(width=0.1, features=8).params.items()}
  params['conv1']['kernel'] = np.zeros((11, 11, 27, 8), 'f4')
  save_run(tmp_path, params, steps=(1,))
  with pytest.raises(weights_lib.WeightsError, match='sees 9 tiles stacked'):
    files.load_weights(tmp_path)


def test_a_damaged_checkpoint_is_an_error_in_one_line(run, tmp_path):
  shutil.copytree(run[0] / 'checkpoints' / '3', tmp_path / '3')
  for data in (tmp_path / '3' / 'state').rglob('*'):
    if data.is_file() and data.stat().st_size > 1000 and data.name != '_METADATA':
      data.write_bytes(data.read_bytes()[:100])
  with pytest.raises(CfnError, match='is damaged: ') as error:
    files.load_weights(tmp_path / '3')
  assert '\n' not in str(error.value)


def test_a_changed_array_or_meta_of_a_checkpoint_is_refused(run, tmp_path):
  """Orbax alone restores a flipped bit in silence."""
  shutil.copytree(run[0] / 'checkpoints' / '3', tmp_path / '3')
  meta = tmp_path / '3' / 'meta' / 'metadata'
  text = meta.read_text()
  assert '"jigsaw"' in text
  meta.write_text(text.replace('"jigsaw"', '"jigsam"'))
  with pytest.raises(CfnError, match='meta/metadata: not what was saved'):
    files.load_weights(tmp_path / '3')
  meta.write_text(text)
  change_meta(
    tmp_path / '3', lambda told: told['arrays']['params/conv4/bias'].update(sha256='0' * 64)
  )
  with pytest.raises(CfnError, match='not the arrays that were saved: params/conv4'):
    files.load_weights(tmp_path / '3')


@pytest.mark.parametrize('to', ['npz', 'safetensors', 'caffe'])
@pytest.mark.parametrize('kind', ['alexnet', 'cfn', 'trunk'])
def test_a_round_trip_returns_the_same_bytes(tmp_path, to, kind):
  weights = cases.draw(kind=kind, order='alexnet', groups=(1, 1, 1, 2, 2), side=3, stride=2)
  weights = weights.replace(origin={'file': 'somewhere', 'config': {'seed': 3}})
  export.save_folder(weights, tmp_path / 'one', to)
  again = files.load_weights(tmp_path / 'one')
  cases.assert_same_arrays(again, weights)
  assert again.replace(params={}) == weights.replace(params={})
  made = export.save_folder(again, tmp_path / 'two', to)
  for name in made:
    assert (tmp_path / 'one' / name).read_bytes() == (tmp_path / 'two' / name).read_bytes(), name


def test_safetensors_hold_pytorchs_names_and_layouts(tmp_path):
  export.save_folder(cases.draw(), tmp_path / 'out', 'safetensors')
  found = reference.load_file(tmp_path / 'out' / 'model.safetensors')
  assert found['conv2.weight'].shape == (64, 12, 5, 5) and found['fc6.weight'].shape == (24, 2304)
  assert len(found) == 16


def test_numpy_reads_the_npz(tmp_path):
  weights = cases.draw()
  files.save_weights(weights, tmp_path / 'w.npz')
  with np.load(tmp_path / 'w.npz') as found:
    assert np.array_equal(found['fc6/kernel'], weights.params['fc6']['kernel'])


def test_numpys_own_npz_is_read_with_what_is_assumed(tmp_path):
  weights = cases.draw(kind='trunk')
  flat = {f'{layer}/{n}': a for layer, named in weights.params.items() for n, a in named.items()}
  for save in (np.savez, np.savez_compressed):
    save(tmp_path / 'w.npz', step=np.arange(3), **flat)
    loaded = files.load_weights(tmp_path / 'w.npz')
    cases.assert_same_arrays(loaded, weights)
    assert loaded.stride == 4 and any('step' in note for note in loaded.origin['notes'])


@pytest.mark.parametrize('kind', ['alexnet', 'cfn', 'trunk'])
@pytest.mark.parametrize('gone', ['conv1', 'conv3'])
@pytest.mark.parametrize('suffix', ['npz', 'safetensors'])
def test_a_network_without_one_convolution_is_refused(tmp_path, kind, gone, suffix):
  weights = cases.draw(kind=kind, width=0.1, side=3)
  path = tmp_path / f'w.{suffix}'
  last = 'conv5' if kind == 'trunk' else 'fc6'
  for rest, words in (
    ((gone,), f'{gone} missing, below {last}: the network is not whole'),
    ((gone, 'conv4'), f'{gone}, conv4 missing, below {last}'),
  ):
    kept = {name: each for name, each in weights.params.items() if name not in rest}
    if suffix == 'npz':
      files.save_weights(weights.replace(params=kept), path)
    else:
      reference.save_file(layouts.to_foreign(weights.replace(params=kept)), path)
    with pytest.raises(weights_lib.WeightsError, match=words):
      files.load_weights(path)


@pytest.mark.parametrize(
  ('gone', 'kept'), [('fc6', ()), ('fc7', ('fc6',)), ('fc8', ('fc6', 'fc7'))]
)
def test_layers_above_a_missing_one_are_not_read_and_listed(tmp_path, gone, kept):
  named = layouts.to_foreign(cases.draw(width=0.1))
  other = {name.replace(gone, f'my_{gone}_'): array for name, array in named.items()}
  reference.save_file(other, tmp_path / 'w.safetensors')
  loaded = files.load_weights(tmp_path / 'w.safetensors')
  assert loaded.layers() == (*weights_lib.CONVOLUTIONS, *kept)
  note = loaded.origin['notes'][-1]
  assert f'my_{gone}_.weight' in note and (f'fc8 (there is no {gone})' in note) == (gone != 'fc8')


def test_the_first_convolutions_alone_are_read_and_a_bias_that_is_assumed_is_noted(tmp_path):
  named = layouts.to_foreign(cases.draw(kind='trunk', width=0.1))
  first = {name: array for name, array in named.items() if name[:5] in ('conv1', 'conv2')}
  first.pop('conv2.bias')
  reference.save_file(first, tmp_path / 'w.safetensors')
  loaded = files.load_weights(tmp_path / 'w.safetensors')
  assert loaded.layers() == ('conv1', 'conv2')
  assert not loaded.params['conv2']['bias'].any()
  assert 'no bias in the file: zeros assumed for conv2' in loaded.origin['notes']


def test_unknown_convolutions_beside_fc6_are_listed_first(tmp_path):
  named = layouts.to_foreign(cases.draw(width=0.1))
  other = {name.replace('conv', 'block_conv_'): array for name, array in named.items()}
  other |= {f'a{i}': np.zeros(1, 'f4') for i in range(99)}
  reference.save_file(other, tmp_path / 'w.safetensors')
  with pytest.raises(
    weights_lib.WeightsError, match=r'conv5 missing, below fc6; not read: block_conv_1\.bias, .*'
  ) as error:
    files.load_weights(tmp_path / 'w.safetensors')
  assert str(error.value).endswith(' ...') and 'block_conv_5.weight' in str(error.value)


@pytest.mark.parametrize('dtype', ['int8', 'float8_e4m3fn', 'complex64'])
def test_weights_of_a_type_that_is_not_read_name_it_and_counters_do_not_matter(tmp_path, dtype):
  torch = pytest.importorskip('torch')
  named = layouts.to_foreign(cases.draw(width=0.1))
  tensors = {name: torch.from_numpy(array) for name, array in named.items()}
  counted = {**tensors, 'norm.num_batches_tracked': torch.tensor(3)}
  typed = {**tensors, 'conv2.weight': tensors['conv2.weight'].to(getattr(torch, dtype))}
  told = {'float8_e4m3fn': 'float8_e4m3fn|F8_E4M3', 'complex64': 'complex64|C64'}
  for suffix, save in (
    ('pth', torch.save),
    ('safetensors', pytest.importorskip('safetensors.torch').save_file),
  ):
    path = tmp_path / f'w.{suffix}'
    save(counted, path)
    assert len(files.load_weights(path).params) == 8
    save(typed, path)
    words = rf'conv2\.weight is ({told.get(dtype, "int8|I8")}): one of float16, '
    with pytest.raises(weights_lib.WeightsError, match=words):
      files.load_weights(path)


def test_files_without_arrays_are_named(tmp_path):
  torch = pytest.importorskip('torch')
  reference.save_file({}, tmp_path / 'w.safetensors')
  torch.save({'step': torch.tensor(3)}, tmp_path / 'w.pth')
  for name, words in (
    ('w.safetensors', 'no array of floats'),
    ('w.pth', 'no state dict of floats'),
  ):
    with pytest.raises(weights_lib.WeightsError, match=rf'{name}: there is {words} in it'):
      files.load_weights(tmp_path / name)


@pytest.mark.parametrize('protocol', [2, 3, 4, 5])
def test_a_pickle_of_other_objects_is_refused_without_a_warning(tmp_path, recwarn, protocol):
  pytest.importorskip('torch')
  path = tmp_path / 'w.pkl'
  path.write_bytes(pickle.dumps({'conv1.weight': np.zeros((4, 3, 11, 11), 'f4')}, protocol))
  with pytest.raises(weights_lib.WeightsError, match='Python objects besides tensors'):
    files.load_weights(path)
  assert not recwarn.list


def test_values_that_are_not_finite_are_counted(tmp_path):
  weights = cases.draw(width=0.1)
  broken = {
    layer: {name: array * np.nan for name, array in named.items()}
    for layer, named in weights.params.items()
  }
  files.save_weights(weights.replace(params=broken), tmp_path / 'w.npz')
  with pytest.raises(weights_lib.WeightsError, match='conv1/kernel and 15 more arrays') as error:
    files.load_weights(tmp_path / 'w.npz')
  assert str(error.value).count('finite') == 1
  one = {**weights.params, 'fc8': broken['fc8'] | {'kernel': weights.params['fc8']['kernel']}}
  files.save_weights(weights.replace(params=one), tmp_path / 'w.npz')
  with pytest.raises(weights_lib.WeightsError, match='fc8/bias holds values that are not finite'):
    files.load_weights(tmp_path / 'w.npz')


def test_a_card_counts_only_for_its_own_file(tmp_path):
  weights = cases.draw(order='alexnet', stride=2, record=inputs.RECORDS['unit'])
  export.save_folder(weights, tmp_path / 'out', 'caffe')
  path = tmp_path / 'out' / 'model.caffemodel'
  assert files.load_weights(path).input == inputs.RECORDS['unit']
  data = bytearray(path.read_bytes())
  data[5000] ^= 1  # in the middle of an array
  path.write_bytes(data)
  with pytest.raises(weights_lib.WeightsError, match='sha256 differs'):
    files.load_weights(path)
  path.rename(tmp_path / 'alone.caffemodel')
  alone = files.load_weights(tmp_path / 'alone.caffemodel')
  assert alone.input == inputs.RECORDS['caffe'] and alone.order == 'alexnet'


def test_a_card_tells_the_network_its_input_its_origin_and_the_digests(run, tmp_path):
  export.save_folder(files.load_weights(run[0]), tmp_path / 'out', 'caffe')
  card = json.loads((tmp_path / 'out' / cards.NAME).read_text())
  for name in ('kind', 'order', 'groups', 'stride', 'input', 'layers', 'sha256', 'licence'):
    assert card[name], name
  for name in ('config', 'commit', 'fingerprint', 'permutations', 'metrics', 'file'):
    assert name in card['origin'], name
  text = (tmp_path / 'out' / 'model_card.md').read_text()
  assert card['sha256']['model.caffemodel'] in text and 'Licence' in text
  assert cards.sha256(tmp_path / 'out' / 'model.caffemodel') == card['sha256']['model.caffemodel']


def _npy(header):
  out = io.BytesIO()
  np.lib.format.write_array_header_1_0(out, header)
  return out.getvalue()


def _zip(path, members):
  with zipfile.ZipFile(path, 'w') as archive:
    for name, data in members.items():
      archive.writestr(name, data)


@pytest.mark.parametrize(
  ('name', 'content', 'words'),
  [
    ('a.npz', b'', 'it holds nothing'),
    ('a.npz', b'hello world, this is text', 'it holds text'),
    ('a.npz', b'\xff\xd8\xff\xe0' + bytes(60), 'a JPEG image'),
    ('a.npz', b'\x93NUMPY' + bytes(60), 'a single .npy array'),
    ('a.npz', b'PK\x03\x04' + bytes(60), 'damaged or cut zip'),
    ('a.caffemodel', b'\x89HDF\r\n\x1a\n' + bytes(60), 'an HDF5 file'),
    ('a.caffemodel', b'\x80\x02}q\x00.', 'holds a pytorch file; call it .pth'),
    ('a.caffemodel', b'version https://git-lfs.github.com/spec/v1', 'Git LFS pointer'),
    ('a.safetensors', (9**9).to_bytes(8, 'little') + b'{' + bytes(60), 'unknown bytes'),
    ('a.safetensors', (40).to_bytes(8, 'little') + b'{' + bytes(60), 'damaged'),
    (
      'a.onnx',
      b'\x08\x07' + bytes(60),
      'holds no weights but unknown bytes; .npz, .safetensors, .pth, .caffe',
    ),
  ],
)
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path, name, content, words):
  (tmp_path / name).write_bytes(content)
  with pytest.raises(weights_lib.WeightsError, match=words) as error:
    files.load_weights(tmp_path / name)
  assert '\n' not in str(error.value) and name in str(error.value)


def test_formats_under_each_others_names_are_told_apart(tmp_path):
  weights = cases.draw(kind='trunk', width=0.1)
  for to, file in (
    ('npz', 'weights.npz'),
    ('safetensors', 'model.safetensors'),
    ('caffe', 'model.caffemodel'),
  ):
    export.save_folder(weights, tmp_path / to, to)
    for suffix in ('.npz', '.safetensors', '.pth', '.caffemodel'):
      path = tmp_path / f'{to}{suffix}'
      path.write_bytes((tmp_path / to / file).read_bytes())
      if path.suffix == pathlib.Path(file).suffix:
        cases.assert_same_arrays(files.load_weights(path), weights)
      else:
        with pytest.raises(weights_lib.WeightsError, match=f'holds a {to} file'):
          files.load_weights(path)


@pytest.mark.parametrize(
  ('member', 'words'),
  [
    (_npy({'descr': '<f4', 'fortran_order': False, 'shape': (2**40, 2**10)}), 'the file has'),
    (_npy({'descr': '<f4', 'fortran_order': False, 'shape': (4,)}), 'another length'),
    (b'no array at all, in spite of its name' * 3, 'damaged'),
    (_npy({'descr': '|O', 'fortran_order': False, 'shape': (4,)}) + b'cos\nsystem\n', 'not numb'),
    (_npy({'descr': '<i4', 'fortran_order': False, 'shape': (1,)}) + bytes(4), 'int32'),
  ],
)
def test_an_npz_with_absurd_contents_is_refused_without_memory(tmp_path, member, words):
  _zip(tmp_path / 'a.npz', {'conv1/kernel.npy': member})
  with pytest.raises(weights_lib.WeightsError, match=words):
    files.load_weights(tmp_path / 'a.npz')


@pytest.mark.parametrize('to', ['npz', 'safetensors', 'caffe'])
def test_a_damaged_file_is_an_error_in_one_line_or_other_weights(tmp_path, to):
  """Cut, overwritten near its ends, bytes put in between: no reader ends in a traceback."""
  weights = cases.draw(width=0.1, features=4, side=1)
  [name, *_] = export.save_folder(weights, tmp_path / 'out', to)
  data = (tmp_path / 'out' / name).read_bytes()
  path = tmp_path / f'damaged{pathlib.Path(name).suffix}'
  rng, refused = np.random.default_rng(0), 0
  for case in range(80):
    damaged = bytearray(data)
    if case % 4 == 0:
      del damaged[rng.integers(0, len(data)) :]
    elif case % 4 == 3:
      place = rng.integers(0, len(data))
      damaged[place:place] = rng.bytes(7)
    else:
      places = rng.integers(0, 2000, 3)
      for place in places if case % 4 == 1 else len(data) - 1 - places:
        damaged[place] = rng.integers(0, 256)
    path.write_bytes(damaged)
    try:
      files.load_weights(path)
    except weights_lib.WeightsError as error:
      refused += 1
      assert '\n' not in str(error)
  assert refused > 20


def test_a_record_that_is_no_record_is_refused(tmp_path):
  params = cases.draw(kind='trunk', width=0.1).params
  for record, words in (
    ({'order': 'caffenet'}, "no 'origin'"),
    ({'order': 1, 'stride': 'wide'}, 'cannot be read'),
    ({'order': 'caffenet', 'stride': 4, 'input': [], 'origin': 3, 'padding': 0}, 'record'),
  ):
    arrays.save_npz(tmp_path / 'a.npz', params, record)
    with pytest.raises(weights_lib.WeightsError, match=words):
      files.load_weights(tmp_path / 'a.npz')


def test_other_channels_than_alexnets_are_refused(tmp_path):
  """DeepCluster's and torchvision's widths are no multiple of AlexNet's."""
  weights = cases.draw(kind='trunk', groups=(1, 1, 1, 1, 1), width=1.0)
  params = dict(weights.params)
  params['conv5'] = {n: a[..., :160].copy() for n, a in params['conv5'].items()}
  files.save_weights(weights.replace(params=params), tmp_path / 'a.npz')
  with pytest.raises(weights_lib.WeightsError, match=r'conv5 160.* no AlexNet of any width'):
    files.load_weights(tmp_path / 'a.npz')


@pytest.mark.parametrize('length', [0x280, 0x380, 0x480, 0x580])
def test_a_safetensors_header_of_any_length_is_no_pickle(tmp_path, length):
  arrays = {'conv1.weight': np.zeros((8, 3, 11, 11), 'f4'), 'conv1.bias': np.zeros(8, 'f4')}
  header, start = {}, 0
  for name, array in arrays.items():
    end = start + array.nbytes
    header[name] = {'dtype': 'F32', 'shape': list(array.shape), 'data_offsets': [start, end]}
    start = end
  text = json.dumps(header).encode().ljust(length)
  data = b''.join(array.tobytes() for array in arrays.values())
  path = tmp_path / 'w.safetensors'
  path.write_bytes(len(text).to_bytes(8, 'little') + text + data)
  assert path.read_bytes()[:1] == b'\x80'
  assert files.load_weights(path).layers() == ('conv1',)


def test_a_path_that_is_not_there_is_named(tmp_path):
  with pytest.raises(weights_lib.WeightsError, match='no such file or folder'):
    files.load_weights(tmp_path / 'nothing')
  for address in ('hdfs://host/run', 'https://host/model.pth'):
    with pytest.raises(places.PlaceError, match=f'{address} is an address'):
      files.load_weights(address)
  assert set(step_folders.COLLECTIONS) == {'params', 'ema'}
