"""Linear probes: a linear classifier on the frozen features of each layer.

Sources: the ImageNet benchmarks of Zhang et al. and Goyal et al., which train one classifier on
each of conv1 .. conv5, pooled to about 9,000 values and normalised without learned scale; they
differ in stride, views and pooling (`linear_probe.py:zhang`, `:goyal`). All
layers are probed in one run of the training loop (linear_task.py), fed from a cache of features
(features.py); VOC2007's SVMs are in svm.py.
"""

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections

from cfn_jax.errors import CfnError
from cfn_jax.evaluation import linear_task, probing, runs, svm, tables
from cfn_jax.training import settings
from cfn_jax.training import task as tasks

CLASSIFIERS = ('logistic', 'svm')


def open_task(config: ml_collections.ConfigDict) -> tasks.Execute:
  """Opens data and weights.

  Raises:
    CfnError: what is wrong, where, and what would be right.
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
  layers = tuple(config.layers)

  def execute(workdir: pathlib.Path) -> dict[str, Any]:
    found = {name: _run(config, probe, name, workdir) for name in probe.extractors}
    runs.write_results(config, workdir, found, origins=probe.origins, published={})
    if not jax.process_index():
      show(found, probe, layers, config.classifier)
    runs.close(workdir, probing.make_charts(probe, found, layers))
    return found

  return execute


def _run(
  config: ml_collections.ConfigDict,
  probe: probing.Probe,
  name: str,
  workdir: pathlib.Path,
) -> dict[str, Any]:
  extracted = probing.extract(probe, name, config, workdir)
  names = probe.data.class_names
  if config.classifier == 'svm':
    return svm.run(config, extracted, names, workdir / name)
  task = linear_task.make_task(
    config,
    extracted,
    classes=len(names),
    several=probe.several,
    report=functools.partial(linear_task.report, names=names, several=probe.several),
    summary=[
      (
        'run',
        f'{probe.labels[name]}: a linear classifier on {", ".join(extracted.training.layers)}',
      ),
      ('training', probe.data.training.reader.source.description),
      ('test', probe.data.testing.reader.source.description),
    ],
  )
  final = linear_task.make_evaluation(
    extracted.testing,
    several=probe.several,
    batch_size=config.eval_batch_size,
    report=functools.partial(linear_task.detail, names=names, several=probe.several),
  )
  return runs.execute_run(runs.Run(name, task, final, {}), config, workdir / name)


def show(
  found: Mapping[str, Any], probe: probing.Probe, layers: tuple[str, ...], kind: str
) -> None:
  """Prints the table: rows of weights, a column for each layer."""
  rows = probing.make_rows(found, probe.labels, layers, several=probe.several)
  count = next(iter(found.values()))['val_count']
  what = 'SVMs' if kind == 'svm' else 'linear classifiers'
  tables.show(f'{what} on frozen features, in %, {count:,} test images', layers, [rows])
