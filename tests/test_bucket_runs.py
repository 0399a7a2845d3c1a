"""Whole commands on runs that live in a bucket: killed, on several hosts, read by every tool."""

import json
import random
import time

import bucket_cases
import killed_runs
import labelled_cases
import pytest
import test_distributed
from test_main import SMALL, run, without_timings

STEPS = 24
STORM = (
  *SMALL,
  f'--config.num_steps={STEPS}',
  '--config.eval_every_steps=6',
  '--config.keep_latest=2',
  '--config.keep_best=1',
)
KILLS = ('save', 'between') * 5


@pytest.fixture(scope='module')
def bucket(proxy):
  return bucket_cases.Bucket(proxy)


def find_saves(bucket, name):
  """Returns the folders of steps that are whole, and those that are not."""
  held = {}
  for path in bucket.names(f'{name}/checkpoints/'):
    step, _, rest = path.partition('/')
    held.setdefault(step, []).append(rest)
  whole = {step for step, paths in held.items() if 'commit_success.txt' in paths}
  aside = {step for step, paths in held.items() if 'set_aside.json' in paths}
  return whole - aside, {*held} - whole - aside


def read_rows(bucket, name):
  text = bucket.read(f'{name}/metrics.jsonl').decode()
  return [json.loads(line) for line in text.splitlines()]


def assert_same_run(bucket, name, plain, tmp_path):
  """Compares a run in the bucket with one on the disk, bit for bit."""
  assert without_timings(read_rows(bucket, name)) == without_timings(killed_runs.read_rows(plain))
  newest = max(int(path.name) for path in (plain / 'checkpoints').iterdir())
  whole, _ = find_saves(bucket, name)
  assert {step.partition('.')[0] for step in whole} == {
    path.name for path in (plain / 'checkpoints').iterdir()
  }
  there = next(step for step in whole if step.partition('.')[0] == str(newest))
  copied = tmp_path / 'copied' / 'checkpoints' / str(newest)
  bucket.download(f'{name}/checkpoints/{there}/', copied)
  killed_runs.assert_same_arrays(tmp_path / 'copied', plain, newest)
  for file in ('permutations.npy', 'puzzles.png', 'answers.png'):
    assert bucket.read(f'{name}/{file}') == (plain / file).read_bytes(), file


@pytest.fixture(scope='module', params=['gs', pytest.param('s3', marks=pytest.mark.long)])
def store(request):
  """Yields the scheme of an emulator, its bucket, its proxy, and the method that writes."""
  if request.param == 'gs':
    proxy = request.getfixturevalue('proxy')
    yield 'gs', bucket_cases.Bucket(proxy), proxy, 'POST'
  else:
    with bucket_cases.serving_s3() as client, bucket_cases.before_s3() as proxy:
      yield 's3', bucket_cases.S3Bucket(client), proxy, 'PUT'


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('straight') / 'run'
  result = run(*STORM, f'--workdir={workdir}')
  assert result.returncode == 0, result.stderr
  return workdir


@pytest.mark.slow
def test_a_storm_of_kills_changes_no_bit(store, straight, tmp_path):
  (scheme, bucket, proxy, writes), name, rng = store, 'storm/run', random.Random(0)
  slow = bucket_cases.answer(0.05, writes, times=10**9)  # a save takes a while
  unfinished = 0
  with bucket_cases.failing(proxy, slow):
    for number, aim in enumerate(KILLS):
      host = tmp_path / f'host{number // 3}'  # three starts on each: with and without what was left
      before, _ = find_saves(bucket, name)

      def reached(aim=aim, before=before):
        whole, others = find_saves(bucket, name)
        return bool(others) if aim == 'save' else bool(whole - before)

      with killed_runs.Run(
        f'{scheme}://bucket/{name}',
        *STORM,
        environment={'XDG_CACHE_HOME': str(host)},
        log=tmp_path / f'{number}.log',
      ) as running:
        running.wait_until(reached)
        time.sleep(rng.uniform(0, 0.1))
        ended = running.process.poll() is not None
        running.process.kill()
        running.process.wait()
        assert 'error' not in running.said(), running.said()
      unfinished += bool(find_saves(bucket, name)[1])
      if ended:
        break
  assert number >= 9 or ended
  assert unfinished >= 3
  result = run(*STORM, f'--workdir={scheme}://bucket/{name}')
  assert result.returncode == 0, result.stderr
  assert_same_run(bucket, name, straight, tmp_path)


