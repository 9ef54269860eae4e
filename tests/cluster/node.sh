#!/usr/bin/env bash
# The parent of a real node: network, mount, process and host name are its own, and of this machine it changes nothing but a
# control group called after the directory. Whoever starts it speaks to the supervise.sh that is process 1 of the node, and the
# end of that, in whatever way, is the end of every daemon, shim and container at once.
#   setsid node.sh DIR     DIR must not exist yet. Commands and answers as in supervise.sh, and
#     reboot               ends everything as a power cut does, and begins again on the same files: ok
#   node.sh check          says why a node cannot run here, if so
#   node.sh exec DIR COMMAND...   runs a command inside
# File descriptor 3, if there is one, is handed to the programs.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PATH=$PATH:/usr/sbin:/sbin
apart=(unshare --net --mount --pid --uts --fork --kill-child --propagation private --mount-proc --)

# The node's control group in each hierarchy of this machine, version 1 or 2.
groups() {
  local root=/sys/fs/cgroup
  if [ -e $root/cgroup.controllers ]; then
    echo "$root/$1"
  else
    for hierarchy in $root/*/; do
      [ ! -e "$hierarchy/cgroup.procs" ] || [ -e "$hierarchy/cgroup.controllers" ] || echo "$hierarchy$1"
    done
  fi
}

make_groups() {
  local group file
  for group in $(groups "$1"); do
    mkdir -p "$group" || return 1
    for file in cpuset.cpus cpuset.mems; do
      # Version 1 has them empty at first, and nothing may run in such a group.
      [ ! -e "$group/$file" ] || [ -e "${group%/*}/cgroup.controllers" ] || cat "${group%/*}/$file" >"$group/$file"
    done
  done
}

remove_groups() {
  local group tick
  # One more than were made: where version 2 stands beside version 1, runc makes groups in it.
  for group in /sys/fs/cgroup/"$1" /sys/fs/cgroup/*/"$1"; do
    for ((tick = 0; tick < 50; tick++)); do
      [ -d "$group" ] || break
      find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
      sleep 0.1
    done
  done
}

# What `check` tries inside: all that a node needs of the kernel.
try() {
  local dir=$1
  mount -t tmpfs tmpfs /run || { echo "no tmpfs can be mounted"; exit; }
  mkdir -p "$dir"/{lower,upper,work,merged}
  mount -t overlay overlay -o "lowerdir=$dir/lower,upperdir=$dir/upper,workdir=$dir/work" "$dir/merged" ||
    echo "no overlay can be mounted in ${dir%/*} (TMPDIR names another directory)"
  ip link add eth0 type veth peer name wire || echo "no veth pair can be made (is iproute2 installed?)"
  ip link add cni0 type bridge || echo "no network bridge can be made"
  exit
}

check() {
  local dir said
  [ "$(uname -s)" = Linux ] || { echo "it needs Linux"; return; }
  [ "$(id -u)" = 0 ] || { echo "it needs root"; return; }
  for tool in unshare nsenter setpriv setsid ip; do
    command -v $tool >/dev/null || { echo "$tool is not there (Debian: apt-get install util-linux iproute2)"; return; }
  done
  dir=$(mktemp -d)
  said=$("${apart[@]}" bash "$here/node.sh" try "$dir" 2>/dev/null) || said="no namespaces can be made (unshare)"
  make_groups "${dir##*/}" 2>/dev/null || said="no control group can be made in /sys/fs/cgroup"
  remove_groups "${dir##*/}"
  rm -rf -- "$dir"
  echo "$said" | head -n 1
}

# Inside, as process 1: what a machine's own start would do.
begin() {
  local dir=$1 file private
  set -e
  mount --make-rshared /
  # Paths that containerd, CNI and kubelet use without asking are the node's own; what else is there stays in sight.
  for private in /var/lib /var/log /opt; do
    mkdir -p "$dir/above$private" "$dir/aside$private"
    mount -t overlay overlay -o "lowerdir=$private,upperdir=$dir/above$private,workdir=$dir/aside$private" $private
  done
  for private in /var/lib/{containerd,kubelet,cni} /var/log/{pods,containers} /opt/containerd; do
    mkdir -p "$dir$private" $private
    mount --bind "$dir$private" $private
  done
  mount -t tmpfs -o mode=755 tmpfs /run
  # kubelet writes settings that are the whole machine's: here they are files.
  mkdir -p "$dir/sysctl"
  for file in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    private=$dir/sysctl/${file//\//.}
    cat /proc/sys/$file >"$private"
    mount --bind "$private" /proc/sys/$file
  done
  hostname "${dir##*/}"
  ip link set lo up
  # The network interface of a machine, whose cable leads nowhere; without a default route no Service is reached.
  ip link add eth0 type veth peer name wire
  ip link set wire up
  ip link set eth0 up
  ip addr add 172.30.0.2/24 dev eth0
  ip route add default via 172.30.0.1
  echo 1 >/proc/sys/net/ipv4/ip_forward
  # Whoever started this may not be told before others can find it.
  until [ -s "$dir/init.pid" ]; do sleep 0.01; done
  exec bash "$here/supervise.sh" "$dir" node
}

outside() {
  local dir=$1 group=${1##*/} inside
  mkdir -m 700 -- "$dir" || exit 1
  # Nothing of the starter stays open.
  exec 2>"$dir/begin.log"
  # However it ends, nothing stays.
  trap 'kill -KILL "$inside" 2>/dev/null' TERM
  trap '' INT HUP
  echo $$ >"$dir/supervisor.pid"
  make_groups "$group" || exit 1
  while :; do
    rm -f "$dir/init.pid" "$dir/again"
    setpriv --pdeathsig KILL -- "${apart[@]}" bash "$here/node.sh" begin "$dir" <&0 &
    inside=$!
    until [ -s "$dir/init.pid" ] || ! kill -0 "$inside" 2>/dev/null; do
      tr -d ' ' </proc/$inside/task/$inside/children >"$dir/init.pid" 2>/dev/null
      sleep 0.01
    done
    # The first wait ends when this process is told to end.
    while kill -0 "$inside" 2>/dev/null; do wait "$inside"; done
    [ -e "$dir/again" ] || break
  done
  remove_groups "$group"
  # Should something still be mounted there, it is not ours to empty.
  rm -rf --one-file-system -- "$dir"
}

case ${1:-} in
  check) check ;;
  try | begin) "$@" ;;
  exec)
    pid=$(cat "$2/init.pid") || exit
    exec nsenter -t "$pid" -m -n -p -u -- "${@:3}" ;;
  /*) outside "$1" ;;
  *) echo "usage: node.sh DIR | check | exec DIR COMMAND..." >&2; exit 2 ;;
esac
