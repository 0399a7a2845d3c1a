"""Every page is true: its links lead somewhere, its commands, configs, fields and flags exist."""

import functools
import re

import help_cases
import pytest

from cfn_jax import config_files, fields

REPOSITORY = help_cases.REPOSITORY
PAGES = sorted(
  path.relative_to(REPOSITORY).as_posix()
  for folder in ('*.md', 'docs/**/*.md')
  for path in REPOSITORY.glob(folder)
)
TODAY = [page for page in PAGES if page != 'CHANGELOG.md']  # which names what is gone too
LONGEST_CELL = 120
# Flags on the pages that other programs have, or the scripts of launch/.
OTHERS_FLAGS = {
  *('accelerator-type', 'array', 'dry-run', 'file_format', 'location', 'manual_dir', 'nodes'),
  *('command', 'recurse', 'requeue', 'shm-size', 'signal', 'source', 'version', 'with', 'worker'),
  *('cpus-per-task', 'gpus-per-node', 'me', 'ntasks-per-node', 'python', 'zone'),
}
FILES = {'caffemodel', 'csv', 'html', 'json', 'md', 'npy', 'npz', 'png', 'pth', 'py', 'safetensors'}


@functools.cache
def _text(page: str) -> str:
  return (REPOSITORY / page).read_text(encoding='utf8')


def _prose(page: str) -> str:
  """Returns a page without its blocks of code."""
  text = re.sub(r'^```.*?^```$', '', _text(page), flags=re.MULTILINE | re.DOTALL)
  return re.sub(r'^    .*$', '', text, flags=re.MULTILINE)


def _slugs(page: str) -> set[str]:
  """Returns the anchors of a page's headings, as GitHub makes them."""
  found: dict[str, int] = {}
  anchors = set()
  for heading in re.findall(r'^#+ (.*)$', _prose(page), re.MULTILINE):
    plain = re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', heading).lower()
    slug = re.sub(r'[^\w\- ]', '', plain).replace(' ', '-')
    anchors.add(f'{slug}-{found[slug]}' if slug in found else slug)
    found[slug] = found.get(slug, 0) + 1
  return anchors


@functools.cache
def _links(page: str) -> list[str]:
  """Returns what a page links to: Markdown's links and images, and those of HTML tags."""
  prose = re.sub(r'`[^`\n]*`', '', _prose(page))
  return re.findall(r'\]\(([^)\s]+)[^)]*\)', prose) + re.findall(r'(?:src|href)="([^"]+)"', prose)


@pytest.mark.parametrize('page', PAGES)
def test_links_lead_somewhere(page):
  for link in _links(page):
    if re.match(r'https?://|mailto:', link):
      continue
    target, _, anchor = link.partition('#')
    path = (REPOSITORY / page).parent / target if target else REPOSITORY / page
    assert path.exists(), f'{page}: {link}'
    if anchor:
      other = path.resolve().relative_to(REPOSITORY).as_posix()
      assert anchor in _slugs(other), f'{page}: {link}; {other} has {sorted(_slugs(other))}'


def test_each_page_of_the_documentation_is_linked_from_another():
  linked = {
    ((REPOSITORY / page).parent / link.partition('#')[0]).resolve()
    for page in PAGES
    for link in _links(page)
    if link[0] != '#'
  }
  for page in PAGES:
    if page.startswith('docs/'):
      assert REPOSITORY / page in linked, page


@pytest.mark.parametrize('page', PAGES)
def test_cells_of_tables_are_short(page):
  for line in _text(page).splitlines():
    if line.startswith('|'):
      longest = max((cell.strip() for cell in line.strip('|').split('|')), key=len)
      assert len(longest) <= LONGEST_CELL, f'{page}: {longest}'


@pytest.mark.parametrize('page', [page for page in TODAY if 'results/' not in page])
def test_a_page_opens_with_a_title_and_a_sentence(page):
  title, empty, first = _text(page).split('\n')[:3]
  assert title.startswith('# ') and not empty and re.match(r'\w|\[|\*|    ', first), page


@functools.cache
def _config(text: str):
  return config_files.load(str(REPOSITORY / text) if text.endswith('.py') else text)


@functools.cache
def _known_fields() -> dict[str, set[str]]:
  """Returns the fields of all configs, by their sections; '' holds those without one."""
  known: dict[str, set[str]] = {'': set()}
  for name in config_files.list_names():
    for field in fields.flatten(config_files.load(name)):
      section, _, last = field.rpartition('.')
      known.setdefault(section, set()).add(last)
  return known


def _is_field(name: str) -> bool:
  section, _, last = name.rpartition('.')
  return last in _known_fields().get(section, ())


def _commands(page: str) -> list[str]:
  """Returns the command lines of this project that a page shows, in blocks and in sentences."""
  blocks = re.sub(r'\\\n *', ' ', _text(page)).splitlines()
  sentences = [' '.join(code.split()) for code in re.findall(r'`([^`]+)`', _prose(page))]
  found = [re.search(r'python -m cfn_jax\.\w[^`]*', line) for line in blocks + sentences]
  return [re.sub(r'[\[\]]|&.*', '', line[0]) for line in found if line]


@pytest.mark.parametrize('page', TODAY)
def test_commands_name_flags_configs_and_fields_that_exist(page):
  for line in _commands(page):
    help_cases.check_command(line)
    named = re.search(r'--config=(\S+)', line)
    text = named[1] if named else 'cfn'
    if text in ('FILE', 'FILE.py', 'NAME'):
      continue
    config = config_files.load(text.removeprefix('configs/').replace('.py', ''))
    for field in re.findall(r'--config\.([\w.]+)', line):
      if field != 'FIELD':
        config_files.find_field(config, field)


@pytest.mark.parametrize('page', TODAY)
def test_flags_exist(page):
  known = {flag for command in help_cases.COMMANDS for flag in help_cases.flags_of(command)}
  for flag in re.findall(r'(?<![\w-])--([a-z][\w-]*)(?![\w.-])', _text(page)):
    assert flag in known | OTHERS_FLAGS | {'config', 'help'}, f'{page}: --{flag}'
  for field in re.findall(r'--config\.([\w.]*\w)', _text(page)):
    assert field == 'FIELD' or _is_field(field), f'{page}: --config.{field}'


@pytest.mark.parametrize('page', TODAY)
def test_fields_exist(page):
  """Names in backticks that begin with a section of a config, or are set to a value."""
  for code in re.findall(r'`([^`\n]+)`', _prose(page)):
    name = re.match(r"([a-z]\w*(?:\.\w+)*)( ?=(?!=)|$|: ?'| \d| ')", code)
    if not name or name[1].rpartition('.')[2] in FILES:
      continue
    section, _, _ = name[1].partition('.')
    if '.' not in name[1] and '=' in name[2]:
      assert any(name[1] in last for last in _known_fields().values()), f'{page}: `{code}`'
    elif '.' in name[1] and section in _known_fields():
      assert _is_field(name[1]), f'{page}: `{code}`'


@pytest.mark.parametrize('page', PAGES)
def test_configs_exist(page):
  for name, variant in re.findall(r'\b(\w+)\.py:(\w+)', _text(page)):
    assert name in config_files.list_names(), f'{page}: {name}.py:{variant}'
    config_files.load(f'{name}:{variant}')
