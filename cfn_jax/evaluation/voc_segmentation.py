"""VOC2012 segmentation: the class of each pixel, of 20 or the background.

Paper, section 4.1, table 1, by the framework of Shelhamer et al. (fcn.berkeleyvision.org): conv1 ..
conv5 in FCN-AlexNet-32s, images at their own size, and the mean over the classes of intersection
over union.
"""

from collections.abc import Mapping

import ml_collections

from cfn_jax import fields
from cfn_jax.data import faults, feed, mask_splits, pipeline, streams, voc_masks
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import runs, scores, tables, trunks
from cfn_jax.evaluation.finetuning import magic_init
from cfn_jax.evaluation.segmentation import passes
from cfn_jax.evaluation.segmentation import segmenter as segmenters
from cfn_jax.models import alexnet
from cfn_jax.training import task as tasks

# Mean IoU in per cent, on the images of VOC2011's list that SBD does not train on.
PAPER = {'CFN': 37.6, 'Pathak et al.': 29.7, 'ImageNet labels': 48.0}
CHART = 'iou.png'
LIMITS = {
  **feed.LIMITS,
  **alexnet.LIMITS,
  'model.fc6_features': (1, 2**20),
  'locked_convolutions': (0, 5),
  'images.canvases': (1, 6),
  'test.watched_images': (1, 2**62),
}
# Means in the table, by the name of the figure.
MEANS = {
  'mean IoU': 'val_mean_iou',
  'mean accuracy': 'val_mean_accuracy',
  'pixel accuracy': 'val_pixel_accuracy',
  'frequency-weighted IoU': 'val_frequency_weighted_iou',
}
ALL_BACKGROUND = 'all background'


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens and checks the evaluation of a config; see `make_plan`."""
  return runs.open_plan(make_plan, config)


def make_plan(config: ml_collections.ConfigDict) -> runs.Plan:
  """Opens data and weights, and builds the run and that of the random baseline.

  Raises:
    CfnError: with the fault, its place and the remedy.
  """
  fields.check_numbers(config, LIMITS)
  magic_init.check(config.magic_init)
  started = trunks.open_compared(config)
  if not config.magic_init:  # what does not fit is said before masks and images are read
    for name, each in started.items():
      segmenters.make_segmenter(config, (name,), each, drawn=name == trunks.BASELINE).check()
  data = open_data(config)
  labels = {name: each.label() for name, each in started.items()}
  return runs.Plan(
    runs=[make_run(config, data, each, name) for name, each in started.items()],
    origins={labels[name]: each.origin for name, each in started.items()},
    show=lambda figures: show(figures, labels),
    charts=lambda figures: {
      CHART: {label: figures[name]['per_class']['iou'] for name, label in labels.items()}
    },
    published=PAPER,
  )


def open_data(config: ml_collections.ConfigDict) -> passes.Opened:
  """Opens images and masks.

  Raises:
    CfnError: with the fault, its place and the remedy.
  """
  d = config.data
  chosen = mask_splits.Fields(
    root=d.root,
    split=d.split,
    val_root=d.val_root,
    val_split=d.val_split,
    val_fraction=d.val_fraction,
    sbd_root=d.sbd_root,
    shared_images=d.shared_images,
    more_masks=d.more_masks,
  )
  training, testing, class_names = voc_masks.open_masks(
    chosen, allow_empty_classes=d.allow_empty_classes
  )
  tested = streams.choose_records(testing.source, config.data.val_max_images)
  if not any((testing.mask(index) != voc_masks.VOID).any() for index in tested):
    raise CfnError(
      f'{testing.source.description}: no pixel of the {len(tested):,} tested masks is known: all '
      f'are void ({voc_masks.VOID})'
    )
  for each in (training, testing):
    faults.check(pipeline.Reader(each.source, seed=config.seed))
  return passes.Opened(training, testing, class_names)


def make_run(
  config: ml_collections.ConfigDict, data: passes.Opened, trunk: trunks.Trunk, name: str
) -> runs.Run:
  """Builds the run of one trunk."""
  drawn = name == trunks.BASELINE
  made = segmenters.make_segmenter(config, data.class_names, trunk, drawn=drawn)
  if config.magic_init:
    reader = pipeline.Reader(data.training.source, seed=config.seed)
    made = magic_init.add(made, config.magic_init, reader, seed=config.seed)
  return passes.make_run(config, made, data, name, label=trunk.label())


def show(figures: Mapping[str, runs.Figures], labels: Mapping[str, str]) -> None:
  """Prints each class's IoU, the means of each run and of all-background, and the paper's."""
  first = figures[next(iter(figures))]
  classes = [
    (name, [_per_cent(figures[run]['per_class']['iou'][name]) for run in labels])
    for name in first['per_class']['iou']
  ]
  means = []
  for label, name in MEANS.items():
    row = [
      tables.write_interval(figures[run], name)
      if f'{name}_low' in figures[run]
      else _per_cent(figures[run][name])
      for run in labels
    ]
    means.append((label, [*row, _per_cent(first['all_background'][name])]))
  published = [(f'paper, mean IoU, VOC2011: {name}', [value]) for name, value in PAPER.items()]
  absent = first['classes_without_figure']
  told = f'in no test image, not in the mean: {", ".join(absent)}' if absent else ''
  tables.show(
    f'Intersection over union in %, {first["val_count"]:,} test images (±: 95 % interval over '
    'them, one training run); '
    + '; '.join(f'{run}: {label}' for run, label in labels.items() if run != label),
    [*labels, ALL_BACKGROUND],
    [classes, means, published],
    caption='; '.join(filter(None, [scores.tell_difference(figures, ['val_mean_iou']), told])),
  )


def _per_cent(value: float | None) -> float | None:
  return None if value is None else 100 * value
