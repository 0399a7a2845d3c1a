"""The report: it shows what workdirs hold, whole or not, escapes it all, and a browser takes it."""

import html.parser
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time

import browser_cases
import fuzz_cases
import numpy as np
import PIL.Image
import pytest

from cfn_jax import command, fields, idle, visualize
from cfn_jax.buckets import addresses
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import identity
from cfn_jax.pictures import charts
from cfn_jax.report import curves, files, folders, gather, images, page, status, tables
from cfn_jax.training import lock, provenance, stopping, store_errors

ROWS = [
  {'step': 10, 'train_loss': 4.0, 'learning_rate': 0.1, 'images_per_second': 16.0},
  {'step': 20, 'val_loss': 3.5, 'val_accuracy': 0.25},
  {
    'step': 30,
    'train_loss': 2.0,
    'images_per_second': 8.0,
    'input_wait_fraction': 0.5,
    'val_accuracy': 0.5,
    'val_accuracy_low': 0.4,
    'val_accuracy_high': 0.6,
  },
]
FIGURES = [files.figures(row) for row in ROWS]
HOSTILE = '</script><img src=x onerror="window.stung=1"><b>&amp;'
UNNAMED = '<img src=y onerror=stung=2>&amp;'  # without a slash: the name of a folder


@pytest.fixture
def make_run(tmp_path):
  """Returns a function that writes a run by hand: a name, its rows, and fields to change."""

  def make(name='run', rows=ROWS, **changes):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    config = command.load_config('cfn:tiny').unlock()
    config.batch_size, config.num_steps = 16, 30
    for field, value in changes.items():
      config[field] = value
    (folder / 'config.json').write_text(json.dumps(config.to_dict()))
    (folder / 'metrics.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    PIL.Image.new('RGB', (90, 60), 'red').save(folder / 'puzzles.png')
    return folder

  return make


class Page(html.parser.HTMLParser):
  """What a page says: its tags with their attributes, its text, and its JSON by id."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.json, self.said, self._inside = [], {}, [], ('', {})
    self.feed(text)
    self.text = ' '.join(' '.join(self.said).split())

  def handle_starttag(self, tag, attributes):
    self._inside = (tag, dict(attributes))
    self.tags.append(self._inside)

  def handle_endtag(self, tag):
    self._inside = ('', {})

  def handle_data(self, data):
    tag, attributes = self._inside
    if tag == 'script' and attributes.get('type') == 'application/json':
      self.json[attributes['id']] = json.loads(data)
    elif tag not in ('script', 'style'):
      self.said.append(data)


def show(*workdirs):
  return Page(page.render(gather.read(workdirs)))


@pytest.fixture
def without_bokeh(monkeypatch):
  monkeypatch.setitem(sys.modules, 'bokeh.resources', None)


@pytest.fixture
def without_charts(without_bokeh, monkeypatch):
  monkeypatch.setattr(charts, 'encode_chart', lambda chart, axis: b'<svg/>')


def test_a_page_shows_figures_settings_and_pictures(make_run, without_bokeh):
  shown = show(make_run(learning_rate=0.125))
  assert shown.json['figures']['runs'] == {'run': ROWS}
  for text in (
    *('run finished step 30 is the last', 'jigsaw step 30 of 30', 'learning_rate 0.125 0.01'),
    *('batch_size 16 256', 'accuracy', 'loss', 'learning rate', 'puzzles.png'),
    'share of time that waits for input',
  ):
    assert text in shown.text, text
  assert 'momentum 0.9 0.9' not in shown.text  # the paper's
  stills = [each for tag, each in shown.tags if tag == 'img' and 'data-still' in each]
  assert [each['data-still'] for each in stills] == ['step', 'visits', 'hours'] * 5
  assert {each['src'][:26] for each in stills} == {'data:image/svg+xml;base64,'}


def test_the_command_of_a_page_makes_the_config_again(make_run):
  folder = make_run(learning_rate=0.125, solver='optax')
  (workdir,) = gather.read([folder])
  recipe = workdir.runs[0].recipe
  words = shlex.split(dict(tables.describe_recipe(recipe))['the same, by fields'])
  assert words[:4] == ['python', '-m', 'cfn_jax.main', '--config=cfn'] and len(words) > 10
  again = fields.flatten(command.load_config('cfn'))
  for word in words[4:-1]:
    name, _, value = word.removeprefix('--config.').partition('=')
    again[name] = value if isinstance(again[name], str) else type(again[name])(eval(value))
  assert json.loads(json.dumps(again)) == json.loads(json.dumps(recipe.fields))


@pytest.mark.parametrize('name', ['voc07_detection:small', 'voc12_segmentation:small', 'cfn:tiny'])
def test_the_command_of_a_page_names_no_field_without_effect(name, tmp_path):
  config = command.load_config(name)
  config.update_from_flattened_dict({'weights': 'w.npz'} if 'weights' in config else {})
  (tmp_path / 'config.json').write_text(config.to_json())
  (workdir,) = gather.read([tmp_path])
  words = shlex.split(dict(tables.describe_recipe(workdir.runs[0].recipe))['the same, by fields'])
  again, given = command.load_config(words[3].partition('=')[2]), []
  for word in words[4:-1]:
    field, _, value = word.removeprefix('--config.').partition('=')
    given.append(field)
    held = fields.flatten(again)[field]
    value = value if isinstance(held, str) else type(held)(eval(value))
    again.update_from_flattened_dict({field: value})
  assert len(given) > 5
  idle.check(again, given)


def test_a_study_is_finished_when_each_row_is(tmp_path, without_charts):
  (tmp_path / 'study.json').write_text('{}')
  assert status_of(tmp_path) == ('stopped', 'no run has ended')
  for missing, word in (
    ('seed 0: not run', 'stopped'),
    ('seed 1: failed: killed by SIGKILL', 'failed'),
    ('', 'finished'),
  ):
    rows = {'a': {'accuracy': 1.0}, 'b': {'missing': missing} if missing else {'accuracy': 2.0}}
    told = {'task': 'study', 'commit': 'abc', 'command': 'python -m cfn_jax.study', 'runs': rows}
    (tmp_path / 'results.json').write_text(json.dumps(told))
    found, why = status_of(tmp_path)
    assert found == word and (not missing or why == f'b: {missing}')
  assert 'python -m cfn_jax.study' in show(tmp_path).text
  for folder, name in (('b_s0', 'run.lock'), ('b_s0-frozen', 'starts.jsonl')):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / name).write_text(json.dumps(HERE | {'since': 'x'}))
    assert status_of(tmp_path) == ('running', f'{folder}: process {os.getpid()} on {HERE["host"]}')
    shutil.rmtree(tmp_path / folder)


def test_the_command_of_a_page_is_the_same_wherever_it_is_written(tmp_path):
  config = command.load_config('frozen_layers')
  config.update({'weights': 'gone', 'weights_step': 'best', 'weights_collection': 'ema'})
  (tmp_path / 'config.json').write_text(config.to_json())
  (workdir,) = gather.read([tmp_path])
  told = dict(tables.describe_recipe(workdir.runs[0].recipe))['the same, by fields']
  for field in ('weights=gone', 'weights_step=best', 'weights_collection=ema'):
    assert f'--config.{field}' in told


def status_of(folder):
  (workdir,) = gather.read([folder])
  return workdir.status.word, workdir.status.why


def test_nothing_comes_from_elsewhere(make_run):
  for tag, attributes in show(make_run()).tags:
    for name in ('src', 'href', 'data', 'action'):
      address = attributes.get(name, '')
      assert address.startswith(('data:', '#')) or not address, (tag, address)


def test_rows_stand_over_steps_images_and_hours(make_run):
  places = curves.place(FIGURES, 16)
  assert [at['visits'] for at in places] == [160, 320, 480]
  # 160 images at 16 a second; 160 at the median of both rates, 12; 160 at 8.
  seconds = [10, 10 + 160 / 12, 10 + 160 / 12 + 20]
  assert [at['hours'] * 3600 for at in places] == pytest.approx(seconds)
  assert curves.place(FIGURES, None) == [{'step': 10}, {'step': 20}, {'step': 30}]
  (workdir,) = gather.read([make_run()])
  drawn = {chart.title: chart for chart in curves.make_charts(workdir.runs, {'run': [0, 1, 2]})}
  (line,) = drawn['accuracy'].lines
  assert (line.y, line.x['step'], line.dashed) == ([0.25, 0.5], [20, 30], False)
  assert line.band[0][1] == 0.4 and math.isnan(line.band[1][0])
  assert [each.label for each in drawn['loss'].lines] == ['training', 'validation']


def test_runs_are_compared_in_the_same_charts(make_run, without_charts):
  one, other = make_run('a/one'), make_run('b/two', seed=7)
  shown = show(one, other)
  assert 'Fields in which runs of jigsaw differ CSV field one two seed 0 7' in shown.text
  assert 'one, training' in shown.text and 'two, validation' in shown.text
  assert set(shown.json['figures']['runs']) == {'one', 'two'}
  assert len([1 for tag, each in shown.tags if each.get('data-still') == 'step']) == 5
  assert folders.name_apart([pathlib.Path('a/x'), pathlib.Path('b/x')]) == ['a/x', 'b/x']


def test_figures_that_are_no_numbers_are_gaps_and_torn_lines_are_told(make_run, without_charts):
  rows = [{'step': 1, 'train_loss': 'nan'}, {'step': 2, 'train_loss': None, 'note': 'x'}]
  rows += [{'step': 3, 'train_loss': 1.0}, {'step': 4, 'train_loss': 10**400}, {'step': -1}]
  folder = make_run(rows=rows)
  with (folder / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 5, "train_loss": NaN}\n[1]\n{"step": 6, "tr')
  (workdir,) = gather.read([folder])
  (chart,) = curves.make_charts(workdir.runs, {'run': [0, 1, 2, 3, 4]})
  assert chart.lines[0].x['step'] == [1, 3, 5]
  assert np.array_equal(chart.lines[0].y, [math.nan, 1.0, math.nan], equal_nan=True)
  shown = show(folder)
  assert '2 lines are torn or damaged' in shown.text and '1 lines without a step' in shown.text
  assert '2 logged steps with figures that are not finite' in shown.text
  assert shown.json['figures']['runs']['run'][-1] == {'step': 5, 'train_loss': None}


@pytest.mark.parametrize(
  ('spoil', 'told'),
  [
    (lambda f: (f / 'config.json').unlink(), 'config.json is missing'),
    (lambda f: (f / 'config.json').write_text('{"a": '), 'config.json is damaged or empty'),
    (lambda f: (f / 'config.json').write_text('{"a":' * 300 + '1' + '}' * 300), 'is damaged'),
    (
      lambda f: (f / 'results.json').write_text('{"runs":' + '[' * 400 + ']' * 400 + '}'),
      'damaged',
    ),
    (lambda f: (f / 'config.json').write_text('{"task": ["x"]}'), 'no config is made for the task'),
    (lambda f: (f / 'metrics.jsonl').unlink(), 'metrics.jsonl is missing or empty'),
    (lambda f: (f / 'metrics.jsonl').write_bytes(b'\xff\x00['), '1 lines are torn or damaged'),
    (lambda f: (f / 'metrics.jsonl').write_text('[' * 99999), '1 lines are torn or damaged'),
    (lambda f: (f / 'units.png').write_bytes(b'\x89PNG no'), 'units.png cannot be read'),
    (lambda f: (f / 'permutations.npy').write_bytes(b'no'), 'permutations.npy is not drawn'),
    (lambda f: (f / 'checkpoints/7').mkdir(parents=True), 'checkpoint 7 cannot be read'),
    (lambda f: (f / 'starts.jsonl').write_text('{"host"\n'), '1 lines are torn or damaged'),
    (lambda f: (f / 'run.lock').write_text('{"host": 3'), 'no checkpoint yet'),
    (lambda f: (f / 'results.json').write_text('{"runs": {"a": [1]}}'), 'no figures yet'),
    (lambda f: (f / 'results.json').write_text('x'), 'results.json is damaged or empty'),
    (lambda f: [each.unlink() for each in f.iterdir()], 'config.json is missing'),
  ],
)
def test_what_is_missing_or_damaged_is_told_and_the_rest_is_shown(
  spoil, told, make_run, without_charts
):
  folder = make_run()
  spoil(folder)
  shown = show(folder)
  assert told in shown.text
  if (folder / 'metrics.jsonl').is_file() and 'torn' not in told:
    assert shown.json['figures']['runs'] == {'run': ROWS}
  if 'config' not in told and told != 'is damaged':
    assert 'batch_size 16 256' in shown.text


HERE = {'host': socket.gethostname(), 'pid': os.getpid(), 'begun': 1.0}
GONE = {'host': socket.gethostname(), 'pid': 2**22 + 5, 'begun': 1.0}
AWAY = {'host': 'elsewhere', 'pid': 5, 'begun': 1.0}
DONE = {'ended': 2.0, 'outcome': 'finished', 'message': ''}


@pytest.mark.parametrize(
  ('word', 'step', 'lock', 'late', 'starts'),
  [
    ('running', 10, HERE, 0, []),
    ('unknown', 10, HERE, 60, []),  # another process may have its number now
    ('failed', 10, GONE, 0, []),
    ('running', 10, AWAY, 0, []),
    ('unknown', 10, AWAY, 60, []),
    ('running', 30, HERE, 0, [GONE | DONE]),
    ('finished', 30, {}, 0, []),
    ('stopped', 10, {}, 0, []),
    ('unknown', 0, {}, 0, []),
    ('finished', 10, {}, 0, [HERE, HERE | DONE]),
    ('stopped', 10, {}, 0, [GONE | DONE, HERE, HERE | DONE | {'outcome': 'stopped'}]),
    ('failed', 30, {}, 0, [HERE, HERE | DONE | {'outcome': 'failed'}]),
    ('finished', 30, {}, 0, [HERE, HERE | DONE, GONE | DONE | {'outcome': 'refused'}]),
    ('running', 10, {}, 0, [HERE]),
    ('failed', 10, {}, 0, [GONE]),
    ('unknown', 10, {}, 0, [AWAY]),
    ('stopped', 10, {}, 0, [HERE | {'outcome': 'odd'}]),
  ],
)
def test_the_status_follows_from_lock_starts_and_steps(word, step, lock, late, starts, tmp_path):
  path = tmp_path / 'run.lock'
  path.write_text(json.dumps(lock | {'since': 'x'}) if lock else '')
  os.utime(path, (time.time() - late,) * 2)
  found = status.find(tmp_path, status.pair_starts(starts), step=step, num_steps=30, scored=False)
  assert found.word == word and found.why


def test_a_lock_in_a_bucket_is_renewed_less_often(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  folder = addresses.make_stage(addresses.Address('gs', 'bucket', 'runs/a'), 'read_by')
  for late, word in ((40, 'running'), (80, 'unknown')):
    (folder / 'run.lock').write_text(json.dumps(AWAY | {'since': 'x'}))
    os.utime(folder / 'run.lock', (time.time() - late,) * 2)
    assert status.find(folder, [], step=10, num_steps=30, scored=False).word == word


def test_a_loss_that_was_not_finite_is_a_failure(make_run):
  folder = make_run(rows=ROWS[:1])
  (folder / 'bad_batch.txt').write_text('0\tx\n')
  assert status.find(folder, [], step=10, num_steps=30, scored=False).word == 'failed'
  os.utime(folder / 'bad_batch.txt', (1, 1))  # it was resumed since
  assert status.find(folder, [], step=10, num_steps=30, scored=False).word == 'stopped'


@pytest.mark.parametrize(
  ('error', 'outcome', 'message'),
  [
    (None, 'finished', ''),
    (stopping.Stopped('SIGTERM: saved', 143), 'stopped', 'SIGTERM: saved'),
    (stopping.Terminated(), 'stopped', 'Terminated'),
    (CfnError('learning_rate = 7', 'more'), 'failed', 'learning_rate = 7'),
    (RuntimeError('memory'), 'failed', 'memory'),
    (lock.LockedError('in use'), 'refused', 'in use'),
    (store_errors.OtherRunError('made with other settings'), 'refused', 'made with other settings'),
  ],
)
def test_each_start_is_recorded_with_its_end(error, outcome, message, tmp_path):
  for _ in range(2):
    try:
      with provenance.recorded(tmp_path):
        if error:
          raise error
    except (stopping.Stopped, stopping.Terminated, CfnError, RuntimeError) as caught:
      assert caught is error
  lines = [json.loads(line) for line in (tmp_path / provenance.STARTS).read_text().splitlines()]
  assert len(lines) == 4 and lines[0]['pid'] == os.getpid() and 'outcome' not in lines[0]
  assert (lines[3]['outcome'], lines[3]['message']) == (outcome, message)
  first, second = status.pair_starts(lines)
  assert first['versions']['jax'] and first['devices'] and first['command'].startswith('python -m')
  assert first['outcome'] == second['outcome'] == outcome and first['ended'] <= second['begun']


def test_a_commit_is_that_of_the_packages_own_clone(tmp_path, monkeypatch):
  inside = tmp_path / '.venv' / 'cfn_jax' / 'provenance.py'
  inside.parent.mkdir(parents=True)
  inside.write_text('')
  (tmp_path / '.gitignore').write_text('.venv\n')
  git = ['git', '-c', 'user.name=x', '-c', 'user.email=x@example.org']
  for arguments in (['init', '-q'], ['add', '.'], ['commit', '-qm', 'theirs']):
    subprocess.run([*git, *arguments], cwd=tmp_path, check=True)
  monkeypatch.setattr(provenance, '__file__', str(inside))
  assert provenance.find_commit.__wrapped__() == ''
  subprocess.run([*git, 'add', '-f', str(inside)], cwd=tmp_path, check=True)
  assert len(provenance.find_commit.__wrapped__().removesuffix('-dirty')) == 40


def test_evaluations_are_tables_of_their_figures(tmp_path, without_charts):
  layers = {
    'conv1': {'accuracy': 0.5, 'per_class': {'cat': 0.25, 'dog': 0.75}},
    'conv2': {'accuracy': 0.625, 'per_class': {'cat': None, 'dog': 1.0}},
  }
  runs = {'loaded': {'layers': layers, 'val_count': 1271}, 'random': {'val_map': 0.125, 'odd': [1]}}
  figures, classes, paper = tables.tabulate({'runs': runs, 'published': {'CFN': [54.7, 52.8]}})
  assert figures.columns == ['run', 'accuracy', 'val_count', 'val_map']
  assert figures.rows == [
    ['loaded, conv1', 0.5, 1271, ''],
    ['loaded, conv2', 0.625, 1271, ''],
    ['random', '', '', 0.125],
  ]
  assert classes.columns == ['', 'loaded, conv1', 'loaded, conv2']
  assert classes.rows == [['cat', 0.25, None], ['dog', 0.75, 1.0]]
  assert paper.rows == [['CFN', '54.7, 52.8']]
  workdir = tmp_path / 'probe'
  (workdir / 'loaded').mkdir(parents=True)
  result = {'figures': runs['loaded'], 'settings': {}}
  (workdir / 'loaded' / 'result.json').write_text(json.dumps(result))
  shown = show(workdir)  # not finished
  assert 'results.json is not there (yet)' in shown.text and 'probe/loaded, conv1 0.5' in shown.text
  assert 'probe stopped' in shown.text and 'nothing says what was run' in shown.text
  PIL.Image.new('RGB', (9, 9)).save(workdir / 'average_precision.png')
  (workdir / 'results.json').write_text(
    json.dumps(
      {'task': 'knn', 'runs': runs, 'command': 'python x', 'config': {'task': 'knn', 'seed': 5}}
    )
  )
  shown = show(workdir)
  assert 'probe finished' in shown.text and 'loaded, conv2 0.625 1,271' in shown.text
  assert 'command python x' in shown.text and 'seed 5 0' in shown.text
  assert 'average_precision.png' in shown.text
  assert shown.json['figures']['evaluations'] == {'probe': runs}


def test_what_is_no_workdir_is_refused(tmp_path, make_run, without_charts):
  with pytest.raises(CfnError, match='there is no such folder'):
    gather.read([tmp_path / 'none'])
  (tmp_path / 'other').mkdir()
  (tmp_path / 'other' / 'thesis.txt').write_text('x')
  with pytest.raises(CfnError, match='no workdir'):
    gather.read([tmp_path / 'other'])
  (tmp_path / 'empty').mkdir()
  for _ in range(2):  # its own page changes nothing
    assert gather.read([tmp_path / 'empty'])[0].status.word == 'unknown'
    page.write_at_end(tmp_path / 'empty')
  for number in range(folders.LIMIT):
    (tmp_path / 'many' / str(number)).mkdir(parents=True)
    (tmp_path / 'many' / str(number) / 'metrics.jsonl').write_text('{"step": 1}\n')
  many = gather.read([tmp_path / 'many'])
  assert len(many[0].runs) == folders.LIMIT
  assert '29 unknown 1' in Page(page.render(many)).text
  with pytest.raises(CfnError, match=f'names 31 runs .* takes {folders.LIMIT} at most'):
    gather.read([tmp_path / 'many', make_run()])


@pytest.mark.parametrize(
  ('arguments', 'told'),
  [
    ((), 'the following arguments are required: --workdir'),
    (('--workdir=',), '--workdir is empty'),
    (('--workdir=RUN,',), '--workdir is empty'),
    (('--workdir=nowhere',), '--workdir=nowhere: there is no such folder'),
    (('--workdir=hdfs://b/r',), '--workdir=hdfs://b/r is an address'),
    (('--workdir=RUN', '--out=x.png'), '--out=x.png: the name must end in .html'),
    (('--workdir=RUN', '--out=/proc/x.html'), '--out'),
    (('--workdir=RUN,nowhere',), '--out is needed with several workdirs'),
  ],
)
def test_a_wrong_command_line_is_one_short_error(arguments, told, make_run, capsys):
  folder = make_run()
  with pytest.raises(SystemExit) as ended:
    visualize.main(['report', *(each.replace('RUN', str(folder)) for each in arguments)])
  said = capsys.readouterr().err
  assert ended.value.code == 2 and said.startswith(f'error: {told}') and said.count('\n') == 1


def test_the_command_reads_a_workdir_and_writes_one_file(make_run, without_charts, capsys):
  folder = make_run('a,b')
  (folder / 'run.lock').write_text(json.dumps(HERE | {'since': 'x'}))
  before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
  visualize.main(['report', f'--workdir={folder}'])
  assert 'report.html' in capsys.readouterr().err
  text = (folder / folders.PAGE).read_text()
  (folder / folders.PAGE).unlink()
  assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
  assert 'running' in Page(text).text


def test_no_place_breaks_the_command(tmp_path, without_charts, capsys):
  shown = 0
  places = fuzz_cases.make_places(tmp_path)
  for place in (each for each in places if each.startswith(str(tmp_path))):
    try:
      visualize.main(['report', f'--workdir={place}', f'--out={tmp_path}/page.html'])
      shown += 1
    except SystemExit as ended:
      assert ended.code == 2, place
    assert capsys.readouterr().err.count('\n') == 1, place
  assert shown > 15


def test_a_workdir_that_is_named_twice_is_shown_once(make_run, without_charts, tmp_path):
  folder, out = make_run(), tmp_path / 'both.html'
  visualize.main(['report', f'--workdir={folder},{folder}/../run', f'--out={out}'])
  assert list(Page(out.read_text()).json['figures']['runs']) == ['run']


def test_too_many_or_too_large_pictures_are_told(make_run, without_charts, monkeypatch):
  folder = make_run()
  for number in range(images.MOST):
    shutil.copy(folder / 'puzzles.png', folder / f'more{number:03}.png')
  shown = show(folder)
  assert len([1 for _, each in shown.tags if 'webp' in each.get('src', '')]) == 0
  assert f'1 pictures more than {images.MOST} are not shown' in shown.text
  monkeypatch.setattr(images, 'LARGEST_BYTES', 50)
  assert 'puzzles.png cannot be read: it has' in show(folder).text


def test_the_report_changes_no_run_and_no_result():
  config = command.load_config('frozen_layers:small')
  assert config.report is True
  assert 'report' not in identity.describe(config)


def test_a_report_that_fails_is_a_warning(make_run, monkeypatch, capsys):
  def fail(workdirs):
    raise ZeroDivisionError('here')

  monkeypatch.setattr(page, 'render', fail)
  folder = make_run()
  page.write_at_end(folder)
  assert capsys.readouterr().err == f'warning: {folder / folders.PAGE} is not written (here)\n'
  assert not (folder / folders.PAGE).exists()


@pytest.mark.slow
def test_a_page_stays_small(make_run):
  """Pictures of noise, which nothing packs, and 5,000 logged steps."""
  figures = {f'figure_{n}': 0.123456789012 for n in range(6)}
  folder = make_run(rows=[{'step': n, **figures} for n in range(5_000)])
  noise = np.random.default_rng(0).integers(0, 256, (700, 900, 3), np.uint8)
  for number in range(4):
    PIL.Image.fromarray(noise).save(folder / f'p{number}.png')
  (workdir,) = gather.read([folder])
  share = 100_000
  pictures = images.embed(images.find(folder), [], share=share)
  assert len(pictures) == 5
  assert all(len(each.address) <= share * 4 / 3 + 100 for each in pictures)
  classes = {f'class number {n}': n / 997 for n in range(1_000)}
  layer = {'accuracy': 0.5, 'map_draws': [0.123456789] * 1_000, 'per_class': {'map': classes}}
  layers = {'layers': {f'conv{k}': layer for k in range(1, 6)}}
  for number in range(9):  # probes of a thousand classes
    (folder / f'probe{number}').mkdir()
    text = json.dumps({'task': 'linear_probe', 'runs': {'loaded': layers, 'random': layers}})
    (folder / f'probe{number}' / 'results.json').write_text(text)
  (workdir,) = gather.read([folder])
  assert len(workdir.evaluations) == 9
  text = page.render([workdir])
  shown = Page(text)
  assert 1e6 < len(text.encode()) <= 10e6
  assert 'run has 5,000 logged steps' in shown.text
  kept = shown.json['figures']['evaluations']
  assert 0 < len(kept) < 9 and 'map_draws' not in json.dumps(kept)
  assert shown.text.count('"All figures" leaves its figures out for their size') == 9 - len(kept)
  assert shown.text.count('rows of its tables are shown; results.json has all') >= 7
  kept = curves.thin(ROWS * 100, 50)
  assert len(kept) <= 50 and kept[-1] == 299


def spoil_names(make_run):
  """Writes a run whose every name and text would be code, if it were taken for HTML."""
  rows = [
    {'step': n, f'val_{HOSTILE}': n / 9, 'train_loss': n, HOSTILE: HOSTILE} for n in (1, 2, 3)
  ]
  folder = make_run(UNNAMED, rows=rows, init_from=HOSTILE)
  config = json.loads((folder / 'config.json').read_text())
  (folder / 'config.json').write_text(json.dumps(config | {HOSTILE: HOSTILE}))
  shutil.copy(folder / 'puzzles.png', folder / f'{UNNAMED}.png')
  (folder / 'starts.jsonl').write_text(
    json.dumps(HERE | DONE | {'outcome': 'failed', 'message': HOSTILE, 'command': HOSTILE})
  )
  runs = {HOSTILE: {HOSTILE: 0.5, 'text': HOSTILE, 'per_class': {HOSTILE: 1.0}}}
  (folder / 'results.json').write_text(json.dumps({'task': HOSTILE, 'runs': runs}))
  return folder


@pytest.mark.parametrize('bokeh', [False, True])
def test_html_in_names_is_text(bokeh, make_run, monkeypatch):
  if not bokeh:
    monkeypatch.setitem(sys.modules, 'bokeh.resources', None)
    monkeypatch.setattr(charts, 'encode_chart', lambda chart, axis: b'<svg/>')
  shown = show(spoil_names(make_run), make_run('plain'))
  assert not [each for _, each in shown.tags if any(name.startswith('on') for name in each)]
  assert shown.text.count(HOSTILE) > 8 and shown.text.count(UNNAMED) > 5
  assert shown.json['figures']['runs'][UNNAMED][0][HOSTILE] == HOSTILE
  assert HOSTILE in shown.json['figures']['evaluations'][UNNAMED]
  assert 'stung' not in json.dumps(shown.json['items'])  # Bokeh would take some of it for HTML


def test_charts_are_drawn_with_and_without_bokeh(make_run, monkeypatch):
  pytest.importorskip('bokeh')
  shown = show(make_run())
  assert len(shown.json['items']) == 5
  assert not [each for _, each in shown.tags if 'data-still' in each]
  line = charts.Line('x', 0, False, {'step': [1.0, 2.0]}, [1.0, math.nan])
  drawn = charts.encode_chart(charts.Chart('one', [line]), 'step')
  assert drawn.startswith(b'<?xml') and b'images visited' not in drawn


LOOK = """({
  width: document.documentElement.scrollWidth - innerWidth,
  broken: [...document.images].filter((each) => !each.naturalWidth).length,
  pictures: document.images.length,
  charts: document.querySelectorAll('.charts figure').length,
  canvases: [...document.querySelectorAll('.plot')].filter((each) => each.children.length).length,
  text: document.body.innerText,
  stung: window.stung ?? null,
})"""


@pytest.fixture(scope='module')
def browser():
  if not browser_cases.find():
    pytest.skip(f'no browser is installed: none of {", ".join(browser_cases.NAMES)}')
  with browser_cases.Browser() as opened:
    yield opened


@pytest.mark.parametrize('bokeh', [False, True])
def test_a_browser_shows_the_page(bokeh, browser, make_run, monkeypatch, tmp_path):
  if bokeh:
    pytest.importorskip('bokeh')
  else:
    monkeypatch.setitem(sys.modules, 'bokeh.resources', None)
  out = tmp_path / 'page.html'
  page.write([spoil_names(make_run), make_run('plain')], out)
  for width, scheme in ((400, 'light'), (1400, 'dark')):
    browser.open(out, width=width, scheme=scheme)
    ground = browser.run('getComputedStyle(document.body).backgroundColor')
    levels = [int(each) for each in re.findall(r'\d+', ground)[:3]]
    assert max(levels) < 80 if scheme == 'dark' else min(levels) > 200, (scheme, ground)
    found = browser.run(LOOK)
    assert found['width'] <= 0 and found['broken'] == 0 and found['stung'] is None
    assert found['pictures'] >= 3 and found['canvases'] == (found['charts'] if bokeh else 0)
    assert HOSTILE in found['text'] and UNNAMED in found['text']
    requests = [text for kind, text in browser.said if kind == 'request']
    assert all(text.startswith(('file:', 'data:')) for text in requests)
    assert {kind for kind, _ in browser.said} <= {'request', 'info', 'log'}, browser.said


def test_a_browser_sorts_tables_and_offers_files(browser, make_run, tmp_path):
  folder = make_run()
  runs = {'a': {'x': 10.0, 'n,"': 1}, 'b': {'x': 9.0, 'n,"': 2}, 'c': {'n,"': 3}}
  (folder / 'results.json').write_text(json.dumps({'runs': runs}))
  page.write([folder], tmp_path / 'page.html')
  browser.open(tmp_path / 'page.html', width=800)
  sort = """(() => { const header = document.querySelectorAll('#evaluations th')[1];
    header.firstChild.click();
    return [...document.querySelectorAll('#evaluations tbody tr')].map((e) => e.cells[0].innerText)
  })()"""
  assert browser.run(sort) == ['b', 'a', 'c']
  assert browser.run(sort) == ['c', 'a', 'b']
  assert browser.run("joinRun([{step: 1, a: 'x,\"'}, {step: 2, b: null}])") == (
    'step,a,b\n1,"x,""",\n2,,\n'
  )
  assert browser.run("read('figures').runs.run.length") == len(ROWS)
  choose = "chooseAxis(document.querySelector('[data-axis=hours]'))"
  labels = 'Promise.all(plots).then((found) => [...found[0]][0].model.below[0].axis_label)'
  if browser.run('plots.length'):
    browser.run(choose)
    assert browser.run(labels) == charts.AXES['hours']
    x = 'Promise.all(plots).then((p) => [...[...p[0]][0].model.renderers[0].data_source.data.x])'
    hours = [at['hours'] for at in curves.place(FIGURES, 16)][1:]
    assert browser.run(x) == pytest.approx(hours)
