"""What runs: the code's commit, which checkpoints and results name, and the start-up summary."""

import functools
import pathlib
import subprocess

import jax

from cfn_jax import terminal


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


def show_summary(rows: list[tuple[str, str]], workdir: pathlib.Path) -> None:
  """Prints what is about to run, on the first host; `rows`: (what, value)."""
  if jax.process_index():
    return
  kinds = {device.device_kind for device in jax.devices()}
  hosts = f' on {jax.process_count()} hosts' if jax.process_count() > 1 else ''
  found = f'{jax.device_count()} x {", ".join(sorted(kinds))}{hosts}'
  terminal.show_pairs([('workdir', str(workdir)), ('devices', found), *rows])
