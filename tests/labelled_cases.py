"""Tiny labelled photographs: class folders and a VOCdevkit, made in a test's own folder."""

import pathlib
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from cfn_jax import command

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CLASSES = ('blue', 'green', 'red')
NETWORK = {'fc6_features': 16, 'fc7_features': 16, 'width': 0.1}


def draw_image(rng, channel, height=80, width=96):
  """Draws noise in which one colour is strong."""
  image = rng.integers(0, 120, (height, width, 3))
  image[..., channel] += 120
  return Image.fromarray(image.astype(np.uint8))


def make_class_folders(root, *, train=8, test=5, classes=CLASSES):
  """Writes `train` and `test` folders of `classes`, so many images of each."""
  rng = np.random.default_rng(0)
  for split, count in (('train', train), ('test', test)):
    for number, name in enumerate(classes):
      folder = root / split / name
      folder.mkdir(parents=True)
      for index in range(count):
        draw_image(rng, 2 - number).save(folder / f'{index}.png')
  return root


def make_voc(root, *, train=12, val=9):
  """Writes a VOCdevkit folder of the classes cat, dog and person.

  Image i shows class i % 3; every fourth also a difficult person. Some annotations have no
  `difficult` tag.
  """
  rng = np.random.default_rng(1)
  names = ('cat', 'dog', 'person')
  for folder in ('JPEGImages', 'Annotations', 'ImageSets/Main'):
    (root / folder).mkdir(parents=True)
  for split, count in (('train', train), ('val', val)):
    stems = [f'2008_{split}{index:03d}' for index in range(count)]
    (root / 'ImageSets' / 'Main' / f'{split}.txt').write_text('\n'.join(stems) + '\n')
    lines = {name: [] for name in names}
    for index, stem in enumerate(stems):
      draw_image(rng, index % 3, height=90 + 5 * (index % 4)).save(root / f'JPEGImages/{stem}.jpg')
      objects = [(names[index % 3], '' if index % 2 else '0')]
      if index % 4 == 3:
        objects.append(('person', '1'))
      write_annotation(root / 'Annotations' / f'{stem}.xml', objects)
      for name in names:
        marks = [mark for shown, mark in objects if shown == name]
        value = -1 if not marks else 0 if set(marks) == {'1'} else 1
        lines[name].append(f'{stem} {value:2d}')
    for name in names:
      path = root / 'ImageSets' / 'Main' / f'{name}_{split}.txt'
      path.write_text('\n'.join(lines[name]) + '\n')
  return root


def write_annotation(path, objects):
  tree = ElementTree.Element('annotation')
  for name, difficult in objects:
    each = ElementTree.SubElement(tree, 'object')
    ElementTree.SubElement(each, 'name').text = name
    if difficult:
      ElementTree.SubElement(each, 'difficult').text = difficult
  path.write_bytes(ElementTree.tostring(tree))


def make_config(name, root, **fields):
  """Loads the small variant of a config, at a size for a test, on the images under `root`."""
  config = command.load_config(f'{REPOSITORY}/configs/{name}.py:small')
  config.update(
    {
      'num_steps': 3,
      'batch_size': 8,
      'eval_batch_size': 8,
      'eval_every_steps': 100,
      'checkpoint_every_steps': 100,
      'log_every_steps': 1,
      'warmup_steps': 0,
      'weights': 'random',
    }
    if name != 'recognition'
    else {'num_steps': 3, 'batch_size': 8, 'eval_batch_size': 8, 'log_every_steps': 1}
  )
  if name == 'voc07_classification':
    config.data.root = str(root)
  elif name != 'alexnet_to_jigsaw':
    config.data.root, config.data.val_root = str(root / 'train'), str(root / 'test')
  if name != 'alexnet_to_jigsaw':
    config.model.update(NETWORK)
    config.views.view_px = 67
    config.test.draws = 2
  if 'resize_px' in config.get('views', {}):
    config.views.resize_px = 72
  config.update_from_flattened_dict(fields)
  return config
