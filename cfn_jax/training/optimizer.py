"""The solvers, as chains of optax: Caffe's SGD, optax's, AdamW. Each step passes its rate.

Source: Caffe's `sgd_solver.cpp` and the `lr_mult` and `decay_mult` of the AlexNet prototxts.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from cfn_jax.errors import CfnError

SOLVERS = ('caffe', 'optax', 'adamw')
SCHEDULES = ('step', 'cosine')


def make_schedule(
  name: str,
  *,
  learning_rate: float,
  num_steps: int,
  decay_steps: int,
  decay_factor: float,
  warmup_steps: int,
) -> optax.Schedule:
  """Returns the learning rate of a step, counted from 0.

  `step`: Caffe's, learning_rate * decay_factor ** floor(step / decay_steps). `cosine`: from
  learning_rate to 0 over `num_steps`. Over the first `warmup_steps` it rises linearly (0: off).
  """
  if name not in SCHEDULES:
    raise CfnError(f"schedule = '{name}' is unknown: one of {', '.join(SCHEDULES)}")
  if name == 'step' and decay_steps < 1:
    raise CfnError(f'decay_steps = {decay_steps}: at least 1')
  if name == 'step':
    drops = optax.exponential_decay(learning_rate, 1, decay_factor)

    def rate(step: Any) -> Any:
      return drops(step // decay_steps)  # in integers: a float's floor would drop some late
  else:
    rate = optax.cosine_decay_schedule(learning_rate, num_steps)
  if not warmup_steps:
    return rate
  rise = optax.linear_schedule(1 / warmup_steps, 1.0, warmup_steps - 1)
  return lambda step: rate(step) * rise(step)


def label_parameters(params: Any, *, locked: tuple[str, ...] = ()) -> Any:
  """Labels each parameter `weight`, `bias`, or `locked` if `locked` names its layer."""

  def label(path: tuple[Any, ...], _: Any) -> str:
    names = [entry.key for entry in path]
    return 'locked' if names[0] in locked else 'bias' if names[-1] == 'bias' else 'weight'

  return jax.tree_util.tree_map_with_path(label, params)


def check_solver(name: str) -> None:
  """Raises CfnError for an unknown solver."""
  if name not in SOLVERS:
    raise CfnError(f"solver = '{name}' is unknown: one of {', '.join(SOLVERS)}")


def make_solver(
  name: str,
  labels: Any,
  *,
  momentum: float,
  weight_decay: float,
  bias_rate: float,
  bias_decay: float,
  clip_gradients: float = 0.0,
) -> optax.GradientTransformationExtraArgs:
  """Builds a solver whose `update` takes the step's learning rate as `rate`.

  It does not count steps for the rate, so a skipped step may leave it unchanged.

  `caffe`: g += decay * w; v = momentum * v + rate * g; w -= v. The rate is inside the velocity, so
  after a drop earlier gradients keep their old rate. `optax`: the rate multiplies the velocity from
  outside. `adamw`: decay beside Adam's step, whose first average has `momentum` and the second
  0.999.

  Args:
    labels: each parameter's kind: 'weight', 'bias' or 'locked'. A bias takes `bias_rate` times the
      rate and `bias_decay` times the decay (Caffe's AlexNet: 2 and 0). Locked parameters take
      neither step nor decay.
    clip_gradients: raw gradients are first scaled down to this joint norm; 0: off.
  """
  check_solver(name)

  def make(factor: float, decay: float) -> optax.GradientTransformation:
    decays = optax.add_decayed_weights(decay) if decay else optax.identity()
    velocity, scale = optax.trace(momentum), _scale_by_rate(-factor)
    parts = {
      'caffe': (decays, scale, velocity),
      'optax': (decays, velocity, scale),
      'adamw': (optax.scale_by_adam(momentum), decays, scale),
    }
    return optax.chain(*parts[name])

  kinds = {
    'weight': make(1.0, weight_decay),
    'bias': make(bias_rate, weight_decay * bias_decay),
    'locked': optax.set_to_zero(),
  }
  clip = optax.clip_by_global_norm(clip_gradients) if clip_gradients else optax.identity()
  return optax.chain(clip, optax.partition(kinds, labels))


def _scale_by_rate(factor: float) -> optax.GradientTransformationExtraArgs:
  """Multiplies updates by a factor and the step's rate."""

  def update(
    updates: Any, state: optax.EmptyState, params: Any = None, *, rate: Any, **others: Any
  ) -> tuple[Any, optax.EmptyState]:
    return jax.tree.map(lambda g: jnp.asarray(rate * factor, g.dtype) * g, updates), state

  return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
