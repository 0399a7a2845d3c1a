"""Laws of the pipeline: which batch a step sees depends on nothing but the config and the step."""

import io
import itertools
import os
import pickle
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.stats
from PIL import Image

from cfn_jax.data import pipeline, record, streams

LENGTH = 10


class Numbered(record.Source):
  """Records that are images of their own number."""

  class_names = ()
  fingerprint = description = 'numbered images'

  def __init__(self, length=LENGTH, encoded=False, broken=()):
    self.length, self.encoded, self.broken = length, encoded, broken

  def __len__(self):
    return self.length

  def __getitem__(self, index):
    index = record.check_index(index, self.length)
    image = np.full((5, 4, 3), index, np.uint8)
    if index in self.broken:
      image = b'no image'
    elif self.encoded:
      buffer = io.BytesIO()
      Image.fromarray(image).save(buffer, 'png')
      image = buffer.getvalue()
    return record.Record(image, f'folder/image {index}', index % 3)


def describe(visit):
  """A transform that writes down all it is given, and some draws."""
  return {
    'record': np.int64(visit.record),
    'label': np.int32(visit.label),
    'image': visit.image,
    'draws': visit.rng.integers(0, 2**62, size=3),
  }


class Group:
  """A transform that makes several examples of one visit."""

  def __call__(self, visit):
    return self.group(visit, 1)[0]

  def group(self, visit, count):
    numbers = visit.rng.permutation(100)[:count]
    return [{'record': np.int64(visit.record), 'number': number} for number in numbers]


def fail_at_seven(visit):
  if visit.record == 7:
    raise ValueError('it does not fit')
  return describe(visit)


def tell_process(visit):
  """Says where it runs, and whether a JAX backend was started there."""
  bridge = sys.modules.get('jax._src.xla_bridge')
  started = bridge is not None and bridge.backends_are_initialized()
  return {'process': np.int64(os.getpid()), 'backend': np.bool_(started)}


def training(
  start=0,
  stop=8,
  *,
  transform=describe,
  source=None,
  batch_size=4,
  seed=5,
  group=1,
  on_bad_image='fail',
  on_bad=None,
  **loading,
):
  return pipeline.make_training_batches(
    pipeline.Reader(source or Numbered(), seed, on_bad_image=on_bad_image),
    transform,
    batch_size=batch_size,
    start_step=start,
    stop_step=stop,
    group=group,
    loading=pipeline.Loading(**loading),
    on_bad=on_bad,
  )


def evaluation(*, batch_size, source=None, limit=0, on_bad_image='fail', on_bad=None, **loading):
  return pipeline.make_evaluation_batches(
    pipeline.Reader(source or Numbered(), 5, on_bad_image=on_bad_image),
    describe,
    batch_size=batch_size,
    limit=limit,
    loading=pipeline.Loading(**loading),
    on_bad=on_bad,
  )


def assert_same(ours, theirs):
  """Compares lists of batches byte by byte."""
  assert len(ours) == len(theirs)
  for one, other in zip(ours, theirs):
    assert sorted(one) == sorted(other)
    for name in one:
      assert one[name].dtype == other[name].dtype and one[name].shape == other[name].shape
      assert one[name].tobytes() == other[name].tobytes()


def assert_gone(processes, seconds):
  deadline = time.monotonic() + seconds
  while any(os.path.exists(f'/proc/{process}') for process in processes):  # noqa: PTH110
    assert time.monotonic() < deadline, f'{processes} still run'
    time.sleep(0.05)


# Law: the batch at step s is a pure function of (config, s).


def test_batches_have_their_shapes_and_types():
  batches = list(training())
  assert len(batches) == 8
  for batch in batches:
    assert batch['record'].shape == (4,) and batch['record'].dtype == np.int64
    assert batch['image'].shape == (4, 5, 4, 3) and batch['image'].dtype == np.uint8
    assert (batch['image'][:, 0, 0, 0] == batch['record']).all()
    assert (batch['label'] == batch['record'] % 3).all()


def test_batch_of_a_step_is_worked_out_by_its_places_in_the_stream():
  for step, batch in enumerate(training()):
    for row in range(4):
      position = 4 * step + row
      index = streams.record_index(LENGTH, seed=5, position=position)
      draws = streams.make_rng(5, position).integers(0, 2**62, size=3)
      assert batch['record'][row] == index and (batch['draws'][row] == draws).all()


