"""Reads a compiled program, the text of XLA's scheduled HLO: what it moves, computes and repeats.

A leaf: no JAX, so a program that was written to a file is read anywhere. Figures are those of one
device, of the entry computation with its loops times their trips, and of the larger of two
branches. An operation's bytes are those of its operands and results: what a fusion keeps to itself
never leaves the chip.
"""

import collections
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator

BITS = {'pred': 8, 'bf16': 16, 'c64': 64, 'c128': 128}  # others are named after theirs: f32, u8
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
_SHAPE = re.compile(r'\b([a-z]+[0-9]*[a-z0-9]*)\[([0-9,<=]*)\]')
_OPERATION = re.compile(r'\s*(?:ROOT )?%?([^ ]+) = (.*)')
_CALLED = re.compile(
  r'\b(?:calls|to_apply|body|true_computation|false_computation|branch_computations)='
  r'(?:\{([^}]*)\}|(%?[^ ,]+))'
)
_PADDING = re.compile(r'(-?\d+)_(-?\d+)')


class ProgramError(ValueError):
  """A text that is no program, or holds what cannot be counted."""


@dataclasses.dataclass(frozen=True)
class Shape:
  """An array of a program."""

  type: str
  sides: tuple[int, ...]

  @property
  def size(self) -> int:
    """The number of values."""
    return math.prod(self.sides)

  @property
  def bytes(self) -> int:
    """The bytes of the values, without what a layout adds to them."""
    digits = re.search(r'\d+', self.type)  # a token has none, and no bytes
    bits = BITS.get(self.type) or (int(digits[0]) if digits else 0)
    return math.ceil(self.size * bits / 8)


@dataclasses.dataclass(frozen=True)
class Operation:
  """One line of a program."""

  name: str
  kind: str  # 'fusion', 'convolution', ...
  results: tuple[Shape, ...]
  operands: tuple[str, ...]
  rest: str  # what stands behind the operands

  @property
  def called(self) -> list[str]:
    """Computations that the operation runs."""
    names = itertools.chain.from_iterable(
      (several or one).split(',') for several, one in _CALLED.findall(self.rest)
    )
    return [name.strip().lstrip('%') for name in names]

  @property
  def cycles(self) -> int:
    """The compiler's estimate for one run; 0 where it makes none."""
    found = re.search(r'"estimated_cycles":"?(\d+)', self.rest)
    return int(found[1]) if found else 0

  def value(self, name: str) -> str:
    """Returns what stands behind `name=`, up to a blank or a comma; '' where it is absent."""
    found = re.search(rf'\b{name}=(\{{[^}}]*\}}|[^ ,]+)', self.rest)
    return found[1] if found else ''


@dataclasses.dataclass(frozen=True)
class Cost:
  """What a computation costs one device."""

  bytes: float = 0
  flops: float = 0
  cycles: float = 0

  def __add__(self, other: 'Cost') -> 'Cost':
    return Cost(self.bytes + other.bytes, self.flops + other.flops, self.cycles + other.cycles)

  def __mul__(self, times: float) -> 'Cost':
    return Cost(self.bytes * times, self.flops * times, self.cycles * times)


@dataclasses.dataclass(frozen=True)
class Line:
  """An operation with its cost in all its runs and the line of source that it comes from."""

  cost: Cost
  kind: str
  name: str
  source: str


