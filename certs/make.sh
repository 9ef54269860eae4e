#!/bin/sh
# Makes a certificate authority and a serving certificate for development. See certs/README.md.
set -eu
umask 077

usage() {
    cat <<'TEXT'
usage: certs/make.sh [--out DIR] [--san NAME-OR-IP]... [--days N] [--ca-days N] [--renew-ca]

  --out DIR    where the files go (default: certs/out, which git ignores)
  --san VALUE  a DNS name or IP address to serve under; may be repeated
               (default: localhost, 127.0.0.1, ::1 and the Service's names deployer-guard.deployer-guard.svc)
  --days N     how long the serving certificate is valid (default: 7)
  --ca-days N  how long a new authority is valid (default: 30)
  --renew-ca   make a new authority, though there is one

Makes ca.crt, ca.key, tls.crt and tls.key (ECDSA P-256, mode 0600).
TEXT
}

fail() {
    echo "certs/make.sh: $*" >&2
    exit 1
}

out="$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)/out"
sans=""
days=7
ca_days=30
renew_ca=no

add_san() {
    case "$1" in
        '' | *[!A-Za-z0-9.:*-]*) fail "--san '$1' is neither a DNS name nor an IP address" ;;
        *:*) kind=IP ;;
        *[!0-9.]*) kind=DNS ;;
        *) kind=IP ;;
    esac
    sans="${sans:+$sans,}$kind:$1"
}

while [ $# -gt 0 ]; do
    case "$1" in
        --out | --san | --days | --ca-days)
            [ $# -ge 2 ] || fail "$1 needs a value; see --help"
            case "$1" in
                --out) out=$2 ;;
                --san) add_san "$2" ;;
                --days) days=$2 ;;
                --ca-days) ca_days=$2 ;;
            esac
            shift 2
            ;;
        --renew-ca) renew_ca=yes; shift ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; fail "unknown argument '$1'" ;;
    esac
done
for number in "$days" "$ca_days"; do
    case "$number" in '' | *[!0-9]* | 0) fail "'$number' is not a number of days" ;; esac
done
command -v openssl >/dev/null 2>&1 || fail "openssl is not installed: install it (for instance: apt-get install openssl) and run this again"

if [ -z "$sans" ]; then
    for name in localhost 127.0.0.1 ::1 deployer-guard deployer-guard.deployer-guard deployer-guard.deployer-guard.svc; do
        add_san "$name"
    done
fi

mkdir -p "$out"
work=$(mktemp -d "$out/.make.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

quietly() {
    "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "'$1 $2' failed"; }
}

new_key() {
    quietly openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"
}

# Whether there is an authority that outlives the serving certificate and whose key is its own.
usable_ca() {
    [ -s "$out/ca.crt" ] && [ -s "$out/ca.key" ] || return 1
    openssl x509 -in "$out/ca.crt" -noout -checkend "$((days * 86400))" >/dev/null 2>&1 ||
        fail "the authority in $out ends before a certificate of $days days would; renew it with --renew-ca"
    [ "$(openssl x509 -in "$out/ca.crt" -noout -pubkey 2>/dev/null)" = "$(openssl pkey -in "$out/ca.key" -pubout 2>/dev/null)" ] ||
        fail "$out/ca.crt and $out/ca.key do not go together; make new ones with --renew-ca"
}

if [ "$renew_ca" = yes ] || ! usable_ca; then
    [ "$days" -le "$ca_days" ] || fail "--days $days is more than --ca-days $ca_days"
    cat >"$work/ca.cnf" <<'CONFIG'
[req]
distinguished_name = name
x509_extensions = ca
prompt = no
[name]
CN = deployer-guard development CA
[ca]
basicConstraints = critical,CA:TRUE,pathlen:0
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
CONFIG
    new_key "$work/ca.key"
    quietly openssl req -x509 -new -config "$work/ca.cnf" -key "$work/ca.key" -sha256 -days "$ca_days" -out "$work/ca.crt"
    mv "$work/ca.key" "$out/ca.key"
    mv "$work/ca.crt" "$out/ca.crt"
    echo "made a new authority: $out/ca.crt ($ca_days days)"
fi

cat >"$work/tls.cnf" <<CONFIG
[req]
distinguished_name = name
prompt = no
[name]
CN = deployer-guard
[tls]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = $sans
CONFIG
new_key "$work/tls.key"
quietly openssl req -new -config "$work/tls.cnf" -key "$work/tls.key" -sha256 -out "$work/tls.csr"
quietly openssl x509 -req -in "$work/tls.csr" -CA "$out/ca.crt" -CAkey "$out/ca.key" -set_serial "0x$(openssl rand -hex 16)" \
    -sha256 -days "$days" -extfile "$work/tls.cnf" -extensions tls -out "$work/tls.crt"
quietly openssl verify -CAfile "$out/ca.crt" "$work/tls.crt"
# Renamed, not written in place: a server that is looking sees a whole file or none of it.
mv "$work/tls.key" "$out/tls.key"
mv "$work/tls.crt" "$out/tls.crt"
chmod 600 "$out/ca.crt" "$out/ca.key" "$out/tls.crt" "$out/tls.key"
echo "made a serving certificate: $out/tls.crt, $out/tls.key ($days days; $sans)"
