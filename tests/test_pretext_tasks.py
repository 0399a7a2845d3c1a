"""The rivals of the jigsaw, from their configs to weights: sizes, runs, resuming, evaluations."""

import collections
import json
import shutil

import jax
import numpy as np
import pytest
import scipy.special

from cfn_jax import command
from cfn_jax.data import pipeline
from cfn_jax.evaluation import trunks
from cfn_jax.evaluation.frozen import features
from cfn_jax.evaluation.puzzles import trained_cfn
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.jigsaw import task as jigsaw_task
from cfn_jax.models import alexnet
from cfn_jax.timing import steps
from cfn_jax.training import checkpoint
from cfn_jax.transfer import export, files

SIZES = {
  'model.width': 0.1,
  'model.fc6_features': 16,
  'model.fc7_features': 24,
  'num_steps': 2,
  'schedule': 'step',  # does not depend on the number of steps
  'batch_size': 4,
  'eval_batch_size': 4,
  'eval_every_steps': 2,
  'checkpoint_every_steps': 2,
  'num_devices': 1,
  'data.crops_per_photograph': 4,
  'data.val_crops_per_photograph': 4,
}
RIVALS = (
  'relative_position:tiny',
  pytest.param('rotation:tiny', marks=pytest.mark.slow),
)


def make_config(name, **changes):
  config = command.load_config(name)
  with config.unlocked():
    config.update_from_flattened_dict({**SIZES, **changes})
  return config


@pytest.fixture(scope='module', params=RIVALS)
def trained(request, tmp_path_factory):
  """A run of two steps: its config, its workdir and its last figures."""
  config = make_config(request.param)
  workdir = tmp_path_factory.mktemp(config.task)
  return config, workdir, jigsaw_task.open_task(config)(workdir)


@pytest.mark.parametrize(
  ('name', 'count'), [('relative_position', 7_745_416), ('rotation', 56_884_612)]
)
def test_networks_have_the_parameters_that_were_counted_elsewhere(name, count):
  pretext = steps.make_pretext(command.load_config(name))
  assert alexnet.count_parameters(pretext.shapes()) == count


def test_the_sources_tiles_lie_where_its_figures_say():
  geometry = steps.make_pretext(command.load_config('relative_position:doersch')).transform.geometry
  assert (geometry.tile_px, geometry.pitch_px) == (96, 144)
  assert (geometry.cell_px - geometry.tile_px) / 2 == 7  # jitter either way
  assert geometry.pitch_px - geometry.tile_px == 48  # the gap on average
  assert geometry.drop_channels and geometry.extent_px == geometry.crop_px == 398


def test_k_questions_of_one_pass_have_the_logits_of_k_passes():
  config = make_config('relative_position:tiny', pairs='all')
  config.model.permutations_per_pass = 40
  pretext = pretexts.open_pretext(config)
  batch = next(
    pipeline.make_evaluation_batches(pretext.validation, pretext.transform, batch_size=2, limit=2)
  )
  params = pretext.init(0)
  together = jax.jit(pretext.logits)(params, batch)  # [2, 40, 8]
  apply = jax.jit(lambda tiles: pretext.model.apply({'params': params}, tiles))
  for b in range(2):
    shown = batch['tiles'][b][pretext.questions.rows[batch['label'][b]]]  # [40, 2, h, w, 3]
    alone = apply(pretext.input.prepare(shown))
    np.testing.assert_allclose(together[b], alone, atol=1e-5)


def test_a_run_leaves_its_questions_figures_and_pictures(trained):
  config, workdir, figures = trained
  asked = json.loads((workdir / 'questions.json').read_text())
  assert asked['task'] == config.task and len(asked['rows']) == len(asked['answers'])
  assert not (workdir / 'permutations.npy').exists()
  for name in ('puzzles.png', 'answers.png', 'curves.png', 'filters.png'):
    assert (workdir / name).stat().st_size > 5000, name
  assert figures['val_count'] == 8 * len(asked['rows'])  # every question of each image
  assert 0 <= figures['val_accuracy_low'] <= figures['val_accuracy'] <= 1
  if config.task == 'relative_position':
    assert figures['val_all_pairs_count'] == 8 * 40


