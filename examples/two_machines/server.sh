#!/bin/sh
# The server's machine: server.sh HOST, a name or address by which the sites call it.
# Put the .pub file of every site into registered/ first, and send certs/ca.pem to the sites.
set -eu
host=$1
[ -f certs/server.pem ] || coterie deploy certs certs --host "$host"
resume=$([ -f scans-run/config.toml ] && echo --resume || true)
exec coterie deploy server "$(dirname "$0")/scans.toml" \
    --host "$host" --certificates certs --keys registered --out scans-run $resume
