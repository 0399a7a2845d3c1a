"""Imports JAX, which reads environment variables: a wrong one ends a command with one line.

The modules of command lines import this before anything that imports JAX.
"""

import os

from cfn_jax import terminal

try:
  import jax  # noqa: F401
except ValueError as error:
  given = {name: value for name, value in os.environ.items() if name.startswith('JAX_')}
  # Some messages name the variable, some the flag that it sets, some the value alone.
  named = [name for name in given if name in str(error).upper()]
  named = named or [name for name, value in given.items() if value and value in str(error)]
  if not named:
    raise
  asked = ', '.join(f"{name}='{given[name]}'" for name in named)
  terminal.fail(f'{asked}: JAX refuses it ({error}); correct the variable or unset it')
