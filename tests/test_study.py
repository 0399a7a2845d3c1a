"""Studies: what is declared is checked, run once, split, resumed, judged and shown as it is."""

import csv
import dataclasses
import itertools
import json
import math
import pathlib
import re
import shutil
import subprocess

import labelled_cases
import PIL.Image
import pytest
import test_main

from cfn_jax import command, config_files, places, study
from cfn_jax.buckets import addresses
from cfn_jax.errors import CfnError
from cfn_jax.report import images, page
from cfn_jax.studies import (
  conduct,
  declaration,
  disk,
  executions,
  plan,
  runner,
  table,
  verdicts,
)
from cfn_jax.training import stopping

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
POPEN = subprocess.Popen
TINY = {
  'num_steps': 4,
  'batch_size': 8,
  'data.crops_per_photograph': 4,
  'data.val_crops_per_photograph': 4,
  'model.width': 0.1,
}
DECLARED = {
  'title': 'A study',
  'fields': {'permutations.num': 8, 'model.permutations_per_pass': 8},
  'figures': {
    'accuracy': {'take': ('', 'val_accuracy'), 'unit': '%'},
    'overfit': {'take': ('', 'train_accuracy'), 'minus': ('', 'val_accuracy'), 'unit': '%'},
    'left': {'take': ('', 'left_images'), 'unit': 'images'},
    'solved': {'take': ('solve', 'pretrained', 'network', 'bits'), 'unit': 'bits'},
  },
  'evaluations': {'solve': {'config': 'solve:small', 'fields': {'baseline': False}}},
  'runs': {
    'a': {'seeds': (0, 1), 'paper': {'accuracy': 88}},
    'b': {'fields': {'puzzle.channel_shift_px': 0}, 'seeds': (0, 1), 'evaluations': ('solve',)},
    'c': {'fields': {'permutations.num': 9}, 'start': 'a', 'stop_when_left': True},
  },
  'claims': [{'says': 'b is easier', 'figure': 'accuracy', 'higher': 'b', 'lower': 'a'}],
}


def declare(**changes):
  return declaration.read('mine', DECLARED | changes)


def make_plan(workdir, declared=None, **options):
  return plan.Planner(
    declared or declare(),
    config_text='cfn:tiny',
    given=options.pop('given', TINY),
    workdir=workdir,
    **options,
  ).plan()


class Runner:
  """Stands for the main command: writes what a run logs, and fails where it is told to."""

  def __init__(self, workdir, accuracy=lambda name: 0.5, fails=(), losses=(2.0, 1.5, 1.4, 1.3)):
    self.workdir, self.accuracy, self.fails = workdir, accuracy, fails
    self.losses, self.called, self.stopped = losses, [], []

  def __call__(self, arguments, watch):
    told = dict(argument[2:].split('=', 1) for argument in arguments)
    folder = pathlib.Path(told['workdir'])
    self.called.append(folder.name)
    if folder.name in self.fails:
      return 'out of memory'
    if 'weights' in ''.join(arguments):
      found = {'runs': {'pretrained': {'network': {'bits': 1.5}}}}
      places.write_json(folder / 'results.json', found)
      return ''
    rows = [
      {'step': 25 * i + 25, 'train_loss': loss, 'train_accuracy': 0.75, 'images_per_second': 4.0}
      for i, loss in enumerate(self.losses)
    ]
    rows[-1] |= {'val_accuracy': self.accuracy(folder.name), 'val_loss': 1.2}
    text = ''
    for row in rows:
      text += json.dumps(row) + '\n'
      (folder / 'metrics.jsonl').write_text(text)
      if watch():
        self.stopped.append(folder.name)
        break
    (folder / 'metrics.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return ''


@pytest.fixture(autouse=True)
def _draw_nothing(monkeypatch, request):
  """Pictures take a second each: only tests that look at one draw it."""
  if 'picture' not in request.node.name:
    monkeypatch.setattr(table.pictures, 'draw_study', lambda *arguments: None)


def go(workdir, fake, declared=None, planned=None, **options):
  declared = declared or declare()
  planned = planned or make_plan(workdir, declared)
  options.setdefault('report', False)
  return conduct.conduct(declared, planned, workdir, run_one=fake, **options)


# ---- verdicts


def values(*numbers):
  return {seed: verdicts.Value(number) for seed, number in enumerate(numbers)}


@pytest.mark.parametrize(
  ('higher', 'lower', 'word'),
  [
    # Means 12 and 10; deviations sqrt(2)/2 each, pooled 0.7071: 2 > 1.4142.
    ((11.5, 12.5), (9.5, 10.5), 'confirmed'),
    ((9.5, 10.5), (11.5, 12.5), 'refuted'),
    # Deviations sqrt(2) each, pooled 1.4142: 2 < 2.8284.
    ((11, 13), (9, 11), 'open'),
    # Pooled sqrt((0 + 2) / 2) = 1: the difference is exactly twice that.
    ((12, 12), (9, 11), 'open'),
    ((12.01, 12.01), (9, 11), 'confirmed'),
    ((12, 12), (9, 13), 'open'),  # one pair has another sign
    ((12,), (1,), 'open'),  # one seed
    ((12, 13), (1,), 'open'),
    ((), (1, 1), 'open'),
  ],
)
def test_verdicts_against_values_worked_by_hand(higher, lower, word):
  assert verdicts.judge(values(*higher), values(*lower)).word == word


def test_one_pair_of_another_sign_leaves_it_open_however_large_the_mean():
  assert verdicts.judge(values(*[12] * 9, 1.9), values(*[2] * 10)).word == 'open'


def test_a_run_that_never_left_counts_as_later_where_that_is_known():
  never = {seed: verdicts.Value(100.0, beyond=True) for seed in (0, 1)}
  assert verdicts.judge(never, values(10, 11)).word == 'confirmed'
  assert verdicts.judge(values(10, 11), never).word == 'refuted'
  assert verdicts.judge(never, values(150, 151)).word == 'open'
  assert verdicts.judge(values(150, 151), never).word == 'open'
  assert verdicts.judge(never, never).word == 'open'


# ---- the declaration


LARGE = ('permutations', 'plateau')


def mark_large(name):
  """Its sets of a thousand and its prunings take seconds."""
  return pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else [])