def test_same_config_gives_the_same_batches_and_another_seed_others():
  assert_same(list(training()), list(training()))
  records = [np.concatenate([b['record'] for b in training(seed=seed)]) for seed in (5, 6)]
  assert (records[0] != records[1]).any()
  draws = [np.stack([b['draws'] for b in training(seed=seed)]) for seed in (5, 6)]
  assert (draws[0] != draws[1]).all()


@pytest.mark.parametrize('start', range(9))
def test_restart_at_any_step_gives_the_batches_that_were_left(start):
  assert_same(list(training(start)), list(training())[start:])


@pytest.mark.parametrize('threads', [1, 4])
@pytest.mark.parametrize('ahead', [1, 5])
def test_threads_and_read_ahead_change_nothing(threads, ahead):
  assert_same(list(training(num_threads=threads, read_ahead_batches=ahead)), list(training()))


@pytest.mark.slow
@pytest.mark.parametrize('workers', [2, 1])
def test_loader_processes_change_nothing(workers):
  assert_same(list(training(num_workers=workers)), list(training()))


@pytest.mark.slow
def test_restart_with_three_loader_processes_and_two_hosts_changes_nothing():
  for host in range(2):
    theirs = list(training(3, 20, host=host, hosts=2))
    assert_same(list(training(3, 20, num_workers=3, host=host, hosts=2)), theirs)


