"""Prints the results of the meter of shortcuts: a table and words."""

from collections.abc import Mapping
from typing import Any

from cfn_jax import terminal


def describe(found: Mapping[str, Any]) -> str:
  """Returns a line about the measurement, and whether it is smaller than requested."""
  fewer = found['puzzles'] < found['asked_puzzles']
  asked = f' (fewer than the {found["asked_puzzles"]:,} asked for)' if fewer else ''
  return (
    f'{found["puzzles"]:,} puzzles, one an image{asked}, after learning from '
    f'{found["learned_images"]:,} other images; {found["permutations"]:,} permutations'
  )


def tell_verdict(cue: Mapping[str, Any]) -> str:
  """Returns the verdict of a cue; 'absent' if these images do not have it even without measures."""
  verdict: str = cue['verdict']
  return verdict if cue['present'] else f'{verdict} (absent)'


def show(found: Mapping[str, Any]) -> None:
  """Prints the table: the puzzles and tiles that each cue solves, and the verdicts."""
  settings = found['settings']
  chance, guess = _write(found['chance_accuracy']), _write(found['chance_tile_accuracy'])
  puzzles, tiles = [], []
  for cue, each in found['cues'].items():
    solved = [_write_interval(each[name]) for name in settings]
    puzzles.append((cue, [*solved, chance, tell_verdict(each)]))
    placed = [_write(each[name]['tile_accuracy']) for name in settings]
    tiles.append((f'{cue}: tiles', [*placed, guess, '']))
  measures = ', '.join(found['measures']) or 'none'
  terminal.show_table(
    f'{describe(found)}: solved, %',
    [*settings, 'chance', 'verdict'],
    [puzzles, tiles],
    caption=f'measures of this config: {measures}; ± half of the 95 % interval',
  )


def _write(share: float) -> str:
  return f'{100 * share:.1f}'


def _write_interval(figures: Mapping[str, float]) -> str:
  return f'{_write(figures["accuracy"])} ±{_write((figures["high"] - figures["low"]) / 2)}'
