"""The rule by which a loss has left chance, the warning of a run, and what it advises."""

import math

import pytest

from cfn_jax import command
from cfn_jax.jigsaw import pretext, reports
from cfn_jax.training import plateau

CHANCE = math.log(100)
AT, LOW = CHANCE - 0.068, CHANCE - 0.07  # 0.1 bit is 0.0693 nats


def rows(losses, every=25):
  return [{'step': every * (i + 1), 'train_loss': loss} for i, loss in enumerate(losses)]


@pytest.mark.parametrize(
  ('losses', 'every', 'left'),
  [
    ([AT] * 9, 25, 0),
    ([AT, LOW, LOW, LOW], 25, 50),
    ([AT, LOW, AT, LOW, LOW], 25, 100),  # one low mean alone is none
    ([7.3, 7.1, 6.0, 4.7, 4.61], 25, 0),  # above chance is not left
    ([7.3, 4.0, 3.9], 25, 50),
    ([7.3, 'nan', LOW, 'nan', LOW, LOW], 25, 125),
    ([AT] * 5 + [LOW] * 10, 5, 50),  # means of 25 steps out of rows of 5
    ([AT, AT, LOW, LOW, LOW, LOW, LOW, LOW], 10, 0),  # of 30: (AT, AT, LOW), then LOW alone
    ([AT, AT, AT] + [LOW] * 6, 10, 60),
    ([AT, LOW, LOW], 100, 200),
  ],
)
def test_a_run_has_left_chance_with_the_first_of_two_low_means(losses, every, left):
  assert plateau.find_left(rows(losses, every), CHANCE) == left


def test_rows_of_evaluations_alone_change_nothing():
  found = rows([AT, LOW, LOW])
  mixed = [found[0], {'step': 30, 'val_loss': 1.0}, *found[1:]]
  assert plateau.find_left(mixed, CHANCE) == 50


def warnings(losses, steps, every=25):
  noticed = plateau.Plateau(CHANCE, steps)
  return [row['step'] for row in rows(losses, every) if noticed.check(row)]


def test_a_loss_that_does_not_leave_chance_is_warned_of_once():
  assert warnings([AT] * 8, steps=100) == [100]
  assert warnings([7.3, 7.0] + [AT] * 8, steps=100) == [100]  # as Caffe's initial values start
  assert warnings([AT, AT, LOW, LOW, LOW], steps=100) == []
  assert warnings([LOW, LOW] + [AT] * 8, steps=100) == [150]  # falls back
  assert warnings([AT] * 50, steps=0) == []
  assert warnings(['nan'] * 4, steps=100) == [100]


def test_the_warning_names_both_losses_and_the_advice():
  noticed = plateau.Plateau(CHANCE, 25, advice='Likely: this.')
  assert noticed.check({'step': 25, 'train_loss': 7.25}) == (
    'warning: from step 0 to 25 the training loss did not leave chance (4.605), it is 7.250: the '
    'network learns nothing yet. Likely: this.'
  )


def advise(text, **fields):
  config = command.load_config(text)
  config.update_from_flattened_dict({name.replace('__', '.'): v for name, v in fields.items()})
  return reports.advise(config, pretext.make_questions(config))


def test_the_advice_is_for_the_runs_own_config():
  paper = advise('cfn')
  assert 'permutations_per_pass = 1' in paper and 'init_from' in paper and 'rate' not in paper
  assert advise('cfn:small').startswith('A larger learning_rate')
  assert 'init_from' not in advise('cfn', init_from='runs/hundred')
  assert advise('cfn:small', learning_rate=0.001) == (
    'Likely: learning_rate = 0.001 is low: 0.01 is usual.'
  )
  assert 'warmup_steps = 5,000' in advise('cfn:small', warmup_steps=5000)
  narrow = advise('cfn:small', permutations__num=1000, model__width=0.25)
  assert narrow.endswith('model.width = 0.25 is narrow for that: 0.5 or more.')
  fixed = {'model__permutations_per_pass': 1, 'permutations__fixed_per_image': 1}
  assert 'permutations_per_pass' not in advise('cfn:small', **fixed)  # more cannot be asked
  assert advise('rotation:small') == 'A larger learning_rate may start it.'
  caffe = {'model__init': 'caffe', 'puzzle__tile_scale': 50.0}
  assert advise('cfn:small', **caffe).startswith("Likely: model.init = 'caffe' starts slowly")
  assert 'model.init' in paper and 'model.init' not in advise('cfn', init_from='runs/hundred')
  assert advise('alexnet_to_jigsaw')  # a reference has no init_from
  stacked = {'model__name': 'stacked', 'model__permutations_per_pass': 1}
  assert 'gaps hide them' in advise('cfn:small', **stacked)
  touching = {'puzzle__cell_px': 32, 'puzzle__crop_px': 96, 'puzzle__cell_gap_px': 0}
  assert 'gaps hide' not in advise('cfn:small', **stacked, **touching)
