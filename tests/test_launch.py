"""The launchers, as far as a machine without a cluster can try them: every one runs `main`."""

import json
import os
import signal
import subprocess
import time

import conftest
import cv2
import numpy as np
import pytest
import yaml

from cfn_jax.training import distributed

LAUNCH = conftest.REPOSITORY / 'launch'
SCRIPTS = {
  'local.sh': ['CONFIG', 'WORKDIR'],
  'slurm.sbatch': ['CONFIG', 'WORKDIR'],
  'slurm_study.sbatch': ['STUDY', 'CONFIG', 'WORKDIR'],
  'tpu_pod.sh': ['TPU', 'ZONE', 'CONFIG', 'WORKDIR'],
}
VALUES = {
  'STUDY': 'shortcuts',
  'CONFIG': 'configs/cfn.py',
  'WORKDIR': '/runs/a b',
  'TPU': 'slice',
  'ZONE': 'here-1',
}


def launch(script, *arguments, without=(), **variables):
  named = {name: VALUES[name] for name in SCRIPTS[script] if name not in without}
  return subprocess.run(
    ['bash', str(LAUNCH / script), *arguments],
    env={'PATH': os.environ['PATH'], **named, **variables},
    capture_output=True,
    text=True,
    timeout=60,
    check=False,
  )


@pytest.mark.parametrize('script', SCRIPTS)
def test_scripts_are_valid_shell(script):
  result = subprocess.run(['bash', '-n', str(LAUNCH / script)], capture_output=True, check=False)
  assert result.returncode == 0, result.stderr


def test_each_task_of_an_array_takes_its_part_of_a_study():
  options = {'SLURM_ARRAY_TASK_ID': '2', 'SLURM_ARRAY_TASK_COUNT': '4'}
  result = launch('slurm_study.sbatch', '--seeds=0,1', '--dry-run', **options)
  assert result.stdout == (
    'python -m cfn_jax.study --study=shortcuts --config=configs/cfn.py --workdir=/runs/a b '
    '--part=2/4 --seeds=0,1\n'
  )


def test_tasks_of_slurm_get_the_cores_that_were_asked_for():
  assert '--cpus-per-task' not in launch('slurm.sbatch', '--dry-run').stdout
  told = launch('slurm.sbatch', '--dry-run', SLURM_CPUS_PER_TASK='12').stdout
  assert told.startswith(
    'srun --kill-on-bad-exit=1 --cpus-per-task=12 python -m cfn_jax.main --conf'
  )


@pytest.mark.parametrize('place', [0, 1])
@pytest.mark.parametrize('script', [name for name in SCRIPTS if name != 'slurm_study.sbatch'])
def test_dry_run_prints_the_command_of_the_trainer(script, place):
  arguments = ['--config.seed=3']
  arguments.insert(place, '--dry-run')
  result = launch(script, *arguments)
  assert result.returncode == 0, result.stderr
  assert 'python -m cfn_jax.main --config=configs/cfn.py --workdir=/runs/a' in result.stdout
  assert result.stdout.rstrip().endswith('--config.seed=3')
  assert ('--config.distributed.mode=auto' in result.stdout) == (script != 'local.sh')


@pytest.mark.parametrize(
  ('script', 'missing'), [(script, name) for script, names in SCRIPTS.items() for name in names]
)
def test_a_missing_variable_is_named_before_anything_runs(script, missing):
  result = launch(script, without=[missing])
  assert result.returncode != 0
  assert f'{missing}: set {missing} to' in result.stderr and not result.stdout


def test_a_machine_is_measured_only_where_the_result_has_a_place(tmp_path):
  def run(**variables):
    return subprocess.run(
      ['bash', str(LAUNCH / 'measure.sh')],
      env={'PATH': os.environ['PATH'], **variables},
      capture_output=True,
      text=True,
      timeout=60,
      check=False,
    )

  here = str(tmp_path)
  cases = [
    ({'IMAGES': here}, 'OUT: set OUT to'),
    ({'OUT': f'{here}/out.json'}, 'IMAGES: set IMAGES to'),
    ({'OUT': f'{here}/out.json', 'IMAGES': f'{here}/none'}, 'there is no such folder'),
    ({'OUT': f'{here}/none/out.json', 'IMAGES': here}, 'No such file or directory'),
  ]
  for variables, said in cases:
    result = run(**variables)
    assert result.returncode != 0 and said in result.stderr, result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.long
