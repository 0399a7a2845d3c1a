"""What each layer's features are worth: conv1 .. convK locked, the rest trained anew.

Paper, section 4.1, table 2: AlexNet on ImageNet, its first K convolutions from the CFN and locked,
the layers above drawn from a Gaussian and trained, K = 1 .. 5; the score is the average over 10
random crops. Beside it the same with a random trunk.
"""

import dataclasses
import functools
from collections.abc import Mapping

import ml_collections

from cfn_jax import fields
from cfn_jax.data import views
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import classifier, labelled, runs, tables, testing, trunks
from cfn_jax.models import alexnet, figures
from cfn_jax.training import task as tasks
from cfn_jax.transfer import networks
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
  """Opens and checks what the config evaluates; see `make_plan`."""
  return runs.open_plan(make_plan, config)


def make_plan(config: ml_collections.ConfigDict) -> runs.Plan:
  """Opens data and weights, and builds the run of each K.

  Raises:
    CfnError: what is wrong, where, and what would be right.
  """
  fields.check_numbers(config, labelled.LIMITS)
  layers = tuple(config.layers)
  if not layers or sorted(set(layers)) != sorted(layers) or not set(layers) <= {1, 2, 3, 4, 5}:
    raise CfnError(f'layers = {layers}: different numbers from 1 to 5')
  started = trunks.open_compared(config)
  data = labelled.open_labelled(config, several=False, min_side_px=config.views.resize_px)
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
  placed = trunks.place_trunk(trunk, stride=model.stride)
  figures.check_input_size(view.view_px + 2 * placed.padding, model.stride)
  locked = CONVOLUTIONS[:k]
  network = networks.make_network(
    placed,
    num_classes=len(data.class_names),
    dropout=model.dropout,
    dtype=alexnet.find_dtype(config.compute_dtype),
    remat=config.remat,
  ).clone(fc6_features=model.fc6_features, fc7_features=model.fc7_features)
  made = classifier.Classifier(
    network=network,
    view_px=view.view_px,
    record=placed.input,
    class_names=data.class_names,
    several=False,
    initial=figures.Initial(model.init, placed.order),
    given=placed.params,
    loaded=locked,
    locked=locked,
  )
  views_of = views.MakeViews('random', view.view_px, view.resize_px, view.resize, view.mirror)
  test_views = dataclasses.replace(views_of, mirror=test.mirror, draws=test.draws)
  centre = dataclasses.replace(views_of, crop='centre', mirror=False, draws=1)
  quick, final = (testing.make_feed(config, data, each) for each in (centre, test_views))
  evaluate = functools.partial(testing.make_evaluation, made, average=test.average)
  task = classifier.make_task(
    config,
    made,
    data,
    name='frozen_layers',
    train_views=views_of,
    testing=quick,
    evaluation=evaluate(quick, report=testing.make_report(made)),
    run=f'{trunk.label()}: {", ".join(locked)} locked, the rest drawn ({model.init})',
  )
  return runs.Run(
    name,
    task,
    evaluate(final, report=testing.make_report(made, detailed=True)),
    {'test images shown': data.shown(config.data.val_max_images)},
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
