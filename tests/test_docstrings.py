"""Docstrings name the shapes of arrays, and open with a verb; no sentence is a riddle."""

import ast
import io
import pathlib
import re
import tokenize

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
FILES = sorted((REPOSITORY / 'cfn_jax').rglob('*.py'))
# Annotations that hold an array, itself or in a container.
ARRAY = re.compile(r'\b(np\.ndarray|jax\.Array|Array)\b')
SHAPE = re.compile(r'`\[[^`]*\]`')
# Turns that make a sentence hard to read; the field's words are returns, resumes, skipped, ...
RIDDLES = re.compile(
  r'\b(Gives|so many|that many|goes on|gone through|told apart|passed over|anew)\b'
)


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


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_docstrings_of_functions_open_with_a_verb(path):
  """In the third person, as in 'Returns': subject first, present tense."""
  for node in ast.walk(ast.parse(path.read_text())):
    text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
    assert not text or re.match(r'[A-Z][a-z]+s\b', text), f'{path.name}:{node.lineno} {text}'


def _prose(path):
  """Returns the docstrings and comments of a file."""
  text = path.read_text()
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
      yield ' '.join((ast.get_docstring(node) or '').split())
  for token in tokenize.generate_tokens(io.StringIO(text).readline):
    if token.type == tokenize.COMMENT:
      yield token.string


def test_sentences_are_no_riddles():
  for path in (*FILES, *sorted((REPOSITORY / 'configs').rglob('*.py'))):
    for text in _prose(path):
      assert not RIDDLES.search(text), f'{path.name}: {text}'
