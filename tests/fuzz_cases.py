"""A grammar of command lines, environments and folders, most of which hold a fault.

Cases are drawn with a seed, as plain data; `command_server.py` runs them.
"""

import pathlib
import random
from typing import Any

import ml_collections
import numpy as np
from PIL import Image

from cfn_jax import config_files
from cfn_jax.data import sources
from cfn_jax.jigsaw.permutation_sets import permutations

KINDS = (
  *('py', 'npy', 'npz', 'pth', 'safetensors', 'caffemodel', 'csv', 'txt', 'bin', 'tar', 'jpg'),
  *('json', 'mat', 'pt', 'zip', 'h5', 'png', 'tar.gz', 'ckpt'),
)
ODD = ('a[b]', 'caf\udce9', 'x y', '$x$', ':cat:', '[/b]', 'new\nline', '猫', '-x', 'b' * 255)
NUMBERS = ('-1', '0', '1', '2', 'x', '', '1.5', 'True', 'None', '(1,)', '9' * 20, '1e400', 'nan')
REALS = ('nan', 'inf', '-inf', '-1', '0', '1', 'x', '', '1e-400', '1e30', 'True', '(1.0,)', '٣')
SWITCHES = ('True', 'False', 'maybe', '2', '', '()')
TUPLES = ('()', '(1,)', 'x', "('a',", '((1, 2),)', "('conv9',)", '(1, 2, 3)', "('conv1', 5)", '')
WORDS = ('', 'x', 'None', '0', 'é', 'a\nb', '[/b]', '\udce9', 'x' * 300)
ADDRESSES = (
  'gs://x',
  's3://x',
  'hdfs://host/x',
  'file:///tmp',
  'https://x/y.npz',
  '~nobody_here/x',
  '~',
)
# The smallest run of each config, on six images.
PUZZLES = {'permutations.num': 4, 'model.permutations_per_pass': 1}
NETWORK = {'model.width': 0.05, 'model.fc6_features': 4, 'model.fc7_features': 4}
ONE = {'baseline': False, 'layers': '(1,)'}
SMALL = {
  'cfn': ('small', PUZZLES | NETWORK),
  'relative_position': ('small', NETWORK),
  'rotation': ('small', NETWORK),
  'alexnet_to_jigsaw': ('small', PUZZLES | NETWORK | ONE),
  'frozen_layers': ('small', NETWORK | ONE),
  'voc07_classification': ('small', {}),
  'recognition': ('small_alexnet', NETWORK),
  'linear_probe': ('small', NETWORK | ONE | {'layers': "('conv5',)"}),
  'knn': ('small', NETWORK | {'layers': "('pool5',)"}),
  'solve': ('small', {}),
}
LOOP = {'batch_size': 2, 'num_steps': 1, 'eval_batch_size': 2, 'warmup_steps': 0}
DATA = {'weights': 'random', 'data.val_fraction': 0.5}


