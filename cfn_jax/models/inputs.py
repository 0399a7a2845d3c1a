"""The input record, which travels with the weights: how pixels are prepared for conv1.

uint8 RGB images, or tiles -> (here) -> float32 -> the network. It accepts NumPy and JAX arrays, and
imports JAX only for its own.
"""

import dataclasses
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cfn_jax import terminal
from cfn_jax.errors import CfnError

KINDS = ('', 'tile', 'channel', 'mean')
PIXEL_STD = 58.0  # of photographs, 0..255
FLAT = 1e-6  # a variance below this is the rounding of a flat image


class InputError(CfnError):
  """An impossible record, or images that it cannot prepare."""


@dataclasses.dataclass(frozen=True)
class InputRecord:
  """The preparation of an image for the first convolution.

  With `normalization` '' a pixel p of 0..255 becomes (p - mean) * scale. With another value each
  image (of a CFN: each tile) is normalised by its own figures and multiplied by `scale`. Then
  `mean` and `std` are the fixed figures that can replace its own.

  Attributes:
    channels: 'rgb' or 'bgr', the order that the network wants.
    mean: of each channel, in that order, 0..255.
    scale: of each channel, in that order.
    normalization: '' (fixed), 'tile' (mean and std over pixels and channels), 'channel' (of each
      channel) or 'mean' (mean of each channel, the fixed std).
    std: replaces an image's own standard deviation, 0..255; unused if `normalization` is ''.
  """

  channels: str
  mean: tuple[float, float, float]
  scale: tuple[float, float, float]
  normalization: str = ''
  std: float = 1.0

  def __post_init__(self) -> None:
    if self.channels not in ('rgb', 'bgr'):
      raise InputError(f"input record: channels = '{self.channels}': 'rgb' or 'bgr'")
    if self.normalization not in KINDS:
      raise InputError(
        f"input record: normalization = '{self.normalization}': '', 'tile', 'channel' or 'mean'"
      )
    figures = (*self.mean, *self.scale, self.std)
    if len(self.mean) != 3 or len(self.scale) != 3 or not np.all(np.isfinite(figures)):
      raise InputError('input record: mean and scale are three finite numbers each')
    if min(*self.scale, self.std) <= 0:
      raise InputError(f'input record: scale = {self.scale}, std = {self.std}: more than 0')

  def prepare(self, images: Any) -> Any:
    """Prepares uint8 RGB `[..., H, W, 3]`, to float32 of the same shape in the wanted order.

    An image (a tile) without contrast becomes zeros if it is normalised by its own figures. A NumPy
    array is computed in float64 and stays NumPy's. A JAX array stays JAX's.

    Raises:
      InputError: the images are not uint8 with three channels.
    """
    if images.dtype != np.uint8 or images.shape[-1] != 3:
      raise InputError(
        f'images are {images.dtype} {list(images.shape)}: uint8 [..., H, W, 3], RGB, is needed'
      )
    if isinstance(images, np.ndarray):
      exact = self._prepare(images.astype(np.float64), np, lambda x: 1 / np.sqrt(x))
      return exact.astype(np.float32)
    import jax

    return self._prepare(images.astype(np.float32), jax.numpy, jax.lax.rsqrt)

  def see(self, kernel: np.ndarray) -> np.ndarray:
    """Returns conv1's kernel `[kh, kw, 3, F]` as it weighs R, G and B of a pixel of 0..255."""
    kernel = kernel * np.array(self.scale, np.float32)[:, None]
    return kernel[:, :, ::-1] if self.channels == 'bgr' else kernel

  def _prepare(self, x: Any, xp: Any, rsqrt: Callable[[Any], Any]) -> Any:
    if self.channels == 'bgr':
      x = x[..., ::-1]
    scale = xp.asarray(self.scale, x.dtype)
    if not self.normalization:
      return (x - xp.asarray(self.mean, x.dtype)) * scale
    axes = (-3, -2, -1) if self.normalization == 'tile' else (-3, -2)
    x = x - x.mean(axes, keepdims=True)
    if self.normalization == 'mean':
      return x * (scale / self.std)
    variance = xp.square(x).mean(axes, keepdims=True)
    flat = variance < FLAT
    return xp.where(flat, 0, x * rsqrt(xp.where(flat, 1, variance))) * scale

  def fixed(self) -> 'InputRecord':
    """Returns the fixed record that replaces normalisation of each image by itself.

    `mean` and `std` are those of a typical tile of training. So a typical part of an image has
    about the contrast of a tile; in training every single tile had it.
    """
    if not self.normalization:
      return self
    red, green, blue = (scale / self.std for scale in self.scale)
    return InputRecord(self.channels, self.mean, (red, green, blue))

  def contrast(self) -> float:
    """Returns the approximate standard deviation of the prepared input, for photographs."""
    return float(np.mean(self.scale)) * (1 if self.normalization else PIXEL_STD)

  def to_json(self) -> dict[str, Any]:
    """Returns the record as plain values."""
    plain = dataclasses.asdict(self)
    return plain | {name: [float(x) for x in plain[name]] for name in ('mean', 'scale')}


def from_json(values: Mapping[str, Any]) -> InputRecord:
  """Reads what `InputRecord.to_json` returned.

  Raises:
    InputError: a field is missing or has another type.
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
    raise InputError(
      f'the input record cannot be read ({terminal.first_line(error)}): {held}'
    ) from error


_IMAGENET_STD = (0.229 * 255, 0.224 * 255, 0.225 * 255)
# The values of `--input`. `unit`: the mean and standard deviation of pixels of photographs.
RECORDS = {
  'unit': InputRecord('rgb', (123.0, 117.0, 104.0), (1 / PIXEL_STD,) * 3),
  'caffe': InputRecord('bgr', (104.0, 117.0, 123.0), (1.0, 1.0, 1.0)),
  'imagenet': InputRecord(
    'rgb',
    (0.485 * 255, 0.456 * 255, 0.406 * 255),
    (1 / _IMAGENET_STD[0], 1 / _IMAGENET_STD[1], 1 / _IMAGENET_STD[2]),
  ),
}
