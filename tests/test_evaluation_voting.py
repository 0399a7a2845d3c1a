"""Laws of the vote over the symmetries of a permutation set."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from cfn_jax.evaluation.puzzles import voting
from cfn_jax.jigsaw.permutation_sets import permutations, symmetries
from cfn_jax.models import alexnet, cfn, figures, trunk

D = 4


@functools.cache
def make_code(num):
  found = permutations.make_permutations(num, method='code', seed=1)
  return found, symmetries.find_symmetries(found)


def make_head(outputs, seed=0):
  """Returns fc7 and fc8 of a CFN with random parameters, on features of nine tiles."""
  model = cfn.Cfn(
    outputs, trunk=trunk.Trunk(stride=2, width=1 / 6), fc6_features=D, fc7_features=16, dropout=0.0
  )
  shapes = alexnet.parameter_shapes(model, (1, 9, 32, 32, 3))
  params = alexnet.draw_parameters(shapes, figures.Initial('he', 'caffenet'), seed=seed)
  params['fc8']['kernel'] *= 100  # confident
  return jax.jit(lambda x: model.apply({'params': params}, x, method='head'))


def hold(head, features, found):
  return jax.jit(lambda x: voting.hold(head, x, found))(features)


def draw_features(*shape, seed=0):
  return jnp.asarray(np.random.default_rng(seed).random((*shape, 9, D), np.float32))


@pytest.mark.parametrize('num', [9, 72, 504, 1512])
def test_a_whole_code_has_as_many_symmetries_as_permutations(num):
  rows, found = make_code(num)
  assert len(found) == num and found.moves[0].tolist() == list(range(9))
  every = {tuple(row): number for number, row in enumerate(rows.tolist())}
  rng = np.random.default_rng(0)
  for j, m in zip(rng.integers(num, size=500), rng.integers(num, size=500)):
    assert every[tuple(rows[j][found.moves[m]])] == found.rows[j, m]
  if num < 1000:  # a coset of a group, not a group: its own rows are none of them
    assert not {tuple(row) for row in found.moves.tolist()} & set(every)


def test_cut_codes_and_greedy_sets_have_the_identity_alone():
  sets = [permutations.make_permutations(num, method='code') for num in (71, 73, 100, 503, 1000)]
  sets.append(permutations.make_permutations(100))
  for rows in sets:
    found = symmetries.find_symmetries(rows)
    assert found.moves.tolist() == [list(range(9))]
    assert found.rows[:, 0].tolist() == list(range(len(rows)))


def test_symmetries_are_those_of_a_search_through_all_moves():
  rng = np.random.default_rng(3)
  all_moves = np.array(list(itertools.permutations(range(4))), np.uint8)
  for count in (2, 3, 4, 8, 12, 24):
    rows = rng.permutation(all_moves)[:count]
    if count == 8:
      rows = np.concatenate([rows[:4], rows[:4][:, [1, 0, 3, 2]]])
      rows = np.unique(rows, axis=0)
    known = {tuple(row) for row in rows.tolist()}
    wanted = [k for k in all_moves if {tuple(row) for row in rows[:, k].tolist()} == known]
    assert symmetries.find_symmetries(rows).moves.tolist() == np.array(wanted).tolist()


def test_a_network_that_is_equivariant_is_its_own_vote():
  rows, found = make_code(72)
  rng = np.random.default_rng(0)
  weights, features = rng.normal(size=(D, 9)), rng.normal(size=(5, 9, D))

  def head(x):  # logit_j = sum over i of phi(x_i, s_j[i])
    return (x @ weights)[..., np.arange(9), rows].sum(-1)

  with jax.enable_x64(True):
    single = np.asarray(jax.nn.log_softmax(head(jnp.asarray(features))))
    voted = hold(head, jnp.asarray(features), found)
  assert single.std() > 1
  np.testing.assert_allclose(voted.vote, single, rtol=0, atol=1e-12)
  np.testing.assert_allclose(voted.distance, 0, atol=1e-12)


def test_the_vote_of_any_network_moves_with_the_puzzle():
  _, found = make_code(72)
  head, features = make_head(72 + 3), draw_features(3)  # three outputs name no permutation
  find = jax.jit(lambda x: jnp.exp(voting.hold(head, x, found).vote))
  vote = np.asarray(find(features))
  np.testing.assert_allclose(vote.sum(-1), 1, rtol=1e-5)
  alone = np.asarray(jax.nn.softmax(head(features)))
  apart = 0.0
  for m in (1, 17, 71):
    moved = features[:, found.moves[m]]
    np.testing.assert_allclose(find(moved)[:, found.rows[:, m]], vote[:, :72], atol=1e-5)
    again = np.asarray(jax.nn.softmax(head(moved)))[:, found.rows[:, m]]
    apart = max(apart, np.abs(again - alone[:, :72]).max())
  assert apart > 0.01  # the network itself does not
  assert vote[:, 72:].min() > 0


def test_the_vote_and_its_distance_are_those_of_probabilities_computed_apart():
  rows, found = make_code(9)
  head, features = make_head(9, seed=4), draw_features(2, 3, seed=5)
  voted = hold(head, features, found)
  every = {tuple(row): number for number, row in enumerate(rows.tolist())}
  for index in np.ndindex(2, 3):
    members = []
    for move in found.moves:
      said = scipy.special.softmax(np.asarray(head(features[index][move]), np.float64))
      members.append([said[every[tuple(row[move])]] for row in rows])
    mean = np.mean(members, axis=0)
    np.testing.assert_allclose(np.exp(voted.vote[index]), mean, rtol=1e-4)
    np.testing.assert_allclose(voted.mean[index], np.log(members).mean(0), rtol=1e-4)
    distance = scipy.special.rel_entr(members, mean).sum(1).mean()
    assert distance > 0.01
    np.testing.assert_allclose(voted.distance[index], distance, rtol=1e-3)


def test_a_vote_knows_at_least_as_much_as_its_members():
  _, found = make_code(72)
  voted = hold(make_head(72, seed=2), draw_features(20, seed=6), found)
  more = np.asarray(voted.vote - voted.mean)  # in nats, whatever the right answer is
  assert more.min() >= -1e-5 and more.max() > 0.01
