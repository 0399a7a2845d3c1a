"""Surgery on weights: from the CFN to AlexNet and back, merging, folding the input into conv1.

Paper, section 3: conv1 .. conv5 move from the CFN to a standard AlexNet, whose first stride is 4
and whose fully connected layers are drawn. NumPy in, NumPy out.
"""

import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from cfn_jax.models import figures, inputs
from cfn_jax.transfer import weights as weights_lib

Weights = weights_lib.Weights
WeightsError = weights_lib.WeightsError

# Fresh fully connected layers: mean and std of the weights, and the biases.
_GAUSSIANS = {
  'bias': (0.0, 0.001, 0.1),  # the paper's figures, its mean read as the biases
  'paper': (0.1, 0.001, 0.0),  # as printed: the weights' mean is 0.1
}
FC_INITS = (*_GAUSSIANS, *figures.INITS)  # the latter: the initial values of AlexNet's own layers


def to_alexnet(
  weights: Weights,
  *,
  num_classes: int,
  fc_init: str = 'bias',
  seed: int = 0,
  stride: int = 4,
  input_px: int = 227,
  features: int = 4096,
) -> Weights:
  """Returns an AlexNet with the given conv1 .. conv5.

  Args:
    num_classes: outputs of fc8; 0: the trunk alone.
    fc_init: initial values of fc6 .. fc8, one of `FC_INITS`.
    stride: conv1's; 4 in the paper's last version, 2 in its first ones.
    input_px: side of the image that fc6 is made for.
    features: features of fc6 and fc7.

  Raises:
    WeightsError: the trunk is incomplete, `fc_init` is unknown, or the image is too small.
  """
  trunk = to_cfn_trunk(weights, stride=stride)
  params = dict(trunk.params)
  if num_classes:
    side = figures.map_sides(input_px, stride=stride, padding=weights.padding)['pool5']
    if side < 1:
      raise WeightsError(f'an image of {input_px} px leaves no map after pool5 at stride {stride}')
    rows = side * side * params['conv5']['kernel'].shape[-1]
    sizes = {'fc6': (rows, features), 'fc7': (features, features), 'fc8': (features, num_classes)}
    params |= {
      name: draw_layer(name, shape, fc_init=fc_init, seed=seed) for name, shape in sizes.items()
    }
  kind = 'alexnet' if num_classes else 'trunk'
  return trunk.replace(params=params, kind=kind, input=weights.input.fixed())


def to_cfn_trunk(weights: Weights, *, stride: int = 2) -> Weights:
  """Returns conv1 .. conv5 as a CFN's trunk (the AlexNet-to-jigsaw table of the paper)."""
  missing = [name for name in weights_lib.CONVOLUTIONS if name not in weights.params]
  if missing:
    raise WeightsError(f'the trunk is not whole: {", ".join(missing)} missing')
  params = {name: weights.params[name] for name in weights_lib.CONVOLUTIONS}
  return weights.replace(params=params, kind='trunk', stride=stride)


def draw_layer(
  name: str, shape: tuple[int, int], *, fc_init: str, seed: int
) -> dict[str, np.ndarray]:
  """Draws a fully connected layer `[in, out]`: a pure function of (seed, name, shape, fc_init)."""
  check_fc_init(fc_init)
  # Deviation: fresh fully connected layers: the paper's "mean 0.1, std 0.001" is read as biases of
  # 0.1 and weights of mean 0; weights of mean 0.1 ('paper') make all units of a layer alike.
  initial = figures.Initial(fc_init, 'alexnet') if fc_init in figures.INITS else None
  mean, std, bias = (
    (0.0, initial.std(name, shape), initial.bias(name)) if initial else _GAUSSIANS[fc_init]
  )
  rng = np.random.Generator(np.random.Philox(key=[seed, zlib.crc32(name.encode())]))
  kernel = rng.standard_normal(shape, np.float32)
  kernel *= np.float32(std)
  kernel += np.float32(mean)
  return {'kernel': kernel, 'bias': np.full(shape[1], bias, np.float32)}


def check_fc_init(fc_init: str) -> None:
  """Raises WeightsError for unknown initial values of fully connected layers."""
  if fc_init not in FC_INITS:
    raise WeightsError(f"fc_init = '{fc_init}' is unknown: one of {', '.join(FC_INITS)}")


def report(ours: Mapping[str, Any], theirs: Mapping[str, Any], taken: Collection[str]) -> str:
  """Returns the loaded layers of a network, the new ones, and the unused given ones, in words."""
  count = sum(len(ours[layer]) for layer in taken)
  text = f'{name_layers(layer for layer in ours if layer in taken)} loaded ({count}/{count} arrays)'
  if new := [layer for layer in ours if layer not in taken]:
    text += f', {name_layers(new)} new'
  if left_over := [layer for layer in theirs if layer not in taken]:
    text += f'; {name_layers(left_over)} left over'
  return text


