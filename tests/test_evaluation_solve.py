"""Puzzles in bits and tiles: hand-worked values, and a checkpoint solved with its own set."""

import itertools
import json
import math

import jax
import labelled_cases
import numpy as np
import probe_cases
import pytest
import scipy.special

from cfn_jax.evaluation import solve
from cfn_jax.evaluation.frozen import features
from cfn_jax.evaluation.puzzles import trained_cfn
from cfn_jax.jigsaw import solving
from cfn_jax.jigsaw import task as jigsaw_task
from cfn_jax.jigsaw.permutation_sets import permutations as permutation_sets
from cfn_jax.training import devices, scoring
from cfn_jax.transfer import arrays, cards, surgery
from cfn_jax.transfer import weights as weights_lib


def test_bits_of_a_uniform_guess_and_of_certainty():
  for count in (2, 24, 1000):
    assert solving.count_bits(count, math.log(count)) == 0
    assert solving.count_bits(count, 0.0) == pytest.approx(math.log2(count))
  assert solving.count_bits(1000, math.log(500)) == pytest.approx(1)  # half of them ruled out
  assert solving.count_bits(10, 5.0) < 0


def test_positions_are_the_sums_over_permutations():
  permutations = np.array([[0, 1, 2], [1, 2, 0], [0, 2, 1]], np.uint8)
  chances = np.array([0.5, 0.3, 0.2])
  found = np.einsum('n,nij->ij', chances, solving.make_positions(permutations))
  # Place 0 shows tile 0 in the first and the last.
  np.testing.assert_allclose(found, [[0.7, 0.3, 0], [0, 0.5, 0.5], [0.3, 0.2, 0.5]])


def test_three_tiles_are_assigned_as_by_hand():
  # Taken one by one places 0 and 1 would both get cell 0; 0 has the better second choice.
  table = np.array([[0.6, 0.4, 0.0], [0.9, 0.05, 0.05], [0.1, 0.5, 0.4]])
  best = max(itertools.permutations(range(3)), key=lambda p: table[range(3), p].sum())
  assert best == (1, 0, 2)
  assert solving.assign_tiles(table[None]).tolist() == [[1, 0, 2]]
  each, whole = solving.score_tiles(np.stack([table, table]), np.array([[1, 0, 2], [0, 1, 2]]))
  assert (each, whole) == (pytest.approx(4 / 6), 0.5)
  with pytest.raises(ValueError, match='not finite'):
    solving.assign_tiles(table[None] * np.nan)


def test_a_guess_is_as_good_as_the_set_is_uneven():
  for method, share in (('max', 0.11), ('mid', 0.13), ('min', 0.44)):
    rows = permutation_sets.make_permutations(1000, method=method)
    assert solving.guess_tiles(rows) == pytest.approx(share, abs=0.005)
  whole = permutation_sets.make_permutations(72, method='code')
  assert solving.guess_tiles(whole) == pytest.approx(1 / 9)


def test_outside_permutations_are_outside_and_different():
  inside = np.array([[0, 1, 2, 3], [3, 2, 1, 0]], np.uint8)
  found = trained_cfn.draw_outside(inside, 100, seed=0)
  assert found.shape == (22, 4) and len(np.unique(found, axis=0)) == 22
  assert not {tuple(row) for row in inside.tolist()} & {tuple(row) for row in found.tolist()}
  every = np.array(list(itertools.permutations(range(4))), np.uint8)
  assert trained_cfn.draw_outside(every, 5, seed=0).shape == (0, 4)
  nine = np.array([range(9), range(9)[::-1]], np.uint8)
  found = trained_cfn.draw_outside(nine, 50, seed=0)
  assert found.shape == (50, 9) and len(np.unique(found, axis=0)) == 50
  np.testing.assert_array_equal(found, trained_cfn.draw_outside(nine, 50, seed=0))


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """Folders of images, and a workdir with its config, pretext task and parameters."""
  root = tmp_path_factory.mktemp('solve')
  folders = labelled_cases.make_class_folders(root / 'images')
  return folders, root / 'run', *probe_cases.make_run(root / 'run', folders)


