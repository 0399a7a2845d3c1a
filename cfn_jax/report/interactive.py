"""Charts that zoom, by Bokeh, an extra: their JSON, and the script that draws them.

They contain no user text, since Bokeh interprets some as HTML. The page has the titles and the
legends.
"""

import importlib
from typing import Any

import numpy as np

from cfn_jax.pictures import charts

SIZE = {'height': 280, 'sizing_mode': 'stretch_width', 'min_border_left': 48}


def load_script() -> str:
  """Returns Bokeh's own script; '' if Bokeh is not installed."""
  try:
    resources = importlib.import_module('bokeh.resources')
  except ImportError:
    return ''
  parts = resources.Resources('inline', components=['bokeh']).js_raw
  # Without the line that prints the level of messages on the console.
  return '\n'.join(part for part in parts if not part.strip().startswith('Bokeh.set_log_level'))


def encode_chart(chart: charts.Chart) -> dict[str, Any]:
  """Returns a chart for `Bokeh.embed.embed_item`; lines have a column for each axis."""
  plotting = importlib.import_module('bokeh.plotting')
  models = importlib.import_module('bokeh.models')
  embed = importlib.import_module('bokeh.embed')
  plot = plotting.figure(
    tools='pan,box_zoom,wheel_zoom,reset,save',
    active_drag='box_zoom',
    toolbar_location='above',
    **SIZE,
  )
  for number, line in enumerate(chart.lines):
    columns = {axis: list(line.x[axis]) for axis in chart.axes()}
    columns |= {'x': columns['step'], 'y': list(line.y)}
    if line.band:
      columns |= {'low': list(line.band[0]), 'high': list(line.band[1])}
    source = models.ColumnDataSource({name: _pack(values) for name, values in columns.items()})
    colour = charts.pick_colour(line.colour)
    style = 'dashed' if line.dashed else 'solid'
    common = {'source': source, 'color': colour, 'name': f'line{number}'}  # of all its parts
    drawn = plot.line('x', 'y', line_width=1.8, line_dash=style, **common)
    if len(line.y) < 30:
      plot.scatter('x', 'y', size=4, **common)
    if line.band:
      plot.varea('x', 'low', 'high', fill_alpha=0.15, **common)
    tips = [('step', '@step{0,0}'), ('figure', '@y{0.0000}')]
    plot.add_tools(models.HoverTool(renderers=[drawn], tooltips=tips, visible=False))
  _dress(plot, models)
  item: dict[str, Any] = embed.json_item(plot)
  return item


def _pack(values: list[float]) -> Any:
  """Returns numbers as an array, which Bokeh packs; nan stays a gap."""
  return np.asarray(values, np.float64)


def _dress(plot: Any, models: Any) -> None:
  """Styles a plot like the page, for light and dark."""
  grey = charts.GREY
  plot.toolbar.logo = None
  plot.background_fill_alpha = plot.border_fill_alpha = 0
  plot.outline_line_color = None
  for axis in (*plot.xaxis, *plot.yaxis):
    axis.axis_label_text_color = axis.major_label_text_color = grey
    axis.axis_line_color = axis.major_tick_line_color = axis.minor_tick_line_color = grey
    axis.axis_label_text_font_style = 'normal'
  plot.xaxis.axis_label = charts.AXES['step']
  plot.xaxis.formatter = models.NumeralTickFormatter(format='0,0.[00]')
  plot.grid.grid_line_color, plot.grid.grid_line_alpha = grey, 0.22
