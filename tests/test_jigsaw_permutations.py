"""Laws of the permutation sets: Algorithm 1, wanted means, minimum distances, groups, grids."""

import collections
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import scipy.spatial.distance

from cfn_jax.jigsaw.permutation_sets import assignment, groups, measures, permutations, target
from cfn_jax.jigsaw.permutation_sets.permutations import (
  PermutationError,
  make_permutations,
  summarize,
)


def get_pairs(rows):
  """Distances of all distinct pairs, in tiles, by SciPy: independent of ours."""
  return np.rint(scipy.spatial.distance.pdist(rows, 'hamming') * rows.shape[1]).astype(int)


def assert_set(rows, num, tiles):
  assert rows.shape == (num, tiles)
  assert rows.dtype == np.uint8
  assert (np.sort(rows, axis=1) == np.arange(tiles)).all()
  assert len(np.unique(rows, axis=0)) == num


def run_algorithm_1(num, tiles, method, first):
  """The paper's pseudo-code, word for word, with the first of equals: all distances, every step."""
  everything = np.array(list(itertools.permutations(range(tiles))))
  chosen = [everything[first]]
  left = np.delete(everything, first, axis=0)
  while len(chosen) < num:
    distances = sum((left != row).sum(1) for row in chosen)
    k = np.argmax(distances) if method == 'max' else np.argmin(distances)
    chosen.append(left[k])
    left = np.delete(left, k, axis=0)
  return np.array(chosen)


def get_first_index(row):
  everything = list(itertools.permutations(range(len(row))))
  return everything.index(tuple(row.tolist()))


@pytest.mark.parametrize('method', ['max', 'min'])
@pytest.mark.parametrize(('seed', 'num'), [(0, 11), pytest.param(1, 30, marks=pytest.mark.slow)])
def test_first_ties_equal_the_pseudo_code_on_3x3(method, seed, num):
  made = make_permutations(num, method=method, ties='first', seed=seed)
  expected = run_algorithm_1(num, 9, method, get_first_index(made[0]))
  np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize('method', ['max', 'min'])
@pytest.mark.parametrize('num', range(2, 25))
def test_first_ties_equal_the_pseudo_code_on_every_2x2_set(method, num):
  for seed in range(4):
    made = make_permutations(num, method=method, ties='first', seed=seed, grid=2)
    expected = run_algorithm_1(num, 4, method, get_first_index(made[0]))
    np.testing.assert_array_equal(made, expected)


def assert_steps_are_best(rows, method, ties, min_distance=1):
  """Checks each row against the sums over all permutations, for sets that draw among equals."""
  num, tiles = rows.shape
  assert_set(rows, num, tiles)
  everything = np.array(list(itertools.permutations(range(tiles))), np.uint8)
  sums = np.zeros(len(everything), int)
  nearest = np.full(len(everything), 99)
  for n, row in enumerate(rows):
    if n:
      free = nearest >= min_distance
      best = sums[free].max() if method == 'max' else sums[free].min()
      mine = (everything == row).all(1)
      assert free[mine], f'step {n}'
      assert sums[mine] == best, f'step {n}'
      if ties == 'spread':
        tied = free & (sums == best)
        assert nearest[mine] == nearest[tied].max(), f'step {n}'
    distances = (everything != row).sum(1)
    sums += distances
    nearest = np.minimum(nearest, distances)


@pytest.mark.parametrize('ties', ['random', 'spread'])
@pytest.mark.parametrize('method', ['max', 'min'])
@pytest.mark.parametrize(('num', 'grid'), [(14, 3), (24, 2)])
def test_every_step_takes_a_best_permutation(method, ties, num, grid):
  rows = make_permutations(num, method=method, ties=ties, seed=5, grid=grid)
  assert_steps_are_best(rows, method, ties)


@pytest.mark.parametrize('ties', ['random', 'spread', 'first'])
def test_every_step_takes_a_best_of_those_far_enough(ties):
  # At distance 7 the best of all are soon too close: the search goes on to the next best.
  rows = target.make_extreme(
    20, 9, method='max', ties=ties, min_distance=7, rng=measures.make_rng(1)
  )
  assert_steps_are_best(rows, 'max', ties, 7)


