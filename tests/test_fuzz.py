"""Whatever a user types, no command ends in a traceback: drawn command lines and places."""

import json
import os

import command_server
import fuzz_cases
import pytest

COUNT, SEED = 200, 12


def find_fault(result):
  """Says what is wrong in how a command ended; '' where nothing is."""
  error = result['stderr'].rpartition('error: ')
  if 'Traceback' in result['stdout'] + result['stderr']:
    return 'a traceback'
  if not result['code']:
    return ''
  if result['code'] not in (1, 2):
    return f'exit code {result["code"]}'
  if not error[1]:
    return 'no error is printed'
  if len(error[2].strip().splitlines()) > 5 or len(result['stderr'].splitlines()) > 30:
    return 'too many lines'
  return ''


@pytest.mark.slow
def test_no_command_line_ends_in_a_traceback(tmp_path):
  count, seed = int(os.environ.get('FUZZ_COUNT', COUNT)), int(os.environ.get('FUZZ_SEED', SEED))
  cases = fuzz_cases.draw(tmp_path, count, seed)
  results = command_server.answer(cases, tmp_path)
  faults = [
    f'{find_fault(result)}: {json.dumps(case)}\n{result["stderr"][-1500:]}'
    for case, result in zip(cases, results)
    if find_fault(result)
  ]
  assert len(results) == count and any(not result['code'] for result in results)
  assert not faults, f'{len(faults)} of {count}:\n' + '\n'.join(faults)
