"""Keeps the host's memory for XLA's CPU backend."""

import ctypes
import importlib.metadata
import importlib.util
import os
import platform

# Parameters of glibc's `mallopt`, from its malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8


def keep_freed() -> bool:
  """Makes the C library keep memory that a step frees; returns whether it does.

  glibc returns large blocks to the system, so each step maps its temporary arrays again, page by
  page: 144,000 page faults at full width and batch 16, a seventh of the step's CPU time
  (docs/performance.md). The price is a larger process: 1.9 to 3 GB there instead of 1.4.

  Nothing changes if an accelerator may compute, if the environment has a `MALLOC_` variable, or
  without glibc. Call it before JAX starts its threads: each keeps its first heap.
  """
  if platform.libc_ver()[0] != 'glibc' or _accelerator_possible():
    return False
  if any(name.startswith('MALLOC_') for name in os.environ):
    return False
  library = ctypes.CDLL(None)
  settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_ARENA_MAX, 1))  # -1: never
  return all([library.mallopt(name, value) == 1 for name, value in settings])


def _accelerator_possible() -> bool:
  """Returns whether JAX has a plugin for an accelerator that the environment does not exclude."""
  if os.environ.get('JAX_PLATFORMS') == 'cpu':
    return False
  plugins = importlib.metadata.entry_points(group='jax_plugins')
  return bool(plugins) or any(map(importlib.util.find_spec, ('jax_plugins', 'libtpu')))
