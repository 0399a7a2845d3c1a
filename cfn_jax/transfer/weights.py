"""Weights that travel: parameters, and everything that another program needs to use them.

Every reader of `transfer/` returns a `Weights`, every writer accepts one. NumPy only. Layouts are
Flax's: kernels `[kh, kw, in / groups, out]` and `[in, out]`, rows of fc6 in the order (y, x,
channel). Other layouts exist only inside the readers and writers (layouts.py).
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from cfn_jax import terminal
from cfn_jax.errors import CfnError
from cfn_jax.models import figures, inputs

Params = dict[str, dict[str, np.ndarray]]

CONVOLUTIONS, FULLY_CONNECTED = figures.CONVOLUTIONS, figures.FULLY_CONNECTED
LAYERS = CONVOLUTIONS + FULLY_CONNECTED
KINDS = ('trunk', 'alexnet', 'cfn')


class WeightsError(CfnError):
  """Weights that cannot be read, written or used so, with the fault, its place and the remedy."""


@contextlib.contextmanager
def named_errors(where: object, damaged: str = '') -> Iterator[None]:
  """Adds a file's name to errors while it is read.

  Args:
    damaged: text before any other error; '': other errors pass through.
  """
  try:
    yield
  except CfnError as error:
    raise WeightsError(f'{where}: {error}') from error
  except Exception as error:  # readers of damaged files raise many types
    if not damaged:
      raise
    reason = f'it has no {error}' if isinstance(error, KeyError) else terminal.first_line(error)
    raise WeightsError(f'{where}: {damaged}: {reason}') from error


@dataclasses.dataclass(frozen=True)
class Weights:
  """Parameters of a network, and everything needed to use them.

  Attributes:
    params: `{layer: {'kernel', 'bias'}}`, float32; any of `LAYERS`.
    kind: 'trunk' (convolutions only), 'alexnet' or 'cfn' (fc7 sees several tiles).
    order: 'caffenet' (pool, then LRN) or 'alexnet' (LRN, then pool).
    groups: of conv1 .. conv5.
    stride: of conv1.
    input: how images are prepared.
    origin: the source of the weights, for the model card: plain values.
    padding: of conv1, px.
  """

  params: Params
  kind: str
  order: str
  groups: tuple[int, ...]
  stride: int
  input: inputs.InputRecord
  origin: dict[str, Any] = dataclasses.field(default_factory=dict)
  padding: int = 0

  def describe(self) -> dict[str, Any]:
    """Returns everything but the arrays and their origin, as plain values."""
    return {
      'kind': self.kind,
      'order': self.order,
      'groups': list(self.groups),
      'stride': self.stride,
      'padding': self.padding,
      'input': self.input.to_json(),
    }

  def layers(self) -> tuple[str, ...]:
    """Returns the existing layers, from the input up."""
    return tuple(name for name in LAYERS if name in self.params)

  def tiles(self) -> int:
    """Returns the number of tiles that fc7 sees; 1 for AlexNet and a trunk."""
    if 'fc6' in self.params and 'fc7' in self.params:
      return self.params['fc7']['kernel'].shape[0] // self.params['fc6']['kernel'].shape[1]
    return 1

  def pool5_side(self) -> int:
    """Returns the side of the map that fc6 was made for; 0 without fc6."""
    if 'fc6' not in self.params or 'conv5' not in self.params:
      return 0
    kernels = [self.params[name]['kernel'].shape for name in ('fc6', 'conv5')]
    return map_side(kernels[0][0], kernels[1][-1])

  def replace(self, **changes: Any) -> 'Weights':
    """Returns a copy with some fields changed."""
    return dataclasses.replace(self, **changes)


def map_side(rows: int, channels: int) -> int:
  """Returns the side of a square map with this number of values; 0: there is none."""
  side = math.isqrt(rows // max(1, channels))
  return side if side * side * channels == rows else 0


def from_record(params: Params, record: Mapping[str, Any], origin: Mapping[str, Any]) -> Weights:
  """Builds weights from the values of `Weights.describe` in a file; see `named_errors`."""
  return make_weights(
    params,
    order=str(record['order']),
    stride=int(record['stride']),
    input_record=inputs.from_json(record['input']),
    origin=origin,
    padding=int(record['padding']),
  )


def make_weights(
  params: Params,
  *,
  order: str,
  stride: int,
  input_record: inputs.InputRecord,
  origin: Mapping[str, Any],
  padding: int = 0,
) -> Weights:
  """Builds `Weights`; kind and groups follow from the shapes.

  Raises:
    WeightsError: with every layer that does not fit.
  """
  if order not in figures.ORDERS:
    raise WeightsError(f"order = '{order}' is unknown: one of {', '.join(figures.ORDERS)}")
  if not 1 <= stride <= 11 or not 0 <= padding <= 10:
    raise WeightsError(f'conv1 has stride {stride} and padding {padding}: 1 to 11 and 0 to 10')
  unknown = sorted(set(params) - set(LAYERS))
  if unknown or not params:
    listed = ', '.join(unknown) or 'none at all'
    raise WeightsError(f'layers {listed}: {", ".join(LAYERS)} are known')
  groups, problems = _groups(params)
  problems += _check_arrays(params) or _check_chain(params)
  # The origin may come from a file, untrusted: check the types of fields that are read later.
  problems += [
    f'its origin has {name} of type {type(origin[name]).__name__}, not {kind.__name__}'
    for name, kind in {'notes': list, 'permutations': list, 'config': dict}.items()
    if not isinstance(origin.get(name, kind()), kind)
  ]
  if problems:
    raise WeightsError('; '.join(problems))
  params = {name: params[name] for name in LAYERS if name in params}
  kind = 'alexnet' if 'fc6' in params else 'trunk'
  built = Weights(params, kind, order, groups, stride, input_record, dict(origin), padding)
  return built.replace(kind='cfn') if built.tiles() > 1 else built


def _check_arrays(params: Params) -> list[str]:
  problems, broken = [], []
  for layer, arrays in params.items():
    if set(arrays) != {'kernel', 'bias'}:
      problems.append(f'{layer} has {", ".join(sorted(arrays))}, not kernel and bias')
      continue
    kernel, bias = arrays['kernel'], arrays['bias']
    kernel_px = dict(zip(CONVOLUTIONS, figures.KERNELS_PX)).get(layer, 0)
    if kernel.ndim != (4 if kernel_px else 2) or kernel.size == 0:
      problems.append(f'{layer} has a kernel {list(kernel.shape)}')
    elif kernel_px and kernel.shape[:2] != (kernel_px, kernel_px):
      taps = ' x '.join(map(str, kernel.shape[:2]))
      problems.append(f'{layer} has {taps} taps, AlexNet {kernel_px} x {kernel_px}')
    if bias.shape != kernel.shape[-1:]:
      problems.append(f'{layer} has a bias {list(bias.shape)} for {kernel.shape[-1]} outputs')
    for name, array in arrays.items():
      if array.dtype != np.float32:
        problems.append(f'{layer}/{name} is {array.dtype}, not float32')
      elif not np.all(np.isfinite(array)):
        broken.append(f'{layer}/{name}')
  if broken:
    more = f' and {len(broken) - 1} more arrays hold' if len(broken) > 1 else ' holds'
    problems.append(f'{broken[0]}{more} values that are not finite')
  return problems


def _groups(params: Params) -> tuple[tuple[int, ...], list[str]]:
  """Infers the groups of each convolution from the channels before it."""
  groups, problems = list(figures.GROUPS), []
  before = 3
  for index, name in enumerate(CONVOLUTIONS):
    if name not in params or params[name].get('kernel', np.empty(0)).ndim != 4:
      before = 0
      continue
    inputs, outputs = params[name]['kernel'].shape[2:]
    if name == 'conv1' and inputs > 3 and inputs % 3 == 0:
      problems.append(
        f'conv1 takes {inputs} channels: this network sees {inputs // 3} tiles stacked, and has no '
        'trunk that sees one image'
      )
    elif before and (inputs == 0 or before % inputs or outputs % (before // inputs)):
      problems.append(f'{name} takes {inputs} channels of {before} and gives {outputs}')
    elif before:
      groups[index] = before // inputs
    before = outputs
  return tuple(groups), problems


def _check_chain(params: Params) -> list[str]:
  """Checks that each fully connected layer fits the one before."""
  problems = []
  if 'fc6' in params and 'conv5' in params:
    rows, channels = params['fc6']['kernel'].shape[0], params['conv5']['kernel'].shape[-1]
    if not map_side(rows, channels):
      problems.append(f'fc6 takes {rows} values: no square map of the {channels} channels of conv5')
  for name, before in (('fc7', 'fc6'), ('fc8', 'fc7')):
    if name not in params or before not in params:
      continue
    rows, features = params[name]['kernel'].shape[0], params[before]['kernel'].shape[1]
    if rows % features or (name == 'fc8' and rows != features):
      problems.append(f'{name} takes {rows} values, {before} gives {features}')
  return problems


def json_ready(value: Any) -> Any:
  """Converts tuples, arrays and NumPy numbers to JSON values."""
  if isinstance(value, Mapping):
    return {str(name): json_ready(each) for name, each in value.items()}
  if isinstance(value, np.ndarray):
    return value.tolist()
  if isinstance(value, list | tuple):
    return [json_ready(each) for each in value]
  return value.item() if isinstance(value, np.generic) else value
