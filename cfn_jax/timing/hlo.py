"""Reads the text of XLA's scheduled HLO: computations, their operations, the source of each.

A leaf: no JAX.
"""

import dataclasses
import functools
import itertools
import math
import re

from cfn_jax.errors import CfnError

BITS = {'pred': 8, 'bf16': 16, 'c64': 64, 'c128': 128}  # other names contain their bits: f32, u8
_SHAPE = re.compile(r'\b([a-z]+[0-9]*[a-z0-9]*)\[([0-9,<=]*)\]')
_OPERATION = re.compile(r'\s*(?:ROOT )?%?([^ ]+) = (.*)')
_CALLED = re.compile(
  r'\b(?:calls|to_apply|body|true_computation|false_computation|branch_computations)='
  r'(?:\{([^}]*)\}|(%?[^ ,]+))'
)


class ProgramError(CfnError):
  """A text that is no program, or has a part that cannot be counted."""


@dataclasses.dataclass(frozen=True)
class Shape:
  """An array of a program."""

  type: str
  sides: tuple[int, ...]

  @property
  def size(self) -> int:
    """Returns the number of values."""
    return math.prod(self.sides)

  @property
  def bytes(self) -> int:
    """Returns the bytes of the values, without the padding of a layout."""
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
  rest: str  # the text after the operands

  @property
  def called(self) -> list[str]:
    """Returns the computations that the operation runs."""
    names = itertools.chain.from_iterable(
      (several or one).split(',') for several, one in _CALLED.findall(self.rest)
    )
    return [name.strip().lstrip('%') for name in names]

  @property
  def cycles(self) -> int:
    """Returns the compiler's estimate for one run; 0 without one."""
    found = re.search(r'"estimated_cycles":"?(\d+)', self.rest)
    return int(found[1]) if found else 0

  def value(self, name: str) -> str:
    """Returns the value after `name=`, up to a blank or a comma; '' if it is absent."""
    found = re.search(rf'\b{name}=(\{{[^}}]*\}}|[^ ,]+)', self.rest)
    return found[1] if found else ''


class Sources:
  """The source lines of a program's operations."""

  def __init__(self, text: str) -> None:
    self._text = text

  def find(self, operation: Operation, package: str) -> str:
    """Returns 'file:line' of the innermost frame of the package, or of any."""
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
    # Parents are numbered from 1, which means none.
    return {int(n): (int(a), int(b or 1) - 1) for n, a, b in self._table('StackFrames', pattern)}

  def _table(self, name: str, pattern: str) -> list[tuple[str, ...]]:
    table = re.search(rf'^{name}\n((?:\d+ .*\n)*)', self._text, re.MULTILINE)
    return re.findall(rf'^(\d+) {pattern}', table[1], re.MULTILINE) if table else []


def read_computations(text: str) -> tuple[dict[str, dict[str, Operation]], str]:
  """Returns the operations of each computation, by name, and the name of the entry computation.

  Raises:
    ProgramError: there is none.
  """
  computations: dict[str, dict[str, Operation]] = {}
  entry = ''
  current: dict[str, Operation] | None = None
  for line in text.splitlines():
    if opened := re.match(r'(ENTRY )?%?([^ ]+) \(.*\{$', line):
      current = computations.setdefault(opened[2], {})
      entry = opened[2] if opened[1] else entry
    elif line.startswith('}'):
      current = None
    elif current is not None and (read := _read_operation(line)):
      current[read.name] = read
  if not entry:
    raise ProgramError('the text holds no compiled program: there is no entry computation')
  return computations, entry


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
