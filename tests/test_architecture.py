"""The map in docs/architecture.md holds: imports point down, loader processes see no JAX."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / 'cfn_jax'

# What evaluations and their wings may import; of evaluation/ a wing takes what all of them share.
BELOW = {'training', 'data', 'models', 'jigsaw', 'transfer', 'pictures'}
SHARED_BY_EVALUATIONS = {
  f'evaluation/{name}'
  for name in (
    *('answers', 'identity', 'labelled', 'precision_table', 'runs', 'scores', 'tables', 'trunks'),
  )
}
# What the modules of a room may import, besides their own room where that is named.
ROOMS = {
  'errors': set(),
  'fields': set(),
  'names': set(),
  'places': set(),
  'terminal': {'names'},
  'buckets/addresses': set(),
  'buckets': {'buckets'},
  'models': {'models'},
  'training': {'training', 'buckets'},
  'data': {'data', 'buckets'},
  'jigsaw/permutation_sets': {'jigsaw/permutation_sets', 'data/file_kinds'},
  'jigsaw/colours': set(),
  'data/resampling': set(),
  'jigsaw/puzzle': {'data/resampling', 'jigsaw/colours'},
  'jigsaw/questions': {'jigsaw/puzzle'},
  'jigsaw/reports': {'jigsaw', 'models', 'training/metrics'},
  'jigsaw/shortcuts/': {'jigsaw', 'data', 'models', 'training/metrics'},
  'jigsaw/shortcuts/cues': set(),
  'jigsaw/solving': set(),
  'jigsaw/transform': {'data/pipeline', 'data/streams', 'data/images', 'jigsaw/puzzle'},
  'jigsaw/network': {'models'},
  'jigsaw/pretext': {'training/task', 'data', 'models', 'jigsaw'},
  'jigsaw/initial': {'jigsaw/pretext', 'models', 'transfer', 'buckets/reading'},
  'jigsaw/task': {'training', 'data', 'models', 'jigsaw', 'pictures'},
  'transfer': {'models', 'training/step_folders', 'transfer', 'buckets/reading'},
  'timing/hardware': set(),
  'timing/hlo': set(),
  'timing/program': {'timing/hlo'},
  'timing': {
    'training',
    'data',
    'models',
    'inpainting',
    'jigsaw',
    'evaluation',
    'timing',
    'buckets',
    'arguments',
    'command',
    'environment',
  },
  'evaluation/scores': set(),
  'evaluation/tables': set(),
  'evaluation/frozen/pooling': set(),
  'evaluation/frozen/feature_cache': set(),
  'evaluation/frozen/ranking': set(),
  'evaluation/answers': {'evaluation/scores', 'training/metrics'},
  'evaluation/frozen/': {*BELOW, *SHARED_BY_EVALUATIONS, 'evaluation/frozen/'},
  'evaluation/detection/': {
    *BELOW,
    *SHARED_BY_EVALUATIONS,
    'evaluation/detection/',
    'evaluation/finetuning/',
  },
  'evaluation/detection/roles': {'data/boxes'},
  'evaluation/detection/transform': {'data', 'evaluation/detection/roles'},
  'evaluation/segmentation/': {
    *BELOW,
    *SHARED_BY_EVALUATIONS,
    'evaluation/segmentation/',
    'evaluation/finetuning/',
  },
  'evaluation/segmentation/confusion': {'evaluation/scores'},
  'evaluation/segmentation/transform': {'data'},
  'evaluation/segmentation/mask_pngs': {'data/mask_files'},
  'evaluation/finetuning/': {*BELOW, *SHARED_BY_EVALUATIONS, 'evaluation/finetuning/'},
  'evaluation/puzzles/': {
    *BELOW,
    *SHARED_BY_EVALUATIONS,
    'evaluation/puzzles/',
    'evaluation/frozen/',
  },
  'evaluation': {*BELOW, 'evaluation'},
  'inpainting/masks': set(),
  'inpainting/transform': {'data/pipeline', 'data/views', 'inpainting/masks'},
  'inpainting': {'training', 'data', 'models', 'inpainting', 'jigsaw/network', 'pictures'},
  'pictures': {'models', 'jigsaw', 'data', 'training/metrics', 'pictures'},
  'report': {
    'report',
    'pictures',
    'training',
    'buckets/lease',
    'jigsaw/permutation_sets',
    'config_files',
    'idle',
  },
  'studies/verdicts': set(),
  'studies/declaration': {'config_files'},
  'studies': {
    'studies',
    'buckets',
    'report',
    'evaluation/identity',
    'evaluation/labelled',
    'evaluation/runs',
    'pictures',
    'training',
    'data',
    'models',
    'jigsaw',
    'config_files',
    'idle',
  },
  '': {  # command lines
    'inpainting',
    'jigsaw',
    'training',
    'data',
    'models',
    'transfer',
    'evaluation',
    'pictures',
    'report',
    'studies',
    'timing',
    'buckets',
    'command',
    'environment',
    'idle',
    'config_files',
    'arguments',
    'places',
  },
}
# What every room may use.
SHARED = {'errors', 'fields', 'names', 'places', 'terminal', 'buckets/addresses'}
LEAVES = (
  'fields.py',
  'idle.py',
  'models/inputs.py',
  'jigsaw/colours.py',
  'models/figures.py',
  'training/optimizer.py',
  'training/digests.py',
  'training/lock.py',
  'training/stopping.py',
  'training/metrics.py',
  'training/devices.py',
  'training/task.py',
  'transfer/caffe_schema.py',
  'transfer/torch_network.py',
  'evaluation/scores.py',
  'evaluation/tables.py',
  'evaluation/frozen/pooling.py',
  'evaluation/frozen/feature_cache.py',
  'evaluation/frozen/ranking.py',
  'jigsaw/shortcuts/cues.py',
  'jigsaw/solving.py',
  'training/plateau.py',
  'studies/verdicts.py',
  'timing/hardware.py',
  'timing/hlo.py',
)
LOADER_MODULES = (
  'cfn_jax.jigsaw.permutation_sets.permutations',
  'cfn_jax.jigsaw.puzzle',
  'cfn_jax.jigsaw.transform',
  'cfn_jax.data.images',
  'cfn_jax.data.sources',
  'cfn_jax.data.pipeline',
  'cfn_jax.data.proposals',
  'cfn_jax.data.prepare_proposals',
  'cfn_jax.data.views',
  'cfn_jax.data.voc_crops',
  'cfn_jax.data.voc_masks',
  'cfn_jax.data.voc_objects',
  'cfn_jax.evaluation.detection.transform',
  'cfn_jax.evaluation.segmentation.transform',
  'cfn_jax.inpainting.transform',
)


def _modules():
  return sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob('*.py'))


def _own_imports(path):
  """Returns the project's modules that a file imports, anywhere in it, as 'room/module'."""
  found = set()
  for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
    if isinstance(node, ast.ImportFrom) and (node.module or '').split('.')[0] == 'cfn_jax':
      for alias in node.names:
        name = f'{node.module}.{alias.name}'.split('.')[1:]
        while not (PACKAGE.joinpath(*name).with_suffix('.py')).exists():
          name = name[:-1]
          assert name, f'{path} imports {node.module}.{alias.name}, which is no module'
        found.add('/'.join(name))
    if isinstance(node, ast.Import):
      assert not any(alias.name.startswith('cfn_jax') for alias in node.names), path
  return found


