"""The one training loop. It knows nothing of puzzles: a `Task` provides everything."""

import contextlib
import functools
import pathlib
from typing import Any

import jax
import ml_collections

from cfn_jax import places, terminal
from cfn_jax.buckets import addresses
from cfn_jax.training import (
  checkpoint,
  devices,
  distributed,
  finite,
  metrics,
  plateau,
  profile,
  provenance,
  scoring,
  settings,
  step_folders,
  stopping,
)
from cfn_jax.training import state as states
from cfn_jax.training import task as tasks


def run(
  task: tasks.Task, config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> dict[str, Any]:
  """Prints what is about to run, and trains; see `fit`."""
  provenance.show_summary(task.summary, workdir)
  return fit(task, config, workdir)


def fit(
  task: tasks.Task, config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> dict[str, Any]:
  """Trains to `config.num_steps`, from the newest good checkpoint of the workdir, if there is one.

  Returns the last figures; empty if the run had finished before. Raises BatchError for a batch that
  the devices cannot share, LockedError if another run uses the workdir, CheckpointError if the
  workdir holds another run or cannot hold this one, NonFiniteError, and Stopped after a signal.
  """
  mesh = settings.make_mesh(config)
  with contextlib.ExitStack() as stack:
    stop = stack.enter_context(stopping.Stopping())
    stack.enter_context(distributed.hold_workdir(workdir, _say))
    saver = stack.enter_context(_open_checkpoints(task, config, workdir))
    _check_lost(config, workdir)
    state, train_step = settings.start(task, config, mesh)
    begun = saver.resume(
      _fingerprint(task, config),
      state,
      start_over=config.start_over,
      init_from='init_from' in config,
    )
    first, state, row = begun.step, begun.state, dict(begun.meta.get('unevaluated', {}))
    if row and stopping.any_host(saver.is_scored(first)):  # by a start after the one that saved it
      row = {}
    for note in begun.notes:
      _say(note)
    changes = checkpoint.say_changes(begun.meta, config.to_dict()) if first else ''
    if first >= config.num_steps and not row:
      if not all((workdir / name).exists() for name in task.end_pictures):  # ended before that
        _draw_end(task, workdir, saver, state)
      if changes:
        _say(f'{addresses.show(workdir)} ended at step {first}: nothing more is trained{changes}')
      return {}
    evaluate = scoring.make_evaluate(task, mesh)
    writer = stack.enter_context(_open_writer(task, config, workdir, first - bool(row)))
    batches = stack.enter_context(contextlib.closing(task.train_batches(first, config.num_steps)))
    arriving = devices.put_ahead(batches, mesh)
    watch, wait_for_older = metrics.Stopwatch(), devices.InFlight()
    trace = stack.enter_context(_open_profiler(config, workdir))
    check_finite = _watch_finite(task, config, workdir, saver, writer, begun.meta)
    report: dict[str, jax.Array] = {}
    _open_workdir(task, config, workdir, fresh=first == 0)
    if first:
      writer.say(f'resuming from step {first}{changes}')

    for step in range(first, config.num_steps + 1):
      fresh, last = step > first, step == config.num_steps
      due = last or step % config.eval_every_steps == 0 if fresh else bool(row)
      stopped = stop()

      # ---- evaluate
      with watch.paused():
        figures = None if stopped or not due else evaluate(state, stop)
        stopped = stopped or (due and figures is None)
        left = {'step': step} | row if due and figures is None else {}  # to the next start
        if figures is not None:
          row = {'step': step} | row | figures
        if row and not left:
          writer.write(row)

      # ---- save
      with watch.paused():
        wanted = last or stopped or step % config.checkpoint_every_steps == 0
        if (wanted or task.ranked_by in row) and (fresh or due):
          check_finite(report, step, ends=False)
          saver.save(step, state, _describe(task, config, left, check_finite.count), row)
      if stopped:
        raise stop.make_error(_say_stopped(step, workdir))
      if last:
        break

      # ---- take the batch
      with watch.waiting():
        batch = next(arriving)

      # ---- step
      state, report = train_step(state, batch)
      wait_for_older(report)
      trace(report)
      if not fresh:  # the first step was a compilation
        jax.block_until_ready(report)
        watch.restart()
        writer.begin(step + 1)

      # ---- log
      row = {}
      ends = (step + 1) % config.log_every_steps == 0
      if ends or step + 1 == config.num_steps:
        bad_steps = check_finite(report, step + 1, ends=ends)
        row = {'step': step + 1} | task.report(_read(report)) | watch.figures(task.examples)
        if config.on_nonfinite == 'skip':
          row['skipped_steps'] = bad_steps
        watch.restart()

    if stop():
      raise stop.make_error(_say_stopped(step, workdir))
    _draw_end(task, workdir, saver, state)
  return row


def _open_checkpoints(
  task: tasks.Task, config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> checkpoint.Checkpoints:
  return checkpoint.Checkpoints(
    workdir, keep_latest=config.keep_latest, keep_best=config.keep_best, best=task.best
  )


def _check_lost(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> None:
  """Refuses to start again if checkpoints are missing, see `step_folders.check_lost`."""
  if config.start_over:
    return
  rows = metrics.read_rows(workdir / 'metrics.jsonl')
  before = places.read_json(workdir / 'config.json')  # the run may have had other periods
  names = ('checkpoint_every_steps', 'eval_every_steps')
  period = max(min(each.get(name, 0) for name in names) for each in (config, before))
  step_folders.check_lost(
    workdir / 'checkpoints',
    logged=max((row['step'] for row in rows), default=0),
    # The row of the second save is written before the first one is waited for.
    unsaved=2 * period,
  )


def _open_profiler(config: ml_collections.ConfigDict, workdir: pathlib.Path) -> profile.Profiler:
  steps = config.profile_steps if jax.process_index() == 0 else 0
  return profile.Profiler(workdir / 'profile', start=config.profile_start_step, steps=steps)


def _open_writer(
  task: tasks.Task, config: ml_collections.ConfigDict, workdir: pathlib.Path, first: int
) -> metrics.Writer:
  return metrics.Writer(
    workdir,
    start_step=first,
    num_steps=config.num_steps,
    notice=plateau.Plateau(
      task.chance_loss,
      config.plateau_warning_steps,
      margin=task.chance_margin or plateau.MARGIN,
      advice=task.chance_advice,
    ).check,
    enabled=jax.process_index() == 0,
  )


def _read(report: dict[str, jax.Array]) -> dict[str, float]:
  return {name: float(value) for name, value in jax.device_get(report).items()}


def _watch_finite(
  task: tasks.Task,
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  saver: checkpoint.Checkpoints,
  writer: metrics.Writer,
  meta: dict[str, Any],
) -> finite.Watch:
  return finite.Watch(
    task,
    workdir,
    choice=config.on_nonfinite,
    limit=config.nonfinite_limit,
    count=meta.get('skipped_steps', 0),
    newest=saver.newest,
    draw=functools.partial(_draw, task, 'bad_batch'),
    say=writer.say,
  )


def _describe(
  task: tasks.Task, config: ml_collections.ConfigDict, unevaluated: dict[str, Any], skipped: int
) -> dict[str, Any]:
  """Returns the values saved beside the state; `unevaluated`: the row of a step to evaluate."""
  return {
    **task.meta,
    'task': task.name,
    'best': task.best,
    'commit': provenance.find_commit(),
    'fingerprint': _fingerprint(task, config),
    'config': config.to_dict(),
    'unevaluated': unevaluated,
    'skipped_steps': skipped,
  }


def _fingerprint(task: tasks.Task, config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the fingerprint of the task and the solver, whose state depends on its kind."""
  return {**task.fingerprint, 'solver': config.solver}


def _say(message: str) -> None:
  if jax.process_index() == 0:
    terminal.say(message)


def _say_stopped(step: int, workdir: pathlib.Path) -> str:
  if not step:
    return 'stopped before the first step; the same command starts again'
  where = addresses.show(workdir)
  return f'stopped after step {step}, which is saved in {where}; the same command resumes there'


def _open_workdir(
  task: tasks.Task, config: ml_collections.ConfigDict, workdir: pathlib.Path, *, fresh: bool
) -> None:
  if jax.process_index() == 0:
    places.write_json(workdir / 'config.json', config.to_dict(), indent=2)
  task.write_files(workdir)
  if fresh:
    _draw(task, 'start', workdir)


def _draw_end(
  task: tasks.Task, workdir: pathlib.Path, saver: checkpoint.Checkpoints, state: states.State
) -> None:
  """Draws the last pictures with the best saved parameters."""
  step, best, notes = saver.restore_best(state)
  for note in notes:
    _say(note)
  _draw(task, 'end', workdir, jax.device_get(best.params), step)


def _draw(task: tasks.Task, name: str, *arguments: Any) -> None:
  if jax.process_index() == 0 and name in task.pictures:
    task.pictures[name](*arguments)
