#!/usr/bin/env bash
# Trains on all hosts of a Cloud TPU slice on which the project is installed in ~/cfn_jax, in its
# .venv if there is one.
#
#   TPU=my-slice ZONE=us-central2-b CONFIG=configs/cfn.py WORKDIR=gs://my-bucket/runs/cfn \
#     launch/tpu_pod.sh [--dry-run] [--config.FIELD=VALUE ...]
set -euo pipefail
: "${TPU:?set TPU to the name of the TPU slice}"
: "${ZONE:?set ZONE to its zone, such as us-central2-b}"
: "${CONFIG:?set CONFIG to a config, such as configs/cfn.py}"
: "${WORKDIR:?set WORKDIR to gs://BUCKET/PATH, or to a folder that all hosts see}"

dry=
for each; do
  shift
  if [[ $each == --dry-run ]]; then dry=echo; else set -- "$@" "$each"; fi
done
on_all_hosts() {
  $dry gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all --command="$1"
}
# ssh does not pass signals on: they are sent to the trainers themselves, which save and end.
trap 'on_all_hosts "pkill -TERM -f cfn_jax.main"; wait' TERM INT

trainer=(python -m cfn_jax.main "--config=$CONFIG" "--workdir=$WORKDIR"
  --config.distributed.mode=auto "$@")
on_all_hosts "cd ~/cfn_jax && export PATH=\$PWD/.venv/bin:\$PATH && exec $(printf '%q ' "${trainer[@]}")" &
wait $!
