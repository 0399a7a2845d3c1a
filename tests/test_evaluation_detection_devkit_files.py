"""Files of detections: what is read back is what was found, ties and all."""

import json

import detection_cases
import numpy as np

from cfn_jax.data import voc_objects
from cfn_jax.evaluation.detection import average_precision, devkit_files

NAMES = ('cat', 'traffic light', 'a/b', '猫')
STEMS = ('2008_1', 'two words', 'x.1', 'none', 'caf\udce9')
FIELDS = {'split': 'val', 'class_names': NAMES, 'stems': STEMS}


def make_detections(seed=0, count=60):
  rng = np.random.default_rng(seed)
  found = []
  for _ in NAMES:
    images = np.sort(rng.choice([0, 1, 2, 4], count))
    scores = rng.random(count).astype(np.float32)
    scores[1::3] = scores[::3]  # ties
    scores[2::3] = np.nextafter(scores[::3], np.float32(1))  # and the next number to them
    boxes = rng.uniform(0, 90, (count, 4)).astype(np.float32).cumsum(axis=1)
    found.append(average_precision.Detections(images, scores, boxes))
  return found


def make_objects(found, image):
  """Takes the first boxes that were found in an image, some as difficult ones, for its objects."""
  own = [each.boxes[each.images == image][:3] for each in found]
  numbers = np.repeat(np.arange(len(own)), [len(each) for each in own]).astype(np.int32)
  return voc_objects.Objects(
    np.concatenate(own), numbers, np.arange(len(numbers)) % 3 == 2, (400, 400)
  )


def test_a_line_is_image_score_and_box_from_one(tmp_path):
  one = average_precision.Detections(
    np.array([1, 0]), np.float32([0.25, 0.5]), np.float32([[0, 1, 2, 3.5], [9, 9, 99, 99]])
  )
  (path,) = devkit_files.write_devkit(
    tmp_path / 'new', [one], split='', class_names=['traffic light'], stems=STEMS
  )
  assert path.name == 'comp3_det_all_traffic%20light.txt'
  assert path.read_text() == 'two words 0.25 1 2 3 4.5\n2008_1 0.5 10 10 100 100\n'
  assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_what_is_read_is_what_was_written(tmp_path):
  found = make_detections()
  devkit_files.write_devkit(tmp_path, found, **FIELDS)
  assert len(list(tmp_path.iterdir())) == len(NAMES)
  for ours, theirs in zip(found, detection_cases.read_devkit(tmp_path, **FIELDS), strict=True):
    np.testing.assert_array_equal(ours.images, theirs.images)
    np.testing.assert_array_equal(ours.scores, theirs.scores)
    np.testing.assert_allclose(ours.boxes, theirs.boxes, atol=1e-6, rtol=1e-7)


def test_the_figures_of_files_are_those_of_the_arrays(tmp_path):
  found = make_detections(1)
  objects = [make_objects(found, image) for image in range(len(STEMS))]
  before = average_precision.judge_classes(found, objects, NAMES)
  devkit_files.write_devkit(tmp_path, found, **FIELDS)
  read = detection_cases.read_devkit(tmp_path, **FIELDS)
  after = average_precision.judge_classes(read, objects, NAMES)
  assert before.eleven_points == after.eleven_points and before.area == after.area
  assert 0 < before.mean_area < 1


def test_json_says_the_same_by_image(tmp_path):
  found = make_detections(2)
  devkit_files.write_json(tmp_path / 'found.json', found, **FIELDS)
  told = json.loads((tmp_path / 'found.json').read_text())
  assert told['classes'] == list(NAMES) and told['split'] == 'val'
  assert list(told['images']) == list(STEMS) and told['images']['none'] == []
  rows = {
    (stem, each['class'], np.float32(each['score']), *np.float32(each['box']))
    for stem, all_of in told['images'].items()
    for each in all_of
  }
  assert rows == {
    (STEMS[image], name, score, *box)
    for name, own in zip(NAMES, found)
    for image, score, box in zip(*own)
  }
  for all_of in told['images'].values():
    scores = [each['score'] for each in all_of]
    assert scores == sorted(scores, reverse=True)
