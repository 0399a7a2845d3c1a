"""Caffe's `.caffemodel` to weights: AlexNet of either order, BatchNorm and Scale folded.

The file describes the network: layer order, groups, conv1's stride and padding, normalisation.
Features that this project's AlexNet lacks are refused with the reason. Sources: Caffe's
`batch_norm_layer.cpp`, `scale_layer.cpp`, `lrn_layer.cpp`, `pooling_layer.cpp`.
"""

import dataclasses
import pathlib
import re
from collections.abc import Mapping

import numpy as np

from cfn_jax.models import figures
from cfn_jax.transfer import caffe_layers, layouts
from cfn_jax.transfer import weights as weights_lib

Layer = caffe_layers.Layer
WeightsError = weights_lib.WeightsError

# The required value of a setting, and its default in a file without it.
_LRN = {
  'local_size': (5, 5),
  'alpha': (1e-4, 1),
  'beta': (0.75, 0.75),
  'norm_region': (0, 0),
  'k': (1, 1),
}
_POOLING = {'pool': (0, 0), 'kernel_size': (3, 0), 'stride': (2, 1), 'pad': (0, 0)}
_STEPS = (
  {'conv1': {'dilation': (1, 1)}}
  | {  # for convolutions; conv1's are read
    name: {'dilation': (1, 1), 'stride': (1, 1), 'pad': (padding, 0)}
    for name, padding in zip(figures.CONVOLUTIONS[1:], figures.PADDINGS[1:])
  }
)
_PASSED_ON = ('Split', 'Dropout', 'Silence')  # layers that pass a convolution's output unchanged
_ACTIVATIONS = ('AbsVal', 'BNLL', 'ELU', 'Exp', 'PReLU', 'Power', 'Sigmoid', 'Swish', 'TanH')
_COPY = re.compile('(.+)_s[0-9]+')  # a layer of one column of a siamese network
_UNREAD = '?'  # the output of a layer that is not read


def read_caffemodel(path: pathlib.Path) -> layouts.Found:
  """Reads a `.caffemodel`.

  Raises:
    WeightsError: it is none, is truncated or damaged, or is a network unlike AlexNet.
  """
  with weights_lib.named_errors(path):
    layers = caffe_layers.read_layers(path)
    plain = _first_copies(layers)
    return _read(plain, siamese=plain is not layers)


def _first_copies(layers: list[Layer]) -> list[Layer]:
  """Returns one column of a siamese network (`conv1_s1` .. `conv1_s9`) under the plain names.

  Raises:
    WeightsError: the copies of a layer have different weights.
  """
  copies = {layer.name: match for layer in layers if (match := _COPY.fullmatch(layer.name))}
  if not any(match[1] in weights_lib.LAYERS for match in copies.values()):
    return layers
  first: dict[str, Layer] = {}
  kept = []
  for layer in layers:
    plain = copies[layer.name][1] if layer.name in copies else layer.name
    if layer.name not in copies or plain not in first:
      first[plain] = layer
      kept.append(dataclasses.replace(layer, name=plain))
      continue
    known, ours, theirs = first[plain], first[plain].arrays(), layer.arrays()
    same = len(ours) == len(theirs) and all(map(np.array_equal, ours, theirs))
    if known.type != layer.type or known.settings != layer.settings or not same:
      raise WeightsError(
        f'{known.name} and {layer.name} differ: copies of a layer share their weights'
      )
  return kept


def _read(layers: list[Layer], *, siamese: bool) -> layouts.Found:
  ours = {layer.name: layer for layer in layers if layer.name in weights_lib.LAYERS}
  ours = {name: layer for name, layer in ours.items() if layer.blobs}
  if not ours:
    held = ', '.join(layer.name for layer in layers if layer.blobs) or 'none'
    raise WeightsError(f'no layer is called conv1 .. fc8; layers with arrays: {held}')
  layouts.check_whole(ours, [each.name for each in layers if each.blobs and each.name not in ours])
  arrays: layouts.Arrays = {}
  for name, layer in ours.items():
    arrays |= dict(zip((f'{name}.weight', f'{name}.bias'), layer.arrays()))
    if name in _STEPS and layer.configured:
      _check_settings(layer, _STEPS[name])
  notes = layouts.note_biases(arrays)
  for name in ours:
    weight = arrays[f'{name}.weight']
    arrays.setdefault(f'{name}.bias', np.zeros(weight.shape[_output_axis(weight)], 'f4'))
  folded = _fold_normalisation(layers, ours, arrays)
  params, left_over = layouts.from_foreign(arrays)
  peer = layouts.AUTHORS if siamese and not left_over else ''
  known = {*ours, *folded}
  unread = [layer for layer in layers if layer.blobs and layer.name not in known]
  left_over += [f'{layer.name} ({layer.type})' for layer in unread]
  first = ours.get('conv1', Layer()).settings
  configured = ours['conv1'].configured if 'conv1' in ours else False
  _check_groups(ours, params)
  return layouts.Found(
    params=params,
    order=_find_order(layers),
    stride=int(first.get('stride', 1)) if configured else 0,
    padding=int(first.get('pad', 0)),
    left_over=left_over,
    peer=peer,
    notes=notes,
  )


def _check_groups(ours: dict[str, Layer], params: weights_lib.Params) -> None:
  """Checks that the stated groups of a layer are those that the channels imply."""
  channels = {
    name: params[name]['kernel'].shape[2:] for name in params if name in figures.CONVOLUTIONS
  }
  for below, name in zip(('', *figures.CONVOLUTIONS), channels):
    before = channels[below][1] if below else 3
    inputs, stated = channels[name][0], ours[name].settings.get('group', 1)
    if ours[name].configured and stated * inputs != before:
      raise WeightsError(
        f'{name} states {stated:g} groups of {inputs} channels, the layer before gives {before}'
      )


