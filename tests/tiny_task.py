"""A task of one small layer: tests of the training loop that need no images fit in a second."""

import os
import pathlib

import jax.numpy as jnp
import numpy as np

from cfn_jax import command
from cfn_jax.training import optimizer, task

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
BATCH, FEATURES = 8, 4
EVALUATION_BATCHES = 3


def make_config(**fields):
  config = command.load_config(f'{REPOSITORY}/configs/cfn.py:tiny')
  config.update(
    {
      'num_steps': 12,
      'batch_size': BATCH,
      'eval_batch_size': BATCH,
      'log_every_steps': 2,
      'eval_every_steps': 3,
      'checkpoint_every_steps': 4,
      'schedule': 'step',
      'warmup_steps': 0,
      'learning_rate': 0.1,
    }
    | fields
  )
  return config


def make_batch(seed):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(BATCH, FEATURES)).astype(np.float32)
  return {'x': x, 'y': (x @ np.arange(FEATURES) + rng.normal(size=BATCH)).astype(np.float32)}


def make_task(*, bad_steps=(), signals=None, features=FEATURES, fingerprint=None):
  """Builds the task.

  Args:
    bad_steps: their batches hold a nan.
    signals: what is sent to this process before ('train', step) or ('evaluation', batch number,
      counted over all evaluations of the process): {place: signal number}.
  """
  signals = dict(signals or {})
  evaluated = 0

  def tell(place):
    if place in signals:
      os.kill(os.getpid(), signals.pop(place))

  def loss(params, batch, key):
    errors = jnp.square(batch['x'] @ params['fc']['kernel'] + params['fc']['bias'] - batch['y'])
    return jnp.mean(errors), {'loss': jnp.sum(errors), 'count': jnp.float32(BATCH)}

  def measure(params, batch):
    errors = jnp.abs(batch['x'] @ params['fc']['kernel'] + params['fc']['bias'] - batch['y'])
    return {'errors': jnp.sum(errors * batch['mask'])}

  def train_batches(start, stop):
    for step in range(start, stop):
      tell(('train', step))
      batch = make_batch(step)
      yield batch | {'x': batch['x'] * np.nan} if step in bad_steps else batch

  def evaluation_batches():
    nonlocal evaluated
    for number in range(EVALUATION_BATCHES):
      tell(('evaluation', evaluated))
      evaluated += 1
      yield make_batch(1_000_000 + number) | {'mask': np.ones(BATCH, np.float32)}

  def report_training(sums):
    count = sums['count'] or float('nan')
    return {'train_loss': sums['loss'] / count, 'learning_rate': sums['learning_rate']}

  return task.Task(
    name='tiny',
    init=lambda seed: {
      'fc': {
        'kernel': np.full(features, 0.1 + seed, np.float32),
        'bias': np.zeros((), np.float32),
      }
    },
    loss=loss,
    totals=('loss', 'count'),
    report=report_training,
    train_batches=train_batches,
    records=lambda step: [f'record {step * BATCH + row}' for row in range(BATCH)],
    evaluations={
      'val': task.Evaluation(
        evaluation_batches, measure, lambda sums: {'val_accuracy': -sums['errors']}
      )
    },
    best='val_accuracy',
    labels=optimizer.label_parameters,
    examples={'examples': BATCH},
    fingerprint=fingerprint or {'seed': 0, 'batch_size': BATCH},
    summary=[],
    chance_loss=10.0,
    pictures={
      'end': lambda workdir, params, step: (workdir / 'end').write_text(str(step)),
      'bad_batch': lambda workdir, batch: (workdir / 'bad_batch.png').write_text(
        str(np.isnan(batch['x']).all())
      ),
    },
    end_pictures=('end',),
  )