def make_places(root: pathlib.Path) -> list[str]:
  """Makes what the cases name, and returns the paths: sound, empty, garbled, closed and odd."""
  rng = np.random.default_rng(0)
  for name in ('photos', 'classes/a', 'classes/b', 'odd/$x$', 'odd/caf\udce9'):
    (root / name).mkdir(parents=True)
    for number in range(3):
      pixels = rng.integers(0, 256, (140, 150, 3), np.uint8)
      Image.fromarray(pixels).save(root / name / f'{name[-1]}{number}.jpg')
  permutations.save_permutations(root / 'set.npy', permutations.make_permutations(4))
  (root / 'mine.py').write_text('from configs import cfn\nget_config = cfn.get_config\n')
  for folder, content in (('empty', b''), ('garbled', rng.bytes(2000))):
    for kind in KINDS:
      (root / folder).mkdir(exist_ok=True)
      (root / folder / f'x.{kind}').write_bytes(content)
  for kind in KINDS:
    (root / 'folders' / f'x.{kind}').mkdir(parents=True)
  for name in ('metrics.jsonl', 'config.json', 'run.lock', 'checkpoints', 'results.json', '1'):
    (root / 'taken' / name).mkdir(parents=True)  # folders where a run wants files, and its reverse
  (root / 'taken2').mkdir()
  (root / 'taken2' / 'checkpoints').write_bytes(b'')
  (root / 'taken2' / 'config.json').write_bytes(b'{')
  (root / 'taken3' / 'checkpoints' / '1').mkdir(parents=True)
  (root / 'nothing').mkdir()
  for name in ODD:
    (root / 'odd' / name).mkdir(parents=True, exist_ok=True)
  (root / 'loop').symlink_to(root / 'loop')
  (root / 'nowhere').symlink_to(root / 'absent')
  for name, mode in (('closed', 0), ('readonly', 0o555)):
    (root / name).mkdir()
    (root / name / 'x.npy').write_bytes(b'')
    (root / name).chmod(mode)
  (root / 'closed.py').write_bytes(b'')
  (root / 'closed.py').chmod(0)
  within = [path for path in root.rglob('*') if 'odd/' not in f'{path}/' or path.is_dir()]
  outside = ['/dev/null', '/proc/self/mem', '/', '.', '..', '/proc', '/dev/full', 'y' * 300, '\x7f']
  absent = [root / 'absent' / 'x.npz', root / 'set.npy' / 'x', root / 'closed' / 'x' / 'y']
  return sorted(map(str, [*within, *absent])) + outside


def draw(root: pathlib.Path, count: int, seed: int) -> list[dict[str, Any]]:
  """Draws cases: a module, its arguments, the environment and the working folder."""
  places, rng = make_places(root), random.Random(seed)
  others = ('visualize', 'permutations', 'prepare', 'convert', 'benchmark', 'predict', 'features')
  modules = ('main',) * 6 + others
  cases = []
  for number in range(count):
    module = rng.choice(modules)
    arguments = globals()[f'_draw_{module}'](rng, root, places)
    cases.append({
      'module': module,
      'arguments': arguments,
      'environment': _draw_environment(rng, places),
      'folder': str(root / 'work' / str(number)),
    })  # fmt: skip
  return cases


def _draw_environment(rng: random.Random, places: list[str]) -> dict[str, str | None]:
  return rng.choices(
    (
      {},
      {'HOME': None},
      {'HOME': rng.choice(places)},
      {'XDG_CACHE_HOME': rng.choice(places)},
      {'JAX_PLATFORMS': rng.choice(('cuda', 'gpuu', 'tpu', 'CPU', '', 'rocm,cuda'))},
      {'COLUMNS': '7'},
      {'TMPDIR': rng.choice(places)},
    ),
    (12, 3, 2, 2, 2, 1, 1),
  )[0]  # fmt: skip


def _draw_main(rng: random.Random, root: pathlib.Path, places: list[str]) -> list[str]:
  name = rng.choice(sorted(SMALL))
  arguments = _small_run(name, root)
  if rng.random() < 0.2:  # another reader, on what is sound or not
    source, place = rng.choice(sources.KINDS), rng.choice(places)
    arguments += [f'--config.data.source={source}', f'--config.data.root={place}']
  faults = [_spoil(rng, name, places) for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))]
  if rng.random() < 0.15:
    faults.append(f'--workdir={rng.choice([*places, *ADDRESSES])}')
  return _shuffle_some(rng, [*arguments, *faults])


def _small_run(name: str, root: pathlib.Path) -> list[str]:
  variant, own = SMALL[name]
  fields = LOOP | DATA | own | {'data.root': f'{root}/classes'}
  config = config_files.load(f'{name}:{variant}')
  known = {field: value for field, value in fields.items() if _has(config, field)}
  chosen = [f'--config={name}:{variant}', '--workdir=w']
  return chosen + [f'--config.{field}={value}' for field, value in known.items()]


def _has(config: ml_collections.ConfigDict, field: str) -> bool:
  try:
    config_files.find_field(config, field)
  except config_files.ConfigError:
    return False
  return True


