"""Weights that travel: parameters, and all that another program must know to use them.

Every reader of `transfer/` gives a `Weights`, every writer takes one. NumPy only. Layouts are
Flax's: kernels `[kh, kw, in / groups, out]` and `[in, out]`, rows of fc6 in the order (y, x,
channel); other layouts exist only inside the readers and writers (layouts.py).
"""

import dataclasses
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

Params = dict[str, dict[str, np.ndarray]]

CONVOLUTIONS = ('conv1', 'conv2', 'conv3', 'conv4', 'conv5')
FULLY_CONNECTED = ('fc6', 'fc7', 'fc8')
LAYERS = CONVOLUTIONS + FULLY_CONNECTED
PIXEL_STD = 58.0  # of photographs, 0..255
KINDS = ('trunk', 'alexnet', 'cfn')
ORDERS = ('caffenet', 'alexnet')  # pool then LRN; LRN then pool
GROUPS = (1, 2, 1, 2, 2)  # AlexNet's
KERNELS_PX = (11, 5, 3, 3, 3)
PADDINGS = (0, 2, 1, 1, 1)


class WeightsError(ValueError):
  """Weights that cannot be read, written or used so: what is wrong, where, what would be right."""


@dataclasses.dataclass(frozen=True)
class InputRecord:
  """How an image must be prepared for the first convolution.

  With `normalization` '' a pixel p of 0..255 becomes (p - mean) * scale. With another value each
  image (of a CFN: each tile) is normalised by its own figures, as in training, and
  multiplied by `scale`; `mean` and `std` then say which fixed figures stand in for its own ones.

  Attributes:
    channels: 'rgb' or 'bgr', the order that the network wants.
    mean: of each channel, in that order, 0..255.
    scale: of each channel, in that order.
    normalization: '' (fixed), 'tile' (mean and std over pixels and channels), 'channel' (of each
      channel) or 'mean' (mean of each channel, the fixed std).
    std: stands in for an image's own standard deviation, 0..255; not used where
      `normalization` is ''.
  """

  channels: str
  mean: tuple[float, float, float]
  scale: tuple[float, float, float]
  normalization: str = ''
  std: float = 1.0

  def __post_init__(self) -> None:
    if self.channels not in ('rgb', 'bgr'):
      raise WeightsError(f"input record: channels = '{self.channels}': 'rgb' or 'bgr'")
    if self.normalization not in ('', 'tile', 'channel', 'mean'):
      raise WeightsError(
        f"input record: normalization = '{self.normalization}': '', 'tile', 'channel' or 'mean'"
      )
    figures = (*self.mean, *self.scale, self.std)
    if len(self.mean) != 3 or len(self.scale) != 3 or not np.all(np.isfinite(figures)):
      raise WeightsError('input record: mean and scale are three finite numbers each')
    if min(*self.scale, self.std) <= 0:
      raise WeightsError(f'input record: scale = {self.scale}, std = {self.std}: more than 0')

  def prepare(self, images: np.ndarray) -> np.ndarray:
    """Prepares uint8 RGB `[..., H, W, 3]`, to float32 of the same shape in the wanted order.

    An image (a tile) without any contrast becomes zeros where it is normalised by its own figures.

    Raises:
      WeightsError: the images are not uint8 with three channels.
    """
    if images.dtype != np.uint8 or images.shape[-1] != 3:
      raise WeightsError(
        f'images are {images.dtype} {list(images.shape)}: uint8 [..., H, W, 3], RGB, is needed'
      )
    x = images.astype(np.float64)
    if self.channels == 'bgr':
      x = x[..., ::-1]
    if not self.normalization:
      return ((x - self.mean) * self.scale).astype(np.float32)
    axes = (-3, -2, -1) if self.normalization == 'tile' else (-3, -2)
    x = x - x.mean(axes, keepdims=True)
    if self.normalization == 'mean':
      return (x * (np.array(self.scale) / self.std)).astype(np.float32)
    std = x.std(axes, keepdims=True)
    return (x / np.where(std > 1e-3, std, np.inf) * self.scale).astype(np.float32)

  def fixed(self) -> 'InputRecord':
    """Gives the fixed record that stands in for normalisation of each image by itself.

    `mean` and `std` are those of a typical tile of training, so a patch of an image arrives with
    about the contrast that each tile had there. What is lost is that every single one had it.
    """
    if not self.normalization:
      return self
    red, green, blue = (scale / self.std for scale in self.scale)
    return InputRecord(self.channels, self.mean, (red, green, blue))

  def contrast(self) -> float:
    """Returns about the standard deviation of the input, of photographs prepared so."""
    fixed = not self.normalization
    return float(np.mean(self.scale)) * (PIXEL_STD if fixed else 1)

  def to_json(self) -> dict[str, Any]:
    """Gives the record as plain values."""
    return json_ready(dataclasses.asdict(self))


def record_from_json(values: Mapping[str, Any]) -> InputRecord:
  """Reads what `InputRecord.to_json` gave.

  Raises:
    WeightsError: a field is missing or not of its type.
  """
  try:
    mean, scale = (tuple(float(x) for x in values[name]) for name in ('mean', 'scale'))
    return InputRecord(
      str(values['channels']),
      (mean[0], mean[1], mean[2]),
      (scale[0], scale[1], scale[2]),
      str(values['normalization']),
      float(values['std']),
    )
  except (KeyError, IndexError, TypeError, ValueError, ArithmeticError) as error:
    held = textwrap.shorten(repr(values), 200, placeholder=' ...')
    raise WeightsError(f'the input record cannot be read ({first_line(error)}): {held}') from error


