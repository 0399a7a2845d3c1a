"""Caffe's SGD against values worked by hand, and the optax order against optax itself."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from cfn_jax.training import optimizer

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


def descend(params, *, gradients=GRADIENTS, locked=(), **settings):
  """Takes compiled steps with the same gradient for every parameter; gives all parameters met."""
  labels = optimizer.label_parameters(params, locked=locked)
  solver = optimizer.sgd(drop_after_two_steps(), labels, **(SOLVER | settings))
  state = solver.init(params)
  step = jax.jit(solver.update)
  met = [params]
  for gradient in gradients:
    tree = jax.tree.map(lambda w, g=gradient: jnp.full_like(w, g), params)
    updates, state = step(tree, state, params)
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
  met = [params['conv1'] for params in descend(parameters(), order='optax')]
  assert np.allclose([p['kernel'][0] for p in met], [2, 1.8, 1.41, 1.39345], rtol=1e-6)
  assert np.allclose([p['bias'][0] for p in met], [1, 0.8, 0.3, 0.295], rtol=2e-6)


def test_orders_differ_only_after_a_drop_of_the_rate():
  caffe, outside = descend(parameters()), descend(parameters(), order='optax')
  for step, (one, other) in enumerate(zip(caffe, outside)):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other)):
      assert np.allclose(a, b, rtol=1e-6) == (step < 3)


def test_bias_decay_multiplies_the_weight_decay():
  # v = 0.1 * 2 * (1 + 0.5 * 0.5 * 1) = 0.25
  met = descend(parameters(), gradients=(1.0,), bias_decay=0.5)
  assert np.allclose(met[1]['conv1']['bias'], 0.75)
  without = descend(parameters(), gradients=(0.0,))
  assert without[1]['conv1']['bias'] == 1 and without[1]['conv1']['kernel'] < 2


@pytest.mark.parametrize('order', optimizer.ORDERS)
def test_locked_parameters_stay_as_they_are_bit_for_bit(order):
  first, *_, last = descend(parameters(), locked=('fc6',), order=order)
  for name in ('kernel', 'bias'):
    assert np.asarray(last['fc6'][name]).tobytes() == first['fc6'][name].tobytes()
    assert (last['conv1'][name] != first['conv1'][name]).all()
  free = descend(parameters(), order=order)[-1]
  assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), free['conv1'], last['conv1']))


@pytest.mark.parametrize('order', optimizer.ORDERS)
def test_locked_parameters_gather_no_velocity_whatever_their_gradient(order):
  params = parameters()
  labels = optimizer.label_parameters(params, locked=('fc6',))
  solver = optimizer.sgd(drop_after_two_steps(), labels, **SOLVER, order=order)
  gradients = {'conv1': params['conv1'], 'fc6': jax.tree.map(lambda w: w * np.nan, params['fc6'])}
  updates, state = solver.update(gradients, solver.init(params), params)
  assert all((leaf == 0).all() for leaf in jax.tree.leaves((updates['fc6'], state.velocity['fc6'])))


def test_optax_order_equals_optax():
  rng = np.random.default_rng(0)
  params = {'fc8': {'kernel': rng.standard_normal((4, 3)).astype(np.float32)}}
  schedule = drop_after_two_steps()
  ours = optimizer.sgd(schedule, optimizer.label_parameters(params), **SOLVER, order='optax')
  theirs = optax.chain(
    optax.add_decayed_weights(SOLVER['weight_decay']),
    optax.sgd(schedule, momentum=SOLVER['momentum']),
  )
  results = []
  for solver in (ours, theirs):
    rng, w = np.random.default_rng(1), params
    state = solver.init(w)
    for _ in range(5):
      gradient = {'fc8': {'kernel': rng.standard_normal((4, 3)).astype(np.float32)}}
      updates, state = solver.update(gradient, state, w)
      w = optax.apply_updates(w, updates)
    results.append(np.asarray(w['fc8']['kernel']))
  assert np.allclose(*results, rtol=1e-5, atol=1e-6)


def test_state_counts_steps_and_starts_at_rest():
  params = parameters()
  solver = optimizer.sgd(drop_after_two_steps(), optimizer.label_parameters(params), **SOLVER)
  state = solver.init(params)
  assert state.count == 0 and state.count.dtype == np.int32
  assert all((leaf == 0).all() for leaf in jax.tree.leaves(state.velocity))
  assert jax.tree.structure(state.velocity) == jax.tree.structure(params)
  for done in itertools.islice(itertools.count(1), 3):
    _, state = solver.update(params, state, params)
    assert state.count == done


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


def test_cosine_schedule_falls_to_zero_at_the_last_step():
  # 0.01 * (1 + cos(pi * step / 8)) / 2, and 0 ever after.
  expected = [0.01, 0.01 * (1 + 0.5**0.5) / 2, 0.005, 0.01 * (1 - 0.5**0.5) / 2, 0, 0]
  found = rates((0, 2, 4, 6, 8, 100), name='cosine', num_steps=8)
  assert np.allclose(found, expected, rtol=1e-5, atol=1e-9)


def test_warmup_rises_linearly_to_the_schedule():
  found = rates((0, 1, 3, 4, 100_000), name='step', warmup_steps=4)
  assert np.allclose(found, [0.0025, 0.005, 0.01, 0.01, 0.001], rtol=1e-5)
  # The cosine goes on below: at step 1 of 8 half of 0.01 * (1 + cos(pi / 8)) / 2.
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


def test_unknown_orders_are_refused():
  with pytest.raises(ValueError, match="solver = 'adam' is unknown: one of caffe, optax"):
    optimizer.sgd(drop_after_two_steps(), {}, **SOLVER, order='adam')
