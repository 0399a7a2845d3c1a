"""Weights from the disk: a run, a step, an exported folder, or a file of any format.

The content decides the format of a file; a name that states another one is refused. Every format is
read to a `Weights` with its input record. Facts that a file lacks are taken from the card beside
it, or assumed and noted in `origin['notes']`.
"""

import dataclasses
import pathlib
import textwrap
import zipfile
from typing import Any

from cfn_jax import terminal
from cfn_jax.buckets import addresses, reading
from cfn_jax.models import inputs
from cfn_jax.transfer import arrays, caffe, cards, checkpoints, layouts, networks, pytorch
from cfn_jax.transfer import weights as weights_lib

WeightsError = weights_lib.WeightsError

FORMATS = {
  'npz': ('.npz',),
  'safetensors': ('.safetensors',),
  'pytorch': ('.pth', '.pt', '.torch', '.pkl'),
  'caffe': ('.caffemodel',),
}
# The files that identify a folder, in the order of the search.
FOLDER_FILES = ('weights.npz', 'model.safetensors', 'model.caffemodel', 'model.pth')


@dataclasses.dataclass(frozen=True)
class Assumed:
  """Fallbacks for facts that a foreign file does not state; '' or 0: the format's default.

  Attributes:
    input: 'unit', 'caffe' or 'imagenet'. The default is that of the program whose names the layers
      have (`layouts.PEERS`), then Caffe's for `.caffemodel`, else ImageNet's.
    order: 'caffenet' or 'alexnet'; the default is 'caffenet'.
    stride: that of conv1; the default is 4.
  """

  input: str = ''
  order: str = ''
  stride: int = 0

  def __post_init__(self) -> None:
    if self.input and self.input not in inputs.RECORDS:
      raise WeightsError(f"'{self.input}': one of {', '.join(inputs.RECORDS)}")


def load_weights(
  path: str | pathlib.Path,
  *,
  step: str = 'latest',
  collection: str = 'params',
  assumed: Assumed | None = None,
) -> weights_lib.Weights:
  """Reads weights from a workdir, its `checkpoints`, a step, `state` in it, or a file.

  Each may lie in a bucket.

  Args:
    step: 'latest', 'best' or a number, for a workdir.
    collection: 'params' or 'ema', for a checkpoint.
    assumed: what is taken of a foreign file that does not say it.

  Raises:
    WeightsError: with the fault, its place and the remedy.
  """
  with reading.named():
    found = _load(reading.local(path), step, collection, assumed or Assumed())
  return found.replace(origin={k: addresses.rename(v) for k, v in found.origin.items()})


def _load(path: pathlib.Path, step: str, collection: str, assumed: Assumed) -> weights_lib.Weights:
  """Reads weights from a place on the disk, see `load_weights`."""
  if not path.exists():
    raise WeightsError(f'{path}: there is no such file or folder')
  file = find_file(path)
  if not file.is_dir():
    found = load_file(file, assumed=assumed)
  else:
    found = checkpoints.read_checkpoint(path, step=step, collection=collection)
    networks.find_width(found)
  if not set(found.params) & set(weights_lib.CONVOLUTIONS):
    notes = '; '.join(found.origin.get('notes', []))
    raise WeightsError(
      f'{path}: none of conv1 .. conv5 was found, only {", ".join(found.layers())}'
      + (f' ({textwrap.shorten(notes, 300, placeholder=" ...")})' if notes else '')
    )
  return found


def find_file(path: pathlib.Path) -> pathlib.Path:
  """Returns the file of weights that a path or its folder holds; a run's folder as it is."""
  if path.is_dir() and not (path / 'checkpoints').is_dir():
    for name in FOLDER_FILES:
      if (path / name).is_file():
        return path / name
  return path


def find_format(path: pathlib.Path) -> str:
  """Returns the format of a file, one of `FORMATS`; `checkpoint.pth.tar` states none.

  Raises:
    WeightsError: it has none, or its name states another.
  """
  found = _sniff(path)
  suffix = path.suffix.lower()
  named = [each for each, suffixes in FORMATS.items() if suffix in suffixes]
  if not named and found not in FORMATS:
    known = ', '.join(suffixes[0] for suffixes in FORMATS.values())
    raise WeightsError(f'{path} holds no weights but {found}; {known} files are read')
  if named and found != named[0]:
    held = f'a {found} file' if found in FORMATS else found
    hint = f'; call it {FORMATS[found][0]}' if found in FORMATS else ''
    raise WeightsError(f'{path}: named as {named[0]}, but it holds {held}{hint}')
  return found