def make_config(trained, **fields):
  folders, workdir, *_ = trained
  return probe_cases.make_config('solve', folders, **{'weights': str(workdir), **fields})


@pytest.mark.slow
def test_the_figures_are_those_of_probabilities_computed_apart(trained):
  """The network, the product of positions and both decodings, puzzle by puzzle in NumPy."""
  config = make_config(trained, **{'solve.puzzles_per_image': 4})
  solver = trained_cfn.open_trained(config)
  *_, pretext, params = trained
  weights = solver.started['pretrained']
  evaluation = solve.make_evaluation(config, solver, weights, solver.permutations)
  rng = np.random.default_rng(0)
  probe = {
    'fc6': {
      'kernel': rng.normal(0, 0.3, (8, 9)).astype(np.float32),
      'bias': rng.normal(0, 0.3, 9).astype(np.float32),
      'mean': np.full(8, 0.1, np.float32),
      'scale': np.full(8, 2.0, np.float32),
    }
  }
  found, sums = [], {'network': [0.0, 0.0], 'product': [0.0, 0.0]}
  tables = {'network': [], 'product': []}
  solve_batch = jax.jit(lambda params, batch: pretext.logits(params, batch))
  see_tiles = jax.jit(lambda params, tiles: features.see_tiles(weights, params, tiles))
  for batch in evaluation.batches():
    keep = batch['mask'] > 0
    logits = np.asarray(solve_batch(params, batch))[keep].astype(np.float64)
    seen = see_tiles(params, batch['tiles'])
    seen = (np.asarray(seen)[keep] - 0.1) * 2.0
    single = scipy.special.log_softmax(seen @ probe['fc6']['kernel'] + probe['fc6']['bias'], -1)
    for image, labels in enumerate(batch['label'][keep]):
      for k, label in enumerate(labels):
        shown = solver.permutations[label]
        place = single[image][shown]  # [T, T]
        product = np.array([place[range(9), row].sum() for row in solver.permutations])
        for name, scores in (('network', logits[image, k]), ('product', product)):
          chances = scipy.special.softmax(scores)
          sums[name][0] -= math.log(chances[label])
          sums[name][1] += np.argmax(scores) == label
        table = np.zeros((9, 9))
        for chance, row in zip(scipy.special.softmax(logits[image, k]), solver.permutations):
          table[range(9), row] += chance
        tables['network'].append(table)
        tables['product'].append(np.exp(place))
        found.append(shown)
  mesh = devices.make_mesh(2)
  placed = devices.replicate({'network': params, 'probe': probe}, mesh)
  figures = scoring.make_score(evaluation, mesh)(placed, lambda: False)
  assert (figures['puzzles'], figures['images']) == (60, 15) and len(found) == 60
  for name in ('network', 'product'):
    loss, right = sums[name][0] / 60, sums[name][1] / 60
    assert figures[name]['loss'] == pytest.approx(loss, rel=1e-4)
    assert figures[name]['bits'] == pytest.approx((math.log(12) - loss) / math.log(2), abs=1e-3)
    assert figures[name]['accuracy'] == pytest.approx(right)
    each, whole = solving.score_tiles(np.array(tables[name]), np.array(found))
    assert figures[name]['tile_accuracy'] == pytest.approx(each, abs=0.02)
    assert figures[name]['whole_accuracy'] == pytest.approx(whole, abs=0.04)
  assert figures['gap_bits'] == figures['network']['bits'] - figures['product']['bits']


