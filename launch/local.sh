#!/usr/bin/env bash
# Trains on one machine, with all its GPUs (one process drives them all).
#
#   CONFIG=configs/cfn.py WORKDIR=runs/cfn launch/local.sh [--dry-run] [--config.FIELD=VALUE ...]
set -euo pipefail
: "${CONFIG:?set CONFIG to a config, such as configs/cfn.py}"
: "${WORKDIR:?set WORKDIR to the folder of the run; the same folder continues it}"

run=(exec)  # the trainer takes the place of this shell, so signals reach it: SIGTERM saves and ends
for each; do
  shift
  if [[ $each == --dry-run ]]; then run=(echo); else set -- "$@" "$each"; fi
done
"${run[@]}" python -m cfn_jax.main --config="$CONFIG" --workdir="$WORKDIR" "$@"