def run_two(tmp_path, scheme, name, *arguments):
  """Runs two processes that share no disk, as on two hosts; returns what each said."""
  workdir = tmp_path / 'gs' / name.replace('/', '_')
  workdir.parent.mkdir(exist_ok=True)
  processes = test_distributed.start_processes(
    workdir,
    *arguments,
    address=f'{scheme}://bucket/{name}',
    environments=[{'XDG_CACHE_HOME': str(tmp_path / f'host{i}')} for i in range(2)],
    heartbeat_s=60,
  )
  with test_distributed.ended(processes):
    codes = [process.wait(timeout=300) for process in processes]
  logs = [test_distributed.read_log(workdir, i) for i in range(2)]
  assert codes == [0, 0], logs
  return logs


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_without_a_common_disk_are_one_run_and_resume_it(store, tmp_path):
  scheme, bucket, *_ = store
  run_two(tmp_path, scheme, 'two/straight', '--config.num_steps=7')
  run_two(tmp_path, scheme, 'two/run', '--config.num_steps=6')
  assert find_saves(bucket, 'two/run') == ({'3', '6'}, set())
  first, second = run_two(tmp_path, scheme, 'two/run', '--config.num_steps=7')
  assert 'resuming from step 6' in first and 'resuming' not in second
  for name in ('straight', 'run'):
    bucket.download(f'two/{name}/checkpoints/7/', tmp_path / name / 'checkpoints' / '7')
  killed_runs.assert_same_arrays(tmp_path / 'run', tmp_path / 'straight', 7)
  resumed, straight = (
    {row['step']: row for row in without_timings(read_rows(bucket, f'two/{name}'))}
    for name in ('run', 'straight')
  )
  assert resumed[7] == straight[7]


@pytest.mark.long
@pytest.mark.slow
def test_every_tool_reads_a_run_there_and_evaluations_write_there(bucket, tmp_path):
  run_there = 'gs://bucket/tools/run'
  done = run(*SMALL, '--config.report=True', f'--workdir={run_there}')
  assert done.returncode == 0 and f'everything is in {run_there}' in done.stderr, done.stderr
  assert {'report.html', 'puzzles.png', 'curves.png'} <= set(bucket.names('tools/run/'))
  out = tmp_path / 'out'
  for module, *arguments in (
    ('convert', f'--checkpoint={run_there}', '--to=npz', f'--out={out}'),
    ('visualize', 'filters', f'--weights={run_there},{out}', f'--out={tmp_path / "filters.png"}'),
    ('visualize', 'report', f'--workdir={run_there}', f'--out={tmp_path / "report.html"}'),
  ):
    done = run(*arguments, module=f'cfn_jax.{module}')
    assert done.returncode == 0, done.stderr
  assert run_there in (tmp_path / 'report.html').read_text()
  images = labelled_cases.make_class_folders(tmp_path / 'images')
  arguments = (
    '--config=configs/linear_probe.py:small',
    f'--config.weights={run_there}',
    f'--config.data.root={images / "train"}',
    f'--config.data.val_root={images / "test"}',
    '--config.batch_size=4',
    '--config.num_steps=4',
    '--workdir=gs://bucket/tools/probe',
  )
  for again in (False, True):
    done = run(*arguments)
    assert done.returncode == 0 and ('done before' in done.stderr) == again, done.stderr
  weights = json.loads(bucket.read('tools/probe/results.json'))['weights']
  assert f'"path": "{run_there}"' in json.dumps(weights)


@pytest.mark.long
@pytest.mark.slow
def test_a_study_lives_in_a_bucket(bucket, tmp_path):
  path = tmp_path / 'mine.py'
  runs = {'a': {}, 'b': {'fields': {'permutations.num': 9}, 'start': 'a'}}
  figures = {'accuracy': {'take': ('', 'val_accuracy'), 'unit': '%'}}
  declared = {'title': 't', 'runs': runs, 'figures': figures}
  path.write_text(f'def get_study():\n  return {declared!r}\n')
  arguments = (
    *SMALL[:1], '--config.num_steps=2', *SMALL[2:], f'--study={path}', '--workdir=gs://bucket/study',
  )  # fmt: skip
  for again in (False, True):
    done = run(*arguments, module='cfn_jax.study')
    assert done.returncode == 0 and ('---- a_s0' not in done.stderr) == again, done.stderr
  results = json.loads(bucket.read('study/results.json'))['runs']
  assert all(isinstance(results[name]['accuracy'], float) for name in 'ab')
  assert find_saves(bucket, 'study/b_s0') == ({'2'}, set())
  told = json.loads(bucket.read('study/b_s0/config.json'))
  assert told['init_from'] == 'gs://bucket/study/a_s0'


@pytest.mark.slow
def test_a_bucket_that_is_not_there_ends_the_command_in_one_line_before_it_compiles(bucket):
  done = run(*SMALL, '--workdir=gs://nobucket/run')
  assert done.returncode == 2 and done.stderr.count('\n') == 1
  assert done.stderr.endswith('there is no bucket gs://nobucket\n')
