"""Weights to a folder that another program can use: files of one format, and the model card.

The folder is complete or absent: it is written under another name and renamed. A folder that it
replaces is renamed first and deleted last, so one of the two is complete at any time.
"""

import os
import pathlib
import shutil
import tempfile

from cfn_jax import places
from cfn_jax.transfer import arrays, caffe_writer, cards, files, layouts, pytorch
from cfn_jax.transfer import weights as weights_lib

WeightsError = weights_lib.WeightsError

FORMATS = ('pytorch', 'caffe', 'safetensors', 'npz')
NAMES = ('', 'vissl')


def check(out: pathlib.Path, to: str, *, names: str = '', overwrite: bool = False) -> None:
  """Checks everything that can be checked before any weights are read.

  Raises:
    WeightsError: the format is unknown; PyTorch is missing; the folder exists and may not be
      overwritten, or holds files that no export wrote.
  """
  if to not in FORMATS:
    raise WeightsError(f"to = '{to}' is unknown: one of {', '.join(FORMATS)}")
  if names not in NAMES or (names and to not in ('pytorch', 'safetensors')):
    raise WeightsError(
      f"names = '{names}' with to = '{to}': 'vissl' goes with pytorch, safetensors"
    )
  if to == 'pytorch':
    pytorch.require_torch()
  out = places.resolve(str(out), '--out')  # a link stays; its target is replaced
  if out.exists() and not out.is_dir():
    raise WeightsError(f'{out} is a file; --out names a folder')
  if out.exists() and any(out.iterdir()):
    if not overwrite:
      raise WeightsError(f'{out} exists and is not empty: name another folder, or add --overwrite')
    if not (out / cards.NAME).is_file():
      raise WeightsError(
        f'{out} holds no {cards.NAME}, so it is none of ours: --overwrite would delete it; name '
        'another folder'
      )
    foreign = _foreign_files(out)
    if foreign:
      more = f' and {len(foreign) - 4} more' if len(foreign) > 4 else ''
      raise WeightsError(
        f'{out} holds what its {cards.NAME} does not name: {", ".join(foreign[:4])}{more}; '
        '--overwrite would delete it: move it away, or name another folder'
      )


def _foreign_files(out: pathlib.Path) -> list[str]:
  """Lists the files in an exported folder that its card does not name."""
  own = set(cards.list_files(out))
  modules = {name.removesuffix('.py') for name in own if name.endswith('.py')}

  def is_own(path: pathlib.Path) -> bool:
    if path.name == '__pycache__' and path.is_dir() and not path.is_symlink():
      # Python's, after an import of the exported module.
      return all(
        each.suffix == '.pyc' and each.name.partition('.')[0] in modules for each in path.iterdir()
      )
    return path.name in own and path.is_file()

  return sorted(path.name for path in out.iterdir() if not is_own(path))


def save_folder(
  weights: weights_lib.Weights,
  out: pathlib.Path,
  to: str,
  *,
  names: str = '',
  overwrite: bool = False,
) -> list[str]:
  """Writes the weights and their card; returns the names of the files.

  Args:
    to: one of `FORMATS`.
    names: 'vissl': the keys of VISSL's trunks instead of ours.

  Raises:
    WeightsError: see `check`; the format cannot hold the network of the weights.
  """
  check(out, to, names=names, overwrite=overwrite)
  out = places.resolve(str(out), '--out')
  try:
    out.parent.mkdir(parents=True, exist_ok=True)
    written = pathlib.Path(tempfile.mkdtemp(prefix=f'.{out.name}.', dir=out.parent))
  except OSError as error:
    raise WeightsError(f'{out.parent}: nothing can be written there: {error.strerror}') from error
  try:
    made = _write(weights, written, to, names=names)
    cards.save_card(written, weights, made)
    mask = _umask()  # mkdtemp and some writers make files that others cannot read
    written.chmod(0o777 & ~mask)
    for file in written.iterdir():
      file.chmod(0o666 & ~mask)
    _put_in_place(written, out)
  finally:
    shutil.rmtree(written, ignore_errors=True)
  return [*made, cards.NAME]


def _put_in_place(written: pathlib.Path, out: pathlib.Path) -> None:
  """Renames a folder into place, then deletes the one that it replaces."""
  aside = written.with_name(f'{written.name}.replaced')  # the name is unique, so this one is too
  try:
    if out.exists():
      out.rename(aside)
    try:
      written.rename(out)
    except OSError:
      if aside.exists():
        aside.rename(out)
      raise
  except OSError as error:
    raise WeightsError(f'{out}: it cannot be written there: {error.strerror}') from error
  shutil.rmtree(aside, ignore_errors=True)


def _umask() -> int:
  mask = os.umask(0)
  os.umask(mask)
  return mask


def _write(weights: weights_lib.Weights, folder: pathlib.Path, to: str, *, names: str) -> list[str]:
  network = weights.kind if weights.kind == 'cfn' and 'fc8' in weights.params else 'alexnet'
  if to == 'npz':
    files.save_weights(weights, folder / 'weights.npz')
    return ['weights.npz']
  if to == 'caffe':
    made = ['model.caffemodel', 'deploy.prototxt']
    caffe_writer.save_caffe(
      weights,
      folder / made[0],
      folder / made[1],
      name=network,
      comment=f'Input: {cards.describe_input(weights.input)}',
    )
    return made
  caffe_writer.check_layers(weights)
  named = pytorch.to_vissl(weights) if names == 'vissl' else layouts.to_foreign(weights)
  if to == 'safetensors':
    arrays.save_safetensors(folder / 'model.safetensors', named, cards.make_record(weights))
    return ['model.safetensors']
  pytorch.save_state_dict(named, folder / 'model.pth')
  if names:
    return ['model.pth']
  if network != 'cfn' and weights.tiles() > 1:
    raise WeightsError(
      f'fc7 sees {weights.tiles()} tiles, and without fc8 there is no PyTorch module of it: '
      '--to=npz and --to=safetensors keep it as it is'
    )
  module = f'{network}.py'
  (folder / module).write_text(pytorch.module_source(weights), encoding='utf8')
  return ['model.pth', module]
