"""Forms of Caffe's local response normalisation, each with its own backward pass.

Source: `lrn_layer.cpp`: alpha is divided by the window. layers.py chooses.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Form:
  """A way of computing it.

  Attributes:
    by_band: sums over channels are products with a band of ones in the dtype of the network; else
      sums of shifted maps.
    again: the backward pass recomputes the scale from the values for each use. Barriers keep the
      compiler from storing it in float32.
  """

  by_band: bool = False
  again: bool = False


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def normalise(x: Array, window: int, alpha: float, beta: float, form: Form) -> Array:
  """Divides `[..., C]` by (1 + alpha / window * sum of squares over `window` channels) ** beta."""
  return _forward(x, window, alpha, beta, form)[0]


def _forward(
  x: Array, window: int, alpha: float, beta: float, form: Form
) -> tuple[Array, tuple[Array, Array | None]]:
  scale = _find_scale(x, window, alpha, form)
  return (x * _negative_power(scale, beta)).astype(x.dtype), (x, None if form.again else scale)


def _backward(
  window: int,
  alpha: float,
  beta: float,
  form: Form,
  saved: tuple[Array, Array | None],
  gradient: Array,
) -> tuple[Array]:
  x, scale = saved
  if scale is None:
    x = lax.optimization_barrier(x)
    scale = _find_scale(x, window, alpha, form)
  gradient32 = gradient.astype(jnp.float32)
  summands = gradient32 * x.astype(jnp.float32) * _negative_power(scale, beta) / scale
  if form.again:
    x, summands = lax.optimization_barrier((x, summands.astype(x.dtype)))
    scale = _find_scale(x, window, alpha, form)
  shared = _sum_channels(summands.astype(jnp.float32), window, x.dtype, form)
  direct = gradient32 * _negative_power(scale, beta)
  result = direct - 2 * alpha * beta / window * x.astype(jnp.float32) * shared
  return (result.astype(x.dtype),)


normalise.defvjp(_forward, _backward)


def _find_scale(x: Array, window: int, alpha: float, form: Form) -> Array:
  squares = jnp.square(x.astype(jnp.float32))
  return 1 + alpha / window * _sum_channels(squares, window, x.dtype, form)


def _negative_power(scale: Array, beta: float) -> Array:
  if beta == 0.75:  # two square roots are several times faster than a power
    root = lax.rsqrt(scale)
    return root * jnp.sqrt(root)
  return scale**-beta


def _sum_channels(x: Array, window: int, dtype: jnp.dtype, form: Form) -> Array:
  """Sums float32 `[..., C]` over `window` neighbouring channels, zero padded, in float32.

  Args:
    dtype: that of the network; a band in bfloat16 rounds the summands.
  """
  channels, half = x.shape[-1], window // 2
  if form.by_band:
    offsets = np.arange(channels)[:, None] - np.arange(channels)  # [in, out]
    band = jnp.asarray((offsets >= -half) & (offsets < window - half), dtype)
    # By default a TPU multiplies float32 in bfloat16.
    exact = lax.Precision.HIGHEST if dtype == jnp.float32 else None
    return jnp.matmul(x.astype(dtype), band, precision=exact, preferred_element_type=jnp.float32)
  padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, window - 1 - half)])
  return functools.reduce(
    jnp.add, [lax.slice_in_dim(padded, i, i + channels, axis=-1) for i in range(window)]
  )
