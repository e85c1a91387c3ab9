#!/bin/sh
# A program that is no Python script, as far as a launcher can see.
exec "$PROBE_PYTHON" "$PROBE_SOURCE/probe.py" "$@"
