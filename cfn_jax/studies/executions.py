"""One training or evaluation of a study: what it runs, with what, and in which part."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from cfn_jax.buckets import addresses


@dataclasses.dataclass(frozen=True)
class Execution:
  """One call of the main command.

  Attributes:
    name: its folder in the study's workdir: RUN_sSEED, or RUN_sSEED-EVALUATION.
    start: the name of the execution whose checkpoint it needs; '': none.
    evaluation: '' for a training run.
    config_text: what `--config` is given.
    changes: the fields that differ from it, for the command line.
    identity: what it must share with what was done in its folder before: plain values.
    facts: what is known of it before it runs, beside the figures of its result.
    visits: images that it trains on.
    checkpoint_bytes: of the checkpoints that it keeps.
    trains: it is a pretraining, whose figures the study writes down itself.
  """

  name: str
  run: str
  seed: int
  start: str
  evaluation: str
  config_text: str
  config: ml_collections.ConfigDict
  changes: Mapping[str, Any]
  identity: Mapping[str, Any]
  facts: Mapping[str, float]
  visits: int
  checkpoint_bytes: int
  stop_when_left: bool
  trains: bool

  def command(self, workdir: pathlib.Path) -> list[str]:
    """Returns the arguments of the main command."""
    return [
      f'--config={self.config_text}',
      f'--workdir={addresses.show(workdir / self.name)}',
      *(f'--config.{name}={value}' for name, value in self.changes.items()),
    ]


def choose(executions: Sequence[Execution], runs: Sequence[str]) -> list[Execution]:
  """Returns the executions of some runs, and the trainings that they start from."""
  needed: set[str] = set()
  for each in reversed(executions):  # each stands after its start
    if each.run in runs or each.name in needed:
      needed |= {each.name, each.start}
  return [each for each in executions if each.name in needed]


def split(executions: Sequence[Execution], part: int, parts: int) -> list[Execution]:
  """Returns the executions of one part, 1 .. parts: those that need each other stay together.

  Chains of runs go to the part with the fewest images so far, the longest first.
  """
  chains: dict[str, list[Execution]] = {}
  root: dict[str, str] = {}
  for each in executions:
    root[each.name] = root.get(each.start, each.name)
    chains.setdefault(root[each.name], []).append(each)
  loads, mine = [0] * parts, set()
  for chain in sorted(chains.values(), key=lambda c: -sum(each.visits for each in c)):
    least = loads.index(min(loads))
    loads[least] += max(1, sum(each.visits for each in chain))
    mine |= {each.name for each in chain} if least == part - 1 else set()
  return [each for each in executions if each.name in mine]