@pytest.mark.parametrize('name', [mark_large(name) for name in declaration.list_names()])
def test_a_study_that_comes_with_the_package_can_be_planned(name, tmp_path):
  given = {
    'data.source': 'bundled',
    'data.crops_per_photograph': 2,
    'data.val_crops_per_photograph': 2,
  }
  found = declaration.load(name)
  for kind, number in itertools.product('ab', range(20)):
    folder = tmp_path / 'images' / kind
    folder.mkdir(parents=True, exist_ok=True)
    PIL.Image.new('RGB', (8, 8)).save(folder / f'{number}.png')
  planned = plan.Planner(
    found,
    config_text='cfn:small',
    given=given,
    workdir=tmp_path,
    labelled_root=str(tmp_path / 'images'),
  ).plan()
  assert {each.run for each in planned} == {*found.runs}
  assert len({each.name for each in planned}) == len(planned)


def test_an_evaluation_without_labels_is_refused_at_once_and_can_be_left_out(tmp_path):
  found = declaration.load('shortcuts')
  given = {'data.source': 'folder', 'data.root': str(tmp_path / 'flat')}
  (tmp_path / 'flat').mkdir()
  for i in range(40):
    PIL.Image.new('RGB', (128, 128)).save(tmp_path / 'flat' / f'{i}.png')
  options = {'config_text': 'cfn:small', 'given': given, 'workdir': tmp_path / 'w'}
  with pytest.raises(declaration.StudyError, match=r'evaluation frozen of run all_on.*--labelled'):
    plan.Planner(found, **options).plan()
  left = plan.Planner(declaration.leave_out(found, ['frozen']), **options).plan()
  assert len(left) == 7 and not any(each.evaluation for each in left)
  with pytest.raises(declaration.StudyError, match="'frosen'; did you mean 'frozen'"):
    declaration.leave_out(found, ['frosen'])


def test_the_sets_of_table_4_are_those_of_the_paper():
  fields = {n: run.fields for n, run in declaration.load('permutations').runs.items()}
  sizes = [(f['permutations.num'], f['permutations.min_distance']) for f in fields.values()
           if 'permutations.min_distance' in f]  # fmt: skip
  assert sizes == [(95, 3), (85, 4), (71, 5), (35, 6), (10, 7), (7, 8), (6, 9)]


def test_the_27_channel_network_costs_what_the_cfn_costs():
  import jax
  import jax.numpy as jnp

  from cfn_jax.jigsaw import network
  from cfn_jax.models import alexnet

  found = declaration.load('alternatives')
  costs = {}
  for name, run in found.runs.items():
    config = command.load_config('cfn:small')
    config.update_from_flattened_dict({**found.fields, **run.fields})
    model, side = network.make_model(config, 24), config.puzzle.tile_px
    k = config.model.permutations_per_pass
    shapes = alexnet.parameter_shapes(model, (1, 9, side, side, 3))
    inputs = [jax.ShapeDtypeStruct((1, 9, side, side, 3), jnp.float32)]
    inputs += [jax.ShapeDtypeStruct((1, k, 9), jnp.int32)] if k > 1 else []
    lowered = jax.jit(lambda p, *a, m=model: m.apply({'params': p}, *a)).lower(shapes, *inputs)
    costs[name] = lowered.cost_analysis()['flops'] * config.num_steps
  assert max(costs.values()) / min(costs.values()) < 1.03, costs


