"""`python -m cfn_jax.benchmark compile`: what is read from a program, what a target makes of it."""

import importlib.metadata
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import pytest
from conftest import REPOSITORY
from jax import lax

from cfn_jax import benchmark
from cfn_jax.models import layers
from cfn_jax.timing import ahead, compile, hardware, hlo, program

# A program written by hand: a loop of three trips, a branch, a fusion around a product, a sum over
# devices that starts and ends in two operations, and a copy that does too.
TEXT = """HloModule by_hand, is_scheduled=true

FileNames
1 "/usr/lib/python/site-packages/jax/numpy.py"
2 "/home/anyone/project/cfn_jax/models/layers.py"
3 "/home/anyone/project/train.py"

FunctionNames
1 "matmul"
2 "run"
3 "main"

FileLocations
1 {file_name_id=1 function_name_id=1 line=10 end_line=10 column=1 end_column=2}
2 {file_name_id=2 function_name_id=2 line=20 end_line=20 column=1 end_column=2}
3 {file_name_id=3 function_name_id=3 line=30 end_line=30 column=1 end_column=2}

StackFrames
1 {file_location_id=3 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=1 parent_frame_id=3}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%fused (p: bf16[8,16], q: bf16[16,4]) -> f32[8,4] {
  %p = bf16[8,16]{1,0} parameter(0)
  %q = bf16[16,4]{1,0} parameter(1)
  ROOT %dot = f32[8,4]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (state: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %state = (s32[], f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %y = f32[8,4]{1,0} get-tuple-element(%state), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %half = f32[8,4]{1,0} multiply(%y, %y), backend_config={"estimated_cycles":"7"}
  ROOT %out = (s32[], f32[8,4]{1,0}) tuple(%next, %half)
}

%limit (state: (s32[], f32[8,4])) -> pred[] {
  %state = (s32[], f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %three = s32[] constant(3)
  ROOT %less = pred[] compare(%i, %three), direction=LT
}

%small (s: f32[8,4]) -> f32[8,4] {
  ROOT %s = f32[8,4]{1,0} parameter(0)
}

%large (l: f32[8,4]) -> f32[8,4] {
  %l = f32[8,4]{1,0} parameter(0)
  ROOT %twice = f32[8,4]{1,0} add(%l, %l)
}

ENTRY %main (p: bf16[8,16], q: bf16[16,4], w: pred[]) -> f32[8,4] {
  %p = bf16[8,16]{1,0:T(8,128)(2,1)} parameter(0)
  %q = bf16[16,4]{1,0} parameter(1)
  %w = pred[] parameter(2)
  %zero = s32[] constant(0)
  %product = f32[8,4]{1,0:T(8,128)S(1)} fusion(%p, %q), kind=kOutput, calls=%fused, \
metadata={op_name="jit(f)/dot" stack_frame_id=3}, backend_config={"estimated_cycles":"100"}
  %start = (s32[], f32[8,4]{1,0}) tuple(%zero, %product)
  %loop = (s32[], f32[8,4]{1,0}) while(%start), condition=%limit, body=%body
  %looped = f32[8,4]{1,0} get-tuple-element(%loop), index=1
  %chosen = f32[8,4]{1,0} conditional(%w, %looped, %looped), true_computation=%small, \
false_computation=%large
  %sum-start = f32[8,4]{1,0} all-reduce-start(%chosen), replica_groups={{0,1}}, to_apply=%add
  %sum-done = f32[8,4]{1,0} all-reduce-done(%sum-start)
  %copy-start = (f32[8,4]{1,0}, f32[8,4]{1,0}, u32[]) copy-start(%sum-done)
  ROOT %copy-done = f32[8,4]{1,0} copy-done(%copy-start)
}
"""


def test_a_program_written_by_hand_is_counted_as_by_hand():
  read = program.Program(TEXT)
  array = 8 * 4 * 4
  fusion = 2 * 8 * 16 + 2 * 16 * 4 + array
  trip = (4 + 4 + 4) + 3 * array  # the counter, and a product of two
  branch = 3 * array  # the larger one
  sent = 2 * array  # read where it starts, written where it ends
  copied = 2 * array
  assert read.cost.bytes == fusion + 3 * trip + branch + sent + copied
  assert read.cost.flops == 2 * 8 * 4 * 16
  assert read.cost.cycles == 100 + 3 * 7
  assert read.count(*program.COLLECTIVES, 'scatter') == {'all-reduce': 1}


def test_the_costliest_operations_come_first_with_their_lines_of_source():
  first, second, *_ = program.Program(TEXT).costliest(5, 'cfn_jax')
  assert (first.name, first.cost.cycles) == ('product', 100)
  assert first.source == 'cfn_jax/models/layers.py:20'  # the innermost line of the package
  assert (second.name, second.cost.cycles, second.source) == ('half', 21, '')
  (other, *_) = program.Program(TEXT).costliest(1, 'another')
  assert other.source == '/usr/lib/python/site-packages/jax/numpy.py:10'


