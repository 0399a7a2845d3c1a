"""Finds the runs and evaluations in workdirs, and names them."""

import os
import pathlib
from collections.abc import Iterator, Sequence

from cfn_jax.errors import CfnError
from cfn_jax.training import provenance

LIMIT = 30  # runs in one report, including those of evaluations
DEPTH = 3  # depth of folders below a workdir in which runs are searched
MOST_FOLDERS = 2_000  # folders to search in one workdir
PASSED_OVER = frozenset(
  {'checkpoints', 'features', 'profile', 'detections', 'predictions', 'pictures'}
)
RUN_FILES = ('config.json', 'metrics.jsonl', 'checkpoints', 'run.lock')
PAGE = 'report.html'  # the written page
STUDY = 'study.json'  # its workdir shows the study's table; its runs are workdirs of their own
RESULTS, RESULT = 'results.json', 'result.json'


def name_apart(folders: Sequence[pathlib.Path]) -> list[str]:
  """Returns names for folders: as many of their last parts as make them distinct."""
  parts = [folder.resolve().parts for folder in folders]
  for count in range(1, max(map(len, parts), default=0)):
    shown = ['/'.join(each[-count:]) for each in parts]
    if len({*shown}) == len(folders):
      return shown
  return [str(folder) for folder in folders]


def find(top: pathlib.Path) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
  """Returns the folders of runs and those of evaluations in a workdir.

  Raises:
    CfnError: there is no such folder, or it has neither.
  """
  if not top.is_dir():
    raise CfnError(f'--workdir={top}: there is no such folder')
  runs, evaluations, done = [], [], []
  for folder, entries in walk(top):
    if RESULTS in entries or STUDY in entries:
      evaluations.append(folder)
    if any(name in entries for name in RUN_FILES):
      runs.append(folder)
    elif RESULT in entries:
      done.append(folder)
  if not any(path.name != PAGE for path in top.iterdir()):
    runs.append(top)  # nothing is written yet
  if not (runs or evaluations or done or (top / provenance.STARTS).is_file()):
    raise CfnError(
      f'--workdir={top}: no workdir: neither it nor a folder in it has one of '
      f'{", ".join((*RUN_FILES, RESULTS))}'
    )
  results = [*done, *(folder for folder in runs if (folder / RESULT).is_file())]
  if any(not any(folder.is_relative_to(e) for e in evaluations) for folder in results):
    evaluations.insert(0, top)  # not finished
  return runs, evaluations


def walk(top: pathlib.Path) -> Iterator[tuple[pathlib.Path, set[str]]]:
  """Yields a folder and those in it, each with its names; an unreadable one has none."""
  left, seen = [(top, DEPTH)], 0
  while left and seen < MOST_FOLDERS:
    folder, depth = left.pop(0)
    seen += 1
    try:
      with os.scandir(folder) as entries:
        found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    except OSError:
      continue
    yield folder, {*found}
    if depth and STUDY not in found:
      inside = sorted(name for name, is_folder in found.items() if is_folder)
      left += [
        (folder / name, depth - 1)
        for name in inside
        if name not in PASSED_OVER and not name.startswith('.')
      ]
