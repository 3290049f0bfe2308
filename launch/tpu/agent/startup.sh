#!/bin/bash
# Startup script of every host of a TPU slice; runs as root at every boot. The metadata server has
# the program that does the rest, and where its job is.
set -euo pipefail
home=${BERT_JAX_HOME:-/var/lib/bert-jax}
server=${GCE_METADATA_HOST:-metadata.google.internal}
mkdir -p "$home"
until curl --silent --fail --retry 5 --connect-timeout 5 --max-time 30 \
  --header 'Metadata-Flavor: Google' \
  "http://$server/computeMetadata/v1/instance/attributes/bert-jax-agent" |
  base64 --decode >"$home/agent.new"; do
  echo "no answer from the metadata server" >&2
  sleep 5
done
# Named by its content: an agent that is still at work goes on reading its own.
digest=$(sha256sum <"$home/agent.new")
agent="$home/agent-${digest:0:16}.zip"
mv "$home/agent.new" "$agent"
systemctl stop bert-jax 2>/dev/null || true # of a startup script that was run again by hand
systemd-run --unit=bert-jax --collect --property=Restart=on-failure --property=RestartSec=5 \
  --property=TimeoutStopSec=60 --property=KillMode=mixed -- python3 "$agent"