def _find_order(layers: list[Layer]) -> str:
  """Finds the order of pooling and LRN after conv1 and conv2, and checks both."""
  relevant = [layer for layer in layers if layer.type in ('Pooling', 'LRN')]
  if not relevant:
    return ''
  names = [layer.name for layer in layers]
  orders = []
  for first, second in (('conv1', 'conv2'), ('conv2', 'conv3')):
    if first not in names or second not in names:
      continue
    steps = [layer.type for layer in _between(layers, first, second) if layer in relevant]
    if sorted(steps) != ['LRN', 'Pooling']:
      found = ', '.join(steps) or 'nothing'
      raise WeightsError(
        f'between {first} and {second} there is {found}; AlexNet has one pooling and one LRN'
      )
    orders.append('caffenet' if steps[0] == 'Pooling' else 'alexnet')
  if len(set(orders)) > 1:
    raise WeightsError('pooling comes before LRN in one stage and after it in the other')
  end = names.index('fc6') if 'fc6' in names else len(layers)
  for layer in layers[:end]:
    if layer in relevant and layer.configured:
      _check_settings(layer, _LRN if layer.type == 'LRN' else _POOLING)
  return orders[0] if orders else ''


def _between(layers: list[Layer], first: str, second: str) -> list[Layer]:
  """Returns the layers between two; a file may have other branches too."""
  names = [layer.name for layer in layers]
  start = layers[names.index(first)]
  blobs, found = set(start.tops), []
  for layer in layers[names.index(first) + 1 : names.index(second)]:
    if not blobs or not layer.bottoms or blobs & set(layer.bottoms):
      found.append(layer)
      blobs |= set(layer.tops)
  return found


def _check_settings(layer: Layer, wanted: Mapping[str, tuple[float, float]]) -> None:
  for setting, (value, default) in wanted.items():
    found = layer.settings.get(setting, default)
    if not np.isclose(found, value, rtol=1e-5):
      raise WeightsError(f'{layer.name} has {setting} {found:g}, this AlexNet {value:g}')


def _fold_normalisation(
  layers: list[Layer], ours: dict[str, Layer], arrays: layouts.Arrays
) -> set[str]:
  """Folds each BatchNorm and Scale into the layer before it; returns their names."""
  source: dict[
    str, str
  ] = {}  # the layer whose plain output a blob is; '' after a ReLU or a pooling
  previous, folded = '', set()
  last = max(place for place, layer in enumerate(layers) if layer.name in weights_lib.LAYERS)
  for place, layer in enumerate(layers):
    bottom = layer.bottoms[0] if layer.bottoms else ''
    given = source.get(bottom, '') if bottom else previous
    if layer.name in ours:
      given = layer.name
    elif layer.type in ('BatchNorm', 'Scale') and layer.blobs:
      if given and given != _UNREAD:
        gain, shift = _affine(layer)
        _fold(given, gain, shift, arrays, layer.name)
        folded.add(layer.name)
      elif not given and place < last:  # inside the part of the network that is read
        raise WeightsError(
          f"{layer.name} ({layer.type}) does not follow a convolution directly, but '{bottom}': it "
          'cannot be folded'
        )
    elif layer.type in _ACTIVATIONS and given in ours:
      raise WeightsError(f'{layer.name} after {given} is {layer.type}; AlexNet has ReLU')
    elif layer.blobs:
      given = _UNREAD
    elif layer.type not in _PASSED_ON:
      given = ''
    for top in layer.tops:
      source[top] = given
    previous = given
  return folded


def _affine(layer: Layer) -> tuple[np.ndarray, np.ndarray]:
  """Returns y = gain * x + shift, float64 `[C]` each."""
  blobs = [blob.astype(np.float64).reshape(-1) for blob in layer.arrays()]
  if layer.type == 'Scale':
    return blobs[0], blobs[1] if len(blobs) > 1 else np.zeros_like(blobs[0])
  if len(blobs) != 3 or blobs[2].size != 1:
    raise WeightsError(f'{layer.name} (BatchNorm) has {len(blobs)} arrays: mean, variance, factor')
  factor = 1 / blobs[2][0] if blobs[2][0] else 0.0
  mean, variance = blobs[0] * factor, blobs[1] * factor
  gain = 1 / np.sqrt(variance + layer.settings.get('eps', 1e-5))
  return gain, -mean * gain


def _fold(
  name: str, gain: np.ndarray, shift: np.ndarray, arrays: layouts.Arrays, norm: str
) -> None:
  weight, bias = arrays[f'{name}.weight'], arrays[f'{name}.bias'].reshape(-1)
  if gain.shape != bias.shape or shift.shape != bias.shape:
    raise WeightsError(f'{norm} has {gain.size} channels, {name} before it {bias.size}')
  outputs = _output_axis(weight)
  shape = [1] * weight.ndim
  shape[outputs] = gain.size
  arrays[f'{name}.weight'] = (weight * gain.reshape(shape)).astype(np.float32)
  arrays[f'{name}.bias'] = (bias * gain + shift).astype(np.float32)


def _output_axis(weight: np.ndarray) -> int:
  return -2 if weight.ndim == 4 and weight.shape[:2] == (1, 1) else 0  # old shape of fc layers
