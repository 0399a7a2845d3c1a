"""conv1's filters: in the colours that a pixel has, on one scale; `visualize filters`."""

import numpy as np
import pytest
import transfer_cases
from PIL import Image

from cfn_jax import visualize
from cfn_jax.models import inputs
from cfn_jax.pictures import filters
from cfn_jax.transfer import files


def of(*columns):
  """Filters of one pixel, from the weights of R, G and B."""
  return filters.Filters('name', np.array(columns, np.float32).T[None, None], 1)


def test_the_share_of_colour_is_that_off_the_grey_axis():
  # (2, 0, 0) is 2/3 grey each: 4 in all, of which 3 * 4/9 are grey.
  found = of((1, 1, 1), (1, -1, 0), (2, 0, 0), (0, 0, 0)).colour_shares()
  np.testing.assert_allclose(found, [0, 1, 2 / 3, 0], atol=1e-6)
  assert '2 of them mostly of colour' in of((1, 1, 1), (1, -1, 0), (2, 0, 0)).describe()


def test_filters_share_one_scale_that_is_grey_at_zero():
  one = of((1, 0, -2), (0, 0, 0), (2, 1, 0.5), (-1, -1, -1))._replace(groups=2)
  first, second = filters.split(one)
  np.testing.assert_allclose(first[:, 0, 0], [[0.75, 0.5, 0], [0.5, 0.5, 0.5]])
  np.testing.assert_allclose(second[:, 0, 0], [[1, 0.75, 0.625], [0.25, 0.25, 0.25]])


@pytest.mark.parametrize('channels', ['rgb', 'bgr'])
def test_filters_weigh_the_pixels_of_an_image(channels):
  record = inputs.InputRecord(channels, (1.0, 2.0, 3.0), (0.5, 1.0, 2.0))
  weights = transfer_cases.draw(kind='alexnet').replace(input=record)
  seen = record.see(weights.params['conv1']['kernel'])
  images = np.random.default_rng(0).integers(256, size=(2, 11, 11, 3), dtype=np.uint8)
  prepared = record.prepare(images)
  # The difference of two images, so that no mean counts.
  kernel = weights.params['conv1']['kernel'].astype(np.float64)
  wanted = np.einsum('yxc,yxcf->f', (prepared[1] - prepared[0]).astype(np.float64), kernel)
  change = images[1].astype(np.float64) - images[0]
  np.testing.assert_allclose(np.einsum('yxc,yxcf->f', change, seen), wanted, rtol=1e-4, atol=1e-3)


def test_the_command_draws_networks_one_below_the_other(tmp_path, capsys):
  paths = [tmp_path / name for name in ('a.npz', 'b.npz')]
  for seed, path in enumerate(paths):
    files.save_weights(transfer_cases.draw(kind='cfn', seed=seed), path)
  one, two = tmp_path / 'one.png', tmp_path / 'new' / 'two.png'
  visualize.main(['filters', f'--weights={paths[0]}', f'--out={one}'])
  visualize.main(['filters', f'--weights={paths[0]},{paths[1]}', f'--out={two}'])
  assert Image.open(two).height > 1.9 * Image.open(one).height
  assert f'{paths[1]}: ' in capsys.readouterr().out


@pytest.mark.parametrize(
  ('weights', 'arguments', 'told'),
  [
    ('none.npz', [], 'none.npz: there is no such file or folder'),
    ('later.npz', [], 'later.npz: conv1 missing, below conv2'),
    ('later.npz', ['--out=f.gif'], '--out=f.gif: the name must end in'),
    ('later.npz', ['--step=best'], '--step=best: later.npz is one file of weights, without steps'),
    ('later.npz', ['--collection=ema'], '--collection=ema: later.npz is one file of weights'),
  ],
)
def test_bad_input_is_told_in_a_line(weights, arguments, told, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  whole = transfer_cases.draw(kind='cfn')
  files.save_weights(whole.replace(params={'conv2': whole.params['conv2']}), tmp_path / 'later.npz')
  with pytest.raises(SystemExit):
    visualize.main(['filters', f'--weights={weights}', *arguments])
  said = capsys.readouterr().err
  assert told in said and len(said.splitlines()) == 1
