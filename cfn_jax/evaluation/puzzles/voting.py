"""A vote: one network, asked about a puzzle in every way that its permutation set allows.

Not in the paper. A symmetry permutes the places of a puzzle so that it stays in the set
(symmetries.py). The mean of the answers, each read back to the original puzzle, is equivariant for
every network: permute the puzzle, and the vote is permuted. The trunk sees single tiles, so all
members share one pass of it, and each costs one more head.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from cfn_jax.jigsaw.permutation_sets import symmetries


class Vote(NamedTuple):
  """The answers of the members to puzzles `[...]`.

  Attributes:
    vote: log of the mean of the members' probabilities `[..., K]`.
    mean: mean of the logs of the members' probabilities `[..., K]`.
    distance: mean over the members of KL(member || vote), in nats, `[...]`: 0 for an equivariant
      network.
  """

  vote: jax.Array
  mean: jax.Array
  distance: jax.Array


def hold(
  head: Callable[[jax.Array], jax.Array], features: jax.Array, found: symmetries.Symmetries
) -> Vote:
  """Returns the vote of the members, computed one by one: memory does not grow with their number.

  Args:
    head: features `[..., T, D]` of puzzles, by place, to logits `[..., K]`. Outputs after the N-th
      have no permutation and stay in place.
    features: features of the original puzzles.
  """
  outputs = jax.eval_shape(head, features)
  spare = jnp.arange(len(found.rows), outputs.shape[-1])
  rows = jnp.concatenate(
    [jnp.asarray(found.rows.T), jnp.broadcast_to(spare, (len(found), len(spare)))], axis=1
  )  # [M, K]

  def ask(totals: Vote, member: tuple[jax.Array, jax.Array]) -> tuple[Vote, None]:
    places, back = member
    said = jax.nn.log_softmax(head(features[..., places, :]))[..., back]  # [..., K]
    certainty = jnp.sum(jnp.exp(said) * said, axis=-1)  # negative entropy
    return Vote(
      jnp.logaddexp(totals.vote, said), totals.mean + said, totals.distance + certainty
    ), None

  empty = jnp.zeros(outputs.shape, outputs.dtype)
  first = Vote(empty - jnp.inf, empty, empty[..., 0])
  totals, _ = jax.lax.scan(ask, first, (jnp.asarray(found.moves, jnp.int32), rows))
  vote = totals.vote - jnp.log(len(found))
  # The members' mean is the vote, so the mean KL is the vote's entropy minus their mean entropy.
  certainty = jnp.sum(jnp.exp(vote) * vote, axis=-1)
  distance = totals.distance / len(found) - certainty
  return Vote(vote, totals.mean / len(found), jnp.maximum(distance, 0))
