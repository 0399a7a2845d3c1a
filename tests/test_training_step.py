"""The compiled step: parts of a batch, the moving average, less memory, fewer bits, one program."""

import dataclasses
import functools
import runpy

import conftest
import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from cfn_jax.jigsaw import task as jigsaw_task
from cfn_jax.timing import steps
from cfn_jax.training import devices, loop, settings
from cfn_jax.training import state as states

CONFIG = runpy.run_path(str(conftest.REPOSITORY / 'configs' / 'cfn.py'))['get_config']


def make_config(**fields):
  """The smallest network, without dropout, on noise."""
  c = CONFIG('tiny').unlock()
  c.batch_size = c.eval_batch_size = 24
  c.schedule, c.warmup_steps, c.learning_rate = 'step', 0, 0.01
  c.model.dropout = 0.0
  c.permutations.num, c.model.permutations_per_pass = 8, 2
  c.model.width, c.model.fc6_features, c.model.fc7_features = 0.1, 16, 32
  c.puzzle.crop_px, c.puzzle.cell_px, c.puzzle.tile_px = 75, 25, 25
  c.update(fields)
  return c


def make_mesh(count):
  return Mesh(np.array(jax.devices()[:count]), ('data',))


def make_parts(config, mesh):
  """Returns the state of step 0, the step, a function from a seed to a batch, and the task."""
  pretext = steps.make_pretext(config)
  task = jigsaw_task.make_task(config, pretext)
  state, step = settings.start(task, config, mesh)

  def batch(seed):
    rng = np.random.default_rng(seed)
    made = steps.make_batch(pretext, config.batch_size)
    # Noise of several sizes: plain noise gives a trunk nothing to tell tiles apart by.
    made['tiles'] = (made['tiles'] * rng.random((*made['tiles'].shape[:2], 1, 1, 3))).astype('u1')
    return devices.put_batch(made, mesh)

  return state, step, batch, task


def train(config, *, count=1, steps=5):
  state, step, batch, _ = make_parts(config, make_mesh(count))
  losses = []
  for i in range(steps):
    state, report = step(state, batch(i))
    losses.append(float(report['loss']))
  return jax.device_get(state), losses


def distance(a, b):
  """Returns the difference of two trees as a share of the first's norm, the largest of any leaf."""
  apart = jax.tree.map(lambda x, y: np.linalg.norm(x - y) / max(np.linalg.norm(x), 1e-6), a, b)
  return max(jax.tree.leaves(apart))


@pytest.fixture(scope='module')
def plain():
  return train(make_config())


@pytest.mark.slow
def test_a_batch_in_parts_gives_the_step_of_the_whole_batch(plain):
  state, losses = train(make_config(accumulate_steps=4))
  assert losses == pytest.approx(plain[1], rel=1e-6)
  assert distance(plain[0].params, state.params) < 1e-5
  assert distance(plain[0].optimizer, state.optimizer) < 1e-3


@pytest.mark.slow
def test_parts_have_dropout_masks_of_their_own():
  c = make_config(accumulate_steps=2)
  c.model.dropout = 0.5
  state, step, batch, _ = make_parts(c, make_mesh(1))
  made = jax.tree.map(lambda rows: np.repeat(rows[:12], 2, axis=0), jax.device_get(batch(0)))
  _, report = step(state, made)  # rows 2 i and 2 i + 1 are alike: both parts see the same
  c.accumulate_steps = 1
  c.batch_size = 12
  state, step, _, _ = make_parts(c, make_mesh(1))
  _, once = step(state, jax.tree.map(lambda rows: rows[::2], made))
  assert float(report['count']) == 2 * float(once['count'])
  assert float(report['loss']) / 2 != pytest.approx(float(once['loss']), rel=1e-6)


@pytest.mark.slow
def test_memory_for_time_changes_no_step(plain):
  state, losses = train(make_config(remat=True))
  assert losses == pytest.approx(plain[1], rel=1e-6)
  assert distance(plain[0].params, state.params) < 1e-5