@pytest.mark.parametrize(
  ('changes', 'says'),
  [
    ({'run': {}}, "study mine: there is no part 'run'; did you mean 'runs'?"),
    ({'title': 3}, "'title' = 3: a str is needed"),
    ({'runs': {}}, 'it needs runs and figures'),
    ({'runs': {'a b': {}}}, 'a name is letters, digits and _'),
    ({'runs': {'a': {'fields': {'seed': 1}}}}, "the seeds of a run are its 'seeds'"),
    ({'fields': {'seed': 1}}, "the seeds of a run are its 'seeds'"),
    ({'runs': {'a': {'fields': {3: 1}}}}, 'fields: 3 is no name'),
    ({'runs': {'a': {'seed': 1}}}, "there is no part 'seed'; did you mean 'seeds'?"),
    ({'runs': {'a': {'seeds': (0, 0)}}}, 'one is named twice'),
    ({'runs': {'a': {'seeds': (-1,)}}}, 'whole numbers'),
    ({'runs': {'a': {'evaluations': ('sovle',)}}}, "no evaluation 'sovle'; did you mean 'solve'?"),
    ({'runs': {'a': {'start': 'z'}}}, "there is no start 'z'"),
    ({'runs': {'a': {'start': 'b'}, 'b': {'start': 'a'}}}, 'its start leads back'),
    ({'runs': {'a': {}, 'b': {'start': 'a', 'seeds': (1,)}}}, 'its start a has only (0,)'),
    ({'runs': {'a': {'paper': {'acuracy': 1}}}}, "did you mean 'accuracy'?"),
    ({'runs': {'a': {'paper': {'accuracy': '88'}}}}, 'a number is needed'),
    ({'figures': {'x': {'take': ('', 'y'), 'unit': 'percent'}}}, "there is no unit 'percent'"),
    ({'figures': {'x': {'take': ('y',), 'unit': '%'}}}, 'are needed'),
    ({'claims': [{'says': 's', 'figure': 'left', 'higher': 'a', 'lower': 'd'}]}, "no run 'd'"),
    ({'claims': [{'says': 's', 'figure': 'left', 'higher': 'a', 'lower': 'a'}]}, 'with itself'),
    ({'claims': [{'says': 's', 'figure': 'left', 'higher': 'a'}]}, "it has no 'lower'"),
    ({'claims': [*DECLARED['claims'], *DECLARED['claims']]}, "'b is easier' stands there twice"),
    (
      {'claims': [{'says': 's', 'figure': 'solved', 'higher': 'b', 'lower': 'a'}]},
      "run a has no evaluation 'solve'",
    ),
    ({'figures': {3: {'take': ('', 'y'), 'unit': '%'}}}, 'figure 3: its name is a heading'),
  ],
)
def test_what_is_wrong_in_a_declaration_is_named(changes, says):
  with pytest.raises(declaration.StudyError, match=re.escape(says)):
    declare(**changes)


def test_a_declaration_is_frozen():
  with pytest.raises(dataclasses.FrozenInstanceError):
    declare().title = 'another'


