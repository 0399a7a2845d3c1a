"""Forms of a convolution, all equal to `reference` in values and gradients.

Images `[B, H, W, in]`, kernels `[kh, kw, in, out]` to `[B, oh, ow, out]`, zero padded on all four
sides, sizes rounded down. layers.py chooses.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array

STRIP = 3  # outputs of a window; 27 = 9 x 3 are a row of conv1 for a 64-px tile


def reference(x: Array, kernel: Array, stride: int, padding: int, groups: int = 1) -> Array:
  """Convolves `[B, H, W, in]` with `lax.conv_general_dilated`."""
  pads = [(padding, padding)] * 2
  return lax.conv_general_dilated(
    x,
    kernel,
    (stride, stride),
    pads,
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    feature_group_count=groups,
  )


def columns(x: Array, kernel: Array, stride: int, padding: int) -> Array:
  """Concatenates the shifted maps of all taps to columns `[B, oh, ow, n]`; one product follows."""
  kh, kw, _, out = kernel.shape
  x = jnp.pad(x, [(0, 0), (padding, padding), (padding, padding), (0, 0)])
  oh, ow = (x.shape[1] - kh) // stride + 1, (x.shape[2] - kw) // stride + 1
  limit_y, limit_x = (oh - 1) * stride + 1, (ow - 1) * stride + 1
  taps = [
    x[:, i : i + limit_y : stride, j : j + limit_x : stride] for i in range(kh) for j in range(kw)
  ]
  columns = jnp.concatenate(taps, axis=-1)  # [B, oh, ow, kh * kw * in]
  return columns @ kernel.reshape(-1, out)


def strip(x: Array, kernel: Array, stride: int, padding: int) -> Array:
  """Computes `STRIP` neighbouring outputs of a row of `[B, oh, ow, out]` from a common window.

  The columns are less than half as large as with a window per output: for conv1 11 x 15 values for
  three instead of three times 11 x 11. The arithmetic is 1.4 times as much. With few channels,
  memory is the limit.
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


def dense(x: Array, kernel: Array, stride: int, padding: int) -> Array:
  """Multiplies `[B, H, W, in]` by one matrix from every input to every output position.

  On a map with no more positions than the kernel has taps, most taps meet only padding. The matrix
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