def test_random_ties_are_drawn_evenly():
  # After the first of a 2x2 set, `max` has the 9 permutations without a fixed point to choose from.
  counts = collections.Counter()
  for seed in range(1800):
    first, second = make_permutations(2, grid=2, ties='random', seed=seed)
    counts[tuple(np.argsort(first)[second].tolist())] += 1
  assert len(counts) == 9
  # 200 each; five standard deviations of a binomial count
  assert max(abs(count - 200) for count in counts.values()) < 5 * math.sqrt(1800 / 9 * 8 / 9)


def test_mid_draws_every_permutation_evenly():
  counts = np.zeros((4, 4), int)
  for seed in range(1500):
    rows = make_permutations(3, method='mid', grid=2, seed=seed)
    counts += measures.count_values(rows)
  # 1125 each; five standard deviations
  assert np.abs(counts - 1125).max() < 5 * math.sqrt(4500 / 4 * 3 / 4)
  rows = make_permutations(1000, method='mid')
  assert_set(rows, 1000, 9)
  assert summarize(rows).mean_hamming == pytest.approx(8.0, abs=0.02)
  assert_set(make_permutations(24, method='mid', grid=2), 24, 4)


def test_same_seed_gives_the_same_bytes_in_another_process():
  code = (
    'from cfn_jax.jigsaw.permutation_sets import permutations as p\n'
    "for m in ('max', 'min', 'mid', 'code'):\n"
    '  for g in (3, 4) if m != "code" else (3,):\n'
    '    print(p.fingerprint(p.make_permutations(60, method=m, seed=7, grid=g)))\n'
  )
  runs = [
    subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout
    for _ in range(2)
  ]
  assert runs[0] == runs[1]
  mine = [
    permutations.fingerprint(make_permutations(60, method=m, seed=7, grid=g))
    for m, g in [('max', 3), ('max', 4), ('min', 3), ('min', 4), ('mid', 3), ('mid', 4)]
  ]
  assert runs[0].split()[:6] == mine


@pytest.mark.parametrize('method', ['max', 'min', 'mid', 'code'])
def test_another_seed_gives_another_first_permutation(method):
  firsts = {tuple(make_permutations(2, method=method, seed=seed)[0]) for seed in range(8)}
  assert len(firsts) == 8


def test_known_bytes_of_seed_0():
  # A set is a part of a published result: these may change only with the version of the project.
  found = {
    method: permutations.fingerprint(make_permutations(100, method=method))[:16]
    for method in ('max', 'min', 'mid', 'code')
  }
  assert found == {
    'max': '73b7f0cf83f90f0f',
    'min': 'd236e31b3e8a6e3d',
    'mid': '5d47f2d6b5409031',
    'code': 'accc087ad6d810ba',
  }


@pytest.mark.parametrize('seed', range(8))
def test_spread_reaches_minimum_4_at_the_largest_mean(seed):
  rows = make_permutations(100, seed=seed)
  pairs = get_pairs(rows)
  assert pairs.mean() == pytest.approx(8.08, abs=1e-9)
  assert pairs.min() >= 4


@pytest.mark.parametrize('ties', ['random', 'first'])
def test_other_ties_have_the_same_mean_and_a_smaller_minimum(ties):
  sets = [make_permutations(100, seed=seed, ties=ties) for seed in range(8)]
  assert [summarize(rows).mean_hamming for rows in sets] == pytest.approx([8.08] * 8)
  assert min(summarize(rows).min_hamming for rows in sets) <= 3


def test_min_gives_the_means_of_algorithm_1():
  assert summarize(make_permutations(100, method='min', ties='first')).mean_hamming == (
    pytest.approx(3.998, abs=5e-4)
  )
  assert summarize(make_permutations(1000, method='min')).mean_hamming == (
    pytest.approx(5.455, abs=5e-3)
  )


# --- measures ---


@pytest.mark.parametrize(('num', 'grid'), [(2, 3), (40, 4), (1500, 3)])
def test_summary_agrees_with_scipy(num, grid):
  rows = make_permutations(num, method='mid', grid=grid)
  pairs = get_pairs(rows)
  summary = summarize(rows)
  assert summary.mean_hamming == pytest.approx(pairs.mean())
  assert summary.min_hamming == pairs.min()
  np.testing.assert_array_equal(
    measures.count_distances(rows), np.bincount(pairs, minlength=grid**2 + 1)
  )
  assert measures.get_min_distance(np.concatenate([rows, rows[:1]])) == 0


