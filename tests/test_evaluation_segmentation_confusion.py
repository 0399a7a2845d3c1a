"""Figures of segmentations: known cases, other implementations, how sure a mean is, files."""

import fractions
import json
import tarfile

import numpy as np
import pytest
import sklearn.metrics
from PIL import Image

from cfn_jax.data import mask_files
from cfn_jax.evaluation import scores as score_lib
from cfn_jax.evaluation.segmentation import confusion, mask_pngs

FIGURES = ('pixel_accuracy', 'mean_accuracy', 'mean_iou', 'frequency_weighted_iou')

# Truth, answer, the four figures, the IoU of each class that has one; each by hand.
CASES = {
  # One void pixel answered as 2. Class 0: 2 right of 2 + 1; class 1: 1 right of 2.
  'void': (
    [[0, 0, 1, 1, 255]],
    [[0, 0, 1, 0, 2]],
    ('3/4', '3/4', '7/12', '7/12'),
    {0: '2/3', 1: '1/2'},
  ),
  # Class 2 is only answered: its IoU of 0 counts, its accuracy does not.
  'only answered': (
    [[0, 0, 0], [1, 1, 1]],
    [[0, 0, 2], [1, 1, 1]],
    ('5/6', '5/6', '5/9', '5/6'),
    {0: '2/3', 1: '1', 2: '0'},
  ),
  'all wrong': ([[0, 1]], [[1, 0]], ('0', '0', '0', '0'), {0: '0', 1: '0'}),
}


def score(truths, answers, classes=21, **settings):
  pairs = zip(map(np.array, truths), map(np.array, answers))
  return confusion.measure(
    sum(confusion.count(truth, answer, classes) for truth, answer in pairs), **settings
  )


def check(scores, figures, iou, tolerance=1e-15):
  for name, figure in zip(FIGURES, figures):
    assert getattr(scores, name) == pytest.approx(figure, rel=tolerance, nan_ok=True), name
  assert np.flatnonzero(~np.isnan(scores.iou)).tolist() == sorted(iou)
  for number, figure in iou.items():
    assert scores.iou[number] == pytest.approx(figure, rel=tolerance)


@pytest.mark.parametrize('name', CASES)
def test_cases_by_hand(name):
  truth, answer, figures, iou = CASES[name]
  exact = {number: float(fractions.Fraction(text)) for number, text in iou.items()}
  check(score([truth], [answer]), [float(fractions.Fraction(text)) for text in figures], exact)


def test_published_cases(shared_root):
  cases = json.loads(shared_root('golden/voc_segmentation_cases.json').read_text())['cases']
  assert len(cases) == 8
  for case in cases:
    scores = score(case['truth'], case['prediction'])
    figures = [np.nan if case[name] is None else case[name] for name in FIGURES]
    check(scores, figures, {int(number): iou for number, iou in case['iou'].items()}, 4e-15)
    assert scores.pixels == case['counted_pixels']


def make_pictures(rng, images=30, classes=6, right=0.7):
  """Makes truths with void, and answers; class 4 is in no truth, 5 nowhere."""
  truths = rng.integers(0, 4, (images, 9, 11))
  truths[rng.random(truths.shape) < 0.1] = confusion.VOID
  answers = np.where(rng.random(truths.shape) < right, truths, rng.integers(0, 5, truths.shape))
  answers[truths == confusion.VOID] = classes - 1
  return truths, answers


def test_counts_and_figures_are_those_of_scikit_learn():
  truths, answers = make_pictures(np.random.default_rng(0))
  scores = score(truths, answers, 6)
  counted = truths != confusion.VOID
  true, said = truths[counted], answers[counted]
  histogram = sum(confusion.count(*pair, 6) for pair in zip(truths, answers))
  assert histogram.dtype == np.int64
  theirs = sklearn.metrics.confusion_matrix(true, said, labels=range(6))
  np.testing.assert_array_equal(histogram, theirs)
  jaccard = sklearn.metrics.jaccard_score(true, said, labels=range(5), average=None)
  np.testing.assert_allclose(scores.iou[:5], jaccard, rtol=1e-15)
  assert np.isnan(scores.iou[5]) and scores.iou[4] == 0
  assert scores.mean_iou == pytest.approx(jaccard.mean(), rel=1e-15)
  weighted = sklearn.metrics.jaccard_score(true, said, average='weighted')
  assert scores.frequency_weighted_iou == pytest.approx(weighted, rel=1e-14)
  recall = sklearn.metrics.recall_score(true, said, labels=range(4), average=None)
  np.testing.assert_allclose(scores.accuracy[:4], recall, rtol=1e-15)
  assert np.isnan(scores.accuracy[4:]).all()
  assert scores.mean_accuracy == pytest.approx(recall.mean(), rel=1e-15)
  assert scores.pixel_accuracy == np.mean(true == said) and scores.pixels == len(true)


def test_a_class_that_is_left_out_counts_in_no_mean():
  truth, answer = [[[0, 0, 1, 255]]], [[[0, 2, 1, 2]]]
  assert score(truth, answer).mean_iou == 0.5
  scores = score(truth, answer, left_out=(2,))
  assert scores.mean_iou == 0.75 and np.isnan(scores.iou[2]) and scores.pixel_accuracy == 2 / 3
  with pytest.raises(ValueError, match='left out'):
    score(truth, answer, left_out=(1,))


