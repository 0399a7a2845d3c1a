"""Questions: the golden tables, chance figures worked by hand, symmetries, what is refused."""

import json
import math
import pathlib

import numpy as np
import pytest

from cfn_jax.jigsaw import questions
from cfn_jax.jigsaw.permutation_sets import permutations

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / 'shared' / 'golden' / 'pretext_tasks.json'


def golden():
  if not GOLDEN.exists():
    pytest.skip('no golden files')
  return json.loads(GOLDEN.read_text())['relative_position']


@pytest.mark.parametrize(('pairs', 'name'), [('star', 'star'), ('all', 'all_pairs')])
def test_pairs_are_those_of_the_golden_table(pairs, name):
  asked = questions.ask_relative_position(3, pairs)
  assert asked.rows.tolist() == golden()[name]['rows']
  assert asked.answers.tolist() == golden()[name]['classes']
  assert (asked.classes, asked.shown) == (8, 2)


def test_pairs_of_three_by_three_by_hand():
  star, every = (questions.ask_relative_position(3, pairs) for pairs in ('star', 'all'))
  assert star.rows.tolist() == [[4, j] for j in (0, 1, 2, 3, 5, 6, 7, 8)]
  assert star.answers.tolist() == list(range(8))
  assert len(every) == 40 and np.bincount(every.answers).tolist() == [4, 6, 4, 6, 6, 4, 6, 4]
  # The star's rows are among all, with the same answers.
  answers = dict(zip(map(tuple, every.rows.tolist()), every.answers.tolist()))
  assert all(answers[tuple(row)] == a for row, a in zip(star.rows.tolist(), star.answers.tolist()))


@pytest.mark.parametrize('grid', [2, 3, 4, 5])
def test_swapping_reference_and_neighbour_turns_class_c_into_7_minus_c(grid):
  every = questions.ask_relative_position(grid, 'all')
  answers = dict(zip(map(tuple, every.rows.tolist()), every.answers.tolist()))
  assert len(answers) == len(every)
  for (a, b), answer in answers.items():
    assert answers[b, a] == 7 - answer
    down, right = questions.AROUND[answer]
    assert (b // grid - a // grid, b % grid - a % grid) == (down, right)


def test_chance_is_the_majority_share_and_the_entropy_of_the_answers():
  every = questions.ask_relative_position(3, 'all')
  assert every.chance_accuracy == pytest.approx(0.15)
  by_hand = -(4 * 0.15 * math.log(0.15) + 4 * 0.1 * math.log(0.1))
  assert every.chance_loss == pytest.approx(by_hand) and by_hand == pytest.approx(2.0593, abs=1e-4)
  asked = questions.ask_jigsaw(permutations.make_permutations(24, grid=3))
  assert asked.chance_loss == pytest.approx(math.log(24)) and asked.chance_accuracy == 1 / 24
  turned = questions.ask_rotation()
  assert (turned.chance_accuracy, turned.chance_loss) == (0.25, pytest.approx(math.log(4)))
  assert (turned.rows.tolist(), turned.answers.tolist()) == ([[0], [1], [2], [3]], [0, 1, 2, 3])


def test_answers_that_a_small_grid_never_has_count_for_nothing():
  every = questions.ask_relative_position(2, 'all')
  assert len(every) == 12 and every.chance_loss <= math.log(8)


def test_fingerprints_tell_tasks_and_rows_apart():
  made = [
    questions.ask_rotation(),
    questions.ask_relative_position(3, 'star'),
    questions.ask_relative_position(3, 'all'),
    questions.ask_jigsaw(np.array([[0, 1, 2, 3], [3, 2, 1, 0]], np.uint8)),
    questions.ask_jigsaw(np.array([[3, 2, 1, 0], [0, 1, 2, 3]], np.uint8)),
  ]
  assert len({asked.fingerprint for asked in made}) == len(made)
  assert made[0].fingerprint == questions.ask_rotation().fingerprint


@pytest.mark.parametrize(
  ('grid', 'pairs', 'message'),
  [
    (1, 'all', 'puzzle.grid = 1: a tile has no neighbours'),
    (4, 'star', "puzzle.grid = 4: it has no middle tile for pairs = 'star'"),
    (3, 'some', "pairs = 'some' is unknown: one of star, all"),
  ],
)
def test_what_cannot_be_asked_is_refused(grid, pairs, message):
  with pytest.raises(ValueError, match=message):
    questions.ask_relative_position(grid, pairs)
