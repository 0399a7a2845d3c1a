"""Rows, throughput."""

import json

import pytest

from cfn_jax.training import metrics


def test_a_writer_cuts_what_will_be_written_again_and_what_was_torn(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  path.write_text('{"step": 10}\n{"step": 20}\n{"step": 30}\n{"st')
  options = {'num_steps': 100, 'notice': lambda row: ''}
  with metrics.Writer(tmp_path, start_step=20, **options) as writer:
    writer.write({'step': 30, 'train_loss': 1.5, 'val_loss': float('nan')})
  written = [json.loads(line) for line in path.read_text().splitlines()]
  assert written == [
    {'step': 10},
    {'step': 20},
    {'step': 30, 'train_loss': 1.5, 'val_loss': 'nan'},
  ]


def test_throughput_leaves_out_what_is_paused(monkeypatch):
  now = [100.0]
  monkeypatch.setattr(metrics.time, 'perf_counter', lambda: now[0])
  watch = metrics.Stopwatch()
  for _ in range(4):
    with watch.waiting():
      now[0] += 0.5
    now[0] += 1.5
    with watch.paused():
      now[0] += 100
  figures = watch.figures({'puzzles': 16, 'images': 2})
  assert figures['puzzles_per_second'] == pytest.approx(4 * 16 / 8)
  assert figures['images_per_second'] == pytest.approx(4 * 2 / 8)
  assert figures['input_wait_fraction'] == pytest.approx(2 / 8)
  watch.restart()
  assert watch.figures({'puzzles': 16}) == {}


def test_lines_that_are_no_rows_are_skipped(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  path.write_text(
    '{"step": 1}\n[2]\n{"step": ' + '9' * 5000 + '}\n' + '[' * 5000 + '\n{"step": 3}\n{"st'
  )
  assert metrics.read_rows(path) == [{'step': 1}, {'step': 3}]


def test_no_time_left_is_told_before_a_step_is_timed(capsys):
  progress = metrics.Progress(3, 10)
  progress.begin(4)  # the first step was a compilation
  progress.show({'step': 4, 'train_loss': 1.5})
  progress.show({'step': 6, 'train_loss': 1.5})
  first, second = capsys.readouterr().err.splitlines()
  assert first == 'step 4/10  train_loss 1.500' and 'train_loss 1.500  left 0:00' in second
