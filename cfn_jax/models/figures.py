"""AlexNet's figures: sizes, Caffe's rules for them, and initial values of layers. No JAX.

Source: `bvlc_alexnet` and `bvlc_reference_caffenet` of Caffe, `pooling_layer.cpp`. Every network,
reader and writer uses them.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from cfn_jax.errors import CfnError

CONVOLUTIONS = ('conv1', 'conv2', 'conv3', 'conv4', 'conv5')
FEATURES = (96, 256, 384, 384, 256)
KERNELS_PX = (11, 5, 3, 3, 3)
PADDINGS = (0, 2, 1, 1, 1)  # conv1's, like its stride, is the model's choice
GROUPS = (1, 2, 1, 2, 2)
FULLY_CONNECTED = ('fc6', 'fc7', 'fc8')
ORDERS = ('caffenet', 'alexnet')  # pool then LRN; LRN then pool
INITS = ('caffe', 'he')
OUTPUTS = {'fc8', 'cls_score', 'bbox_pred', 'score_fr'}  # layers that start alike for every input
# 0.01 for every other layer.
_CAFFE_STD = {'fc6': 0.005, 'fc7': 0.005, 'bbox_pred': 0.001, 'score_fr': 0.0}
_BIASED = ('conv2', 'conv4', 'conv5', 'fc6', 'fc7')


@dataclasses.dataclass(frozen=True)
class Initial:
  """Initial values of a network: Caffe's fillers, or He's variance with biases of zero.

  In both, the last layers are Gaussian with bias 0: fc8 and cls_score with std 0.01, bbox_pred with
  0.001. So an untrained network starts near the loss of chance. score_fr starts at zero.
  """

  init: str = 'caffe'
  order: str = 'caffenet'

  def __post_init__(self) -> None:
    if self.init not in INITS:
      raise CfnError(f"model.init = '{self.init}' is unknown: one of {', '.join(INITS)}")
    if self.order not in ORDERS:
      raise CfnError(f"model.order = '{self.order}' is unknown: one of {', '.join(ORDERS)}")

  def std(self, layer: str, kernel_shape: tuple[int, ...]) -> float:
    """Returns the standard deviation of a layer's weights; `kernel_shape` ends in `in, out`."""
    if self.init == 'he' and layer not in OUTPUTS:
      return float(np.sqrt(2 / np.prod(kernel_shape[:-1])))
    return _CAFFE_STD.get(layer, 0.01)

  def bias(self, layer: str) -> float:
    """Returns the initial value of a layer's biases."""
    if self.init == 'he' or layer not in _BIASED:
      return 0.0
    return 1.0 if self.order == 'caffenet' else 0.1


def fits(init: str, contrast: float) -> bool:
  """Returns whether layers with these values learn from inputs of this standard deviation.

  He's expect about 1: with tens they start at a loss of a hundred. Caffe's Gaussians and LRN expect
  tens: near 1 they see almost nothing, and the loss stays at chance.
  """
  return contrast <= 10 if init == 'he' else contrast >= 10


def check_contrast(init: str, contrast: float, *, field: str, layers: str) -> None:
  """Raises CfnError if layers are drawn for inputs of another standard deviation."""
  if not fits(init, contrast):
    raise CfnError(
      f"{field} = '{init}' draws {layers} for inputs of another scale: images are prepared to a "
      f'standard deviation of {contrast:.3g}, which goes with '
      + ("'caffe'" if init == 'he' else "'he'")
    )


def scaled(features: int, width: float) -> int:
  """Returns the channels of a layer at a width: a multiple of 8, at least 8.

  >>> [scaled(features, 0.5) for features in (96, 256, 384)]
  [48, 128, 192]
  """
  return max(8, round(features * width / 8) * 8)


def convolved_size(size: Any, *, kernel_px: int, stride: int = 1, padding: int = 0) -> Any:
  """Returns the size of an axis after a convolution, rounded down; 0 if nothing is left.

  Sizes are numbers, here and below, or arrays of them.
  """
  return ((size + 2 * padding - kernel_px) // stride + 1) * (size + 2 * padding >= kernel_px)


def pooled_size(size: Any, *, window: int = 3, stride: int = 2, padding: int = 0) -> Any:
  """Returns the size of an axis after pooling, rounded up, by Caffe's rule.

  With padding, no window begins beyond the padded map. 0 or less means that nothing is left.

  >>> [pooled_size(size) for size in (27, 13, 6, 2)], pooled_size(46, padding=1)
  ([13, 6, 3, 1], 24)
  """
  pooled = -(-(size + 2 * padding - window) // stride) + 1
  return pooled - bool(padding) * ((pooled - 1) * stride >= size + padding)


def map_sides(
  size_px: int, stride: int, *, padding: int = 0, pool_padding: int = 0
) -> dict[str, int]:
  """Returns the side of each layer's output for a square image; 0 if nothing is left.

  Args:
    stride, padding: conv1's.
    pool_padding: of pool1 and pool2.

  >>> map_sides(64, 2)
  {'conv1': 27, 'conv2': 13, 'conv3': 6, 'conv4': 6, 'conv5': 6, 'pool5': 3}
  """

  def pooled(side: int, padding: int) -> int:
    return max(0, pooled_size(side, padding=padding)) if side > 0 else 0

  conv1 = convolved_size(size_px, kernel_px=KERNELS_PX[0], stride=stride, padding=padding)
  conv2 = pooled(conv1, pool_padding)
  conv3 = pooled(conv2, pool_padding)
  return dict(zip((*CONVOLUTIONS, 'pool5'), (conv1, conv2, conv3, conv3, conv3, pooled(conv3, 0))))


class Field(NamedTuple):
  """The receptive field of a value of a layer's output along one axis, in pixels.

  Value i sees `size_px` pixels from `start_px + i * pitch_px` on. They may lie outside the image.
  """

  start_px: int
  size_px: int
  pitch_px: int


def receptive_fields(stride: int, *, padding: int = 0) -> dict[str, Field]:
  """Returns the receptive fields of conv1 .. conv5 by layer, without padding of pools.

  >>> [field.size_px for field in receptive_fields(4).values()]
  [11, 51, 99, 131, 163]
  """
  fields, field = {}, Field(0, 1, 1)

  def after(window: int, stride: int, padding: int) -> Field:
    start, size, pitch = field
    return Field(start - padding * pitch, size + (window - 1) * pitch, pitch * stride)

  for index, name in enumerate(CONVOLUTIONS):
    if index in (1, 2):
      field = after(3, 2, 0)
    own = (stride, padding) if index == 0 else (1, PADDINGS[index])
    field = fields[name] = after(KERNELS_PX[index], *own)
  return fields


def check_input_size(size_px: int, stride: int, *, padding: int = 0) -> None:
  """Raises CfnError if nothing of an image of this side is left after the three poolings."""
  sides = map_sides(size_px, stride, padding=padding)
  if sides['pool5'] < 1:
    listed = ', '.join(f'{name} {side}' for name, side in sides.items())
    raise CfnError(
      f'an image of {size_px} px at stride {stride} leaves no map after pool5 ({listed}); '
      'take a larger one or a smaller stride'
    )
