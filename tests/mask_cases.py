"""Folders of images with masks, in the layouts of VOC and of SBD."""

import io

import numpy as np
import scipy.io
import scipy.sparse
import voc_cases
from PIL import Image

from cfn_jax.data import mask_files

SHAPE = (80, 100)  # of the images of voc_cases


def encode(pixels, **settings):
  """Returns a PNG of any array that Pillow takes."""
  stream = io.BytesIO()
  Image.fromarray(pixels).save(stream, 'PNG', **settings)
  return stream.getvalue()


def make_mask(*numbers, shape=SHAPE):
  """Makes a mask of stripes."""
  return np.resize(np.repeat(np.array(numbers, np.uint8), 7), shape)


def encode_indexed(mask):
  picture = Image.fromarray(mask)
  picture.putpalette(mask_files.COLOURS.tobytes())
  stream = io.BytesIO()
  picture.save(stream, 'PNG')
  return stream.getvalue()


def encode_mat(mask, name='GTcls', field='Segmentation'):
  """Returns a file of SBD: a struct of edges, the mask, and the classes that it shows."""
  stream = io.BytesIO()
  edges = scipy.sparse.csc_matrix(np.eye(3))
  held = {'Boundaries': edges, field: mask, 'CategoriesPresent': np.array([[1]])}
  scipy.io.savemat(stream, {name: held}, do_compression=True)
  return stream.getvalue()


def write(root, name, data):
  path = root / name
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(data if isinstance(data, bytes) else '\n'.join(data).encode())
  return path


def make_voc(root, *, folder='SegmentationClass', classes=('nothing', 'cat', 'dog'), **lists):
  """Writes a VOC folder: of each list, by stem, the numbers in the mask."""
  for split, masks in lists.items():
    write(root, f'ImageSets/Segmentation/{split}.txt', masks)
    add_masks(root, folder, masks)
  if classes:
    write(root, 'classes.txt', classes)
  return root


def add_masks(root, folder, masks):
  for stem, numbers in masks.items():
    voc_cases.write_image(root, stem)
    write(root, f'{folder}/{stem}.png', encode_indexed(make_mask(*numbers)))


def make_sbd(root, **lists):
  """Writes an SBD folder, whose masks have no void."""
  for split, masks in lists.items():
    write(root, f'dataset/{split}.txt', masks)
    for stem, numbers in masks.items():
      voc_cases.write_image(root, stem)
      write(root, f'dataset/cls/{stem}.mat', encode_mat(make_mask(*numbers)))
  (root / 'JPEGImages').rename(root / 'dataset' / 'img')
  return root
