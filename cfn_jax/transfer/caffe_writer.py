"""Weights to Caffe: `deploy.prototxt` and `.caffemodel`, written without Caffe.

One message makes both files, so they agree. The arrays are encoded and written layer by layer. A
CFN is one trunk over all tiles (its batch), then a Reshape that puts them side by side.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

from google.protobuf import text_format

from cfn_jax.models import figures
from cfn_jax.transfer import caffe_layers, caffe_schema, geometry, layouts
from cfn_jax.transfer import weights as weights_lib


def save_caffe(
  weights: weights_lib.Weights,
  model: pathlib.Path,
  prototxt: pathlib.Path,
  *,
  name: str,
  comment: str,
) -> None:
  """Writes the network up to its last layer.

  Args:
    name: the name of the network in both files.
    comment: a line at the head of the prototxt.

  Raises:
    WeightsError: a layer is missing in between, or the arrays are too large for the format.
  """
  net = caffe_schema.PackedNetParameter(name=name, layer=list(_network(weights)))
  arrays_size = sum(
    each.nbytes + 64 for layer in weights.params.values() for each in layer.values()
  )
  caffe_layers.check_size(net.ByteSize() + arrays_size)
  arrays = layouts.to_foreign(weights)
  text = text_format.MessageToString(net)
  prototxt.write_text(f'# {comment}\n{text}', encoding='utf8')
  with model.open('wb') as file:
    # Consecutive messages merge into one, so at most a layer's arrays are encoded at once.
    file.write(caffe_schema.PackedNetParameter(name=name).SerializeToString())
    for layer in net.layer:
      part = caffe_schema.PackedNetParameter(layer=[layer])
      for kind in ('weight', 'bias') if layer.name in weights.params else ():
        caffe_schema.add_blob(part.layer[0], arrays[f'{layer.name}.{kind}'])
      file.write(part.SerializeToString())


def check_layers(weights: weights_lib.Weights) -> tuple[str, ...]:
  """Returns the layers of a network; raises WeightsError if one is missing in between."""
  present = weights.layers()
  wanted = weights_lib.LAYERS[: weights_lib.LAYERS.index(present[-1]) + 1]
  missing = [name for name in wanted if name not in present]
  if missing:
    raise weights_lib.WeightsError(
      f'{", ".join(missing)} missing: a network needs every layer from conv1 to {present[-1]}'
    )
  return present


def _layer(name: str, kind: str, bottom: str, top: str = '', **settings: Any) -> dict[str, Any]:
  """Returns the fields of a LayerParameter."""
  return {'name': name, 'type': kind, 'bottom': [bottom], 'top': [top or name], **settings}


def _network(weights: weights_lib.Weights) -> Iterator[dict[str, Any]]:
  present = check_layers(weights)
  size_px, tiles = geometry.choose_input_px(weights), weights.tiles()
  shape = {'dim': [tiles, 3, size_px, size_px]}
  yield _layer('data', 'Input', '', input_param={'shape': [shape]}) | {'bottom': []}
  blob = 'data'
  for index, name in enumerate(weights_lib.CONVOLUTIONS):
    if name not in present:
      return
    number = name.removeprefix('conv')
    settings = {
      'num_output': weights.params[name]['kernel'].shape[-1],
      'pad': [figures.PADDINGS[index] if index else weights.padding],
      'kernel_size': [figures.KERNELS_PX[index]],
      'group': weights.groups[index],
      'stride': [1 if index else weights.stride],
    }
    yield _layer(name, 'Convolution', blob, convolution_param=settings)
    yield _layer(f'relu{number}', 'ReLU', name, name)
    blob = name
    steps = {'1': ('pool', 'norm'), '2': ('pool', 'norm'), '5': ('pool',)}.get(number, ())
    for step in steps if weights.order == 'caffenet' else reversed(steps):
      yield _step(step, blob, f'{step}{number}')
      blob = f'{step}{number}'
  yield from _fully_connected(weights, blob)


def _step(step: str, bottom: str, name: str) -> dict[str, Any]:
  if step == 'pool':
    settings = {'pool': 'MAX', 'kernel_size': 3, 'stride': 2}
    return _layer(name, 'Pooling', bottom, pooling_param=settings)
  return _layer(name, 'LRN', bottom, lrn_param={'local_size': 5, 'alpha': 1e-4, 'beta': 0.75})


def _fully_connected(weights: weights_lib.Weights, blob: str) -> Iterator[dict[str, Any]]:
  for name in weights_lib.FULLY_CONNECTED:
    if name not in weights.params:
      return
    rows, outputs = weights.params[name]['kernel'].shape
    if name == 'fc7' and weights.tiles() > 1:
      yield _layer('tiles', 'Reshape', blob, reshape_param={'shape': {'dim': [-1, rows]}})
      blob = 'tiles'
    yield _layer(name, 'InnerProduct', blob, inner_product_param={'num_output': outputs})
    blob, number = name, name.removeprefix('fc')
    if name != 'fc8':
      yield _layer(f'relu{number}', 'ReLU', blob, blob)
      yield _layer(f'drop{number}', 'Dropout', blob, blob, dropout_param={'dropout_ratio': 0.5})
