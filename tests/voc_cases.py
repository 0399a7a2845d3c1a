"""A VOC folder of a test's own: images of one colour and annotations of any form."""

import numpy as np
from PIL import Image


def write_object(name='cat', box=(11, 21, 60, 70), *, difficult=None, extra=''):
  """Writes one object; its box counts from 1."""
  ends = ''.join(
    f'<{end}>{value}</{end}>' for end, value in zip(('xmin', 'ymin', 'xmax', 'ymax'), box)
  )
  mark = '' if difficult is None else f'<difficult>{difficult}</difficult>'
  return f'<object>{extra}<name>{name}</name>{mark}<bndbox>{ends}</bndbox></object>'


def write_annotation(root, stem, *objects, head=''):
  folder = root / 'Annotations'
  folder.mkdir(parents=True, exist_ok=True)
  (folder / f'{stem}.xml').write_text(f'<annotation>{head}{"".join(objects)}</annotation>')


def write_image(root, stem, width=100, height=80, suffix='.jpg', **settings):
  folder = root / 'JPEGImages'
  folder.mkdir(parents=True, exist_ok=True)
  image = Image.fromarray(np.full((height, width, 3), 90, np.uint8))
  image.save(folder / f'{stem}{suffix}', **settings)


def write_list(root, split, stems):
  folder = root / 'ImageSets' / 'Main'
  folder.mkdir(parents=True, exist_ok=True)
  (folder / f'{split}.txt').write_text('\n'.join(stems) + '\n')


def make_objects(root, *, train=8, val=6):
  """Writes images of two objects, lists `train` and `val`: a cat is blue, a dog green, a cow red.

  Image i shows object i % 3, 40 x 40 px, and object (i + 1) % 3, 30 x 20 px and difficult. Every
  fourth image is of other colours, so that not all can be told.
  """
  rng = np.random.default_rng(0)
  for split, count in (('train', train), ('val', val)):
    stems = [f'{split}{index}' for index in range(count)]
    write_list(root, split, stems)
    for index, stem in enumerate(stems):
      image = rng.integers(0, 100, (80, 100, 3), np.uint8)
      kinds = [(index + each) % 3 for each in range(2)]
      boxes = ((6, 11, 45, 50), (61, 31, 90, 50))
      for kind, (left, top, right, bottom) in zip(kinds, boxes):
        colour = (2 - kind + (index % 4 == 3)) % 3
        image[top - 1 : bottom, left - 1 : right, colour] += 120
      (root / 'JPEGImages').mkdir(exist_ok=True)
      Image.fromarray(image).save(root / 'JPEGImages' / f'{stem}.png')
      objects = [
        write_object(('cat', 'dog', 'cow')[kind], box, difficult=number)
        for number, (kind, box) in enumerate(zip(kinds, boxes))
      ]
      write_annotation(root, stem, *objects)
  return root


def make_voc(root, training, testing):
  """Writes a folder of two lists: by stem, the objects of each image."""
  for split, images in (('train', training), ('test', testing)):
    write_list(root, split, images)
    for stem, objects in images.items():
      write_image(root, stem)
      write_annotation(root, stem, *objects)
  return root
