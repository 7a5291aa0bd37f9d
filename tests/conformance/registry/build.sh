#!/usr/bin/env bash
# Builds the registry of the conformance tests into OUT_FOLDER/registry, unless the one there is of the same sources.
# Needs Go (of the version in go.mod or newer) and a module proxy; writes nothing into the clone.
set -euo pipefail

if (($# != 1)); then
  echo "usage: ${0##*/} OUT_FOLDER" >&2
  exit 64
fi
mkdir -p -- "$1"
out=$(cd -- "$1" && pwd)
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

# What the binary follows from: these files, how they are built (this one), and the compiler.
stamp=$({ sha256sum -- main.go go.mod go.sum build.sh; go version; } | sha256sum | cut -d' ' -f1)
if [[ -x $out/registry && $(cat -- "$out/registry.stamp" 2>/dev/null || true) == "$stamp" ]]; then
  exit 0
fi
rm -f -- "$out/registry.stamp"
# To another name first: a test may be running the one that is there.
CGO_ENABLED=0 go build -p 2 -trimpath -ldflags "-s -w" -o "$out/registry.new" .
mv -f -- "$out/registry.new" "$out/registry"
printf '%s\n' "$stamp" >"$out/registry.stamp"
