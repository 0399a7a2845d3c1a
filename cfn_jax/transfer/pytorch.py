"""Weights to and from PyTorch: state dicts, the module file, VISSL's names.

PyTorch is an extra and is imported on demand. State dicts are read with `weights_only=True`: code
in a pickle never runs. Our keys: `conv1.weight`, `conv1.bias`, ... `fc8.bias`, in PyTorch's
layouts.
"""

import ast
import importlib.util
import pathlib
import pickle
import re
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from cfn_jax import terminal
from cfn_jax.models import figures
from cfn_jax.transfer import arrays as array_files
from cfn_jax.transfer import layouts
from cfn_jax.transfer import weights as weights_lib

WeightsError = weights_lib.WeightsError

_TEMPLATE = pathlib.Path(__file__).with_name('torch_network.py')
_BATCH_NORM_EPS = 1e-5
# VISSL's trunks `alexnet_jigsaw` (pool, LRN; BatchNorm after conv3 .. conv5) and `alexnet_bvlc`
# (LRN, pool): convolution k is the first module of this block of `_feature_blocks`.
VISSL_BLOCKS = {'conv1': 0, 'conv2': 2, 'conv3': 4, 'conv4': 5, 'conv5': 6}
_VISSL_KEY = re.compile(
  r'(?:.*\.)?_feature_blocks\.(\d)\.([01])\.(weight|bias|running_mean|running_var|num_batches_tracked)'
)
# With the suffix `_s1` in the port of the paper's code, whose conv1 has stride 2 and whose pooling
# comes before LRN. The original has copies up to `_s9`, which share their weights.
_PORT_KEY = re.compile(r'(.*\.)?conv\.conv[1-5]_s[0-9]+\.weight')
_OWN_KEY = re.compile(r'(?:.*\.)?(conv[1-5]|fc[678])(_s[0-9]+)?\.(weight|bias)')


def require_torch() -> Any:
  """Imports PyTorch.

  Raises:
    WeightsError: it is not installed; the message names the extra.
  """
  if importlib.util.find_spec('torch') is None:
    raise WeightsError(
      "PyTorch is not installed, and .pth files need it: pip install -e '.[torch]', or take "
      '--to=safetensors'
    )
  return importlib.import_module('torch')


def save_state_dict(arrays: Mapping[str, np.ndarray], path: pathlib.Path) -> None:
  """Writes arrays `[...]` as a state dict that `torch.load(..., weights_only=True)` reads."""
  torch = require_torch()
  torch.save({name: torch.from_numpy(array.copy()) for name, array in arrays.items()}, path)


