"""Weights of another run, or of a file, as the start of a pretraining run (`init_from`).

It loads the file's trunk, and the fully connected layers that fit. conv1 is adapted to the input of
this run. fc8 is left out if its outputs stand for other permutations, so a run with 1000 can start
from one with 100. task.py uses it for a run that begins at step 0.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from cfn_jax.buckets import reading
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.models import cfn, inputs
from cfn_jax.transfer import checkpoints, files, surgery
from cfn_jax.transfer import weights as weights_lib


def load_initial(
  path: str, params: Mapping[str, Any], pretext: pretexts.Pretext
) -> tuple[dict[str, Any], str]:
  """Returns the parameters with those in `path`, and a line about the loaded ones.

  Raises:
    WeightsError: it cannot be read; a layer of the trunk has other shapes; nothing fits.
  """
  given, note = _read(path, pretext)
  layers = tuple(name for name in params if _is_taken(name, params, given))
  if not layers:
    raise weights_lib.WeightsError(
      f'init_from = {path}: none of its layers ({", ".join(given)}) fits the network'
    )
  try:
    merged, report = surgery.merge(params, given, layers)
  except weights_lib.WeightsError as error:
    raise weights_lib.WeightsError(f'init_from = {path}: {error}') from error
  return merged, f'{report}{note}'


def _read(path: str, pretext: pretexts.Pretext) -> tuple[weights_lib.Params, str]:
  """Returns the layers of a path, adapted to this run's input, and notes about them."""
  if isinstance(pretext.model, cfn.Stacked):  # only its own runs have such a trunk
    folder = checkpoints.find_step(reading.local(path))
    params, theirs = checkpoints.read_params(folder), checkpoints.read_permutations(folder)
    return _leave_fc8(params, theirs, pretext), ''
  weights = files.load_weights(path)
  theirs = weights.origin.get('permutations', [])
  weights = weights.replace(params=_leave_fc8(weights.params, theirs, pretext))
  if 'conv1' in weights.params and not _is_fed_alike(weights.input, pretext.input_record):
    weights = surgery.fold_input(weights, to=pretext.input_record)
  order = pretext.model.trunk.order
  note = '' if weights.order == order else f'; they were trained as {weights.order}, not {order}'
  return weights.params, note


def _leave_fc8(
  params: weights_lib.Params, theirs: list[list[int]], pretext: pretexts.Pretext
) -> weights_lib.Params:
  """Returns the layers without fc8 if its outputs stand for other permutations."""
  other = bool(theirs) and theirs != pretext.questions.rows.tolist()
  return {name: layer for name, layer in params.items() if name != 'fc8' or not other}


def _is_fed_alike(theirs: inputs.InputRecord, ours: inputs.InputRecord) -> bool:
  """Returns whether both prepare a tile in the same way: by its own figures."""
  own: dict[str, Any] = {'mean': ours.mean}
  if ours.normalization != 'mean':
    own['std'] = ours.std
  return bool(ours.normalization) and dataclasses.replace(theirs, **own) == ours


def _is_taken(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
  if name not in theirs or name in weights_lib.CONVOLUTIONS:
    return name in theirs
  shapes = [{array: each[name][array].shape for array in each[name]} for each in (ours, theirs)]
  return shapes[0] == shapes[1]