def test_trips_are_read_from_the_loop_where_the_compiler_knows_them():
  told = TEXT.replace('body=%body', 'body=%body, backend_config={"known_trip_count":{"n":"5"}}')
  assert program.Program(told).cost.cycles == 100 + 5 * 7
  unknown = TEXT.replace('%three = s32[] constant(3)', '%three = s32[] add(%i, %i)')
  with pytest.raises(hlo.ProgramError, match='trips of the loop loop are not known'):
    _ = program.Program(unknown).cost


def test_what_is_no_program_is_refused():
  with pytest.raises(hlo.ProgramError, match='no compiled program'):
    program.Program('{"not": "a program"}\n')


# Images, kernel, stride, padding, groups.
CONVOLUTIONS = [
  ((4, 32, 32, 3), (11, 11, 3, 8), 2, 0, 1),
  ((4, 13, 13, 16), (5, 5, 8, 32), 1, 2, 2),
  ((4, 6, 6, 16), (3, 3, 16, 24), 1, 1, 1),
  ((4, 9, 7, 16), (3, 3, 16, 24), 3, 1, 1),
]


@pytest.mark.parametrize(('shape', 'kernel', 'stride', 'padding', 'groups'), CONVOLUTIONS)
def test_arithmetic_is_what_xla_counts(shape, kernel, stride, padding, groups):
  def convolve(x, w):
    return lax.conv_general_dilated(
      x,
      w,
      (stride, stride),
      [(padding, padding)] * 2,
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
      feature_group_count=groups,
    )

  def gradients(x, w, g):
    return jax.vjp(convolve, x, w)[1](g)

  arrays = [jax.ShapeDtypeStruct(each, jnp.float32) for each in (shape, kernel)]
  out = jax.eval_shape(convolve, *arrays)
  for function, inputs in ((convolve, arrays), (gradients, [*arrays, out])):
    compiled = jax.jit(function).lower(*inputs).compile()
    found = program.Program(compiled.as_text()).cost.flops
    assert found == pytest.approx(compiled.cost_analysis()['flops'], rel=0.01)


def test_products_and_bytes_of_a_compiled_program_are_counted():
  def run(x, w):
    return jnp.tanh(x @ w)

  shapes = [jax.ShapeDtypeStruct(each, jnp.float32) for each in ((64, 128), (128, 32))]
  read = program.Program(jax.jit(run).lower(*shapes).compile().as_text())
  assert read.cost.flops == 2 * 64 * 128 * 32
  product, activation = 64 * 128 + 128 * 32 + 64 * 32, 2 * 64 * 32
  assert read.cost.bytes in (4 * product, 4 * (product + activation))  # fused or not
  assert not read.count('scatter')


def test_lines_of_source_are_found_in_what_xla_writes():
  x = jax.ShapeDtypeStruct((2, 8, 8, 4), jnp.float32)
  text = jax.jit(layers.max_pool).lower(x).compile().as_text()
  sources = {line.source for line in program.Program(text).costliest(3, 'cfn_jax')}
  assert any(re.fullmatch(r'cfn_jax/models/\w+\.py:\d+', source) for source in sources)


# The command.


def test_an_unknown_target_is_refused_with_the_list(capsys):
  with pytest.raises(SystemExit, match='2'):
    benchmark.main(['compile', '--target=h100:3'])
  said = capsys.readouterr().err
  assert (
    "--target: 'h100:3' is none of v5e:2x2" in said
    and 'h100:16' in said
    and len(said.splitlines()) == 1
  )


@pytest.mark.parametrize(
  ('options', 'said'),
  [
    (['--config=knn'], "made for the task 'knn'"),
    (['--config=frozen_layers', '--permutations-per-pass=2'], 'asks no questions of tiles'),
    (['--dtype=float16'], "compute_dtype = 'float16'"),
    (['--top=-1'], '--top=-1: at least 0'),
    (['--target=h100:1,h100:8', '--dump=program.txt'], '--dump=program.txt: one target'),
    (['--target=h100:1,h100:16', '--batch=8'], 'h100:16: --batch = 8 cannot be split over 16'),
    (['--target=h100:1,'], "--target: '' is none of"),
    (['--permutations-per-pass=5000'], 'from 1 to the 1000 puzzles'),
  ],
)
def test_what_no_step_can_have_is_refused_before_the_compiler_is_asked(
  options, said, capsys, monkeypatch
):
  monkeypatch.setattr(compile, 'check_compiler', lambda _: pytest.fail('asked for'))
  with pytest.raises(SystemExit, match='2'):
    benchmark.main(['compile', '--target=h100:1', *options])
  error = capsys.readouterr().err
  assert said in error and len(error.splitlines()) == 1


