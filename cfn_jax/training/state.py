"""The state of a run, and the compiled step that updates it."""

import zlib
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from cfn_jax.errors import CfnError
from cfn_jax.training import task as tasks


@flax.struct.dataclass
class State:
  """The contents of a checkpoint.

  Attributes:
    step: int32, steps done.
    params: float32 parameters.
    ema: the moving average of the parameters; () without one.
    optimizer: the optimizer's state.
    totals: the task's sums since the last logged step.
    bad_steps: int32, steps since the last logged one whose loss or gradient was not finite.
    bad_step: int32, the first of them; -1 without one.
  """

  step: Any
  params: Any
  ema: Any
  optimizer: Any
  totals: dict[str, Any]
  bad_steps: Any
  bad_step: Any


Step = Callable[[State, tasks.Batch], tuple[State, dict[str, jax.Array]]]


def init_state(
  task: tasks.Task, optimizer: optax.GradientTransformation, params: Any, *, averaged: bool = False
) -> State:
  """Builds the state of step 0; `averaged`: with a moving average, which starts as a copy."""
  return State(
    step=np.array(0, np.int32),
    params=params,
    ema=jax.tree.map(np.copy, params) if averaged else (),
    optimizer=jax.device_get(optimizer.init(params)),
    totals={name: np.zeros((), np.float32) for name in task.totals},
    bad_steps=np.array(0, np.int32),
    bad_step=np.array(-1, np.int32),
  )


def make_step(
  task: tasks.Task,
  optimizer: optax.GradientTransformationExtraArgs,
  schedule: optax.Schedule,
  *,
  seed: int,
  log_every: int,
  accumulate_steps: int = 1,
  ema_decay: float = 0.0,
) -> Step:
  """Builds the function of one step, to be compiled: (state, batch) to (state, report).

  The report holds the sums since the last logged step and the step's learning rate. A step whose
  loss or gradient is not finite changes no parameter and no sum. It is counted, and the rate, a
  function of the step, still drops on time.

  Args:
    optimizer: its `update` accepts the rate of the step as `rate`.
    log_every: number of steps after which the sums start again.
    accumulate_steps: number of parts of a batch; their gradients are averaged.
    ema_decay: ema = decay * ema + (1 - decay) * params after each step; 0: no average.
  """
  root = jax.random.fold_in(jax.random.key(seed), zlib.crc32(task.name.encode()))
  descend = _make_descend(task, accumulate_steps)

  def step(state: State, batch: tasks.Batch) -> tuple[State, dict[str, jax.Array]]:
    key = jax.random.fold_in(root, state.step)
    loss, sums, gradients = descend(state.params, batch, key)
    rate = schedule(state.step)
    updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params, rate=rate)
    finite = jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(gradients))
    params = optax.apply_updates(state.params, updates)
    new = params, _average(state.ema, params, ema_decay), optimizer_state
    old = state.params, state.ema, state.optimizer
    kept = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)
    params, ema, optimizer_state = kept

    restart = state.step % log_every == 0
    counted = jax.tree.map(lambda a: jnp.where(finite, a, 0), sums)
    totals = jax.tree.map(lambda a, b: jnp.where(restart, 0, a) + b, state.totals, counted)
    bad_steps = jnp.where(restart, 0, state.bad_steps) + ~finite
    first = jnp.where(restart, -1, state.bad_step)
    bad_step = jnp.where(finite | (first >= 0), first, state.step)
    report = {
      **totals,
      'bad_steps': bad_steps,
      'bad_step': bad_step,
      'learning_rate': rate,
    }
    return State(state.step + 1, params, ema, optimizer_state, totals, bad_steps, bad_step), report

  return step


def check_decay(ema_decay: float) -> None:
  """Raises CfnError for an impossible decay of a moving average."""
  if not 0 <= ema_decay < 1:
    raise CfnError(f'ema_decay = {ema_decay}: at least 0 (off), below 1')


def _average(ema: Any, params: Any, decay: float) -> Any:
  return jax.tree.map(lambda a, b: decay * a + (1 - decay) * b, ema, params) if decay else ema


def _make_descend(
  task: tasks.Task, parts: int
) -> Callable[[Any, tasks.Batch, jax.Array], tuple[jax.Array, tasks.Totals, Any]]:
  """Builds the function of a batch's mean loss, its sums, and the gradient of every parameter."""

  def loss(params: Any, batch: tasks.Batch, key: jax.Array) -> tuple[jax.Array, tasks.Totals]:
    def stop(label: str, leaf: jax.Array) -> jax.Array:
      return jax.lax.stop_gradient(leaf) if label == 'locked' else leaf

    return task.loss(jax.tree.map(stop, task.labels(params), params), batch, key)

  def descend(
    params: Any, batch: tasks.Batch, key: jax.Array
  ) -> tuple[jax.Array, tasks.Totals, Any]:
    (value, sums), gradients = jax.value_and_grad(loss, has_aux=True)(params, batch, key)
    return value, sums, gradients

  def descend_in_parts(
    params: Any, batch: tasks.Batch, key: jax.Array
  ) -> tuple[jax.Array, tasks.Totals, Any]:
    def add(total: Any, part: tuple[jax.Array, tasks.Batch]) -> tuple[Any, None]:
      index, rows = part
      found = descend(params, rows, jax.random.fold_in(key, index))
      return jax.tree.map(jnp.add, total, found), None

    # Dealt out one by one, or in pairs: if a device's rows fill all parts, none of them moves.
    together = 2 if task.pairs else 1
    split = {
      name: rows.reshape(-1, parts, together, *rows.shape[1:])
      .swapaxes(0, 1)
      .reshape(parts, -1, *rows.shape[1:])
      for name, rows in batch.items()
    }
    zero = jax.tree.map(
      lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
      jax.eval_shape(descend, params, {name: rows[0] for name, rows in split.items()}, key),
    )
    (value, sums, gradients), _ = jax.lax.scan(add, zero, (jnp.arange(parts), split))
    return value / parts, sums, jax.tree.map(lambda g: g / parts, gradients)

  return descend_in_parts if parts > 1 else descend
