"""Folders of images with masks, in the layouts of VOC and of SBD, and a segmentation of one."""

import io
import pathlib

import numpy as np
import scipy.io
import scipy.sparse
import voc_cases
from PIL import Image

from cfn_jax import command
from cfn_jax.data import mask_files

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
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


def make_config(root, **fields):
  """Loads the small variant at a size for a test; names of fields may hold dots."""
  config = command.load_config(f'{REPOSITORY}/configs/voc12_segmentation.py:small')
  config.update(weights='random', num_steps=2, batch_size=2, eval_batch_size=2, num_devices=1)
  config.update(log_every_steps=1, warmup_steps=0, eval_every_steps=100, schedule='step')
  config.update(checkpoint_every_steps=100)
  config.data.root = str(root)
  config.images.canvases = 1
  config.model.update({'width': 0.05, 'fc6_features': 12, 'fc7_features': 12})
  config.update_from_flattened_dict(fields)
  return config