@pytest.mark.slow
def test_a_machine_is_measured_into_one_file(tmp_path):
  folder = tmp_path / 'images'
  folder.mkdir()
  for i in range(40):  # of these names some are held out
    picture = np.random.default_rng(i).integers(256, size=(300, 300, 3), dtype=np.uint8)
    (folder / f'{i}.png').write_bytes(cv2.imencode('.png', picture)[1].tobytes())
  stand_in = tmp_path / 'baseline'
  stand_in.write_text('#!/bin/sh\necho \'{"puzzles_per_second": 1}\'\n')
  stand_in.chmod(0o755)
  out = tmp_path / 'measured.json'
  variables = {
    'CONFIG': 'cfn:tiny',
    'BATCH': '8',
    'STEPS': '1',
    'SECONDS_OF_INPUT': '1',
    'TRAIN_STEPS': '2',
    'BASELINE': str(stand_in),
    'OUT': str(out),
    'IMAGES': str(folder),
  }
  result = subprocess.run(
    ['bash', str(LAUNCH / 'measure.sh')],
    env={**os.environ, **variables},
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stderr
  found = json.loads(out.read_text())
  steps = [f'step_{name}' for name in ('float32', 'tensorfloat32', 'bfloat16')]
  assert {*steps, 'baseline_before', 'baseline_after', 'precision', 'input'} < set(found)
  assert all(found[name]['images_per_second'] > 0 for name in steps)
  assert found['step_bfloat16']['dtype'] == 'bfloat16' and found['training'][-1]['step'] == 2
  assert found['machine']['jax'] and found['machine']['devices']


@pytest.mark.parametrize(('script', 'program'), [('local.sh', 'python'), ('slurm.sbatch', 'srun')])
def test_signals_reach_the_trainer(script, program, tmp_path):
  stand_in = tmp_path / program  # takes the place of the trainer on the path
  stand_in.write_text(
    '#!/usr/bin/env bash\n'
    'trap "echo saved; exit 143" TERM; echo up; while true; do sleep 0.05; done\n'
  )
  stand_in.chmod(0o755)
  process = subprocess.Popen(
    ['bash', str(LAUNCH / script)],
    env=VALUES | {'PATH': f'{tmp_path}:{os.environ["PATH"]}'},
    stdout=subprocess.PIPE,
    text=True,
  )
  assert process.stdout is not None and process.stdout.readline() == 'up\n'
  process.send_signal(signal.SIGTERM)
  assert process.communicate(timeout=30)[0] == 'saved\n' and process.returncode == 143


def test_signals_are_sent_to_every_host_of_a_pod(tmp_path):
  calls = tmp_path / 'calls'
  (tmp_path / 'gcloud').write_text(f'#!/usr/bin/env bash\necho "$@" >> {calls}\nsleep 2\n')
  (tmp_path / 'gcloud').chmod(0o755)
  process = subprocess.Popen(
    ['bash', str(LAUNCH / 'tpu_pod.sh')],
    env=VALUES | {'PATH': f'{tmp_path}:{os.environ["PATH"]}'},
  )
  deadline = time.monotonic() + 30
  while not calls.exists() and time.monotonic() < deadline:
    time.sleep(0.05)
  process.send_signal(signal.SIGTERM)
  process.wait(timeout=30)
  first, second = calls.read_text().splitlines()
  assert 'ssh slice --zone=here-1 --worker=all' in first and 'python -m cfn_jax.main' in first
  assert 'pkill -TERM -f cfn_jax.main' in second


def test_the_kubernetes_job_starts_one_trainer_in_each_pod():
  service, job = yaml.safe_load_all((LAUNCH / 'kubernetes.yaml').read_text())
  assert (service['apiVersion'], service['kind']) == ('v1', 'Service')
  assert (job['apiVersion'], job['kind']) == ('batch/v1', 'Job')
  spec, pod = job['spec'], job['spec']['template']['spec']
  assert spec['completionMode'] == 'Indexed' and spec['completions'] == spec['parallelism']
  assert service['spec']['clusterIP'] == 'None'
  assert service['spec']['selector'] == spec['template']['metadata']['labels']
  assert pod['subdomain'] == service['metadata']['name']
  (container,) = pod['containers']
  environment = {each['name']: each for each in container['env']}
  assert int(environment['NUM_PROCESSES']['value']) == spec['completions']
  assert container['command'][:3] == ['python', '-m', 'cfn_jax.main']  # no shell eats the signals
  fields = dict(argument.split('=', 1) for argument in container['command'][3:])
  for value in fields.values():
    if value.startswith('$('):
      assert value[2:-1] in environment
  coordinator = fields['--config.distributed.coordinator']
  assert coordinator.startswith(f'{job["metadata"]["name"]}-0.{pod["subdomain"]}:')
  distributed.check(
    fields['--config.distributed.mode'],
    coordinator=coordinator,
    num_processes=spec['completions'],
    process_id=0,
    heartbeat_s=20,
  )
  volumes = {volume['name'] for volume in pod['volumes']}
  assert {mount['name'] for mount in container['volumeMounts']} == volumes
