"""What a run carries from step to step, and the compiled step that carries it."""

import zlib
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from cfn_jax.training import task as tasks


@flax.struct.dataclass
class State:
  """All that a checkpoint holds.

  Attributes:
    step: int32, steps done.
    params: float32 parameters.
    optimizer: the optimizer's state.
    totals: the task's sums since the last logged step.
    bad_steps: int32, steps since the last logged one whose loss or gradient was not finite.
    bad_step: int32, the first of them; -1 while there is none.
  """

  step: Any
  params: Any
  optimizer: Any
  totals: dict[str, Any]
  bad_steps: Any
  bad_step: Any


Step = Callable[[State, tasks.Batch], tuple[State, dict[str, jax.Array]]]


def init_state(task: tasks.Task, optimizer: optax.GradientTransformation, params: Any) -> State:
  """Builds the state of step 0."""
  totals = {name: np.zeros((), np.float32) for name in task.totals}
  none_yet = np.array(-1, np.int32)
  return State(
    np.array(0, np.int32), params, optimizer.init(params), totals, np.array(0, np.int32), none_yet
  )


def make_step(
  task: tasks.Task,
  optimizer: optax.GradientTransformation,
  schedule: Callable[[jax.Array], jax.Array],
  *,
  seed: int,
  log_every: int,
) -> Step:
  """Builds the function of one step, to be compiled: (state, batch) to (state, report).

  The report holds the sums since the last logged step and the step's learning rate. A step whose
  loss or gradient is not finite changes no parameter; it is counted.
  """
  root = jax.random.fold_in(jax.random.key(seed), zlib.crc32(task.name.encode()))

  def step(state: State, batch: tasks.Batch) -> tuple[State, dict[str, jax.Array]]:
    key = jax.random.fold_in(root, state.step)
    descend = jax.value_and_grad(task.loss, has_aux=True)
    (loss, sums), gradients = descend(state.params, batch, key)
    updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
    finite = jnp.isfinite(loss) & jnp.isfinite(optax.global_norm(gradients))
    new = optax.apply_updates(state.params, updates), optimizer_state
    old = state.params, state.optimizer
    params, optimizer_state = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

    restart = state.step % log_every == 0
    totals = jax.tree.map(lambda a, b: jnp.where(restart, 0, a) + b, state.totals, sums)
    bad_steps = jnp.where(restart, 0, state.bad_steps) + ~finite
    first = jnp.where(restart, -1, state.bad_step)
    bad_step = jnp.where(finite | (first >= 0), first, state.step)
    report = {
      **totals,
      'bad_steps': bad_steps,
      'bad_step': bad_step,
      'learning_rate': schedule(state.step),
    }
    return State(state.step + 1, params, optimizer_state, totals, bad_steps, bad_step), report

  return step
