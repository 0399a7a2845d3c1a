"""Linear probes: a linear classifier on the frozen features of each layer.

Sources: the ImageNet benchmarks of Zhang et al. and Goyal et al. They train one classifier on each
of conv1 .. conv5, pooled to about 9,000 values and normalised without learned scale. They differ in
stride, views and pooling (`linear_probe.py:zhang`, `:goyal`). One run of the training loop probes
all layers (linear_task.py), fed from a cache of features (features.py). VOC2007's SVMs are in
svm.py.
"""

import functools
import pathlib
from typing import Any

import ml_collections

from cfn_jax.errors import CfnError
from cfn_jax.evaluation import runs
from cfn_jax.evaluation.frozen import linear_task, probing, svm
from cfn_jax.training import settings
from cfn_jax.training import task as tasks

CLASSIFIERS = ('logistic', 'svm')


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens data and weights.

  Raises:
    CfnError: with the fault, its place and the remedy.
  """
  if config.classifier not in CLASSIFIERS:
    allowed = ', '.join(CLASSIFIERS)
    raise CfnError(f"classifier = '{config.classifier}' is unknown: one of {allowed}")
  if config.classifier == 'svm':
    svm.check(config)
  linear_task.check_standard(config.probe.standardize)
  settings.check(config)
  view = config.views
  probe = probing.open_probe(config, crop=view.crop, mirror=view.mirror, draws=view.draws)
  judge = functools.partial(_judge, config, probe)
  what = 'SVMs' if config.classifier == 'svm' else 'linear classifiers'
  return functools.partial(probing.execute, probe, config, judge, f'{what} on frozen features')


def _judge(
  config: ml_collections.ConfigDict,
  probe: probing.Probe,
  name: str,
  extracted: probing.Extracted,
  folder: pathlib.Path,
) -> dict[str, Any]:
  names = probe.data.class_names
  if config.classifier == 'svm':
    return svm.run(config, extracted, names, folder)
  listed = ', '.join(extracted.training.layers)
  task = linear_task.make_task(
    config,
    extracted,
    names=names,
    multilabel=config.multilabel,
    summary=[
      ('run', f'{probe.started[name].label()}: a linear classifier on {listed}'),
      ('training', probe.data.training.reader.source.description),
      ('test', probe.data.testing.reader.source.description),
    ],
  )
  final = linear_task.make_evaluation(
    extracted.testing, names, multilabel=config.multilabel, config=config, report=probing.detail
  )
  settings = {'test features': extracted.testing.cache.content()}
  return runs.execute_run(runs.Run(name, task, {'': final}, settings=settings), config, folder)
