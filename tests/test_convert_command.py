"""`python -m cfn_jax.convert`: out of a run, in from other programs, and what it refuses."""

import json
import os
import pathlib
import subprocess
import sys

import cv2
import numpy as np
import pytest
import test_transfer_files
import transfer_cases as cases

from cfn_jax import convert
from cfn_jax.models import inputs
from cfn_jax.transfer import cards, export, files


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run')
  weights = cases.draw(kind='cfn', stride=2, side=3, width=0.1, features=8)
  test_transfer_files.save_run(folder, weights.params)
  return folder


@pytest.fixture(scope='module')
def sources(workdir, tmp_path_factory):
  """What is converted: a workdir, a step, a folder of ours, its file, a file without a record."""
  folder = tmp_path_factory.mktemp('sources')
  weights = files.load_weights(workdir)
  export.save_folder(weights, folder / 'exported', 'npz')
  flat = {f'{layer}/{n}': a for layer, named in weights.params.items() for n, a in named.items()}
  np.savez(folder / 'bare.npz', **flat)
  return {
    'workdir': workdir,
    'step': workdir / 'checkpoints' / '3',
    'folder': folder / 'exported',
    'file': folder / 'exported' / 'weights.npz',
    'bare': folder / 'bare.npz',
  }


def _fail(capsys, *arguments):
  """Runs the command; gives its one line of error."""
  with pytest.raises(SystemExit) as stop:
    convert.main([str(argument) for argument in arguments])
  assert stop.value.code == 2
  error = capsys.readouterr().err
  assert 'Traceback' not in error
  return error


def test_a_run_becomes_a_caffe_alexnet_in_a_process_of_its_own(workdir, tmp_path):
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'cfn_jax.convert', f'--checkpoint={workdir}', '--to=caffe'),
      f'--out={tmp_path / "out"}',
    ],
    capture_output=True,
    text=True,
    check=False,
    cwd=test_transfer_files.REPOSITORY,
    env=os.environ | {'JAX_PLATFORM_NAME': 'gpu'},  # it works on the CPU all the same
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
  assert 'conv1..conv5 loaded (10/10 arrays); fc6, fc7, fc8 left over' in done.stdout
  assert 'B, G, R; (pixel of 0..255 - (104, 117, 123)) * (1, 1, 1)' in done.stdout
  weights = files.load_weights(tmp_path / 'out')
  assert (weights.kind, weights.stride, weights.order) == ('trunk', 4, 'alexnet')
  network = cv2.dnn.readNetFromCaffe(
    str(tmp_path / 'out' / 'deploy.prototxt'), str(tmp_path / 'out' / 'model.caffemodel')
  )
  images = cases.images(1, 227)
  network.setInput(cv2.dnn.blobFromImage(images[0][..., ::-1], mean=(104, 117, 123)))
  source = files.load_weights(workdir)
  fixed = source.replace(kind='trunk', stride=4, input=source.input.fixed())
  wanted = cases.trunk_stages(fixed, images)['pool5'].transpose(0, 3, 1, 2)
  assert cases.difference(network.forward('pool5'), wanted) < cases.TOLERANCE


@pytest.mark.slow
def test_every_format_gives_the_same_features(workdir, tmp_path):
  images, found = cases.images(1, 99), {}
  for to in ('npz', 'safetensors', 'caffe'):
    for record in ('unit', 'caffe', 'imagenet'):
      out = tmp_path / f'{to}_{record}'
      arguments = [f'--checkpoint={workdir}', f'--to={to}', f'--out={out}', f'--input={record}']
      convert.main(arguments)
      weights = files.load_weights(out)
      assert weights.input == inputs.RECORDS[record]
      found[out.name] = cases.trunk_stages(weights, images)['conv5']
  for name, features in found.items():
    assert cases.difference(features, found['npz_unit']) < cases.TOLERANCE, name


def test_a_cfn_keeps_its_head_and_its_own_normalisation(workdir, tmp_path, capsys):
  out = tmp_path / 'out'
  arguments = [f'--checkpoint={workdir}', '--to=caffe', '--model=cfn', f'--out={out}']
  convert.main(arguments)
  assert 'conv1..conv5, fc6, fc7, fc8 loaded (16/16 arrays)' in capsys.readouterr().out
  weights = files.load_weights(out)
  assert (weights.kind, weights.tiles(), weights.input.normalization) == ('cfn', 9, 'tile')
  cases.assert_same_arrays(weights, files.load_weights(workdir))


