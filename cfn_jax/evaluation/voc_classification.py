"""VOC2007 classification: the classes, of 20, that an image shows.

Paper, section 4.1, table 1, by the framework of Kraehenbuehl et al. (voc-classification): conv1 ..
conv5 in AlexNet, a sigmoid for each class, views of random scale, place and mirroring in training
and test, and the sum of ten views' logits as the score. The figure is the mean of the areas under
the precision-recall curves. The 11-point mean of VOC2007 stands beside it.
"""

import dataclasses
from typing import Any

import ml_collections

from cfn_jax import fields
from cfn_jax.data import views
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import labelled, precision_table, runs, trunks
from cfn_jax.evaluation.finetuning import classifier, magic_init, passes
from cfn_jax.models import figures
from cfn_jax.training import task as tasks
from cfn_jax.transfer import weights as weights_lib

# Mean average precision on VOC2007, with all layers trained.
PAPER = {
  'CFN': 67.6,
  'Pathak et al.': 56.5,
  'Doersch et al.': 55.3,
  'Wang and Gupta': 58.4,
  'ImageNet labels': 78.2,
}
# The layers that train; the others are locked.
TRAINED = {
  'all': weights_lib.LAYERS,
  'fc6-8': weights_lib.FULLY_CONNECTED,
  'fc8': ('fc8',),
  'pool5': ('fc8',),  # a linear classifier on pool5
}
CHART = 'average_precision.png'


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens and checks the evaluation of a config; see `make_plan`."""
  return runs.open_plan(make_plan, config)


def make_plan(config: ml_collections.ConfigDict) -> runs.Plan:
  """Opens data and weights, and builds the run and that of the random baseline.

  Raises:
    CfnError: with the fault, its place and the remedy.
  """
  fields.check_numbers(config, labelled.LIMITS)
  if config.trained not in TRAINED:
    raise CfnError(f"trained = '{config.trained}' is unknown: one of {', '.join(TRAINED)}")
  magic_init.check(config.magic_init)
  started = trunks.open_compared(config)
  data = labelled.open_labelled(config, multilabel=True)  # at its own size: scales are in its px
  labels = {name: each.label() for name, each in started.items()}
  return runs.Plan(
    runs=[make_run(config, data, each, name) for name, each in started.items()],
    origins={labels[name]: each.origin for name, each in started.items()},
    show=lambda figures: precision_table.show(
      figures,
      labels,
      counted='images',
      training=f'trained: {config.trained}',
      paper=PAPER,
      paper_kind='area',
    ),
    charts=lambda figures: {
      CHART: {
        label: figures[name]['per_class']['average_precision'] for name, label in labels.items()
      }
    },
    published=PAPER,
  )


def make_run(
  config: ml_collections.ConfigDict, data: labelled.Labelled, trunk: trunks.Trunk, name: str
) -> runs.Run:
  """Builds the run of one trunk."""
  made = make_classifier(config, data, trunk, drawn=name == trunks.BASELINE)
  view = views.MakeViews('scaled', config.views.view_px, 0, 'squash', config.views.mirror)
  return passes.make_run(
    config,
    made,
    data,
    name,
    views=view,
    once=dataclasses.replace(view, draws=1),
    finals={'': dataclasses.replace(view, draws=config.test.draws)},
    average='logits',
    summary=made.summarize(trunk.label()),
  )


def make_classifier(
  config: ml_collections.ConfigDict,
  data: labelled.Labelled,
  trunk: trunks.Trunk,
  *,
  drawn: bool,
) -> classifier.Classifier:
  """Builds the network; fc6 and fc7 are loaded if the weights have AlexNet's for these views.

  Raises:
    WeightsError: only fc8 trains, and the weights have no fc6 and fc7 for it.
  """
  model, px = config.model, config.views.view_px
  network: Any
  placed, network = trunks.make_network(config, trunk, len(data.class_names))
  side = figures.map_sides(px, stride=model.stride, padding=placed.padding)['pool5']
  if config.trained == 'pool5' and not model.load_fc:
    raise CfnError("model.load_fc = False has no effect: trained = 'pool5' has no fc6 and fc7")
  connected, widths = trunks.connect(config, trunk, side)
  params = placed.params | connected
  if config.trained == 'fc8' and not drawn and 'fc7' not in params:
    why = (
      f'{trunk.name} holds none for views of {px} px at stride {model.stride}'
      if model.load_fc
      else 'model.load_fc = False draws them'
    )
    raise weights_lib.WeightsError(
      f"trained = 'fc8' locks fc6 and fc7, but {why}: take 'fc6-8' or 'all'"
    )
  if config.trained == 'pool5':
    network = classifier.Pool5Linear(len(data.class_names), network.trunk)
    params = placed.params
  else:
    network = network.clone(**widths)
  # Layers that were drawn at random are fresh: magic_init draws them again.
  fresh = drawn and config.magic_init
  loaded = () if fresh else tuple(name for name in weights_lib.LAYERS if name in params)
  made = classifier.Classifier(
    network=network,
    view_px=px,
    input_record=placed.input,
    class_names=data.class_names,
    multilabel=True,
    initial=figures.Initial(model.init, placed.order),
    fc_init=model.fc_init,
    given=params,
    loaded=loaded,
  )
  layers = tuple(made.shapes())
  locked = tuple(name for name in layers if name not in TRAINED[config.trained])
  made = dataclasses.replace(made, locked=locked)
  if config.magic_init:
    made = magic_init.add(made, config.magic_init, data.training.reader, seed=config.seed)
  return made
