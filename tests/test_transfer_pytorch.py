"""The exported PyTorch module and state dicts, against PyTorch itself where it is installed."""

import ast
import importlib.util
import os
import pickle

import cv2
import numpy as np
import pytest
import transfer_cases as cases

from cfn_jax.models import inputs
from cfn_jax.transfer import export, files, layouts, pytorch, surgery
from cfn_jax.transfer import weights as weights_lib


@pytest.fixture(scope='module')
def torch():
  return pytest.importorskip('torch', reason="PyTorch is not installed: pip install '.[torch]'")


def _load_module(path):
  spec = importlib.util.spec_from_file_location(f'exported_{path.stem}', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def _figures(source):
  """Returns the constants of a module file without running it."""
  return {
    node.target.id if isinstance(node, ast.AnnAssign) else node.targets[0].id: ast.literal_eval(
      node.value
    )
    for node in ast.parse(source).body
    if isinstance(node, ast.Assign | ast.AnnAssign)
  }


@pytest.mark.parametrize('kind', ['alexnet', 'cfn', 'trunk'])
def test_the_module_file_states_the_network_and_holds_one_only(kind):
  side = 3 if kind == 'cfn' else 6
  weights = cases.draw(kind=kind, order='alexnet', groups=(1, 1, 1, 2, 4), stride=2, side=side)
  source = pytorch.module_source(weights)
  figures = _figures(source)
  assert figures['ORDER'] == 'alexnet' and figures['GROUPS'] == (1, 1, 1, 2, 4)
  assert figures['CHANNELS'] == (24, 64, 96, 96, 64) and figures['STRIDE'] == 2
  assert figures['TILES'] == weights.tiles()
  assert figures['INPUT_CHANNELS'] == 'bgr' and figures['INPUT_MEAN'] == (104.0, 117.0, 123.0)
  assert figures['CONNECTED'] == tuple(
    weights.params[name]['kernel'].shape for name in weights.layers() if name.startswith('fc')
  )
  classes = {node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
  assert classes == {'Trunk', 'Cfn' if kind == 'cfn' else 'AlexNet'}
  assert figures['NETWORK'] in classes
  imported = {
    node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
    for node in ast.walk(ast.parse(source))
    if isinstance(node, ast.Import | ast.ImportFrom)
  }
  assert imported <= {'pathlib', 'torch', 'torch.nn'}


@pytest.mark.parametrize(('order', 'size_px'), [('caffenet', 227), ('alexnet', 224)])
def test_pytorch_gives_every_layer_of_an_exported_alexnet(torch, tmp_path, order, size_px):
  weights = cases.draw(order=order)
  export.save_folder(weights, tmp_path / 'out', 'pytorch')
  module = _load_module(tmp_path / 'out' / 'alexnet.py')
  network = module.load(tmp_path / 'out' / 'model.pth')
  images = cases.images(1, size_px)
  with torch.no_grad():
    found = network.stages(module.prepare(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())))
  wanted = cases.ours(weights, weights.input.prepare(images))
  assert set(found) == set(wanted)
  for stage in wanted:
    assert cases.difference(found[stage].numpy(), wanted[stage]) < cases.TOLERANCE, stage


@pytest.mark.parametrize('normalization', ['', 'tile', 'channel', 'mean'])
@pytest.mark.slow
def test_pytorch_gives_the_logits_of_an_exported_cfn(torch, tmp_path, normalization):
  mean, std = (120.0, 110.0, 100.0), 58.0
  factor = 50.0 if normalization else 50.0 / std
  record = inputs.InputRecord('rgb', mean, (factor,) * 3, normalization, std)
  weights = cases.draw(kind='cfn', stride=2, side=3, record=record)
  export.save_folder(weights, tmp_path / 'out', 'pytorch')
  module = _load_module(tmp_path / 'out' / 'cfn.py')
  network = module.load(tmp_path / 'out' / 'model.pth')
  tiles = cases.images(18, 64).reshape(2, 9, 64, 64, 3)
  with torch.no_grad():
    prepared = module.prepare(torch.from_numpy(tiles.transpose(0, 1, 4, 2, 3).copy()))
    logits = network(prepared).numpy()
  wanted = cases.ours(weights, weights.input.prepare(tiles))['fc8']
  assert cases.difference(logits, wanted) < cases.TOLERANCE


@pytest.mark.parametrize(
  ('old', 'new', 'stage'),
  [
    ('ceil_mode=True', 'ceil_mode=False', 'pool1'),
    ('alpha=1e-4', 'alpha=5e-4', 'norm1'),
    # The groups of conv2 exchanged: each sees the channels of the other.
    (
      "getattr(self, f'conv{number}')(x)",
      "getattr(self, f'conv{number}')(x.roll(x.shape[1] // 2, 1) if number == 2 else x)",
      'conv2',
    ),
    ("INPUT_CHANNELS == 'bgr'", "INPUT_CHANNELS == 'rgb'", 'conv1'),
    ("'pool5'].flatten(1)", "'pool5'].permute(0, 2, 3, 1).flatten(1)", 'fc6'),
    ('self.conv', 'self.conv', ''),
  ],
)
def test_the_comparison_sees_each_thing_that_can_break(torch, tmp_path, old, new, stage):
  weights = cases.draw()
  export.save_folder(weights, tmp_path / 'out', 'pytorch')
  path = tmp_path / 'out' / 'alexnet.py'
  source = path.read_text()
  assert not stage or old in source
  path.write_text(source.replace(old, new))
  module = _load_module(path)
  images = cases.images(1, 224)
  network = module.load(tmp_path / 'out' / 'model.pth')
  with torch.no_grad():
    x = module.prepare(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    found = network.stages(x) if stage != 'pool1' else module.Trunk.stages(network, x)
  wanted = cases.ours(weights, weights.input.prepare(images))
  stage_seen = stage or 'fc8'
  far = cases.difference(found[stage_seen].numpy(), wanted[stage_seen])
  assert far > 1e-3 if stage else far < cases.TOLERANCE


def test_another_count_of_groups_does_not_take_the_weights(torch, tmp_path):
  export.save_folder(cases.draw(), tmp_path / 'out', 'pytorch')
  path = tmp_path / 'out' / 'alexnet.py'
  source = path.read_text()
  assert 'GROUPS = (1, 2, 1, 2, 2)' in source
  path.write_text(source.replace('GROUPS = (1, 2, 1, 2, 2)', 'GROUPS = (1, 1, 1, 2, 2)'))
  with pytest.raises(RuntimeError, match=r'size mismatch for conv2\.weight'):
    _load_module(path).load(tmp_path / 'out' / 'model.pth')


@pytest.mark.parametrize('kind', ['alexnet', 'cfn', 'trunk'])
def test_a_round_trip_through_pytorch_returns_the_same_bytes(torch, tmp_path, kind):
  weights = cases.draw(kind=kind, order='alexnet', groups=(1, 1, 1, 2, 2), side=3, stride=2)
  weights = weights.replace(origin={'file': 'somewhere', 'config': {'seed': 3}})
  export.save_folder(weights, tmp_path / 'one', 'pytorch')
  again = files.load_weights(tmp_path / 'one')
  cases.assert_same_arrays(again, weights)
  assert again.replace(params={}) == weights.replace(params={})
  made = export.save_folder(again, tmp_path / 'two', 'pytorch')
  assert 'model.pth' in made
  for name in made:
    assert (tmp_path / 'one' / name).read_bytes() == (tmp_path / 'two' / name).read_bytes(), name


def test_a_photograph_gives_the_same_as_here(torch, tmp_path, shared_data):
  photograph = cv2.imread(str(shared_data('quirks/tiny_75x56.JPEG')))
  rgb = np.ascontiguousarray(cv2.resize(photograph, (227, 227))[None, ..., ::-1])
  for name in ('caffe', 'imagenet'):
    weights = surgery.fold_input(cases.draw(kind='trunk', record=inputs.RECORDS['unit']), name)
    export.save_folder(weights, tmp_path / name, 'pytorch')
    module = _load_module(tmp_path / name / 'alexnet.py')
    network = module.load(tmp_path / name / 'model.pth')
    with torch.no_grad():
      found = network.stages(module.prepare(torch.from_numpy(rgb.transpose(0, 3, 1, 2).copy())))
    wanted = cases.ours(weights, weights.input.prepare(rgb))
    for stage in cases.STAGES:
      assert cases.difference(found[stage].numpy(), wanted[stage]) < cases.TOLERANCE, stage


def test_a_state_dict_survives_bit_for_bit(torch, tmp_path):
  weights = cases.draw(record=inputs.RECORDS['imagenet'])
  export.save_folder(weights, tmp_path / 'out', 'pytorch')
  loaded = torch.load(tmp_path / 'out' / 'model.pth', weights_only=True)
  assert list(loaded) == [f'{n}.{k}' for n in weights_lib.LAYERS for k in ('weight', 'bias')]
  assert tuple(loaded['conv2.weight'].shape) == (64, 12, 5, 5)
  again = files.load_weights(tmp_path / 'out')
  cases.assert_same_arrays(again, weights)
  assert again.input == weights.input


def test_prefixes_and_wrappers_are_looked_through(torch, tmp_path):
  weights = cases.draw(kind='trunk', order='caffenet')
  tensors = {
    f'module.features.{name}': torch.from_numpy(array.copy())
    for name, array in layouts.to_foreign(weights).items()
  }
  tensors['module.extra'] = torch.zeros(3)
  path = tmp_path / 'other.pth'
  torch.save({'epoch': 3, 'state_dict': tensors}, path)
  loaded = files.load_weights(path)
  cases.assert_same_arrays(loaded, weights)
  notes = ' '.join(loaded.origin['notes'])
  assert 'imagenet assumed' in notes and 'caffenet assumed' in notes
  assert 'not read: state_dict.module.extra' in notes
  asked = files.Assumed(input='caffe', order='alexnet', stride=2)
  told = files.load_weights(path, assumed=asked)
  assert (told.order, told.stride) == ('alexnet', 2)
  assert told.input == inputs.RECORDS['caffe']


# The names of the port of the paper's code, by the block that holds a layer.
_BLOCKS = {'fc6': 'fc6.fc6_s1', 'fc7': 'fc7.fc7', 'fc8': 'classifier.fc8'}


def _ported(weights, copies=(1,)):
  """Returns a CFN's arrays under the port's keys, with copies that share their weights."""
  named = {}
  for key, array in layouts.to_foreign(weights).items():
    layer, kind = key.split('.')
    block = _BLOCKS.get(layer, f'conv.{layer}_s1')
    for copy in copies if block.endswith('_s1') else (1,):
      named[f'{block.replace("_s1", f"_s{copy}")}.{kind}'] = array
  return named


@pytest.mark.parametrize('copies', [(1,), (2, 1, 9)])
def test_a_cfn_of_the_port_is_read_whole(torch, tmp_path, copies):
  weights = cases.draw(kind='cfn', side=3, stride=2)
  path = tmp_path / 'checkpoint.pth.tar'
  tensors = {n: torch.from_numpy(a.copy()) for n, a in _ported(weights, copies).items()}
  torch.save({'epoch': 3, 'state_dict': tensors}, path)
  loaded = files.load_weights(path)
  cases.assert_same_arrays(loaded, weights)
  assert (loaded.kind, loaded.order, loaded.stride) == ('cfn', 'caffenet', 2)
  assert not any('not read' in note for note in loaded.origin['notes'])
  [note] = loaded.origin['notes']
  assert 'by its names it is its port to PyTorch' in note and 'each of its channels' in note
  tiles = cases.images(3, 64)
  x = torch.from_numpy(tiles.transpose(0, 3, 1, 2).copy()).double() / 255
  x = (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True, unbiased=False)
  found = loaded.input.prepare(tiles)
  np.testing.assert_allclose(found, x.numpy().transpose(0, 2, 3, 1), atol=1e-5)
  told = files.load_weights(path, assumed=files.Assumed(input='imagenet'))
  assert told.input == inputs.RECORDS['imagenet'] and not told.origin.get('notes')


def test_the_authors_names_in_a_state_dict_are_fed_as_theirs(torch, tmp_path):
  named = _ported(cases.draw(kind='cfn', side=3))
  plain = {name.split('.', 1)[1]: torch.from_numpy(a.copy()) for name, a in named.items()}
  torch.save(plain, tmp_path / 'w.pth')
  assert files.load_weights(tmp_path / 'w.pth').input == layouts.PEERS[layouts.AUTHORS]
  rows = plain['fc7.weight'].shape[1] // 9
  plain['fc7.weight'] = plain['fc7.weight'][:, : 2 * rows].clone()  # a network of pairs of images
  torch.save(plain, tmp_path / 'w.pth')
  assert files.load_weights(tmp_path / 'w.pth').input == inputs.RECORDS['imagenet']


def test_copies_that_do_not_share_their_weights_are_refused():
  named = _ported(cases.draw(kind='cfn', side=3), (1, 2))
  named['conv.conv3_s2.bias'] = named['conv.conv3_s2.bias'] + 1
  with pytest.raises(weights_lib.WeightsError, match=r'conv3_s1\.bias and .*conv3_s2\.bias differ'):
    pytorch.from_state_dict(named)


def test_a_file_whose_convolutions_are_not_found_is_refused(torch, tmp_path):
  """Fully connected layers alone must not pass as weights: not by convert, not as a start."""
  arrays = layouts.to_foreign(cases.draw(kind='cfn', side=3))
  tensors = {
    (name if name.startswith(('fc7', 'fc8')) else f'net.block_{name}'): torch.from_numpy(a.copy())
    for name, a in arrays.items()
  }
  path = tmp_path / 'odd.pth'
  torch.save(tensors, path)
  with pytest.raises(
    weights_lib.WeightsError, match=r'none of conv1 .. conv5 .* only fc7, fc8'
  ) as e:
    files.load_weights(path)
  assert 'not read: net.block_conv1.bias, ' in str(e.value) and '\n' not in str(e.value)


def test_the_content_decides_where_the_name_says_nothing(torch, tmp_path):
  weights = cases.draw(kind='trunk', width=0.1)
  for name in ('checkpoint.pth.tar', 'last.ckpt', 'pytorch_model.bin', 'weights'):
    pytorch.save_state_dict(layouts.to_foreign(weights), tmp_path / name)
    cases.assert_same_arrays(files.load_weights(tmp_path / name), weights)


def test_bfloat16_is_read_from_both_formats_alike(torch, tmp_path):
  tensors = {
    name: torch.from_numpy(array.copy()).to(torch.bfloat16)
    for name, array in layouts.to_foreign(cases.draw(kind='trunk', width=0.1)).items()
  }
  torch.save(tensors, tmp_path / 'a.pth')
  pytest.importorskip('safetensors.torch').save_file(tensors, tmp_path / 'a.safetensors')
  found = [files.load_weights(tmp_path / name) for name in ('a.pth', 'a.safetensors')]
  cases.assert_same_arrays(*found)


class _Code:
  """A pickle of this makes a folder when it is opened."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return os.mkdir, (self.path,)


@pytest.mark.parametrize('old_form', [True, False])
def test_code_in_a_pickle_is_never_run(torch, tmp_path, old_form):
  made, path = tmp_path / 'made', tmp_path / 'evil.pth'
  if old_form:
    path.write_bytes(pickle.dumps(_Code(str(made)), protocol=2))
  else:
    torch.save({'conv1.weight': _Code(str(made))}, path)
  with pytest.raises(weights_lib.WeightsError, match=r'refused|cannot read') as error:
    files.load_weights(path)
  assert not made.exists() and '\n' not in str(error.value)


def test_a_cut_state_dict_is_an_error_in_one_line(torch, tmp_path):
  path = tmp_path / 'cut.pth'
  pytorch.save_state_dict(layouts.to_foreign(cases.draw(kind='trunk', width=0.1)), path)
  path.write_bytes(path.read_bytes()[:-2000])
  with pytest.raises(weights_lib.WeightsError, match='damaged or cut') as error:
    files.load_weights(path)
  assert '\n' not in str(error.value)


def test_torchvisions_alexnet_is_refused_with_the_reason():
  arrays = {'features.0.weight': np.zeros((64, 3, 11, 11), 'f4')}
  with pytest.raises(weights_lib.WeightsError, match=r'other widths \(64, 192, 384, 256, 256\)'):
    pytorch.from_state_dict(arrays)


def test_another_networks_keys_are_listed():
  with pytest.raises(weights_lib.WeightsError, match=r'layer4\.0\.weight'):
    pytorch.from_state_dict({'layer4.0.weight': np.zeros(3, 'f4')})


@pytest.mark.parametrize('order', ['caffenet', 'alexnet'])
def test_vissls_names_lead_there_and_back(order):
  weights = cases.draw(kind='trunk', order=order, width=1.0, stride=2 if order == 'caffenet' else 4)
  named = pytorch.to_vissl(weights)
  assert ('_feature_blocks.4.1.running_var' in named) == (order == 'caffenet')
  wrapped = {f'base_model.model.trunk.{name}': array for name, array in named.items()}
  found = pytorch.from_state_dict(wrapped)
  assert (found.order, found.stride, found.left_over) == (order, weights.stride, [])
  assert not found.notes
  for name in weights_lib.CONVOLUTIONS:
    for kind in ('kernel', 'bias'):
      assert cases.difference(found.params[name][kind], weights.params[name][kind]) < 1e-7, name
  with pytest.raises(weights_lib.WeightsError, match='96, 256, 384, 384, 256'):
    pytorch.to_vissl(cases.draw(kind='trunk'))


@pytest.mark.parametrize('order', ['caffenet', 'alexnet'])
def test_vissls_trunks_give_our_activations(torch, order):
  """`alexnet_jigsaw` and `alexnet_bvlc`, built here from their blocks, but pooling rounded up."""
  nn = torch.nn
  torch.manual_seed(0)

  def norm(features):
    return [nn.BatchNorm2d(features)] if order == 'caffenet' else []

  def between():
    steps = [nn.MaxPool2d(3, 2, ceil_mode=True), nn.LocalResponseNorm(5, 1e-4, 0.75)]
    return nn.Sequential(*(steps if order == 'caffenet' else reversed(steps)))

  stride = 2 if order == 'caffenet' else 4
  blocks = nn.ModuleList(
    [
      nn.Sequential(nn.Conv2d(3, 96, 11, stride), nn.ReLU()),
      between(),
      nn.Sequential(nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.ReLU()),
      between(),
      nn.Sequential(nn.Conv2d(256, 384, 3, padding=1), *norm(384), nn.ReLU()),
      nn.Sequential(nn.Conv2d(384, 384, 3, padding=1, groups=2), *norm(384), nn.ReLU()),
      nn.Sequential(nn.Conv2d(384, 256, 3, padding=1, groups=2), *norm(256), nn.ReLU()),
      nn.MaxPool2d(3, 2, ceil_mode=True),
    ]
  ).eval()
  for module in blocks.modules():
    if isinstance(module, nn.BatchNorm2d):
      for array in (module.weight, module.bias, module.running_mean, module.running_var):
        nn.init.uniform_(array, 0.5, 2.0)
  named = {
    f'base_model.model.trunk._feature_blocks.{name}': array.numpy()
    for name, array in blocks.state_dict().items()
  }
  found = pytorch.from_state_dict(named)
  assert (found.order, found.stride, found.left_over) == (order, stride, []) and not found.notes
  record = inputs.RECORDS['caffe']
  weights = weights_lib.make_weights(
    found.params, order=order, stride=stride, input_record=record, origin={}
  )
  prepared = record.prepare(cases.images(1, 67))
  x = torch.from_numpy(prepared.transpose(0, 3, 1, 2).copy())
  with torch.no_grad():
    for block in blocks:
      x = block(x)
  assert cases.difference(x.numpy(), cases.ours(weights, prepared)['pool5']) < cases.TOLERANCE


def test_fc7_of_nine_tiles_without_fc8_has_no_module(tmp_path):
  given = cases.draw(kind='cfn', side=3, width=0.1, features=8)
  rest = {name: layer for name, layer in given.params.items() if name != 'fc8'}
  with pytest.raises(weights_lib.WeightsError, match='fc7 sees 9 tiles, and without fc8'):
    export.save_folder(given.replace(params=rest), tmp_path / 'out', 'pytorch')
  assert not (tmp_path / 'out').exists()
  export.save_folder(given.replace(params=rest), tmp_path / 'out', 'npz')


def test_a_missing_pytorch_names_the_extra(monkeypatch, tmp_path):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(weights_lib.WeightsError, match=r"pip install -e '.\[torch\]'"):
    export.check(tmp_path / 'out', 'pytorch')