def test_fresh_layers_are_drawn_where_classes_are_asked_for(workdir, tmp_path, capsys):
  arguments = [f'--checkpoint={workdir}', '--to=npz', '--classes=5', '--fc-init=he', '--seed=3']
  for name in ('one', 'two'):
    convert.main([*arguments, f'--out={tmp_path / name}'])
  assert 'fc6, fc7, fc8 new' in capsys.readouterr().out
  one, two = (files.load_weights(tmp_path / name) for name in ('one', 'two'))
  assert one.kind == 'alexnet' and one.params['fc8']['kernel'].shape == (4096, 5)
  cases.assert_same_arrays(one, two)


def test_a_file_comes_in_and_goes_straight_out_again(tmp_path, shared_root, capsys):
  golden = shared_root('golden/caffenet_trunk.caffemodel')
  convert.main([f'--from={golden}', f'--out={tmp_path / "in"}'])
  assert 'note: the file does not say its input: caffe assumed' in capsys.readouterr().out
  convert.main([f'--from={golden}', '--to=caffe', f'--out={tmp_path / "out"}'])
  source = files.load_weights(golden)
  for name in ('in', 'out'):
    cases.assert_same_arrays(files.load_weights(tmp_path / name), source)
  assert 'fc6' not in (tmp_path / 'out' / 'deploy.prototxt').read_text()


def test_the_layer_order_stays_what_the_file_says(tmp_path):
  weights = cases.draw(order='alexnet', width=0.1, features=8)
  files.save_weights(weights, tmp_path / 'w.npz')
  convert.main([f'--from={tmp_path / "w.npz"}', '--to=caffe', f'--out={tmp_path / "o"}'])
  text = (tmp_path / 'o' / 'deploy.prototxt').read_text()
  assert text.index('"norm1"') < text.index('"pool1"')


def test_a_folder_is_replaced_only_when_asked_and_only_ours(workdir, tmp_path, capsys):
  out = tmp_path / 'out'
  arguments = [f'--checkpoint={workdir}', '--to=npz', f'--out={out}']
  convert.main(arguments)
  before = (out / 'weights.npz').read_bytes()
  assert '--overwrite' in _fail(capsys, *arguments, '--step=3')
  assert (out / 'weights.npz').read_bytes() == before
  convert.main([*arguments, '--step=3', '--overwrite'])
  assert (out / 'weights.npz').read_bytes() != before
  (tmp_path / 'mine').mkdir()
  (tmp_path / 'mine' / 'thesis.txt').write_text('years of work')
  arguments[-1] = f'--out={tmp_path / "mine"}'
  assert 'none of ours' in _fail(capsys, *arguments, '--overwrite')
  assert (tmp_path / 'mine' / 'thesis.txt').exists()
  assert sorted(path.name for path in tmp_path.iterdir()) == ['mine', 'out']


def test_what_a_user_put_beside_our_files_is_never_deleted(sources, tmp_path, capsys):
  out = tmp_path / 'out'
  arguments = [f'--from={sources["file"]}', f'--out={out}', '--overwrite']
  convert.main(arguments)
  (out / '__pycache__').mkdir()
  (out / '__pycache__' / 'mine.pyc').write_text('not of a module of ours')
  (out / 'notes.txt').write_text('years of work')
  error = _fail(capsys, *arguments)
  assert '__pycache__, notes.txt; --overwrite would delete it' in error
  assert (out / 'notes.txt').read_text() == 'years of work'
  (out / cards.NAME).write_text('{}')
  assert 'no model card' in _fail(capsys, *arguments) and (out / 'notes.txt').exists()


def test_what_python_compiled_of_our_module_is_no_obstacle(tmp_path):
  out = tmp_path / 'out'
  out.mkdir()
  (out / 'alexnet.py').write_text('')
  (out / cards.NAME).write_text(json.dumps({'sha256': {'alexnet.py': ''}}))
  (out / '__pycache__').mkdir()
  (out / '__pycache__' / 'alexnet.cpython-311.pyc').write_text('')
  export.check(out, 'npz', overwrite=True)


def test_a_link_is_followed_and_stays(sources, tmp_path):
  (tmp_path / 'disk').mkdir()
  (tmp_path / 'out').symlink_to(tmp_path / 'disk' / 'out')
  arguments = [f'--from={sources["file"]}', f'--out={tmp_path / "out"}']
  convert.main(arguments)
  convert.main([*arguments, '--overwrite', '--input=unit'])
  assert (tmp_path / 'out').is_symlink()
  assert files.load_weights(tmp_path / 'disk' / 'out').input == inputs.RECORDS['unit']
  assert [path.name for path in (tmp_path / 'disk').iterdir()] == ['out']


def test_a_link_to_itself_is_named(sources, tmp_path, capsys):
  (tmp_path / 'out').symlink_to(tmp_path / 'out')
  error = _fail(capsys, f'--from={sources["file"]}', f'--out={tmp_path / "out"}')
  assert str(tmp_path / 'out') in error and 'loop' in error


