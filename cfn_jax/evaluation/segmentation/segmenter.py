"""FCN on labelled pixels: its loss and its predictions.

Source: fcn.berkeleyvision.org, `voc-fcn-alexnet`. Between the network (models/fcn.py) and the run
that the loop trains (passes.py).
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import optax

from cfn_jax.data import voc_masks
from cfn_jax.evaluation import trunks
from cfn_jax.evaluation.finetuning import start
from cfn_jax.models import fcn
from cfn_jax.models import trunk as trunk_lib
from cfn_jax.training import optimizer
from cfn_jax.training import task as tasks

SCORE_STD = 0.01  # as for the last layers of other networks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segmenter(start.Start):
  """`Fcn` and its start."""

  def shapes(self) -> Any:
    return fcn.shapes(self.network)

  def see(self, params: Any, batch: tasks.Batch, key: jax.Array | None = None) -> jax.Array:
    """Returns the scores of each pixel, `[B, H, W, K]`; with a key, dropout is on."""
    rngs = {} if key is None else {'dropout': key}
    images = self.input_record.prepare(batch['image'])
    found: jax.Array = self.network.apply(
      {'params': params}, images, batch['extent'], train=key is not None, rngs=rngs
    )
    return found

  def logits(self, params: Any, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
    """Returns the mean scores `[B, K]` over the pixels of images uint8 `[B, px, px, 3]`.

    It uses random weights of score_fr: the initial zeros would pass no gradient back.
    """
    score = params['score_fr']
    kernel = SCORE_STD * jax.random.normal(jax.random.key(0), score['kernel'].shape)
    params = {**params, 'score_fr': {**score, 'kernel': kernel}}
    extent = jnp.full((len(images), 2), images.shape[1], jnp.int32)
    return jnp.mean(self.see(params, {'image': images, 'extent': extent}, key), axis=(1, 2))

  def loss(self, params: Any, batch: tasks.Batch, key: jax.Array) -> tuple[jax.Array, tasks.Totals]:
    """Returns the loss `[]` of a batch, and the sums for the log.

    It is the mean over images of the mean cross-entropy over the known pixels of each. An image
    without known pixels adds nothing to it, as in Caffe; the log leaves it out.
    """
    scores, label = self.see(params, batch, key), batch['label']
    known = label != voc_masks.VOID
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, jnp.where(known, label, 0))
    pixels = jnp.sum(known, axis=(1, 2))
    own = jnp.sum(jnp.where(known, losses, 0), axis=(1, 2)) / jnp.maximum(pixels, 1)  # [B]
    right = jnp.sum(known & (jnp.argmax(scores, axis=-1) == label), axis=(1, 2))
    shares = jnp.sum(right / jnp.maximum(pixels, 1))
    count = jnp.sum(pixels > 0, dtype=jnp.float32)
    return jnp.mean(own), {'loss': jnp.sum(own), 'correct': shares, 'count': count}

  def answer(self, params: Any, batch: tasks.Batch) -> jax.Array:
    """Returns the class of each pixel of the canvas, uint8 `[B, H, W]`."""
    return jnp.argmax(self.see(params, batch), axis=-1).astype(jnp.uint8)

  def count(self, answer: jax.Array, label: jax.Array) -> jax.Array:
    """Counts the known pixels by true and predicted class, int32 `[B, K, K]`."""
    classes = jnp.arange(len(self.class_names))
    truth, given = ((each[..., None] == classes).astype(jnp.float32) for each in (label, answer))
    # A float32 counts exactly up to 16 million: enough for a row, not for every image.
    rows = jnp.einsum('bhwt,bhwa->bhta', truth, given, precision=jax.lax.Precision.HIGHEST)
    return jnp.sum(rows.astype(jnp.int32), axis=1)

  def labels(self, params: Any) -> Any:
    """Labels parameters for the solver: only score_fr's biases count as biases."""
    found = optimizer.label_parameters(params, locked=self.locked)
    return {
      layer: {
        name: 'weight' if label == 'bias' and layer != 'score_fr' else label
        for name, label in each.items()
      }
      for layer, each in found.items()
    }


def make_segmenter(
  config: ml_collections.ConfigDict,
  class_names: tuple[str, ...],
  trunk: trunks.Trunk,
  *,
  drawn: bool,
) -> Segmenter:
  """Builds the network; see `start.read_config`."""

  def make(alex: trunk_lib.Trunk, **fields: Any) -> fcn.Fcn:
    return fcn.Fcn(len(class_names), alex.clone(padding=fcn.PADDING_PX), **fields)

  read = start.read_config(config, trunk, make, stride=fcn.STRIDE, fc6_px=fcn.FC6_PX, drawn=drawn)
  return Segmenter(**read, view_px=start.VIEW_PX, class_names=class_names)


def rebuild(
  folder: pathlib.Path, config: ml_collections.ConfigDict, meta: Mapping[str, Any]
) -> Segmenter:
  """Builds the network of a checkpoint, see `start.give_all`.

  Args:
    config, meta: the values that are saved with the step.
  """
  trunk = trunks.load_trunk(str(folder), step='', collection='params')
  return start.give_all(
    make_segmenter(config, tuple(meta['class_names']), trunk, drawn=False), folder
  )