@pytest.mark.slow
def test_a_network_of_the_star_is_scored_on_the_star_and_on_all_pairs():
  star, every = (make_config('relative_position:tiny', pairs=pairs) for pairs in ('star', 'all'))
  every.model.permutations_per_pass = 40
  pretexts_of = [pretexts.open_pretext(config) for config in (star, every)]
  ours, theirs = (
    jigsaw_task.make_task(config, pretext).evaluations['val']
    for config, pretext in zip((star, every), pretexts_of)
  )
  params = pretexts_of[0].init(0)
  totals = []
  for evaluation in (ours, theirs):
    sums = collections.Counter()
    for batch in evaluation.batches():
      sums.update({n: float(x) for n, x in evaluation.measure(params, batch).items()})
    totals.append(evaluation.report(sums))
  for name, value in totals[1].items():  # asked for all pairs, as one that is trained on them
    assert totals[0][name.replace('val_', 'val_all_pairs_')] == pytest.approx(value)
  assert len(totals[0]) == 2 * len(totals[1]) and totals[0]['val_all_pairs_count'] == 8 * 40

  losses = []  # of the star alone, by hand
  asked = pretexts_of[1].questions
  for batch in theirs.batches():
    logits = np.asarray(pretexts_of[1].logits(params, batch), np.float64)
    for row, (labels, mask) in enumerate(zip(batch['label'], batch['mask'])):
      for k, label in enumerate(labels):
        if mask and asked.rows[label][0] == 4:
          chances = scipy.special.softmax(logits[row, k])
          losses.append(-np.log(chances[asked.answers[label]]))
  assert totals[0]['val_loss'] == pytest.approx(np.mean(losses), rel=1e-5)
  assert totals[0]['val_count'] == len(losses) == 8 * 8


def test_a_stacked_network_of_pairs_is_scored_on_its_own_questions():
  config = make_config('relative_position:tiny', **{'model.permutations_per_pass': 1})
  config.model.name = 'stacked'
  pretext = pretexts.open_pretext(config)
  assert pretext.judged().questions is pretext.questions


def test_what_occluders_replace_is_drawn_for_training_alone():
  config = make_config('cfn:plus_tiny')
  task = jigsaw_task.make_task(config, pretexts.open_pretext(config))
  assert 'occluders' in next(task.train_batches(0, 1))
  assert 'occluders' not in next(task.evaluations['val'].batches())


@pytest.mark.slow
def test_a_network_of_pairs_sees_no_other_tile(trained):
  config, workdir, _ = trained
  if config.task != 'relative_position':
    pytest.skip('of pairs')
  pretext = pretexts.open_pretext(config)
  batch = next(
    pipeline.make_evaluation_batches(pretext.validation, pretext.transform, batch_size=2, limit=2)
  )
  params = files.load_weights(str(workdir)).params
  one = np.zeros((2, 8), np.int32)  # the question of tiles 4 and 0
  answer = jax.jit(pretext.logits)
  logits = answer(params, {**batch, 'label': one})
  batch['tiles'][:, [1, 2, 3, 5, 6, 7, 8]] = batch['tiles'][:, [8, 7, 6, 5, 3, 2, 1]]
  np.testing.assert_array_equal(answer(params, {**batch, 'label': one}), logits)
  batch['tiles'][:, [0, 4]] = batch['tiles'][:, [4, 0]]
  assert np.abs(answer(params, {**batch, 'label': one}) - logits).max() > 1e-6


def test_a_rotated_image_shifts_the_class():
  config = make_config('rotation:tiny', **{'puzzle.crop_mode': 'centre'})
  visits = pretexts.open_pretext(config).transform
  image = np.random.default_rng(0).integers(256, size=(64, 64, 3), dtype=np.uint8)

  def cut(image):
    rng = np.random.default_rng(1)
    return visits.sample(pipeline.Visit(image, -1, 0, 'a', rng, -1)).tiles

  np.testing.assert_array_equal(cut(np.rot90(image)), np.roll(cut(image), -1, axis=0))


@pytest.mark.parametrize('content', [None, '{', '{"task": "rotation", "rows": [[1]]}'])
def test_questions_that_are_absent_are_done_without_and_others_refused(trained, tmp_path, content):
  _, workdir, _ = trained
  copy = tmp_path / 'copy'
  shutil.copytree(workdir, copy)
  (copy / 'questions.json').unlink()
  if content is None:
    assert 'questions' not in files.load_weights(str(copy)).origin
    return
  (copy / 'questions.json').write_text(content)
  with pytest.raises(ValueError, match=r'questions\.json does not hold the questions'):
    files.load_weights(str(copy))


def test_another_task_or_other_pairs_are_refused_in_the_same_workdir(trained):
  config, workdir, _ = trained
  jigsaw = make_config('cfn:tiny')
  with pytest.raises(checkpoint.CheckpointError, match=f"task: '{config.task}' then, 'jigsaw' now"):
    jigsaw_task.open_task(jigsaw)(workdir)
  if config.task == 'relative_position':
    other = config.copy_and_resolve_references()
    other.pairs = 'all'
    with pytest.raises(checkpoint.CheckpointError, match='questions: '):
      jigsaw_task.open_task(other)(workdir)


@pytest.mark.slow
def test_a_longer_run_resumes(trained, tmp_path_factory):
  config, workdir, _ = trained
  longer = config.copy_and_resolve_references()
  longer.num_steps = 4
  straight = jigsaw_task.open_task(longer)(tmp_path_factory.mktemp('straight'))
  resumed = jigsaw_task.open_task(longer)(workdir)
  assert resumed['val_loss'] == straight['val_loss']