def test_largest_mean_is_the_best_that_counts_allow():
  # Every way to spread N over the values of one position, for N small enough to go through them.
  for tiles in (3, 4):
    for num in range(2, 11):
      best = max(
        num * (num - 1) - sum(c * (c - 1) for c in counts)
        for counts in itertools.product(range(num + 1), repeat=tiles)
        if sum(counts) == num
      )
      expected = tiles * best / (num * (num - 1))
      assert measures.get_largest_mean(num, tiles) == pytest.approx(expected)
  assert measures.get_largest_mean(10, 9) == pytest.approx(8.8)
  assert measures.get_largest_mean(5, 9) == 9


def test_fingerprint_depends_on_values_and_shape_alone():
  rows = make_permutations(20)
  same = np.asfortranarray(rows.astype(np.int64))
  assert permutations.fingerprint(rows) == permutations.fingerprint(same)
  assert permutations.fingerprint(rows) != permutations.fingerprint(rows[::-1])
  assert permutations.fingerprint(rows) != permutations.fingerprint(rows.reshape(9, 20))


# --- a wanted mean ---


@pytest.mark.parametrize('mean', [5.47, 6.35, 7.2, 7.9, 8.0])
def test_target_reaches_the_mean_with_1000(mean):
  rows = make_permutations(1000, method='target', mean=mean)
  assert_set(rows, 1000, 9)
  assert get_pairs(rows).mean() == pytest.approx(mean, abs=0.01)


@pytest.mark.parametrize('share', [0, 0.002, 0.01, 0.05, 0.3, 0.7, 0.99, 1])
@pytest.mark.parametrize(('num', 'grid'), [(100, 3), (60, 4)])
def test_target_reaches_the_whole_range(share, num, grid):
  low, high = permutations.find_mean_range(num, grid=grid)
  mean = low + share * (high - low)
  rows = make_permutations(num, method='target', mean=mean, grid=grid)
  assert_set(rows, num, grid**2)
  assert get_pairs(rows).mean() == pytest.approx(mean, abs=0.01)


def test_target_keeps_the_mean_from_the_start_in_the_middle_of_the_range():
  rows = make_permutations(400, method='target', mean=7.0)
  for n in (50, 100, 200):
    assert get_pairs(rows[:n]).mean() == pytest.approx(7.0, abs=0.02)


# --- a minimum distance ---


def find_most(rows, distance):
  """The exact size of the largest subset with that minimum distance, by integer programming."""
  clash = scipy.spatial.distance.squareform(get_pairs(rows) < distance)
  i, j = np.nonzero(np.triu(clash, 1))
  pairs = scipy.sparse.csr_array(
    (np.ones(2 * len(i)), (np.repeat(np.arange(len(i)), 2), np.stack([i, j], 1).ravel())),
    shape=(len(i), len(rows)),
  )
  found = scipy.optimize.milp(
    -np.ones(len(rows)),
    constraints=scipy.optimize.LinearConstraint(pairs, -np.inf, 1),
    integrality=np.ones(len(rows)),
    bounds=scipy.optimize.Bounds(0, 1),
  )
  assert found.success
  return round(-found.fun)


@pytest.mark.parametrize(
  ('distance', 'at_least'), [(3, 95), (4, 87), (5, 79), (6, 52), (7, 32), (8, 13), (9, 9)]
)
def test_pruning_keeps_as_many_of_the_authors_100_as_can_be(shared_data, distance, at_least):
  loaded = permutations.load_permutations(shared_data('permutations/permutations_100_max.bin'))
  kept = permutations.prune_permutations(loaded.permutations, min_distance=distance)
  assert get_pairs(kept).min() >= distance
  assert len(kept) >= at_least
  assert len(kept) == find_most(loaded.permutations, distance)
  whole = {row.tobytes() for row in loaded.permutations}
  assert all(row.tobytes() in whole for row in kept)


