"""AlexNet's and the CFN's layers: convolution, Caffe's max pooling, local response normalisation.

Everything that depends on the backend is chosen here and nowhere else; each form equals the plain
`lax` one (`reference_*`) in values and gradients. Layouts are Flax's: images `[B, H, W, C]`,
kernels `[kh, kw, in / groups, out]`. Caffe rules: `pooling_layer.cpp` (sizes round up, windows are
clipped to the image) and `lrn_layer.cpp` (alpha is divided by the window).
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cfn_jax.models import figures

Array = jax.Array

# What each backend runs, and why (times on two cores, forward and backward; docs/performance.md).
#
# CPU, convolution. Few input channels (conv1): strips of three outputs; 315 ms with the pooling
#   that follows, against 397 for blocks of 2 x 2 outputs. A map no larger than the kernel: one
#   dense matrix; 29 ms against 88 for columns. 5 x 5 (conv2): lax, since columns are 25 times the
#   map; a step of 3.0 s of CPU time against 3.3. 3 x 3: columns and lax are level; columns.
# CPU, maximum: over strided slices; 22 ms, the gradient of lax.reduce_window 172.
# Accelerators: their own convolution and pooling are what the hardware is built for; groups are
#   split by hand everywhere, since `feature_group_count` makes the partitioner gather the whole
#   batch on every device. Not measured on one yet: docs/performance.md has the command.
# Everywhere: LRN as shifted sums with its own backward pass; 6 ms, by lax.reduce_window 12.
CPU = 'cpu'
STRIP = 3  # outputs of a window; 27 = 9 x 3 are a row of conv1 for a 64-px tile


def convolution(x: Array, kernel: Array, *, stride: int, padding: int, groups: int) -> Array:
  """Convolves `[B, H, W, in]` with `[kh, kw, in / groups, out]` to `[B, oh, ow, out]`.

  Zero padding on all four sides; sizes round down, as Caffe's convolution does.
  """
  inputs = jnp.split(x, groups, axis=-1)
  kernels = jnp.split(kernel, groups, axis=-1)
  form = _choose_convolution(x.shape, kernels[0].shape)
  outputs = [form(x, kernel, stride, padding) for x, kernel in zip(inputs, kernels)]
  return outputs[0] if groups == 1 else jnp.concatenate(outputs, axis=-1)


def max_pool(x: Array, *, window: int = 3, stride: int = 2, padding: int = 0) -> Array:
  """Takes Caffe's maximum over windows: `[B, H, W, C]` to `[B, oh, ow, C]`, sizes rounded up.

  `padding` is on all four sides; windows are clipped to the map, so it adds no value.

  Raises:
    ValueError: the map is too small for the window.
  """
  for size in x.shape[1:3]:
    if figures.pooled_size(size, window=window, stride=stride, padding=padding) < 1:
      raise ValueError(
        f'a map of {x.shape[1]} x {x.shape[2]} is too small for a {window} x {window} maximum'
      )
  if jax.default_backend() == CPU:
    return _pool_axis(_pool_axis(x, 2, window, stride, padding), 1, window, stride, padding)
  return reference_max_pool(x, window=window, stride=stride, padding=padding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def local_response_norm(
  x: Array, window: int = 5, alpha: float = 1e-4, beta: float = 0.75
) -> Array:
  """Divides each value by (1 + alpha / window * sum of squares over `window` channels) ** beta.

  `x` is `[..., C]`; the sum is zero padded and runs in float32 whatever the type of `x`.
  """
  return _normalise(x, window, alpha, beta)[0]


def _normalise(x: Array, window: int, alpha: float, beta: float) -> tuple[Array, Array]:
  scale = 1 + alpha / window * _channel_sum(jnp.square(x.astype(jnp.float32)), window)
  return (x * _negative_power(scale, beta)).astype(x.dtype), scale


def _normalise_backward(
  window: int, alpha: float, beta: float, saved: tuple[Array, Array], gradient: Array
) -> tuple[Array]:
  x, scale = saved
  wide, gradient32 = x.astype(jnp.float32), gradient.astype(jnp.float32)
  power = _negative_power(scale, beta)
  shared = _channel_sum(gradient32 * wide * power / scale, window)
  return ((gradient32 * power - 2 * alpha * beta / window * wide * shared).astype(x.dtype),)


def _normalise_forward(
  x: Array, window: int, alpha: float, beta: float
) -> tuple[Array, tuple[Array, Array]]:
  y, scale = _normalise(x, window, alpha, beta)
  return y, (x, scale)


local_response_norm.defvjp(_normalise_forward, _normalise_backward)


def _negative_power(scale: Array, beta: float) -> Array:
  if beta == 0.75:  # two square roots are several times faster than a power
    root = lax.rsqrt(scale)
    return root * jnp.sqrt(root)
  return scale**-beta


def _channel_sum(x: Array, window: int) -> Array:
  """Sums `[..., C]` over `window` neighbouring channels, zero padded."""
  channels, half = x.shape[-1], window // 2
  padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, window - 1 - half)])
  return functools.reduce(
    jnp.add, [lax.slice_in_dim(padded, i, i + channels, axis=-1) for i in range(window)]
  )


def _pool_axis(x: Array, axis: int, window: int, stride: int, padding: int) -> Array:
  """Takes the maximum along one axis: a maximum over `window` strided slices."""
  out = figures.pooled_size(x.shape[axis], window=window, stride=stride, padding=padding)
  last = (out - 1) * stride + 1
  pads = [(0, 0)] * x.ndim
  pads[axis] = (padding, max(0, last - 1 + window - x.shape[axis] - padding))
  padded = jnp.pad(x, pads, constant_values=-jnp.inf)
  return functools.reduce(
    jnp.maximum,
    [lax.slice_in_dim(padded, i, i + last, stride, axis) for i in range(window)],
  )


def reference_max_pool(x: Array, *, window: int = 3, stride: int = 2, padding: int = 0) -> Array:
  """Pools with `lax.reduce_window`, padded further on the right so that sizes round up."""
  pads = [(0, 0), (0, 0), (0, 0), (0, 0)]
  for axis in (1, 2):
    out = figures.pooled_size(x.shape[axis], window=window, stride=stride, padding=padding)
    pads[axis] = (padding, max(0, (out - 1) * stride + window - x.shape[axis] - padding))
  window_shape, strides = (1, window, window, 1), (1, stride, stride, 1)
  return lax.reduce_window(x, np.array(-np.inf, x.dtype), lax.max, window_shape, strides, pads)


def reference_convolution(x: Array, kernel: Array, stride: int, padding: int) -> Array:
  """Convolves with `lax.conv_general_dilated` (one group)."""
  pads = [(padding, padding)] * 2
  dimensions = ('NHWC', 'HWIO', 'NHWC')
  return lax.conv_general_dilated(x, kernel, (stride, stride), pads, dimension_numbers=dimensions)


def _columns_convolution(x: Array, kernel: Array, stride: int, padding: int) -> Array:
  """Concatenates the shifted maps of all taps into columns, then one matmul."""
  kh, kw, _, out = kernel.shape
  x = jnp.pad(x, [(0, 0), (padding, padding), (padding, padding), (0, 0)])
  oh, ow = (x.shape[1] - kh) // stride + 1, (x.shape[2] - kw) // stride + 1
  limit_y, limit_x = (oh - 1) * stride + 1, (ow - 1) * stride + 1
  taps = [
    x[:, i : i + limit_y : stride, j : j + limit_x : stride] for i in range(kh) for j in range(kw)
  ]
  columns = jnp.concatenate(taps, axis=-1)  # [B, oh, ow, kh * kw * in]
  return columns @ kernel.reshape(-1, out)


def _strip_convolution(x: Array, kernel: Array, stride: int, padding: int) -> Array:
  """Computes `STRIP` neighbouring outputs of a row from one common window, then one matmul.

  The columns are less than half as large as with a window for each output (11 x 15 values for three
  instead of three times 11 x 11 for conv1), for 1.4 times the arithmetic: with few channels, memory
  is the limit.
  """
  kh, kw, channels, out = kernel.shape
  x = jnp.pad(x, [(0, 0), (padding, padding), (padding, padding), (0, 0)])
  batch, height, width, _ = x.shape
  oh, ow = (height - kh) // stride + 1, (width - kw) // stride + 1
  strips, step = -(-ow // STRIP), STRIP * stride
  window = kw + step - stride
  missing = max(0, (strips - 1) * step + window - width)
  x = jnp.pad(x, [(0, 0), (0, 0), (0, missing), (0, 0)])
  rows = x.reshape(batch, height, -1)  # a window's row is one contiguous run
  corners = np.stack(
    np.meshgrid(np.arange(oh) * stride, np.arange(strips) * step * channels, indexing='ij'), axis=-1
  )  # [oh, ow / STRIP, 2]
  columns = lax.gather(
    rows,
    jnp.asarray(corners.reshape(-1, 2)),
    lax.GatherDimensionNumbers(
      offset_dims=(0, 2, 3), collapsed_slice_dims=(), start_index_map=(1, 2)
    ),
    (batch, kh, window * channels),
    mode='promise_in_bounds',
  ).reshape(batch, oh, strips, -1)  # [B, oh, ow / STRIP, kh * window * in]
  shifted = [
    jnp.pad(kernel, [(0, 0), (i * stride, step - stride - i * stride), (0, 0), (0, 0)])
    for i in range(STRIP)
  ]
  matrix = jnp.stack(shifted, axis=3).reshape(columns.shape[-1], STRIP * out)
  y = (columns @ matrix).reshape(batch, oh, strips * STRIP, out)
  return y[:, :, :ow]


def _dense_convolution(x: Array, kernel: Array, stride: int, padding: int) -> Array:
  """Writes the kernel as one matrix from every input to every output position.

  On a map with no more positions than the kernel has taps, most taps meet only padding: the matrix
  holds just the others.
  """
  kh, kw, channels, out = kernel.shape
  batch, height, width, _ = x.shape
  oh, ow = (height + 2 * padding - kh) // stride + 1, (width + 2 * padding - kw) // stride + 1
  tap_y = np.arange(height)[:, None] + padding - stride * np.arange(oh)  # [H, oh]
  tap_x = np.arange(width)[:, None] + padding - stride * np.arange(ow)  # [W, ow]
  tap_y, tap_x = tap_y[:, None, :, None], tap_x[None, :, None, :]
  valid = (tap_y >= 0) & (tap_y < kh) & (tap_x >= 0) & (tap_x < kw)  # [H, W, oh, ow]
  index = np.where(valid, tap_y * kw + tap_x, kh * kw)
  taps = jnp.concatenate(
    [kernel.reshape(kh * kw, channels, out), jnp.zeros((1, channels, out), kernel.dtype)]
  )
  matrix = taps[index].transpose(0, 1, 4, 2, 3, 5)  # [H, W, in, oh, ow, out]
  matrix = matrix.reshape(height * width * channels, oh * ow * out)
  return (x.reshape(batch, -1) @ matrix).reshape(batch, oh, ow, out)


def _choose_convolution(
  shape: tuple[int, ...], kernel: tuple[int, ...]
) -> Callable[[Array, Array, int, int], Array]:
  if jax.default_backend() != CPU:
    return reference_convolution
  if shape[1] * shape[2] <= kernel[0] * kernel[1]:
    return _dense_convolution
  if kernel[2] < 32:
    return _strip_convolution
  return reference_convolution if kernel[0] > 3 else _columns_convolution


class Convolution(nn.Module):
  """A convolution with bias. Parameters: `kernel` `[k, k, in / groups, features]`, `bias`."""

  features: int
  kernel_px: int
  kernel_init: nn.initializers.Initializer
  bias_init: nn.initializers.Initializer
  stride: int = 1
  padding: int = 0
  groups: int = 1
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: Array) -> Array:
    shape = (self.kernel_px, self.kernel_px, x.shape[-1] // self.groups, self.features)
    kernel = self.param('kernel', self.kernel_init, shape).astype(self.dtype)
    bias = self.param('bias', self.bias_init, (self.features,)).astype(self.dtype)
    y = convolution(
      x.astype(self.dtype), kernel, stride=self.stride, padding=self.padding, groups=self.groups
    )
    return y + bias
