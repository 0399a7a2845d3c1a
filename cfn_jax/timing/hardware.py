"""Accelerators: their peak figures, and those that a step can be compiled for.

Figures of the makers' data sheets: dense FLOP/s, bytes per second, bytes. A leaf: no JAX.
"""

import dataclasses
import math

from cfn_jax.errors import CfnError

# Dense peak, TFLOP/s: float32, tensorfloat32, bfloat16; TPUs have one figure.
PEAKS = {
  'A100': (19.5, 156.0, 312.0),
  'H100': (67.0, 494.5, 989.0),
  'H200': (67.0, 494.5, 989.0),
  'TPU v4': (0.0, 0.0, 275.0),
  'TPU v5 lite': (0.0, 0.0, 197.0),
  'TPU v5': (0.0, 0.0, 459.0),  # v5p
  'TPU v6 lite': (0.0, 0.0, 918.0),
}


def find_peak(kind: str, dtype: str, precision: str) -> float:
  """Returns the peak FLOP/s of one device of a kind; 0 if unknown.

  A TPU multiplies in bfloat16 passes for every type.

  >>> find_peak('NVIDIA H100 80GB HBM3', 'bfloat16', 'default') / 1e12
  989.0
  """
  for name, peaks in PEAKS.items():
    if name in kind:
      if dtype == 'bfloat16' or not peaks[0]:
        return peaks[2] * 1e12
      return peaks[0 if precision == 'float32' else 1] * 1e12
  return 0.0


@dataclasses.dataclass(frozen=True)
class Machine:
  """A kind of device that programs are compiled for.

  Attributes:
    kind: JAX's name of the device; a key of `PEAKS`.
    platform: that of the compiler: `tpu` or `cuda`.
    shapes: possible targets: chips of a TPU slice, or numbers of GPUs.
    bandwidth: bytes per second of a device's memory.
    memory: bytes that JAX uses; three quarters of a GPU's, unless the environment says more.
    flops_a_cycle: those of the matrix units, in bfloat16; 0 if the compiler estimates no cycles.
  """

  kind: str
  platform: str
  shapes: tuple[str, ...]
  bandwidth: float
  memory: int
  flops_a_cycle: int = 0


MACHINES = {
  'v5e': Machine('TPU v5 lite', 'tpu', ('2x2', '4x4'), 819e9, 16 * 2**30, 4 * 2 * 128**2),
  'v6e': Machine('TPU v6 lite', 'tpu', ('2x2', '4x4'), 1640e9, 32 * 2**30, 4 * 2 * 256**2),
  'v5p': Machine('TPU v5', 'tpu', ('2x2x1', '2x2x2'), 2765e9, 95 * 2**30, 8 * 2 * 128**2),
  'h100': Machine('H100', 'cuda', ('1', '8', '16'), 3350e9, 84_942_979_072 * 3 // 4),
}
GPUS_A_HOST = 8
TARGETS = tuple(f'{name}:{shape}' for name, machine in MACHINES.items() for shape in machine.shapes)
# The compiler's description of an H100 SXM, read from one, in XLA's names (GpuTargetConfigProto).
H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  memory_bandwidth: 3350000000000
  device_memory_size: 84942979072
  l2_cache_size: 52428800
  shared_memory_per_core: 233472
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_core_limit: 2048
  threads_per_block_limit: 1024
  threads_per_warp: 32
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  runtime_version: "12.9.0"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def count_devices(target: str) -> int:
  """Returns the number of devices of a target.

  >>> count_devices('v5e:4x4'), count_devices('h100:8')
  (16, 8)
  """
  return math.prod(int(side) for side in target.partition(':')[2].split('x'))


def find_machine(target: str) -> Machine:
  """Returns the machine of a target, such as `v5e:2x2`.

  Raises:
    CfnError: there is no such target; with those that exist.
  """
  if target not in TARGETS:
    raise CfnError(f"--target: '{target}' is none of {', '.join(TARGETS)}")
  return MACHINES[target.partition(':')[0]]