def name_layers(layers: Iterable[str]) -> str:
  """Returns names of layers in short: 'conv1..conv5', 'fc6, fc7'."""
  layers = list(layers)
  known = weights_lib.CONVOLUTIONS
  own = [known.index(name) for name in layers if name in known]
  if len(own) > 2 and max(own) - min(own) == len(own) - 1:
    others = [name for name in layers if name not in known]
    return ', '.join([f'{known[min(own)]}..{known[max(own)]}', *others])
  return ', '.join(layers) or 'nothing'


def merge(
  into_params: Mapping[str, Any],
  from_params: Mapping[str, Any],
  layers: tuple[str, ...] = weights_lib.CONVOLUTIONS,
) -> tuple[dict[str, Any], str]:
  """Replaces whole layers of a network's parameters by given ones; returns a `report` too.

  Args:
    into_params: the network's parameters, `{layer: {array name: array}}`.
    from_params: the given parameters, in the same form.
    layers: the layers to replace.

  Raises:
    WeightsError: with everything that does not fit: a layer missing on either side, an array that
      only one side has, another shape or type.
  """
  problems = []
  for layer in layers:
    sides = (('the network', into_params), ('the given weights', from_params))
    absent = [side for side, params in sides if layer not in params]
    problems += [f'{layer} is missing in {side}' for side in absent]
    if absent:
      continue
    ours, theirs = into_params[layer], from_params[layer]
    for name in sorted({*ours, *theirs}):
      where = f'{layer}/{name}'
      if name not in theirs or name not in ours:
        side = 'the given weights' if name not in theirs else 'the network'
        problems.append(f'{where} is missing in {side}')
      elif ours[name].shape != theirs[name].shape:
        problems.append(
          f'{where} is {list(theirs[name].shape)}, the network has {list(ours[name].shape)}'
        )
      elif ours[name].dtype != theirs[name].dtype:
        problems.append(f'{where} is {theirs[name].dtype}, the network has {ours[name].dtype}')
  if problems:
    raise WeightsError('the weights do not fit: ' + '; '.join(problems))
  merged = {
    name: from_params[name] if name in layers else into_params[name] for name in into_params
  }
  return merged, report(into_params, from_params, layers)


def compare(before: Weights, after: Weights) -> str:
  """Returns which layers of weights survived surgery, and which were drawn."""

  def kept(layer: str) -> bool:  # conv1 may be folded, so arrays of convolutions change
    if layer not in before.params or layer in weights_lib.CONVOLUTIONS:
      return layer in before.params
    return after.params[layer]['kernel'] is before.params[layer]['kernel']

  return report(after.params, before.params, [layer for layer in after.params if kept(layer)])


def fold_input(weights: Weights, to: str | inputs.InputRecord) -> Weights:
  """Changes the input record, and conv1 so that its output for an image stays the same.

  It is exact in real numbers: channel order, scale and mean are linear, and conv1 has no padding. A
  record that normalises each image by itself is replaced by its fixed figures
  (`InputRecord.fixed`).

  Args:
    to: 'unit', 'caffe', 'imagenet', or a record.

  Raises:
    WeightsError: the name is unknown; conv1 is missing; conv1 is padded and the mean changes (the
      zeros around the image would then mean another colour).
  """
  if isinstance(to, str):
    if to not in inputs.RECORDS:
      raise WeightsError(f"input = '{to}' is unknown: one of {', '.join(inputs.RECORDS)}")
    to = inputs.RECORDS[to]
  if to == weights.input:
    return weights
  if 'conv1' not in weights.params:
    raise WeightsError('conv1 is missing: the input cannot be folded into it')
  old, new = weights.input.fixed(), to.fixed()
  kernel = weights.params['conv1']['kernel'].astype(np.float64)
  mean, scale = np.array(old.mean), np.array(old.scale)
  if old.channels != new.channels:
    kernel, mean, scale = kernel[:, :, ::-1], mean[::-1], scale[::-1]
  shift = (np.array(new.mean) - mean) * scale  # a pixel of the new mean in the old input
  if weights.padding and np.any(shift):
    raise WeightsError(
      f'conv1 is padded by {weights.padding} px, so the mean {old.mean} cannot become {new.mean} '
      'exactly; keep the input as it is (--input=keep)'
    )
  bias = weights.params['conv1']['bias'] + np.einsum('yxco,c->o', kernel, shift)
  kernel = kernel * (scale / np.array(new.scale))[:, None]
  conv1 = {
    'kernel': np.ascontiguousarray(kernel, np.float32),
    'bias': bias.astype(np.float32),
  }
  return weights.replace(params={**weights.params, 'conv1': conv1}, input=to)
