"""Names of users print and draw as they are, whatever they hold."""

import io
import os
import pathlib
import subprocess
import sys
import types
import warnings

import numpy as np
import pytest

from cfn_jax import arguments as command_lines
from cfn_jax import names, places, terminal
from cfn_jax.data import record
from cfn_jax.jigsaw import questions
from cfn_jax.pictures import class_scores, curves, figures, filters, permutations, puzzles
from cfn_jax.training import checkpoint

ODD = (
  'run[lr=0.1]',
  'a[/b]/c',
  '[red]x',
  'imagenet2012:train',
  ':cat:',
  'price_$1_$x^{1.jpg',
  r'\$a\frac$',
  'caf\udce9.jpg',
  '\ud800',
  'line\nend\r\x1b[31m\t\0',
  '\u202egpj.exe',
  '猫の写真',
  '😀',
  '\\',
  '',
  '%s{}',
)


@pytest.mark.parametrize('name', ODD)
def test_a_name_becomes_one_line_without_control_characters(name):
  shown = names.printable(name)
  assert shown.isprintable() and shown.encode().decode() == shown
  if name.isprintable():
    assert shown == name
  assert names.printable(name, encoding='ascii').isascii()


class Terminal(io.StringIO):
  encoding = 'utf-8'

  def __init__(self, tty):
    super().__init__()
    self.tty = tty

  def isatty(self):
    return self.tty


@pytest.mark.parametrize('name', [name for name in ODD if name.isprintable() and name])
@pytest.mark.parametrize('tty', [False, True])
def test_tables_hold_names_letter_by_letter(name, tty, monkeypatch):
  monkeypatch.setenv('TERM', 'xterm')
  monkeypatch.setenv('COLUMNS', '100')
  monkeypatch.setenv('NO_COLOR', '1')
  for stream in ('stdout', 'stderr'):
    monkeypatch.setattr(sys, stream, Terminal(tty))
  terminal.show_pairs([('workdir', name)])
  terminal.show_table(f'of {name}', [name], [[(name, ['1.0'])]], caption=name)
  terminal.say(f'error: {name}')
  assert sys.stderr.getvalue().count(name) == 2
  assert sys.stdout.getvalue().count(name) == 4


def test_a_log_has_one_line_a_row(monkeypatch):
  monkeypatch.setenv('COLUMNS', '20')
  monkeypatch.setattr(sys, 'stderr', Terminal(False))
  long = ' '.join(['word'] * 400)
  terminal.show_pairs([('workdir', long), ('a', 'b\nc')])
  assert sys.stderr.getvalue() == f'workdir  {long}\na        b\\nc\n'


def test_a_log_has_no_carriage_returns_of_a_bar(monkeypatch):
  monkeypatch.setattr(sys, 'stderr', Terminal(False))
  for _ in terminal.make_bar(range(7), unit='image'):
    pass
  lines = sys.stderr.getvalue().splitlines(keepends=True)
  assert '7/7' in lines[-1] and '\r' not in ''.join(lines) and len(lines) <= 3


def test_an_output_that_lacks_a_character_gets_an_escape(monkeypatch):
  raw = io.BytesIO()
  monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(raw, encoding='ascii', errors='strict'))
  terminal.show_table('猫', ['é'], [[('caf\udce9', ['1'])]])
  terminal.say('猫', file=sys.stdout)
  sys.stdout.flush()
  assert raw.getvalue().count(rb'\u732b') == 2 and rb'\udce9' in raw.getvalue()


def test_an_error_is_five_lines_at_most(capsys):
  with pytest.raises(SystemExit, match=str(terminal.BAD_INPUT)):
    terminal.fail(*map(str, range(30)))
  assert capsys.readouterr().err.splitlines() == ['error: 0', '1', '2', '3', 'and 26 lines more']


@pytest.mark.parametrize('error', [record.SourceError, checkpoint.CheckpointError])
def test_a_name_with_line_ends_neither_splits_an_error_nor_cuts_its_remedy(error, capsys):
  odd = 'a\n' * 9
  with pytest.raises(SystemExit), terminal.short_errors():
    raise error(f'{odd} is not right; take another:', f'  {odd} then', '  and more')
  told = r'a\n' * 9
  said = capsys.readouterr().err
  assert said == f'error: {told} is not right; take another:\n  {told} then\n  and more\n'
  for other in (places.PlaceError(f'{odd}: no'), OSError(28, 'no', odd)):
    with pytest.raises(SystemExit), terminal.short_errors():
      raise other
    assert capsys.readouterr().err == f'error: {told}: no\n'
  terminal.say(f'everything is in {odd}')
  terminal.show_pairs([('workdir', odd)])
  assert capsys.readouterr().err == f'everything is in {told}\nworkdir  {told}\n'


def test_a_fault_of_the_program_keeps_its_traceback():
  with pytest.raises(ValueError, match='shapes'), terminal.short_errors():
    raise ValueError('shapes')


