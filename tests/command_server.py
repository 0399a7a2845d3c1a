"""Runs command lines, each in a forked child of a process that has imported all but the commands.

A process that imports JAX anew takes seconds, a child a tenth of one. `answer` starts the server,
`python command_server.py CASES.json RESULTS.json`; no JAX backend starts before a fork. Root's
children lose its privileges: closed places are closed to them.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pathlib
import pkgutil
import pwd
import runpy
import signal
import struct
import subprocess
import sys
import time
import traceback
from typing import Any

AT_ONCE = 2
SECONDS = 100
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


def answer(cases: list[dict[str, Any]], folder: pathlib.Path) -> list[dict[str, Any]]:
  """Runs the cases in a server; returns code, seconds, stdout and stderr of each.

  Args:
    cases: module and arguments; where there are such: variables of the environment (None: unset),
      where it runs, `cwd`, or a folder that is made for it.
    folder: an empty one, for files of the server and of the cases.
  """
  cases = [
    {'environment': {}, 'folder': str(folder / 'work' / str(number))} | case
    for number, case in enumerate(cases)
  ]
  files = [folder / 'cases.json', folder / 'results.json']
  files[0].write_text(json.dumps(cases))
  environment = os.environ | {
    'PYTHONPATH': str(REPOSITORY),
    'JAX_PLATFORMS': 'cpu',
    'XLA_FLAGS': '',
    'JAX_COMPILATION_CACHE_DIR': str(folder / 'compiled'),
    'OMP_NUM_THREADS': '1',
    'OPENBLAS_NUM_THREADS': '1',
  }
  subprocess.run([sys.executable, __file__, *files], check=True, env=environment)
  return json.loads(files[1].read_text())


def preload() -> None:
  """Imports what the commands import; their own modules define flags, once in each child."""
  import cfn_jax.evaluation
  import cfn_jax.pictures
  import cfn_jax.transfer

  for package in (cfn_jax.evaluation, cfn_jax.pictures, cfn_jax.transfer):
    for module in pkgutil.iter_modules(package.__path__):
      if module.name != 'torch_network':
        importlib.import_module(f'{package.__name__}.{module.name}')
  for name in ('cfn_jax.command', 'cfn_jax.jigsaw.task', 'cfn_jax.data.folder', 'cfn_jax.data.voc',
               'cfn_jax.data.array_records', 'cfn_jax.data.tar_source', 'cfn_jax.data.prepare',
               'cfn_jax.data.tfds_source', 'cfn_jax.timing.step', 'cfn_jax.timing.input',
               'cfn_jax.training.store', 'matplotlib.figure', 'matplotlib.backends.backend_agg',
               'matplotlib.layout_engine', 'torch'):  # fmt: skip
    with contextlib.suppress(ModuleNotFoundError):
      importlib.import_module(name)
  gc.freeze()


def drop_privileges() -> None:
  """Lets closed files be closed to root too: its capabilities go, all of them."""
  if os.geteuid() == 0:
    header = struct.pack('Ii', 0x20080522, 0)  # the version of the structure, this process
    if ctypes.CDLL(None, use_errno=True).capset(header, bytes(24)):
      raise OSError(ctypes.get_errno(), 'capset')


def be_case(case: dict[str, Any]) -> int:
  """Runs a case in this process; returns its exit code."""
  os.chdir(case.get('cwd', case['folder']))
  for number, name in ((1, 'stdout'), (2, 'stderr')):
    file = os.open(f'{case["folder"]}/.{name}', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, number)
  os.dup2(os.open('/dev/null', os.O_RDONLY), 0)
  drop_privileges()
  for name, value in case['environment'].items():
    os.environ.pop(name, None)
    if value is not None:
      os.environ[name] = value
  if 'HOME' in case['environment'] and case['environment']['HOME'] is None:
    pwd.getpwuid = lambda number: {}[number]  # no account either, as in a container
  if 'JAX_PLATFORMS' in case['environment']:
    import jax

    jax.config.update('jax_platforms', case['environment']['JAX_PLATFORMS'])
  sys.argv = [case['module'], *case['arguments']]
  try:
    runpy.run_module(f'cfn_jax.{case["module"]}', run_name='__main__', alter_sys=True)
    return 0
  except SystemExit as ended:
    return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
  except BaseException:
    traceback.print_exc()
    return 1


def run(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """Runs the cases, `AT_ONCE` at a time; a result for each."""
  results: list[dict[str, Any]] = [{} for _ in cases]
  running: dict[int, tuple[int, float]] = {}
  todo = list(enumerate(cases))
  while todo or running:
    while todo and len(running) < AT_ONCE:
      number, case = todo.pop(0)
      pathlib.Path(case['folder']).mkdir(parents=True)
      pid = os.fork()
      if not pid:
        code = be_case(case)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
      running[pid] = number, time.monotonic()
    for pid, (number, began) in list(running.items()):
      seconds = time.monotonic() - began
      if seconds > SECONDS:
        os.kill(pid, signal.SIGKILL)
      done, status = os.waitpid(pid, os.WNOHANG)
      if done:
        del running[pid]
        folder = pathlib.Path(cases[number]['folder'])
        results[number] = {
          'code': os.waitstatus_to_exitcode(status),
          'seconds': seconds,
          'stdout': (folder / '.stdout').read_text(errors='replace'),
          'stderr': (folder / '.stderr').read_text(errors='replace'),
        }
    time.sleep(0.01)
  return results


if __name__ == '__main__':
  preload()
  given = json.loads(pathlib.Path(sys.argv[1]).read_text())
  pathlib.Path(sys.argv[2]).write_text(json.dumps(run(given)))