def test_a_study_of_ones_own_is_a_file_and_an_unknown_name_is_guessed(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(f'def get_study():\n  return {DECLARED!r}\n')
  assert declaration.load(str(path)) == declare()
  with pytest.raises(declaration.StudyError, match="did you mean 'shortcuts'"):
    declaration.load('shortcut')
  path.write_text('x = 1\n')
  with pytest.raises(config_files.ConfigError, match='is no study: it has no get_study'):
    declaration.load(str(path))
  path.write_text('def get_study():\n  return 1 / 0\n')
  with pytest.raises(config_files.ConfigError, match=r'mine.py:2: ZeroDivisionError'):
    declaration.load(str(path))


def test_the_study_in_the_documentation_can_be_read():
  text = (REPOSITORY / 'docs' / 'studies.md').read_text()
  made = {}
  exec(re.search(r'```python\n(.*?)```', text, re.DOTALL)[1], made)
  found = declaration.read('documented', made['get_study']())
  planned = make_plan(REPOSITORY / 'nowhere', found, given=TINY | {'eval_every_steps': 3})
  assert [each.name for each in planned] == ['third_s0', 'third_s1', 'all_s0', 'all_s1']


# ---- the plan


def test_a_run_is_also_what_its_start_is(tmp_path):
  """c sets its own number of permutations; its start takes the one of the command line."""
  c, other = (
    make_plan(tmp_path, declare(fields={'model.permutations_per_pass': 8}), given=TINY | given)[-1]
    for given in ({'permutations.num': 8}, {'permutations.num': 10})
  )
  assert (c.name, c.config.permutations.num) == ('c_s0', other.config.permutations.num)
  changed = {n for n in c.identity if c.identity[n] != other.identity[n]}
  assert changed >= {'start.permutations.num'} and all(n.startswith('start.') for n in changed)
  fake = Runner(tmp_path)
  go(tmp_path, fake, planned=[c])
  with pytest.raises(declaration.StudyError, match='other settings') as told:
    go(tmp_path, fake, planned=[other])
  assert 'start.permutations.num: 8 then, 10 now' in str(told.value.args)


@pytest.mark.parametrize(
  ('fields', 'says'),
  [
    ({'puzzle.chanel_shift_px': 0}, "run b: the config has no field 'puzzle.chanel_shift_px'; did"),
    ({'puzzle': 0}, "run b: 'puzzle' is a section"),
    ({'puzzle.channel_shift_px': 'x'}, 'run b: puzzle.channel_shift_px'),
    ({'decay_steps': 7}, 'run b: decay_steps = 7 has no effect'),
    ({'puzzle.cell_px': 500}, 'run b: 3 cells of puzzle.cell_px = 500 need'),
    (
      {'permutations.fixed_per_image': 1},
      '8 times data.puzzles_per_image = 1: from 1 to the 1 p',
    ),
    ({'learning_rate': -1.0}, 'run b: learning_rate'),
    ({'keep_best': 0}, 'runs a and b of the study differ in nothing'),
    ({'permutations.num': 8}, 'runs a and b of the study differ in nothing'),
  ],
)
def test_what_no_run_can_have_is_refused_before_any(fields, says, tmp_path):
  with pytest.raises(CfnError, match=re.escape(says)):
    make_plan(tmp_path, declare(runs={'a': {}, 'b': {'fields': fields}}, claims=[]))
  assert not [*tmp_path.iterdir()]


def test_a_study_changes_nothing_where_the_command_line_says_otherwise(tmp_path):
  declared = declare(runs={'a': {'fields': {'learning_rate': 0.01}}, 'b': {}}, claims=[])
  given = TINY | {'permutations.num': 12, 'learning_rate': 0.03}
  a, b = (each.config for each in make_plan(tmp_path, declared, given=given))
  assert (a.permutations.num, a.learning_rate, b.learning_rate) == (12, 0.01, 0.03)
  assert (a.keep_latest, a.keep_best, a.report) == (1, 0, False)
  all_set = declare(runs={'a': {'fields': {'learning_rate': 0.01}}}, claims=[])
  with pytest.raises(CfnError, match='learning_rate has no effect: each run'):
    make_plan(tmp_path, all_set, given=given)
  with pytest.raises(CfnError, match='--seeds'):
    make_plan(tmp_path, given=TINY | {'seed': 1})


def test_a_run_starts_from_the_checkpoint_of_its_seed_and_so_does_an_evaluation(tmp_path):
  found = {each.name: each for each in make_plan(tmp_path)}
  assert [*found] == ['a_s0', 'a_s1', 'b_s0', 'b_s0-solve', 'b_s1', 'b_s1-solve', 'c_s0']
  assert f'--config.init_from={tmp_path / "a_s0"}' in found['c_s0'].command(tmp_path)
  assert f'--config.weights={tmp_path / "b_s1"}' in found['b_s1-solve'].command(tmp_path)
  assert '--config=solve:small' in found['b_s1-solve'].command(tmp_path)
  assert '--config.seed=1' in found['a_s1'].command(tmp_path)


def test_parts_share_out_all_runs_and_keep_chains_together(tmp_path):
  planned = make_plan(tmp_path)
  for parts in range(1, 7):
    found = [executions.split(planned, part, parts) for part in range(1, parts + 1)]
    names = [each.name for some in found for each in some]
    assert sorted(names) == sorted(each.name for each in planned)
    for some in found:
      inside = {each.name for each in some}
      assert all(not each.start or each.start in inside for each in some)
  first, second = (executions.split(planned, part, 2) for part in (1, 2))
  assert first and second


def test_too_little_disk_is_said_before_the_start(tmp_path, monkeypatch):
  planned = make_plan(tmp_path)
  sizes = [each.checkpoint_bytes for each in planned]
  a = planned[0]
  assert a.config.solver == 'caffe' and min(sizes[:2]) == 8 * count_parameters(a.config)
  needed = sum(sizes) + max(sizes)
  assert disk.count_needed(planned, tmp_path) == needed
  for free in (needed - 1, needed):
    usage = type('usage', (), {'free': free})
    monkeypatch.setattr(disk.shutil, 'disk_usage', lambda path, usage=usage: usage)
    fake = Runner(tmp_path / 'w')
    if free < needed:
      with pytest.raises(declaration.StudyError, match='too little disk'):
        go(tmp_path / 'w', fake, planned=make_plan(tmp_path / 'w'))
      assert not fake.called and not (tmp_path / 'w').exists()
    else:
      disk.check(planned, tmp_path)


def test_checkpoints_that_are_there_need_no_more_disk(tmp_path):
  planned = make_plan(tmp_path)
  needed, saved = disk.count_needed(planned, tmp_path), planned[0].checkpoint_bytes // 2
  step = tmp_path / 'a_s0' / 'checkpoints' / '2'
  step.mkdir(parents=True)
  (step / 'arrays').write_bytes(bytes(saved))
  assert disk.count_needed(planned, tmp_path) == needed - saved
  (step / 'arrays').write_bytes(bytes(4 * saved))  # more than is planned
  assert disk.count_needed(planned, tmp_path) == needed - planned[0].checkpoint_bytes


def test_runs_in_a_bucket_need_the_disk_of_the_largest_alone(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  workdir = addresses.make_stage(addresses.Address('gs', 'bucket', 'studies/a'), 'study')
  planned = make_plan(tmp_path)
  largest = max(each.checkpoint_bytes for each in planned)
  for free in (2 * largest - 1, 2 * largest):
    usage = type('usage', (), {'free': free})
    monkeypatch.setattr(disk.shutil, 'disk_usage', lambda path, usage=usage: usage)
    if free < 2 * largest:
      with pytest.raises(declaration.StudyError, match=r'^gs://bucket/studies/a: too little disk'):
        disk.check(planned, workdir)
    else:
      disk.check(planned, workdir)


def test_parts_that_end_together_both_show_all(tmp_path):
  """A part ends, and publishes its table, while this one draws its own."""
  planned, fetched = make_plan(tmp_path), []
  first, second = (executions.split(planned, part, 2) for part in (1, 2))
  go(tmp_path, Runner(tmp_path), planned=planned, part=(1, 2))

  def sync():
    fetched.append(json.loads((tmp_path / 'results.json').read_text())['runs'])
    if len(fetched) == 2:
      go(tmp_path, Runner(tmp_path), planned=planned, part=(2, 2))
      (tmp_path / 'results.json').write_text('{"runs": {}}')  # what the slower one sends

  go(tmp_path, Runner(tmp_path), planned=planned, part=(1, 2), sync=sync)
  results = json.loads((tmp_path / 'results.json').read_text())['runs']
  assert len(fetched) == 2 and first and second
  assert all(row for row in results.values()) and results


def count_parameters(config):
  from cfn_jax.jigsaw import network
  from cfn_jax.models import alexnet

  model, side = network.make_model(config, config.permutations.num), config.puzzle.tile_px
  return alexnet.count_parameters(alexnet.parameter_shapes(model, (1, 9, side, side, 3)))


# ---- running


def test_a_study_runs_all_once_and_resumes_with_what_is_left(tmp_path):
  fake = Runner(tmp_path)
  assert go(tmp_path, fake) == []
  assert fake.called == [each.name for each in make_plan(tmp_path)]
  again = Runner(tmp_path)
  go(tmp_path, again)
  assert again.called == []
  (tmp_path / 'b_s1' / 'results.json').unlink()
  go(tmp_path, again)
  assert again.called == ['b_s1', 'b_s1-solve']
  places.write_json(tmp_path / 'a_s1' / 'execution.json', {
    **places.read_json(tmp_path / 'a_s1' / 'execution.json'), 'state': 'started'
  })  # fmt: skip
  more = Runner(tmp_path)
  go(tmp_path, more)
  assert more.called == ['a_s1']


def test_a_failed_run_is_named_and_leaves_a_hole_and_the_others_run(tmp_path, capsys):
  fake = Runner(tmp_path, fails=('a_s0',))
  assert go(tmp_path, fake) == ['a_s0', 'c_s0']
  assert fake.called == ['a_s0', 'a_s1', 'b_s0', 'b_s0-solve', 'b_s1', 'b_s1-solve']
  results = places.read_json(tmp_path / 'results.json')['runs']
  assert results['a']['missing'] == 'seed 0: failed: out of memory'
  assert (results['a']['accuracy'], results['a']['accuracy, by seed']) == (50, {'1': 50})
  assert results['c']['accuracy'] is None and 'a_s0 failed' in results['c']['missing']
  text = (tmp_path / 'table.md').read_text()
  assert '| a | 50.00 (failed) [88] |' in text and '| c | failed |' in text
  assert '- missing: a_s0: failed: out of memory' in text
  out = capsys.readouterr()
  assert 'a_s0 failed: out of memory; the others run' in out.err
  assert 'missing: c_s0: failed: a_s0 failed' in out.out
  mended = Runner(tmp_path)
  assert go(tmp_path, mended) == [] and mended.called == ['a_s0', 'c_s0']
  assert 'missing' not in places.read_json(tmp_path / 'results.json')['runs']['a']


def test_another_config_in_the_place_of_a_run_is_refused(tmp_path):
  go(tmp_path, Runner(tmp_path))
  fake, given = Runner(tmp_path), TINY | {'learning_rate': 0.5}
  with pytest.raises(declaration.StudyError, match='a_s0 holds a run with other settings') as error:
    go(tmp_path, fake, planned=make_plan(tmp_path, given=given))
  assert 'learning_rate: 0.02 then, 0.5 now' in str(error.value) and not fake.called
  given = TINY | {'data.crops_per_photograph': 5}  # other images
  with pytest.raises(declaration.StudyError, match='other settings'):
    go(tmp_path, fake, planned=make_plan(tmp_path, given=given))
  given = TINY | {'eval_every_steps': 2, 'data.num_workers': 1}  # changes no figure
  go(tmp_path, fake, planned=make_plan(tmp_path, given=given))
  assert not fake.called
  (tmp_path / 'w' / 'a_s0').mkdir(parents=True)
  (tmp_path / 'w' / 'a_s0' / 'config.json').write_text('{}')
  with pytest.raises(declaration.StudyError, match='no study began'):
    go(tmp_path / 'w', fake)


def test_a_run_that_is_made_again_is_evaluated_again(tmp_path):
  go(tmp_path, Runner(tmp_path))
  shutil.rmtree(tmp_path / 'b_s0')
  fake = Runner(tmp_path)
  go(tmp_path, fake)
  assert fake.called == ['b_s0', 'b_s0-solve']


def test_a_run_stops_when_it_has_left_chance_if_that_is_all_it_is_for(tmp_path):
  fake = Runner(tmp_path)
  go(tmp_path, fake)
  assert fake.stopped == ['c_s0']
  figures = places.read_json(tmp_path / 'c_s0' / 'results.json')['runs']['run']
  # Of ln 9 = 2.197 nats: 2.0 is below by more than 0.1 bit, and so is the next mean.
  assert (figures['left_step'], figures['left_images']) == (25, 200)
  assert figures['left_seconds'] == pytest.approx(25 * 8 / 4)
  assert figures['chance_loss'] == pytest.approx(math.log(9))


def test_a_run_that_never_left_is_shown_as_beyond_its_budget(tmp_path):
  go(tmp_path, Runner(tmp_path, losses=(7.3, 2.3, 2.2)))
  results = places.read_json(tmp_path / 'results.json')['runs']
  assert results['a']['left'] == '> 32 ± 0'  # 4 steps of 8 images
  assert '> 32 ± 0' in (tmp_path / 'table.md').read_text()


def test_the_first_run_is_timed_unless_a_rate_is_known(tmp_path, capsys):
  go(tmp_path, Runner(tmp_path), images_per_second=8.0, dry_run=True)
  told = capsys.readouterr().err
  # 5 runs of 4 steps of 8 images.
  assert '20, 160 image visits' in told and '--images-per-second' in told
  assert not (tmp_path / 'study.json').exists()
  fake = Runner(tmp_path, fails=('b_s0',))
  go(tmp_path, fake)
  told = capsys.readouterr().err
  assert 'measured in the first run' in told and told.count('4 images a second: about') == 1
  go(tmp_path, Runner(tmp_path))
  told = capsys.readouterr().err
  assert '(as a_s0 had)' in told and 'images a second: about' not in told


def test_a_run_that_had_left_chance_is_stopped_when_it_has_logged_again(tmp_path):
  """Before, it is on its way to its loop, and a signal would end it as a failure."""
  go(tmp_path, Runner(tmp_path))
  (tmp_path / 'c_s0' / 'results.json').unlink()
  watched = []

  def run_one(arguments, watch):
    watched.append(watch())
    row = {'step': 200, 'train_loss': 1.0, 'images_per_second': 4.0}
    with (tmp_path / 'c_s0' / 'metrics.jsonl').open('a') as file:
      file.write(json.dumps(row) + '\n')
    watched.append(watch())
    return ''

  go(tmp_path, run_one)
  assert watched == [False, True]


def test_what_was_trained_counts_no_more_in_the_estimate(tmp_path, capsys):
  planned = make_plan(tmp_path)
  assert sum(each.visits for each in planned) == 5 * 4 * 8
  (tmp_path / 'a_s0').mkdir()
  (tmp_path / 'a_s0' / 'metrics.jsonl').write_text('{"step": 1}\n{"step": 3}\n')
  go(tmp_path, Runner(tmp_path), planned=planned, dry_run=True)
  assert '17, 136 image visits' in capsys.readouterr().err


def test_a_start_that_is_made_again_for_a_chosen_run_is_tested_again(tmp_path):
  runs = {
    'b': {'evaluations': ('solve',)},
    'c': {'fields': {'permutations.num': 9}, 'start': 'b', 'evaluations': ('solve',)},
  }
  declared = declare(runs=runs, claims=[])
  planned = make_plan(tmp_path, declared)
  go(tmp_path, Runner(tmp_path), declared, planned)
  for name in ('b_s0', 'c_s0'):
    shutil.rmtree(tmp_path / name)
  fake = Runner(tmp_path)
  go(tmp_path, fake, declared, planned, chosen=['c'])
  assert fake.called == ['b_s0', 'b_s0-solve', 'c_s0', 'c_s0-solve']


def test_what_is_to_be_tested_again_is_known_after_a_stop_too(tmp_path):
  evaluations = {name: DECLARED['evaluations']['solve'] for name in ('one', 'two')}
  declared = declare(
    runs={'b': {'evaluations': ('one', 'two')}}, evaluations=evaluations,
    figures={'accuracy': DECLARED['figures']['accuracy']}, claims=[],
  )  # fmt: skip
  planned = make_plan(tmp_path, declared)
  go(tmp_path, Runner(tmp_path), declared, planned)
  shutil.rmtree(tmp_path / 'b_s0')

  def stop(arguments, watch):
    if arguments[1].endswith('-one'):
      raise stopping.Stopped('SIGTERM', 143)
    return Runner(tmp_path)(arguments, watch)

  with pytest.raises(stopping.Stopped):
    go(tmp_path, stop, declared, planned)
  fake = Runner(tmp_path, fails=('b_s0-two',))
  assert go(tmp_path, fake, declared, planned) == ['b_s0-two']
  assert fake.called == ['b_s0-one', 'b_s0-two']


def test_other_labelled_images_are_another_study(tmp_path):
  planned = []
  for seed in (0, 1):
    images = labelled_cases.make_class_folders(tmp_path / f'images{seed}', train=40 + seed)
    declared = declare(
      runs={'a': {'evaluations': ('frozen',)}},
      evaluations={'frozen': {'config': 'frozen_layers:small', 'fields': {'baseline': False}}},
      figures={'accuracy': DECLARED['figures']['accuracy']},
      claims=[],
    )
    planned.append(make_plan(tmp_path, declared, labelled_root=str(images / 'train')))
  go(tmp_path, Runner(tmp_path), declared, planned[0])
  with pytest.raises(declaration.StudyError, match='other settings') as told:
    go(tmp_path, Runner(tmp_path), declared, planned[1])
  assert any('training images: ' in line for line in told.value.args)


def test_an_evaluation_that_trains_nothing_may_be_in_a_study(tmp_path):
  images = labelled_cases.make_class_folders(tmp_path / 'images', train=40)
  nearest = {'config': 'knn:small', 'fields': {'baseline': False, 'layers': ('conv1',)}}
  declared = declare(
    runs={'a': {'evaluations': ('near',)}},
    evaluations={'near': nearest},
    figures={'accuracy': DECLARED['figures']['accuracy']},
    claims=[],
  )
  planned = make_plan(tmp_path, declared, labelled_root=str(images / 'train'))
  assert (planned[1].checkpoint_bytes, planned[1].visits) == (0, 0)
  fake = Runner(tmp_path)
  go(tmp_path, fake, declared, planned)
  assert fake.called == ['a_s0', 'a_s0-near']


def test_chosen_runs_take_their_start_along_and_leave_the_others_as_holes(tmp_path):
  fake = Runner(tmp_path)
  go(tmp_path, fake, chosen=['c'])
  assert fake.called == ['a_s0', 'c_s0']
  runs = places.read_json(tmp_path / 'results.json')['runs']
  assert runs['a']['missing'] == 'seed 1: not run' and 'missing' not in runs['c']
  assert runs['b']['missing'] == 'seed 0: not run; seed 1: not run'
  go(tmp_path, fake, chosen=['b', 'c'], part=(1, 2))
  go(tmp_path, fake, chosen=['b', 'c'], part=(2, 2))
  assert sorted(fake.called[2:]) == ['b_s0', 'b_s0-solve', 'b_s1', 'b_s1-solve']
  with pytest.raises(declaration.StudyError, match=r"--runs=b,n7: there is no run 'n7'"):
    declaration.check_runs(declare(), ['b', 'n7'])


def test_parts_write_one_table_between_them(tmp_path):
  fake = Runner(tmp_path)
  go(tmp_path, fake, part=(1, 2))
  first = [*fake.called]
  holes = places.read_json(tmp_path / 'results.json')['runs']
  assert any('not run' in row.get('missing', '') for row in holes.values())
  go(tmp_path, fake, part=(2, 2))
  assert sorted(fake.called) == sorted(each.name for each in make_plan(tmp_path))
  assert len({*first}) == len(first) < len(fake.called)
  runs = places.read_json(tmp_path / 'results.json')['runs']
  assert not any('missing' in row for row in runs.values())


# ---- the table


def test_table_and_picture_have_all_rows_with_mean_spread_and_the_papers_figure(tmp_path, capsys):
  accuracy = {'a_s0': 0.50, 'a_s1': 0.52, 'b_s0': 0.60, 'b_s1': 0.62, 'c_s0': 0.1}
  go(tmp_path, Runner(tmp_path, accuracy.get))
  results = places.read_json(tmp_path / 'results.json')
  a, b = results['runs']['a'], results['runs']['b']
  assert a['accuracy'] == pytest.approx(51) and a['accuracy, spread'] == pytest.approx(2**0.5)
  assert a['accuracy, paper'] == 88 and 'accuracy, paper' not in b
  assert b['overfit'] == pytest.approx(75 - 61) and b['solved'] == 1.5 and 'solved' not in a
  # A difference of 10 against twice a pooled spread of 1.41.
  assert results['verdicts']['b is easier'].startswith('confirmed: difference +10')
  text = (tmp_path / 'table.md').read_text()
  assert '| a | 51.00 ± 1.41 [88] | 24.00 ± 1.41 | 200 ± 0 |  |' in text
  assert '| b is easier | confirmed: ' in text
  rows = [*csv.DictReader((tmp_path / 'table.csv').open())]
  assert [row['run'] for row in rows if row['figure'] == 'accuracy'] == ['a', 'b', 'c']
  assert rows[0] | {'mean': '', 'spread': ''} == {
    'run': 'a', 'figure': 'accuracy', 'mean': '', 'spread': '', 'seeds': '2', 'beyond': 'False',
    'paper': '88', 'missing': '',
  }  # fmt: skip
  assert (tmp_path / 'study.png').stat().st_size > 5_000
  told = capsys.readouterr().out
  assert '51.00 ± 1.41 [88]' in told and 'confirmed: b is easier' in told


def test_a_single_seed_leaves_every_claim_open(tmp_path):
  declared = declaration.replace_seeds(declare(), (0,))
  fake = Runner(tmp_path, lambda name: 0.9 if name == 'b_s0' else 0.1)
  go(tmp_path, fake, declared)
  assert places.read_json(tmp_path / 'results.json')['verdicts'] == {
    'b is easier': 'open: one seed'
  }


def test_figures_come_from_results_json_alone(tmp_path):
  go(tmp_path, Runner(tmp_path))
  (tmp_path / 'a_s0' / 'metrics.jsonl').unlink()
  held = places.read_json(tmp_path / 'a_s0' / 'results.json')
  held['runs']['run']['val_accuracy'] = 0.25
  places.write_json(tmp_path / 'a_s0' / 'results.json', held)
  cells = table.collect(declare(), make_plan(tmp_path), tmp_path)
  assert cells['a']['accuracy'].values[0].number == 25


def test_a_figure_that_a_result_lacks_is_a_hole(tmp_path):
  declared = declare(figures=DECLARED['figures'] | {'x': {'take': ('', 'val_x'), 'unit': '%'}})
  go(tmp_path, Runner(tmp_path), declared=declared, planned=make_plan(tmp_path, declared))
  assert 'no figure: val_x' in places.read_json(tmp_path / 'results.json')['runs']['a']['missing']


def test_a_figure_over_nothing_or_over_a_bound_is_a_hole(tmp_path):
  share = {'take': ('', 'val_accuracy'), 'over': ('', 'zero'), 'unit': '%'}
  late = {'take': ('', 'step'), 'minus': ('', 'left_step'), 'unit': 'steps'}
  declared = declare(figures=DECLARED['figures'] | {'share': share, 'late': late})
  planned = make_plan(tmp_path, declared)
  go(tmp_path, Runner(tmp_path, losses=(2.08, 2.08, 2.08)), declared, planned)
  path = tmp_path / 'a_s0' / 'results.json'
  held = places.read_json(path)
  held['runs']['run']['zero'] = 0.0
  places.write_json(path, held)
  cells = table.collect(declared, planned, tmp_path)['a']
  assert cells['share'].values == cells['late'].values == {}
  assert 'no figure: late' in cells['late'].holes[0] and 'share' in cells['share'].holes[0]


def test_a_bound_is_shown_as_one_by_seed_too(tmp_path):
  go(tmp_path, Runner(tmp_path, losses=(2.08, 2.08, 2.08)))
  found = places.read_json(tmp_path / 'results.json')['runs']['a']
  assert found['left, by seed'] == {'0': '> 32', '1': '> 32'}


def test_the_report_shows_the_table_and_the_picture_and_not_each_run(tmp_path):
  go(tmp_path, Runner(tmp_path), report=True)
  text = (tmp_path / 'report.html').read_text()
  for shown in (
    'accuracy, spread',
    'What was expected',
    'b is easier',
    images.TITLES['study'],
    'finished',
  ):
    assert shown in text, shown
  assert 'a_s0' not in text
  page.write([tmp_path / 'a_s0'], tmp_path / 'one.html')  # a run has a page of its own


def test_what_was_declared_is_kept_as_it_was_before_the_first_run(tmp_path, capsys):
  go(tmp_path, Runner(tmp_path))
  kept = (tmp_path / 'study.json').read_bytes()
  assert places.read_json(tmp_path / 'study.json')['study']['claims'][0]['says'] == 'b is easier'
  capsys.readouterr()
  go(tmp_path, Runner(tmp_path), declared=declare(claims=[]))
  assert 'the study was changed since it began' in capsys.readouterr().err
  assert (tmp_path / 'study.json').read_bytes() == kept


# ---- processes


def run_python(monkeypatch, program):
  """Lets the main command be another program."""
  monkeypatch.setattr(
    runner.subprocess,
    'Popen',
    lambda arguments, **options: POPEN([arguments[0], '-c', program], **options),
  )


def test_a_process_that_fails_or_is_killed_says_why(monkeypatch, capsys):
  run_python(monkeypatch, "import sys; print('error: no images'); sys.exit(2)")
  assert runner.run_process([], lambda: False) == 'no images'
  assert 'error: no images' in capsys.readouterr().err
  run_python(monkeypatch, 'import os; os.kill(os.getpid(), 9)')
  assert runner.run_process([], lambda: False) == 'killed by SIGKILL'
  run_python(monkeypatch, "raise KeyError('x')")
  assert runner.run_process([], lambda: False) == "KeyError: 'x'"
  run_python(monkeypatch, 'pass')
  assert runner.run_process([], lambda: False) == ''


STOPS = """
import signal, sys, time
def stop(number, frame):
  print('SIGTERM: finishing the step, then saving', flush=True)
  time.sleep(0.3)
  sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print('ready', flush=True)
time.sleep(60)
"""


def test_a_run_that_left_chance_is_stopped_and_one_that_somebody_stopped_ends_the_study(
  monkeypatch,
):
  monkeypatch.setattr(runner, 'POLL_S', 0.5)
  run_python(monkeypatch, STOPS)
  assert runner.run_process([], lambda: True) == ''
  run_python(monkeypatch, 'import sys; sys.exit(143)')
  with pytest.raises(stopping.Stopped):
    runner.run_process([], lambda: False)


@pytest.mark.parametrize('knows', [True, False])
def test_a_run_gets_one_signal_and_the_study_ends_when_it_has_saved(monkeypatch, tmp_path, knows):
  monkeypatch.setattr(runner, 'GRACE_S', 20.0 if knows else 0.2)
  begins = "print('SIGTERM: finishing the step, then saving', flush=True); time.sleep(2)"
  program = f"""
import pathlib, signal, time
got = pathlib.Path({str(tmp_path / 'got')!r})
signal.signal(signal.SIGTERM, lambda *_: (got.write_text('once'), exit(143)))
pathlib.Path({str(tmp_path / 'ready')!r}).touch()
{begins if knows else 'time.sleep(60)'}
"""
  run_python(monkeypatch, program)

  def watch():
    if (tmp_path / 'ready').exists():
      raise stopping.Terminated
    return False

  with pytest.raises(stopping.Stopped, match='SIGTERM: the run under way is stopped') as stopped:
    runner.run_process([], watch)
  assert stopped.value.code == 143 and (tmp_path / 'got').exists() != knows


# ---- the command


@pytest.mark.parametrize(
  ('text', 'says'),
  [('0/2', '--part=0/2'), ('3/2', '--part=3/2'), ('1', '--part=1'), ('a/b', 'i/n')],
)
def test_a_part_is_one_of_n(text, says):
  with pytest.raises(CfnError, match=says):
    study._read_part(text)
  assert study._read_part('2/3') == (2, 3)


def test_seeds_are_whole_numbers():
  assert study._read_seeds('0,7') == (0, 7)
  for text in ('', '1,', 'a', '-1', '1,1'):
    with pytest.raises(CfnError, match='--seeds'):
      study._read_seeds(text)


@pytest.mark.slow
def test_the_command_runs_resumes_and_refuses(tmp_path):
  path, work = tmp_path / 'mine.py', tmp_path / 'w'
  runs = {
    'a': {},
    'b': {'fields': {'model.permutations_per_pass': 4}, 'evaluations': ('gap',)},
    'c': {'fields': {'permutations.num': 9}, 'start': 'a'},
  }
  gap = {'puzzle.crop_px': 111, 'puzzle.cell_px': 37, 'learning_rate': 1e-12, 'num_steps': 1}
  figures = {'accuracy': DECLARED['figures']['accuracy']}
  figures['gap'] = {'take': ('gap', 'val_accuracy'), 'unit': '%'}
  declared = {'title': 't', 'runs': runs, 'evaluations': {'gap': {'fields': gap}}}
  path.write_text(f'def get_study():\n  return {declared | {"figures": figures}!r}\n')
  arguments = (
    *test_main.SMALL[:1], '--config.num_steps=2', *test_main.SMALL[2:],
    f'--study={path}', f'--workdir={work}',
  )  # fmt: skip
  done = test_main.run(*arguments, '--runs=b,c', module='cfn_jax.study', timeout=900)
  assert done.returncode == 0, done.stderr
  results = places.read_json(work / 'results.json')['runs']
  assert all(isinstance(results[name]['accuracy'], float) for name in 'abc')
  assert isinstance(results['b']['gap'], float)
  assert 'init_from' in done.stderr and 'images a second: about' in done.stderr
  assert len([*(work / 'a_s0' / 'checkpoints').iterdir()]) == 1
  again = test_main.run(*arguments, module='cfn_jax.study')
  assert again.returncode == 0 and '----' not in again.stderr
  other = test_main.run(*arguments, '--config.learning_rate=0.5', module='cfn_jax.study')
  assert other.returncode == 2 and 'other settings' in other.stderr
  assert 'Traceback' not in other.stderr
