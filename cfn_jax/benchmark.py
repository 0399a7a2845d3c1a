"""Measures one part of the project and prints a line of JSON.

    python -m cfn_jax.benchmark input --images=DIR --workers=2
    python -m cfn_jax.benchmark step --batch=16 --steps=5
    python -m cfn_jax.benchmark compile --target=h100:1,h100:8 --dtype=bfloat16
    python -m cfn_jax.benchmark PART --help

`input`: the loader; `step`: the training step; `dense`: detection and segmentation; `precision`:
bfloat16 against float32; `compile`: the step for another machine; `saving`: what a save costs;
`permutations`: making a permutation set. See docs/performance.md.
"""

import importlib
import json
import sys
from collections.abc import Sequence

from cfn_jax import arguments as command_lines
from cfn_jax import terminal

# The module of each part, imported when it is asked for.
PARTS = {
  'permutations': 'cfn_jax.timing.permutations',
  'input': 'cfn_jax.timing.input',
  'step': 'cfn_jax.timing.step',
  'compile': 'cfn_jax.timing.compile',
  'precision': 'cfn_jax.timing.precision',
  'dense': 'cfn_jax.timing.dense',
  'saving': 'cfn_jax.timing.saving',
}


@terminal.interruptible()
@terminal.short_errors(RuntimeError)
def main(argv: Sequence[str] | None = None) -> None:
  """Runs the command line."""
  argv = list(sys.argv[1:] if argv is None else argv)
  parser = command_lines.Parser('cfn_jax.benchmark', __doc__, usage='PART [options]')
  parser.add_argument('part', choices=PARTS)
  part = parser.parse(argv[:1]).part
  module = importlib.import_module(PARTS[part])
  parser = command_lines.Parser(f'cfn_jax.benchmark {part}', module.__doc__)
  module.add_arguments(parser)
  arguments = parser.parse(argv[1:])
  result = module.run(arguments)
  terminal.answer(*map(json.dumps, result if isinstance(result, list) else [result]))


if __name__ == '__main__':
  main()
