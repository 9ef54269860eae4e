#!/usr/bin/env bash
# Builds what tests, demo and `make cluster` run beside our own program, from the Go modules beside this script, once, into a
# cache outside the tree, and prints the directories that the programs are in, with : between them. What is there already is
# not built again.
#   build.sh                  the control plane: etcd, kube-apiserver, kube-controller-manager, kubectl
#   build.sh node             that and a real node (needs root, Linux, and Debian's packages, which it installs if they are missing)
#   build.sh image            what an image is built with (the same about root)
#   build.sh PROGRAM...       only these, such as helm, helm3, helm-docs, check-rules, crds.yaml (nothing is compiled for it)
#   build.sh --is-there ...   builds and installs nothing, and fails if something is missing
# DEPLOYER_GUARD_CACHE moves the cache (default: ${XDG_CACHE_HOME:-~/.cache}/deployer-guard).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DEPLOYER_GUARD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/deployer-guard}
go_needed=1.26

control=(etcd kube-apiserver kube-controller-manager kubectl)
node=(kube-scheduler kubelet kube-proxy helm helm3 cert-manager crds.yaml reach pause.tar deployer.tar)
# The command that shows that a package is there, and Debian's name of the package.
runtime=(containerd:containerd runc:runc nft:nftables iptables:iptables conntrack:conntrack ip:iproute2
  /usr/lib/cni/bridge:containernetworking-plugins)
imaging=(buildah:buildah)

# The version of a module that MODULE/go.mod requires.
version_of() { sed -n "s|^\(require \)\?\t\?$2 \(v[0-9.]*\).*|\2|p" "$here/$1/go.mod"; }
kube=$(version_of kube k8s.io/kubernetes)
etcd=$(version_of etcd go.etcd.io/etcd/server/v3)
IFS=. read -r major minor _ <<<"${kube#v}"
# Without these a server calls itself v0.0.0.
version=k8s.io/component-base/version
ldflags="-s -w -X $version.gitVersion=$kube -X $version.gitMajor=$major -X $version.gitMinor=$minor"
flags=(-buildvcs=false -trimpath "-ldflags=$ldflags")

key() { { printf '%s\n' "$@" "$(uname -m)"; cat; } | sha256sum | cut -c1-12; }
# Other versions or flags are other programs, in a directory of their own. Naming one more program of a module as its tool
# changes none of the others.
bin=$cache/bin/$(cat "$here"/{etcd,kube}/go.{mod,sum} | grep -vE '^	k8s.io/kubernetes/cmd/(kubelet|kube-proxy|kube-scheduler)$' | key "${flags[@]}")

# The directory that a program is in.
home() {
  case $1 in
    helm | helm3 | helm-docs) printf '%s\n' "$cache/bin/$1-$(cat "$here/$1"/go.{mod,sum} | key)" ;;
    cert-manager | check-rules) printf '%s\n' "$cache/bin/$1-$(cat "$here/$1"/{go.mod,go.sum,main.go} | key)" ;;
    crds.yaml) printf '%s\n' "$cache/bin/crds-$(cat "$here"/{cert-manager,crds}/go.{mod,sum} | key)" ;;
    reach | pause.tar | deployer.tar) printf '%s\n' "$cache/bin/images-$(cat "$here"/images/{go.mod,Containerfile,*/*.go} | key)" ;;
    *) printf '%s\n' "$bin" ;;
  esac
}

