"""Writes masks as palette PNGs of class numbers in VOC's colours, as the VOC devkit reads them.

The devkit looks for `results/VOC2012/Segmentation/comp5_<split>_cls/<image>.png`. A folder written
here has that last name, so the devkit needs only a copy of it. In the devkit's rules comp5 means
training on its own data alone, comp6 on other data too. Reading a file (data/mask_files.py) returns
the written mask.
"""

import io
import pathlib

import numpy as np
from PIL import Image

from cfn_jax import names, places
from cfn_jax.data import mask_files


def name_folder(split: str) -> str:
  """Returns the devkit's folder of a list; characters that do not belong there become %XX.

  >>> name_folder('val'), name_folder(''), name_folder('my/list')
  ('comp5_val_cls', 'comp5_all_cls', 'comp5_my%2Flist_cls')
  """
  return f'comp5_{names.file_part(split or "all")}_cls'


def write_mask(folder: pathlib.Path, stem: str, mask: np.ndarray) -> pathlib.Path:
  """Writes a mask, uint8 `[H, W]`, completely or not at all; makes folders.

  Args:
    stem: the image's name without a suffix; it may include a folder.

  Returns:
    The file.
  """
  path = folder / f'{stem}.png'
  path.parent.mkdir(parents=True, exist_ok=True)
  with places.replacing(path) as temporary:
    temporary.write_bytes(encode_mask(mask))
  return path


def encode_mask(mask: np.ndarray) -> bytes:
  """Returns a mask, uint8 `[H, W]`, as the bytes of a palette PNG."""
  if mask.dtype != np.uint8 or mask.ndim != 2:
    raise ValueError(f'a mask is uint8 [H, W], not {mask.dtype} {list(mask.shape)}')
  picture = Image.fromarray(mask)
  picture.putpalette(mask_files.COLOURS.tobytes())
  stream = io.BytesIO()
  picture.save(stream, 'PNG')
  return stream.getvalue()