@pytest.mark.slow
def test_a_missing_compiler_or_one_of_another_jax_is_one_line(capsys, monkeypatch):
  versions = {}

  def version(package):
    if package not in versions:
      raise importlib.metadata.PackageNotFoundError(package)
    return versions[package]

  monkeypatch.setattr(importlib.metadata, 'version', version)
  for target, package in (('v5e:2x2', 'libtpu'), ('h100:1', 'jax-cuda12-plugin')):
    with pytest.raises(SystemExit, match='2'):
      benchmark.main(['compile', f'--target={target}'])
    said = capsys.readouterr().err
    assert f'the compiler is not installed ({package})' in said and '.[compile]' in said
    rest = {'jax-cuda12-pjrt': jax.__version__, 'nvidia-cuda-nvcc-cu12': '12.9'}
    versions |= {package: '0.0.1'} | rest
    with pytest.raises(SystemExit, match='2'):
      benchmark.main(['compile', f'--target={target}'])
    said = capsys.readouterr().err
    assert f'{package} 0.0.1 is not made for jax {jax.__version__}' in said
  versions |= {'jax-cuda12-plugin': f'{jax.__version__}0'}  # 0.10.20 is not 0.10.2
  with pytest.raises(SystemExit, match='2'):
    benchmark.main(['compile', '--target=h100:1'])
  assert 'is not made for' in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_named_before_any_compilation(
  capsys, monkeypatch, tmp_path
):
  monkeypatch.setattr(compile, 'check_compiler', lambda _: None)
  monkeypatch.setattr(compile, 'compile_for', lambda *_: pytest.fail('compiled'))
  with pytest.raises(SystemExit, match='2'):
    benchmark.main(['compile', '--target=h100:1', f'--dump={tmp_path}'])
  assert f'{tmp_path}: Is a directory' in capsys.readouterr().err


def test_a_step_without_room_is_a_line_too(capsys, monkeypatch):
  needed, there = ahead.read_room('Ran out of memory. Used 31.50G of 15.75G hbm. Exceeded')
  assert (needed, there) == (31.5 * 2**30, 15.75 * 2**30)
  machine = hardware.find_machine('v5e:2x2')
  figures = {
    'target': 'v5e:2x2',
    'argument_bytes': None,
    'temporary_bytes': None,
    'fits': needed <= there,
    **ahead.measure(None, machine, dtype='bfloat16', precision='default'),
    'note': ahead.say_room(needed, there, 2**29, 4096, 4),
  }
  monkeypatch.setattr(compile, 'check_compiler', lambda _: None)
  monkeypatch.setattr(compile, 'compile_for', lambda *_: (dict(figures), []))
  benchmark.main(['compile', '--target=v5e:2x2,v5e:4x4', '--batch=4096'])
  told = capsys.readouterr()
  assert len(told.out.splitlines()) == 2  # one for each target
  assert 'takes 31.5 GiB a device, 15.8 too many: a batch of some 1908' in told.err
  assert re.search(r'v5e:2x2 +False +- +-', told.err)


@pytest.mark.parametrize(
  ('script', 'said'),
  [
    ('kill -9 $$', 'it was killed, as where memory runs out'),
    ('echo noise >&2; echo "no space left" >&2; exit 1', 'the compiler failed: no space left'),
    ('exit 3', 'the compiler failed: exit code 3'),
    ("""echo '{"error": ["no place for ptxas"]}'""", 'v5e:2x2: no place for ptxas'),
  ],
)
def test_a_compiler_that_fails_is_one_line(script, said, capsys, monkeypatch, tmp_path):
  program = tmp_path / 'python'
  program.write_text(f'#!/bin/sh\n{script}\n')
  program.chmod(0o755)
  monkeypatch.setattr(compile, 'check_compiler', lambda _: None)
  monkeypatch.setattr(compile.sys, 'executable', str(program))
  with pytest.raises(SystemExit, match='2'):
    benchmark.main(['compile', '--target=v5e:2x2'])
  error = capsys.readouterr().err
  assert said in error and len(error.splitlines()) == 1


