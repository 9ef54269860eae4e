#!/usr/bin/env bash
# Builds etcd, kube-apiserver, kube-controller-manager and kubectl from the Go modules beside this script into a cache
# outside the tree, once, and prints the directory they are in. What is there already is not built again.
#   build.sh [PROGRAM...]     all four, or only the named ones
# DEPLOYER_GUARD_CACHE moves the cache (default: ${XDG_CACHE_HOME:-~/.cache}/deployer-guard).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DEPLOYER_GUARD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/deployer-guard}
go_needed=1.26

kube=$(sed -n 's/^\tk8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' "$here/kube/go.mod")
etcd=$(sed -n 's/^\tgo.etcd.io\/etcd\/server\/v3 \(v[0-9.]*\).*/\1/p' "$here/etcd/go.mod")
IFS=. read -r major minor _ <<<"${kube#v}"
# Without these a server calls itself v0.0.0.
version=k8s.io/component-base/version
ldflags="-s -w -X $version.gitVersion=$kube -X $version.gitMajor=$major -X $version.gitMinor=$minor"
flags=(-buildvcs=false -trimpath "-ldflags=$ldflags")

# Other versions or flags are other programs, in a directory of their own.
key=$({ printf '%s\n' "${flags[@]}" "$(uname -m)"; cat "$here"/{etcd,kube}/go.{mod,sum}; } | sha256sum | cut -c1-12)
bin=$cache/bin/$key

say() { printf '%s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

go_ready() {
  local remedy="Install Go $go_needed or later from https://go.dev/dl/ and put its bin directory into PATH" found
  if [ -e /etc/debian_version ] && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    remedy+="; on Debian: apt-get update && apt-get install -y golang-go, if apt-cache policy golang-go offers $go_needed or later"
  fi
  command -v go >/dev/null || fail "The control plane is built with Go, and there is no go in PATH. $remedy."
  # Asked inside the module, so that a go that fetches its own toolchain answers with the fetched one.
  found=$(cd "$here/kube" && go env GOVERSION) || fail "go does not run here. $remedy."
  found=${found#go}
  [ "$(printf '%s\n' "$go_needed" "$found" | sort -V | head -n1)" = "$go_needed" ] ||
    fail "The control plane needs Go $go_needed, and go in PATH is $found. $remedy."
}

build() { # MODULE PACKAGE PROGRAM VERSION EXPECTED
  local temp=$bin/.$3.$$ began=$SECONDS
  say "building $3 $4 (once; about $5 on two cores with nothing cached)"
  if ! (cd "$here/$1" && GOFLAGS='' go build "${flags[@]}" -o "$temp" "$2"); then
    rm -f "$temp"
    fail "building $3 failed; go's own words are above. Without a network, set GOPROXY or fill Go's module cache first."
  fi
  mv "$temp" "$bin/$3"
  say "built $3 in $((SECONDS - began)) s"
}

one() { # PROGRAM
  [ ! -x "$bin/$1" ] || return 0
  case $1 in
    etcd) build etcd go.etcd.io/etcd/server/v3 etcd "$etcd" "26 s" ;;
    kube-apiserver) build kube k8s.io/kubernetes/cmd/kube-apiserver "$1" "$kube" "3 min 15 s" ;;
    kube-controller-manager) build kube k8s.io/kubernetes/cmd/kube-controller-manager "$1" "$kube" "1 min" ;;
    kubectl) build kube k8s.io/kubernetes/cmd/kubectl "$1" "$kube" "20 s" ;;
    *) fail "$1 is none of etcd, kube-apiserver, kube-controller-manager, kubectl" ;;
  esac
}

[ $# -gt 0 ] || set -- etcd kube-apiserver kube-controller-manager kubectl
missing=()
for program; do [ -x "$bin/$program" ] || missing+=("$program"); done
if [ ${#missing[@]} -gt 0 ]; then
  go_ready
  mkdir -p "$bin"
  exec 9>"$bin/.lock"
  flock -n 9 || { say "another build of the control plane is running; waiting for it"; flock 9; }
  trap 'rm -f "$bin"/.*.$$' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  for program in "${missing[@]}"; do one "$program"; done
fi
printf '%s\n' "$bin"
