"""Caffe's SGD against values worked by hand, the other solvers against optax itself."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cfn_jax.errors import CfnError
from cfn_jax.training import digests, optimizer

SOLVER = {'momentum': 0.5, 'weight_decay': 0.5, 'bias_rate': 2.0, 'bias_decay': 0.0}
GRADIENTS = (1.0, 2.0, -1.0)


def drop_after_two_steps():
  """0.1, 0.1, 0.01, 0.01, ..."""
  return optimizer.make_schedule(
    'step', learning_rate=0.1, num_steps=4, decay_steps=2, decay_factor=0.1, warmup_steps=0
  )


def parameters():
  return {
    'conv1': {'kernel': np.array([2.0], np.float32), 'bias': np.array([1.0], np.float32)},
    'fc6': {'kernel': np.array([-0.3, 0.0], np.float32), 'bias': np.array([0.7], np.float32)},
  }


def descend(params, *, gradients=GRADIENTS, locked=(), solver='caffe', **settings):
  """Takes compiled steps with the same gradient for every parameter; returns all parameters met."""
  labels = optimizer.label_parameters(params, locked=locked)
  solver = optimizer.make_solver(solver, labels, **(SOLVER | settings))
  schedule = drop_after_two_steps()
  state = solver.init(params)
  update = jax.jit(solver.update)
  met = [params]
  for step, gradient in enumerate(gradients):
    tree = jax.tree.map(lambda w, g=gradient: jnp.full_like(w, g), params)
    updates, state = update(tree, state, params, rate=schedule(step))
    params = optax.apply_updates(params, updates)
    met.append(params)
  return met


def test_three_steps_in_caffes_order_equal_values_worked_by_hand():
  # Weight: g += 0.5 w; v = 0.5 v + rate g; w -= v.
  #   rate 0.1:   g =  1 + 0.5 * 2    =  2      v = 0               + 0.1  *  2     = 0.2
  #               w = 2 - 0.2         = 1.8
  #   rate 0.1:   g =  2 + 0.5 * 1.8  =  2.9    v = 0.5 * 0.2       + 0.1  *  2.9   = 0.39
  #               w = 1.8 - 0.39      = 1.41
  #   rate 0.01:  g = -1 + 0.5 * 1.41 = -0.295  v = 0.5 * 0.39      + 0.01 * -0.295 = 0.19205
  #               w = 1.41 - 0.19205  = 1.21795
  # Bias: twice the rate, no decay.
  #   rate 0.2:   v = 0         + 0.2  *  1 = 0.2    b = 1   - 0.2  = 0.8
  #   rate 0.2:   v = 0.5 * 0.2 + 0.2  *  2 = 0.5    b = 0.8 - 0.5  = 0.3
  #   rate 0.02:  v = 0.5 * 0.5 + 0.02 * -1 = 0.23   b = 0.3 - 0.23 = 0.07
  met = [params['conv1'] for params in descend(parameters())]
  assert np.allclose([p['kernel'][0] for p in met], [2, 1.8, 1.41, 1.21795], rtol=1e-6)
  assert np.allclose([p['bias'][0] for p in met], [1, 0.8, 0.3, 0.07], rtol=2e-6)


def test_three_steps_in_the_optax_order_equal_values_worked_by_hand():
  # Weight: v = 0.5 v + g; w -= rate v.
  #   v = 2                            w = 2    - 0.1  * 2     = 1.8
  #   v = 0.5 * 2   + 2.9   = 3.9      w = 1.8  - 0.1  * 3.9   = 1.41
  #   v = 0.5 * 3.9 - 0.295 = 1.655    w = 1.41 - 0.01 * 1.655 = 1.39345
  # Bias: v = 1, 2.5, 0.25;  b = 1 - 0.2 = 0.8, 0.8 - 0.5 = 0.3, 0.3 - 0.02 * 0.25 = 0.295
  met = [params['conv1'] for params in descend(parameters(), solver='optax')]
  assert np.allclose([p['kernel'][0] for p in met], [2, 1.8, 1.41, 1.39345], rtol=1e-6)
  assert np.allclose([p['bias'][0] for p in met], [1, 0.8, 0.3, 0.295], rtol=2e-6)


def test_seven_steps_equal_caffes_rule_in_numpy_bit_for_bit():
  rng = np.random.default_rng(0)
  params = jax.tree.map(lambda w: rng.standard_normal((3, 4)).astype(np.float32), parameters())
  labels = optimizer.label_parameters(params, locked=('fc6',))
  fields = {'momentum': 0.9, 'weight_decay': 5e-4, 'bias_rate': 2.0, 'bias_decay': 0.0}
  solver = optimizer.make_solver('caffe', labels, **fields)
  state, ours, schedule = solver.init(params), params, drop_after_two_steps()
  theirs = {name: params['conv1'][name].copy() for name in ('kernel', 'bias')}
  velocity = {name: np.zeros((3, 4), np.float32) for name in theirs}
  for step in range(7):
    gradients = jax.tree.map(lambda w: rng.standard_normal(w.shape).astype(np.float32), params)
    rate = np.float32(schedule(step))
    # Not compiled: XLA may fuse a product and a sum, which rounds once instead of twice.
    updates, state = solver.update(gradients, state, ours, rate=rate)
    ours = optax.apply_updates(ours, updates)
    for name, times, decay in (('kernel', 1, np.float32(5e-4)), ('bias', 2, np.float32(0))):
      g = gradients['conv1'][name] + decay * theirs[name]
      velocity[name] = np.float32(0.9) * velocity[name] + rate * np.float32(times) * g
      theirs[name] = theirs[name] - velocity[name]
  for name in theirs:
    np.testing.assert_array_equal(ours['conv1'][name], theirs[name])
  assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), ours['fc6'], params['fc6']))


def test_orders_differ_only_after_a_drop_of_the_rate():
  caffe, outside = descend(parameters()), descend(parameters(), solver='optax')
  for step, (one, other) in enumerate(zip(caffe, outside)):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other)):
      assert np.allclose(a, b, rtol=1e-6) == (step < 3)


def test_bias_decay_multiplies_the_weight_decay():
  # v = 0.1 * 2 * (1 + 0.5 * 0.5 * 1) = 0.25
  met = descend(parameters(), gradients=(1.0,), bias_decay=0.5)
  assert np.allclose(met[1]['conv1']['bias'], 0.75)
  without = descend(parameters(), gradients=(0.0,))
  assert without[1]['conv1']['bias'] == 1 and without[1]['conv1']['kernel'] < 2


@pytest.mark.parametrize('solver', optimizer.SOLVERS)
def test_locked_parameters_stay_as_they_are_bit_for_bit(solver):
  first, *_, last = descend(parameters(), locked=('fc6',), solver=solver)
  for name in ('kernel', 'bias'):
    assert np.asarray(last['fc6'][name]).tobytes() == first['fc6'][name].tobytes()
    assert (last['conv1'][name] != first['conv1'][name]).all()
  free = descend(parameters(), solver=solver)[-1]
  assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), free['conv1'], last['conv1']))


@pytest.mark.parametrize('solver', optimizer.SOLVERS)
def test_locked_parameters_take_no_memory_of_the_solver_whatever_their_gradient(solver):
  params = parameters()
  labels = optimizer.label_parameters(params, locked=('fc6',))
  solver = optimizer.make_solver(solver, labels, **SOLVER)
  gradients = {'conv1': params['conv1'], 'fc6': jax.tree.map(lambda w: w * np.nan, params['fc6'])}
  updates, state = solver.update(gradients, solver.init(params), params, rate=0.1)
  assert all((leaf == 0).all() for leaf in jax.tree.leaves(updates['fc6']))
  assert not any('fc6' in name for name in digests.name_leaves(state))


@pytest.mark.parametrize(
  ('name', 'theirs'),
  [
    (
      'optax',
      lambda schedule: optax.chain(
        optax.add_decayed_weights(SOLVER['weight_decay']),
        optax.sgd(schedule, momentum=SOLVER['momentum']),
      ),
    ),
    (
      'adamw',
      lambda schedule: optax.adamw(
        schedule, b1=SOLVER['momentum'], weight_decay=SOLVER['weight_decay']
      ),
    ),
  ],
)
def test_solvers_that_optax_has_equal_its_own(name, theirs):
  rng = np.random.default_rng(0)
  params = {'fc8': {'kernel': rng.standard_normal((4, 3)).astype(np.float32)}}
  schedule = drop_after_two_steps()
  ours = optimizer.make_solver(name, optimizer.label_parameters(params), **SOLVER)
  results = []
  for solver in (ours, theirs(schedule)):
    rng, w = np.random.default_rng(1), params
    state = solver.init(w)
    for step in range(5):
      gradient = {'fc8': {'kernel': rng.standard_normal((4, 3)).astype(np.float32)}}
      extra = {'rate': schedule(step)} if solver is ours else {}
      updates, state = solver.update(gradient, state, w, **extra)
      w = optax.apply_updates(w, updates)
    results.append(np.asarray(w['fc8']['kernel']))
  assert np.allclose(*results, rtol=1e-5, atol=1e-6)


def test_gradients_are_clipped_by_their_norm_over_all_parameters_before_anything_else():
  # Five elements of 3: the norm is 3 * sqrt(5). Clipped to 1, each is 1 / sqrt(5).
  met = descend(parameters(), gradients=(3.0,), clip_gradients=1.0, weight_decay=0.0)
  moved = 0.1 / 5**0.5
  assert np.allclose(met[0]['conv1']['kernel'] - met[1]['conv1']['kernel'], moved, rtol=1e-5)
  assert np.allclose(met[0]['fc6']['bias'] - met[1]['fc6']['bias'], 2 * moved, rtol=1e-5)
  few = descend(parameters(), gradients=(3.0,), clip_gradients=7.0, weight_decay=0.0)
  assert np.allclose(met[0]['conv1']['bias'] - few[1]['conv1']['bias'], 0.6, rtol=1e-5)


def test_labels_tell_weights_biases_and_locked_layers_apart():
  assert optimizer.label_parameters(parameters(), locked=('fc6',)) == {
    'conv1': {'kernel': 'weight', 'bias': 'bias'},
    'fc6': {'kernel': 'locked', 'bias': 'locked'},
  }


# Schedules.


def rates(steps, **fields):
  fields = {
    'learning_rate': 0.01,
    'num_steps': 350_000,
    'decay_steps': 100_000,
    'decay_factor': 0.1,
    'warmup_steps': 0,
  } | fields
  schedule = optimizer.make_schedule(fields.pop('name'), **fields)
  return [float(schedule(jnp.int32(step))) for step in steps]


def test_step_schedule_drops_at_each_multiple_of_decay_steps():
  steps = (0, 1, 99_999, 100_000, 199_999, 200_000, 300_000, 349_999)
  expected = [1e-2, 1e-2, 1e-2, 1e-3, 1e-3, 1e-4, 1e-5, 1e-5]
  assert np.allclose(rates(steps, name='step'), expected, rtol=1e-5, atol=0)


@pytest.mark.slow
def test_a_compiled_schedule_drops_at_the_step_and_not_one_later():
  for decay_steps in (*range(1, 200, 6), 117_000, 100_000):
    schedule = optimizer.make_schedule(
      'step',
      learning_rate=1.0,
      num_steps=10,
      decay_steps=decay_steps,
      decay_factor=0.5,
      warmup_steps=0,
    )
    steps = np.array([k * decay_steps + i for k in (1, 2, 3, 9) for i in (-1, 0)], np.int32)
    found = jax.jit(jax.vmap(schedule))(steps)
    np.testing.assert_allclose(found, 0.5 ** (steps // decay_steps), rtol=1e-6)


def test_cosine_schedule_falls_to_zero_at_the_last_step():
  # 0.01 * (1 + cos(pi * step / 8)) / 2, and 0 ever after.
  expected = [0.01, 0.01 * (1 + 0.5**0.5) / 2, 0.005, 0.01 * (1 - 0.5**0.5) / 2, 0, 0]
  found = rates((0, 2, 4, 6, 8, 100), name='cosine', num_steps=8)
  assert np.allclose(found, expected, rtol=1e-5, atol=1e-9)


def test_warmup_rises_linearly_to_the_schedule():
  found = rates((0, 1, 3, 4, 100_000), name='step', warmup_steps=4)
  assert np.allclose(found, [0.0025, 0.005, 0.01, 0.01, 0.001], rtol=1e-5)
  # The cosine below: at step 1 of 8 half of 0.01 * (1 + cos(pi / 8)) / 2.
  found = rates((1, 4), name='cosine', num_steps=8, warmup_steps=4)
  assert np.allclose(found, [0.5 * 0.009619398, 0.005], rtol=1e-5)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'name': 'linear'}, "schedule = 'linear' is unknown: one of step, cosine"),
    ({'name': 'step', 'decay_steps': 0}, 'decay_steps = 0: at least 1'),
  ],
)
def test_unknown_schedules_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    rates((0,), **fields)


def test_unknown_solvers_are_refused():
  with pytest.raises(CfnError, match="solver = 'adam' is unknown: one of caffe, optax, adamw"):
    optimizer.make_solver('adam', {}, **SOLVER)