def _sniff(path: pathlib.Path) -> str:
  """Returns the kind of a file by its first bytes: one of `FORMATS`, or words for another kind."""
  with path.open('rb') as file:
    head = file.read(64)
  if not head:
    return 'nothing'
  if head.startswith(b'PK'):
    try:
      with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    except Exception as error:  # zipfile raises many types
      reason = terminal.first_line(error)
      raise WeightsError(f'{path}: a damaged or cut zip archive: {reason}') from error
    if any(name.endswith('/data.pkl') or name == 'data.pkl' for name in names):
      return 'pytorch'
    return 'npz' if any(name.endswith('.npy') for name in names) else 'another zip archive'
  # First, since the length of its header may look like the start of a pickle.
  if head[8:9] == b'{' and int.from_bytes(head[:8], 'little') <= path.stat().st_size:
    return 'safetensors'
  if head[0] == 0x80 and head[1:2] in (b'\x02', b'\x03', b'\x04', b'\x05'):
    return 'pytorch'  # a pickle, as PyTorch wrote them before 1.6
  for magic, words in (
    (b'\x89HDF', 'an HDF5 file (a Caffe snapshot of that kind: load it in Caffe and save it anew)'),
    (b'\x93NUMPY', 'a single .npy array'),
    (b'\xff\xd8', 'a JPEG image'),
    (b'\x89PNG', 'a PNG image'),
    (b'version https://git-lfs', 'a Git LFS pointer: fetch the file itself'),
  ):
    if head.startswith(magic):
      return words
  # NetParameter starts with its name (field 1) or, without one, with a layer (2 or 100).
  if head[0] in (0x0A, 0x12) or head[:2] == b'\xa2\x06':
    return 'caffe'
  return 'text' if all(32 <= byte < 127 or byte in b'\t\r\n' for byte in head) else 'unknown bytes'


def load_file(path: pathlib.Path, *, assumed: Assumed) -> weights_lib.Weights:
  """Reads one file; see `load_weights`."""
  kind = find_format(path)
  record = cards.find_record(path)
  inner: dict[str, Any] = {}
  if kind == 'npz':
    params, inner, left_over = arrays.load_npz(path)
    found = layouts.Found(params, left_over=left_over)
  elif kind == 'caffe':
    found = caffe.read_caffemodel(path)
  elif kind == 'safetensors':
    named, inner = arrays.load_safetensors(path)
  else:
    named = pytorch.load_state_dict(path)
  record = inner or record
  with weights_lib.named_errors(path, 'its record cannot be read' if record else ''):
    if kind in ('safetensors', 'pytorch'):
      found = pytorch.from_state_dict(named)
    layouts.check_whole(found.params, found.left_over)
    loaded = _build(found, record, kind, assumed)
    networks.find_width(loaded)
  origin = dict(loaded.origin)  # the record's facts about an earlier source stay
  if 'file' not in origin:
    origin |= {'file': str(path), 'sha256': cards.sha256(path)}
  notes = list(found.notes)
  if found.left_over:
    notes.append(f'not read: {", ".join(found.left_over)}')
  if notes:
    origin['notes'] = [*origin.get('notes', []), *notes]
  return loaded.replace(origin=origin)


def _build(
  found: layouts.Found, record: dict[str, Any], kind: str, assumed: Assumed
) -> weights_lib.Weights:
  """Builds weights, with notes about assumptions on a file without a record."""
  told: dict[str, Any] = {'input': None, 'order': found.order, 'stride': found.stride}
  if record:
    weights = weights_lib.from_record(found.params, record, dict(record['origin']))
    told = {name: getattr(weights, name) for name in told}
  asked = dataclasses.asdict(assumed) | {'input': inputs.RECORDS.get(assumed.input)}
  for name, value in told.items():
    if value and asked[name] and value != asked[name]:
      stated = cards.describe_input(value) if name == 'input' else value
      raise WeightsError(
        f"the file says its {name}: {stated}; '{getattr(assumed, name)}' was asked for"
      )
  if record:
    return weights
  suggested = {
    'input': 'caffe' if kind == 'caffe' else 'imagenet',
    'order': 'caffenet',
    'stride': 4,
  }
  given = {name: told[name] or getattr(assumed, name) for name in told}
  notes = [
    f'the file does not say its {name}: {suggested[name]} assumed'
    for name in given
    if not given[name]
  ]
  taken: dict[str, Any] = {name: given[name] or suggested[name] for name in given}
  prepared = inputs.RECORDS[taken['input']]
  if found.peer and not assumed.input:
    prepared = layouts.PEERS[found.peer]
    notes[0] = (
      f'the file does not say its input: by its names it is {found.peer}, so this is assumed: '
      + cards.describe_input(prepared)
    )
  return weights_lib.make_weights(
    found.params,
    order=taken['order'],
    stride=taken['stride'],
    input_record=prepared,
    origin={'notes': notes} if notes else {},
    padding=found.padding,
  )


def save_weights(weights: weights_lib.Weights, path: pathlib.Path) -> None:
  """Writes `.npz`, the complete format that every tool here reads."""
  arrays.save_npz(path, weights.params, cards.make_record(weights))
