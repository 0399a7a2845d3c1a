"""Curves of a run: numbers as numbers, whatever a row holds."""

import numpy as np

from cfn_jax.pictures import curves


def test_a_figure_that_is_not_finite_is_a_gap(tmp_path, monkeypatch):
  drawn = []
  monkeypatch.setattr(curves.figures, 'save', lambda figure, path: drawn.append(figure))
  losses = (3.1, 3.0, 'nan', 2.8, 'inf')  # as metrics.jsonl has them
  rows = [{'step': step, 'train_loss': loss} for step, loss in enumerate(losses)]
  curves.draw_curves(tmp_path / 'curves.png', rows, {'loss': 4.6})
  line = drawn[0].axes[0].lines[0].get_ydata()
  np.testing.assert_array_equal(np.asarray(line, float), [3.1, 3.0, np.nan, 2.8, np.inf])
  assert drawn[0].axes[0].lines[0].get_ydata().dtype == float