class Program:
  """A compiled program.

  Raises:
    ProgramError: the text is none.
  """

  def __init__(self, text: str) -> None:
    self._text = text
    self._computations: dict[str, dict[str, Operation]] = {}
    self._entry = ''
    current: dict[str, Operation] | None = None
    for line in text.splitlines():
      if opened := re.match(r'(ENTRY )?%?([^ ]+) \(.*\{$', line):
        current = self._computations.setdefault(opened[2], {})
        self._entry = opened[2] if opened[1] else self._entry
      elif line.startswith('}'):
        current = None
      elif current is not None and (read := _read_operation(line)):
        current[read.name] = read
    if not self._entry:
      raise ProgramError('the text holds no compiled program: there is no entry computation')

  @functools.cached_property
  def cost(self) -> Cost:
    """The cost of one run."""
    return self._cost(self._entry)

  def count(self, *kinds: str) -> dict[str, int]:
    """Counts the operations of some kinds, each where it stands, in the order of `kinds`.

    A collective that starts and ends in two operations is one.
    """
    found = collections.Counter(
      operation.kind.removesuffix('-start')
      for operations in self._computations.values()
      for operation in operations.values()
      if operation.kind != 'async-start'
    )
    return {kind: found[kind] for kind in kinds if found[kind]}

  def costliest(self, top: int, package: str) -> list[Line]:
    """Returns the operations with the most cycles, or bytes where there are no cycles.

    Args:
      package: whose lines are named; the innermost where none of it is on the stack.
    """
    lines = [
      Line(cost, operation.kind, operation.name, self._source(operation, package))
      for operation, cost in self._walk(self._entry, 1)
    ]
    return sorted(lines, key=lambda line: (-line.cost.cycles, -line.cost.bytes))[:top]

  def _walk(self, computation: str, trips: int) -> Iterator[tuple[Operation, Cost]]:
    """Yields the operations that cost something, with those of loops, branches and calls."""
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

  def _branch(self, operation: Operation) -> str:
    return max(operation.called, key=lambda name: dataclasses.astuple(self._cost(name)))

  def _trips(self, operation: Operation) -> int:
    """Returns the trips of a loop: as the compiler knows them, or its limit, counted by ones."""
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
      raise ProgramError(f'the trips of the loop {operation.name} are not known')
    return limits.pop()

  def _own(self, operation: Operation, operations: dict[str, Operation]) -> Cost:
    """Returns the cost of an operation that runs once: what it moves and what it computes."""
    moved = 0
    if not operation.kind.endswith('-done'):  # counted where it started
      moved += sum(self._sizes(name, operations) for name in operation.operands)
    if not operation.kind.endswith('-start'):
      moved += sum(shape.bytes for shape in operation.results)
    return Cost(moved, self._flops(operation, operations), operation.cycles)

  def _sizes(self, name: str, operations: dict[str, Operation]) -> int:
    return sum(shape.bytes for shape in operations[name].results) if name in operations else 0

  def _flops(self, operation: Operation, operations: dict[str, Operation]) -> float:
    """Counts two for each multiply-add of products and convolutions, those inside fusions too."""
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

  def _source(self, operation: Operation, package: str) -> str:
    """Returns 'file:line' of the innermost frame of the package, or of all."""
    frame = int(operation.value('stack_frame_id').rstrip('}') or 0)
    innermost = ''
    while frame:
      location, parent = self._frames[frame]
      file, line = self._locations[location]
      where = f'{self._files[file]}:{line}'
      if f'/{package}/' in where:
        return package + where.rpartition(f'/{package}')[2]
      innermost, frame = innermost or where, parent
    return innermost

  @functools.cached_property
  def _files(self) -> dict[int, str]:
    return {int(n): name for n, name in self._table('FileNames', r'"(.*)"')}

  @functools.cached_property
  def _locations(self) -> dict[int, tuple[int, int]]:
    pattern = r'\{file_name_id=(\d+) .*?\bline=(\d+)'
    return {int(n): (int(a), int(b)) for n, a, b in self._table('FileLocations', pattern)}

  @functools.cached_property
  def _frames(self) -> dict[int, tuple[int, int]]:
    pattern = r'\{file_location_id=(\d+)(?: parent_frame_id=(\d+))?'
    # A parent is numbered from 1, which says that there is none.
    return {int(n): (int(a), int(b or 1) - 1) for n, a, b in self._table('StackFrames', pattern)}

  def _table(self, name: str, pattern: str) -> list[tuple[str, ...]]:
    table = re.search(rf'^{name}\n((?:\d+ .*\n)*)', self._text, re.MULTILINE)
    return re.findall(rf'^(\d+) {pattern}', table[1], re.MULTILINE) if table else []


def _read_operation(line: str) -> Operation | None:
  if not (match := _OPERATION.match(line)):
    return None
  name, text = match.groups()
  end = _closing(text, 0) if text.startswith('(') else text.index(' ')
  shape, text = text[:end], text[end:].lstrip()
  kind, _, _ = text.partition('(')
  end = _closing(text, len(kind))
  inside, rest = text[len(kind) + 1 : end - 1], text[end:]
  if kind == 'constant':
    rest = f'({inside}){rest}'
  results = tuple(
    Shape(type, tuple(int(side.lstrip('<=')) for side in sides.split(',') if side))
    for type, sides in _SHAPE.findall(re.sub(r'\{[^{}]*\}', '', shape))
  )
  operands = tuple(part.split()[-1].lstrip('%') for part in _split(inside) if part.strip())
  return Operation(name, kind, results, operands, rest)


def _closing(text: str, start: int) -> int:
  """Returns the place behind the bracket that closes the one at `start`."""
  depth = 0
  for place in range(start, len(text)):
    depth += {'(': 1, ')': -1}.get(text[place], 0)
    if not depth:
      return place + 1
  raise ProgramError(f'a bracket is never closed: {text[:60]}')


def _split(text: str) -> list[str]:
  """Splits at the commas outside brackets."""
  parts, depth = [''], 0
  for letter in re.sub(r'/\*.*?\*/', '', text):
    depth += {'(': 1, '{': 1, '[': 1, ')': -1, '}': -1, ']': -1}.get(letter, 0)
    if letter == ',' and not depth:
      parts.append('')
    else:
      parts[-1] += letter
  return parts


def _count_product(operation: Operation, left: Shape) -> float:
  found = re.search(r'lhs_contracting_dim(?:s=\{|ensions":\[)([^\]}]*)', operation.rest)
  axes = re.findall(r'\d+', found[1]) if found else []
  return 2 * operation.results[0].size * math.prod(left.sides[int(axis)] for axis in axes)


def _count_convolution(operation: Operation, left: Shape, right: Shape, out: Shape) -> float:
  """Counts the taps that meet a value and not padding or a hole, as XLA's own count does."""
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
