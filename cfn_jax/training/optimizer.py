"""Stochastic gradient descent as Caffe does it, as one optax GradientTransformation.

Source: Caffe's `sgd_solver.cpp` and the `lr_mult` and `decay_mult` of the AlexNet prototxts.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

ORDERS = ('caffe', 'optax')
SCHEDULES = ('step', 'cosine')

Schedule = Callable[[jax.Array], jax.Array]


class SgdState(NamedTuple):
  """The step number and the velocity of every parameter."""

  count: Any
  velocity: Any


def make_schedule(
  name: str,
  *,
  learning_rate: float,
  num_steps: int,
  decay_steps: int,
  decay_factor: float,
  warmup_steps: int,
) -> Schedule:
  """Returns the learning rate of a step, counted from 0.

  `step`: Caffe's, learning_rate * decay_factor ** floor(step / decay_steps). `cosine`: from
  learning_rate to 0 over `num_steps`. Over the first `warmup_steps` it rises linearly (0: off).
  """
  if name not in SCHEDULES:
    raise ValueError(f"schedule = '{name}' is unknown: one of {', '.join(SCHEDULES)}")
  if name == 'step' and decay_steps < 1:
    raise ValueError(f'decay_steps = {decay_steps}: at least 1')

  def schedule(step: jax.Array) -> jax.Array:
    if name == 'step':
      rate = learning_rate * decay_factor ** (step // decay_steps).astype(jnp.float32)
    else:
      rate = learning_rate * 0.5 * (1 + jnp.cos(jnp.pi * jnp.minimum(step / num_steps, 1)))
    return rate * jnp.minimum(1, (step + 1) / warmup_steps) if warmup_steps else rate

  return schedule


def label_parameters(params: Any, *, locked: tuple[str, ...] = ()) -> Any:
  """Labels each parameter `weight`, `bias`, or `locked` where its layer is named in `locked`."""

  def label(path: tuple[Any, ...], _: Any) -> str:
    names = [entry.key for entry in path]
    return 'locked' if names[0] in locked else 'bias' if names[-1] == 'bias' else 'weight'

  return jax.tree_util.tree_map_with_path(label, params)


def check_order(order: str) -> None:
  """Raises ValueError for an unknown order of the update."""
  if order not in ORDERS:
    raise ValueError(f"solver = '{order}' is unknown: one of {', '.join(ORDERS)}")


def sgd(
  schedule: Schedule,
  labels: Any,
  *,
  momentum: float,
  weight_decay: float,
  bias_rate: float,
  bias_decay: float,
  clip_gradients: float = 0.0,
  order: str = 'caffe',
) -> optax.GradientTransformation:
  """Builds SGD with momentum; `labels` tells each parameter's kind: 'weight', 'bias' or 'locked'.

  With `clip_gradients` the raw gradients are first shrunk to this norm over all of them (0: off).
  Caffe's order: g += decay * w; v = momentum * v + rate * g; w -= v. The rate is inside the
  velocity, so that after a drop the old steps still run out at the old rate; with `order='optax'`
  it multiplies the velocity from outside. A bias takes `bias_rate` times the rate and `bias_decay`
  times the decay (Caffe's AlexNet: 2 and 0). Locked parameters take neither step nor decay.
  """
  check_order(order)
  rates = {'weight': 1.0, 'bias': bias_rate, 'locked': 0.0}
  decays = {'weight': weight_decay, 'bias': weight_decay * bias_decay, 'locked': 0.0}

  def init(params: Any) -> SgdState:
    return SgdState(np.array(0, np.int32), jax.tree.map(np.zeros_like, params))

  def update(gradients: Any, state: SgdState, params: Any = None) -> tuple[Any, SgdState]:
    rate = schedule(state.count)
    if clip_gradients:
      shrink = jnp.minimum(1, clip_gradients / optax.tree.norm(gradients))
      gradients = jax.tree.map(lambda g: shrink * g, gradients)

    def descend(label: str, g: jax.Array, v: jax.Array, w: jax.Array) -> jax.Array:
      if label == 'locked':
        return v
      g = g + decays[label] * w if decays[label] else g
      return momentum * v + (rate * rates[label] * g if order == 'caffe' else g)

    velocity = jax.tree.map(descend, labels, gradients, state.velocity, params)
    if order == 'caffe':
      updates = jax.tree.map(jnp.negative, velocity)
    else:
      updates = jax.tree.map(lambda label, v: -rate * rates[label] * v, labels, velocity)
    return updates, SgdState(state.count + 1, velocity)

  return optax.GradientTransformation(init, update)
