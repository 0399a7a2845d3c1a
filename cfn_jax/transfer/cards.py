"""The model card beside exported weights: the network, its input, and its origin.

`model_card.json` is read back: it has facts that a `.pth` or `.caffemodel` file lacks. It counts
only for the file whose sha256 it has. `model_card.md` is the same for people.
"""

import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from cfn_jax.buckets import reading
from cfn_jax.models import inputs
from cfn_jax.transfer import geometry
from cfn_jax.transfer import weights as weights_lib

NAME = reading.CARD
TEXT_NAME = 'model_card.md'
NAMES = (NAME, TEXT_NAME)
_LICENCE = (
  'The files hold numbers computed from the training images, no images. Terms that bind those '
  'images, or the file that the weights were read from, may bind these weights too: check them '
  'before passing the files on.'
)


def make_record(weights: weights_lib.Weights) -> dict[str, Any]:
  """Returns the weights without their arrays, as plain values."""
  return weights.describe() | {
    # A fixed order of the keys, so that equal weights make equal files.
    'origin': json.loads(json.dumps(weights_lib.json_ready(weights.origin), sort_keys=True)),
  }


def sha256(path: pathlib.Path) -> str:
  """Returns the digest of a file."""
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def save_card(folder: pathlib.Path, weights: weights_lib.Weights, files: list[str]) -> None:
  """Writes both forms of the card for the named files of a folder."""
  card = make_record(weights) | {
    'layers': {name: list(weights.params[name]['kernel'].shape) for name in weights.layers()},
    'tiles': weights.tiles(),
    'input_px': geometry.choose_input_px(weights),
    'sha256': {name: sha256(folder / name) for name in files},
    'licence': _LICENCE,
  }
  (folder / NAME).write_text(json.dumps(card, indent=2) + '\n', encoding='utf8')
  # A path, or a foreign record, may contain bytes that are not UTF-8.
  (folder / TEXT_NAME).write_text(_describe(card), encoding='utf8', errors='backslashreplace')


def list_files(folder: pathlib.Path) -> list[str]:
  """Returns the names of the files of a folder's card, and of the card's own files.

  Raises:
    WeightsError: the card cannot be read.
  """
  with weights_lib.named_errors(folder / NAME, 'no model card'):
    card = json.loads((folder / NAME).read_text(encoding='utf8'))
    return [*map(str, dict(card['sha256'])), *NAMES]


def find_record(path: pathlib.Path) -> dict[str, Any]:
  """Returns the record in the card beside a file; `{}` if none belongs to this file.

  Raises:
    WeightsError: the card cannot be read, or has another digest for this name.
  """
  card_path = path.with_name(NAME)
  if not card_path.is_file():
    return {}
  with weights_lib.named_errors(card_path, 'no model card'):
    card = json.loads(card_path.read_text(encoding='utf8'))
    digests = dict(card['sha256'])
    record = {name: card[name] for name in ('order', 'stride', 'padding', 'input', 'origin')}
  if path.name not in digests:
    return {}
  if digests[path.name] != sha256(path):
    raise weights_lib.WeightsError(
      f'{path} is not the file that {card_path.name} beside it describes (sha256 differs): it was '
      'damaged or replaced; move it away from the card to read it as a foreign file'
    )
  return record


def describe_input(record: inputs.InputRecord) -> str:
  """Returns a line about how images are prepared."""
  order = ', '.join(record.channels.upper())
  scale = ', '.join(f'{each:.6g}' for each in record.scale)
  if record.normalization:
    own = {
      'tile': 'its own mean and standard deviation over pixels and channels',
      'channel': 'the mean and standard deviation of each of its channels',
      'mean': f'the mean of each of its channels and {record.std:g}',
    }[record.normalization]
    return f'{order}; each image or tile by {own}, then times ({scale})'
  mean = ', '.join(f'{each:.6g}' for each in record.mean)
  return f'{order}; (pixel of 0..255 - ({mean})) * ({scale})'


def _describe_questions(origin: Mapping[str, Any]) -> str:
  asked = origin.get('questions')
  if not isinstance(asked, dict):
    return f'permutation set: {len(origin.get("permutations", []))} permutations'
  return f'questions of {asked.get("task")}: {len(asked.get("rows", []))}, with their answers,'


def _describe(card: Mapping[str, Any]) -> str:
  record = inputs.from_json(card['input'])
  origin = card['origin']
  stages = 'pooling, then LRN' if card['order'] == 'caffenet' else 'LRN, then pooling'
  lines = [
    '# Model card',
    '',
    f'- network: {card["kind"]}, {stages}, conv1 with stride {card["stride"]} and padding '
    f'{card["padding"]}, groups {card["groups"]}'
    + (f', fc7 sees {card["tiles"]} tiles' if card['tiles'] > 1 else ''),
    f'- input: {card["input_px"]} px; {describe_input(record)}',
    f'- source: {origin.get("file", "not recorded")}',
    f'- code: commit {origin.get("commit") or "not recorded"}',
    f'- data and puzzles: {json.dumps(origin.get("fingerprint", {}))}',
    f'- {_describe_questions(origin)} in {NAME}',
    f'- metrics: {json.dumps(origin.get("metrics", {}))}',
  ]
  lines += [f'- note: {note}' for note in origin.get('notes', [])]
  lines += ['', '| layer | kernel |', '|---|---|']
  lines += [f'| {name} | {shape} |' for name, shape in card['layers'].items()]
  lines += ['', '| file | sha256 |', '|---|---|']
  lines += [f'| {name} | {digest} |' for name, digest in card['sha256'].items()]
  lines += ['', 'Licence: ' + card['licence'], '', '## Training config', '', '```json']
  lines += [json.dumps(origin.get('config', {}), indent=2), '```', '']
  return '\n'.join(lines)
