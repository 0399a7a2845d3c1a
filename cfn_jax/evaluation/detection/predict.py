"""Applies a trained detector to images without annotations; see the command `predict`.

The network comes from a checkpoint, the regions from a grid, a search over segments or a file.
"""

import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import ml_collections
import numpy as np

from cfn_jax import places, terminal
from cfn_jax.data import canvases, feed, folder, own_images, pipeline
from cfn_jax.data import prepare_proposals as preparing
from cfn_jax.data import proposals as proposal_lib
from cfn_jax.errors import CfnError
from cfn_jax.evaluation import runs
from cfn_jax.evaluation.detection import (
  average_precision,
  devkit_files,
  judge,
  suppression,
  transform,
)
from cfn_jax.evaluation.detection import detector as detectors
from cfn_jax.pictures import detections as pictures
from cfn_jax.training import devices
from cfn_jax.training import task as tasks

PICTURES = 'pictures'


def predict(
  step: pathlib.Path,
  config: ml_collections.ConfigDict,
  meta: Mapping[str, Any],
  *,
  images: pathlib.Path,
  out: pathlib.Path,
  proposals: str = '',
  score: float = 0.5,
) -> str:
  """Finds objects in the images of a folder, writes boxes and pictures; returns a summary line.

  An image that cannot be decoded is named and skipped.

  Args:
    step: the folder of a step of a run.
    config, meta: the values that are saved with it.
    proposals: 'grid', 'segments' or a file; '': the grid of the run.
    score: boxes with lower scores are left out.

  Raises:
    CfnError: with the fault, its place and the remedy.
  """
  if not 0 <= score <= 1:
    raise CfnError(f'--score={score}: 0 to 1')
  detector = detectors.rebuild(step, config, meta)
  names = detector.class_names
  source, stems, sizes, bad = own_images.open_images(images)
  found_at = _open_proposals(config, proposals, source, stems, sizes)
  reader = pipeline.Reader(source, seed=config.seed)
  frames = canvases.TestFrames(
    canvases.Sizes.of(sizes, tuple(config.test.scales_px), config.images.longest_px),
    config.eval_batch_size,
    config.images.canvases,
  )
  made = transform.TestRegions(frames, found_at, found_at.most)
  fed = feed.Feed(reader, made, pipeline.Loading(), config.eval_batch_size)

  def measure(params: Any, batch: tasks.Batch) -> tasks.Totals:
    found = detector.detect(params, batch, config.test.per_class)
    return {'found': found, 'record': batch['record']}

  mesh = devices.make_mesh(1)
  evaluation = tasks.RowEvaluation(fed.evaluate, measure, dict)
  placed = devices.replicate(detector.given, mesh)
  rows = runs.score({'': evaluation}, placed, mesh, kept='nothing is written yet')
  kept = suppression.suppress_groups(rows['found'], config.test.suppress_overlap)
  kept &= rows['found'][..., 4] >= score
  detections = average_precision.gather_detections(rows['found'], kept)
  shown: dict[str, Any] = {'split': '', 'class_names': names}
  shown |= {'stems': [stems[each] for each in rows['record']]}
  devkit_files.write_devkit(out / judge.FOLDER, detections, **shown)
  devkit_files.write_json(out / 'detections.json', detections, **shown)
  (out / PICTURES).mkdir(exist_ok=True)
  for row, record in enumerate(terminal.make_bar(rows['record'], desc='pictures', unit='image')):
    image = reader.decode(int(record))[1]
    path = out / PICTURES / f'{stems[record]}.png'
    pictures.draw_image(path, image, *judge.gather_image(detections, row), names)
  count = sum(len(each.scores) for each in detections)
  told = f'; {bad:,} could not be decoded' if bad else ''
  return f'{count:,} objects in {len(source):,} images, in {out}{told}'


def _open_proposals(
  config: ml_collections.ConfigDict,
  where: str,
  source: folder.FileSource,
  stems: list[str],
  sizes: np.ndarray,
) -> proposal_lib.Proposals:
  """Opens the regions of the images, or makes them.

  Raises:
    CfnError: none are named, and those of the run came from a file.
  """
  if not where and config.proposals.train != proposal_lib.GRID:
    raise CfnError(
      f"the run had its proposals from {config.proposals.train}: give --proposals='segments' "
      "(near to a selective search), 'grid', or a file for these images"
    )
  where = where or proposal_lib.GRID
  given: dict[str, Any] = {'field': '--proposals', 'listed': stems, 'names': stems}
  given |= {'sizes': [(height, width) for height, width in sizes.tolist()]}
  if where != 'segments':
    if where != proposal_lib.GRID:
      where = str(places.local(where, '--proposals'))
    return proposal_lib.open_proposals(where, **given, keep=config.proposals.keep)
  with tempfile.TemporaryDirectory() as kept:
    path = str(pathlib.Path(kept) / 'proposals.npz')
    preparing.prepare_proposals(method=where, out=path, opened=source)
    return proposal_lib.open_proposals(path, **given, keep=config.proposals.keep)