@pytest.mark.parametrize(
  ('distance', 'at_least'), [(3, 100), (4, 100), (5, 98), (6, 90), (7, 59), (8, 13), (9, 8)]
)
def test_pruning_a_spread_set_keeps_more(distance, at_least):
  for seed in range(3):
    kept = make_permutations(0, min_distance=distance, seed=seed)
    assert get_pairs(kept).min() >= distance
    assert len(kept) >= at_least


@pytest.mark.parametrize(
  ('num', 'distance', 'paper_mean'),
  [
    (95, 3, 8.08),
    (85, 4, 8.07),
    (71, 5, 8.07),
    (35, 6, 8.13),
    (10, 7, 8.57),
    (7, 8, 8.95),
    (6, 9, 9),
  ],
)
def test_sets_of_table_4_are_no_worse_than_the_papers(num, distance, paper_mean):
  rows = make_permutations(num, min_distance=distance)
  assert_set(rows, num, 9)
  pairs = get_pairs(rows)
  assert pairs.min() >= distance
  assert pairs.mean() >= paper_mean - 0.005


def test_a_minimum_distance_holds_for_more_than_a_hundred():
  rows = make_permutations(1000, min_distance=5)
  assert_set(rows, 1000, 9)
  pairs = get_pairs(rows)
  assert pairs.min() >= 5
  assert pairs.mean() == pytest.approx(8.008, abs=1e-3)


# --- groups ---


@pytest.mark.parametrize('group', groups.GROUPS, ids=lambda group: group.name)
def test_groups_are_groups_with_the_minimum_distance_and_the_largest_mean(group):
  rows = groups.make_group(group.name)
  assert_set(rows, group.size, 9)
  members = {row.tobytes() for row in rows}
  rng = np.random.default_rng(0)
  for a in rows[rng.integers(len(rows), size=60)]:
    assert all(row.tobytes() in members for row in a[rows])  # closed, hence a group
  pairs = get_pairs(rows)
  assert pairs.min() == group.min_distance
  assert pairs.mean() == pytest.approx(measures.get_largest_mean(group.size, 9), abs=1e-9)


def test_fields_are_fields():
  for prime, polynomial in [(3, (2, 0)), (2, (1, 1, 0))]:
    add, multiply = groups.make_field(prime, polynomial)
    q = len(add)
    for table, start in [(add, 0), (multiply, 1)]:
      np.testing.assert_array_equal(table, table.T)
      assert (np.sort(table[start:, start:], axis=1) == np.arange(start, q)).all()  # Latin square
      np.testing.assert_array_equal(table[table], table[np.arange(q)[:, None, None], table])
    left = multiply[np.arange(q)[:, None, None], add]
    right = add[multiply[:, :, None], multiply[:, None, :]]
    np.testing.assert_array_equal(left, right)  # a (b + c) = a b + a c


@pytest.mark.parametrize(
  ('num', 'minimum'),
  [
    (2, 9),
    (9, 9),
    (10, 8),
    (50, 8),
    (72, 8),
    (73, 7),
    (100, 7),
    (500, 7),
    (504, 7),
    (505, 6),
    (1000, 6),
  ],
)
def test_codes_of_every_size_have_the_largest_mean(num, minimum):
  rows = make_permutations(num, method='code', seed=3)
  assert_set(rows, num, 9)
  pairs = get_pairs(rows)
  assert pairs.min() >= minimum
  assert pairs.mean() == pytest.approx(measures.get_largest_mean(num, 9), abs=1e-9)


def test_code_takes_the_largest_group_that_keeps_a_minimum_distance():
  for distance, size in [(9, 9), (8, 72), (7, 504), (6, 1512)]:
    assert_set(make_permutations(0, method='code', min_distance=distance), size, 9)


# --- other grids ---


@pytest.mark.parametrize('grid', [2, 4, 5])
@pytest.mark.parametrize('method', ['max', 'min', 'mid'])
def test_other_grids_give_sets(grid, method):
  num = 24 if grid == 2 else 120
  assert_set(make_permutations(num, grid=grid, method=method), num, grid**2)


def test_grids_may_be_oblong():
  for rows, columns in [(2, 3), (3, 4), (5, 2)]:
    made = make_permutations(50, grid=rows, columns=columns)
    assert_set(made, 50, rows * columns)


