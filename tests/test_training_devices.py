"""Data parallelism, seen in the compiled program: no device does another one's work."""

import collections
import contextlib
import types

import jax
import killed_runs
import numpy as np
import pytest
import tiny_task
from jax.sharding import NamedSharding, PartitionSpec
from test_training_step import distance, make_config, make_mesh, make_parts, train

from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import task as jigsaw_task
from cfn_jax.models import convolutions, layers
from cfn_jax.timing import program
from cfn_jax.training import devices, loop, scoring, settings, stopping

FORMS = {  # conv1's many taps make a long program of columns: that form is for the other layers
  'strips': convolutions.strip,
  'columns': convolutions.columns,
  'dense': convolutions.dense,
  'lax': convolutions.reference,
}


def compile_step(config, count):
  state, step, batch, _ = make_parts(config, make_mesh(count))
  return step.lower(state, batch(0)).compile()


def count_operations(compiled):
  """Returns the arithmetic of one device."""
  return compiled.cost_analysis()['flops']


def choose(form):
  def chosen(_, kernel):
    return FORMS['strips' if form == 'columns' and kernel[0] > 5 else form]

  return chosen


def find_moves(text):
  """Counts the operations of a compiled program that carry batches from device to device."""
  kinds = set(program.COLLECTIVES) - {'all-reduce'}
  return program.Program(text).count(*sorted(kinds))


