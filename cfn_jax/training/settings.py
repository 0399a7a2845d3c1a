"""Reads the loop's fields of a config, checks them, and makes devices, schedule, state and step."""

from typing import Any

import jax
import ml_collections
import optax
from jax.sharding import Mesh

from cfn_jax import fields
from cfn_jax.training import devices, finite, optimizer, profile
from cfn_jax.training import state as states
from cfn_jax.training import task as tasks

# Limits of the numbers that the loop, the step and the solver read and nothing else checks.
LIMITS = {
  'batch_size': (1, 2**20),
  'num_steps': (1, 2**31 - 2),
  'log_every_steps': (1, 2**31 - 2),
  'eval_every_steps': (1, 2**31 - 2),
  'checkpoint_every_steps': (1, 2**31 - 2),
  'keep_latest': (1, 10**6),
  'keep_best': (0, 10**6),
  'plateau_warning_steps': (0, 2**31 - 2),
  'learning_rate': (1e-12, 1e30),
  'decay_factor': (1e-12, 1),
  'warmup_steps': (0, 2**31 - 2),
  'momentum': (0, 0.99999),
  'weight_decay': (0, 1),
  'bias_rate': (0, 1e6),
  'bias_decay': (0, 1e6),
  'clip_gradients': (0, 1e30),
}


def check(config: ml_collections.ConfigDict) -> None:
  """Raises ValueError for an impossible solver or batch size."""
  fields.check_numbers(config, LIMITS)
  make_mesh(config)
  make_schedule(config)
  optimizer.check_solver(config.solver)
  states.check_decay(config.ema_decay)
  profile.check(start=config.profile_start_step, steps=config.profile_steps)
  finite.check_choice(config.on_nonfinite, config.nonfinite_limit)


def make_schedule(config: ml_collections.ConfigDict) -> optax.Schedule:
  return optimizer.make_schedule(
    config.schedule,
    learning_rate=config.learning_rate,
    num_steps=config.num_steps,
    decay_steps=config.decay_steps,
    decay_factor=config.decay_factor,
    warmup_steps=config.warmup_steps,
  )


def make_mesh(config: ml_collections.ConfigDict) -> Mesh:
  mesh = devices.make_mesh(config.num_devices)
  parts = config.accumulate_steps
  devices.check_batch(config.batch_size, mesh.size, field='batch_size', parts=parts)
  devices.check_batch(config.eval_batch_size, mesh.size, field='eval_batch_size')
  return mesh


def start(
  task: tasks.Task, config: ml_collections.ConfigDict, mesh: Mesh
) -> tuple[states.State, Any]:
  """Builds the state of step 0 on the devices, and the step, which compiles at its first call."""
  state, step = make_step(task, config)
  return devices.replicate(state, mesh), step


def make_step(task: tasks.Task, config: ml_collections.ConfigDict) -> tuple[states.State, Any]:
  """Builds the state of step 0 on the host, and the step, to be compiled."""
  params = task.init(config.seed)
  schedule = make_schedule(config)
  solver = optimizer.make_solver(
    config.solver,
    task.labels(params),
    momentum=config.momentum,
    weight_decay=config.weight_decay,
    bias_rate=config.bias_rate,
    bias_decay=config.bias_decay,
    clip_gradients=config.clip_gradients,
  )
  averaged = config.ema_decay > 0
  state = states.init_state(task, solver, params, averaged=averaged)
  step = states.make_step(
    task,
    solver,
    schedule,
    seed=config.seed,
    log_every=config.log_every_steps,
    accumulate_steps=config.accumulate_steps,
    ema_decay=config.ema_decay,
  )
  return state, jax.jit(step, donate_argnums=0)
