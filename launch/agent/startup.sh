#!/bin/bash
# Startup script of every host of a TPU slice; runs as root at every boot. The metadata server has
# the program that does the rest, and where its job is.
set -euo pipefail
home=${BERT_JAX_HOME:-/var/lib/bert-jax}
server=${GCE_METADATA_HOST:-metadata.google.internal}
mkdir -p "$home"
until curl --silent --fail --retry 5 --header 'Metadata-Flavor: Google' \
  "http://$server/computeMetadata/v1/instance/attributes/bert-jax-agent" |
  base64 --decode >"$home/agent.zip"; do
  echo "no answer from the metadata server" >&2
  sleep 5
done
systemctl stop bert-jax 2>/dev/null || true # of a startup script that was run again by hand
systemd-run --unit=bert-jax --collect --property=Restart=on-failure --property=RestartSec=5 \
  --property=TimeoutStopSec=60 --property=KillMode=mixed -- python3 "$home/agent.zip"
