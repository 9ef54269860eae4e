#!/usr/bin/env bash
# Ends what was left running in each DIR (a control plane, a webhook) and removes the directory.
#   down.sh DIR...
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: down.sh DIR..." >&2; exit 2; }
for dir; do
  dir=$(readlink -m -- "$dir")
  [ -d "$dir" ] || { echo "$dir is not there: nothing to end" >&2; continue; }
  [ -s "$dir/supervisor.pid" ] || { echo "$dir is no directory of a control plane: left alone" >&2; exit 1; }
  pid=$(cat "$dir/supervisor.pid")
  # Only the process that was started for this very directory: a pid may have been given to another since.
  ours() { tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qxF "$dir"; }
  if ours 2>/dev/null; then
    kill "$pid"
    for ((tick = 0; tick < 100; tick++)); do ours 2>/dev/null || break; sleep 0.1; done
    ! ours 2>/dev/null || { echo "process $pid did not end within 10 s" >&2; exit 1; }
  fi
  rm -rf -- "$dir"
  echo "$dir has ended"
done