def test_the_old_folder_is_there_until_the_new_one_is(sources, tmp_path, capsys, monkeypatch):
  out = tmp_path / 'out'
  arguments = [f'--from={sources["file"]}', f'--out={out}']
  convert.main(arguments)
  before = {path.name: path.read_bytes() for path in out.iterdir()}
  rename, seen = pathlib.Path.rename, []

  def fail_in_place(path, target):
    if path.parent == out.parent and not path.name.endswith('.replaced') and path != out:
      whole = [each for each in out.parent.iterdir() if (each / 'weights.npz').is_file()]
      seen.append(sorted(each.name.endswith('.replaced') for each in whole))
      raise OSError(28, 'No space left on device')
    return rename(path, target)

  monkeypatch.setattr(pathlib.Path, 'rename', fail_in_place)
  error = _fail(capsys, *arguments, '--overwrite', '--input=unit')
  assert str(out) in error and 'No space left' in error
  assert seen == [[False, True]]  # both the new and the old one, whole
  assert {path.name: path.read_bytes() for path in out.iterdir()} == before
  assert [path.name for path in tmp_path.iterdir()] == ['out']


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    (('--to=npz', '--checkpoint=nowhere'), 'no such file or folder'),
    (('--checkpoint={workdir}',), '--to is needed: one of pytorch'),
    (('--checkpoint={workdir}', '--to=npz', '--step=4'), "no step '4'; there are 3, 5"),
    (('--checkpoint={workdir}', '--to=caffe', '--names=vissl'), "'vissl' goes with pytorch"),
    (('--checkpoint={workdir}', '--to=npz', '--weights=ema'), 'kept no ema'),
    (('--checkpoint={workdir}', '--to=npz', '--model=cfn', '--stride=4'), 'made for stride 2'),
    (('--from=setup.py',), 'holds no weights but text; .npz'),
    (('--checkpoint={workdir}', '--to=npz', '--classes=-3'), '--classes=-3: at least 0'),
    (('--checkpoint={workdir}', '--to=npz', '--stride=40'), '--stride=40: at most 11'),
    (('--checkpoint={workdir}', '--to=safetensors', '--names=vissl'), '96, 256, 384, 384, 256'),
    # Flags that would change nothing.
    (('--from={bare}', '--classes=5'), '--classes=5: fresh layers are AlexNet'),
    (('--checkpoint={workdir}', '--to=npz', '--model=cfn', '--classes=7'), '--classes=7: fresh'),
    (('--checkpoint={workdir}', '--to=npz', '--fc-init=he'), '--fc-init=he: it is about fresh'),
    (('--checkpoint={workdir}', '--to=npz', '--seed=3'), '--seed=3: it is about fresh layers'),
    (('--checkpoint={folder}', '--to=npz', '--weights=ema'), '--weights=ema: '),
    (('--checkpoint={folder}', '--to=npz', '--step=3'), 'without steps'),
    (('--from={bare}', '--step=best'), '--step=best: '),
    (('--checkpoint={step}', '--to=npz', '--step=5'), 'is one step already'),
    (('--checkpoint={workdir}', '--to=npz', '--from-input=caffe'), '--from-input=caffe: '),
    (('--checkpoint={step}', '--to=npz', '--from-stride=4'), 'say it themselves'),
    (('--checkpoint={folder}', '--to=npz', '--from-input=caffe'), 'file says its input: R, G'),
    (('--from={file}', '--from-order=caffenet'), 'file says its order: alexnet'),
    (('--from={file}', '--from-stride=4'), "says its stride: 2; '4' was asked for"),
  ],
)
def test_bad_input_is_one_line_and_leaves_nothing(sources, tmp_path, capsys, arguments, words):
  given = [argument.format(**sources) for argument in arguments]
  error = _fail(capsys, *given, f'--out={tmp_path / "out"}')
  assert words in error and len(error.strip().splitlines()) == 1
  assert not list(tmp_path.iterdir())


def test_no_pytorch_is_said_before_any_work(workdir, tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(convert.export.pytorch.importlib.util, 'find_spec', lambda name: None)
  monkeypatch.setattr(convert.files, 'load_weights', lambda *a, **k: pytest.fail('weights read'))
  error = _fail(capsys, f'--checkpoint={workdir}', '--to=pytorch', f'--out={tmp_path / "out"}')
  assert '.[torch]' in error


def test_the_card_of_a_run_names_its_config_and_metrics(workdir, tmp_path):
  convert.main([f'--checkpoint={workdir}', '--to=npz', f'--out={tmp_path / "out"}'])
  card = json.loads((tmp_path / 'out' / 'model_card.json').read_text())
  assert card['origin']['config'] == test_transfer_files.CONFIG
  assert card['origin']['metrics'] == {'val_accuracy': 0.2} and np.all(card['groups'])
