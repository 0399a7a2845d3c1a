"""Docstrings say the shapes of arrays, in the field's words."""

import ast
import pathlib
import re

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
FILES = sorted((REPOSITORY / 'cfn_jax').rglob('*.py'))
# Annotations that hold an array, itself or in a container.
ARRAY = re.compile(r'\b(np\.ndarray|jax\.Array|Array)\b')
SHAPE = re.compile(r'`\[[^`]*\]`')
# Words of a docstring or comment that make a sentence hard to read.
RIDDLES = re.compile(r'\b(Gives|so many|goes on|go on|gone through|is gone)\b')


def _public_functions(tree):
  """Returns the public functions of a module and the public methods of its public classes."""
  for node in tree.body:
    if isinstance(node, ast.ClassDef) and not node.name.startswith('_'):
      yield from (each for each in node.body if isinstance(each, ast.FunctionDef))
    elif isinstance(node, ast.FunctionDef):
      yield node


def _takes_or_returns_arrays(function):
  parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
  parameters += filter(None, (function.args.vararg, function.args.kwarg))
  annotations = [*(each.annotation for each in parameters), function.returns]
  return any(ARRAY.search(ast.unparse(each)) for each in annotations if each)


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_functions_of_arrays_name_shapes(path):
  """Each public function that takes or returns arrays has a shape `[...]` in its docstring."""
  missing = [
    f'{path.name}:{function.lineno} {function.name}'
    for function in _public_functions(ast.parse(path.read_text()))
    if not function.name.startswith('_') and _takes_or_returns_arrays(function)
    if not SHAPE.search(ast.get_docstring(function) or '')
  ]
  assert not missing
