"""Command line: measures one part of the project and prints one line of JSON.

`python -m cfn_jax.benchmark PART --help` lists the options of a part. What is measured stands in
`cfn_jax/timing/`, one module for each part, imported only when that part is asked for.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import NoReturn

PARTS = {
  'permutations': 'cfn_jax.timing.permutations',
  'input': 'cfn_jax.timing.input',
  'step': 'cfn_jax.timing.step',
}


class _Parser(argparse.ArgumentParser):
  def error(self, message: str) -> NoReturn:
    self.exit(2, f'error: {message}\n')  # one line, without the usage


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line; returns the exit code, 2 for bad input."""
  argv = list(sys.argv[1:] if argv is None else argv)
  parser = _Parser(prog='python -m cfn_jax.benchmark', description=(__doc__ or '').splitlines()[0])
  parser.add_argument('part', choices=PARTS)
  part = parser.parse_args(argv[:1]).part
  module = importlib.import_module(PARTS[part])
  parser = _Parser(
    prog=f'python -m cfn_jax.benchmark {part}',
    description=(module.__doc__ or '').splitlines()[0],
    allow_abbrev=False,
  )
  module.add_arguments(parser)
  arguments = parser.parse_args(argv[1:])
  try:
    result = module.run(arguments)
  except (ValueError, OSError, RuntimeError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  print(json.dumps(result))
  return 0


if __name__ == '__main__':
  sys.exit(main())
