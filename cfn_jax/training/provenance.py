"""Which code ran: the commit that checkpoints and results name."""

import functools
import pathlib
import subprocess


@functools.cache
def find_commit() -> str:
  """Returns the commit of this package's clone, marked if files differ from it; '' without one."""
  here = pathlib.Path(__file__).resolve().parent
  try:
    done = subprocess.run(
      ['git', 'describe', '--always', '--dirty', '--abbrev=40', '--exclude=*'],
      cwd=here,
      capture_output=True,
      text=True,
      timeout=20,
      check=True,
    )
  except (OSError, subprocess.SubprocessError):
    return ''
  return done.stdout.strip()