@pytest.mark.slow
def test_remat_keeps_no_maps_of_the_trunk():
  kept = []
  for remat in (False, True):
    c = make_config(remat=remat)
    state, _, batch, task = make_parts(c, make_mesh(1))
    loss = functools.partial(task.loss, batch=batch(0), key=jax.random.key(0))
    _, pull, _ = jax.eval_shape(functools.partial(jax.vjp, loss, has_aux=True), state.params)
    kept.append(sum(leaf.size for leaf in jax.tree.leaves(pull)))
  assert kept[1] < kept[0] / 3


def test_moving_average_follows_its_formula_from_the_first_parameters():
  state, step, batch, _ = make_parts(make_config(ema_decay=0.9), make_mesh(1))
  expected = jax.device_get(state.params)
  for i in range(3):
    state, _ = step(state, batch(i))
    expected = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, expected, jax.device_get(state.params))
  assert distance(expected, jax.device_get(state.ema)) < 1e-6
  assert distance(expected, jax.device_get(state.params)) > 1e-5


def test_a_step_takes_the_memory_of_the_state_before_it():
  state, step, batch, _ = make_parts(make_config(ema_decay=0.9), make_mesh(1))
  after, _ = step(state, batch(0))
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves((state.params, state.optimizer)))
  assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after))


@pytest.mark.parametrize('decay', [-0.1, 1.0])
def test_decays_that_average_nothing_are_refused(decay):
  with pytest.raises(ValueError, match='ema_decay'):
    states.check_decay(decay)


@pytest.mark.slow
def test_bfloat16_keeps_parameters_and_loss_in_float32_and_learns_alike(plain):
  c = make_config(compute_dtype='bfloat16')
  state, losses = train(c)
  assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {np.dtype('float32')}
  assert losses != plain[1] and losses == pytest.approx(plain[1], rel=0.02)
  _, _, batch, task = make_parts(c, make_mesh(1))
  loss, _ = jax.eval_shape(task.loss, state.params, batch(0), jax.random.key(0))
  assert loss.dtype == np.float32


def test_locked_layers_get_no_gradient_and_keep_their_bits():
  c = make_config()
  pretext = steps.make_pretext(c)
  task = jigsaw_task.make_task(c, pretext)
  from cfn_jax.training import optimizer

  locked = ('conv1', 'conv2')
  task = dataclasses.replace(
    task, labels=lambda params: optimizer.label_parameters(params, locked=locked)
  )
  mesh = make_mesh(1)
  state, step = settings.start(task, c, mesh)
  before = jax.device_get(state.params)
  batch = devices.put_batch(steps.make_batch(pretext, c.batch_size), mesh)
  compiled = step.lower(state, batch).compile()
  state, _ = compiled(state, batch)
  after = jax.device_get(state.params)
  for layer in before:
    for name in before[layer]:
      same = before[layer][name].tobytes() == after[layer][name].tobytes()
      assert same == (layer in locked), (layer, name)


@pytest.mark.slow
def test_training_and_evaluation_are_compiled_once_each(tmp_path):
  c = make_config(num_steps=5, log_every_steps=2, eval_every_steps=2, checkpoint_every_steps=2)
  c.data.crops_per_photograph = c.data.val_crops_per_photograph = 10
  from cfn_jax.jigsaw import pretext as pretexts

  task = jigsaw_task.make_task(c, pretexts.open_pretext(c))
  traces = {'loss': 0, 'measure': 0}

  def count(name, function):
    def counted(*arguments):
      traces[name] += 1
      return function(*arguments)

    return counted

  evaluation = task.evaluations['val']
  measured = dataclasses.replace(evaluation, measure=count('measure', evaluation.measure))
  task = dataclasses.replace(
    task, loss=count('loss', task.loss), evaluations={'val': measured}, pictures={}
  )
  programs = []
  listen = jax.monitoring.register_event_duration_secs_listener

  def hear(event, _, **details):
    if event == '/jax/core/compile/backend_compile_duration':
      programs.append(details.get('fun_name', ''))

  listen(hear)
  try:
    loop.fit(task, c, tmp_path)
  finally:
    jax.monitoring.unregister_event_duration_listener(hear)
  assert traces == {'loss': 1, 'measure': 1}
  assert sum('step' in name for name in programs) == 1, programs
  assert sum('measure' in name or 'counted' in name for name in programs) == 1, programs
