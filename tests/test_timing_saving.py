"""`python -m cfn_jax.benchmark saving`: its line of JSON, and that nothing of it is left."""

import json

import bucket_cases
import pytest
from conftest import REPOSITORY

from cfn_jax import benchmark
from cfn_jax.errors import CfnError
from cfn_jax.timing import saving

TINY = f'--config={REPOSITORY}/configs/cfn.py:tiny'


def measure(workdir, capsys):
  benchmark.main(['saving', TINY, f'--workdir={workdir}', '--saves=2'])
  return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_saves_are_timed_on_a_disk_and_in_a_bucket(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  disk = measure(tmp_path / 'disk', capsys)
  with bucket_cases.serving() as proxy:
    there = measure('gs://bucket/x', capsys)
    assert bucket_cases.Bucket(proxy).names() == []
  assert list((tmp_path / 'disk').iterdir()) == []
  assert disk['state_bytes'] == there['state_bytes'] > 100_000
  for found in (disk, there):
    assert 0 < found['held_up_seconds'] <= found['held_up_seconds_longest']
    assert found['held_up_seconds'] < found['whole_seconds'] and found['read_seconds'] > 0


def test_a_number_of_saves_that_is_none_is_refused(tmp_path):
  arguments = saving.argparse.Namespace(workdir=str(tmp_path), config='cfn', saves=0)
  with pytest.raises(CfnError, match='--saves=0: at least 1'):
    saving.run(arguments)