PRINTED = {
  'stdout line': lambda: terminal.say('word', file=sys.stdout),
  'stdout table': lambda: terminal.show_table('a', ['b'], [[('c', ['1'])]]),
  'stdout help': lambda: command_lines.Parser('x', 'y').parse(['--help']),
  'stderr line': lambda: terminal.say('word'),
  'stderr table': lambda: terminal.show_pairs([('a', 'b')]),
}


@pytest.mark.parametrize('printed', PRINTED)
def test_a_stream_that_cannot_be_written_ends_the_program_in_one_line(printed, monkeypatch, capsys):
  name = printed.split()[0]
  with pathlib.Path('/dev/full').open('w') as stream:  # its end raises what waits to be written
    monkeypatch.setattr(sys, name, stream)
    with pytest.raises(SystemExit) as ended:
      PRINTED[printed]()
  assert ended.value.code == 2
  said = 'error: stdout cannot be written: No space left on device\n'
  assert capsys.readouterr().err == said * (name == 'stdout')


def test_a_pipe_that_its_reader_closed_ends_the_program_in_silence(monkeypatch, capsys):
  read, write = os.pipe()
  os.close(read)
  monkeypatch.setattr(sys, 'stdout', os.fdopen(write, 'w'))
  with pytest.raises(SystemExit) as ended:
    terminal.say('word', file=sys.stdout)
  sys.stdout.close()
  assert ended.value.code == 141 and not capsys.readouterr().err


@pytest.mark.parametrize('streams', ['>/dev/full', '2>/dev/full', '>&-', '2>&-'])
def test_a_command_tells_by_its_exit_code_that_a_stream_was_not_written(streams, tmp_path):
  arguments = '--num=9' if streams.startswith('>') else '--nonsense'
  line = f'"{sys.executable}" -m cfn_jax.permutations {arguments} {streams}'
  done = subprocess.run(['bash', '-c', line], capture_output=True, text=True, check=False)
  assert done.returncode == 2 and not done.stdout
  assert done.stderr.startswith('error: stdout cannot be written' * streams.startswith('>'))
  assert done.stderr.count('\n') == streams.startswith('>')


@pytest.mark.parametrize('name', ODD)
def test_drawn_text_is_no_formula(name):
  """What is drawn shows the printable name itself, by Matplotlib's own parser."""
  from matplotlib.text import Text

  text, is_math = Text(0, 0, '')._preprocess_math(names.drawable(name))
  assert not is_math and text == names.printable(name)


@pytest.mark.slow
def test_pictures_take_any_name(tmp_path):
  tiles = np.zeros((9, 8, 8, 3), np.uint8)
  crop = np.zeros((24, 24, 3), np.uint8)
  shown = [puzzles.Shown(tiles, 0, crop, name) for name in ODD]
  asked = questions.ask_jigsaw(np.arange(9, dtype=np.uint8)[None])
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    puzzles.draw_puzzles(tmp_path / 'a.png', shown, asked)
    puzzles.draw_answers(tmp_path / 'b.png', shown, asked, np.ones((len(ODD), 1)), title=ODD[5])
    class_scores.draw_class_scores(tmp_path / 'c.png', {n: dict.fromkeys(ODD, 0.5) for n in ODD})
    text = permutations.encode_picture('p.svg', asked.rows.repeat(2, 0), grid=(3, 3))
  assert {path.name for path in tmp_path.iterdir()} == {'a.png', 'b.png', 'c.png'}
  assert b'</svg>' in text


def test_a_picture_that_cannot_be_drawn_is_told_and_spared(tmp_path, capsys):
  with figures.spared(tmp_path / 'x.png'):
    raise TypeError('set_text(): incompatible\nfunction arguments')
  said = capsys.readouterr().err
  assert said == f'warning: {tmp_path}/x.png is not drawn (set_text(): incompatible)\n'
  with pytest.raises(KeyboardInterrupt), figures.spared(tmp_path / 'x.png'):
    raise KeyboardInterrupt


def test_a_run_outlives_pictures_that_cannot_be_drawn(tmp_path, monkeypatch, capsys):
  from cfn_jax.pictures import run

  def fail(*_, **__):
    raise RuntimeError('no font')

  broken = ((run, 'draw_training_puzzles'), (curves, 'draw_curves'), (filters, 'draw_run'))
  for module, name in broken:
    monkeypatch.setattr(module, name, fail)
  for name in ('_show', 'sample_validation_puzzles', '_take'):
    monkeypatch.setattr(run, name, fail)
  asked = questions.ask_rotation()
  transform = types.SimpleNamespace(puzzles=4)
  model = types.SimpleNamespace(trunk=None)
  pretext = types.SimpleNamespace(
    questions=asked, transform=transform, judged=lambda: pretext, input=None, model=model
  )
  pictures = run.make_pictures(pretext)
  pictures['start'](tmp_path)
  pictures['end'](tmp_path, None, 3)
  pictures['bad_batch'](tmp_path, {'tiles': np.zeros((1, 4, 8, 8, 3)), 'label': [0]})
  said = capsys.readouterr().err.splitlines()
  assert said == [
    f'warning: {tmp_path}/{name} is not drawn (no font)'
    for name in ('puzzles.png', 'curves.png', 'answers.png', 'filters.png', 'bad_batch.png')
  ]


