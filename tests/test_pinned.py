"""What may not change unnoticed: the first batches of a run, and what the network makes of them.

The values are those of commit 91ae454.
"""

import hashlib

import jax
import numpy as np
import optax
import pytest
from PIL import Image

from cfn_jax import command
from cfn_jax.data import pipeline
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import task as jigsaw_task


def test_the_first_batches_of_small_are_those_of_every_version(tmp_path):
  """A change here changes what every seed means: raise `puzzle.RULES`, and say so in the log."""
  rng = np.random.default_rng(0)
  for number in range(7):  # of the size that no puzzle resamples
    image = rng.integers(0, 256, (128, 128 + 9 * number, 3), dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / f'{number}.png')
  config = command.load_config('configs/cfn.py:small')
  config.data.root = str(tmp_path)
  config.data.val_fraction = 0.0
  pretext = pretexts.open_pretext(config, evaluated=False)
  batches = pipeline.make_training_batches(
    pretext.training, pretext.transform, batch_size=5, start_step=0, stop_step=4
  )
  digest = hashlib.sha256(pretext.questions.rows.tobytes())
  for batch in batches:
    digest.update(batch['tiles'].tobytes() + batch['label'].tobytes())
  assert digest.hexdigest() == ('6125093926c1d70bc75d0d819b978d146701e8b0b70bf76a72ab50e186d8b14b')


def test_tiny_starts_with_the_loss_and_the_gradient_of_every_version():
  config = command.load_config('configs/cfn.py:tiny')
  task = jigsaw_task.make_task(config, pretexts.open_pretext(config))
  batches = task.train_batches(0, 1)
  batch = {name: rows[:8] for name, rows in next(batches).items()}
  batches.close()
  pretext, params = pretexts.open_pretext(config), task.init(0)

  def loss(params):
    logits = pretext.logits(params, batch)  # without dropout
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch['label']).mean()

  value, gradient = jax.jit(jax.value_and_grad(loss))(params)
  assert float(value) == pytest.approx(3.188272, rel=1e-6)
  assert float(optax.tree.norm(gradient)) == pytest.approx(0.83793, rel=1e-4)