@pytest.mark.parametrize('grid', [4, 5])
def test_larger_grids_reach_the_largest_mean(grid):
  for num in (10, 100, 333):
    rows = make_permutations(num, grid=grid)
    bound = measures.get_largest_mean(num, grid**2)
    assert get_pairs(rows).mean() == pytest.approx(bound, abs=1e-9)


def test_assignment_on_3x3_is_as_good_as_going_through_all():
  for seed in range(3):
    rng = measures.make_rng(seed)
    first = rng.permutation(9).astype(np.uint8)
    for num in (9, 50, 100, 200):
      far = assignment.extend_farthest(first[None], num, ties='spread', min_distance=0, rng=rng)
      assert_set(far, num, 9)
      exhaustive = summarize(make_permutations(num, seed=seed)).mean_hamming
      assert get_pairs(far).mean() >= exhaustive - 1e-9
      near = assignment.extend_nearest(first, num, ties='random', rng=rng)
      assert_set(near, num, 9)
      exhaustive = summarize(make_permutations(num, seed=seed, method='min')).mean_hamming
      assert get_pairs(near).mean() <= exhaustive + 0.02


def test_larger_grids_keep_a_minimum_distance():
  rows = make_permutations(150, grid=4, min_distance=12)
  assert_set(rows, 150, 16)
  assert get_pairs(rows).min() >= 12


# --- bad input ---


@pytest.mark.parametrize(
  ('arguments', 'words'),
  [
    ({'num': 1}, 'num=1: must be at least 2'),
    ({'num': 0}, 'num=0: must be at least 2'),
    ({'num': -3}, 'num=-3: must be at least 2'),
    ({'num': 25, 'grid': 2}, 'at most 24'),
    ({'num': 400_000}, 'at most 362880'),
    ({'num': 1513, 'method': 'code'}, 'PGammaL.* has 1512'),
    ({'num': 505, 'method': 'code', 'min_distance': 7}, 'at most 504'),
    ({'num': 73, 'min_distance': 8}, 'at most 72'),
    ({'num': 80, 'min_distance': 7}, 'of 100 permutations [0-9]+ are left .* code has 504'),
    ({'num': 400, 'min_distance': 7}, 'finds [0-9]+ at minimum distance 7; method code has 504'),
    ({'num': 10, 'method': 'best'}, "method='best': must be one of max, min"),
    ({'num': 10, 'ties': 'last'}, "ties='last': must be one of spread"),
    ({'num': 10, 'grid': 1}, 'grid=1x1: must be 2 to 5'),
    ({'num': 10, 'grid': 6}, 'grid=6x6: must be 2 to 5'),
    ({'num': 10, 'seed': -1}, 'seed=-1'),
    ({'num': 100, 'method': 'target'}, 'mean=0: method target needs'),
    ({'num': 100, 'method': 'target', 'mean': 3.5}, r'out of range: .* 4\.0\d\d to 8\.080'),
    ({'num': 100, 'method': 'target', 'mean': 8.5}, r'out of range: .* 4\.0\d\d to 8\.080'),
    ({'num': 2, 'method': 'target', 'mean': 6.5}, r'cannot have it within 0\.01; the nearest'),
    ({'num': 100, 'mean': 8.0}, 'goes with method target'),
    ({'num': 10, 'min_distance': 10}, 'min_distance=10: must be 0'),
    ({'num': 10, 'min_distance': -1}, 'min_distance=-1: must be 0'),
    ({'num': 10, 'min_distance': 4, 'method': 'min'}, 'goes with method max or code'),
    ({'num': 20, 'method': 'code', 'grid': 4}, 'need a 3x3 grid'),
    ({'num': 10, 'grid': 4, 'ties': 'first'}, 'use spread or random'),
  ],
)
def test_bad_input_is_refused_in_one_line(arguments, words):
  with pytest.raises(PermutationError, match=words) as caught:
    make_permutations(**arguments)
  assert '\n' not in str(caught.value)


def test_loader_processes_import_no_jax():
  code = (
    'import sys; from cfn_jax.jigsaw.permutation_sets import permutations\n'
    'permutations.make_permutations(5)\n'
    "print(sorted(m for m in sys.modules if m.split('.')[0] in ('jax', 'flax', 'matplotlib')))"
  )
  found = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert found.stdout.strip() == '[]'