say() { printf '%s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

debian() { [ -e /etc/debian_version ] && command -v apt-get >/dev/null; }

# Installs those of the packages whose command is not there, or says which they are.
install_missing() { # WHAT COMMAND:PACKAGE...
  local what=$1 pair missing=()
  shift
  for pair; do
    [ -x "${pair%%:*}" ] || PATH=$PATH:/usr/sbin:/sbin command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  [ -z "$only_ask" ] || exit 1
  debian && [ "$(id -u)" = 0 ] ||
    fail "$what needs what Debian packages as: ${missing[*]}. Install them (as root on Debian: apt-get install --no-install-recommends ${missing[*]})."
  say "installing ${missing[*]}"
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 ||
    fail "$what needs ${missing[*]}, and apt-get could not install them; its own words are above."
}

go_ready() {
  local remedy="Install Go $go_needed or later from https://go.dev/dl/ and put its bin directory into PATH" found
  if debian && [ "$(id -u)" = 0 ]; then
    remedy+="; on Debian: apt-get update && apt-get install -y golang-go, if apt-cache policy golang-go offers $go_needed or later"
  fi
  command -v go >/dev/null || fail "The control plane is built with Go, and there is no go in PATH. $remedy."
  # Asked inside the module, so that a go that fetches its own toolchain answers with the fetched one.
  found=$(cd "$here/kube" && go env GOVERSION) || fail "go does not run here. $remedy."
  found=${found#go}
  [ "$(printf '%s\n' "$go_needed" "$found" | sort -V | head -n1)" = "$go_needed" ] ||
    fail "The control plane needs Go $go_needed, and go in PATH is $found. $remedy."
}

build() { # MODULE PACKAGE PROGRAM VERSION EXPECTED [FLAG...]
  local dir temp began=$SECONDS
  dir=$(home "$3") temp=$dir/.$3.$$
  say "building $3 $4 (once; about $5 on two cores with nothing cached)"
  if ! (cd "$here/$1" && GOFLAGS='' go build "${@:6}" -o "$temp" "$2"); then
    rm -f "$temp"
    fail "building $3 failed; go's own words are above. Without a network, set GOPROXY or fill Go's module cache first."
  fi
  mv "$temp" "$dir/$3"
  say "built $3 in $((SECONDS - began)) s"
}

helm() { # PROGRAM PACKAGE MODULE LDFLAG...
  local version
  version=$(version_of "$1" "$3")
  build "$1" "$2" "$1" "$version" "2 min" -buildvcs=false -trimpath "-ldflags=-s -w ${4:+-X $4=$version}"
}

# The definitions of kinds of others that the chart has objects of, as those ship them.
definitions() {
  local temp
  temp=$(home crds.yaml)/.crds.yaml.$$
  if ! { shipped cert-manager github.com/cert-manager/cert-manager deploy/crds/\*.yaml &&
    shipped crds github.com/prometheus-operator/prometheus-operator example/prometheus-operator-crd/\*_{servicemonitors,prometheusrules}.yaml; } >"$temp"; then
    rm -f "$temp"
    fail "fetching crds.yaml failed; go's own words are above. Without a network, set GOPROXY or fill Go's module cache first."
  fi
  mv "$temp" "$(home crds.yaml)/crds.yaml"
}

# Prints files of a module that MODULE/go.mod requires; the module alone is fetched, and none that it needs itself.
shipped() { # MODULE PATH PATTERN...
  local at pattern
  at=$(cd "$here/$1" && GOFLAGS='' go mod download "$2" >&2 && GOFLAGS='' go list -m -f '{{.Dir}}' "$2") || return
  # Each file begins with the line that parts documents.
  for pattern in "${@:3}"; do cat "$at"/$pattern || return; done
}

# An image of one of our own small programs, for containerd.
image() { # NAME
  local dir temp
  dir=$(home "$1.tar") temp=$(mktemp -d)
  if ! (cd "$here/images" && CGO_ENABLED=0 GOFLAGS='' go build -buildvcs=false -trimpath '-ldflags=-s -w' -o "$temp/program" "./$1") ||
    ! "$here/../../scripts/pack" "$here/images/Containerfile" "$temp" "localhost/$1:test" "$dir/$1.tar" >/dev/null; then
    rm -rf "$temp"
    fail "building the image $1 failed."
  fi
  rm -rf "$temp"
}

one() { # PROGRAM
  [ ! -e "$(home "$1")/$1" ] || return 0
  case $1 in
    etcd) build etcd go.etcd.io/etcd/server/v3 etcd "$etcd" "26 s" "${flags[@]}" ;;
    kube-apiserver) build kube k8s.io/kubernetes/cmd/kube-apiserver "$1" "$kube" "3 min 15 s" "${flags[@]}" ;;
    kube-controller-manager) build kube k8s.io/kubernetes/cmd/kube-controller-manager "$1" "$kube" "1 min" "${flags[@]}" ;;
    kubectl) build kube k8s.io/kubernetes/cmd/kubectl "$1" "$kube" "20 s" "${flags[@]}" ;;
    kubelet) build kube k8s.io/kubernetes/cmd/kubelet "$1" "$kube" "1 min" "${flags[@]}" ;;
    kube-scheduler | kube-proxy) build kube "k8s.io/kubernetes/cmd/$1" "$1" "$kube" "20 s" "${flags[@]}" ;;
    helm) helm helm helm.sh/helm/v4/cmd/helm helm.sh/helm/v4 helm.sh/helm/v4/internal/version.version ;;
    helm3) helm helm3 helm.sh/helm/v3/cmd/helm helm.sh/helm/v3 helm.sh/helm/v3/internal/version.version ;;
    helm-docs) helm helm-docs github.com/norwoodj/helm-docs/cmd/helm-docs github.com/norwoodj/helm-docs main.version ;;
    cert-manager) build cert-manager . "$1" "$(version_of cert-manager github.com/cert-manager/cert-manager)" "2 min" -buildvcs=false -trimpath "-ldflags=-s -w" ;;
    check-rules) build check-rules . "$1" "with Prometheus $(version_of check-rules github.com/prometheus/prometheus)" "20 s" -buildvcs=false -trimpath "-ldflags=-s -w" ;;
    crds.yaml) definitions ;;
    reach) CGO_ENABLED=0 build images ./reach reach "of ours" "5 s" -buildvcs=false -trimpath "-ldflags=-s -w" ;;
    pause.tar | deployer.tar) image "${1%.tar}" ;;
    *) fail "$1 is none of node, image, ${control[*]}, ${node[*]}, helm-docs, check-rules" ;;
  esac
}

only_ask=''
[ "${1:-}" != --is-there ] || { only_ask=1; shift; }
case ${1:-} in
  '') set -- "${control[@]}" ;;
  node)
    install_missing "A real node" "${runtime[@]}" "${imaging[@]}"
    set -- "${control[@]}" "${node[@]}" ;;
  image)
    install_missing "An image" "${imaging[@]}"
    exit ;;
esac
missing=()
for program; do [ -e "$(home "$program")/$program" ] || missing+=("$program"); done
if [ -n "$only_ask" ]; then exit $((${#missing[@]} > 0)); fi
if [ ${#missing[@]} -gt 0 ]; then
  go_ready
  mkdir -p "$bin"
  exec 9>"$bin/.lock"
  flock -n 9 || { say "another build of these programs is running; waiting for it"; flock 9; }
  trap 'rm -f "$cache"/bin/*/.*.$$' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  for program in "${missing[@]}"; do
    mkdir -p "$(home "$program")"
    one "$program"
  done
fi
for program; do home "$program"; done | awk '!seen[$0]++' | paste -sd :
