"""Each command's --help fits 80 columns, ends with examples, and names what can be set."""

import ast
import re
import shlex

import help_cases
import pytest

from cfn_jax import arguments, config_files


@pytest.mark.parametrize('command', help_cases.COMMANDS)
def test_help_fits_80_columns_and_ends_with_examples(command):
  text = help_cases.help_of(command)
  assert max(map(len, text.splitlines())) <= 80
  prose, _, examples = text.partition('\nexamples:\n')
  assert f'usage: python -m cfn_jax.{command}' in prose
  commands = re.sub(r'\\\n', ' ', examples).strip().splitlines()
  shown = [shlex.split(line, comments=True) for line in commands]
  assert [words for words in shown if words], text
  for words in filter(None, shown):
    assert words[:2] == ['python', '-m'] and words[2].startswith('cfn_jax.'), words


@pytest.mark.parametrize('command', help_cases.COMMANDS)
def test_the_examples_name_flags_that_exist(command):
  lines = re.sub(r'\\\n', ' ', help_cases.help_of(command)).splitlines()
  shown = [line for line in lines if line.startswith('  python -m ')]
  assert shown
  for line in shown:
    help_cases.check_command(line)


def test_main_lists_its_flags_the_configs_and_three_examples():
  text = help_cases.help_of('main')
  assert '--config=' in text and '--config.FIELD=VALUE' in text and '--workdir=' in text
  for name in config_files.list_names():
    first = ast.get_docstring(ast.parse((config_files.find_folder() / f'{name}.py').read_text()))
    (line,) = re.findall(rf'^  {name} .*$', text, re.MULTILINE)
    assert line.split(maxsplit=1)[1] == first.split('\n')[0]
  assert text.partition('\nexamples:\n')[2].count('python -m cfn_jax.main') == 3


def test_help_needs_no_config_that_can_be_read():
  assert help_cases.run_help('main', '--config=none', '-h') == help_cases.help_of('main')


def test_a_comment_of_an_example_stands_above_it(capsys):
  about = (
    'Does it.\n\n    python -m cfn_jax.x --a=1  # once\n    python -m cfn_jax.x --b=' + 'y' * 70
  )
  parser = arguments.Parser('cfn_jax.x', about)
  parser.add_argument('--a', required=True, choices=('', 'one'), help='what')
  parser.print_help()
  said = capsys.readouterr().out
  assert '  # once\n  python -m cfn_jax.x --a=1\n  python -m cfn_jax.x \\\n      --b=yyy' in said
  assert '--a={one}' in said and 'what (required)' in said
