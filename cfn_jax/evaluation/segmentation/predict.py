"""Applies a trained network to images without masks; see the command `predict`."""

import contextlib
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections
import numpy as np

from cfn_jax import terminal
from cfn_jax.data import canvases, feed, own_images, pipeline
from cfn_jax.evaluation.segmentation import mask_pngs, transform
from cfn_jax.evaluation.segmentation import segmenter as segmenters
from cfn_jax.pictures import segmentations as pictures

MASKS, PICTURES = 'masks', 'pictures'


def predict(
  folder: pathlib.Path,
  config: ml_collections.ConfigDict,
  meta: Mapping[str, Any],
  *,
  images: pathlib.Path,
  out: pathlib.Path,
) -> str:
  """Writes the class of each pixel as a palette PNG, and a picture, for each image of a folder.

  An image that cannot be decoded is named and skipped.

  Args:
    folder: the folder of a step of a run.
    config, meta: the values that are saved with it.

  Raises:
    CfnError: with the fault, its place and the remedy.
  """
  segmenter = segmenters.rebuild(folder, config, meta)
  source, stems, sizes, bad = own_images.open_images(images)
  reader = pipeline.Reader(source, seed=config.seed)
  frames = canvases.TestFrames(
    canvases.Sizes.as_they_are(sizes), config.eval_batch_size, config.images.canvases
  )
  shown = transform.ShowImages(frames)
  fed = feed.Feed(reader, shown, pipeline.Loading(), config.eval_batch_size)
  (out / PICTURES).mkdir(exist_ok=True)
  answer = jax.jit(segmenter.answer)
  params = jax.device_put(segmenter.given)
  with contextlib.closing(fed.evaluate()) as batches, terminal.make_bar(total=len(source)) as bar:
    for batch in batches:
      answers = np.asarray(answer(params, batch))
      for row in np.flatnonzero(batch['mask']):
        record = int(batch['record'][row])
        height, width = batch['extent'][row]
        mask = answers[row, :height, :width]
        mask_pngs.write_mask(out / MASKS, stems[record], mask)
        path = out / PICTURES / f'{stems[record]}.png'
        image = batch['image'][row, :height, :width]
        pictures.draw_image(path, image, mask, segmenter.class_names)
        bar.update()
  told = f'; {bad:,} could not be decoded' if bad else ''
  return f'{len(source):,} images, in {out}{told}'