def test_the_tiles_and_the_network_are_those_of_its_training(trained):
  """With the puzzles of the training's own validation, its own loss and accuracy come out."""
  config = make_config(trained, **{'solve.puzzles_per_image': 4})
  _, _, own, pretext, params = trained
  mesh = devices.make_mesh(8)
  own = own.copy_and_resolve_references()
  own.eval_batch_size = 8
  expected = scoring.make_score(jigsaw_task.make_task(own, pretext).evaluations['val'], mesh)(
    devices.replicate(params, mesh), lambda: False
  )
  solver = trained_cfn.open_trained(config)
  evaluation = solve.make_evaluation(
    config, solver, solver.started['pretrained'], solver.permutations
  )
  probe = {'fc6': {'kernel': np.zeros((8, 9)), 'bias': np.zeros(9), 'mean': 0.0, 'scale': 1.0}}
  placed = devices.replicate({'network': params, 'probe': probe}, mesh)
  found = scoring.make_score(evaluation, mesh)(placed, lambda: False)
  assert found['network']['loss'] == pytest.approx(expected['val_loss'], rel=1e-5)
  assert found['network']['accuracy'] == expected['val_accuracy']
  assert found['puzzles'] == expected['val_count']
  # A probe that knows nothing: no bits, and its gap is all there is.
  assert found['product']['bits'] == pytest.approx(0, abs=1e-5)


def test_evaluations_of_the_pretext_task_give_bits_where_asked(trained):
  _, _, own, pretext, params = trained
  mesh = devices.make_mesh(8)
  found = {}
  for bits in (False, True):
    config = own.copy_and_resolve_references()
    config.eval_batch_size, config.eval_bits = 8, bits
    evaluation = jigsaw_task.make_task(config, pretext).evaluations['val']
    found[bits] = scoring.make_score(evaluation, mesh)(
      devices.replicate(params, mesh), lambda: False
    )
  more = set(found[True]) - set(found[False])
  assert more == {'val_bits', 'val_tile_accuracy'}
  for name, value in found[False].items():
    assert found[True][name] == pytest.approx(value, rel=1e-5)
  loss = found[False]['val_loss']
  assert found[True]['val_bits'] == pytest.approx((math.log(12) - loss) / math.log(2), abs=1e-5)
  assert 0 <= found[True]['val_tile_accuracy'] <= 1


@pytest.mark.slow
def test_solving_goes_from_a_checkpoint_to_a_table(trained, tmp_path, capsys):
  config = make_config(trained)
  found = solve.open_task(config)(tmp_path)
  assert set(found) == {'pretrained', 'random'}
  for figures in found.values():
    assert 'bits' in figures['network'] and 'bits' not in figures['outside']['network']
    assert 0 <= figures['outside']['product']['tile_accuracy'] <= 1
    assert figures['puzzles'] == 15 * 8
  assert 'gap, bits' in capsys.readouterr().out
  assert json.loads((tmp_path / 'results.json').read_text())['runs'] == found
  assert solve.open_task(config)(tmp_path) == found


def test_what_solves_no_puzzles_is_refused(trained, tmp_path):
  config = make_config(trained)
  for fields, message in (
    ({'weights': ''}, 'weights is empty'),
    ({'weights': str(tmp_path / 'no')}, 'no such file'),
    ({'solve.puzzles_per_image': 1}, 'at least 2'),
    ({'solve.outside_permutations': 1}, 'at least 2'),
    (
      {'solve.vote': True},
      "solve.vote = True: the network's 12 permutations have no symmetry .*leave it out",
    ),
    ({'features.part_images': 12}, 'a multiple of eval_batch_size = 8'),
    ({'probe.standardize': 'all'}, 'is unknown'),
    ({'data.source': 'folder', 'data.root': str(tmp_path / 'no')}, 'no'),
    ({'data.root': '/photos'}, r"data\.root = '/photos': with data\.source = ''"),
    ({'data.val_split': 'val'}, r"data\.val_split = 'val': with data\.source = ''"),
    ({'data.source': 'folder', 'data.split': 'train'}, r"data\.split = 'train': not read with"),
  ):
    other = config.copy_and_resolve_references()
    other.update_from_flattened_dict(fields)
    with pytest.raises(ValueError, match=message):
      solve.open_task(other)