ADDRESSES = ('gs://b/c', 's3://b', 'S3://b', 'file:///tmp/x', 'hf://a', ' gs://b', 'a+b.c-d://x')


@pytest.mark.parametrize('address', ADDRESSES)
def test_an_address_is_no_place(address):
  with pytest.raises(places.PlaceError, match=r'docs/data\.md'):
    places.check({'--out': address})


def test_places_on_the_disk_pass():
  values = (
    '',
    'a',
    '/a//b',
    './gs:/x',
    'imagenet2012:train',
    'C:\\x',
    'a b://c',
    '1gs://',
    5,
    None,
  )
  places.check({str(number): value for number, value in enumerate(values)})


COMMANDS = {
  'prepare': (['--source=gs://x', '--out=o'], ['--source', 'gs://x', '--out=o'],
              ['--source=.', '--out=hdfs://o']),
  'convert': (['--from=hdfs://x', '--out=o'], ['--checkpoint', 'file://x', '--out=o', '--to=npz'],
              ['--from=x.npz', '--out=gs://o']),
  'permutations': (['--input=gs://x'], ['--num=9', '--out=gs://o.npy'],
                   ['--num=9', '--plot', 'gs://o.png']),
  'benchmark': (['input', '--images=gs://x'], ['step', '--config=gs://x.py']),
}  # fmt: skip


@pytest.mark.parametrize('module', COMMANDS)
def test_each_command_refuses_addresses_before_it_makes_anything(
  module, tmp_path, monkeypatch, capsys
):
  import importlib

  monkeypatch.chdir(tmp_path)
  for arguments in COMMANDS[module]:
    with pytest.raises(SystemExit) as ended:
      sys.exit(importlib.import_module(f'cfn_jax.{module}').main(arguments))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert 'is an address' in said and said.count('\n') == 1
  assert not list(tmp_path.iterdir())


EMPTY = {
  'prepare': (['--source=', '--out=o'], ['--source=.', '--out', ''],
              ['--source=.', '--out=o', '--labels='], ['--source=.', '--out=o', '--synsets=']),
  'convert': (['--from=', '--out=o'], ['--checkpoint', '', '--out=o'], ['--from=x.npz', '--out=']),
  'permutations': (['--num=9', '--out='], ['--input='], ['--num=9', '--plot=']),
  'benchmark': (['input', '--images=', '--seconds=0.1'],),
}  # fmt: skip


@pytest.mark.parametrize('module', EMPTY)
def test_an_empty_flag_is_not_the_current_folder(module, tmp_path, monkeypatch, capsys):
  import importlib

  monkeypatch.chdir(tmp_path)
  for arguments in EMPTY[module]:
    with pytest.raises(SystemExit) as ended:
      sys.exit(importlib.import_module(f'cfn_jax.{module}').main(arguments))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    flag = next(flag for flag, value in zip(arguments, [*arguments[1:], 'x'])
                if flag.endswith('=') or not value).rstrip('=')  # fmt: skip
    assert said.startswith(f'error: {flag} is empty') and said.count('\n') == 1
  assert not list(tmp_path.iterdir())


def test_there_may_be_no_home(monkeypatch):
  def no_home(path):
    raise RuntimeError('Could not determine home directory.')

  monkeypatch.setattr(pathlib.Path, 'expanduser', no_home)
  with pytest.raises(places.PlaceError, match='--workdir=~/x: there is no such home folder'):
    places.check({'--workdir': '~/x'})


def test_a_folder_that_cannot_be_had_is_named_with_its_field(tmp_path):
  (tmp_path / 'loop').symlink_to(tmp_path / 'loop')
  (tmp_path / 'file').write_text('')
  with pytest.raises(places.PlaceError, match=r'--workdir=.*loop'):
    places.make_folder(places.resolve(f'{tmp_path}/loop', '--workdir'), '--workdir')
  for name in ('file', 'file/x', 'x' * 300):
    with pytest.raises(places.PlaceError, match=r'^field=.* cannot be made a folder: \w'):
      places.make_folder(tmp_path / name, 'field')
  with pytest.raises(places.PlaceError, match='null character'):
    places.resolve('a\0b', 'field')
  places.make_folder(places.resolve(f'{tmp_path}/a/../b/c', 'field'), 'field')
  assert (tmp_path / 'b' / 'c').is_dir()


def test_an_error_of_the_system_names_its_file(tmp_path):
  with pytest.raises(OSError) as error, places.naming(tmp_path / 'x'):
    raise OSError(28, 'No space left on device')
  assert terminal.describe(error.value) == [f'{tmp_path}/x: No space left on device']
  with pytest.raises(OSError) as error, places.naming(tmp_path):
    raise FileNotFoundError(2, 'No such file', 'other')
  assert error.value.filename == 'other'
