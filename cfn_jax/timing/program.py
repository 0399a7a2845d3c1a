"""Counts bytes, arithmetic and repetitions of a compiled program from its scheduled HLO.

No JAX: a program in a file can be read anywhere. Figures are those of one device, for the entry
computation with its loops times their trips, and for the larger of two branches. An operation's
bytes are those of its operands and results: the inner values of a fusion never leave the chip.
"""

import collections
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator

from cfn_jax.timing import hlo

# Operations that name values and move none.
FREE = ('parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast', 'after-all')
COLLECTIVES = (
  'all-gather',
  'all-reduce',
  'all-to-all',
  'collective-broadcast',
  'collective-permute',
  'ragged-all-to-all',
  'reduce-scatter',
)
_PADDING = re.compile(r'(-?\d+)_(-?\d+)')


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of a computation on one device."""

  bytes: float = 0
  flops: float = 0
  cycles: float = 0

  def __add__(self, other: 'Cost') -> 'Cost':
    return Cost(self.bytes + other.bytes, self.flops + other.flops, self.cycles + other.cycles)

  def __mul__(self, times: float) -> 'Cost':
    return Cost(self.bytes * times, self.flops * times, self.cycles * times)


@dataclasses.dataclass(frozen=True)
class Line:
  """An operation with the cost of all its runs and its source line."""

  cost: Cost
  kind: str
  name: str
  source: str


class Program:
  """A compiled program.

  Raises:
    ProgramError: the text is no program.
  """

  def __init__(self, text: str) -> None:
    self.text = text
    self._computations, self._entry = hlo.read_computations(text)
    self._sources = hlo.Sources(text)

  @functools.cached_property
  def cost(self) -> Cost:
    """Returns the cost of one run."""
    return self._cost(self._entry)

  def count(self, *kinds: str) -> dict[str, int]:
    """Counts the operations of some kinds, once each, in the order of `kinds`.

    A collective with two operations, for its start and end, counts once.
    """
    found = collections.Counter(
      operation.kind.removesuffix('-start')
      for operations in self._computations.values()
      for operation in operations.values()
      if operation.kind != 'async-start'
    )
    return {kind: found[kind] for kind in kinds if found[kind]}

  def costliest(self, top: int, package: str) -> list[Line]:
    """Returns the operations with the most cycles, or bytes if there are no cycles.

    Args:
      package: its lines are named, or the innermost line if none is on the stack.
    """
    lines = [
      Line(cost, operation.kind, operation.name, self._sources.find(operation, package))
      for operation, cost in self._walk(self._entry, 1)
    ]
    return sorted(lines, key=lambda line: (-line.cost.cycles, -line.cost.bytes))[:top]

  def _walk(self, computation: str, trips: int) -> Iterator[tuple[hlo.Operation, Cost]]:
    """Yields the operations with a cost, including those of loops, branches and calls."""
    operations = self._computations[computation]
    for operation in operations.values():
      if operation.kind in FREE:
        continue
      if operation.kind == 'while':
        yield from self._walk(operation.value('body').lstrip('%'), trips * self._trips(operation))
      elif operation.kind == 'call':
        yield from self._walk(operation.called[0], trips)
      elif operation.kind == 'conditional':
        yield from self._walk(self._branch(operation), trips)
      else:
        yield operation, self._own(operation, operations) * trips

  def _cost(self, computation: str) -> Cost:
    return functools.reduce(
      lambda total, walked: total + walked[1], self._walk(computation, 1), Cost()
    )

  def _branch(self, operation: hlo.Operation) -> str:
    return max(operation.called, key=lambda name: dataclasses.astuple(self._cost(name)))

  def _trips(self, operation: hlo.Operation) -> int:
    """Returns the trips of a loop: the compiler's number, or its limit, counted by ones."""
    if known := re.search(r'"known_trip_count":\{"n":"?(\d+)', operation.rest):
      return int(known[1])
    condition = self._computations[operation.value('condition').lstrip('%')].values()
    inside = [self._computations[name].values() for each in condition for name in each.called]
    limits = {
      int(found[1])
      for constant in itertools.chain(condition, *inside)
      if constant.kind == 'constant' and (found := re.match(r'\((\d+)\)', constant.rest))
    }
    if len(limits) != 1:
      raise hlo.ProgramError(f'the trips of the loop {operation.name} are not known')
    return limits.pop()

  def _own(self, operation: hlo.Operation, operations: dict[str, hlo.Operation]) -> Cost:
    """Returns the cost of one run of an operation: its bytes and its arithmetic."""
    moved = 0
    if not operation.kind.endswith('-done'):  # counted at its start
      moved += sum(self._sizes(name, operations) for name in operation.operands)
    if not operation.kind.endswith('-start'):
      moved += sum(shape.bytes for shape in operation.results)
    return Cost(moved, self._flops(operation, operations), operation.cycles)

  def _sizes(self, name: str, operations: dict[str, hlo.Operation]) -> int:
    return sum(shape.bytes for shape in operations[name].results) if name in operations else 0

  def _flops(self, operation: hlo.Operation, operations: dict[str, hlo.Operation]) -> float:
    """Counts two per multiply-add of products and convolutions, including those in fusions."""
    shapes = [
      operations[name].results[0]
      for name in operation.operands
      if name in operations and operations[name].results
    ]
    target = re.search(r'custom_call_target="([^"]*)"', operation.rest)
    name = target[1] if target else operation.kind
    if name == 'dot' or 'gemm' in name or 'matmul' in name:
      return _count_product(operation, shapes[0])
    if name == 'convolution' or ('conv' in name and 'dim_labels' in operation.rest):
      left, right, out = shapes[0], shapes[1], operation.results[0]
      if name.endswith('BackwardFilter'):
        right, out = out, right
      elif name.endswith('BackwardInput'):
        left, out = out, left
      return _count_convolution(operation, left, right, out)
    if operation.kind in ('fusion', 'async-start'):
      inner = (self._computations[called] for called in operation.called)
      return sum(self._flops(each, inside) for inside in inner for each in inside.values())
    return 0


