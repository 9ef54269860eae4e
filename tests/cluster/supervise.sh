#!/usr/bin/env bash
# Runs the programs of one control plane (or one webhook) and ends all of them, and removes their directory, as soon as
# its own standard input ends: that is when whoever started it is gone, in whatever way.
#   setsid supervise.sh DIR GRACE     DIR must not exist yet; GRACE: tenths of a second between TERM and KILL, 0 for KILL at once
#   supervise.sh DIR node             as process 1 of a node (node.sh), with whose end the kernel ends all the others; DIR stays
# Commands are lines on standard input, each answered by one line:
#   start NAME           runs the words (NUL after each) in DIR/NAME.cmd; output to DIR/NAME.out and DIR/NAME.log   ok PID
#   signal NAME SIGNAL   ok | gone
#   status NAME          running PID | ended CODE | unknown
#   keep                 lets the programs outlive the starter, until this process gets TERM (down.sh)   ok
#   reboot               of a node: everything ends at once, and the next line is that of the supervisor of the new one
# A program gets KILL when this process dies (setpriv --pdeathsig), so that even KILL on this process leaves none behind.
set -u
dir=$1 grace=$2 keep=
declare -A pids codes

# Whether NAME runs: a child of this process still, and no zombie.
alive() {
  local pid=${pids[$1]:-} stat state parent
  [ -n "$pid" ] && read -r stat 2>/dev/null <"/proc/$pid/stat" || return 1
  read -r state parent _ <<<"${stat##*) }"
  [ "$parent" = $$ ] && [ "$state" != Z ]
}

start() {
  local words
  mapfile -d '' -t words <"$dir/$1.cmd"
  setpriv --pdeathsig KILL -- "${words[@]}" </dev/null >>"$dir/$1.out" 2>>"$dir/$1.log" &
  pids[$1]=$! codes[$1]=
}

# Collects the exit code of a program that has ended; the shell gives it only once.
reap() {
  [ -n "${codes[$1]}" ] && return
  wait "${pids[$1]}" 2>/dev/null
  codes[$1]=$?
}

finish() {
  local name tick
  [ "$grace" != node ] || exit 0
  trap '' TERM INT HUP
  if [ "$grace" -gt 0 ]; then
    for name in "${!pids[@]}"; do alive "$name" && kill -s TERM "${pids[$name]}" && kill -s CONT "${pids[$name]}"; done
    for ((tick = 0; tick < grace; tick++)); do
      for name in "${!pids[@]}"; do alive "$name" && { sleep 0.1; continue 2; }; done
      break
    done
  fi
  for name in "${!pids[@]}"; do alive "$name" && kill -s KILL "${pids[$name]}"; done
  wait
  rm -rf -- "$dir"
  exit 0
}

[ "$grace" = node ] || mkdir -m 700 -- "$dir" || exit 1
trap finish TERM
trap '' INT HUP
# The starter may be gone before it is answered. A handler, unlike '', is not handed on to the programs.
trap : PIPE
[ "$grace" = node ] || echo $$ >"$dir/supervisor.pid"
# The shell would report each program that gets KILL, among the lines of the tests.
exec 2>/dev/null
echo ok

while read -r verb name argument; do
  case $verb in
    start) start "$name" && echo "ok ${pids[$name]}" ;;
    signal)
      if alive "$name"; then
        kill -s "$argument" "${pids[$name]}"
        [ "$argument" != KILL ] || reap "$name"
        echo ok
      else
        echo gone
      fi ;;
    status)
      if [ -z "${pids[$name]:-}" ]; then echo unknown
      elif alive "$name"; then echo "running ${pids[$name]}"
      else reap "$name"; echo "ended ${codes[$name]}"
      fi ;;
    keep)
      # Nothing of the starter stays open: a pipe it writes to would seem to go on.
      keep=1; echo ok; exec </dev/null >/dev/null 2>&1 ;;
    reboot)
      if [ "$grace" = node ]; then : >"$dir/again"; exit 0; else echo "unknown command $verb"; fi ;;
    *) echo "unknown command $verb" ;;
  esac
done
while [ -n "$keep" ]; do
  setpriv --pdeathsig KILL -- sleep infinity >/dev/null 2>&1 &
  pids[idle]=$!
  wait "${pids[idle]}"
done
finish
