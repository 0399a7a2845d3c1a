"""Figures: made off screen, written completely or not at all, and never the end of a run.

Every text in a figure passes through `names.drawable`. Matplotlib is imported on demand.
"""

import contextlib
import io
import os
import pathlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cfn_jax import terminal
from cfn_jax.errors import CfnError

if TYPE_CHECKING:
  from matplotlib.figure import Figure


def make(width: float, height: float) -> 'Figure':
  """Makes an empty figure; sides in inches.

  Raises:
    CfnError: Matplotlib refuses the backend that the environment names.
  """
  try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
  except ValueError as error:
    backend = os.environ.get('MPLBACKEND', '')
    if not backend:
      raise
    raise CfnError(f"MPLBACKEND='{backend}' is no backend of Matplotlib; unset it") from error

  figure = Figure(figsize=(width, height), layout='constrained')
  FigureCanvasAgg(figure)
  return figure


def encode(figure: 'Figure', suffix: str) -> bytes:
  """Returns a figure as a file's bytes: '.png', '.svg', '.pdf' or '.jpg'."""
  stream = io.BytesIO()
  with warnings.catch_warnings():
    warnings.filterwarnings('ignore', 'Glyph ')  # about a name in a script that the font lacks
    figure.savefig(stream, format=suffix[1:], dpi=110)
  return stream.getvalue()


def save(figure: 'Figure', path: pathlib.Path) -> None:
  """Writes a picture completely or not at all, even if the process is killed.

  Raises:
    OSError: it cannot be written; `filename` is its own.
  """
  partial = path.with_name(f'{path.stem}.partial{path.suffix}')
  encoded = encode(figure, path.suffix.lower())
  try:
    partial.write_bytes(encoded)
    partial.replace(path)
  except OSError as error:
    raise OSError(error.errno, error.strerror, str(path)) from None


@contextlib.contextmanager
def spared(path: pathlib.Path) -> Iterator[None]:
  """Warns if a picture cannot be drawn, and continues: a run is worth more than its pictures."""
  try:
    yield
  except Exception as error:  # drawing libraries raise anything
    reason = terminal.describe(error)[0].partition('\n')[0]
    terminal.say(f'warning: {path} is not drawn ({reason})')
