"""Files of named arrays: `.npz` (Flax's names and layouts) and `.safetensors` (PyTorch's).

The file contains the record of the weights: the array `record` of an `.npz`, the metadata of a
`.safetensors` file. Sizes are checked before anything is allocated. Pickles are never read.
"""

import json
import math
import pathlib
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
import safetensors
import safetensors.numpy

from cfn_jax.transfer import weights as weights_lib

WeightsError = weights_lib.WeightsError

_RECORD = 'record'
_METADATA = 'cfn_jax'
_MAX_BYTES = 2**33  # limit for one array: 8 GiB, ten times AlexNet's largest at stride 2
_DTYPES = ('float16', 'bfloat16', 'float32', 'float64')
_SAFETENSORS = {'F16': 'float16', 'BF16': 'bfloat16', 'F32': 'float32', 'F64': 'float64'}


def save_npz(path: pathlib.Path, params: weights_lib.Params, record: Mapping[str, Any]) -> None:
  """Writes `conv1/kernel`, `conv1/bias`, ... and the record; equal weights make equal bytes."""
  arrays = {f'{layer}/{name}': a for layer, named in params.items() for name, a in named.items()}
  text = json.dumps(record, sort_keys=True).encode('utf8')
  arrays[_RECORD] = np.frombuffer(text, np.uint8)
  with zipfile.ZipFile(path, 'w', zipfile.ZIP_STORED, allowZip64=True) as archive:
    for name, array in arrays.items():
      # A fixed date: np.savez would write the current one.
      info = zipfile.ZipInfo(f'{name}.npy', (1980, 1, 1, 0, 0, 0))
      with archive.open(info, 'w', force_zip64=True) as file:
        np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)


def load_npz(path: pathlib.Path) -> tuple[weights_lib.Params, dict[str, Any], list[str]]:
  """Reads a file of `save_npz`, or any `.npz` with such names.

  Returns:
    Parameters, the record (`{}` without one), and the names that were not used.

  Raises:
    WeightsError: the file is damaged, holds objects, or states sizes that it does not have.
  """
  params: weights_lib.Params = {}
  left_over = []
  with weights_lib.named_errors(path, 'damaged'):
    with zipfile.ZipFile(path) as archive:
      arrays = {
        info.filename.removesuffix('.npy'): _read_member(archive, info)
        for info in archive.infolist()
        if info.filename.endswith('.npy')
      }
    record = _parse_record(bytes(arrays.pop(_RECORD, np.empty(0, np.uint8))))
    for name, array in arrays.items():
      layer, _, kind = name.partition('/')
      if layer in weights_lib.LAYERS and kind in ('kernel', 'bias'):
        params.setdefault(layer, {})[kind] = as_float32(array, name)
      else:
        left_over.append(name)
  return params, record, left_over


def load_npy(path: pathlib.Path) -> np.ndarray:
  """Reads a `.npy` file of numbers `[...]`.

  Raises:
    WeightsError: the file is damaged, holds objects, or states a size that it does not have.
  """
  with weights_lib.named_errors(path, 'damaged'), path.open('rb') as file:
    return _read_array(file, path.stat().st_size, 'it')


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
  with archive.open(info) as file:
    return _read_array(file, info.file_size, info.filename)


def _read_array(file: IO[bytes], held: int, name: str) -> np.ndarray:
  """Reads one array whose stated shape agrees with the size of its file, `held` bytes."""
  version = np.lib.format.read_magic(file)
  read = np.lib.format.read_array_header_1_0
  shape, fortran, dtype = (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(file)
  size = math.prod(shape) * dtype.itemsize
  if dtype.hasobject or dtype.names:
    raise WeightsError(f'{name} holds {dtype}, not numbers')
  if size > min(held, _MAX_BYTES):
    raise WeightsError(
      f'{name} states {dtype} {list(shape)}, {size:,} bytes; the file has {held:,}'
    )
  data = file.read(size + 1)
  if len(data) != size:
    raise WeightsError(f'{name} has another length than its header states')
  array = np.frombuffer(bytearray(data), dtype)
  return array.reshape(shape, order='F' if fortran else 'C')


def save_safetensors(
  path: pathlib.Path, arrays: Mapping[str, np.ndarray], record: Mapping[str, Any]
) -> None:
  """Writes arrays `[...]` under PyTorch's names, and the record; equal weights have equal bytes."""
  metadata = {_METADATA: json.dumps(record, sort_keys=True)}
  safetensors.numpy.save_file(dict(arrays), path, metadata=metadata)


def load_safetensors(path: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Reads all arrays of floats as float32 `[...]`, and the record (`{}` without one).

  Raises:
    WeightsError: the file is damaged or empty, or a weight or bias in it is of another type.
  """
  with (
    weights_lib.named_errors(path, 'damaged'),
    safetensors.safe_open(path, framework='numpy') as file,
  ):
    types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    arrays = {
      name: as_float32(file.get_tensor(name), name)
      for name, kind in types.items()
      if is_float(name, _SAFETENSORS.get(kind, kind))
    }
    if not arrays:
      raise WeightsError('there is no array of floats in it')
    return arrays, _parse_record((file.metadata() or {}).get(_METADATA, '').encode('utf8'))


def is_float(name: str, dtype: str) -> bool:
  """Returns whether an array has a type that is read; counters and the like do not.

  Raises:
    WeightsError: its name is that of a weight or a bias, but its type is another.
  """
  if dtype not in _DTYPES and name.rpartition('.')[2] in ('weight', 'bias'):
    raise WeightsError(f'{name} is {dtype}: one of {", ".join(_DTYPES)} is needed')
  return dtype in _DTYPES


def as_float32(array: np.ndarray, name: str) -> np.ndarray:
  """Returns an array `[...]` as float32; raises WeightsError for another kind than floats."""
  if str(array.dtype) not in _DTYPES:
    raise WeightsError(f'{name} is {array.dtype}: one of {", ".join(_DTYPES)} is needed')
  return np.ascontiguousarray(array, np.float32)


def _parse_record(text: bytes) -> dict[str, Any]:
  record = json.loads(text or b'{}')
  if not isinstance(record, dict):
    raise WeightsError(f'its record is {type(record).__name__}, not an object')
  return record
