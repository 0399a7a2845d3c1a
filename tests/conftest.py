"""Set-up that every test shares: fake devices, the compilation cache, the shared photographs."""

import os
import pathlib
import signal
import tempfile

os.environ.setdefault('XLA_FLAGS', '--xla_force_host_platform_device_count=8')
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
# Processes that tests start compile each program once between them.
os.environ.setdefault(
  'JAX_COMPILATION_CACHE_DIR', str(pathlib.Path(tempfile.gettempdir()) / 'cfn_jax_test_cache')
)
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.5')

# No test asks a server but its own.
os.environ |= {
  'STORAGE_EMULATOR_HOST': 'http://127.0.0.1:1',
  'NO_GCE_CHECK': 'true',
  'AWS_ENDPOINT_URL': 'http://127.0.0.1:1',
  'AWS_EC2_METADATA_DISABLED': 'true',
}

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent

# A job in the background ignores Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope='session')
def shared_root():
  """Returns a function from a name under `../shared` to its path; skips where it is absent."""

  def find(name: str) -> pathlib.Path:
    path = REPOSITORY.parent / 'shared' / name
    if not path.exists():
      pytest.skip(f'{path} is not there')
    return path

  return find


@pytest.fixture(scope='session')
def shared_data():
  """Returns a function from a name to its path in `../shared/data` (or $CFN_TEST_DATA)."""

  def find(name: str) -> pathlib.Path:
    root = pathlib.Path(os.environ.get('CFN_TEST_DATA') or REPOSITORY.parent / 'shared' / 'data')
    if not (root / name).exists():
      pytest.skip(
        f'{root / name} is not there: set CFN_TEST_DATA to the folder of test photographs'
      )
    return root / name

  return find
