"""A picture of a permutation set: its distances, its counts, and some of its puzzles.

Paper: section 4.2 (distances).
"""

import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from cfn_jax import names
from cfn_jax.jigsaw.permutation_sets import measures
from cfn_jax.pictures import figures

if TYPE_CHECKING:
  from matplotlib.axes import Axes

BLUE, RED, GREY = '#3b6ea5', '#c0392b', '#777777'
LUMA = np.array([0.299, 0.587, 0.114])
EXAMPLES = 6


def encode_picture(path: str, permutations: np.ndarray, *, grid: tuple[int, int]) -> bytes:
  """Returns the picture of a set `[N, T]` for a file: .png, .svg or .pdf.

  Args:
    path: decides the format; nothing is written.
    permutations: the set, uint8.
    grid: rows and columns of tiles.
  """
  suffix = pathlib.Path(path).suffix.lower()
  if suffix not in ('.png', '.svg', '.pdf'):
    raise measures.PermutationError(f'{path}: the suffix must be .png, .svg or .pdf')
  figure = figures.make(12, 8.4)
  summary = measures.summarize(permutations)
  title = (
    f'{summary.num} permutations of {summary.tiles} tiles: mean distance '
    f'{summary.mean_hamming:.3f} (largest possible {summary.largest_mean:.3f}), '
    f'minimum {summary.min_hamming}'
  )
  figure.suptitle(names.drawable(title), fontsize=15)
  parts: Any = figure.subfigures(2, 1, height_ratios=[2.3, 1])
  top, bottom = parts
  panels = top.subplots(1, 2)
  draw_distances(panels[0], permutations, summary)
  draw_counts(panels[1], permutations)
  bottom.suptitle('Puzzles: each tile keeps its number and colour from the image', fontsize=12)
  draw_examples(list(bottom.subplots(1, EXAMPLES + 1)), permutations, grid)
  return figures.encode(figure, suffix)


def draw_distances(axes: 'Axes', permutations: np.ndarray, summary: measures.Summary) -> None:
  """Draws the distances between the rows of `[N, T]`, in per cent of the distinct pairs."""
  counts = measures.count_distances(permutations)
  shares = 100 * counts / counts.sum()
  bars = axes.bar(np.arange(len(counts)), shares, color=BLUE, width=0.8)
  for bar, count, share in zip(bars, counts, shares):
    if count:
      label = f'{share:.1f}%' if share >= 0.1 else f'{count} pair{"s" if count > 1 else ""}'
      axes.text(
        bar.get_x() + bar.get_width() / 2,
        share,
        names.drawable(label),
        ha='center',
        va='bottom',
        fontsize=8,
        bbox={'color': 'white', 'alpha': 0.8, 'pad': 0.5},
        zorder=4,
      )
  axes.axvline(summary.mean_hamming, color=RED, linewidth=1.5, label='mean')
  axes.axvline(summary.min_hamming, color=RED, linewidth=1.5, linestyle=':', label='minimum')
  axes.set(
    title='Distances between distinct pairs',
    xlabel='tiles that differ (Hamming distance)',
    ylabel='pairs (%)',
    xticks=np.arange(len(counts)),
    xlim=(-0.6, len(counts) - 0.4),
    ylim=(0, 1.1 * shares.max()),
  )
  axes.legend(loc='upper left', frameon=False)
  axes.spines[['top', 'right']].set_visible(False)


def draw_counts(axes: 'Axes', permutations: np.ndarray) -> None:
  """Draws the counts of tiles by position in `[N, T]`; even counts mean a large mean distance."""
  counts = measures.count_values(permutations)
  num, tiles = permutations.shape
  # The scale starts at 0 and is centred on the even count, so that chance does not look large.
  image = axes.imshow(counts, cmap='RdBu_r', vmin=0, vmax=2 * num / tiles)
  for place, tile in np.ndindex(tiles, tiles):
    strong = abs(counts[place, tile] * tiles / num - 1) > 0.6
    axes.text(
      tile,
      place,
      names.drawable(counts[place, tile]),
      ha='center',
      va='center',
      fontsize=9 if tiles <= 9 else 6 if tiles <= 16 else 4.5,
      color='white' if strong else 'black',
    )
  axes.set(
    xlabel='tile of the image',
    ylabel='position in the puzzle',
    xticks=np.arange(tiles),
    yticks=np.arange(tiles),
  )
  even = f'How often each tile stands at each position (even: {num / tiles:.1f})'
  axes.set_title(names.drawable(even))
  axes.figure.colorbar(image, ax=axes, shrink=0.85, extend='max', label='permutations')


def draw_examples(axes: 'list[Axes]', permutations: np.ndarray, grid: tuple[int, int]) -> None:
  """Draws the unshuffled grid, then the puzzles of some permutations of the set `[N, T]`."""
  tiles = permutations.shape[1]
  rows = np.unique(np.linspace(0, len(permutations) - 1, len(axes) - 1).astype(int))
  colours = make_colours(grid)
  pictured = [('image', np.arange(tiles))]
  pictured += [(f'permutation {row}', permutations[row]) for row in rows]
  for ax in axes[len(pictured) :]:
    ax.set_axis_off()
  for ax, (title, permutation) in zip(axes, pictured):
    ax.imshow(colours[permutation].reshape(*grid, 3))
    for place, tile in enumerate(permutation):
      row, column = divmod(place, grid[1])
      ink = 'white' if colours[tile] @ LUMA < 0.5 else 'black'
      size = 15 if tiles <= 9 else 8
      ax.text(column, row, names.drawable(tile), ha='center', va='center', fontsize=size, color=ink)
    ax.set_title(names.drawable(title), fontsize=10, color=GREY if title == 'image' else 'black')
    ax.set(
      xticks=np.arange(grid[1] + 1) - 0.5,
      yticks=np.arange(grid[0] + 1) - 0.5,
      xticklabels=[],
      yticklabels=[],
    )
    ax.grid(color='white', linewidth=3)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def make_colours(grid: tuple[int, int]) -> np.ndarray:
  """Returns a colour for each tile, float `[T, 3]`: hue by column, lightness by row."""
  from matplotlib.colors import hsv_to_rgb

  rows, columns = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
  hue = 0.02 + 0.62 * columns / max(grid[1] - 1, 1)
  saturation = 0.25 + 0.5 * rows / max(grid[0] - 1, 1)
  return hsv_to_rgb(np.stack([hue, saturation, np.full(len(rows), 0.97)], axis=-1))
