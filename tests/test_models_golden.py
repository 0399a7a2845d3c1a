"""The trunk against activations that OpenCV's Caffe reader and PyTorch computed."""

import re

import jax
import numpy as np
import pytest

from cfn_jax.models import trunk

_GROUPS = {'conv1': 1, 'conv2': 2, 'conv3': 1, 'conv4': 2, 'conv5': 2}
_SHAPES = {
  'conv1': (96, 3, 11, 11),
  'conv2': (256, 48, 5, 5),
  'conv3': (384, 256, 3, 3),
  'conv4': (384, 192, 3, 3),
  'conv5': (256, 192, 3, 3),
}


def _golden_parameters():
  params = {}
  for k, (name, shape) in enumerate(_SHAPES.items(), start=1):
    rs = np.random.RandomState(k)
    weight = rs.standard_normal(shape).astype('f4') * np.sqrt(2 / np.prod(shape[1:]))
    bias = rs.standard_normal([shape[0]]).astype('f4') * 0.1
    params[name] = {'kernel': weight.transpose(2, 3, 1, 0).astype('f4'), 'bias': bias.astype('f4')}
  return params


def _golden_input(size):
  images = np.random.RandomState(100).uniform(0, 255, [2, 3, size, size]).astype('f4')
  images -= np.array([104, 117, 123], 'f4')[:, None, None]
  return images.transpose(0, 2, 3, 1)


@pytest.fixture(scope='module')
def golden(shared_root):
  return np.load(shared_root('golden/caffe_trunk_activations.npz'))


@pytest.mark.slow
def test_trunk_equals_caffe_in_every_geometry(golden):
  geometries = sorted({key.split('/')[0] for key in golden.files})
  assert len(geometries) == 7
  params = _golden_parameters()
  for geometry in geometries:
    order, stride, size = re.fullmatch(r'(\w+)_s(\d)_(\d+)', geometry).groups()
    model = trunk.Trunk(order=order, stride=int(stride))
    stages = jax.jit(lambda x, model=model: model.apply({'params': params}, x, method='stages'))(
      _golden_input(int(size))
    )
    blobs = {key.split('/')[1] for key in golden.files if key.startswith(geometry + '/')}
    assert {'relu1', 'relu5', 'pool5'} <= blobs
    for blob in blobs:
      ours = np.asarray(stages[blob.replace('relu', 'conv')]).transpose(0, 3, 1, 2)
      assert tuple(golden[f'{geometry}/{blob}/shape']) == ours.shape
      theirs = golden[f'{geometry}/{blob}/every97']
      difference = np.linalg.norm(ours.reshape(-1)[::97] - theirs) / np.linalg.norm(theirs)
      assert difference < 1e-5, (geometry, blob, difference)
      norm = np.linalg.norm(ours.astype('f8'))
      assert abs(norm / golden[f'{geometry}/{blob}/norm'] - 1) < 1e-5, (geometry, blob)


@pytest.mark.parametrize(
  ('name', 'stride', 'shape'),
  [('caffenet_s4_183x243', 4, (183, 243)), ('caffenet_s2_94x123', 2, (94, 123))],
)
def test_a_padded_trunk_equals_fast_rcnns(shared_root, name, stride, shape):
  known = np.load(shared_root('golden/fast_rcnn_forward.npz'))
  images = np.random.RandomState(100).uniform(0, 255, [2, 3, *shape]).astype('f4')
  images -= np.array([102.9801, 115.9465, 122.7717], 'f4')[:, None, None]
  model = trunk.Trunk(stride=stride, padding=5, pool_padding=1)
  stages = jax.jit(lambda x: model.apply({'params': _golden_parameters()}, x, method='stages'))(
    images.transpose(0, 2, 3, 1)
  )
  for blob in ('relu1', 'pool1', 'norm1', 'relu2', 'pool2', 'norm2', 'relu5'):
    ours = np.asarray(stages[blob.replace('relu', 'conv')]).transpose(0, 3, 1, 2)
    assert tuple(known[f'{name}/{blob}/shape']) == ours.shape
    theirs = known[f'{name}/{blob}/every97']
    difference = np.linalg.norm(ours.reshape(-1)[::97] - theirs) / np.linalg.norm(theirs)
    assert difference < 1e-5, blob
    assert np.linalg.norm(ours.astype('f8')) == pytest.approx(
      known[f'{name}/{blob}/norm'], rel=1e-5
    )