def test_a_permutation_set_that_is_not_the_networks_is_refused(trained):
  weights = trained_cfn.open_trained(make_config(trained)).started['pretrained']
  rows = weights.origin['permutations']
  for changed, message in (
    ([], 'the permutation set is not there'),
    (rows[:-1], 'the permutation set is 11 x 9, the network is for 12 permutations of 9 tiles'),
    ([*rows[:-1], [0] * 9], 'the permutation set is'),
    (rows[::-1], 'not the set that the network was trained with'),
  ):
    other = weights.replace(origin={**weights.origin, 'permutations': changed})
    with pytest.raises(weights_lib.WeightsError, match=message):
      trained_cfn.find_permutations(other, 'run')
  with pytest.raises(weights_lib.WeightsError, match='config of its training is not there'):
    trained_cfn.complete_config({}, make_config(trained), 'run')


def test_what_the_training_did_not_read_is_no_error_of_solve(trained):
  weights = trained_cfn.open_trained(make_config(trained)).started['pretrained']
  saved = weights.origin['config']
  data = {
    **saved['data'],
    'source': 'records',
    'root': '/r',
    'val_split': 'imagenet2012:validation',
  }
  own = trained_cfn.complete_config({**saved, 'data': data}, make_config(trained), 'run')
  assert (own.data.source, own.data.root, own.data.val_split) == ('records', '/r', '')


def test_the_images_may_be_others_and_the_rest_is_that_of_the_training(trained):
  saved = trained_cfn.open_trained(make_config(trained)).started['pretrained'].origin['config']
  named = {'source': 'tfds', 'split': 'toy:train', 'val_split': 'test', 'val_fraction': 0.5}
  config = make_config(trained, **{f'data.{field}': value for field, value in named.items()})
  own = trained_cfn.complete_config(saved, config, 'run').to_dict()
  data = own.pop('data')
  assert own == {name: value for name, value in saved.items() if name != 'data'}
  assert {field: data[field] for field in named} == named and data['root'] == ''
  assert data['on_bad_image'] == saved['data']['on_bad_image']


def test_an_alexnet_solves_no_puzzles(trained, tmp_path):
  weights = trained_cfn.open_trained(make_config(trained)).started['pretrained']
  trunk = surgery.to_alexnet(weights, num_classes=0)
  arrays.save_npz(tmp_path / 'weights.npz', trunk.params, cards.make_record(trunk))
  with pytest.raises(weights_lib.WeightsError, match='solve no puzzles'):
    trained_cfn.open_trained(make_config(trained, weights=str(tmp_path)))


@pytest.mark.slow
def test_a_vote_stands_beside_the_network(tmp_path, capsys):
  folders = labelled_cases.make_class_folders(tmp_path / 'images')
  whole = {'permutations.method': 'code', 'permutations.num': 9, 'permutations.ties': 'spread'}
  probe_cases.make_run(tmp_path / 'run', folders, **whole)
  fields = {'weights': str(tmp_path / 'run'), 'baseline': False, 'solve.outside_permutations': 2}
  fields |= {'solve.puzzles_per_image': 4}
  config = probe_cases.make_config('solve', folders, **fields)
  plain = solve.open_task(config)(tmp_path / 'out')['pretrained']
  config.solve.vote = True
  found = solve.open_task(config)(tmp_path / 'out')['pretrained']
  vote = found.pop('vote')
  assert found == plain  # the probe is kept, and nothing else changes
  assert vote['members'] == 9 and vote['distance_bits'] > 0
  assert vote['bits'] >= vote['members_bits']
  assert vote['bits'] == pytest.approx(solving.count_bits(9, vote['loss']))
  assert 0 <= vote['accuracy'] <= 1 and 0 <= vote['tile_accuracy'] <= 1
  shown = capsys.readouterr()
  assert 'a vote of 9: bits' in shown.out and 'distance from equivariance, bits' in shown.out
