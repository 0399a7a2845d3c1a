"""Checkpoints of a run: the newest and the best ones, kept apart, saved while training continues.

`<workdir>/checkpoints/<step>/` holds `state` (arrays, Orbax), `meta` (JSON: fingerprint, config,
digests of the arrays) and, once evaluated, `metrics` (JSON). A step is there whole or not at all,
since it is written under another name first. A damaged one is renamed, never deleted. Where the
workdir stands for an address in a bucket, the first host alone writes, and what it wrote is sent
there (mirror.py); the other hosts fetch what they read.
"""

import concurrent.futures
import contextlib
import dataclasses
import gc
import math
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from cfn_jax.buckets import addresses, objects, reading
from cfn_jax.training import digests, mirror, step_folders, store_errors
from cfn_jax.training.fingerprints import check_fingerprint, say_changes
from cfn_jax.training.step_folders import CheckpointError, DamagedError

__all__ = [
  'CheckpointError',
  'Checkpoints',
  'DamagedError',
  'Start',
  'check_fingerprint',
  'say_changes',
]

DELETING = 'deleting_'


@dataclasses.dataclass(frozen=True)
class Start:
  """Where a run resumes.

  Attributes:
    step: 0 in a new workdir.
    state: that of the step; the one given for step 0.
    meta: what was saved with it; empty for step 0.
    notes: what was wrong with later steps, a line each.
  """

  step: int
  state: Any
  meta: dict[str, Any]
  notes: list[str]


