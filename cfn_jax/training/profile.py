"""A trace of some steps, for TensorBoard's profile page or Perfetto, on demand."""

import pathlib
from typing import Any

import jax

from cfn_jax.errors import CfnError


class Profiler:
  """Writes a trace of steps `start` .. `start + steps - 1`, counted from the first call.

  Close it, or use it as a context: a run that ends earlier leaves a shorter trace.

  Args:
    folder: the trace is in `<folder>/plugins/profile/<time>/`.
    start: the first traced step; earlier steps, with the compilation, are not traced.
    steps: number of traced steps; 0: no trace.
  """

  def __init__(self, folder: pathlib.Path, *, start: int, steps: int) -> None:
    self._folder, self._start, self._steps = folder, start, steps
    self._calls = 0
    self._running = False

  def __enter__(self) -> 'Profiler':
    return self

  def __exit__(self, *_: object) -> None:
    self._stop()

  def __call__(self, report: Any) -> None:
    """Accepts each step's result as soon as the step is dispatched."""
    self._calls += 1
    if self._steps and self._calls == self._start:
      jax.block_until_ready(report)  # the trace begins with a complete step
      jax.profiler.start_trace(str(self._folder))
      self._running = True
    elif self._running and self._calls == self._start + self._steps:
      jax.block_until_ready(report)
      self._stop()

  def _stop(self) -> None:
    if self._running:
      jax.profiler.stop_trace()
      self._running = False


def check(*, start: int, steps: int) -> None:
  """Raises CfnError for steps that cannot be traced."""
  if steps < 0 or start < 1:
    raise CfnError(
      f'profile_steps = {steps}, profile_start_step = {start}: at least 0 and at least 1 (the '
      'first step compiles)'
    )