def _room(path):
  name = path.with_suffix('').as_posix()
  if '/' not in name:
    return name if name in ROOMS else ''
  return max((room for room in ROOMS if name.startswith(room)), key=len)


def test_imports_point_down():
  for path in _modules():
    allowed = ROOMS[_room(path)]
    for imported in _own_imports(path) - SHARED:
      assert any(imported.startswith(room) for room in allowed), f'{path} imports {imported}'


PAGE = PACKAGE.parent / 'docs' / 'architecture.md'


def _code(text):
  """Returns what stands between backticks, without a slash or suffix at its end."""
  return [re.sub(r'(/|\.py)$', '', name) for name in re.findall(r'`([^`\n]+)`', text)]


def _table_of_rooms():
  """Returns the rooms of the page's table, and what each may import by it."""
  text = PAGE.read_text()
  groups = {
    'below': set(_code(re.search(r'\*below\* means (.*?)\.', text, re.DOTALL)[1])),
    'shared': {
      f'evaluation/{name}'
      for name in _code(re.search(r'\*shared\* means .*?:(.*?)\.', text, re.DOTALL)[1])
    },
  }
  described = re.findall(r'^\| (.*?) \| .* \| (.*) \|$', text, re.MULTILINE)[1:]
  described += [(f'`{name}`', cell) for name, cell in re.findall(
    r'`(\w+)/` imports (itself.*?)\.\s', text, re.DOTALL)]  # fmt: skip
  for rooms, cell in described:
    for room in _code(rooms):
      allowed = set(_code(re.sub(r'without `\w+`', '', cell)))
      for word in re.findall(r'\b(below|shared)\b', cell):
        allowed |= groups[word]
      allowed -= set(_code(' '.join(re.findall(r'without `\w+`', cell))))
      if 'see below' not in cell:
        yield room, allowed | ({room} if 'itself' in cell else set())


def test_the_table_of_rooms_is_what_is_held():
  table = dict(_table_of_rooms())
  held = {room.rstrip('/'): {name.rstrip('/') for name in ROOMS[room]} for room in ROOMS}
  assert {room: held.get(room) for room in table} == table
  folders = {path.parent.as_posix() for path in _modules()} - {'.', 'jigsaw'}
  assert folders <= set(table)


