"""VOC2007 detection: the boxes of objects of 20 classes.

Paper, section 4.1, table 1, by the framework of Girshick (fast-rcnn): conv1 .. conv5 in AlexNet,
proposed regions, a class and a better box for each, and the mean of the average precisions at 11
points.
"""

import ml_collections
import numpy as np

from cfn_jax import fields
from cfn_jax.data import feed
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import precision_table, runs, trunks
from cfn_jax.evaluation.detection import detector as detectors
from cfn_jax.evaluation.detection import opened, passes, roles
from cfn_jax.evaluation.finetuning import magic_init
from cfn_jax.models import alexnet
from cfn_jax.training import task as tasks

# Mean average precision on VOC2007, 11 points; the CFN's with five scales in training and test.
PAPER = {
  'CFN': 53.2,
  'Pathak et al.': 44.5,
  'Doersch et al.': 46.6,
  'Wang and Gupta': 44.0,
  'ImageNet labels': 56.8,
}
CHART = 'average_precision.png'
LIMITS = {
  **feed.LIMITS,
  **alexnet.LIMITS,
  'model.fc6_features': (1, 2**20),
  'locked_convolutions': (0, 5),
  'proposals.keep': (0, 10**6),
  'images.longest_px': (32, 8192),
  'images.canvases': (1, 6),
  'regions.per_image': (1, 10**5),
  'regions.foreground': (0.001, 1),
  'regions.foreground_overlap': (0.01, 1),
  'test.watched_images': (1, 2**62),
  'test.per_class': (1, 10**5),
  'test.mean_per_image': (0, 10**5),
  'test.suppress_overlap': (0.01, 1),
}


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens and checks the evaluation of a config; see `make_plan`."""
  return runs.open_plan(make_plan, config)


def make_plan(config: ml_collections.ConfigDict) -> runs.Plan:
  """Opens data and weights, and builds the run and that of the random baseline.

  Raises:
    CfnError: with the fault, its place and the remedy.
  """
  fields.check_numbers(config, LIMITS)
  opened.read_rule(config)
  magic_init.check(config.magic_init)
  check_images(config)
  started = trunks.open_compared(config)
  if not config.magic_init:  # what does not fit is said before boxes and images are read
    moves = roles.Moves(np.zeros((2, 4)), np.ones((2, 4)))
    for name, each in started.items():
      detectors.make_detector(config, (name,), moves, each, drawn=name == trunks.BASELINE).check()
  data = opened.open_data(config)
  moves = opened.measure_moves(config, data)
  labels = {name: each.label() for name, each in started.items()}
  return runs.Plan(
    runs=[make_run(config, data, moves, each, name) for name, each in started.items()],
    origins={labels[name]: each.origin for name, each in started.items()},
    show=lambda figures: precision_table.show(
      figures,
      labels,
      counted='objects',
      training=f'images of {tell(config.images.scales_px)} px in training, of '
      f'{tell(config.test.scales_px)} px in the test',
      paper=PAPER,
      paper_kind='11-point',
    ),
    charts=lambda figures: {
      CHART: {
        label: figures[name]['per_class']['average_precision_11_point']
        for name, label in labels.items()
      }
    },
    published=PAPER,
  )


def check_images(config: ml_collections.ConfigDict) -> None:
  """Raises CfnError for impossible scales of images."""
  longest = config.images.longest_px
  for field, scales in (
    ('images.scales_px', config.images.scales_px),
    ('test.scales_px', config.test.scales_px),
  ):
    least = 8 * config.model.stride  # conv5 then has a cell or more for every shape
    if not scales or min(scales) < least or max(scales) > longest or len(scales) > 16:
      raise CfnError(
        f'{field} = {tuple(scales)}: one to 16 short sides from {least} px (8 times model.stride) '
        f'to images.longest_px = {longest}'
      )


def tell(scales: tuple[int, ...]) -> str:
  """Returns sides as text: '480, 576'."""
  return ', '.join(map(str, scales))


def make_run(
  config: ml_collections.ConfigDict,
  data: opened.Opened,
  moves: roles.Moves,
  trunk: trunks.Trunk,
  name: str,
) -> runs.Run:
  """Builds the run of one trunk."""
  made = detectors.make_detector(
    config, data.class_names, moves, trunk, drawn=name == trunks.BASELINE
  )
  if config.magic_init:
    made = magic_init.add(made, config.magic_init, data.training.reader, seed=config.seed)
  return passes.make_run(config, made, data, name, label=trunk.label())
