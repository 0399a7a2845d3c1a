"""Files from elsewhere, mutated thousands of times: each ends in a result or a clean error.

No file runs code (there is no pickle in any reader), none makes a reader take memory that its size
does not justify, none ends the process.
"""

import json
import pathlib
import resource
import shutil

import numpy as np
import pytest
import simplejpeg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cfn_jax.data import array_records, prepare
from cfn_jax.data.record import SourceError
from cfn_jax.jigsaw.permutation_sets import files, permutations

MANY = settings(
  max_examples=600,
  deadline=None,
  derandomize=True,  # the same files each time
  database=None,
  suppress_health_check=list(HealthCheck),
)
FEWER = settings(MANY, max_examples=200)
NUMBERS = (0, 1, 2, 9, 127, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)


@st.composite
def edits(draw):
  """Draws what is done to a file: a list of (kind, place as a share, bytes)."""
  one = st.tuples(
    st.sampled_from(('flip', 'replace', 'insert', 'delete', 'cut', 'repeat', 'number')),
    st.floats(0, 1, exclude_max=True),
    st.binary(min_size=1, max_size=8),
  )
  return draw(st.lists(one, min_size=1, max_size=4))


def mutate(content, changes):
  for kind, share, data in changes:
    place = int(share * len(content))
    before, after = content[:place], content[place:]
    if kind == 'flip':
      content = before + bytes([(after or b'\0')[0] ^ data[0]]) + after[1:]
    elif kind == 'replace':
      content = before + data + after[len(data) :]
    elif kind == 'insert':
      content = before + data + after
    elif kind == 'delete':
      content = before + after[data[0] :]
    elif kind == 'cut':
      content = before
    elif kind == 'repeat':
      content = before + after[: data[0]] * 3 + after
    else:
      number = NUMBERS[data[0] % len(NUMBERS)].to_bytes(8, 'little')[: 4 + 4 * (data[-1] % 2)]
      content = before + number + after[len(number) :]
  return content


@pytest.fixture(autouse=True)
def _takes_little_memory():
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  yield
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # kB


@pytest.fixture(scope='module')
def permutation_contents():
  made = permutations.make_permutations(20)
  return {
    suffix: files.encode_permutations(f'set.{suffix}', made)
    for suffix in ('npy', 'bin', 'csv', 'txt')
  }


@pytest.mark.slow
@pytest.mark.parametrize('suffix', ['npy', 'bin', 'csv', 'txt'])
def test_a_mutated_permutation_file_is_a_set_or_a_clean_error(
  suffix, permutation_contents, tmp_path
):
  path = tmp_path / f'set.{suffix}'
  counts = {'read': 0, 'refused': 0}

  @MANY
  @given(edits())
  def check(changes):
    path.write_bytes(mutate(permutation_contents[suffix], changes))
    try:
      found = files.load_permutations(path, grid=3).permutations
    except files.PermutationError as error:
      counts['refused'] += 1
      assert len(str(error)) < 600 and str(path) in str(error)
      return
    counts['read'] += 1
    assert found.dtype == np.uint8 and found.shape[1] == 9
    assert (np.sort(found, axis=1) == np.arange(9)).all()

  check()
  assert counts['refused'] > 300


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
  root = tmp_path_factory.mktemp('prepared')
  rng = np.random.default_rng(0)
  for kind in ('cat', 'dog'):
    (root / 'images' / kind).mkdir(parents=True)
    for number in range(3):
      pixels = rng.integers(0, 256, (40, 40, 3), np.uint8)
      (root / 'images' / kind / f'{number}.jpg').write_bytes(simplejpeg.encode_jpeg(pixels))
  prepare.prepare(
    source=str(root / 'images'),
    out=str(root / 'records'),
    num_shards=1,
    num_workers=1,
  )
  return root / 'records'


def read_all(root):
  """Opens a prepared folder and reads every record, as training does."""
  train, val = array_records.open_records(root, val_root='', val_fraction=0.4)
  return [source[index].data for source in (train, val) for index in range(len(source))]


@pytest.mark.slow
@pytest.mark.parametrize('name', ['index.json', 'shard-00000.json', 'shard-00000.array_record'])
def test_a_mutated_prepared_folder_is_read_or_refused(name, prepared, tmp_path):
  root = pathlib.Path(shutil.copytree(prepared, tmp_path / 'records'))
  content = (prepared / name).read_bytes()
  read = {'read': 0, 'refused': 0}

  @(FEWER if name.endswith('record') else MANY)
  @given(edits())
  def check(changes):
    mutated = mutate(content, changes)
    (root / name).write_bytes(mutated)
    if name.endswith('record'):  # the size that is stated must not be what refuses it
      index = json.loads((prepared / 'index.json').read_bytes())
      index['shards'][0]['bytes'] = len(mutated)
      (root / 'index.json').write_text(json.dumps(index))
    try:
      read_all(root)
      read['read'] += 1
    except SourceError as error:
      read['refused'] += 1
      assert len(str(error)) < 800

  check()
  assert read['refused'] > 100


VALUES = st.recursive(
  st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
  lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
  max_leaves=5,
)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'read'),
  [
    ('index.json', {'format', 'version', 'checksum', 'class_names', 'shards'}),
    ('shard-00000.json', {'names', 'labels'}),  # the others are for --verify and for people
  ],
)
def test_other_values_in_an_index_are_refused(name, read, prepared, tmp_path):
  """Every field, and every entry of its lists, with a value of any other kind."""
  root = pathlib.Path(shutil.copytree(prepared, tmp_path / 'records'))
  stated = json.loads((prepared / name).read_bytes())
  refused = set()

  @MANY
  @given(st.sampled_from(sorted(stated)), st.integers(0, 3), VALUES)
  def check(field, place, value):
    changed = json.loads(json.dumps(stated))
    if isinstance(changed[field], list) and changed[field] and place:
      entry = changed[field][place % len(changed[field])]
      if isinstance(entry, dict) and entry:
        entry[sorted(entry)[place % len(entry)]] = value
      else:
        changed[field][place % len(changed[field])] = value
    else:
      changed[field] = value
    (root / name).write_text(json.dumps(changed))
    try:
      read_all(root)
    except SourceError:
      refused.add(field)

  check()
  assert refused >= read
