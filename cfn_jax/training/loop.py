"""The one training loop. It knows nothing of puzzles: a `Task` tells it all it needs."""

import collections
import contextlib
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
from jax.sharding import Mesh

from cfn_jax.training import checkpoint, devices, metrics, optimizer
from cfn_jax.training import state as states
from cfn_jax.training import task as tasks


class NonFiniteError(RuntimeError):
  """A loss or gradient is not a number: at which step, with which records, where to go on from."""


def fit(
  task: tasks.Task, config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> dict[str, Any]:
  """Trains to `config.num_steps`, from the newest checkpoint of the workdir where there is one.

  Returns the last figures; empty where the run had finished before. Raises BatchError for a batch
  that the devices cannot share, CheckpointError where the workdir holds another run, and
  NonFiniteError.
  """
  mesh = _make_mesh(config)
  with contextlib.ExitStack() as stack:
    saver = stack.enter_context(_open_checkpoints(task, config, workdir))
    first = saver.find_start(task.fingerprint)
    if first >= config.num_steps:
      if not all((workdir / name).exists() for name in task.end_pictures):  # ended before that
        _draw_end(task, workdir, saver, start(task, config, mesh)[0])
      return {}
    state, train_step = start(task, config, mesh)
    if first:
      state = saver.restore(first, state)
    evaluate = _make_evaluate(task, mesh)
    writer = stack.enter_context(_open_writer(task, config, workdir, first))
    batches = stack.enter_context(contextlib.closing(task.train_batches(first, config.num_steps)))
    arriving = devices.put_ahead(batches, mesh)
    watch, wait_for_older = metrics.Stopwatch(), devices.InFlight()
    row: dict[str, Any] = {}
    report: dict[str, jax.Array] = {}
    _open_workdir(task, workdir, fresh=first == 0)
    if first:
      writer.say(f'continuing from step {first}{saver.changes(first, config.to_dict())}')

    for step in range(first, config.num_steps + 1):
      fresh, last = step > first, step == config.num_steps

      # ---- evaluate
      with watch.paused():
        if fresh and (last or step % config.eval_every_steps == 0):
          row = {'step': step} | row | evaluate(state.params)
        if row:
          writer.write(row)

      # ---- save
      with watch.paused():
        if fresh and (last or task.best in row or step % config.checkpoint_every_steps == 0):
          _check_finite(task, workdir, saver, report, step)
          saver.save(step, state, _describe(task, config), row)
      if last:
        break

      # ---- take the batch
      with watch.waiting():
        batch = next(arriving)

      # ---- step
      state, report = train_step(state, batch)
      wait_for_older(report)
      if not fresh:  # the first step was a compilation
        jax.block_until_ready(report)
        watch.restart()
        writer.begin(step + 1)

      # ---- log
      row = {}
      if (step + 1) % config.log_every_steps == 0 or step + 1 == config.num_steps:
        _check_finite(task, workdir, saver, report, step + 1)
        row = {'step': step + 1} | task.report(_read(report)) | watch.figures(task.examples)
        watch.restart()

    _draw_end(task, workdir, saver, state)
  return row


def check(config: ml_collections.ConfigDict) -> None:
  """Raises ValueError for a solver or batches that no run can have."""
  _make_mesh(config)
  _make_schedule(config)
  optimizer.check_order(config.solver)


def _make_schedule(config: ml_collections.ConfigDict) -> optimizer.Schedule:
  return optimizer.make_schedule(
    config.schedule,
    learning_rate=config.learning_rate,
    num_steps=config.num_steps,
    decay_steps=config.decay_steps,
    decay_factor=config.decay_factor,
    warmup_steps=config.warmup_steps,
  )


def _make_mesh(config: ml_collections.ConfigDict) -> Mesh:
  mesh = devices.make_mesh()
  devices.check_batch(config.batch_size, mesh, field='batch_size')
  devices.check_batch(config.eval_batch_size, mesh, field='eval_batch_size')
  return mesh


def _open_checkpoints(
  task: tasks.Task, config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> checkpoint.Checkpoints:
  return checkpoint.Checkpoints(
    workdir, keep_latest=config.keep_latest, keep_best=config.keep_best, best=task.best
  )


def _open_writer(
  task: tasks.Task, config: ml_collections.ConfigDict, workdir: pathlib.Path, first: int
) -> metrics.Writer:
  return metrics.Writer(
    workdir,
    start_step=first,
    num_steps=config.num_steps,
    chance_loss=task.chance_loss,
    plateau_steps=config.plateau_warning_steps,
    enabled=jax.process_index() == 0,
  )


def start(
  task: tasks.Task, config: ml_collections.ConfigDict, mesh: Mesh
) -> tuple[states.State, Any]:
  """Builds the state of step 0 on the devices, and the step, compiled when it is first called."""
  params = task.init(config.seed)
  schedule = _make_schedule(config)
  sgd = optimizer.sgd(
    schedule,
    task.labels(params),
    momentum=config.momentum,
    weight_decay=config.weight_decay,
    bias_rate=config.bias_rate,
    bias_decay=config.bias_decay,
    order=config.solver,
  )
  state = devices.replicate(states.init_state(task, sgd, params), mesh)
  step = states.make_step(task, sgd, schedule, seed=config.seed, log_every=config.log_every_steps)
  return state, jax.jit(step, donate_argnums=0)


def _make_evaluate(task: tasks.Task, mesh: Mesh) -> Callable[[Any], dict[str, float]]:
  """Builds the function that runs every evaluation of a task on some parameters."""
  compiled = {name: jax.jit(each.measure) for name, each in task.evaluations.items()}

  def evaluate(params: Any) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, evaluation in task.evaluations.items():
      totals: collections.Counter[str] = collections.Counter()
      with contextlib.closing(evaluation.batches()) as batches:
        for batch in devices.put_ahead(batches, mesh):
          totals.update(_read(compiled[name](params, batch)))
      figures |= evaluation.report(totals)
    return figures

  return evaluate


def _read(report: dict[str, jax.Array]) -> dict[str, float]:
  return {name: float(value) for name, value in jax.device_get(report).items()}


def _check_finite(
  task: tasks.Task,
  workdir: pathlib.Path,
  saver: checkpoint.Checkpoints,
  report: dict[str, jax.Array],
  step: int,
) -> None:
  """Stops where a step since the last logged one met a loss or gradient that is not finite."""
  bad = int(report['bad_step'])
  if bad < 0:
    return
  with contextlib.closing(task.train_batches(bad, bad + 1)) as batches:
    _draw(task, 'bad_batch', workdir, next(batches))
  records = task.records(bad)
  saved = saver.latest()
  raise NonFiniteError(
    f'the loss or its gradient is not finite at step {bad} (seen at step {step}); '
    f'{len(records)} records, {", ".join(records[:4])} ...; the batch is drawn in '
    f'{workdir / "bad_batch.png"}; '
    + (f'the last good checkpoint is step {saved}' if saved >= 0 else 'no checkpoint before it')
    + '; a smaller learning_rate is the usual cure'
  )


def _describe(task: tasks.Task, config: ml_collections.ConfigDict) -> dict[str, Any]:
  return {'task': task.name, 'fingerprint': dict(task.fingerprint), 'config': config.to_dict()}


def _open_workdir(task: tasks.Task, workdir: pathlib.Path, *, fresh: bool) -> None:
  if jax.process_index() == 0:
    task.record(workdir)
    if fresh:
      _draw(task, 'start', workdir)


def _draw_end(
  task: tasks.Task, workdir: pathlib.Path, saver: checkpoint.Checkpoints, state: states.State
) -> None:
  """Draws the last pictures with the best parameters that are saved."""
  saver.wait()
  step = saver.best() if saver.best() >= 0 else saver.latest()
  _draw(task, 'end', workdir, jax.device_get(saver.restore(step, state).params), step)


def _draw(task: tasks.Task, name: str, *arguments: Any) -> None:
  if jax.process_index() == 0 and name in task.pictures:
    task.pictures[name](*arguments)
