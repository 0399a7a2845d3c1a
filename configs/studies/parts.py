"""What the studies of this folder share; a study of one's own may import it likewise."""

from typing import Any

BOTH = (0, 1)  # seeds of rows whose spread is measured
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
  """Says that a figure of one run is expected to be higher than that of another."""
  return {'says': says, 'figure': figure, 'higher': higher, 'lower': lower}
