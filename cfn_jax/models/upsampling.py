"""Forms of bilinear enlargement by a whole factor, equal to Caffe's transposed convolution.

Maps are `[B, h, w, C]`, the kernel is the product of two triangles whose base is twice the stride:
it has 2 * stride - 1 pixels, or 2 * stride. `layers.py` chooses a form by platform.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array


def by_products(
  x: Array, sides: tuple[int, int], *, stride: int, kernel_px: int, crop_px: int
) -> Array:
  """Enlarges to `[B, H, W, C]` with one matrix product for each axis."""
  centre = (kernel_px - 1) / 2

  def make_weights(cells: int, pixels: int) -> Array:
    away = np.arange(pixels)[:, None] + crop_px - stride * np.arange(cells) - centre
    return jnp.asarray(np.maximum(0, 1 - np.abs(away) / stride), x.dtype)

  rows, columns = (make_weights(*each) for each in zip(x.shape[1:3], sides))
  x = jnp.einsum('yh,bhwc->bywc', rows, x, precision=lax.Precision.HIGHEST)
  return jnp.einsum('xw,bywc->byxc', columns, x, precision=lax.Precision.HIGHEST)


def by_blends(
  x: Array, sides: tuple[int, int], *, stride: int, kernel_px: int, crop_px: int
) -> Array:
  """Enlarges to `[B, H, W, C]`: each pixel blends two neighbours, with zeros around the map."""
  odd = kernel_px % 2
  share = jnp.asarray((np.arange(stride) + (1 - odd) / 2) / stride, x.dtype)
  for axis, pixels in zip((1, 2), sides):
    cells = x.shape[axis] + 1
    around = [(0, 0)] * 4
    around[axis] = (1, 1)
    x = jnp.expand_dims(jnp.pad(x, around), axis + 1)
    far = share.reshape([-1 if each == axis + 1 else 1 for each in range(5)])
    before = lax.slice_in_dim(x, 0, cells, axis=axis)
    after = lax.slice_in_dim(x, 1, cells + 1, axis=axis)
    x = before * (1 - far) + after * far
    x = x.reshape(*x.shape[:axis], cells * stride, *x.shape[axis + 2 :])
    x = lax.slice_in_dim(x, crop_px + odd, crop_px + odd + pixels, axis=axis)
  return x
