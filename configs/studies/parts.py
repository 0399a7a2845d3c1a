"""The shared parts of the studies of this folder; other studies may import it too."""

from typing import Any

BOTH = (0, 1)  # seeds of rows with a measured spread
# conv1..conv4 and conv1..conv5 locked on class folders, in place of the paper's detection.
FROZEN = {
  'config': 'frozen_layers:small',
  'fields': {'layers': (4, 5), 'baseline': False},
}
SOLVED = {
  'accuracy': {'take': ('', 'val_accuracy'), 'unit': '%'},
  'bits': {'take': ('', 'val_bits'), 'unit': 'bits'},
  'tiles': {'take': ('', 'val_tile_accuracy'), 'unit': '%'},
}
LOCKED = {
  f'conv{k} locked': {'take': ('frozen', f'pretrained/conv{k}', 'val_accuracy'), 'unit': '%'}
  for k in (4, 5)
}


def claim(says: str, figure: str, higher: str, lower: str) -> dict[str, Any]:
  """Returns the claim that a figure of one run is higher than that of another."""
  return {'says': says, 'figure': figure, 'higher': higher, 'lower': lower}
