"""Prints the table of average precision: runs side by side, class by class.

For VOC classification, where objects are images, and for detection.
"""

from collections.abc import Mapping
from typing import Any

from cfn_jax.evaluation import scores, tables

KINDS = {'area': 'average_precision', '11-point': 'average_precision_11_point'}
MEANS = {'area': 'val_map', '11-point': 'val_map_11_point'}


def show(
  figures: Mapping[str, Mapping[str, Any]],
  labels: Mapping[str, str],
  *,
  counted: str,
  training: str,
  paper: Mapping[str, float],
  paper_kind: str,
) -> None:
  """Prints each class's figures, the mean of each run, and the paper's rows.

  Args:
    figures: those of each run, with `per_class`; a mean has its interval if it is known.
    labels: the starts of the runs.
    counted: the things that a class has, such as 'images'.
    training: the training of the runs, for the title.
    paper: the paper's means in per cent.
    paper_kind: their kind, one of `KINDS`.
  """
  first = figures[next(iter(figures))]
  columns = [f'{run}, {kind}' for run in labels for kind in KINDS]

  def row(name: str) -> list[float | None]:
    found = [figures[run]['per_class'][kind][name] for run in labels for kind in KINDS.values()]
    return [None if value is None else 100 * value for value in found]

  per_class = [
    (f'{name} ({count} {counted})', row(name))
    for name, count in first['per_class']['positives'].items()
  ]
  means = [_write_mean(figures[run], name) for run in labels for name in MEANS.values()]
  absent = first['classes_without_figure']
  over = f'mean over {len(per_class) - len(absent)} classes'
  place = list(KINDS).index(paper_kind)
  published = [
    (f'paper, VOC2007: {name}', [None] * place + [value]) for name, value in paper.items()
  ]
  told = f'without a positive, not in the mean: {", ".join(absent)}' if absent else ''
  tables.show(
    f'Average precision in %, {first["val_count"]:,} test images (±: 95 % interval over them, one '
    f'training run), {training}; '
    + '; '.join(f'{run}: {label}' for run, label in labels.items() if run != label),
    columns,
    [per_class, [(over, means)], published],
    caption='; '.join(filter(None, [scores.tell_difference(figures, [*MEANS.values()]), told])),
  )


def _write_mean(figures: Mapping[str, Any], name: str) -> float | str | None:
  if figures[name] is None:
    return None
  return tables.write_interval(figures, name) if f'{name}_low' in figures else 100 * figures[name]
