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


# Google's emulator, for tests of buckets; each may have fixtures of its own names instead.


@pytest.fixture(scope='module')
def proxy():
  """Yields the proxy before an emulator; skips where that is not installed."""
  import bucket_cases

  with bucket_cases.serving() as proxy:
    yield proxy


@pytest.fixture
def bucket(proxy):
  """Returns the bucket, emptied."""
  import bucket_cases

  return bucket_cases.Bucket(proxy).clear()


@pytest.fixture
def host(monkeypatch, tmp_path):
  """Has a test start on a host that knows nothing of a bucket, and where time runs fast.

  Returns a function that makes another host of it, and returns that host's cache.
  """
  import bucket_cases

  from cfn_jax.buckets import objects, reading

  monkeypatch.setattr(objects.random, 'uniform', lambda *_: 0.02)
  bucket_cases.hurry(monkeypatch)
  reading._fetch.cache_clear()

  def use(name):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / name))
    return tmp_path / name

  use('host')
  return use
