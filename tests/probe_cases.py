"""Configs of the probes at a size for a test, and a checkpoint of a CFN that was never trained."""

import labelled_cases
import numpy as np

from cfn_jax import command
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import task as jigsaw_task
from cfn_jax.jigsaw.permutation_sets import permutations as permutation_sets
from cfn_jax.training import checkpoint, devices

PX = 67


def make_config(name, root, *, voc=False, **fields):
  """Loads the small variant of a config for the images under `root`; retrieval's are objects."""
  voc = voc or name == 'retrieval'
  variant = 'small_voc' if voc and name != 'retrieval' else 'small'
  config = command.load_config(f'{labelled_cases.REPOSITORY}/configs/{name}.py:{variant}')
  config.update({'eval_batch_size': 8, 'weights': 'random'})
  config.features.part_images = 8
  if name == 'solve':
    config.update({'num_steps': 20, 'batch_size': 32, 'log_every_steps': 10})
    config.solve.train_visits = 24
    config.solve.outside_permutations = 16
  else:
    config.views.view_px = PX
    if 'resize_px' in config.views:
      config.views.resize_px = 72
    config.model.width = 0.1
    config.data.root = str(root if voc else root / 'train')
    config.data.val_root = '' if voc else str(root / 'test')
  if name == 'linear_probe':
    config.update({'num_steps': 3, 'batch_size': 8, 'log_every_steps': 1})
  config.update_from_flattened_dict(fields)
  return config


def make_run(workdir, root, **fields):
  """Saves a checkpoint of a small CFN whose weights are as they were drawn."""
  config = command.load_config(f'{labelled_cases.REPOSITORY}/configs/cfn.py:small')
  config.data.root, config.data.val_root = str(root / 'train'), str(root / 'test')
  config.model.update({'width': 0.1, 'fc6_features': 8, 'fc7_features': 16})
  config.permutations.num = 12
  config.model.permutations_per_pass = 4
  config.update_from_flattened_dict(fields)
  pretext = pretexts.open_pretext(config)
  params = pretext.init(3)
  rng = np.random.default_rng(0)
  shape = params['fc8']['kernel'].shape
  params['fc8']['kernel'] = rng.normal(0, 0.5, shape).astype(np.float32)
  meta = {
    'task': 'jigsaw',
    'commit': '',
    'network': pretext.describe(),
    'fingerprint': jigsaw_task.make_fingerprint(config, pretext),
    'config': config.to_dict(),
  }
  best = 'val_accuracy'
  workdir.mkdir()
  with checkpoint.Checkpoints(workdir, keep_latest=1, keep_best=1, best=best) as saver:
    state = devices.replicate({'params': params}, devices.make_mesh())
    saver.save(1, state, meta, {best: 0.0})
  permutation_sets.save_permutations(workdir / 'permutations.npy', pretext.questions.rows)
  return config, pretext, params