def test_the_mesh_is_in_the_order_of_the_hosts(monkeypatch):
  """A TPU slice numbers its chips by their places; hosts of 2 x 2 of them would interleave."""
  chips = [
    types.SimpleNamespace(id=4 * y + x, process_index=2 * (y // 2) + x // 2, coords=(x, y, 0))
    for y in range(4)
    for x in range(4)
  ]
  made = []
  monkeypatch.setattr(devices, 'Mesh', lambda chosen, *_, **__: made.append(chosen))
  devices.make_mesh_of(chips)
  (found,) = made
  assert [chip.process_index for chip in found] == [host for host in range(4) for _ in range(4)]
  assert [chip.id for chip in found][:8] == [0, 1, 4, 5, 2, 3, 6, 7]


def test_moves_between_devices_are_found_in_a_program_that_has_them():
  mesh = make_mesh(8)
  rows, columns, whole = (
    NamedSharding(mesh, spec)
    for spec in (PartitionSpec('data'), PartitionSpec(None, 'data'), PartitionSpec())
  )
  x = jax.device_put(np.ones((16, 16), np.float32), rows)
  for target, name in ((columns, 'all-to-all'), (whole, 'all-gather')):
    text = jax.jit(lambda x: x + 1, out_shardings=target).lower(x).compile().as_text()
    assert find_moves(text) == {name: 1}, text


@pytest.mark.slow
@pytest.mark.parametrize(('form', 'k'), [*((form, 1) for form in FORMS), ('lax', 4)])
def test_eight_devices_share_the_work_and_gather_nothing(form, k, monkeypatch):
  monkeypatch.setattr(layers, 'choose_on_cpu', choose(form))
  c = make_config(batch_size=256)
  c.model.permutations_per_pass = k
  c.model.dropout = 0.5
  one, eight = compile_step(c, 1), compile_step(c, 8)
  text = eight.as_text()
  assert not find_moves(text)
  assert 'all-reduce' in text
  assert count_operations(eight) <= 1.1 / 8 * count_operations(one)


@pytest.mark.slow
def test_parts_of_a_batch_stay_on_their_devices():
  text = compile_step(make_config(batch_size=64, accumulate_steps=4), 8).as_text()
  assert not find_moves(text)


@pytest.mark.slow
def test_eight_devices_take_the_steps_of_one():
  c = make_config()
  c.model.dropout = 0.5  # its masks belong to the rows, not to the devices
  (one, losses), (eight, shared) = train(c, count=1), train(c, count=8)
  assert shared == pytest.approx(losses, rel=1e-5)
  assert distance(one.params, eight.params) < 1e-5


@pytest.mark.parametrize(('first', 'second'), [(8, 1), (8, 3), (1, 8), (3, 8)])
def test_a_run_goes_on_with_another_number_of_devices(first, second, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(tiny_task, 'BATCH', 24)
  seen = []

  def fit(name, count, steps):
    (tmp_path / name).mkdir(exist_ok=True)
    task = tiny_task.make_task()
    task.pictures['end'] = lambda workdir, params, step: None
    config = tiny_task.make_config(
      num_devices=count, num_steps=steps, batch_size=24, eval_batch_size=24, ema_decay=0.9
    )
    start = settings.start

    def watched(*arguments):
      state, step = start(*arguments)
      seen.append(len(state.params['fc']['kernel'].devices()))
      return state, step

    with monkeypatch.context() as patch:
      patch.setattr(settings, 'start', watched)
      loop.fit(task, config, tmp_path / name)

  fit('straight', first, 12)
  fit('moved', first, 6)
  fit('moved', second, 12)
  assert seen == [first, first, second]
  said = capsys.readouterr().err
  assert f'num_devices: {first} then, {second} now' in said and 'resuming from step 6' in said
  ours, theirs = (killed_runs.read_arrays(tmp_path / name, 12) for name in ('moved', 'straight'))
  assert ours.keys() == theirs.keys() and len(ours) > 7
  for name, array in theirs.items():
    np.testing.assert_allclose(ours[name], array, rtol=2e-6, atol=1e-6, err_msg=name)


def test_what_runs_out_of_memory_names_the_ways_out_and_other_errors_pass():
  run = {
    'batch_size': 7,
    'eval_batch_size': 9,
    'accumulate_steps': 2,
    'remat': False,
    'compute_dtype': 'float32',
  }
  with (
    pytest.raises(devices.OutOfMemoryError, match=r'memory \(RESOURCE_EXHAUSTED: 5G\)') as caught,
    devices.explain_memory(run),
  ):
    raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: 5G\nmore')
  for text in ('batch_size (now 7)', 'steps (now 2): larger', "compute_dtype (now 'float32')"):
    assert text in str(caught.value)
  with (
    pytest.raises(devices.OutOfMemoryError, match=r'eval_batch_size \(now 9\): smaller$'),
    devices.explain_memory({'eval_batch_size': 9, 'seed': 0}),  # a task that trains nothing
  ):
    raise jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: 5G')
  with pytest.raises(jax.errors.JaxRuntimeError, match='INTERNAL'), devices.explain_memory(run):
    raise jax.errors.JaxRuntimeError('INTERNAL: else')


@pytest.mark.parametrize('count', [1, 3, 8])
def test_an_evaluation_counts_each_puzzle_once_on_any_number_of_devices(count):
  c = make_config()
  c.data.val_crops_per_photograph = 13  # of two photographs: no multiple of the batch
  task = jigsaw_task.make_task(c, pretexts.open_pretext(c))
  mesh = make_mesh(count)
  state, _ = settings.start(task, c, mesh)
  with stopping.Stopping() as stop:
    figures = scoring.make_evaluate(task, mesh)(state, stop)
  assert figures['val_count'] == 2 * 13 * 2
  expected = collections.Counter()
  params = jax.device_get(state.params)
  measure = jax.jit(task.evaluations['val'].measure)
  with contextlib.closing(task.evaluations['val'].batches()) as batches:
    for batch in batches:
      expected.update({name: float(v) for name, v in measure(params, batch).items()})
  loss = expected['val_loss'] / expected['val_count']
  assert figures['val_loss'] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
  ('size', 'count', 'parts', 'message'),
  [
    (12, 8, 1, r'batch_size = 12 cannot be split over 8 devices: take 8 or 16'),
    (4, 8, 1, r'batch_size = 4 cannot be split over 8 devices: take 8'),
    (24, 8, 2, r'batch_size = 24 cannot be split over 8 devices in 2 parts: take 16 or 32'),
    (24, 1, 0, r'accumulate_steps = 0: at least 1'),
  ],
)
def test_batches_that_the_devices_cannot_share_are_refused(size, count, parts, message):
  with pytest.raises(devices.BatchError, match=message):
    devices.check_batch(size, count, field='batch_size', parts=parts)


def test_a_mesh_holds_the_first_devices_and_no_more_than_there_are():
  assert devices.make_mesh().size == jax.device_count() == 8
  assert list(devices.make_mesh(3).devices) == jax.devices()[:3]
  for count in (9, -1):
    with pytest.raises(devices.BatchError, match=f'num_devices = {count}, but there are 8'):
      devices.make_mesh(count)


def test_rows_go_to_the_devices_in_their_order():
  mesh = make_mesh(4)
  rows = np.arange(8)
  put = devices.put_batch({'label': rows}, mesh)['label']
  parts = sorted(put.addressable_shards, key=lambda shard: shard.index[0].start)
  assert [list(np.asarray(shard.data)) for shard in parts] == [[0, 1], [2, 3], [4, 5], [6, 7]]