def _spoil(rng: random.Random, name: str, places: list[str]) -> str:
  """Draws an argument that is probably wrong."""
  fields = _fields(config_files.load(name))
  field = rng.choice(sorted(fields))
  kind = rng.random()
  if kind < 0.04:
    return f'--config.{field}x=1'
  if kind < 0.08:
    return f'--config.{field.partition(".")[0]}={rng.choice(("x", "5", "{}", "None"))}'
  if kind < 0.11:
    return rng.choice(
      ('--unknown', '--x=3', 'word', '--', '-', '--config.', '--noconfig.data', '--flagfile=x')
    )
  if kind < 0.14:
    return f'--config={rng.choice([*places, *ADDRESSES, "nothing", "cfn:x", "training", ""])}'
  if kind < 0.3:
    paths = [each for each in fields if _is_path(each)]
    return f'--config.{rng.choice(sorted(paths))}={rng.choice([*places, *ADDRESSES])}'
  value = fields[field]
  pool: tuple[str, ...] = WORDS
  for type_, values in ((bool, SWITCHES), (int, NUMBERS), (float, REALS), (tuple, TUPLES)):
    if isinstance(value, type_):
      pool = values
      break
  return f'--config.{field}={rng.choice(pool)}'


def _is_path(field: str) -> bool:
  return field.endswith(('root', 'dir', 'file', 'weights', 'init_from'))


def _fields(section: ml_collections.ConfigDict, prefix: str = '') -> dict[str, Any]:
  flat: dict[str, Any] = {}
  for name, value in section.items():
    nested = isinstance(value, ml_collections.ConfigDict)
    flat |= _fields(value, f'{prefix}{name}.') if nested else {prefix + name: value}
  return flat


def _shuffle_some(rng: random.Random, arguments: list[str]) -> list[str]:
  if rng.random() < 0.1:
    arguments = [part for each in arguments for part in each.split('=', 1)]
  if rng.random() < 0.1:
    arguments.append(rng.choice(arguments))
  return arguments


def _draw_visualize(rng: random.Random, root: pathlib.Path, places: list[str]) -> list[str]:
  part = rng.choice(('puzzles', 'filters', 'units', 'report'))
  if part != 'puzzles':
    paths = (*places, *ADDRESSES)
    known = {'weights': paths, 'out': paths, 'step': NUMBERS, 'x': ('1',)}
    own = {'images': paths, 'tiles': NUMBERS, 'tile-px': NUMBERS, 'units': ('conv1:0', 'x', ':')}
    sound = [f'--weights={rng.choice(paths)}', '--out=p.png']
    if part == 'report':
      known, sound = {'workdir': paths, 'out': paths}, [f'--workdir={rng.choice(paths)}']
    if part == 'units':
      known, sound = known | own, [*sound, f'--images={root}/photos']
    return [part, *sound, *_options(rng, known, rng.choice((0, 1, 1, 2)))]
  name = rng.choice(('cfn', 'cfn', 'alexnet_to_jigsaw', 'knn'))
  out = rng.choice(('p.png', 'p.png', 'p.gif', 'a/b.jpg', '', *places, *ADDRESSES))
  arguments = [argument for argument in _small_run(name, root) if '--workdir' not in argument]
  counted = ['shortcuts', f'--count={rng.choice((*NUMBERS, 20))}']
  what = rng.choice((['puzzles'],) * 5 + (counted, [], ['x'], ['puzzles', 'puzzles']))
  return _shuffle_some(rng, [*what, *arguments, f'--out={out}', _spoil(rng, name, places)])


def _options(rng: random.Random, known: dict[str, tuple[str, ...]], count: int) -> list[str]:
  chosen = [rng.choice(sorted(known)) for _ in range(count)]
  return [f'--{name}={rng.choice(known[name])}' if known[name] else f'--{name}' for name in chosen]