def test_the_page_and_its_figure_name_modules_that_exist():
  text = PAGE.read_text()
  lists = re.findall(r'^- \*\*`(\S+)/`\*\*.*?:(.*?)(?=^- |^$)', text, re.MULTILINE | re.DOTALL)
  assert len(lists) > 5
  for room, names in lists:
    for name in _code(names):
      known = (PACKAGE / room / f'{name}.py', PACKAGE / room / name)
      assert any(path.exists() for path in known), f'{room}: {name}'
  named = re.findall(r'class="f">(.*?)<', (PAGE.parent / 'flow.svg').read_text())
  assert len(named) == 12
  for name in ', '.join(named).split(', '):
    assert (PACKAGE / f'{name}.py').exists(), name


def test_there_is_no_import_cycle():
  graph = {path.with_suffix('').as_posix(): _own_imports(path) for path in _modules()}
  done, path = set(), []

  def visit(name):
    assert name not in path, f'cycle: {path} {name}'
    if name not in done:
      path.append(name)
      for imported in graph[name]:
        visit(imported)
      path.pop()
      done.add(name)

  for name in graph:
    visit(name)


@pytest.mark.parametrize('leaf', LEAVES)
def test_leaves_import_nothing_of_ours(leaf):
  assert not _own_imports(pathlib.Path(leaf)) - SHARED


def test_the_loop_knows_no_puzzle():
  paths = [*(PACKAGE / 'training').glob('*.py')]
  assert len(paths) > 10
  for path in paths:
    if path.name != 'metrics.py':  # a warning there names fields of the config
      assert 'puzzle' not in path.read_text().replace('knows nothing of puzzles', ''), path.name


def test_every_init_is_empty():
  for path in PACKAGE.rglob('__init__.py'):
    assert not path.read_text(), path


def test_no_room_for_leftovers():
  assert not {'utils.py', 'helpers.py', 'common.py'} & {path.name for path in _modules()}


def test_what_loader_processes_run_imports_no_jax():
  program = f'import sys, {", ".join(LOADER_MODULES)}; assert "jax" not in sys.modules'
  subprocess.run([sys.executable, '-c', program], check=True, cwd=PACKAGE.parent)


def test_configs_import_nothing_from_the_package():
  for path in (PACKAGE.parent / 'configs').rglob('*.py'):
    assert 'cfn_jax' not in path.read_text().split('"""', 2)[2], path


def test_deviations_from_the_paper_are_listed():
  """Every `# Deviation:` in the code stands in docs/deviations.md."""
  listed, found = (PACKAGE.parent / 'docs' / 'deviations.md').read_text(), 0
  for path in PACKAGE.rglob('*.py'):
    for line in path.read_text().splitlines():
      if '# Deviation:' in line:
        what = line.split('# Deviation:')[1].strip().split(':')[0]
        place = path.relative_to(PACKAGE).as_posix()
        assert any(place in row and what in row for row in listed.splitlines()), (path, line)
        found += 1
  assert found >= 9


TEXT_CALLS = {  # methods of Matplotlib by the argument that is drawn
  'set_title': 0,
  'suptitle': 0,
  'set_xlabel': 0,
  'set_ylabel': 0,
  'set_label': 0,
  'text': 2,
  'annotate': 0,
  'bar_label': 1,
  'set_yticklabels': 0,
  'set_xticklabels': 0,
}
TEXT_KEYWORDS = {'title', 'label', 'labels', 'xlabel', 'ylabel', 'xticklabels', 'yticklabels', 's'}


def _is_drawable(node):
  """Whether an expression is written out, or made by names.drawable."""
  if isinstance(node, ast.Constant):
    return True
  if isinstance(node, ast.List | ast.Tuple):
    return all(map(_is_drawable, node.elts))
  if isinstance(node, ast.ListComp):
    return _is_drawable(node.elt)
  return isinstance(node, ast.Call) and ast.unparse(node.func) == 'names.drawable'


def _drawn(path):
  """Returns what a module hands to Matplotlib as text."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
      place = TEXT_CALLS.get(node.func.attr)
      if place is not None and len(node.args) > place:
        yield node.args[place]
      own = ast.unparse(node.func.value) in ('puzzles', 'figures')
      yield from (k.value for k in node.keywords if k.arg in TEXT_KEYWORDS and not own)


def test_all_text_of_pictures_is_made_drawable():
  drawn = [(path, node) for path in (PACKAGE / 'pictures').glob('*.py') for node in _drawn(path)]
  assert len(drawn) > 20
  for path, node in drawn:
    assert _is_drawable(node), f'{path}: {ast.unparse(node)}'


def test_matplotlib_and_rich_have_one_way_in():
  for path in _modules():
    for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
      names = []
      if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
      elif isinstance(node, ast.ImportFrom):
        names = [node.module or '']
      for name in names:
        assert not name.startswith('rich') or path.name == 'terminal.py', path
        if name.startswith('matplotlib') and name != 'matplotlib.colors':
          assert path.parent.name == 'pictures', path


def test_all_that_is_printed_goes_through_the_terminal():
  for path in _modules():
    for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
      if isinstance(node, ast.Call) and path.name != 'terminal.py':
        assert ast.unparse(node.func) not in ('print', 'tqdm.tqdm.write'), path