class Checkpoints:
  """The checkpoints of one workdir. Close it, or use it as a context: saves run in the background.

  Args:
    workdir: absolute folder of the run.
    keep_latest: how many of the newest steps stay.
    keep_best: how many of the best by `best` stay besides them.
    best: the figure that decides, see `Task.best`.
  """

  def __init__(self, workdir: pathlib.Path, *, keep_latest: int, keep_best: int, best: str) -> None:
    self.folder = workdir / 'checkpoints'
    self._keep_latest, self._keep_best, self._best = keep_latest, keep_best, best
    self._saving = -1
    self.folder.mkdir(parents=True, exist_ok=True)
    self._quiet = contextlib.ExitStack()
    self._quiet.enter_context(store_errors.quiet_threads())
    self._mirror = mirror.find(workdir)
    self._writes = not (self._mirror and jax.process_index())
    self._writer = digests.open_writer(alone=bool(self._mirror))
    self._sender = concurrent.futures.ThreadPoolExecutor(1)
    self._sending: concurrent.futures.Future[None] | None = None

  def __enter__(self) -> 'Checkpoints':
    return self

  def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
    lost = kind is not None and issubclass(kind, jax.errors.JaxRuntimeError)
    if lost and jax.process_count() > 1 and not self._mirror:
      return  # a save ends when all hosts have saved, and one of them may be gone
    try:
      self.wait()
      if kind is None and jax.process_count() > 1 and not self._mirror:
        multihost_utils.sync_global_devices('all hosts have read their best step')
      self._prune()
      if self._mirror and kind is None:
        self._share(self._mirror)
    finally:
      self._writer.close()
      self._sender.shutdown()
      self._quiet.close()

  def wait(self) -> None:
    """Returns once every save is on the disk, and in the bucket where the run lives in one.

    Raises:
      CheckpointError: one of them is not.
    """
    sending, self._sending = self._sending, None
    self._guard(sending.result if sending else self._writer.wait_until_finished)

  def steps(self) -> list[int]:
    """Returns the steps on the disk, the newest last."""
    return step_folders.find_steps(self.folder)

  def latest(self) -> int:
    """Returns the newest step, -1 where there is none."""
    return max(self.steps(), default=-1)

  def newest(self) -> int:
    """Returns the newest step once every save is on the disk, -1 where there is none."""
    self.wait()
    return self.latest()

  def best(self) -> int:
    """Returns the best step (the latest of equals), -1 where no step on the disk was evaluated."""
    return next(iter(self._ranked()), -1)

  def is_scored(self, step: int) -> bool:
    """Returns whether a step on the disk was evaluated."""
    return not math.isnan(step_folders.read_score(self.folder / str(step), self._best))

  def meta(self, step: int) -> dict[str, Any]:
    """Reads the JSON of a step, see `step_folders.read_meta`."""
    with reading.named():
      return step_folders.read_meta(self.folder / str(step))

  def restore(self, step: int, target: Any) -> Any:
    """Reads a step's arrays, see `step_folders.read_state`."""
    with reading.named():
      return step_folders.read_state(self.folder / str(step), target)

  def resume(
    self,
    fingerprint: Mapping[str, Any],
    target: Any,
    *,
    start_over: bool,
    init_from: bool = False,
  ) -> Start:
    """Finds the newest good step, restores it, and renames the damaged ones after it.

    Args:
      fingerprint: what the run may not change.
      target: the state of step 0: structure, shapes, types and shardings.
      start_over: begin at step 0 where every step is damaged.
      init_from: the config has this field, see `check_fingerprint`.

    Raises:
      CheckpointError: the newest step whose settings can be read was made with others, or holds
        other arrays; or every step is damaged.
    """
    found = sorted(path.name for path in self.folder.glob(f'*{step_folders.UNFINISHED}*'))
    notes = [f'{self.folder / name}: an unfinished save, passed over' for name in found]
    damaged: dict[int, str] = {}
    start = Start(0, target, {}, notes)
    for step in reversed(self.steps()):
      try:
        meta = self.meta(step)
        where = addresses.show(self.folder / str(step))
        check_fingerprint(meta['fingerprint'], fingerprint, where=where, init_from=init_from)
        start = Start(step, self.restore(step, target), meta, notes)
        break
      except DamagedError as error:
        damaged[step] = str(error)
    if damaged and not start.meta and not start_over:
      raise CheckpointError(
        'every checkpoint is damaged; --config.start_over=True sets them aside and begins at step '
        '0:',
        *(f'  {why}' for why in damaged.values()),
      )
    if jax.process_count() > 1:
      multihost_utils.assert_equal(start.step, 'the hosts can read different checkpoints')
    for step, why in damaged.items():
      self._set_aside(step)
      notes.append(f'{why}; it is kept as {step_folders.DAMAGED}{step}')
    return start

  def restore_best(self, target: Any) -> tuple[int, Any, list[str]]:
    """Reads the best step that is whole, else the newest; renames damaged ones on the way.

    Returns the step, its state, and what was wrong with those before it.
    """
    self.wait()
    if self._mirror:
      self._share(self._mirror)
    notes: list[str] = []
    while self.steps():
      step = self.best() if self.best() >= 0 else self.latest()
      try:
        return step, self.restore(step, target), notes
      except DamagedError as error:
        self._set_aside(step)
        notes.append(f'{error}; it is kept as {step_folders.DAMAGED}{step}')
    raise CheckpointError(f'{self.folder} holds no checkpoint that can be read', *notes)

  def save(
    self, step: int, state: Any, meta: Mapping[str, Any], figures: Mapping[str, float]
  ) -> None:
    """Saves a step; returns once the arrays are copied, the files follow.

    Of a step that was saved before its evaluation, only the figures are added. `figures` count for
    the best steps where they hold the deciding one.

    Raises:
      CheckpointError: this save cannot begin, or the one before it failed.
    """
    self.wait()
    if not self._writes:
      return
    scored = self._best.removeprefix('-') in figures
    if step in self.steps():
      if scored and jax.process_index() == 0:
        step_folders.add_figures(self.folder / str(step), figures)
      return
    self._prune()
    copies = digests.copy_to_host(state)
    alone = self._mirror and jax.process_count() > 1  # arrays of several hosts want all of them
    items: dict[str, Any] = {
      'state': ocp.args.StandardSave(digests.replace_leaves(state, copies) if alone else state),
      'meta': digests.MetaSave(dict(meta), copies),
    }
    if scored:
      items['metrics'] = ocp.args.JsonSave(dict(figures))
    first, self._saving = self._saving < 0, step
    path = self.folder / str(step)
    self._guard(lambda: self._writer.save(path, args=ocp.args.Composite(**items)))
    if self._mirror:
      self._sending = self._sender.submit(self._send, self._mirror)
    if first:  # a store that loses data must not lose a run
      self.wait()
      step_folders.read_back(path, state)

  def _send(self, opened: mirror.Mirror) -> None:
    """Sends the step that is being saved, once it is whole here; beside training."""
    self._writer.wait_until_finished()
    opened.push()

  def _share(self, opened: mirror.Mirror) -> None:
    """Has every host hold the steps that the first one has; all call it together."""
    if jax.process_count() > 1:
      multihost_utils.sync_global_devices('the first host has sent its steps')
      if not self._writes:
        opened.fetch(files=False)

  def _guard(self, act: Callable[[], Any]) -> None:
    """Says which step was lost where a save fails, in the background or at once."""
    try:
      act()
      return
    except objects.BucketError as error:  # says what is saved where
      raise CheckpointError(f'step {self._saving}: {error}') from error
    except jax.errors.JaxRuntimeError as error:
      if jax.process_count() > 1:
        raise  # a lost peer, which `distributed.watch_peers` names
      reason = store_errors.shorten(error)
    except Exception as error:  # whatever the file system, tensorstore or Orbax raise
      reason = store_errors.shorten(error)
    gc.collect()  # other writes that failed report it when they go: while that is hushed
    newest = f'step {self.latest()} is the newest whole one' if self.steps() else 'there is none'
    raise CheckpointError(
      f'{self.folder}: step {self._saving} could not be saved ({reason}); {newest}'
    )

  def _ranked(self) -> list[int]:
    """Returns the evaluated steps, the best first."""
    scores = [
      (step_folders.read_score(self.folder / str(step), self._best), step) for step in self.steps()
    ]
    known = [(score, step) for score, step in scores if not math.isnan(score)]
    return [step for _, step in sorted(known, reverse=True)]

  def _set_aside(self, step: int) -> None:
    if self._mirror:
      self._mirror.set_aside(self.folder / str(step))
    if self._mirror or jax.process_index() == 0:
      step_folders.set_aside(self.folder / str(step))
    if jax.process_count() > 1:
      multihost_utils.sync_global_devices(f'step {step} is set aside')

  def _prune(self) -> None:
    """Deletes the steps that need not stay, and unfinished saves before the newest step.

    Each is renamed first: one that is half deleted must not look like a checkpoint.
    """
    if jax.process_index():  # that of a bucket drops what the first one has deleted there
      return
    steps = self.steps()
    kept = {*steps[-self._keep_latest :], *self._ranked()[: self._keep_best]}
    doomed = [self.folder / str(step) for step in steps if step not in kept]
    for path in self.folder.glob(f'*{step_folders.UNFINISHED}*'):
      name = path.name.partition('.')[0]
      if name.isdecimal() and int(name) < max(steps, default=-1):
        doomed.append(path)
    for path in doomed:
      if self._mirror:
        self._mirror.drop(path)
      path.rename(path.with_name(f'{DELETING}{path.name}'))
    for path in self.folder.glob(f'{DELETING}*'):
      shutil.rmtree(path, ignore_errors=True)
