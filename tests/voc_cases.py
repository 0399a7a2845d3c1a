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


def make_voc(root, training, testing):
  """Writes a folder of two lists: by stem, the objects of each image."""
  for split, images in (('train', training), ('test', testing)):
    write_list(root, split, images)
    for stem, objects in images.items():
      write_image(root, stem)
      write_annotation(root, stem, *objects)
  return root