def _draw_permutations(rng: random.Random, root: pathlib.Path, places: list[str]) -> list[str]:
  paths = (*places, *ADDRESSES, f'{root}/set.npy', 'o.npy', 'o.csv')
  known = {
    'num': NUMBERS,
    'method': ('max', 'code', 'x', ''),
    'ties': ('random', 'first', 'x'),
    'mean': REALS,
    'min-distance': NUMBERS,
    'seed': NUMBERS,
    'grid': ('2', '0', 'x', '2x3'),
    'input': paths,
    'out': paths,
    'plot': paths,
    'table': ('1',),
    'x': ('1',),
  }
  return ['--num=4', '--grid=2', *_options(rng, known, rng.randint(1, 3))]


def _draw_prepare(rng: random.Random, root: pathlib.Path, places: list[str]) -> list[str]:
  paths = (*places, *ADDRESSES)
  known = {
    'short-side': NUMBERS,
    'quality': NUMBERS,
    'shards': NUMBERS,
    'workers': ('1', 'x', '-1'),
    'source': paths,
    'out': paths,
    'upsample': (),
    'verify': (),
    'x': ('1',),
  }
  sound = [f'--source={root}/photos', '--out=o', '--workers=1']
  return [*sound, *_options(rng, known, rng.randint(1, 2))]


def _draw_predict(rng: random.Random, root: pathlib.Path, places: list[str]) -> list[str]:
  paths = (*places, *ADDRESSES)
  known = {'out': paths, 'images': paths, 'step': NUMBERS, 'batch': NUMBERS, 'score': REALS}
  sound = [f'--workdir={rng.choice(paths)}', f'--images={root}/photos', '--out=o']
  return [*sound, *_options(rng, known, rng.choice((0, 1, 2)))]


def _draw_features(rng: random.Random, root: pathlib.Path, places: list[str]) -> list[str]:
  paths = (*places, *ADDRESSES)
  known = {
    'out': paths,
    'images': paths,
    'layer': ('conv1', 'fc7', 'x'),
    'view': NUMBERS,
    'dimensions': NUMBERS,
    'dtype': ('float16', 'x'),
    'step': NUMBERS,
  }
  sound = [f'--weights={rng.choice(paths)}', f'--images={root}/photos', '--out=o.npz']
  return [*sound, *_options(rng, known, rng.choice((0, 1, 2)))]


def _draw_convert(rng: random.Random, root: pathlib.Path, places: list[str]) -> list[str]:
  paths = (*places, *ADDRESSES)
  known = {
    'from': paths,
    'checkpoint': paths,
    'out': paths,
    'to': ('npz', 'caffe', 'x'),
    'classes': NUMBERS,
    'seed': NUMBERS,
    'stride': NUMBERS,
    'step': NUMBERS,
    'x': ('1',),
  }
  source = rng.choice(('from', 'checkpoint'))
  sound = [f'--{source}={rng.choice(paths)}', '--out=o', '--to=npz']
  return [*sound, *_options(rng, known, rng.choice((0, 1, 1, 2)))]


def _draw_benchmark(rng: random.Random, root: pathlib.Path, places: list[str]) -> list[str]:
  configs = ('cfn:small', 'cfn:small', 'knn', 'x', *places, *ADDRESSES)
  part = rng.choice(('input', 'input', 'permutations', 'step', 'x'))
  if part == 'input':
    known = {'images': (*places, *ADDRESSES), 'config': configs, 'batch': NUMBERS}
    sound = [f'--images={root}/photos', '--seconds=0.1', '--batch=2', '--config=cfn:small']
  elif part == 'step':  # a sound one would compile: one value at least is none
    known = {'config': configs[2:], 'steps': ('0', 'x', '-1'), 'dtype': ('x', 'float16')}
    sound = ['--config=cfn:small', '--batch=x']
  else:
    known = {'num': NUMBERS, 'grid': ('2', '0', '9'), 'method': ('max', 'x'), 'mean': REALS}
    sound = ['--num=4', '--grid=2']
  return [part, *sound, *_options(rng, known, rng.randint(1, 2))]
