"""The frozen-layer table: conv1 .. convK locked, the rest trained.

Paper, section 4.1, table 2: AlexNet on ImageNet, its first K convolutions from the CFN and locked,
the layers above drawn from a Gaussian and trained, K = 1 .. 5. The score is the average over 10
random crops. The baseline has a random trunk.
"""

import dataclasses
from collections.abc import Mapping

import ml_collections

from cfn_jax import fields
from cfn_jax.data import views
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import labelled, runs, tables, trunks
from cfn_jax.evaluation.finetuning import classifier, passes
from cfn_jax.models import figures
from cfn_jax.training import task as tasks
from cfn_jax.transfer import weights as weights_lib

PAPER = {
  'CFN': (54.7, 52.8, 49.7, 45.3, 34.6),
  'Doersch et al.': (53.1, 47.6, 48.7, 45.6, 30.4),
  'Wang and Gupta': (51.8, 46.9, 42.8, 38.8, 29.8),
  'Random': (48.5, 41.0, 34.8, 27.1, 12.0),
}
PAPER_ALEXNET = 57.4
CONVOLUTIONS = weights_lib.CONVOLUTIONS


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens and checks the evaluation of a config; see `make_plan`."""
  return runs.open_plan(make_plan, config)


def make_plan(config: ml_collections.ConfigDict) -> runs.Plan:
  """Opens data and weights, and builds the run of each K.

  Raises:
    CfnError: with the fault, its place and the remedy.
  """
  fields.check_numbers(config, labelled.LIMITS)
  layers = tuple(config.layers)
  if not layers or sorted(set(layers)) != sorted(layers) or not set(layers) <= {1, 2, 3, 4, 5}:
    raise CfnError(f'layers = {layers}: different numbers from 1 to 5')
  started = trunks.open_compared(config)
  data = labelled.open_labelled(config, multilabel=False, min_side_px=config.views.resize_px)
  made = [
    make_run(config, data, each, k, name=_name(run, k))
    for run, each in started.items()
    for k in layers
  ]
  labels = {run: each.label() for run, each in started.items()}
  return runs.Plan(
    runs=made,
    origins={labels[run]: each.origin for run, each in started.items()},
    show=lambda figures: show(figures, labels, layers),
    published={**PAPER, 'AlexNet': PAPER_ALEXNET},
  )


def make_run(
  config: ml_collections.ConfigDict,
  data: labelled.Labelled,
  trunk: trunks.Trunk,
  k: int,
  *,
  name: str,
) -> runs.Run:
  """Builds the run that locks conv1 .. convK."""
  model, view, test = config.model, config.views, config.test
  placed, network = trunks.make_network(config, trunk, len(data.class_names))
  locked = CONVOLUTIONS[:k]
  made = classifier.Classifier(
    network=network,
    view_px=view.view_px,
    input_record=placed.input,
    class_names=data.class_names,
    multilabel=False,
    initial=figures.Initial(model.init, placed.order),
    given=placed.params,
    loaded=locked,
    locked=locked,
  )
  views_of = views.MakeViews('random', view.view_px, view.resize_px, view.resize, view.mirror)
  return passes.make_run(
    config,
    made,
    data,
    name,
    views=views_of,
    once=dataclasses.replace(views_of, crop='centre', mirror=False, draws=1),
    finals={'': dataclasses.replace(views_of, mirror=test.mirror, draws=test.draws)},
    average=test.average,
    summary=f'{trunk.label()}: {", ".join(locked)} locked, the rest drawn ({model.init})',
  )


def _name(run: str, k: int) -> str:
  return f'{run}/conv{k}'


def show(
  figures: Mapping[str, runs.Figures], labels: Mapping[str, str], layers: tuple[int, ...]
) -> None:
  """Prints the table: a row for each trunk, and the paper's."""
  rows = []
  for run, label in labels.items():
    rows.append(
      (label, [tables.write_interval(figures[_name(run, k)], 'val_accuracy') for k in layers])
    )
  first = figures[next(iter(figures))]
  published = [
    (f'paper, ImageNet: {name}', [values[k - 1] for k in layers]) for name, values in PAPER.items()
  ]
  published.append(('paper, ImageNet: AlexNet, nothing locked', [PAPER_ALEXNET]))
  tables.show(
    f'Accuracy in % with conv1..convK locked, {first["val_count"]:,} test images (±: 95 % interval '
    'over them, one training run)',
    [f'K = {k}' for k in layers],
    [rows, published],
  )