def load_state_dict(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Reads the tensors `[...]` of a state dict, or of a training checkpoint that holds one.

  Raises:
    WeightsError: PyTorch is missing; the file is damaged; a weight or bias has an unknown type; it
      holds more than tensors and plain values (such a pickle could run code, so it is not opened).
  """
  torch = require_torch()
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')  # about the pickle's version, before the error that follows
      loaded = torch.load(path, map_location='cpu', weights_only=True)
  except pickle.UnpicklingError as error:
    raise WeightsError(
      f'{path}: it holds Python objects besides tensors, or is damaged. A pickle may run code, so '
      'it is refused; save the state_dict() alone'
    ) from error
  except Exception as error:  # a damaged archive or pickle raises many types
    reason = terminal.first_line(error)
    raise WeightsError(f'{path}: PyTorch cannot read it: {reason}') from error
  with weights_lib.named_errors(path):
    read = {
      name: tensor.detach().to(torch.float32).numpy()
      for name, tensor in _find_tensors(loaded, torch.Tensor).items()
      if array_files.is_float(name, str(tensor.dtype).removeprefix('torch.'))
    }
    if not read:
      raise WeightsError('there is no state dict of floats in it')
  return read


def _find_tensors(loaded: Any, tensor: type) -> dict[str, Any]:
  """Flattens nested dicts: wrappers such as {'state_dict': ...} become prefixes."""
  found: dict[str, Any] = {}
  pending = [('', loaded)]
  while pending:
    prefix, value = pending.pop()
    if isinstance(value, tensor):
      found[prefix.rstrip('.')] = value
    elif isinstance(value, Mapping):
      pending += [(f'{prefix}{name}.', each) for name, each in value.items()]
  return found


def from_state_dict(arrays: Mapping[str, np.ndarray]) -> layouts.Found:
  """Returns parameters of arrays `[...]`, the layer order and conv1's stride if names imply them.

  Keys: ours with any prefix, or VISSL's with BatchNorm folded. Copies that share their weights
  (`conv1_s1`, `conv1_s2`, ...) are one layer.

  Raises:
    WeightsError: torchvision's AlexNet or another network; a layer twice; copies that differ; a
      convolution is missing.
  """
  if 'features.0.weight' in arrays:
    first = list(arrays['features.0.weight'].shape)
    raise WeightsError(
      f"its first layer is features.0, {first}: torchvision's AlexNet has other widths (64, 192, "
      '384, 256, 256), no LRN, no groups and a padded conv1, so its weights fit neither network '
      'here; take an AlexNet of 96, 256, 384, 384, 256 channels'
    )
  if any(_VISSL_KEY.fullmatch(name) for name in arrays):
    return _from_vissl(arrays)
  names: dict[str, str] = {}
  copies = False
  for name in sorted(arrays):
    match = _OWN_KEY.fullmatch(name)
    if not match:
      continue
    key = f'{match[1]}.{match[3]}'
    known = names.setdefault(key, name)
    copies = copies or bool(match[2])
    if known != name and not match[2]:
      raise WeightsError(f'{key} is there twice, under different prefixes')
    if known != name and not np.array_equal(arrays[known], arrays[name]):
      raise WeightsError(f'{known} and {name} differ: copies of a layer share their weights')
  named = {key: arrays[name] for key, name in names.items()}
  if not any(name.endswith('.weight') for name in named):
    raise WeightsError(
      f'no key ends in conv1.weight .. fc8.weight; it has {", ".join(sorted(arrays)[:6])} ...'
    )
  left_over = sorted(name for name in arrays if not _OWN_KEY.fullmatch(name))
  order, stride = ('caffenet', 2) if copies else ('', 0)
  ported = any(_PORT_KEY.fullmatch(name) for name in arrays)
  peer = layouts.PORT if ported else layouts.AUTHORS if copies else ''
  return _found(named, order, stride, left_over, peer)


def _found(
  named: layouts.Arrays, order: str, stride: int, left_over: list[str], peer: str = ''
) -> layouts.Found:
  layers = [name.partition('.')[0] for name in named if name.endswith('.weight')]
  layouts.check_whole(layers, left_over)
  params, dropped = layouts.from_foreign(named)
  return layouts.Found(
    params,
    order=order,
    stride=stride,
    left_over=left_over + dropped,
    peer='' if dropped else peer,
    notes=layouts.note_biases(named),
  )


def _from_vissl(arrays: Mapping[str, np.ndarray]) -> layouts.Found:
  blocks: dict[tuple[int, int], dict[str, np.ndarray]] = {}
  for name, array in arrays.items():
    match = _VISSL_KEY.fullmatch(name)
    if match:
      blocks.setdefault((int(match[1]), int(match[2])), {})[match[3]] = array
  named: layouts.Arrays = {}
  has_norm = False
  for layer, block in VISSL_BLOCKS.items():
    convolution, norm = blocks.get((block, 0), {}), blocks.get((block, 1), {})
    if 'weight' not in convolution:
      continue
    weight, bias = convolution['weight'].astype(np.float64), convolution.get('bias')
    if 'running_var' in norm:
      has_norm = True
      gain = norm['weight'].astype(np.float64) / np.sqrt(norm['running_var'] + _BATCH_NORM_EPS)
      weight = weight * gain[:, None, None, None]
      bias = ((0 if bias is None else bias) - norm['running_mean']) * gain + norm['bias']
    named[f'{layer}.weight'] = weight
    if bias is not None:
      named[f'{layer}.bias'] = bias
  left_over = sorted(name for name in arrays if not _VISSL_KEY.fullmatch(name))
  order, stride = ('caffenet', 2) if has_norm else ('alexnet', 4)
  return _found(named, order, stride, left_over)


def to_vissl(weights: weights_lib.Weights) -> dict[str, np.ndarray]:
  """Returns the trunk's arrays `[out, in / groups, kh, kw]` and `[out]` under VISSL's names.

  They are those of `alexnet_jigsaw` for order 'caffenet', of `alexnet_bvlc` for order 'alexnet'.
  The first has BatchNorm after conv3 .. conv5, set so that it changes nothing. VISSL's poolings
  round sizes down, Caffe's and ours up: the last row and column may be missing there.

  Raises:
    WeightsError: the channels or groups are not AlexNet's, as VISSL's trunks need.
  """
  arrays = layouts.to_foreign(weights)
  channels = [arrays[f'{name}.bias'].size for name in VISSL_BLOCKS if f'{name}.bias' in arrays]
  if channels != [96, 256, 384, 384, 256] or weights.groups != figures.GROUPS:
    raise WeightsError(
      f"VISSL's trunks have 96, 256, 384, 384, 256 channels in groups of 1, 2, 1, 2, 2; these "
      f'weights have {channels} in {list(weights.groups)}'
    )
  named = {}
  for layer, block in VISSL_BLOCKS.items():
    for kind in ('weight', 'bias'):
      named[f'_feature_blocks.{block}.0.{kind}'] = arrays[f'{layer}.{kind}']
    if weights.order == 'caffenet' and layer in ('conv3', 'conv4', 'conv5'):
      features = arrays[f'{layer}.bias'].size
      identity = {
        'weight': np.full(features, np.sqrt(1 + _BATCH_NORM_EPS), np.float32),
        'bias': np.zeros(features, np.float32),
        'running_mean': np.zeros(features, np.float32),
        'running_var': np.ones(features, np.float32),
      }
      named |= {f'_feature_blocks.{block}.1.{name}': array for name, array in identity.items()}
  return named


def module_source(weights: weights_lib.Weights) -> str:
  """Returns the text of a module that builds the network of these weights with PyTorch alone."""
  kernels = [weights.params[name]['kernel'].shape for name in weights.layers()]
  whole_cfn = weights.kind == 'cfn' and 'fc8' in weights.params
  figures: dict[str, Any] = {
    'NETWORK': 'Cfn' if whole_cfn else 'AlexNet',
    'ORDER': weights.order,
    'CHANNELS': tuple(shape[-1] for shape in kernels if len(shape) == 4),
    'GROUPS': weights.groups,
    'STRIDE': weights.stride,
    'PADDING': weights.padding,
    'CONNECTED': tuple(tuple(shape) for shape in kernels if len(shape) == 2),
    'TILES': weights.tiles(),
    'INPUT_CHANNELS': weights.input.channels,
    'INPUT_MEAN': weights.input.mean,
    'INPUT_SCALE': weights.input.scale,
    'INPUT_NORMALIZATION': weights.input.normalization,
    'INPUT_STD': weights.input.std,
  }
  text = _TEMPLATE.read_text(encoding='utf8')
  lines = text.splitlines()
  for node in ast.parse(text).body:
    if isinstance(node, ast.ClassDef) and node.name == ('AlexNet' if whole_cfn else 'Cfn'):
      assert node.end_lineno is not None
      first, last = node.lineno - 1, node.end_lineno + 2  # with the two blank lines after it
      lines[first:last] = []
      break
  for index, line in enumerate(lines):
    match = re.fullmatch(r'([A-Z_]+)(: [^=]+)? = .*?(  # .*)?', line)
    if match:
      lines[index] = f'{match[1]}{match[2] or ""} = {figures.pop(match[1])!r}{match[3] or ""}'
  if figures:
    raise AssertionError(f'the template lacks {", ".join(figures)}')
  return '\n'.join(lines) + '\n'
