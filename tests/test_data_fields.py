"""Fields of `data`: each is read by the source that is chosen, or refused."""

import inspect
import pathlib

import pytest

from cfn_jax import command
from cfn_jax.data import sources
from cfn_jax.data.record import SourceError

CONFIGS = pathlib.Path(__file__).resolve().parent.parent / 'configs'
SAID = {
  'root': 'photos',
  'split': 'train',
  'val_root': 'photos',
  'val_split': 'val',
}
# As docs/data.md has it.
READ = {
  'bundled': set(),
  'folder': {'root', 'val_root'},
  'records': {'root', 'val_root'},
  'tfds': {'root', 'split', 'val_root', 'val_split'},
  'voc': {'root', 'split', 'val_root', 'val_split'},
}


@pytest.mark.parametrize('source', sources.KINDS)
@pytest.mark.parametrize('field', SAID)
def test_a_field_is_read_or_refused_with_its_value_and_the_remedy(source, field, tmp_path):
  needed = {'root': str(tmp_path / 'no')} if 'root' in READ[source] else {}
  fields = {'source': source, **needed, field: SAID[field]}
  data = {**fields, 'num_workers': 2}  # a section has fields of others too
  if field in READ[source]:
    try:
      sources.open_config(data)
    except SourceError as error:  # the folder is not there
      assert 'not read with' not in str(error)
    return
  with pytest.raises(SourceError) as caught:
    sources.open_config(data)
  message = str(caught.value)
  assert message.startswith(f'data.{field} = {SAID[field]!r}: not read with data.source =')
  nothing = inspect.signature(sources.open_sources).parameters[field].default
  assert f'set --config.data.{field}={nothing}' in message and '\n' not in message
  # The remedy, followed, leaves no such error.
  assert not sources.find_idle(source, {**fields, field: nothing})


def test_a_folder_for_copies_is_refused_where_nothing_is_copied(tmp_path):
  fields = {'source': 'records', 'root': str(tmp_path), 'cache_dir': 'copies'}
  with pytest.raises(SourceError, match=r"not read .*'records' and folders of this disk"):
    sources.open_config(fields)
  assert not sources.find_idle('records', fields | {'val_root': 'gs://bucket/val'})


def test_no_split_of_imagenet_stands_beside_records_that_do_not_read_it(tmp_path):
  config = command.load_config(f'{CONFIGS}/cfn.py')
  config.data.source, config.data.root = 'records', str(tmp_path)
  with pytest.raises(SourceError) as caught:
    sources.open_config(config.data)
  for part in (
    "data.split = 'imagenet2012:train', data.val_split = 'imagenet2012:validation': not read with",
    'set --config.data.split= --config.data.val_split= and name the validation images as',
    'data.val_fraction of the training images is held out',
  ):
    assert part in str(caught.value)


@pytest.mark.parametrize('source', ['tfds', 'voc'])
def test_a_second_folder_without_its_list_is_refused(source, tmp_path):
  other = tmp_path / 'other'
  (other / 'ImageSets' / 'Main').mkdir(parents=True)
  with pytest.raises(SourceError, match=r"data\.val_split is empty: data\.val_root = '.*other'"):
    sources.open_sources(source=source, root=str(tmp_path), split='a:train', val_root=str(other))


@pytest.mark.parametrize('field', ['root', 'val_root'])
@pytest.mark.parametrize('address', ['gs://bucket/photos', 's3://bucket'])
def test_the_address_of_a_bucket_is_refused(field, address, tmp_path):
  (tmp_path / '1.jpg').write_bytes(b'x')
  with pytest.raises(
    SourceError, match=rf'{address}: records alone are read there.* or mount the bucket'
  ):
    sources.open_sources(**{'source': 'folder', 'root': str(tmp_path), field: address})
