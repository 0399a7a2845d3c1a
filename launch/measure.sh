#!/usr/bin/env bash
# Measures a machine: the step in three precisions, the gradient in bfloat16, the loader, some minutes of
# training. Writes all lines, and what the machine is, into one JSON file.
#
#   OUT=measured.json IMAGES=DIR launch/measure.sh
#
# BASELINE is a command that prints a line of JSON about the same step in another framework; it runs before and
# after ours. BATCH, STEPS, SECONDS_OF_INPUT, WORKERS, TRAIN_STEPS and CONFIG (whose step, `cfn` by default)
# change the size of what is measured; what is trained is `cfn:small`. Ends with 1 where something failed.
set -euo pipefail
: "${OUT:?set OUT to the JSON file to write}"
: "${IMAGES:?set IMAGES to a folder of images}"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
config=${CONFIG:-cfn}
[[ -d "$IMAGES" ]] || { echo "IMAGES=$IMAGES: there is no such folder" >&2; exit 2; }
: > "$OUT" || exit 2
IMAGES=$(realpath "$IMAGES") OUT=$(realpath "$OUT")
cd "$(dirname "$0")/.."
commit=$(git rev-parse HEAD 2> /dev/null || true)

measure() {  # NAME COMMAND...: keeps the last line that the command prints, or what went wrong
  local name=$1
  shift
  echo "$name: $*" >&2
  if ! "$@" > "$folder/$name.out" 2> "$folder/$name.err"; then
    tail -n 3 "$folder/$name.err" | tee "$folder/$name.failed" >&2
  fi
}

step() {  # PRECISION...
  python -m cfn_jax.benchmark step --config="$config" --batch="${BATCH:-256}" --steps="${STEPS:-20}" "$@"
}

read -ra baseline <<< "${BASELINE:-}"
[[ -z "${BASELINE:-}" ]] || measure baseline_before "${baseline[@]}"
measure step_float32 step --dtype=float32 --precision=float32
measure step_tensorfloat32 step --dtype=float32 --precision=tensorfloat32
measure step_bfloat16 step --dtype=bfloat16
[[ -z "${BASELINE:-}" ]] || measure baseline_after "${baseline[@]}"
measure precision python -m cfn_jax.benchmark precision --config="$config" --images="$IMAGES"
measure input python -m cfn_jax.benchmark input --config="$config" --images="$IMAGES" \
  --workers="${WORKERS:-0}" --seconds="${SECONDS_OF_INPUT:-20}"
measure training python -m cfn_jax.main --config=cfn:small --workdir="$folder/run" \
  --config.data.root="$IMAGES" --config.num_steps="${TRAIN_STEPS:-2000}"

python - "$folder" "$OUT" "$commit" <<'PYTHON'
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import sys

import jax

folder, out = map(pathlib.Path, sys.argv[1:3])
found = {}
for file in sorted(folder.glob('*.out')):
  failed = file.with_suffix('.failed')
  lines = [line for line in file.read_text().splitlines() if line.startswith('{')]
  if failed.is_file():
    found[file.stem] = {'error': failed.read_text()}
  elif file.stem == 'training':
    metrics = (folder / 'run' / 'metrics.jsonl').read_text()
    found['training'] = [json.loads(line) for line in metrics.splitlines()]
  else:
    found[file.stem] = json.loads(lines[-1]) if lines else {'error': 'it printed no line of JSON'}
found['machine'] = {
  'commit': sys.argv[3],
  'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
  'devices': [device.device_kind for device in jax.devices()],
  'cores': os.cpu_count(),
  'python': platform.python_version(),
  **{name: importlib.metadata.version(name) for name in ('jax', 'jaxlib', 'flax')},
}
out.write_text(json.dumps(found, indent=1) + '\n')
failed = [name for name, figures in found.items() if 'error' in figures]
print(f'{out}: {", ".join(found)}' + (f'; failed: {", ".join(failed)}' if failed else ''))
sys.exit(bool(failed))
PYTHON
