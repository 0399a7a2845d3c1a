"""The part of Caffe's `caffe.proto` that AlexNet needs, as messages of Protocol Buffers.

One schema reads and writes both files. Names and numbers are Caffe's. Protocol Buffers skips the
fields that are not listed. All whole numbers are int64, which holds Caffe's int32 and uint32.
"""

from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Each field: its name, its number and its type; a star marks repeated ones.
_MESSAGES = {
  'BlobShape': 'dim 1 int64*',
  'BlobProto': 'num 1 int64, channels 2 int64, height 3 int64, width 4 int64, data 5 float*, '
  'shape 7 BlobShape, double_data 8 double*',
  'BatchNormParameter': 'eps 3 float',
  'ConvolutionParameter': 'num_output 1 int64, pad 3 int64*, kernel_size 4 int64*, group 5 int64, '
  'stride 6 int64*, pad_h 9 int64, pad_w 10 int64, kernel_h 11 int64, kernel_w 12 int64, '
  'stride_h 13 int64, stride_w 14 int64, dilation 18 int64*',
  'DropoutParameter': 'dropout_ratio 1 float',
  'InnerProductParameter': 'num_output 1 int64',
  'InputParameter': 'shape 1 BlobShape*',
  'LRNParameter': 'local_size 1 int64, alpha 2 float, beta 3 float, norm_region 4 int64, k 5 float',
  'PoolingParameter': 'pool 1 PoolMethod, kernel_size 2 int64, stride 3 int64, pad 4 int64, '
  'kernel_h 5 int64, kernel_w 6 int64, stride_h 7 int64, stride_w 8 int64, pad_h 9 int64, '
  'pad_w 10 int64',
  'ReshapeParameter': 'shape 1 BlobShape',
  'LayerParameter': 'name 1 string, type 2 string, bottom 3 string*, top 4 string*, '
  'blobs 7 BlobProto*, convolution_param 106 ConvolutionParameter, dropout_param 108 '
  'DropoutParameter, inner_product_param 117 InnerProductParameter, lrn_param 118 LRNParameter, '
  'pooling_param 121 PoolingParameter, reshape_param 133 ReshapeParameter, '
  'batch_norm_param 139 BatchNormParameter, input_param 143 InputParameter',
  # The form before 2015; `layer` holds the form before that one, V0.
  'V1LayerParameter': 'layer 1 bytes, bottom 2 string*, top 3 string*, name 4 string, '
  'type 5 int64, blobs 6 BlobProto*, convolution_param 10 ConvolutionParameter, lrn_param 18 '
  'LRNParameter, pooling_param 19 PoolingParameter',
  'NetParameter': 'name 1 string, layers 2 V1LayerParameter*, layer 100 LayerParameter*',
}


def _describe(*, packed: bool) -> descriptor_pb2.FileDescriptorProto:
  """Builds the schema; its edition requires UTF-8 texts and keeps unknown enum numbers.

  Args:
    packed: the numbers of arrays are bytes, which NumPy reads without a Python object for each.
      That works only for numbers in one piece: files may have them in several, or one by one.
  """
  types = descriptor_pb2.FieldDescriptorProto.Type
  features = descriptor_pb2.FeatureSet
  file = descriptor_pb2.FileDescriptorProto(
    name='caffe.proto', package='caffe', syntax='editions', edition=descriptor_pb2.EDITION_2023
  )
  file.options.features.repeated_field_encoding = features.EXPANDED
  methods = file.enum_type.add(name='PoolMethod').value
  for value, method in enumerate(('MAX', 'AVE', 'STOCHASTIC')):
    methods.add(name=method, number=value)
  for message, fields in _MESSAGES.items():
    described = file.message_type.add(name=message).field
    for each in fields.split(', '):
      name, number, kind = each.removesuffix('*').split()
      field = described.add(name=name, number=int(number))
      field.label = field.LABEL_REPEATED if each.endswith('*') else field.LABEL_OPTIONAL
      is_array = name in ('data', 'double_data')
      if is_array and packed:
        field.type, field.label = field.TYPE_BYTES, field.LABEL_OPTIONAL
      elif kind.islower():
        field.type = types.Value(f'TYPE_{kind.upper()}')
      else:
        field.type_name = f'.caffe.{kind}'
        field.type = field.TYPE_ENUM if kind == 'PoolMethod' else field.TYPE_MESSAGE
      if name == 'dim' or (is_array and not packed):
        field.options.features.repeated_field_encoding = features.PACKED
  return file


def _load(*, packed: bool) -> dict[str, Any]:
  pool = descriptor_pool.DescriptorPool()  # its own, since Caffe's `caffe_pb2` may be loaded too
  pool.AddSerializedFile(_describe(packed=packed).SerializeToString())
  return message_factory.GetMessageClassesForFiles(['caffe.proto'], pool)


NetParameter: Any = _load(packed=False)['caffe.NetParameter']
_packed = _load(packed=True)
PackedNetParameter: Any = _packed['caffe.NetParameter']


def add_blob(layer: Any, array: np.ndarray) -> None:
  """Adds an array `[...]` to a layer of a `PackedNetParameter`, as float32."""
  data = array.astype('<f4', copy=False).tobytes()
  layer.blobs.add(shape={'dim': array.shape}, data=data)


def read_numbers(blob: Any) -> np.ndarray:
  """Returns the numbers of a BlobProto, float32 `[n]`; its doubles if it has some, as Caffe does.

  Protocol Buffers encodes them in one piece, however the file did. Too large doubles become inf.
  """
  packed = _packed['caffe.BlobProto'].FromString(blob.SerializeToString())
  is_double = bool(blob.double_data)
  data = packed.double_data if is_double else packed.data
  del packed
  with np.errstate(over='ignore'):
    return np.frombuffer(data, '<f8' if is_double else '<f4').astype(np.float32)