@pytest.mark.parametrize('hosts', [1, 2, 4])
def test_hosts_share_a_batch_row_for_row(hosts):
  shares = [list(training(host=host, hosts=hosts)) for host in range(hosts)]
  joined = [
    {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for parts in zip(*shares)
  ]
  assert_same(joined, list(training()))


def test_hosts_that_cannot_share_a_batch_equally_are_told_so():
  with pytest.raises(ValueError, match='batch of 4 cannot be shared by 3 hosts'):
    list(training(hosts=3))


# Epochs.


@pytest.mark.parametrize('batch_size', [1, 4, 7, 25])
def test_every_record_comes_exactly_once_in_an_epoch_whatever_the_batch(batch_size):
  epochs = 5
  steps = -(-epochs * LENGTH // batch_size)
  batches = training(stop=steps, batch_size=batch_size)
  stream = np.concatenate([batch['record'] for batch in batches])[: epochs * LENGTH]
  orders = stream.reshape(epochs, LENGTH)
  assert (np.sort(orders) == np.arange(LENGTH)).all()
  assert len({tuple(order) for order in orders.tolist()}) == epochs


def test_every_visit_has_draws_of_its_own():
  draws = np.concatenate([batch['draws'] for batch in training(stop=25)])
  assert len(np.unique(draws)) == draws.size


def test_streams_of_one_seed_share_no_draws():
  numbers = (
    streams.VISIT,
    streams.ORDER,
    streams.EVALUATION,
    streams.IMAGE,
    streams.REPLACEMENT,
    streams.SUBSET,
  )
  places = itertools.product((0, 1), (0, 1, 2**40), numbers)
  draws = [streams.make_rng(*place).integers(0, 2**62, size=1000) for place in places]
  assert len(np.unique(draws)) == 2 * 3 * 6 * 1000


def test_records_of_a_step_are_named():
  third = list(training())[2]
  names = pipeline.Reader(Numbered(), 5).names(range(8, 12))
  assert names == [f'folder/image {index}' for index in third['record']]


# Evaluation.


@pytest.mark.parametrize('batch_size', [1, 2, 3, 4, 10, 16])
@pytest.mark.parametrize('hosts', [1, 2, 4])
def test_evaluation_covers_each_record_once_and_masks_what_fills_up(batch_size, hosts):
  if batch_size % hosts:
    with pytest.raises(ValueError, match='cannot be shared'):
      list(evaluation(batch_size=batch_size, hosts=hosts))
    return
  shares = [list(evaluation(batch_size=batch_size, host=h, hosts=hosts)) for h in range(hosts)]
  assert {len(share) for share in shares} == {-(-LENGTH // batch_size)}
  seen = []
  for batch in itertools.chain(*shares):
    assert batch['mask'].dtype == np.float32 and batch['mask'].shape == (batch_size // hosts,)
    assert {len(rows) for rows in batch.values()} == {batch_size // hosts}
    real = batch['mask'] == 1
    assert (batch['mask'][~real] == 0).all()
    for name in ('record', 'label', 'image', 'draws'):
      assert real.any() is np.False_ or (batch[name][~real] == 0).all()
    seen += list(zip(batch['record'][real].tolist(), batch['draws'][real].tolist()))
  expected = [
    (index, streams.make_rng(5, index, streams.EVALUATION).integers(0, 2**62, size=3).tolist())
    for index in range(LENGTH)
  ]
  assert sorted(seen) == expected


@pytest.mark.parametrize(('limit', 'count'), [(0, 10), (3, 3), (99, 10)])
def test_limit_shows_a_fixed_subset_in_order_with_the_draws_of_a_whole_pass(limit, count):
  def rows(limit, seed=5):
    made = pipeline.make_evaluation_batches(
      pipeline.Reader(Numbered(), seed), describe, batch_size=4, limit=limit
    )
    kept = [{name: rows[batch['mask'] == 1] for name, rows in batch.items()} for batch in made]
    return {name: np.concatenate([batch[name] for batch in kept]) for name in kept[0]}

  chosen, whole = rows(limit), rows(0)
  assert len(chosen['record']) == count and (np.diff(chosen['record']) > 0).all()
  assert chosen['draws'].tolist() == whole['draws'][chosen['record']].tolist()
  assert rows(limit, seed=6)['record'].tolist() == chosen['record'].tolist()


def test_a_subset_is_spread_evenly_over_the_records():
  chosen = streams.choose_records(Numbered(100_000), 2000)
  assert len(set(chosen.tolist())) == 2000
  assert scipy.stats.kstest(chosen / 100_000, 'uniform').pvalue > 1e-3


def test_a_subset_of_labelled_images_shows_all_classes_alike():
  source, labels = Numbered(1000), np.sort(np.arange(1000) % 10)  # as class folders are listed
  labels[-95:] = 10  # class 9 keeps 5 images, the others have 95 or 100
  source.labels = lambda: labels
  counts = np.bincount(labels[streams.choose_records(source, 50)], minlength=11)
  assert counts.sum() == 50 and counts.min() >= 4 and counts.max() <= 5
  counts = np.bincount(labels[streams.choose_records(source, 110)], minlength=11)
  assert counts.sum() == 110 and counts[9] == 5 and set(counts[:9]) | {counts[10]} <= {10, 11}


def test_evaluation_is_the_same_at_every_pass():
  assert_same(list(evaluation(batch_size=4)), list(evaluation(batch_size=4)))


def test_encoded_records_are_decoded():
  assert_same(list(training(source=Numbered(encoded=True))), list(training()))


# Groups of steps that share their visits.


@pytest.mark.parametrize('start', range(7))
def test_steps_of_a_group_share_records_and_each_has_examples_of_its_own(start):
  batches = list(training(stop=7, transform=Group(), group=3))
  assert len(batches) == 7
  assert_same(list(training(start, 7, transform=Group(), group=3)), batches[start:])
  plain = [batch['record'] for batch in training(stop=3)]
  for step, batch in enumerate(batches):
    assert (batch['record'] == plain[step // 3]).all()
  for row in range(4):
    assert len({int(batch['number'][row]) for batch in batches[:3]}) == 3


# Images that cannot be decoded.


def test_bad_image_fails_with_its_name_unless_told_otherwise():
  for batches in (
    training(source=Numbered(broken=(3,))),
    evaluation(batch_size=4, source=Numbered(broken=(3,))),
  ):
    with pytest.raises(Exception, match='folder/image 3'):
      list(batches)
  with pytest.raises(
    ValueError, match=r"data.on_bad_image = 'ignore' is unknown: one of fail, skip"
  ):
    training(on_bad_image='ignore')


def test_bad_images_are_replaced_by_the_same_others_and_reported():
  source = Numbered(broken=(3, 8))
  reported = []
  skip = {'source': source, 'on_bad_image': 'skip'}
  batches = list(training(stop=5, on_bad=reported.append, **skip))
  assert_same(list(training(stop=5, **skip)), batches)
  assert_same(list(training(2, 5, **skip)), batches[2:])
  assert sorted(reported) == [3, 3, 8, 8]  # two epochs
  for step, (batch, plain) in enumerate(zip(batches, training(stop=5))):
    for row in range(4):
      if plain['record'][row] in source.broken:
        assert batch['record'][row] not in source.broken
        assert batch['image'][row, 0, 0, 0] == batch['record'][row]
      else:  # the others are left as they were
        assert all((batch[name][row] == plain[name][row]).all() for name in batch), step


def test_bad_images_are_not_counted_by_an_evaluation():
  reported = []
  batches = list(
    evaluation(
      batch_size=4, source=Numbered(broken=(3, 8)), on_bad_image='skip', on_bad=reported.append
    )
  )
  counted = np.concatenate([batch['record'][batch['mask'] == 1] for batch in batches])
  assert counted.tolist() == [0, 1, 2, 4, 5, 6, 7, 9]
  assert reported == [3, 8]


def test_where_every_image_is_bad_the_first_reason_is_told():
  source = Numbered(broken=range(10))
  with pytest.raises(record.SourceError) as caught:
    list(training(source=source, on_bad_image='skip'))
  told = str(caught.value)
  assert re.search(r'folder/image \d: .*; and so are 100 records drawn in its place', told)
  assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args  # out of a process


# Processes.


@pytest.mark.parametrize('workers', [0, 2])
def test_exception_carries_the_name_of_the_record(workers):
  with pytest.raises(Exception, match=r'folder/image 7: it does not fit'):
    list(training(transform=fail_at_seven, num_workers=workers))


@pytest.mark.slow
def test_loader_processes_start_no_jax_backend_and_are_gone_after_closing():
  batches = training(stop=1000, transform=tell_process, num_workers=2)
  processes = set()
  for batch in itertools.islice(batches, 4):
    processes |= set(batch['process'].tolist())
    assert not batch['backend'].any()
  assert len(processes) == 2 and os.getpid() not in processes
  batches.close()
  assert_gone(processes, 5)


SCRIPT = """
import sys
from absl import flags
import test_data_pipeline as tests

if __name__ == '__main__':
  assert not flags.FLAGS.is_parsed()
  for workers in (0, 1):
    batches = tests.training(transform=tests.tell_process, num_workers=workers)
    print(*next(batches)['process'][:1], flush=True)
    if not workers:
      batches.close()
  assert not flags.FLAGS.is_parsed()
  if 'stay' in sys.argv:
    sys.stdin.read()
  batches.close()
"""


def start_script(tmp_path, *arguments):
  path = tmp_path / 'script.py'
  path.write_text(SCRIPT)
  here = os.path.dirname(__file__)  # noqa: PTH120
  search = os.pathsep.join([here, os.path.dirname(here)])  # noqa: PTH120
  return subprocess.Popen(
    [sys.executable, path, *arguments],
    env=os.environ | {'PYTHONPATH': search},
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )


@pytest.mark.slow
def test_scripts_that_never_parsed_flags_load_with_and_without_processes(tmp_path):
  process = start_script(tmp_path)
  output, _ = process.communicate(timeout=120)
  assert process.returncode == 0
  own, worker = map(int, output.split())
  assert own == process.pid != worker
  assert_gone({worker}, 5)


@pytest.mark.slow
@pytest.mark.parametrize('signal_name', ['terminate', 'kill'])
def test_loader_processes_are_gone_soon_after_their_parent_was_killed(tmp_path, signal_name):
  process = start_script(tmp_path, 'stay')
  own, worker = (int(process.stdout.readline()) for _ in range(2))
  assert own == process.pid and os.path.exists(f'/proc/{worker}')  # noqa: PTH110
  getattr(process, signal_name)()
  process.communicate(timeout=30)
  assert_gone({worker}, 5)


def test_cost_of_an_index_is_flat_from_a_thousand_to_a_million_records():
  # A puzzle takes some 600 microseconds: an index may take 20, its share of the shuffle included.
  for length in (1_000, 1_000_000):
    began = time.process_time()
    streams.record_index(length, seed=5, position=0)  # draws the order of the epoch
    shuffling = (time.process_time() - began) / length
    began = time.process_time()
    for position in range(0, length, length // 1_000):
      streams.record_index(length, seed=5, position=position)
    looking = (time.process_time() - began) / 1_000
    assert shuffling + looking < 20e-6, length
