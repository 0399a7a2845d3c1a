"""Data-dependent initial values (Kraehenbuehl et al., magic_init), before the first step.

'fresh': each drawn layer gets outputs of variance 1 and mean 0.1 per channel on some training
images; loaded layers stay. 'calibrated': then all layers are rescaled so that their gradients,
relative to their weights, are equally large; the outputs keep their scale. It is for tasks that
fine-tune on few images, such as VOC classification: rival methods are published with it.
"""

import dataclasses
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from cfn_jax.data import pipeline, views
from cfn_jax.errors import CfnError
from cfn_jax.evaluation.finetuning import start
from cfn_jax.models import layers as layer_lib
from cfn_jax.training import devices
from cfn_jax.transfer import weights as weights_lib

Params = start.Params
KINDS = ('fresh', 'calibrated')
BATCHES, BATCH = 10, 16  # training images to measure on
MEAN = 0.1  # of each output, before its ReLU
ROUNDS = 10
CLOSE = 0.01  # their logarithms agree within 1 %
SEED_STREAM = zlib.crc32(b'magic_init')


def check(kind: str) -> None:
  """Raises CfnError for an unknown kind; '' is off."""
  if kind and kind not in KINDS:
    raise CfnError(f"magic_init = '{kind}' is unknown: one of {', '.join(KINDS)}, or ''")


def add(made: start.Made, kind: str, reader: pipeline.Reader, *, seed: int) -> start.Made:
  """Returns the network with rescaled initial values."""

  def rescale(params: Params) -> Params:
    whole = views.MakeViews('whole', made.view_px, 0, 'squash', mirror=False)
    count = min(BATCHES * BATCH, len(reader.source))
    images = np.stack([whole(reader.evaluate(index))['image'] for index in range(count)])
    params = rescale_fresh(made, params, images, seed=seed)
    params = calibrate(made, params, images, seed=seed) if kind == 'calibrated' else params
    return devices.take_first(params)  # those of a GPU may differ in the last bit

  return dataclasses.replace(made, rescale=rescale)


def _layers(params: Params) -> list[str]:
  return [name for name in weights_lib.LAYERS if name in params]


def rescale_fresh(made: start.Start, params: Params, images: np.ndarray, *, seed: int) -> Params:
  """Draws each layer that is not loaded from N(0, 1), and normalises its outputs.

  Args:
    images: uint8 views `[n, px, px, 3]`.

  Returns:
    The parameters, whose fresh layers have outputs (before the ReLU) of mean 0.1 and variance 1,
    each channel over images and places.
  """
  see = jax.jit(
    lambda params, batch, name: see_layer(made, params, batch, name)[1], static_argnames='name'
  )
  params = dict(params)
  for name in _layers(params):
    if name in made.loaded:
      continue
    rng = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(name.encode()) ^ SEED_STREAM]))
    kernel = rng.standard_normal(params[name]['kernel'].shape, np.float32)
    params[name] = {'kernel': kernel, 'bias': np.zeros_like(params[name]['bias'])}
    total, squares, count = 0.0, 0.0, 0
    for batch in _batches(images):
      outputs = np.asarray(see(params, batch, name=name), np.float64).reshape(-1, kernel.shape[-1])
      total, squares = total + outputs.sum(0), squares + np.square(outputs).sum(0)
      count += len(outputs)
    mean = total / count
    std = np.sqrt(np.maximum(0, squares / count - mean**2))
    std = np.where(std > 1e-12, std, 1)
    params[name] = {
      'kernel': (kernel / std).astype(np.float32),
      'bias': (MEAN - mean / std).astype(np.float32),
    }
  return params


def _batches(images: np.ndarray) -> list[np.ndarray]:
  return [images[start : start + BATCH] for start in range(0, len(images), BATCH)]


def see_layer(
  made: start.Start, params: Any, images: jax.Array, name: str
) -> tuple[jax.Array, jax.Array]:
  """Returns the mean magnitude `[]` of a layer's inputs, and its outputs `[B, ...]` before ReLU."""
  seen = []

  def see(run: Any, arguments: Any, keywords: Any, context: nn.module.InterceptorContext) -> Any:
    outputs = run(*arguments, **keywords)
    if context.module.name == name and context.method_name == '__call__':
      seen.append((jnp.mean(jnp.abs(arguments[0])), outputs))
    return outputs

  with nn.intercept_methods(see):
    made.logits(params, images)
  size, outputs = seen[0]
  return size, layer_lib.add_bias(*outputs) if isinstance(outputs, tuple) else outputs  # of a conv


def measure_ratios(
  made: start.Start, params: Params, images: np.ndarray, *, seed: int
) -> tuple[np.ndarray, float]:
  """Returns sqrt(mean gradient^2 / mean weight^2) `[L]` of the layers, and the outputs' deviation.

  The deviation is that of each output over the images, averaged over the outputs. The gradient is
  that of the logits' product with draws of N(0, 1), image by image. Images are `[n, px, px, 3]`.
  """
  layers = _layers(params)

  def squares(params: Any, image: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    def product(params: Any) -> tuple[jax.Array, jax.Array]:
      logits = made.logits(params, image[None])
      return jnp.sum(logits * noise), logits[0]

    gradients, logits = jax.grad(product, has_aux=True)(params)
    return jnp.stack([jnp.mean(jnp.square(gradients[n]['kernel'])) for n in layers]), logits

  run = jax.jit(
    lambda params, images, noise: jax.lax.map(lambda one: squares(params, *one), (images, noise))
  )
  rng = np.random.Generator(np.random.Philox(key=[seed, SEED_STREAM]))
  noise = rng.standard_normal((len(images), len(made.class_names)), np.float32)
  found, logits = run(params, images, noise)
  weights = [np.mean(np.square(params[name]['kernel'], dtype=np.float64)) for name in layers]
  ratios = np.sqrt(np.mean(np.asarray(found, np.float64), axis=0) / np.array(weights))
  return ratios, float(np.mean(np.std(np.asarray(logits, np.float64), axis=0)))


def calibrate(made: start.Start, params: Params, images: np.ndarray, *, seed: int) -> Params:
  """Rescales all layers until their gradients relative to their weights agree.

  There are up to 10 rounds on images `[n, px, px, 3]`. With ratios r_l and the outputs' deviation
  s, the target t is the geometric mean of the ratios times s ** (1 / L). From the input up, each
  layer is multiplied by sqrt(r_l / t), and its biases also by the change in the mean magnitude of
  its input. The rounds end once log r_l and log t agree within 1 %.
  """
  layers = _layers(params)
  see = jax.jit(
    lambda params, batch, name: see_layer(made, params, batch, name)[0], static_argnames='name'
  )

  def measure(name: str, params: Params) -> float:
    batches = _batches(images)
    sizes = [float(see(params, batch, name=name)) for batch in batches]
    return float(np.average(sizes, weights=[len(batch) for batch in batches]))

  sizes = {name: measure(name, params) for name in layers}
  for _ in range(ROUNDS):
    ratios, deviation = measure_ratios(made, params, images, seed=seed)
    target = np.exp(np.mean(np.log(ratios))) * deviation ** (1 / len(layers))
    if np.all(np.abs(np.log(ratios) / np.log(target) - 1) < CLOSE):
      break
    params = dict(params)
    for name, factor in zip(layers, np.sqrt(ratios / target)):
      size = measure(name, params)  # the layers below have changed already
      params[name] = {
        'kernel': (params[name]['kernel'] * factor).astype(np.float32),
        'bias': (params[name]['bias'] * factor * size / sizes[name]).astype(np.float32),
      }
      sizes[name] = size
  return params
