"""A tiny VOC folder whose objects are coloured squares, and a config of a detection on it."""

import pathlib
import shutil

import numpy as np
import voc_cases
from PIL import Image

from cfn_jax import command
from cfn_jax.data import proposal_files
from cfn_jax.evaluation import trunks
from cfn_jax.evaluation.detection import average_precision, devkit_files
from cfn_jax.transfer import files, surgery

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CLASSES = ('cat', 'dog')
SIZES = ((64, 80), (80, 64), (70, 70), (64, 96), (75, 60), (64, 64))  # heights and widths
# Of each image: class, box from 0, difficult. One image shows nothing.
OBJECTS = (
  [('cat', (4, 6, 40, 50), False), ('dog', (45, 10, 70, 60), False)],
  [('dog', (8, 20, 50, 70), False)],
  [('cat', (10, 10, 60, 60), False), ('cat', (0, 0, 20, 24), True)],
  [('dog', (30, 5, 90, 58), False), ('dog', (2, 30, 26, 60), True)],
  [],
  [('cat', (20, 24, 55, 60), False), ('dog', (1, 1, 30, 22), False)],
)
PLAN_FIELDS = {'weights': 'random', 'num_steps': 2, 'batch_size': 2, 'eval_batch_size': 2}


def make_voc(root, objects=OBJECTS):
  """Writes a folder of two lists, `train` and `val`, of six images each."""
  rng = np.random.default_rng(0)
  folder = root / 'JPEGImages'
  folder.mkdir(parents=True)
  for split in ('train', 'val'):
    stems = [f'{split}{index}' for index in range(len(SIZES))]
    voc_cases.write_list(root, split, stems)
    for stem, (height, width), shown in zip(stems, SIZES, objects):
      image = rng.integers(0, 120, (height, width, 3), dtype=np.uint8)
      for name, (left, top, right, bottom), _ in shown:
        image[top : bottom + 1, left : right + 1, CLASSES.index(name)] += 120
      Image.fromarray(image).save(folder / f'{stem}.png')
      write_annotation(root, stem, shown)
  return root


def write_annotation(root, stem, shown):
  objects = [
    voc_cases.write_object(name, np.add(box, 1), difficult=int(difficult))
    for name, box, difficult in shown
  ]
  voc_cases.write_annotation(root, stem, *objects)


def make_config(root, **fields):
  """Loads the small variant at a size for a test; names of fields may hold dots."""
  config = command.load_config(f'{REPOSITORY}/configs/voc07_detection.py:small')
  config.update(PLAN_FIELDS)
  config.update({'num_devices': 1, 'log_every_steps': 1, 'warmup_steps': 0})
  config.update({'eval_every_steps': 100, 'checkpoint_every_steps': 100})
  config.data.root = str(root)
  config.proposals.keep = 40
  config.images.scales_px = config.test.scales_px = (64,)
  config.images.longest_px, config.images.canvases = 107, 1
  config.model.update({'width': 0.05, 'fc6_features': 16, 'fc7_features': 16})
  config.regions.per_image, config.test.per_class = 8, 10
  config.update_from_flattened_dict(fields)
  return config


def save_alexnet(path):
  """Saves an AlexNet whose fc6 sees maps of 6 x 6 and whose fc6 and fc7 have 12 features.

  It is fed as a random one is, so that both compile to the same programs.
  """
  drawn = trunks.draw_trunk('he', seed=5, width=0.05, order='caffenet').weights
  whole = surgery.to_alexnet(drawn, num_classes=7, features=12, fc_init='he', seed=5)
  files.save_weights(whole, path)
  return path


def move_boxes(root, to):
  """Copies a folder of `make_voc`; the objects of its test images lie elsewhere there."""
  shutil.copytree(root, to)
  for index, ((height, width), shown) in enumerate(zip(SIZES, OBJECTS)):
    moved = [
      (name, (place, place + 1, width - 9 * place - 2, height - 8 * place - 2), not difficult)
      for place, (name, _, difficult) in enumerate(shown, start=1)
    ]
    write_annotation(to, f'val{index}', moved)
  return to


def save_proposals(path, boxes, split='val'):
  """Saves boxes of each image of a split, in the form of cfn_jax.prepare."""
  names = [f'{split}{index}' for index in range(len(boxes))]
  proposal_files.save(path, proposal_files.join(names, boxes))
  return path


def read_devkit(folder, *, split, class_names, stems):
  """Reads the devkit's files of each class: image, score, and a box whose pixels count from 1."""
  found = []
  for name in class_names:
    path = folder / devkit_files.name_file(split, name)
    text = path.read_text(encoding='utf8', errors='surrogateescape')
    rows = [line.rsplit(maxsplit=5) for line in text.splitlines()]
    numbers = np.array([row[1:] for row in rows], np.float64).reshape(-1, 5)
    found.append(
      average_precision.Detections(
        np.array([stems.index(row[0]) for row in rows], np.int64),
        numbers[:, 0].astype(np.float32),
        (numbers[:, 1:] - 1).astype(np.float32),
      )
    )
  return found
