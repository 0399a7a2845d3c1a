"""Weights of another run, or of a file, as the start of a pretraining run (`init_from`).

All of the trunk that the file holds is taken, and what fully connected layers fit; conv1 is adapted
to how this run feeds it. Used by task.py for a run that begins at step 0.
"""

from collections.abc import Mapping
from typing import Any

from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.transfer import files, surgery
from cfn_jax.transfer import weights as weights_lib


def load_initial(
  path: str, params: Mapping[str, Any], pretext: pretexts.Pretext
) -> tuple[dict[str, Any], str]:
  """Returns the parameters with what `path` holds of them, and a line that says what was loaded.

  Raises:
    WeightsError: it cannot be read; a layer of the trunk has other shapes; nothing fits.
  """
  weights = files.load_weights(path)
  if 'conv1' in weights.params:
    weights = surgery.fold_input(weights, to=pretext.input_record)
  layers = tuple(name for name in params if _is_taken(name, params, weights.params))
  if not layers:
    raise weights_lib.WeightsError(
      f'init_from = {path}: none of its layers ({", ".join(weights.params)}) fits the network'
    )
  try:
    merged, report = surgery.merge(params, weights.params, layers)
  except weights_lib.WeightsError as error:
    raise weights_lib.WeightsError(f'init_from = {path}: {error}') from error
  order = pretext.model.trunk.order
  note = '' if weights.order == order else f'; they were trained as {weights.order}, not {order}'
  return merged, f'{report}{note}'


def _is_taken(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
  if name not in theirs or name in weights_lib.CONVOLUTIONS:
    return name in theirs
  shapes = [{array: each[name][array].shape for array in each[name]} for each in (ours, theirs)]
  return shapes[0] == shapes[1]
