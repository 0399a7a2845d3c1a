"""Processes that cannot join: a short error that names the coordinator."""

import socket
import time

import jax
import pytest
from test_main import SMALL, run

from cfn_jax.training import distributed

EXPLICIT = {'coordinator': '10.0.0.1:1234', 'num_processes': 3, 'process_id': 2, 'heartbeat_s': 9}
AUTO = {'coordinator': '', 'num_processes': 0, 'process_id': 0, 'heartbeat_s': 9}


@pytest.mark.parametrize(
  ('mode', 'arguments', 'who'),
  [
    ('explicit', EXPLICIT, 'process 2 of 3 could not join .* coordinator 10.0.0.1:1234 '),
    ('auto', AUTO, "this process could not join .* coordinator that 'auto' found "),
  ],
)
def test_who_cannot_join_in_time_names_the_coordinator(mode, arguments, who, monkeypatch):
  def initialize(*_, **__):
    raise jax.errors.JaxRuntimeError('DEADLINE_EXCEEDED: no answer\nand a long tail')

  monkeypatch.setattr(jax.distributed, 'initialize', initialize)
  monkeypatch.setattr(distributed, '_meet', lambda *_: None)
  with pytest.raises(distributed.DistributedError, match=who) as caught:
    distributed.start(mode, **arguments)
  assert '(DEADLINE_EXCEEDED: no answer)' in str(caught.value)
  assert 'tail' not in str(caught.value)


def test_a_process_waits_for_its_coordinator_and_gives_up_in_time(monkeypatch, capsys):
  with socket.create_server(('127.0.0.1', 0)) as server:
    coordinator = f'127.0.0.1:{server.getsockname()[1]}'
    distributed._meet(coordinator, 2, 1)
  assert not capsys.readouterr().err
  monkeypatch.setattr(distributed, 'JOIN_SECONDS', 1.5)
  began = time.monotonic()
  with pytest.raises(distributed.DistributedError, match=rf'process 1 of 2 .* {coordinator} '):
    distributed._meet(coordinator, 2, 1)
  assert time.monotonic() - began >= 0.5
  said = capsys.readouterr().err
  assert said.count(f'process 1 of 2 waits for the coordinator {coordinator}') == 1


def test_process_0_leaves_the_port_free_for_the_runtime():
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    coordinator = f'127.0.0.1:{probe.getsockname()[1]}'
  for _ in range(2):
    distributed._meet(coordinator, 2, 0)


@pytest.mark.parametrize('port', ['0', '65536', 'http'])
def test_ports_that_are_none_are_refused(port):
  with pytest.raises(distributed.DistributedError, match=f'a:{port}.*HOST:PORT'):
    distributed.check('explicit', **EXPLICIT | {'coordinator': f'a:{port}'})


def test_a_coordinator_whose_port_is_taken_is_a_short_error(tmp_path):
  with socket.socket() as taken:
    taken.bind(('127.0.0.1', 0))
    taken.listen()
    coordinator = f'127.0.0.1:{taken.getsockname()[1]}'
    result = run(
      *SMALL,
      f'--workdir={tmp_path / "run"}',
      '--config.distributed.mode=explicit',
      f'--config.distributed.coordinator={coordinator}',
      '--config.distributed.num_processes=2',
    )
  assert result.returncode == 2, result.stderr
  assert f'error: process 0 of 2 could not join the others at the coordinator {coordinator}' in (
    result.stderr
  )
  assert 'Address already in use' in result.stderr  # found before the runtime, which may crash
  assert 'Traceback' not in result.stderr
