"""Checkpoints of a run: the newest and the best ones, kept apart, saved while training goes on.

`<workdir>/checkpoints/<step>/` holds `state` (arrays, Orbax) and `meta` (JSON: fingerprint, config,
figures). Restoring compares structure, shapes and types first: Orbax casts some differences
silently.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers


class CheckpointError(ValueError):
  """A checkpoint that cannot be saved, restored or continued: which, why, what would be right."""


class Checkpoints:
  """The checkpoints of one workdir. Close it, or use it as a context: saves run in the background.

  Args:
    workdir: absolute folder of the run.
    keep_latest: how many of the newest steps stay.
    keep_best: how many of the best by `best` stay besides them.
    best: the figure that decides, larger is better.
  """

  def __init__(self, workdir: pathlib.Path, *, keep_latest: int, keep_best: int, best: str) -> None:
    self.folder = workdir / 'checkpoints'
    self._best = best

    def figure(metrics: Mapping[str, float]) -> float:
      return metrics[best]

    policies = checkpoint_managers.AnyPreservationPolicy(
      [
        checkpoint_managers.LatestN(keep_latest),
        checkpoint_managers.BestN(
          get_metric_fn=figure, n=keep_best, keep_checkpoints_without_metrics=False
        ),
      ]
    )
    options = ocp.CheckpointManagerOptions(
      preservation_policy=policies, best_fn=figure, best_mode='max', create=True
    )
    self._manager = ocp.CheckpointManager(
      self.folder,
      options=options,
      item_handlers={
        'state': ocp.StandardCheckpointHandler(),  # named, or a new process knows no metadata
        'meta': ocp.JsonCheckpointHandler(),
      },
    )

  def __enter__(self) -> 'Checkpoints':
    return self

  def __exit__(self, *_: object) -> None:
    self.wait()
    self._manager.close()

  def wait(self) -> None:
    """Returns once every save is on the disk."""
    self._manager.wait_until_finished()

  def latest(self) -> int:
    """Gives the newest step, -1 where there is none."""
    step = self._manager.latest_step()
    return -1 if step is None else step

  def best(self) -> int:
    """Gives the best step, -1 where no saved step has been evaluated."""
    step = self._manager.best_step()
    return -1 if step is None else step

  def find_start(self, fingerprint: Mapping[str, Any]) -> int:
    """Gives the step to go on from, 0 in a new workdir.

    Raises:
      CheckpointError: the newest step was made with another fingerprint.
    """
    step = self.latest()
    if step < 0:
      return 0
    check_fingerprint(
      self.meta(step)['fingerprint'], fingerprint, where=f'{self.folder / str(step)}'
    )
    return step

  def changes(self, step: int, config: Mapping[str, Any]) -> str:
    """Says which fields of the config differ from those that a step was made with."""
    before, now = _flatten(self.meta(step)['config']), _flatten(json.loads(json.dumps(config)))
    changed = [
      f'{name}: {before.get(name)!r}, now {now.get(name)!r}'
      for name in sorted({*before, *now})
      if before.get(name) != now.get(name)
    ]
    return f' (changed: {"; ".join(changed)})' if changed else ''

  def save(
    self, step: int, state: Any, meta: Mapping[str, Any], figures: Mapping[str, float]
  ) -> None:
    """Saves a step; returns once the arrays are copied, the files follow. No step is saved twice.

    `figures` count for the best steps where they hold the deciding one.

    Raises:
      CheckpointError: the step was not taken.
    """
    if step in self._manager.all_steps():
      return
    arguments = ocp.args.Composite(
      state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(dict(meta))
    )
    metrics = dict(figures) if self._best in figures else None
    if not self._manager.save(step, args=arguments, metrics=metrics):
      raise CheckpointError(f'{self.folder}: step {step} was not saved')

  def meta(self, step: int) -> dict[str, Any]:
    """Reads the JSON of a step."""
    restored = self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))
    return dict(restored['meta'])

  def restore(self, step: int, target: Any) -> Any:
    """Reads a step's arrays into the structure, shapes, types and shardings of `target`.

    Raises:
      CheckpointError: the step holds something else; every difference is listed.
    """
    abstract = jax.tree.map(_abstract, target)
    saved = self._manager.item_metadata(step)['state']
    differences = _compare(_describe(abstract), _describe(getattr(saved, 'tree', saved)))
    if differences:
      listed = '; '.join(differences[:8]) + (' ...' if len(differences) > 8 else '')
      raise CheckpointError(f'{self.folder / str(step)} does not fit this run: {listed}')
    arguments = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
    return self._manager.restore(step, args=arguments)['state']


def check_fingerprint(saved: Mapping[str, Any], wanted: Mapping[str, Any], *, where: str) -> None:
  """Refuses to continue a run with something else than what it began with.

  Raises:
    CheckpointError: names each difference with both values.
  """
  ours = json.loads(json.dumps(dict(wanted)))
  differences = [
    f'{name}: {saved.get(name)!r} then, {ours.get(name)!r} now'
    for name in sorted({*saved, *ours})
    if saved.get(name) != ours.get(name)
  ]
  if differences:
    more = [f'and {len(differences) - 2} more'] if len(differences) > 3 else []
    listed = differences[: 2 if more else 3] + more
    raise CheckpointError(
      f'{where} was made with other settings; take another --workdir, or the old settings:\n  '
      + '\n  '.join(listed)
    )


def _flatten(tree: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  flat: dict[str, Any] = {}
  for name, value in tree.items():
    if isinstance(value, Mapping):
      flat |= _flatten(value, f'{prefix}{name}.')
    else:
      flat[prefix + name] = value
  return flat


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _describe(tree: Any) -> dict[str, str]:
  leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
  names = [
    '/'.join(str(getattr(k, 'name', getattr(k, 'key', k))) for k in path) for path, _ in leaves
  ]
  return {name: f'{leaf.dtype} {list(leaf.shape)}' for name, (_, leaf) in zip(names, leaves)}


def _compare(wanted: Mapping[str, str], saved: Mapping[str, str]) -> list[str]:
  return [
    f'{name} is {saved.get(name, "missing")}, not {wanted.get(name, "expected")}'
    for name in sorted({*wanted, *saved})
    if wanted.get(name) != saved.get(name)
  ]
