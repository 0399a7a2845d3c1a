"""Turns a visit to an image into a view and its mask, in loader processes. No JAX."""

import dataclasses

from cfn_jax.data import pipeline, views
from cfn_jax.inpainting import masks


@dataclasses.dataclass(frozen=True)
class MakeHole:
  """The transform: a visit becomes `image` uint8 `[px, px, 3]` and `hidden` bool `[px, px]`."""

  views: views.MakeViews
  mask: masks.Mask

  def __call__(self, visit: pipeline.Visit) -> pipeline.Batch:
    return {'image': self.views(visit)['image'], 'hidden': self.mask.draw(visit.rng)}
