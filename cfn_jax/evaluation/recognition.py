"""Recognition: the CFN on the nine tiles of a whole image, and AlexNet, trained on labels.

Paper, section 3: as an ImageNet classifier the CFN reaches 57.1 % with half of the parameters of
AlexNet, which reaches 57.4 %. The CFN sees the whole image resized to 225 x 225 px as nine tiles of
75 px in reading order. The mean of each channel of each tile is subtracted, as in the authors'
test. It uses the authors' solver and the same loop.
"""

import dataclasses

import ml_collections

from cfn_jax import fields
from cfn_jax.data import views
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import labelled, runs, tables
from cfn_jax.evaluation.finetuning import classifier, passes
from cfn_jax.jigsaw import network as networks
from cfn_jax.models import alexnet, cfn, figures, inputs
from cfn_jax.training import task as tasks

PAPER = {'cfn': 57.1, 'alexnet': 57.4}
CROPS = ('whole', 'random')
NORMALIZATIONS = ('tile', 'channel', 'mean', 'global')


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens and checks the evaluation of a config; see `make_plan`."""
  return runs.open_plan(make_plan, config)


def make_plan(config: ml_collections.ConfigDict) -> runs.Plan:
  """Opens the data and builds the run of the network that the config names.

  Raises:
    CfnError: with the fault, its place and the remedy.
  """
  fields.check_numbers(config, labelled.LIMITS)
  view, name = config.views, config.model.name
  if view.crop not in CROPS:
    raise CfnError(f"views.crop = '{view.crop}' is unknown: one of {', '.join(CROPS)}")
  least = view.view_px if view.crop == 'whole' else view.resize_px
  data = labelled.open_labelled(config, multilabel=False, min_side_px=least)
  return runs.Plan(
    runs=[make_run(config, data)],
    origins={},
    show=lambda figures: show(figures[name], name, config.test.draws),
    published=PAPER,
  )


def make_run(config: ml_collections.ConfigDict, data: labelled.Labelled) -> runs.Run:
  """Builds the run of the network that the config names.

  Raises:
    CfnError: several views would all be the same; see `make_classifier`.
  """
  view, test, model = config.views, config.test, config.model
  made = make_classifier(config, data.class_names)
  views_of = views.MakeViews(view.crop, view.view_px, view.resize_px, view.resize, view.mirror)
  if view.crop == 'whole' and test.draws > 1 and not test.mirror:
    raise CfnError(
      f'test.draws = {test.draws}: all views of a whole image are alike; take 1, '
      "test.mirror = True, or views.crop = 'random'"
    )
  once = dataclasses.replace(
    views_of, crop='whole' if view.crop == 'whole' else 'centre', mirror=False, draws=1
  )
  several = dataclasses.replace(views_of, mirror=test.mirror, draws=test.draws)
  return passes.make_run(
    config,
    made,
    data,
    model.name,
    views=views_of,
    once=once,
    finals={'': once} | ({'several_views': several} if test.draws > 1 else {}),
    average=test.average,
    summary=model.name,
  )


def make_classifier(
  config: ml_collections.ConfigDict, class_names: tuple[str, ...]
) -> classifier.Classifier:
  """Builds the network.

  Raises:
    CfnError: the network or normalisation is unknown, or the view is no grid of tiles or too small.
  """
  model, view = config.model, config.views
  if model.name not in PAPER:
    raise CfnError(f"model.name = '{model.name}' is unknown: one of {', '.join(PAPER)}")
  grid = model.grid if model.name == 'cfn' else 0
  if model.name == 'cfn' and (grid < 1 or view.view_px % grid):
    raise CfnError(f'views.view_px = {view.view_px} is no grid of model.grid = {grid} tiles')
  figures.check_input_size(view.view_px // max(1, grid), model.stride)
  make = cfn.Cfn if grid else alexnet.AlexNet
  network = make(
    num_classes=len(class_names),
    trunk=networks.make_trunk(config),
    fc6_features=model.fc6_features,
    fc7_features=model.fc7_features,
    dropout=model.dropout,
  )
  return classifier.Classifier(
    network=network,
    view_px=view.view_px,
    input_record=make_input(config),
    class_names=class_names,
    multilabel=False,
    initial=figures.Initial(model.init, model.order),
    grid=grid,
  )


def make_input(config: ml_collections.ConfigDict) -> inputs.InputRecord:
  """Reads the preparation of views or tiles.

  Raises:
    CfnError: the normalisation is unknown, or a figure is impossible.
  """
  i = config.input
  if i.normalization not in NORMALIZATIONS:
    known = ', '.join(NORMALIZATIONS)
    raise CfnError(f"input.normalization = '{i.normalization}' is unknown: one of {known}")
  fixed = i.normalization == 'global'
  if len(i.mean) != 3 or i.std <= 0:
    raise CfnError(f'input.mean = {i.mean}, input.std = {i.std}: three numbers, and more than 0')
  scale = i.scale / i.std if fixed else i.scale
  red, green, blue = i.mean
  return inputs.InputRecord(
    'rgb', (red, green, blue), (scale, scale, scale), '' if fixed else i.normalization, i.std
  )


def show(figures: runs.Figures, name: str, draws: int) -> None:
  """Prints top-1 and top-5 of one view and of several."""

  def row(found: runs.Figures) -> list[float | None]:
    values = [found.get(kind) for kind in ('val_accuracy', 'val_top5_accuracy')]
    return [None if value is None else 100 * value for value in values]

  published = [(f'paper, ImageNet: {each}', [value]) for each, value in PAPER.items()]
  tables.show(
    f'Accuracy in %, {figures["val_count"]:,} test images',
    ['top-1', 'top-5'],
    [
      [
        (f'{name}, one view', row(figures)),
        *((f'{name}, {draws} views', row(each)) for each in [figures.get('several_views')] if each),
      ],
      published,
    ],
  )
