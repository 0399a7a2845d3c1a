"""`python -m cfn_jax.benchmark precision`: what bfloat16 costs the gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_training_step import make_config

from cfn_jax.timing import precision, steps


@pytest.mark.slow
@pytest.mark.parametrize('k', [1, 3])
def test_what_is_not_rounded_costs_nothing(k):
  config = make_config()
  config.model.permutations_per_pass = k
  pretext = steps.make_pretext(config)
  exact = jax.tree.map(
    lambda leaf: np.asarray(jnp.asarray(leaf, jnp.bfloat16), np.float32), pretext.init(0)
  )
  errors = precision.compare(pretext, exact, steps.make_batch(pretext, 4))
  assert set(errors) == {f'{name}/{part}' for name in exact for part in ('kernel', 'bias')}
  for row in errors.values():
    assert row['parameters'] == 0  # bfloat16 holds them
  assert errors['conv1/kernel']['tiles'] > 0
  whole = {name: row['whole'] for name, row in errors.items()}
  assert 1e-3 < whole['conv1/kernel'] < 1 and whole['fc8/kernel'] < whole['conv1/kernel']


def test_the_distance_is_a_share_of_the_exact_norm():
  assert precision.distance(jnp.array([3.0, 5.0]), jnp.array([3.0, 4.0])) == pytest.approx(0.2)
