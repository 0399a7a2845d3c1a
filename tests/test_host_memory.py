"""Memory that a step frees stays with the process, where a CPU computes."""

import importlib.metadata
import os
import platform
import subprocess
import sys

import conftest
import pytest

from cfn_jax.training import host_memory

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='mallopt is of glibc')
COUNT_FAULTS = """
import resource
from cfn_jax.training import host_memory
kept = host_memory.keep_freed()
for _ in range(3):
  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  block = bytearray(b'x') * (64 << 20)
  del block
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = (64 << 20) // 4096


def count_faults(**variables):
  own = {name: value for name, value in os.environ.items() if not name.startswith('MALLOC_')}
  environment = own | {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(conftest.REPOSITORY)} | variables
  command = [sys.executable, '-c', COUNT_FAULTS]
  kept, faults = subprocess.check_output(command, text=True, env=environment).split()
  return kept == 'True', int(faults)


@needs_glibc
def test_a_block_that_was_freed_is_used_again_without_new_pages():
  kept, faults = count_faults()
  assert kept and faults < PAGES // 100


@needs_glibc
def test_settings_of_the_environment_stay():
  kept, faults = count_faults(MALLOC_ARENA_MAX='4')
  assert not kept and faults >= PAGES // 512  # in huge pages at the least


def test_nothing_changes_where_an_accelerator_may_compute(monkeypatch):
  found = importlib.metadata.EntryPoint('cuda', 'a.plugin', 'jax_plugins')
  monkeypatch.delenv('JAX_PLATFORMS', raising=False)
  monkeypatch.setattr(importlib.metadata, 'entry_points', lambda group: [found])
  assert not host_memory.keep_freed()
