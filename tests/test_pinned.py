"""What may not change unnoticed: the bytes of the first batches of a run."""

import hashlib

import numpy as np
from PIL import Image

from cfn_jax import command
from cfn_jax.data import pipeline
from cfn_jax.jigsaw import pretext as pretexts


def test_the_first_batches_of_small_are_those_of_every_version(tmp_path):
  """A change here changes what every seed means: raise `puzzle.RULES`, and say so in the log."""
  rng = np.random.default_rng(0)
  for number in range(7):  # of the size that no puzzle resamples
    image = rng.integers(0, 256, (128, 128 + 9 * number, 3), dtype=np.uint8)
    Image.fromarray(image).save(tmp_path / f'{number}.png')
  config = command.load_config('configs/cfn.py:small')
  config.data.root, config.data.cache_dir = str(tmp_path), str(tmp_path / 'cache')
  config.data.val_fraction = 0.0
  pretext = pretexts.open_pretext(config, evaluated=False)
  batches = pipeline.make_training_batches(
    pretext.training, pretext.visits, batch_size=5, start_step=0, stop_step=4
  )
  digest = hashlib.sha256(pretext.questions.rows.tobytes())
  for batch in batches:
    digest.update(batch['tiles'].tobytes() + batch['label'].tobytes())
  assert digest.hexdigest() == ('6125093926c1d70bc75d0d819b978d146701e8b0b70bf76a72ab50e186d8b14b')
