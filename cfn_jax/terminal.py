"""Everything that is printed: lines and tables, the only way to the terminal and into `rich`.

User text appears literally: no markup, no emoji. A terminal folds long cells. In a log each row is
one line. A stream that cannot be written ends the program.
"""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn, TextIO

import rich.box
import rich.console
import rich.table
import rich.text
import tqdm

from cfn_jax import names
from cfn_jax.errors import CfnError

BAD_INPUT = 2  # exit code
MOST_LINES = 5  # of an error
WIDEST = 100_000  # characters; a table takes no more than it needs

for _name in ('stdout', 'stderr'):  # None if it is closed: now a stream that refuses each write
  if getattr(sys, _name) is None:
    setattr(sys, _name, os.fdopen(os.open(os.devnull, os.O_RDONLY), 'w', encoding='utf-8'))


@contextlib.contextmanager
def writing(file: TextIO) -> Iterator[None]:
  """Ends the program with one line if a stream cannot be written; silently if a pipe is closed."""
  try:
    try:
      yield
    finally:
      file.flush()
  except OSError as error:
    with contextlib.suppress(OSError):  # the buffered rest would fail again at the end
      os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
    if isinstance(error, BrokenPipeError):
      sys.exit(128 + signal.SIGPIPE)
    name = 'stdout' if file is sys.stdout else 'stderr'
    fail(f'{name} cannot be written: {error.strerror or error}')


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
  """Ends the program in one line after Ctrl-C; a decorator too."""
  try:
    yield
  except KeyboardInterrupt:
    say('SIGINT: stopped')
    sys.exit(128 + signal.SIGINT)


@contextlib.contextmanager
def short_errors(*others: type[Exception]) -> Iterator[None]:
  """Ends the program with a message after a CfnError, an OSError or `others`; a decorator too."""
  kinds: tuple[type[Exception], ...] = (CfnError, OSError, *others)
  try:
    yield
  except kinds as error:
    fail(*describe(error))


def say(*lines: str, file: TextIO | None = None) -> None:
  """Prints lines, on stderr by default; characters that are not text are escaped."""
  file = file or sys.stderr
  with writing(file):
    print(*(_safe(line, file) for line in lines), sep='\n', file=file)


def answer(*lines: str) -> None:
  """Prints lines on stdout: the answer of a command."""
  say(*lines, file=sys.stdout)


def show_pairs(rows: Sequence[tuple[str, str]]) -> None:
  """Prints rows of a name and its value on stderr."""
  table = rich.table.Table(show_header=False, box=None, pad_edge=False)
  table.add_column()
  table.add_column(overflow='fold')
  for what, value in rows:
    table.add_row(_text(what, sys.stderr), _text(value, sys.stderr))
  _print(table, sys.stderr)


def show_table(
  title: str,
  columns: Sequence[str],
  sections: Sequence[Sequence[tuple[str, Sequence[str]]]],
  *,
  caption: str = '',
  file: TextIO | None = None,
) -> None:
  """Prints a table, on stdout by default; each row has a label and its values.

  Args:
    sections: groups of rows, separated by a line.
  """
  file = file or sys.stdout
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
  table.add_column(overflow='fold')
  for column in columns:
    table.add_column(_text(column, file), justify='right', overflow='fold')
  for rows in sections:
    for label, values in rows:
      table.add_row(_text(label, file), *(_text(value, file) for value in values))
    table.add_section()
  say(title, file=file)
  _print(table, file)
  if caption:
    say(caption, file=file)


def describe(error: Exception) -> list[str]:
  """Returns the lines of an error message; a system error begins with its file."""
  if isinstance(error, OSError) and error.strerror:
    named = isinstance(error.filename, str | bytes | os.PathLike)
    return [f'{os.fsdecode(error.filename)}: {error.strerror}' if named else error.strerror]
  if isinstance(error, CfnError):
    return [str(line) for line in error.args]
  return [str(error) or type(error).__name__]


def first_line(error: BaseException) -> str:
  """Returns a library's error in one short line; its type if it has no text.

  >>> first_line(ValueError('no shape\\nat line 3')), first_line(KeyError())
  ('no shape', 'KeyError')
  """
  lines = str(error).strip().splitlines() or [type(error).__name__]
  return lines[0][:300]


def fail(first: str, *others: str) -> NoReturn:
  """Prints `error: first`, five lines at most, and exits with the code for bad input."""
  if len(others) >= MOST_LINES:
    others = (*others[: MOST_LINES - 2], f'and {len(others) - MOST_LINES + 2} lines more')
  say(f'error: {first}', *others)
  sys.exit(BAD_INPUT)


class _LogLines(io.TextIOBase):
  """Writes each state of a progress bar as a line of its own, for logs."""

  def write(self, text: str) -> int:
    if text.strip():
      say(*text.strip().splitlines())
    return len(text)


def make_bar(items: Iterable[Any] | None = None, **options: Any) -> tqdm.tqdm:
  """Makes a progress bar on stderr; in a log it prints a line every half minute."""
  if sys.stderr.isatty():
    kind: dict[str, Any] = {'dynamic_ncols': True}
  else:
    kind = {'file': _LogLines(), 'ncols': 0, 'mininterval': 30, 'maxinterval': 30}
  return tqdm.tqdm(items, **options, **kind)


def _text(text: str, file: TextIO) -> rich.text.Text:
  return rich.text.Text(_safe(text, file))


def _safe(text: str, file: TextIO) -> str:
  return names.printable(text, encoding=file.encoding or 'utf-8')


def _print(table: rich.table.Table, file: TextIO) -> None:
  console = rich.console.Console(file=file, highlight=False)
  if console.is_terminal:
    with writing(file):
      console.print(table)
    return
  # A log has no width to which a row would be cut.
  console = rich.console.Console(file=file, highlight=False, width=WIDEST)
  with console.capture() as printed:
    console.print(table)
  with writing(file):
    file.write(''.join(f'{line.rstrip()}\n' for line in printed.get().splitlines()))
