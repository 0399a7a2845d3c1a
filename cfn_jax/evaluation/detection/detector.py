"""Fast R-CNN on labelled images: its loss and its detections.

Source: fast-rcnn, `models/CaffeNet/train.prototxt` and `lib/fast_rcnn/test.py`. Between the network
(models/fast_rcnn.py) and the run that the loop trains (passes.py).
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from cfn_jax.data import boxes as box_lib
from cfn_jax.evaluation import trunks
from cfn_jax.evaluation.detection import roles
from cfn_jax.evaluation.finetuning import start
from cfn_jax.models import fast_rcnn
from cfn_jax.models import trunk as trunk_lib
from cfn_jax.training import task as tasks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Detector(start.Start):
  """`FastRcnn` and its start.

  Attributes:
    moves: the normalisation of the moves of boxes.
  """

  moves: roles.Moves

  def shapes(self) -> Any:
    return fast_rcnn.shapes(self.network)

  def see(
    self, params: Any, batch: tasks.Batch, key: jax.Array | None = None
  ) -> tuple[jax.Array, jax.Array]:
    """Returns scores `[B, R, K + 1]` and moves `[B, R, K + 1, 4]`; with a key, dropout is on."""
    rngs = {} if key is None else {'dropout': key}
    images = self.input_record.prepare(batch['image'])
    found: tuple[jax.Array, jax.Array] = self.network.apply(
      {'params': params},
      images,
      batch['extent'],
      batch['regions'],
      train=key is not None,
      rngs=rngs,
    )
    return found

  def logits(self, params: Any, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
    """Returns the scores `[B, K]` of whole images uint8 `[B, px, px, 3]`, as one region each."""
    count, side = images.shape[:2]
    batch = {
      'image': images[:, None],
      'extent': jnp.full((count, 1, 2), side, jnp.int32),
      'regions': jnp.tile(jnp.array([0.0, 0, 0, side - 1, side - 1]), (count, 1, 1)),
    }
    return self.see(params, batch, key)[0][:, 0, 1:]

  def loss(self, params: Any, batch: tasks.Batch, key: jax.Array) -> tuple[jax.Array, tasks.Totals]:
    """Returns the loss `[]` of a batch, see `TrainRegions`, and the sums for the log.

    It is the mean over the drawn regions of the softmax cross-entropy, plus the smooth L1 distance
    of the own class's move for regions that show an object.
    """
    scores, moves = self.see(params, batch, key)
    label, drawn = batch['label'], batch['drawn']
    classes = optax.softmax_cross_entropy_with_integer_labels(scores, label)
    own = jnp.take_along_axis(moves, label[..., None, None], axis=2)[:, :, 0]  # [B, R, 4]
    distance = jnp.sum(optax.huber_loss(own, batch['move']), axis=-1)
    count = jnp.sum(drawn)
    class_loss, box_loss = jnp.sum(classes * drawn), jnp.sum(distance * drawn * (label > 0))
    right = jnp.sum((jnp.argmax(scores, axis=-1) == label) * drawn)
    sums = {'class_loss': class_loss, 'box_loss': box_loss, 'correct': right, 'count': count}
    return (class_loss + box_loss) / jnp.maximum(count, 1), sums

  def detect(self, params: Any, batch: tasks.Batch, count: int) -> jax.Array:
    """Returns the best boxes of each class of a batch, see `TestRegions`, and their scores.

    Returns:
      float32 `[B, K, count, 5]`, at most R of them, by falling score: boxes clipped to the image;
        empty places have a score of -inf.
    """
    scores, moves = self.see(params, batch)
    shares = jax.nn.softmax(scores, axis=-1)
    shares = jnp.where(batch['drawn'][..., None] > 0, shares, -jnp.inf)[..., 1:]  # [B, R, K]
    moves = moves * self.moves.stds + self.moves.means
    boxes = box_lib.decode(batch['box'][:, :, None], moves, jnp)[:, :, 1:]  # [B, R, K, 4]
    height, width = batch['sides'][:, 0], batch['sides'][:, 1]
    boxes = box_lib.clip(boxes, height[:, None, None], width[:, None, None], jnp)
    best, place = jax.lax.top_k(shares.swapaxes(1, 2), min(count, shares.shape[1]))
    chosen = jnp.take_along_axis(boxes.swapaxes(1, 2), place[..., None], axis=2)
    return jnp.concatenate([chosen, best[..., None]], axis=-1)

  def describe(self) -> dict[str, Any]:
    moves = {name: value.tolist() for name, value in dataclasses.asdict(self.moves).items()}
    return super().describe() | {'moves': moves}


def make_detector(
  config: ml_collections.ConfigDict,
  class_names: tuple[str, ...],
  moves: roles.Moves,
  trunk: trunks.Trunk,
  *,
  drawn: bool,
) -> Detector:
  """Builds the network; see `start.read_config`."""

  def make(alex: trunk_lib.Trunk, **fields: Any) -> fast_rcnn.FastRcnn:
    padded = alex.clone(padding=fast_rcnn.PADDING_PX, pool_padding=fast_rcnn.POOL_PADDING)
    return fast_rcnn.FastRcnn(len(class_names), padded, **fields)

  stride, bins = config.model.stride, fast_rcnn.BINS
  read = start.read_config(config, trunk, make, stride=stride, fc6_px=bins, drawn=drawn)
  view_px = min(start.VIEW_PX, *config.images.scales_px)
  return Detector(**read, view_px=view_px, class_names=class_names, moves=moves)


def rebuild(
  folder: pathlib.Path, config: ml_collections.ConfigDict, meta: Mapping[str, Any]
) -> Detector:
  """Builds the network of a checkpoint, see `start.give_all`.

  Args:
    config, meta: the values that are saved with the step.
  """
  found = meta['network']['moves']
  moves = roles.Moves(np.array(found['means'], np.float32), np.array(found['stds'], np.float32))
  trunk = trunks.load_trunk(str(folder), step='', collection='params')
  names = tuple(meta['class_names'])
  return start.give_all(make_detector(config, names, moves, trunk, drawn=False), folder)
