"""Several hosts that train one network, joined by JAX's runtime (`jax.distributed`).

Each host is a process that drives its own devices; `training/devices.py` then sees those of all.
When a process dies, the others cannot continue: they name it and end.
"""

import contextlib
import os
import pathlib
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

from cfn_jax import terminal
from cfn_jax.errors import CfnError
from cfn_jax.training import lock, stopping

MODES = ('off', 'auto', 'explicit')
LOST_PEER = 3  # exit code
JOIN_SECONDS = 300.0  # the runtime waits that long for the processes
_NAME_BYTES = 128


class DistributedError(CfnError):
  """Settings that keep processes from finding each other."""


def check(
  mode: str, *, coordinator: str, num_processes: int, process_id: int, heartbeat_s: int
) -> None:
  """Raises DistributedError for settings that cannot work, before anything starts."""
  if mode not in MODES:
    raise DistributedError(f"distributed.mode = '{mode}' is unknown: one of {', '.join(MODES)}")
  if heartbeat_s < 1:
    raise DistributedError(f'distributed.heartbeat_s = {heartbeat_s}: at least 1')
  if mode != 'explicit':
    if coordinator or num_processes or process_id:
      raise DistributedError(
        f"distributed.mode = '{mode}' takes no coordinator, num_processes or process_id: "
        "they go with 'explicit'"
      )
    return
  host, colon, port = coordinator.rpartition(':')
  if not (host and colon and port.isdecimal() and 0 < int(port) < 2**16):
    raise DistributedError(
      f"distributed.coordinator = '{coordinator}': HOST:PORT of process 0, such as 10.0.0.1:1234"
    )
  if num_processes < 1 or not 0 <= process_id < num_processes:
    raise DistributedError(
      f'distributed.process_id = {process_id} of num_processes = {num_processes}: the processes '
      'are counted from 0'
    )


def start(
  mode: str, *, coordinator: str, num_processes: int, process_id: int, heartbeat_s: int
) -> None:
  """Joins the processes; call it before the first use of any device.

  Args:
    mode: 'off'; 'auto': as Slurm, a TPU pod, Kubernetes or Open MPI state; 'explicit': the next
      three arguments.
    coordinator: `HOST:PORT` of process 0.
    num_processes: their number.
    process_id: the number of this one, from 0.
    heartbeat_s: seconds of silence after which a process counts as dead.

  Raises:
    DistributedError: settings cannot work; 'auto' finds no cluster; the others cannot be reached.
  """
  check(
    mode,
    coordinator=coordinator,
    num_processes=num_processes,
    process_id=process_id,
    heartbeat_s=heartbeat_s,
  )
  if mode == 'off':
    return
  jax.config.update('jax_enable_preemption_service', False)  # it would swallow SIGTERM
  if mode == 'explicit':
    _meet(coordinator, num_processes, process_id)
    try:
      jax.distributed.initialize(
        coordinator, num_processes, process_id, heartbeat_timeout_seconds=heartbeat_s
      )
    except RuntimeError as error:
      raise _not_joined(f'process {process_id} of {num_processes}', coordinator, error) from error
    return
  try:
    jax.distributed.initialize(heartbeat_timeout_seconds=heartbeat_s)
  except ValueError as error:
    raise DistributedError(
      f"distributed.mode = 'auto' found no Slurm, TPU pod, Kubernetes or Open MPI here ({error}); "
      "name the processes with 'explicit', or take 'off' on one machine"
    ) from error
  except RuntimeError as error:
    raise _not_joined('this process', "that 'auto' found", error) from error


