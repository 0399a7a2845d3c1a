"""Draws what a context encoder saw and filled in: image, hole, filling, side by side."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from cfn_jax import names
from cfn_jax.data import pipeline
from cfn_jax.models import inputs
from cfn_jax.models import trunk as trunks
from cfn_jax.pictures import curves, figures, filters
from cfn_jax.training import metrics

SHOWN = 8
END = ('curves.png', 'fillings.png', 'filters.png')


def make_pictures(
  training: pipeline.Reader,
  holes: pipeline.Transform,
  validation: pipeline.Reader,
  judged: pipeline.Transform,
  fill: Callable[..., Any],
  target: inputs.InputRecord,
  chance: float,
  record: inputs.InputRecord,
  trunk: trunks.Trunk,
) -> dict[str, Callable[..., None]]:
  """Returns the pictures of a run by their moment: 'start', 'end' and 'bad_batch'.

  Args:
    holes, judged: the transforms of training and validation.
    fill: (params, batch) to `[B, px, px, 3]` in units of `target`.
    chance: the error of the mean colour.
    record, trunk: of the network.
  """

  def start(workdir: pathlib.Path) -> None:
    with figures.spared(workdir / 'holes.png'):
      visits = [training.train(i) for i in range(min(SHOWN, len(training.source)))]
      batch = _stack(visits, holes)
      draw_sheet(workdir / 'holes.png', [v.name for v in visits], batch, target.mean)

  def end(workdir: pathlib.Path, params: Any, step: int) -> None:
    with figures.spared(workdir / END[0]):
      curves.draw_curves(
        workdir / END[0], metrics.read_rows(workdir / 'metrics.jsonl'), {'loss': chance}
      )
    with figures.spared(workdir / END[1]):
      count = len(validation.source)
      chosen = np.unique(np.linspace(0, count - 1, min(SHOWN, count)).astype(int))
      visits = [validation.evaluate(int(record)) for record in chosen]
      batch = _stack(visits, judged)
      filling = np.asarray(jax.jit(fill)(params, batch))
      draw_sheet(
        *(workdir / END[1], [v.name for v in visits], batch, target.mean),
        filling=filling / np.array(target.scale) + np.array(target.mean),
        title=f'validation images, the filling of step {step}, the best',
      )
    with figures.spared(workdir / END[2]):
      filters.draw_run(workdir / END[2], params, record, trunk, step)

  def bad_batch(workdir: pathlib.Path, batch: pipeline.Batch) -> None:
    with figures.spared(workdir / 'bad_batch.png'):
      shown = {name: rows[:32] for name, rows in batch.items()}
      rows = [f'row {row}' for row in range(len(shown['image']))]
      draw_sheet(workdir / 'bad_batch.png', rows, shown, target.mean)

  return {'start': start, 'end': end, 'bad_batch': bad_batch}


def draw_sheet(
  path: pathlib.Path,
  labels: Sequence[str],
  batch: Mapping[str, np.ndarray],
  colour: Sequence[float],
  *,
  filling: np.ndarray | None = None,
  title: str = '',
) -> None:
  """Draws each image, its visible part, and its filling.

  Args:
    batch: `image` uint8 `[B, px, px, 3]` and `hidden` bool `[B, px, px]`.
    colour: the colour of hidden pixels, 0..255.
    filling: `[B, px, px, 3]`, 0..255; None: not drawn.
  """
  kinds = ['image', 'visible'] + (['filled in'] if filling is not None else [])
  per_row = 2
  rows = -(-len(labels) // per_row)
  figure = figures.make(1.7 * len(kinds) * per_row, 1.9 * rows)
  axes = figure.subplots(rows, len(kinds) * per_row, squeeze=False).ravel()
  for axis in axes:
    axis.axis('off')
  for i, (image, hidden) in enumerate(zip(batch['image'], batch['hidden'])):
    panels = [image, np.where(hidden[..., None], colour, image)]
    if filling is not None:
      panels.append(np.where(hidden[..., None], filling[i], image))
    for axis, kind, panel in zip(axes[len(kinds) * i :], kinds, panels):
      axis.imshow(np.clip(np.rint(panel), 0, 255).astype(np.uint8))
      axis.set_title(
        names.drawable(names.shorten(labels[i], 26) if kind == 'image' else kind), fontsize=7
      )
  if title:
    figure.suptitle(names.drawable(title), fontsize=9)
  figures.save(figure, path)


def _stack(
  visits: Sequence[pipeline.Visit], transform: pipeline.Transform
) -> dict[str, np.ndarray]:
  made = [transform(visit) for visit in visits]
  return {name: np.stack([one[name] for one in made]) for name in made[0]}
