"""Measures what bfloat16 costs the gradient: its relative error against float32, layer by layer.

On the first batch of training from a folder of images, at the config's initial weights, without
dropout. Beside the whole error stand those that rounding the parameters, or the prepared tiles,
alone would give; the rest comes from the maps and their gradients.
"""

import argparse
import sys
from typing import Any

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from cfn_jax import command, terminal
from cfn_jax.data import pipeline
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.timing import input as input_timing
from cfn_jax.timing import steps
from cfn_jax.training import devices

LIMITS = {'batch': (1, 2**16)}
COLUMNS = ('parameters', 'tiles', 'whole')


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the options of this part."""
  add = parser.add_argument
  add('--images', action='place', required=True, help='folder of images, or of prepared records')
  add('--config', default='cfn', help="whose network and puzzle (default: the paper's)")
  add('--batch', type=int, default=32, help='images (default 32)')


def run(arguments: argparse.Namespace) -> dict[str, Any]:
  """Compares the gradients; returns the figures of the JSON line.

  Raises:
    ValueError: options or images that no run can have.
  """
  steps.check_numbers(arguments, LIMITS)
  config = command.load_config(arguments.config, tasks=command.PUZZLES)
  devices.check_platform()
  reader, _ = input_timing.open_input(arguments.images, config)
  pretext = pretexts.make_pretext(config, lambda: (reader, reader))
  batches = pipeline.make_training_batches(
    reader, pretext.visits, batch_size=arguments.batch, start_step=0, stop_step=1
  )
  errors = compare(pretext, next(batches), seed=config.seed)
  rows = [(name, [f'{error:.4f}' for error in row.values()]) for name, row in errors.items()]
  title = 'Relative error of the gradient in bfloat16, and with one thing alone rounded'
  terminal.show_table(title, COLUMNS, [rows], file=sys.stderr)
  return {'errors': errors, 'batch': arguments.batch, 'config': arguments.config}


def compare(
  pretext: pretexts.Pretext, batch: dict[str, np.ndarray], *, seed: int
) -> dict[str, dict[str, float]]:
  """Returns the relative errors by parameter, and by what is rounded."""
  params = pretext.init(seed)
  tiles = pretext.input.prepare(batch['tiles'])
  label = jnp.asarray(batch['label'])
  rows = jnp.asarray(pretext.questions.rows, jnp.int32)[label] if label.ndim > 1 else None

  @jax.jit
  def differentiate(params: Any, tiles: jax.Array) -> tuple[Any, Any]:
    def loss(params: Any, dtype: Any) -> jax.Array:
      trunk = pretext.model.trunk.clone(dtype=dtype)
      model = pretext.model.clone(trunk=trunk)
      logits: Any = model.apply({'params': params}, tiles, *(() if rows is None else (rows,)))
      chosen = jnp.take_along_axis(logits, pretext.answers(label)[..., None], axis=-1)
      return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen[..., 0])

    return tuple(jax.grad(loss)(params, dtype) for dtype in (jnp.float32, jnp.bfloat16))

  def rounded(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(jnp.float32), tree)

  exact, whole = differentiate(params, tiles)
  found = {
    'parameters': differentiate(rounded(params), tiles)[0],
    'tiles': differentiate(params, rounded(jnp.asarray(tiles)))[0],
    'whole': whole,
  }
  flat = {name: flax.traverse_util.flatten_dict(tree, sep='/') for name, tree in found.items()}
  return {
    name: {what: distance(flat[what][name], leaf) for what in COLUMNS}
    for name, leaf in flax.traverse_util.flatten_dict(exact, sep='/').items()
  }


def distance(found: jax.Array, exact: jax.Array) -> float:
  """Returns the norm of the difference, as a share of the exact norm."""
  return float(jnp.linalg.norm(found - exact) / jnp.linalg.norm(exact))