_IMAGENET_STD = (0.229 * 255, 0.224 * 255, 0.225 * 255)
# What `--input` names. `unit`: the mean and standard deviation of pixels of photographs.
RECORDS = {
  'unit': InputRecord('rgb', (123.0, 117.0, 104.0), (1 / 58, 1 / 58, 1 / 58)),
  'caffe': InputRecord('bgr', (104.0, 117.0, 123.0), (1.0, 1.0, 1.0)),
  'imagenet': InputRecord(
    'rgb',
    (0.485 * 255, 0.456 * 255, 0.406 * 255),
    (1 / _IMAGENET_STD[0], 1 / _IMAGENET_STD[1], 1 / _IMAGENET_STD[2]),
  ),
}


@dataclasses.dataclass(frozen=True)
class Weights:
  """Parameters of a network, and what it takes to use them.

  Attributes:
    params: `{layer: {'kernel', 'bias'}}`, float32; any of `LAYERS`.
    kind: 'trunk' (convolutions only), 'alexnet' or 'cfn' (fc7 sees several tiles).
    order: 'caffenet' (pool, then LRN) or 'alexnet' (LRN, then pool).
    groups: of conv1 .. conv5.
    stride: of conv1.
    input: how images are prepared.
    origin: where the weights come from, for the model card: plain values.
    padding: of conv1, px.
  """

  params: Params
  kind: str
  order: str
  groups: tuple[int, ...]
  stride: int
  input: InputRecord
  origin: dict[str, Any] = dataclasses.field(default_factory=dict)
  padding: int = 0

  def layers(self) -> tuple[str, ...]:
    """Gives the layers that there are, from the input up."""
    return tuple(name for name in LAYERS if name in self.params)

  def tiles(self) -> int:
    """Gives how many tiles fc7 sees; 1 for AlexNet and a trunk."""
    if 'fc6' in self.params and 'fc7' in self.params:
      return self.params['fc7']['kernel'].shape[0] // self.params['fc6']['kernel'].shape[1]
    return 1

  def pool5_side(self) -> int:
    """Gives the side of the map that fc6 was made for; 0 where there is no fc6."""
    if 'fc6' not in self.params or 'conv5' not in self.params:
      return 0
    rows = self.params['fc6']['kernel'].shape[0]
    return round(float(np.sqrt(rows / self.params['conv5']['kernel'].shape[-1])))

  def replace(self, **changes: Any) -> 'Weights':
    """Gives a copy with some fields changed."""
    return dataclasses.replace(self, **changes)


def make_weights(
  params: Params,
  *,
  order: str,
  stride: int,
  record: InputRecord,
  origin: Mapping[str, Any],
  padding: int = 0,
) -> Weights:
  """Builds `Weights`; kind and groups follow from the shapes.

  Raises:
    WeightsError: lists every layer that does not fit.
  """
  if order not in ORDERS:
    raise WeightsError(f"order = '{order}' is unknown: one of {', '.join(ORDERS)}")
  if not 1 <= stride <= 11 or not 0 <= padding <= 10:
    raise WeightsError(f'conv1 has stride {stride} and padding {padding}: 1 to 11 and 0 to 10')
  unknown = sorted(set(params) - set(LAYERS))
  if unknown or not params:
    listed = ', '.join(unknown) or 'none at all'
    raise WeightsError(f'layers {listed}: {", ".join(LAYERS)} are known')
  groups, problems = _groups(params)
  problems += _check_arrays(params) or _check_chain(params)
  # The origin may come from a file: what is gone through later must be what it is taken for.
  problems += [
    f'its origin has {name} of type {type(origin[name]).__name__}, not {kind.__name__}'
    for name, kind in {'notes': list, 'permutations': list, 'config': dict}.items()
    if not isinstance(origin.get(name, kind()), kind)
  ]
  if problems:
    raise WeightsError('; '.join(problems))
  params = {name: params[name] for name in LAYERS if name in params}
  kind = 'alexnet' if 'fc6' in params else 'trunk'
  built = Weights(params, kind, order, groups, stride, record, dict(origin), padding)
  return built.replace(kind='cfn') if built.tiles() > 1 else built


def _check_arrays(params: Params) -> list[str]:
  problems, broken = [], []
  for layer, arrays in params.items():
    if set(arrays) != {'kernel', 'bias'}:
      problems.append(f'{layer} has {", ".join(sorted(arrays))}, not kernel and bias')
      continue
    kernel, bias = arrays['kernel'], arrays['bias']
    kernel_px = dict(zip(CONVOLUTIONS, KERNELS_PX)).get(layer, 0)
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
  groups, problems = list(GROUPS), []
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
    side = round(float(np.sqrt(rows / channels)))
    if side * side * channels != rows:
      problems.append(f'fc6 takes {rows} values: no square map of the {channels} channels of conv5')
  for name, before in (('fc7', 'fc6'), ('fc8', 'fc7')):
    if name not in params or before not in params:
      continue
    rows, features = params[name]['kernel'].shape[0], params[before]['kernel'].shape[1]
    if rows % features or (name == 'fc8' and rows != features):
      problems.append(f'{name} takes {rows} values, {before} gives {features}')
  return problems


def first_line(error: BaseException) -> str:
  """Gives a library's error in one short line."""
  lines = str(error).strip().splitlines() or [type(error).__name__]
  return lines[0][:200]


def json_ready(value: Any) -> Any:
  """Turns tuples, arrays and NumPy numbers into what JSON holds."""
  if isinstance(value, Mapping):
    return {str(name): json_ready(each) for name, each in value.items()}
  if isinstance(value, np.ndarray):
    return value.tolist()
  if isinstance(value, list | tuple):
    return [json_ready(each) for each in value]
  return value.item() if isinstance(value, np.generic) else value
