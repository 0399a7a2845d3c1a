"""Bars of puzzles that cues solve, with and without the measures of a config."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from cfn_jax import names
from cfn_jax.jigsaw.shortcuts import meter, report
from cfn_jax.pictures import figures

COLOURS = {meter.ON: '#1f5fa8', meter.OFF: '#b42318'}
BETWEEN = ('#6f9fd0', '#8fb8a0', '#c9b26b', '#b79ac2')  # one measure off


def draw_shortcuts(path: pathlib.Path, found: Mapping[str, Any]) -> None:
  """Draws the result of `meter.measure`: puzzle accuracy by cue and setting, intervals, chance."""
  cues = found['cues']
  settings = found['settings']
  between = iter(BETWEEN)
  colours = {name: COLOURS.get(name) or next(between) for name in settings}
  figure = figures.make(2.1 * len(cues) + 1.2, 4.6)
  axes = figure.subplots()
  width = 0.84 / len(settings)
  for at, name in enumerate(settings):
    x = np.arange(len(cues)) + (at - (len(settings) - 1) / 2) * width
    each = [cues[cue][name] for cue in cues]
    heights = 100 * np.array([one['accuracy'] for one in each])
    ends = 100 * np.array([[one['low'] for one in each], [one['high'] for one in each]])
    errors = np.abs(ends - heights)
    axes.bar(x, heights, width, color=colours[name], label=names.drawable(_describe(name)))
    axes.errorbar(x, heights, errors, fmt='none', ecolor='black', elinewidth=0.8, capsize=1.5)
    for place, height, high in zip(x, heights, ends[1]):
      axes.text(place, high + 1, names.drawable(f'{height:.1f}'), ha='center', fontsize=6.5)
  chance = 100 * found['chance_accuracy']
  axes.axhline(chance, color='black', linestyle='--', linewidth=0.9, label='chance')
  axes.set_xticks(np.arange(len(cues)))
  axes.set_xticklabels([names.drawable(cue) for cue in cues])
  below = axes.get_xaxis_transform()
  for at, each in enumerate(cues.values()):
    axes.text(
      at,
      -0.13,
      names.drawable(report.tell_verdict(each)),
      ha='center',
      fontsize=8,
      color='#444444',
      transform=below,
    )
  axes.set(ylim=(0, 108), yticks=range(0, 101, 20), ylabel='puzzles solved, %')
  axes.spines[['top', 'right']].set_visible(False)
  axes.set_title(names.drawable(report.describe(found)), fontsize=9)
  figure.legend(loc='outside lower center', ncols=len(settings) + 1, fontsize=8, frameon=False)
  figures.save(figure, path)


def _describe(setting: str) -> str:
  return {meter.ON: 'as configured', meter.OFF: 'without any measure'}.get(setting, setting)