def _count_product(operation: hlo.Operation, left: hlo.Shape) -> float:
  found = re.search(r'lhs_contracting_dim(?:s=\{|ensions":\[)([^\]}]*)', operation.rest)
  axes = re.findall(r'\d+', found[1]) if found else []
  return 2 * operation.results[0].size * math.prod(left.sides[int(axis)] for axis in axes)


def _count_convolution(
  operation: hlo.Operation, left: hlo.Shape, right: hlo.Shape, out: hlo.Shape
) -> float:
  """Counts the taps that meet a value, not padding or a hole, like XLA's own count."""
  axes_left, axes_right, axes_out = re.findall(r'[0-9a-z?]+', operation.value('dim_labels'))
  spatial = sorted(letter for letter in axes_out if letter.isdigit())
  window = dict(part.split('=') for part in operation.value('window').strip('{}').split())

  def setting(name: str, axis: int, default: int) -> int:
    return int(window[name].split('x')[axis]) if name in window else default

  pads = _PADDING.findall(window.get('pad', ''))
  taps = 1
  for axis, letter in enumerate(spatial):
    taps *= _count_taps(
      left.sides[axes_left.index(letter)],
      right.sides[axes_right.index(letter)],
      out.sides[axes_out.index(letter)],
      stride=setting('stride', axis, 1),
      padding=int(pads[axis][0]) if pads else 0,
      hole=setting('lhs_dilate', axis, 1),
      reach=setting('rhs_dilate', axis, 1),
    )
  images = out.sides[axes_out.index('b')] * out.sides[axes_out.index('f')]
  return 2 * images * taps * right.sides[axes_right.index('i')]


@functools.lru_cache
def _count_taps(
  size: int, window: int, out: int, *, stride: int, padding: int, hole: int, reach: int
) -> int:
  """Counts pairs of an output and a tap that reads a value of an axis."""
  count = 0
  for tap, place in itertools.product(range(window), range(out)):
    at = place * stride + tap * reach - padding
    count += 0 <= at < (size - 1) * hole + 1 and at % hole == 0
  return count