def test_the_compiler_ends_with_the_command_that_asked_for_it(tmp_path):
  """A process that compiles is started by one that is killed at once."""
  script = tmp_path / 'asks.py'
  script.write_text(
    'import json, os, subprocess, sys, time\n'
    'child = subprocess.Popen([sys.executable, "-c", "import sys, time; "\n'
    '  "from cfn_jax.timing import ahead; "\n'
    '  "ahead.compile_step = lambda *_: time.sleep(600); ahead.main()"], stdin=subprocess.PIPE)\n'
    'request = {"options": {}, "target": "", "parent": os.getpid()}\n'
    'child.stdin.write(json.dumps(request).encode() + b"\\n"); child.stdin.flush()\n'
    'print(child.pid, flush=True)\n'
    'time.sleep(600)\n'
  )
  environment = {**os.environ, 'PYTHONPATH': str(REPOSITORY)}
  asking = subprocess.Popen(
    [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
  )
  assert asking.stdout is not None
  child = int(asking.stdout.readline())
  asking.kill()
  asking.wait()
  for _ in range(600):  # its imports come first
    state = pathlib.Path(f'/proc/{child}/stat')
    if not state.exists() or state.read_text().split()[2] == 'Z':
      return
    time.sleep(0.1)
  os.kill(child, signal.SIGKILL)
  pytest.fail('the compiler went on alone')


def test_every_target_can_be_judged():
  for target in hardware.TARGETS:
    machine = hardware.find_machine(target)
    measured = ahead.measure(program.Program(TEXT), machine, dtype='bfloat16', precision='default')
    assert measured['bound_seconds_arithmetic'] > 0 and measured['bound_seconds_memory'] > 0
    share = measured['share_of_matrix_units']
    assert (share is None) == (machine.platform == 'cuda')


def test_the_peak_of_the_matrix_units_is_that_of_the_data_sheet():
  clocks = {'v5e': 1.5e9, 'v6e': 1.75e9, 'v5p': 1.75e9}
  for name, clock in clocks.items():
    machine = hardware.MACHINES[name]
    peak = hardware.find_peak(machine.kind, 'bfloat16', 'default')
    assert machine.flops_a_cycle * clock == pytest.approx(peak, rel=0.01)


def test_what_has_no_bytes_and_other_products_are_counted():
  assert hlo.Shape('token', ()).bytes == 0
  assert hlo.Shape('f8e4m3fn', (3,)).bytes == 3 and hlo.Shape('s4', (3,)).bytes == 2
  library = TEXT.replace(
    '%product = f32[8,4]{1,0:T(8,128)S(1)} fusion(%p, %q), kind=kOutput, calls=%fused, ',
    '%product = f32[8,4]{1,0} custom-call(%p, %q), custom_call_target="__cublas$lt$matmul", '
    'config={"lhs_contracting_dimensions":["1"]}, ',
  )
  assert library != TEXT and program.Program(library).cost.flops == 2 * 8 * 4 * 16


# Real compilers, where the extra is installed.

# Of configs/cfn.py:small in bfloat16, one puzzle an image, 256 a device: what one puzzle takes of
# bytes moved, cycles and bytes of temporaries.
FIGURES = {'h100:8': (3_751_500, 0, 525_660), 'v5e:2x2': (3_679_037, 7_515, 23_176)}


@pytest.mark.slow
@pytest.mark.parametrize('target', FIGURES)
def test_the_step_compiles_for_machines_that_are_not_here(target, tmp_path, capfd):
  try:
    compile.check_compiler(hardware.find_machine(target).platform)
  except ValueError as error:
    pytest.skip(str(error))
  count = {'h100:8': 8, 'v5e:2x2': 4}[target]
  dump = tmp_path / 'program.txt'
  options = ['--config=cfn:small', '--dtype=bfloat16', '--permutations-per-pass=1', '--top=3']
  files = [f'--batch={256 * count}', f'--dump={dump}']
  benchmark.main(['compile', f'--target={target}', *options, *files])
  told = capfd.readouterr()
  (line,) = told.out.splitlines()
  found = json.loads(line)
  assert found['fits'] and found['devices'] == count
  assert set(found['collectives']) == {'all-reduce'}  # nothing is gathered
  assert found['scatters'] <= 1  # of the labels
  assert 'cfn_jax/models/' in told.err
  machine = hardware.find_machine(target)
  read = program.Program(dump.read_text())
  again = ahead.measure(read, machine, dtype='bfloat16', precision='default')
  assert again == {name: found[name] for name in again}
  moved, cycles, temporary = FIGURES[target]
  assert found['bytes_moved'] / 256 == pytest.approx(moved, rel=0.1)
  assert (found['estimated_cycles'] or 0) / 256 == pytest.approx(cycles, rel=0.1)
  assert found['temporary_bytes'] / 256 == pytest.approx(temporary, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(('target', 'batch'), [('h100:1', 256), ('h100:8', 2048)])
def test_the_full_step_moves_at_most_eight_gigabytes_on_a_gpu(target, batch, capsys):
  try:
    compile.check_compiler('cuda')
  except ValueError as error:
    pytest.skip(str(error))
  options = [f'--target={target}', f'--batch={batch}', '--dtype=bfloat16']
  benchmark.main(['compile', *options])
  found = json.loads(capsys.readouterr().out)
  assert found['bytes_moved'] <= 8e9 and found['temporary_bytes'] <= 1.1e9
  assert found['scatters'] == 1 and set(found['collectives']) <= {'all-reduce'}
