"""Images as a network wants them, prepared on the device: `InputRecord.prepare` in JAX.

Views uint8 RGB -> (here) -> float32 -> the network. A record travels with the weights.
"""

import jax
import jax.numpy as jnp

from cfn_jax.transfer import weights as weights_lib

FLAT = 1e-6  # a variance below this is the rounding of a flat image


def prepare(images: jax.Array, record: weights_lib.InputRecord) -> jax.Array:
  """Prepares uint8 RGB `[..., H, W, 3]` to float32 of the same shape, in the wanted channel order.

  An image (a tile) without contrast becomes zeros where it is normalised by its own figures.
  """
  x = jnp.asarray(images, jnp.float32)
  if record.channels == 'bgr':
    x = x[..., ::-1]
  scale = jnp.asarray(record.scale, jnp.float32)
  if not record.normalization:
    return (x - jnp.asarray(record.mean, jnp.float32)) * scale
  axes = (-3, -2, -1) if record.normalization == 'tile' else (-3, -2)
  x = x - x.mean(axes, keepdims=True)
  if record.normalization == 'mean':
    return x * (scale / record.std)
  variance = jnp.square(x).mean(axes, keepdims=True)
  flat = variance < FLAT
  return jnp.where(flat, 0, x * jax.lax.rsqrt(jnp.where(flat, 1, variance))) * scale
