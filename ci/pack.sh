#!/usr/bin/env bash
# pack.sh OUT VERSION ARCH DIR: makes OUT/talos-ghcr_VERSION_linux_ARCH.tar.gz of what is in DIR, and OUT/SHA256SUMS anew.
# The same files give the same bytes: sorted, owned by root, and as old as SOURCE_DATE_EPOCH (seconds) says.
set -euo pipefail
(($# == 4)) || { echo "usage: pack.sh OUT VERSION ARCH DIR" >&2; exit 64; }
: "${SOURCE_DATE_EPOCH:?pack.sh: it says how old the files are, in seconds since 1970}"
out=$1 name=talos-ghcr_$2_linux_$3 dir=$4
export LC_ALL=C

mkdir -p "$out"
tar --create --directory "$dir" --transform "flags=r;s,^\.,$name," --format ustar --sort name \
  --owner 0 --group 0 --numeric-owner --mode 'u=rwX,go=rX' --mtime "@$SOURCE_DATE_EPOCH" . |
  gzip --no-name --best >"$out/$name.tar.gz"
(cd "$out" && sha256sum -- talos-ghcr_*.tar.gz >SHA256SUMS)
