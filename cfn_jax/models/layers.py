"""AlexNet's and the CFN's layers, and the form of each that a platform runs.

Only this module depends on the platform: the one that a program is compiled for, not the one that
compiles it. Each form equals the plain one of `lax` in values and gradients. Layouts are Flax's:
images `[B, H, W, C]`, kernels `[kh, kw, in / groups, out]`.
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from cfn_jax.models import convolutions, figures, pooling, response_norm, roi_pooling, upsampling

Array = jax.Array
Convolve = Callable[[Array, Array, int, int], Array]
Pool = Callable[[Array, int, int, int], Array]

# The forms of each platform, and why; docs/performance.md has the measurements.
#
# CPU, convolution. Few input channels (conv1): strips of three outputs; 315 ms with the pooling
#   that follows, against 397 for blocks of 2 x 2 outputs. A map no larger than the kernel: one
#   dense matrix; 29 ms against 88 for columns. 5 x 5 (conv2): lax, since columns are 25 times the
#   map; a step of 3.0 s of CPU time against 3.3. 3 x 3: columns and lax are level; columns.
# TPU and GPU, convolution: lax. On a GPU groups are split by hand: `feature_group_count` makes the
#   partitioner gather the whole batch on every device there, and not on a TPU.
# CPU and GPU, maximum: over strided slices. The gradient of lax.reduce_window is a scatter: on a
#   CPU 172 ms instead of 22, on a GPU with atomic additions. A TPU has an operation for it. On a
#   CPU one axis after the other, and the bias first, is a fifth faster in a whole step than both
#   axes at once, or the bias last. A GPU moves 10.7 GB in a step by axes, 8.3 GB at once.
# LRN: shifted sums; on a CPU 6 ms, by lax.reduce_window 12. A TPU shifts channels slowly and
#   multiplies fast. A GPU waits for memory, and computes the scale again rather than keep it.
# Enlargement: products; on a CPU 0.23 s for four maps of scores with their gradient, by blends
#   0.33. XLA 0.10 finds no tiling on a GPU for products of so few terms.


def convolution(x: Array, kernel: Array, *, stride: int, padding: int, groups: int) -> Array:
  """Convolves `[B, H, W, in]` with `[kh, kw, in / groups, out]` to `[B, oh, ow, out]`.

  Zero padding on all four sides; sizes round down, as Caffe's convolution does.
  """

  def whole(x: Array, kernel: Array) -> Array:
    return convolutions.reference(x, kernel, stride, padding, groups)

  def split(form: Convolve, x: Array, kernel: Array) -> Array:
    parts = zip(jnp.split(x, groups, axis=-1), jnp.split(kernel, groups, axis=-1))
    outputs = [form(x, kernel, stride, padding) for x, kernel in parts]
    return outputs[0] if groups == 1 else jnp.concatenate(outputs, axis=-1)

  return _by_platform(
    x,
    kernel,
    cpu=functools.partial(split, choose_on_cpu(x.shape, kernel.shape)),
    tpu=whole,
    gpu=functools.partial(split, convolutions.reference),
  )


def choose_on_cpu(shape: tuple[int, ...], kernel: tuple[int, ...]) -> Convolve:
  """Chooses the CPU's form of a convolution, by the shapes of images and kernel."""
  if shape[1] * shape[2] <= kernel[0] * kernel[1]:
    return convolutions.dense
  if kernel[2] < 32:
    return convolutions.strip
  return convolutions.reference if kernel[0] > 3 else convolutions.columns


def max_pool(x: Array, *, window: int = 3, stride: int = 2, padding: int = 0) -> Array:
  """Computes Caffe's maximum over windows: `[B, H, W, C]` to `[B, oh, ow, C]`, sizes rounded up.

  `padding` is on all four sides; windows are clipped to the map, so it adds no value. A window's
  gradient goes to its first maximum in reading order.

  Raises:
    ValueError: the map is too small for the window.
  """
  for size in x.shape[1:3]:
    if figures.pooled_size(size, window=window, stride=stride, padding=padding) < 1:
      raise ValueError(
        f'a map of {x.shape[1]} x {x.shape[2]} is too small for a {window} x {window} maximum'
      )

  def run(form: Pool, x: Array) -> Array:
    return form(x, window, stride, padding)

  return _by_platform(
    x,
    cpu=functools.partial(run, pooling.by_axes),
    tpu=functools.partial(run, pooling.reference),
    gpu=functools.partial(run, pooling.by_place),
  )


def pool_biased(maps: Array, bias: Array, *, padding: int = 0) -> Array:
  """Adds a bias to maps `[B, H, W, C]`, applies ReLU and max pooling, in a suitable order.

  A maximum commutes with both. ReLU comes last, on a quarter of the values, and on accelerators so
  does the bias. Values are the same in every order. If rounding makes two values equal, the
  gradient of the CPU's order goes to the first. In bfloat16, where that is common, the CPU uses the
  accelerators' order.
  """

  def before(maps: Array, bias: Array) -> Array:
    return max_pool(add_bias(maps, bias), padding=padding)

  def after(maps: Array, bias: Array) -> Array:
    return add_bias(max_pool(maps, padding=padding), bias)

  on_cpu = before if maps.dtype == jnp.float32 else after
  return relu(_by_platform(maps, bias, cpu=on_cpu, tpu=after, gpu=after))