def _meet(coordinator: str, num_processes: int, process_id: int) -> None:
  """Checks that process 0 can listen and the others reach it, for at most `JOIN_SECONDS`.

  The runtime crashes if its port is taken, and aborts if nobody answers; not every such failure is
  an exception.
  """
  who = f'process {process_id} of {num_processes}'
  host, _, port = coordinator.rpartition(':')
  if process_id == 0:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
      socket.create_server(('', int(port)), family=family, dualstack_ipv6=both).close()
    except OSError as error:
      raise _not_joined(who, coordinator, error) from error
    return
  deadline, told = time.monotonic() + JOIN_SECONDS, False
  while True:
    left = deadline - time.monotonic()
    try:
      socket.create_connection((host.strip('[]'), int(port)), timeout=max(0.1, left)).close()
      return
    except OSError as error:
      if left <= 1:
        raise _not_joined(who, coordinator, error) from error
      if not told:
        _say(f'{who} waits for the coordinator {coordinator} ({error})')
      told = True
    time.sleep(1)


def _not_joined(who: str, coordinator: str, error: Exception) -> DistributedError:
  return DistributedError(
    f'{who} could not join the others at the coordinator {coordinator} '
    f'({terminal.first_line(error)}): process 0 must run on that host, its port must be free '
    'there and open to the others, and all processes must be started together'
  )


def name_processes() -> list[str]:
  """Returns the host and process id of every process, by number; all call it together."""
  name = f'{socket.gethostname()}, pid {os.getpid()}'.encode()[:_NAME_BYTES]
  if jax.process_count() == 1:
    return [name.decode()]
  padded = np.frombuffer(name.ljust(_NAME_BYTES, b'\0'), np.uint8)
  rows = np.asarray(multihost_utils.process_allgather(padded))
  return [row.tobytes().rstrip(b'\0').decode(errors='replace') for row in rows]


@contextlib.contextmanager
def hold_workdir(workdir: pathlib.Path, say: Callable[[str], None]) -> Iterator[None]:
  """Holds the workdir's lock on the first host, for all of them; see `lock.hold`."""
  with contextlib.ExitStack() as stack:
    refused = ''
    if jax.process_index() == 0:
      try:
        stack.enter_context(lock.hold(workdir, say))
      except lock.LockedError as error:
        refused = str(error)
    if stopping.any_host(bool(refused)):
      raise lock.LockedError(refused or f'{workdir} is in use: see what the first host says')
    yield


@contextlib.contextmanager
def watch_peers(heartbeat_s: int) -> Iterator[None]:
  """Ends this process at once if the run fails, on this host or on another.

  The runtime's own shutdown waits for the others, which may wait for this one. A failed collective
  means that a process died: it is named. With more than two processes, the runtime's service finds
  the dead one within `heartbeat_s` and logs it. If process 0 dies, the service ends the others.
  """
  if jax.process_count() == 1:
    yield
    return
  names, mine = name_processes(), jax.process_index()
  if mine:
    terminal.say(f'process {mine} ({names[mine]}); process 0 is the leader ({names[0]})')
  else:  # if a save waits for a lost one, the runtime ends this process with its number
    listed = ', '.join(f'{number} ({name})' for number, name in enumerate(names))
    terminal.say(f'processes {listed}')
  others = ' or '.join(f'process {i} ({name})' for i, name in enumerate(names) if i != mine)
  try:
    with terminal.short_errors():  # here, so that the following lines come after the error
      yield
  except jax.errors.JaxRuntimeError as error:
    _say(
      f'error: process {mine} ({names[mine]}) lost {others}: {terminal.first_line(error)}; the '
      'same commands continue from the last checkpoint'
    )
    if len(names) > 2:
      time.sleep(heartbeat_s + 1)  # the service names the process and ends this one
    os._exit(LOST_PEER)
  except SystemExit as stopped:
    if not stopped.code:
      raise
    _say(f'process {mine} ({names[mine]}) ends; unless it is its own fault, it lost {others}')
    os._exit(stopped.code if isinstance(stopped.code, int) else 1)
  except stopping.Stopped:  # all agreed
    raise
  except Exception:
    _say(*traceback.format_exc().splitlines())
    os._exit(1)


def _say(*lines: str) -> None:
  terminal.say(*lines)
  sys.stdout.flush()
  sys.stderr.flush()
