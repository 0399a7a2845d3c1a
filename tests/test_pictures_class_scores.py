"""The chart of the classes, and the tables on the terminal: nothing is cut or left out."""

import math

import pytest

from cfn_jax.evaluation import tables
from cfn_jax.pictures import class_scores


def test_every_class_and_every_run_stands_in_the_chart(tmp_path):
  rows = {
    'runs/pretrained': {'cat': 0.5, 'cow': None, 'dog': 0.25},
    'random': {'cat': 0.25, 'cow': math.nan, 'dog': 0.125},
  }
  class_scores.draw_class_scores(tmp_path / 'chart.svg', rows)
  text = (tmp_path / 'chart.svg').read_text()
  for word in ('cat', 'cow', 'dog', '50.0%', '12.5%', 'runs/pretrained: mean 37.5%', 'mean 18.8%'):
    assert f'<!-- {word}' in text or f'{word} -->' in text, word
  class_scores.draw_class_scores(tmp_path / 'chart.png', rows)
  assert (tmp_path / 'chart.png').read_bytes()[:4] == b'\x89PNG'


def test_a_table_in_a_file_cuts_no_name_and_marks_what_is_missing(capsys):
  name = '/a/very/long/path/' + 'x' * 150
  tables.show('Title', ['K = 1', 'K = 2'], [[(name, [54.72, None])], [('paper', [12.0])]])
  printed = capsys.readouterr().out
  row = next(line for line in printed.splitlines() if name in line)
  assert row.split()[-2:] == ['54.7', '-']
  assert max(map(len, printed.splitlines())) < 200


@pytest.mark.parametrize(
  ('value', 'text'), [(54.75, '54.8'), (math.nan, '-'), (7, '7'), ('x', 'x')]
)
def test_figures_have_one_decimal(value, text):
  assert tables.write_figure(value) == text