def test_weights_are_those_of_a_network_that_sees_so_many_tiles(trained):
  config, workdir, _ = trained
  weights = files.load_weights(str(workdir))
  wanted = {'relative_position': ('cfn', 2), 'rotation': ('alexnet', 1)}[config.task]
  assert (weights.kind, weights.tiles()) == wanted
  assert weights.origin['questions']['classes'] == weights.params['fc8']['kernel'].shape[1]


@pytest.mark.parametrize(('to', 'suffix'), [('pytorch', 'pth'), ('caffe', 'caffemodel')])
def test_weights_come_back_whole(trained, tmp_path, to, suffix):
  config, workdir, _ = trained
  if to == 'pytorch':
    pytest.importorskip('torch')
  weights = files.load_weights(str(workdir))
  export.save_folder(weights, tmp_path / 'out', to=to)
  asked = 'questions of ' + config.task
  assert asked in (tmp_path / 'out' / 'model_card.md').read_text()
  back = files.load_weights(str(next((tmp_path / 'out').glob(f'*.{suffix}'))))
  assert back.layers() == weights.layers() and back.tiles() == weights.tiles()
  for name, layer in weights.params.items():
    np.testing.assert_array_equal(back.params[name]['kernel'], layer['kernel'])


@pytest.mark.slow
def test_frozen_features_take_the_trunk_and_fc6_and_refuse_fc7_of_two_tiles(trained):
  config, workdir, _ = trained
  evaluation = command.load_config('knn:small')
  with evaluation.unlocked():
    evaluation.weights = str(workdir)
    evaluation.baseline = False
  trunk = trunks.open_compared(evaluation)['pretrained']
  arguments = {'stride': 2, 'kind': 'average', 'dimensions': 9600}
  views = np.random.default_rng(0).integers(256, size=(2, 112, 112, 3), dtype=np.uint8)
  if config.task == 'rotation':  # an AlexNet of 48 px
    extractor = features.make_extractor(trunk, layers=('pool5', 'fc7'), view_px=48, **arguments)
    found = extractor(extractor.params(), views[:, :48, :48])
    assert {name: x.shape for name, x in found.items()}['fc7'] == (2, 24)
    return
  extractor = features.make_extractor(trunk, layers=('conv5', 'fc6'), view_px=112, **arguments)
  found = extractor(extractor.params(), views)
  assert found['fc6'].shape == (2, 9 * 16)
  with pytest.raises(ValueError, match='fc7 sees 2 tiles, and a view has 9'):
    features.make_extractor(trunk, layers=('fc7',), view_px=112, **arguments)


def test_solve_is_about_jigsaws(trained):
  config, workdir, _ = trained
  solve = command.load_config('solve:small')
  with solve.unlocked():
    solve.weights = str(workdir)
  with pytest.raises(ValueError, match=f'a network of {config.task}: solve.py is about jigsaw'):
    trained_cfn.open_trained(solve)


def test_a_jigsaw_starts_from_the_trunk_of_another_task(trained):
  _, workdir, _ = trained
  config = make_config('cfn:tiny', init_from=str(workdir))
  pretext = pretexts.open_pretext(config)
  from cfn_jax.jigsaw import initial

  params, told = initial.load_initial(str(workdir), pretext.init(0), pretext)
  assert told.startswith('conv1..conv5') and 'fc7' in told
  given = files.load_weights(str(workdir)).params
  np.testing.assert_array_equal(params['conv2']['kernel'], given['conv2']['kernel'])


@pytest.mark.parametrize(
  ('name', 'changes', 'message'),
  [
    (
      'relative_position:tiny',
      {'model.permutations_per_pass': 9},
      'from 1 to the 8 questions of an image',
    ),
    ('relative_position:tiny', {'puzzle.grid': 1}, 'puzzle.grid = 1: a puzzle needs at least 2'),
    ('relative_position:tiny', {'puzzle.grid': 17}, 'puzzle.grid = 17: at most 5'),
    ('relative_position:tiny', {'pairs': 'two'}, "pairs = 'two' is unknown: one of star, all"),
    ('rotation:tiny', {'puzzle.cell_px': 60}, 'rotations are of one tile without a gap'),
    ('rotation:tiny', {'puzzle.occluders': 1}, 'puzzle.occluders = 1: 0, there is one tile'),
    ('relative_position:tiny', {'model.fc8_features': 5}, 'at least the 8 classes'),
  ],
)
def test_settings_that_no_task_can_have_are_refused(name, changes, message):
  with pytest.raises(ValueError, match=message):
    pretexts.open_pretext(make_config(name, **changes))


def test_an_unknown_pretext_is_named_with_those_that_there_are(tmp_path):
  own = tmp_path / 'own.py'
  own.write_text(
    'from configs import cfn\n\n\n'
    "def get_config(variant=''):\n"
    "  c = cfn.get_config('tiny').unlock()\n"
    "  c.task = 'colouring'\n"
    '  return c.lock()\n'
  )
  with pytest.raises(ValueError, match=r"task = 'colouring'.*rotation"):
    command.load_config(str(own))