def test_numbers_of_no_class_are_refused():
  truth = np.zeros((2, 2), np.uint8)
  for wrong in (truth + 3, truth + 255, truth.astype(int) - 1):
    with pytest.raises(ValueError, match='answer holds numbers'):
      confusion.count(truth, wrong, 3)
  with pytest.raises(ValueError, match='truth holds numbers from 3'):
    confusion.count(truth + 3, truth, 3)
  with pytest.raises(ValueError, match='shape'):
    confusion.count(truth, truth[:1], 3)


def count_each(truths, answers, classes=6):
  return np.stack([confusion.count(*pair, classes) for pair in zip(truths, answers)])


def test_draws_are_means_of_the_drawn_images():
  histograms = count_each(*make_pictures(np.random.default_rng(1), images=7, right=0.5))
  drawn = confusion.draw_means(histograms, draws=50, seed=3, left_out=(4,))
  rng = np.random.Generator(np.random.Philox(key=[3, 7]))
  for mean, times in zip(drawn, rng.multinomial(7, np.full(7, 1 / 7), size=50)):
    chosen = np.repeat(histograms, times, axis=0)
    assert mean == pytest.approx(
      confusion.measure(chosen.sum(0), left_out=(4,)).mean_iou, rel=1e-12
    )
  np.testing.assert_array_equal(
    drawn[:9], confusion.draw_means(histograms, seed=3, left_out=(4,))[:9]
  )


def test_the_interval_holds_the_mean_and_narrows_with_images():
  widths = []
  for images in (20, 320):
    histograms = count_each(*make_pictures(np.random.default_rng(2), images=images))
    low, high = score_lib.find_interval(confusion.draw_means(histograms))
    assert low < confusion.measure(histograms.sum(0)).mean_iou < high
    widths.append(high - low)
  assert 2.5 < widths[0] / widths[1] < 6.5  # the root of 16 is 4
  assert score_lib.find_interval(np.append(np.arange(1001), np.nan)) == (25, 975)
  empty = np.zeros((3, 6, 6), np.int64)
  assert np.isnan(score_lib.find_interval(confusion.draw_means(empty, draws=5))).all()


def test_two_runs_are_compared_on_the_same_draws():
  rng = np.random.default_rng(3)
  truths, answers = make_pictures(rng, images=60)
  better = np.where(rng.random(truths.shape) < 0.1, np.minimum(truths, 5), answers)
  first, second = (
    {'iou': confusion.measure(each.sum(0)).mean_iou}
    | score_lib.keep_draws('iou', confusion.draw_means(each))
    for each in (count_each(truths, better), count_each(truths, answers))
  )
  difference, low, high = score_lib.compare(first, second, 'iou')
  assert 0 < low < difference < high
  assert high - low < min(each['iou_high'] - each['iou_low'] for each in (first, second)) / 2
  said = score_lib.tell_difference({'pretrained': first, 'random': second}, ['none', 'iou'])
  assert said.startswith(f'pretrained less random: {100 * difference:+.1f} points, 95 % interval +')
  assert not score_lib.tell_difference({'pretrained': first}, ['iou'])


def test_background_everywhere_on_photographs(shared_data):
  with tarfile.open(shared_data('voc2008_160.tar')) as tar:
    files = {member.name.rpartition('voc2008_160/')[2]: member for member in tar.getmembers()}
    stems = tar.extractfile(files['ImageSets/Segmentation/val.txt']).read().decode().split()
    masks = [
      mask_files.decode_mask(
        tar.extractfile(files[f'SegmentationClass/{stem}.png']).read(), name=stem
      )
      for stem in stems
    ]
  nothing = score(masks, [np.zeros_like(mask) for mask in masks])
  assert f'{100 * nothing.mean_iou:.2f} {100 * nothing.pixel_accuracy:.1f}' == '3.54 74.3'
  truth = score(masks, [np.where(mask == 255, 7, mask) for mask in masks])
  assert truth.mean_iou == truth.mean_accuracy == truth.pixel_accuracy == 1


def test_written_masks_read_back_equal_in_the_colours_of_voc(tmp_path):
  mask = np.random.default_rng(0).integers(0, 256, (23, 31)).astype(np.uint8)
  folder = tmp_path / mask_pngs.name_folder('val')
  path = mask_pngs.write_mask(folder, 'street/2007_000033', mask)
  assert path == tmp_path / 'comp5_val_cls/street/2007_000033.png'
  np.testing.assert_array_equal(mask_files.decode_mask(path.read_bytes(), name='x'), mask)
  with Image.open(path) as picture:
    assert picture.mode == 'P'
    np.testing.assert_array_equal(np.array(picture), mask)
    np.testing.assert_array_equal(np.array(picture.convert('RGB')), mask_files.COLOURS[mask])
  mask_pngs.write_mask(folder, 'street/2007_000033', mask[:1])
  assert [each.name for each in path.parent.iterdir()] == [path.name]
  with pytest.raises(ValueError, match='float64'):
    mask_pngs.encode_mask(mask / 2)
