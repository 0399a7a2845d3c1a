"""Objects as records, and views of them: the right ones, cut with their exact bounds."""

import pickle

import numpy as np
import pytest
import voc_cases

from cfn_jax.data import pipeline, streams, voc_crops, voc_objects


@pytest.fixture(scope='module')
def objects(tmp_path_factory):
  root = tmp_path_factory.mktemp('crops')
  voc_cases.make_objects(root / 'voc')
  return root


def open_source(root, *, least_px=600, difficult=True):
  split, _, names = voc_objects.open_objects(
    root=str(root),
    split='train',
    val_root='',
    val_split='val',
    val_fraction=0.2,
    on_bad_box='fail',
    allow_empty_classes=False,
    count_difficult=True,
  )
  return voc_crops.ObjectSource(split, names, least_px=least_px, difficult=difficult)


def test_objects_are_those_of_the_area_and_kind_that_is_asked_for(objects):
  assert [len(open_source(objects / 'voc', least_px=px)) for px in (0, 600, 601, 1600)] == [
    *(16, 16, 8, 8)
  ]
  assert len(open_source(objects / 'voc', difficult=False)) == 8
  source = open_source(objects / 'voc')
  assert source.class_names == ('cat', 'cow', 'dog')
  assert source.labels()[:4].tolist() == [0, 2, 2, 1] and source.images[:4].tolist() == [0, 0, 1, 1]
  assert source[3].label == 1 and source[3].name == 'JPEGImages/train1.png'


def test_an_object_is_cut_with_its_exact_bounds():
  """No pixel outside the box has a part in the view, whether it is enlarged or shrunk."""
  image = np.full((300, 300, 3), 255, np.uint8)
  image[20:61, 10:250] = 7
  visit = pipeline.Visit(image, 1, 0, 'a', streams.make_rng(0, 0), -1)
  for side in (11, 41, 100, 260):
    made = voc_crops.MakeCrops(side, np.array([[10, 20, 249, 60]], np.float32))
    example = pickle.loads(pickle.dumps(made))(visit)
    assert example['image'].shape == (1, side, side, 3) and np.all(example['image'] == 7)
    assert example['label'].tolist() == [1, 0]
    assert made.nbytes == sum(array.nbytes for array in example.values())
  whole = voc_crops.MakeCrops(40)(visit)['image'][0]
  np.testing.assert_array_equal(whole, voc_crops.warp(image, 40))
  assert whole.min() < 20 and whole.max() > 250
