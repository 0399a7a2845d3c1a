"""Memory of the host that XLA's CPU backend computes in."""

import ctypes
import importlib.metadata
import importlib.util
import os
import platform

# `mallopt` of glibc, with the values of its malloc.h
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8


def keep_freed() -> bool:
  """Lets the C library keep the memory that a step frees for the next one; returns whether it does.

  glibc hands large blocks back to the system, so that each step maps its temporary arrays anew,
  page by page: 144,000 page faults at full width and batch 16, a seventh of the step's CPU time
  (docs/performance.md). The price is a larger process: 1.9 to 3 GB there instead of 1.4.

  Nothing changes where an accelerator may compute, where the environment holds a `MALLOC_`
  variable, or without glibc. Call it before JAX starts its threads: each keeps the heap that it
  began with.
  """
  if platform.libc_ver()[0] != 'glibc' or _accelerator_possible():
    return False
  if any(name.startswith('MALLOC_') for name in os.environ):
    return False
  library = ctypes.CDLL(None)
  settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_ARENA_MAX, 1))  # -1: never
  return all([library.mallopt(name, value) == 1 for name, value in settings])


def _accelerator_possible() -> bool:
  """Whether JAX has a plugin for an accelerator and is not told to leave it alone."""
  if os.environ.get('JAX_PLATFORMS') == 'cpu':
    return False
  plugins = importlib.metadata.entry_points(group='jax_plugins')
  return bool(plugins) or any(map(importlib.util.find_spec, ('jax_plugins', 'libtpu')))
