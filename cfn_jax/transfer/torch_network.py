"""AlexNet's trunk, AlexNet and the context-free network in plain PyTorch.

`python -m cfn_jax.convert --to=pytorch` writes this file, with the figures of the converted
network, beside its weights. It needs only PyTorch.
"""

import pathlib

import torch
from torch import nn
from torch.nn import functional

# The following figures are those of the network; the weights beside this file fit it.
NETWORK = 'AlexNet'  # its class below
ORDER = 'caffenet'  # 'caffenet': pooling, then LRN; 'alexnet': LRN, then pooling
CHANNELS = (96, 256, 384, 384, 256)  # of conv1 .. conv5
GROUPS = (1, 2, 1, 2, 2)
STRIDE = 4  # of conv1
PADDING = 0  # of conv1
CONNECTED: tuple[tuple[int, int], ...] = ()  # (inputs, outputs) of fc6, fc7, fc8
TILES = 1  # number of tiles whose features fc7 sees
INPUT_CHANNELS = 'bgr'  # in this order, then (pixel 0..255 - INPUT_MEAN) * INPUT_SCALE
INPUT_MEAN = (104.0, 117.0, 123.0)
INPUT_SCALE = (1.0, 1.0, 1.0)
INPUT_NORMALIZATION = ''  # 'tile', 'channel', 'mean': by each image's own figures instead
INPUT_STD = 1.0  # replaces an image's own standard deviation


def prepare(images: torch.Tensor) -> torch.Tensor:
  """Prepares uint8 RGB images `[..., 3, H, W]` for the network: float32."""
  x = images.double()
  if INPUT_CHANNELS == 'bgr':
    x = x.flip(-3)
  scale = torch.tensor(INPUT_SCALE, dtype=x.dtype, device=x.device)[:, None, None]
  if not INPUT_NORMALIZATION:
    mean = torch.tensor(INPUT_MEAN, dtype=x.dtype, device=x.device)[:, None, None]
    return ((x - mean) * scale).float()
  axes = (-3, -2, -1) if INPUT_NORMALIZATION == 'tile' else (-2, -1)
  x = x - x.mean(axes, keepdim=True)
  if INPUT_NORMALIZATION == 'mean':
    return (x * scale / INPUT_STD).float()
  std = x.square().mean(axes, keepdim=True).sqrt()
  return torch.where(std > 1e-3, x / std.clamp_min(1e-3) * scale, torch.zeros_like(x)).float()


class Trunk(nn.Module):
  """conv1 .. conv5: images `[B, 3, H, W]`, prepared, to pool5 `[B, C, h, w]`."""

  def __init__(self) -> None:
    super().__init__()
    kernels, paddings = (11, 5, 3, 3, 3), (PADDING, 2, 1, 1, 1)
    before = 3
    for index, channels in enumerate(CHANNELS):
      layer = nn.Conv2d(
        before,
        channels,
        kernels[index],
        stride=STRIDE if index == 0 else 1,
        padding=paddings[index],
        groups=GROUPS[index],
      )
      setattr(self, f'conv{index + 1}', layer)
      before = channels
    for index, (inputs, outputs) in enumerate(CONNECTED):
      setattr(self, f'fc{index + 6}', nn.Linear(inputs, outputs))

  def stages(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns every stage by Caffe's name: conv1 .. conv5 after ReLU, pool1, norm1, ... pool5."""
    x, found = images, {}
    for number in range(1, len(CHANNELS) + 1):
      x = found[f'conv{number}'] = functional.relu(getattr(self, f'conv{number}')(x))
      steps = ('pool', 'norm') if number < 3 else ('pool',) if number == 5 else ()
      for step in steps if ORDER == 'caffenet' else reversed(steps):
        if step == 'pool':
          x = functional.max_pool2d(x, 3, stride=2, ceil_mode=True)  # Caffe rounds sizes up
        else:
          x = functional.local_response_norm(x, 5, alpha=1e-4, beta=0.75, k=1.0)
        found[f'{step}{number}'] = x
    return found

  def forward(self, images: torch.Tensor) -> torch.Tensor:
    return list(self.stages(images).values())[-1]


class AlexNet(Trunk):
  """AlexNet: prepared images `[B, 3, H, W]` to the output of the last layer."""

  def stages(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns every stage by Caffe's name; fc6 and fc7 after their ReLU."""
    found = super().stages(images)
    if not CONNECTED:
      return found
    x = found['pool5'].flatten(1)
    for number in range(6, 6 + len(CONNECTED)):
      x = getattr(self, f'fc{number}')(x)
      if number < 8:
        x = functional.relu(x)
      found[f'fc{number}'] = x
      x = functional.dropout(x, 0.5, self.training) if number < 8 else x
    return found


class Cfn(Trunk):
  """The context-free network: tiles `[B, T, 3, h, w]`, prepared, to logits `[B, N]`."""

  fc6: nn.Linear
  fc7: nn.Linear
  fc8: nn.Linear

  def features(self, tiles: torch.Tensor) -> torch.Tensor:
    """Returns fc6 of each tile, after its ReLU: `[B, T, 3, h, w]` to `[B, T, D]`."""
    maps = self.stages(tiles.flatten(0, 1))['pool5'].flatten(1)
    return functional.relu(self.fc6(maps)).unflatten(0, tiles.shape[:2])

  def forward(self, tiles: torch.Tensor) -> torch.Tensor:
    x = functional.dropout(self.features(tiles), 0.5, self.training).flatten(1)  # [B, T * D]
    x = functional.dropout(functional.relu(self.fc7(x)), 0.5, self.training)
    return self.fc8(x)


def load(path: str | pathlib.Path) -> nn.Module:
  """Builds the network with the weights of a `.pth` file, ready for evaluation."""
  network: nn.Module = globals()[NETWORK]()
  network.load_state_dict(torch.load(path, map_location='cpu', weights_only=True))
  return network.eval()