def roi_max_pool(maps: Array, rois: Array, *, scale: float, size: int) -> Array:
  """Computes the maxima of Fast R-CNN's regions: `[L, h, w, C]` and `[R, 5]` to `[R, n, n, C]`.

  All platforms use the same form. With a gradient it keeps the place of each maximum, in a
  hundredth of the memory that differentiating the plain rule needs. A bin's gradient goes to its
  first maximum in reading order. See roi_pooling.py for Caffe's rules. Bins are computed in
  integers, which equals Caffe's floats for grids of 2, 3, 5 and 6.

  Args:
    rois: the number of the map, and x1, y1, x2, y2 in pixels of the images, ends included.
    scale: cells of the map per pixel.
    size: n, the bins per side.
  """
  return roi_pooling.pool(maps, rois, scale, size)


def local_response_norm(
  x: Array, *, window: int = 5, alpha: float = 1e-4, beta: float = 0.75
) -> Array:
  """Divides each value by (1 + alpha / window * sum of squares over `window` channels) ** beta.

  `x` is `[..., C]`; the sum is zero padded and runs in float32 whatever the type of `x`.
  """

  def run(form: response_norm.Form, x: Array) -> Array:
    return response_norm.normalise(x, window, alpha, beta, form)

  return _by_platform(
    x,
    cpu=functools.partial(run, response_norm.Form()),
    tpu=functools.partial(run, response_norm.Form(by_band=True)),
    gpu=functools.partial(run, response_norm.Form(again=True)),
  )


def upsample_bilinear(
  x: Array, sides: tuple[int, int], *, stride: int, kernel_px: int, crop_px: int
) -> Array:
  """Enlarges maps `[B, h, w, C]` to `[B, H, W, C]`, with the same fixed kernel for each channel.

  It equals Caffe's deconvolution by the product of two triangles, cut at an offset. A kernel of odd
  size is centred on a pixel.

  Args:
    sides: H and W.
    stride: pixels between two cells.
    kernel_px: side of the kernel, 2 * stride - 1 or 2 * stride.
    crop_px: pixels cut off at the top and at the left.
  """

  def run(form: Callable[..., Array], x: Array) -> Array:
    return form(x, sides, stride=stride, kernel_px=kernel_px, crop_px=crop_px)

  products = functools.partial(run, upsampling.by_products)
  return _by_platform(
    x, cpu=products, tpu=products, gpu=functools.partial(run, upsampling.by_blends)
  )


@jax.custom_vjp
def relu(x: Array) -> Array:
  """Returns max(x, 0) of `[...]`; the backward pass needs only the result."""
  return _cut(x)[0]


def _cut(x: Array) -> tuple[Array, Array]:
  def alone(x: Array) -> Array:  # without the barrier both sides of the cut would be kept
    return lax.optimization_barrier(nn.relu(x))

  y = _by_platform(x, cpu=nn.relu, tpu=nn.relu, gpu=alone)
  return y, y


def _pass_positive(y: Array, gradient: Array) -> tuple[Array]:
  return (jnp.where(y > 0, gradient, 0),)


relu.defvjp(_cut, _pass_positive)


@jax.custom_vjp
def add_bias(x: Array, bias: Array) -> Array:
  """Adds a bias `[C]` to `[..., C]` in the type of `x`; its gradient is summed in float32."""
  return x + bias.astype(x.dtype)


def _add_bias_forward(x: Array, bias: Array) -> tuple[Array, None]:
  return add_bias(x, bias), None


def _add_bias_backward(_: None, gradient: Array) -> tuple[Array, Array]:
  axes = tuple(range(gradient.ndim - 1))
  return gradient, jnp.sum(gradient, axes, dtype=jnp.float32)


add_bias.defvjp(_add_bias_forward, _add_bias_backward)


def _by_platform(
  *operands: Array,
  cpu: Callable[..., Array],
  tpu: Callable[..., Array],
  gpu: Callable[..., Array],
) -> Array:
  """Runs the form of the platform that the program is compiled for; the GPU's on unknown ones."""
  y: Array = lax.platform_dependent(*operands, cpu=cpu, tpu=tpu, default=gpu)
  return y


class Convolution(nn.Module):
  """A convolution. Parameters: `kernel` `[k, k, in / groups, features]`, `bias`."""

  features: int
  kernel_px: int
  kernel_init: nn.initializers.Initializer
  bias_init: nn.initializers.Initializer
  stride: int = 1
  padding: int = 0
  groups: int = 1
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: Array) -> tuple[Array, Array]:
    """Returns the maps `[B, oh, ow, features]` without their bias, and the bias, float32."""
    shape = (self.kernel_px, self.kernel_px, x.shape[-1] // self.groups, self.features)
    kernel = self.param('kernel', self.kernel_init, shape).astype(self.dtype)
    bias = self.param('bias', self.bias_init, (self.features,))
    maps = convolution(
      x.astype(self.dtype), kernel, stride=self.stride, padding=self.padding, groups=self.groups
    )
    return maps, bias


class Dense(nn.Module):
  """A fully connected layer. Parameters: `kernel` `[in, features]`, `bias`.

  Attributes:
    kernel_px: side of the window that slides over maps `[B, h, w, C]`; the layer sees its values
      row by row. 1: the layer sees the last axis alone.
  """

  features: int
  kernel_init: nn.initializers.Initializer
  bias_init: nn.initializers.Initializer
  dtype: jnp.dtype = jnp.float32
  kernel_px: int = 1

  @nn.compact
  def __call__(self, x: Array) -> Array:
    side = self.kernel_px
    kernel = self.param('kernel', self.kernel_init, (side**2 * x.shape[-1], self.features))
    bias = self.param('bias', self.bias_init, (self.features,))
    x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
    if side == 1:
      return add_bias(x @ kernel, bias)
    window = kernel.reshape(side, side, x.shape[-1], self.features)
    return add_bias(convolution(x, window, stride=1, padding=0, groups=1), bias)
