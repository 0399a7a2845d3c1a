"""The context encoder: AlexNet's trunk to pool5, and a decoder that fills in hidden pixels.

Pathak et al., section 3.1. In a fully connected layer of each channel by itself every place sees
every other. A 1 x 1 convolution mixes the channels. Transposed convolutions enlarge the maps.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from cfn_jax.errors import CfnError
from cfn_jax.models import alexnet, figures
from cfn_jax.models import trunk as trunks

Array = jax.Array
LAYOUT = ('NHWC', 'HWIO', 'NHWC')


class ChannelWise(nn.Module):
  """A fully connected layer for each channel: maps `[B, h, w, C]` to `[B, h, w, C]`.

  The kernel `[h, w, 1, C * h * w]` is that of a convolution in C groups, over the whole map.
  """

  dtype: Any

  @nn.compact
  def __call__(self, maps: Array) -> Array:
    batch, height, width, channels = maps.shape
    places = height * width
    init = nn.initializers.he_normal()
    kernel = self.param('kernel', init, (height, width, 1, channels * places))
    bias = self.param('bias', nn.initializers.zeros, (channels * places,))
    x = maps.reshape(batch, places, channels).astype(self.dtype)
    kernel = kernel.reshape(places, channels, places).astype(self.dtype)
    x = jnp.einsum('bic,icj->bjc', x, kernel)  # [B, h * w, C]
    x = x + bias.reshape(channels, places).T.astype(self.dtype)
    return x.reshape(maps.shape)


class Enlarge(nn.Module):
  """A transposed convolution, 5 x 5 with stride 2: maps `[B, n, n, C]` to `[B, 2n - 1, 2n - 1, F]`.

  It is computed as a 3 x 3 convolution to four maps, one per place of an output pixel among the
  input's. With zeros between the pixels a CPU takes much longer, see docs/performance.md. The
  kernel `[5, 5, C, F]` is that of `nn.ConvTranspose` with padding 2.
  """

  features: int
  dtype: Any

  @nn.compact
  def __call__(self, maps: Array) -> Array:
    batch, side, _, channels = maps.shape
    init = nn.initializers.he_normal()
    kernel = self.param('kernel', init, (5, 5, channels, self.features))
    bias = self.param('bias', nn.initializers.zeros, (self.features,))
    # Even rows of the output see taps 0, 2, 4 of three rows of the input, odd rows 1 and 3 of two.
    taps = jnp.pad(kernel, ((1, 0), (1, 0), (0, 0), (0, 0))).reshape(3, 2, 3, 2, channels, -1)
    taps = taps[:, ::-1, :, ::-1].transpose(0, 2, 4, 1, 3, 5).reshape(3, 3, channels, -1)
    x = jax.lax.conv_general_dilated(
      maps.astype(self.dtype), taps.astype(self.dtype), (1, 1), 'SAME', dimension_numbers=LAYOUT
    )
    x = x.reshape(batch, side, side, 2, 2, -1).transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(batch, 2 * side, 2 * side, -1)[:, :-1, :-1]  # [B, 2n - 1, 2n - 1, F]
    return x + bias.astype(self.dtype)


class ContextEncoder(nn.Module):
  """Prepared views `[B, px, px, 3]` with zeros in hidden places to fillings of the same shape.

  Attributes:
    features: channels after each transposed convolution but the last, which has 3. Each turns a map
      of n px into one of 2 n - 1. The last map is resized to the view.
  """

  trunk: trunks.Trunk
  features: tuple[int, ...]

  def setup(self) -> None:
    nn.share_scope(self, self.trunk)  # parameters stay flat: params['conv1']
    trunk = self.trunk
    self.channelwise = ChannelWise(trunk.dtype)
    self.mix = nn.Conv(figures.scaled(figures.FEATURES[-1], trunk.width), (1, 1), dtype=trunk.dtype)
    for number, features in enumerate((*self.features, 3), 1):
      setattr(self, f'up{number}', Enlarge(features, trunk.dtype))

  def __call__(self, views: Array) -> Array:
    flat = self.trunk(views)  # [B, s * s * C]
    side = figures.map_sides(views.shape[1], self.trunk.stride)['pool5']
    x = nn.relu(self.channelwise(flat.reshape(len(flat), side, side, -1)))
    x = nn.relu(self.mix(x))
    for number in range(1, len(self.features) + 1):
      x = nn.relu(getattr(self, f'up{number}')(x))
    x = getattr(self, f'up{len(self.features) + 1}')(x).astype(jnp.float32)
    return resize(x, views.shape[1])


def resize(maps: Array, side: int) -> Array:
  """Resizes square maps `[B, n, n, C]` to `[B, side, side, C]`, bilinearly between centres.

  It selects rows and columns: XLA cannot compile the products of `jax.image.resize` for an H100 if
  the sides are odd.
  """
  size = maps.shape[1]
  places = np.clip((np.arange(side) + 0.5) * size / side - 0.5, 0, size - 1)
  first = np.minimum(places.astype(np.int32), size - 2)
  share = (places - first).astype(np.float32)

  def between(x: Array, axis: int, share: np.ndarray) -> Array:
    return x.take(first, axis) * (1 - share) + x.take(first + 1, axis) * share

  wide = between(maps, 2, share[:, None])
  return between(wide, 1, share[:, None, None])


def draw_parameters(model: ContextEncoder, view_px: int, *, seed: int) -> dict[str, Any]:
  """Draws parameters on the host: the trunk by its own rule, the decoder with He's variance.

  With a stride of 2, each pixel of a transposed convolution has a quarter of the taps, so its
  weights are twice as large. The last layer's are small: a filling starts near the mean colour.
  """
  shapes = alexnet.parameter_shapes(model, (1, view_px, view_px, 3))
  trunk = {name: shapes[name] for name in figures.CONVOLUTIONS}
  decoder = {name: shapes[name] for name in shapes if name not in trunk}
  he = figures.Initial('he', model.trunk.order)
  drawn = alexnet.draw_parameters(decoder, he, seed=seed)
  for name in drawn:
    if name.startswith('up'):
      drawn[name]['kernel'] *= 2 if name != f'up{len(model.features) + 1}' else 0.1
  return alexnet.draw_parameters(trunk, model.trunk.initial, seed=seed) | drawn


def check_sizes(view_px: int, stride: int, features: tuple[int, ...]) -> None:
  """Raises CfnError if the decoder makes less than half of the view, or more than twice."""
  figures.check_input_size(view_px, stride)
  side = figures.map_sides(view_px, stride)['pool5']
  if not features or min(features) < 1:
    raise CfnError(f'decoder.features = {features}: numbers of channels, at least 1 each')
  made = (side - 1) * 2 ** (len(features) + 1) + 1
  if not view_px <= 2 * made <= 4 * view_px:
    less = 2 * made < view_px
    raise CfnError(
      f'decoder.features = {features}: pool5 of {side} px becomes {made} px, '
      + ('less than half of ' if less else 'more than twice ')
      + f'views.view_px = {view_px}; '
      + ('add numbers, or take a smaller stride' if less else 'take fewer numbers')
    )
