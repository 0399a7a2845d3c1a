"""Measures the relative error of the gradient in bfloat16 against float32, layer by layer.

    python -m cfn_jax.benchmark precision --images=DIR --batch=16

It takes the first batch of training from a folder of images, at the config's initial weights,
without dropout. Beside the whole error stand those of rounding only the parameters, or only the
prepared tiles; the rest comes from the maps and their gradients.
"""

import argparse
import dataclasses
import functools
import sys
from typing import Any

from cfn_jax import environment  # noqa: F401  (before JAX)

# isort: split
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax

from cfn_jax import arguments as command_lines
from cfn_jax import command, terminal
from cfn_jax.data import pipeline
from cfn_jax.jigsaw import pretext as pretexts
from cfn_jax.timing import input as input_timing
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
    ValueError: an option or the images are impossible.
  """
  command_lines.check_numbers(arguments, LIMITS)
  config = command.load_config(arguments.config, tasks=command.PUZZLES)
  devices.check_platform()
  reader, _ = input_timing.open_input(arguments.images, config)
  pretext = pretexts.make_pretext(config, lambda: (reader, reader))
  batches = pipeline.make_training_batches(
    reader, pretext.transform, batch_size=arguments.batch, start_step=0, stop_step=1
  )
  errors = compare(pretext, pretext.init(config.seed), next(batches))
  rows = [(name, [f'{error:.4f}' for error in row.values()]) for name, row in errors.items()]
  title = 'Relative error of the gradient in bfloat16, and with one thing alone rounded'
  terminal.show_table(title, COLUMNS, [rows], file=sys.stderr)
  return {'errors': errors, 'batch': arguments.batch, 'config': arguments.config}


def compare(
  pretext: pretexts.Pretext, params: Any, batch: dict[str, np.ndarray]
) -> dict[str, dict[str, float]]:
  """Returns the relative errors by parameter and by what is rounded; tiles `[B, T, h, w, 3]`."""
  models = {
    dtype: pretext.model.clone(trunk=pretext.model.trunk.clone(dtype=dtype))
    for dtype in (jnp.float32, jnp.bfloat16)
  }
  tiles = jnp.asarray(pretext.input.prepare(batch['tiles']))

  @functools.partial(jax.jit, static_argnums=2)
  def differentiate(params: Any, tiles: jax.Array, dtype: Any) -> Any:
    asked = dataclasses.replace(pretext, model=models[dtype])

    def loss(params: Any) -> jax.Array:
      logits = asked.answer(params, tiles, batch)
      answers = asked.answers(jnp.asarray(batch['label']))
      return optax.softmax_cross_entropy_with_integer_labels(logits, answers).mean()

    return jax.grad(loss)(params)

  def rounded(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(jnp.float32), tree)

  exact = differentiate(params, tiles, jnp.float32)
  found = (
    differentiate(rounded(params), tiles, jnp.float32),
    differentiate(params, rounded(tiles), jnp.float32),
    differentiate(params, tiles, jnp.bfloat16),
  )
  flat = [flax.traverse_util.flatten_dict(tree, sep='/') for tree in found]
  return {
    name: {what: distance(tree[name], leaf) for what, tree in zip(COLUMNS, flat)}
    for name, leaf in flax.traverse_util.flatten_dict(exact, sep='/').items()
  }


def distance(found: jax.Array, exact: jax.Array) -> float:
  """Returns the norm of the difference of two arrays `[...]`, as a share of the exact norm."""
  return float(jnp.linalg.norm(found - exact) / jnp.linalg.norm(exact))
